"""How things stand in a store, seen past all clients: who holds what, who waits, which sessions are open."""

from __future__ import annotations

from dibs.core.records import LockRecord, SessionRecord, Ticket
from dibs.stores.registry import open_store
from tests.processes import wait_until


def left_behind(url: str, job: str = "") -> list[str]:
    """Everything that somebody still has or waits for, in words. Nothing is what a client should leave. `job`: only
    what its name begins with."""
    store = open_store(url)
    try:
        now_ms = store.read(()).now_ms
        found = []
        for _, versioned in store.scan(""):
            record = versioned.record
            if isinstance(record, LockRecord | Ticket) and not record.name.startswith(job):
                continue
            if isinstance(record, LockRecord):
                live = [each for each in record.holders if not each.ttl_ms or each.expires_ms > now_ms]
                found += [f"{each.owner} holds {record.name} (token {each.token})" for each in live]
            elif isinstance(record, Ticket) and record.expires_ms > now_ms:
                found.append(f"{record.owner} waits for {record.name}")
            elif isinstance(record, SessionRecord) and not record.ended_ms and record.expires_ms > now_ms:
                found.append(f"{record.owner} has a session")
        return found
    finally:
        store.close()


def check_nothing_left(url: str, job: str = "", *, what: str = "") -> None:
    """A server hears of a closed connection a moment later, so it is looked for a moment."""
    seen: list[str] = []

    def clean() -> bool:
        seen[:] = left_behind(url, job)
        return not seen

    try:
        wait_until(clean, "nothing is left behind", 3)
    except AssertionError:
        raise AssertionError(f"left behind {what}: {seen}") from None
