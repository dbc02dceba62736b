"""Outcomes about the store itself: sweeping, servers' pulses, counting, freezing. No claim needs them."""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.records import FreezeMark

TYPE_CHECKING = False


class Counted(Record):
    """What was to be charged is."""

    now_ms: int


class Swept(Record):
    now_ms: int
    key: str
    expired: int = 0
    forgotten: bool = False
    unfinished: bool = False  # there was more to do than one decision does; sweep it again
    frozen: bool = False  # nothing was done, because the store is frozen


class BeatRecorded(Record):
    """`frozen`: a gap could not be recorded, because the store is frozen. Beat again."""

    now_ms: int
    outage_ms: int = 0
    frozen: bool = False


class Frozen(Record):
    """The store is frozen: nothing was changed. It is being moved, or is not complete yet."""

    now_ms: int
    mark: FreezeMark


class FreezeNoted(Record):
    """The store is frozen from now on."""

    now_ms: int
    mark: FreezeMark


class Thawed(Record):
    """The store may be used. `was_frozen` is False when it could be before."""

    now_ms: int
    was_frozen: bool


class Identified(Record):
    """Which store this is."""

    now_ms: int
    store_id: str


class Raised(Record):
    """The floor under all fencing tokens, as it is now."""

    now_ms: int
    floor: int


if TYPE_CHECKING:
    from typing import TypeAlias

    UpkeepOutcome: TypeAlias = (
        Counted | Swept | BeatRecorded | Frozen | FreezeNoted | Thawed | Identified | Raised
    )
