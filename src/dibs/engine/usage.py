"""Counts again what principals with a limit have. The rules keep these records right (`core/quota.py`). This is needed
when a limit is set for somebody who already holds something, and for records that an older dibs wrote. It counts record
by record while others work; what is taken or ended meanwhile is counted correctly. Until it has finished, the count is
too low.
"""

from __future__ import annotations

from collections import Counter

from dibs.core.commands import BeginCount, CountUsage
from dibs.core.credentials import Usage
from dibs.core.keys import LOCK_PREFIX, SESSION_PREFIX, USAGE_PREFIX
from dibs.core.limits import LIST_PAGE_DEFAULT, SWEEP_BATCH_MAX
from dibs.core.records import LockRecord, SessionRecord, Ticket
from dibs.engine.coordinator import Coordinator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.core.records import Stored
    from dibs.stores.port import Store

_TICKET_PREFIX = "ticket/"


def recount(store: Store, payer: str) -> None:
    """Count again what one principal has."""
    coordinator = Coordinator(store)
    coordinator.one(BeginCount(payer=payer))
    principal = payer.partition("/")[2]
    keys = [key for key, record in _records(store) if any(each[0] == principal for each in _charges(record))]
    for start in range(0, len(keys), SWEEP_BATCH_MAX):
        batch = [CountUsage(key=key, payer=payer) for key in keys[start : start + SWEEP_BATCH_MAX]]
        for outcome in coordinator.run(batch):
            if isinstance(outcome, BaseException):
                raise outcome


def disagreeing(store: Store) -> list[str]:
    """The principals whose usage record disagrees with the other records. One that changes at this moment may be among
    them."""
    counted: Counter[tuple[str | None, str]] = Counter()
    for _, record in _records(store):
        for _, charged, what in _charges(record):
            counted[charged, what] += 1
    wrong = []
    for key, record in _scan(store, USAGE_PREFIX):
        payer = key.removeprefix(USAGE_PREFIX)
        if isinstance(record, Usage):
            mark = f"{record.count}/{payer}"
            found = [counted[mark, what] for what in ("held", "waiting", "sessions")]
            if found != [record.held, record.waiting, record.sessions]:
                wrong.append(payer)
    return wrong


def _records(store: Store) -> Iterator[tuple[str, Stored]]:
    yield from _scan(store, LOCK_PREFIX, live=True)
    yield from _scan(store, _TICKET_PREFIX)
    yield from _scan(store, SESSION_PREFIX, live=True)


def _scan(store: Store, prefix: str, *, live: bool = False) -> Iterator[tuple[str, Stored]]:
    after = ""
    while page := store.scan(prefix, after, LIST_PAGE_DEFAULT, live=live):
        for key, found in page:
            if found.record is not None:
                yield key, found.record
        after = page[-1][0]


def _charges(record: Stored) -> list[tuple[str, str | None, str]]:
    """The principal, the charge, and what it counts as."""
    if isinstance(record, LockRecord):
        return [(each.principal, each.charge, "held") for each in record.holders]
    if isinstance(record, Ticket):
        return [(record.principal, record.charge, "waiting")]
    if isinstance(record, SessionRecord) and not record.ended_ms:
        return [(record.principal, record.charge, "sessions")]
    return []
