"""The state of a store, read directly and not through a client: holds, waiters, open sessions, history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.records import LockRecord, SessionRecord, Ticket
from dibs.stores.registry import open_store
from tests.models.history import all_events
from tests.programs import wait_until

if TYPE_CHECKING:
    from dibs.core.events import Event


def events_of(store_url: str) -> list[Event]:
    """The whole history of a store."""
    store = open_store(store_url)
    try:
        return all_events(store)
    finally:
        store.close()


def left_behind(url: str, job: str = "", *, unswept: bool = False) -> list[str]:
    """All holds, waiters and sessions that are left, in words. A client should leave none. `job`: only names that
    begin with it. `unswept`: also holds that expired and have no event of it yet."""
    store = open_store(url)
    try:
        now_ms = store.read(()).now_ms
        found = []
        for _, versioned in store.scan(""):
            record = versioned.record
            if isinstance(record, LockRecord | Ticket) and not record.name.startswith(job):
                continue
            if isinstance(record, LockRecord):
                live = [each for each in record.holders if unswept or not each.ttl_ms or each.expires_ms > now_ms]
                found += [f"{each.owner} holds {record.name} (token {each.token})" for each in live]
            elif isinstance(record, Ticket) and record.expires_ms > now_ms:
                found.append(f"{record.owner} waits for {record.name}")
            elif isinstance(record, SessionRecord) and not record.ended_ms and record.expires_ms > now_ms:
                found.append(f"{record.owner} has a session")
        return found
    finally:
        store.close()


def check_nothing_left(url: str, job: str = "", *, what: str = "") -> None:
    """Looks repeatedly for a moment, because a server notices a closed connection a moment later."""
    seen: list[str] = []

    def clean() -> bool:
        seen[:] = left_behind(url, job)
        return not seen

    try:
        wait_until(clean, "nothing is left behind", 3)
    except AssertionError:
        raise AssertionError(f"left behind {what}: {seen}") from None
