"""The floor under all fencing tokens, for a store that goes on from another one: an import, a backup that was put back,
another lock service. Numbers that were given out there must not come again, and neither must numbers of events."""

from __future__ import annotations

from dibs.base.clock import wall_ms
from dibs.core.commands import RaiseFloor
from dibs.core.lease_outcomes import Raised
from dibs.core.records import META_KEY, Meta
from dibs.engine.coordinator import run_one
from dibs.stores.port import Store, maintenance_of


def floor_after(known: int, now_ms: int) -> int:
    """A floor above every token that the store can have given out since the copy: a job's number rises by one with each
    owner, so it stays far below the time in milliseconds. That also puts it above an earlier move's floor."""
    return max(known + 1, now_ms)


def number_after(known: int, now_ms: int) -> int:
    """The same for the numbers of events. There are more of them: the time in microseconds, which a store of a million
    events a second would reach (on etcd one of a thousand commits, whose numbers rise by 1,024 each)."""
    return max(known + 1, now_ms * 1_000)


def raise_floor(store: Store, floor: int) -> int:
    """Raise the floor, and return the one that applies from now on. Numbers of events go on from the clock: an old copy
    may have been put back by other means than ours. They come first: whoever finds the floor as high needs neither."""
    maintenance_of(store).number_from(number_after(store.newest_seq(), wall_ms()))
    outcome = run_one(store, RaiseFloor(floor=floor))
    assert isinstance(outcome, Raised)
    return outcome.floor


def has_floor(store: Store, floor: int) -> bool:
    """Return whether the floor is as high already."""
    meta = store.read((META_KEY,)).records[META_KEY].record
    return isinstance(meta, Meta) and meta.token_floor >= floor
