"""Moving a record in time: for a store whose machines share no clock."""

from __future__ import annotations

from dibs.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    R = TypeVar("R", bound=Record)

# Fields that hold an instant; 0 and None mean "never". Every other field in milliseconds is a span.
INSTANTS = frozenset(
    """
    since_ms renewed_ms heard_ms active_ms expires_ms checkpoint_ms at_ms until_ms delay_until_ms ended_ms began_ms
    doubt_ms from_ms unserved_ms
    """.split()
)


def shifted(record: R, by_ms: int) -> R:
    """`record` with all its instants moved: how a store whose machines share no clock shows it to each of them."""
    made: R = _moved(record, by_ms) if by_ms else record
    return made


def _shifted(value: Any, by_ms: int) -> Any:
    if isinstance(value, tuple):
        return tuple([_shifted(each, by_ms) for each in value])
    return _moved(value, by_ms) if isinstance(value, Record) else value


def _moved(record: Any, by_ms: int) -> Any:
    changes = {}
    for field in record._fields:
        held = getattr(record, field)
        if field in INSTANTS:
            changes[field] = held + by_ms if held else held
        elif isinstance(held, tuple | Record):
            changes[field] = _shifted(held, by_ms)
    return record.replace(**changes)
