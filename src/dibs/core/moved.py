"""A record for another store, which has another clock and does not know of earlier outages."""

from __future__ import annotations

from dibs.core.expiry import credited_ms
from dibs.core.instants import shifted
from dibs.core.limits import TICKET_MS
from dibs.core.records import LockRecord, SessionRecord, Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.records import Holder, Outage, Stored


def moved(record: Stored, outages: tuple[Outage, ...], by_ms: int) -> Stored:
    """`record` with its instants moved by `by_ms`. What it has left is kept: the credit that it has for `outages` is
    written into its deadlines."""
    if isinstance(record, LockRecord):
        record = record.replace(holders=tuple([_credited(each, outages) for each in record.holders]))
    elif isinstance(record, SessionRecord):
        record = record.replace(
            expires_ms=credited_ms(record.expires_ms, record.renewed_ms, record.ttl_ms, outages)
        )
    elif isinstance(record, Ticket):
        record = record.replace(
            expires_ms=credited_ms(record.expires_ms, record.renewed_ms, TICKET_MS, outages)
        )
    return shifted(record, by_ms)


def _credited(holder: Holder, outages: tuple[Outage, ...]) -> Holder:
    if not holder.ttl_ms:  # it lives as long as its session
        return holder
    return holder.replace(
        expires_ms=credited_ms(holder.expires_ms, holder.renewed_ms, holder.ttl_ms, outages)
    )
