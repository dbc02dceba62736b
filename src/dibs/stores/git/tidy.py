"""Deletes old refs: those of deleted records, and of keys that were only looked at. They keep versions and history for
a week. A ref is deleted only if it did not change since it was checked. Fencing numbers do not depend on these refs:
those of forgotten jobs are in the store's floor.
"""

from __future__ import annotations

from dibs.core.limits import GIT_TIDY_BATCH_MAX, GIT_TOMBSTONE_MS
from dibs.stores.git.private import shrink
from dibs.stores.git.refs import Swap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.stores.git.entries import Entry
    from dibs.stores.git.tips import Tips


def tidy(tips: Tips) -> dict[str, Any]:
    """Returns how many refs were deleted, and which could not be read."""
    removed = 0
    old = _old(tips)
    while old:
        batch, old = old[:GIT_TIDY_BATCH_MAX], old[GIT_TIDY_BATCH_MAX:]
        if tips.refs.swap([Swap(tail, entry.oid, "") for tail, entry in batch]):
            removed += len(batch)
            continue
        # Somebody changed one of them: delete those that are still old, one by one.
        for tail, entry in batch:
            removed += tips.refs.swap([Swap(tail, entry.oid, "")])
    broken = {tips.refs.name(tail): why for tail, why in sorted(tips.broken.items())}
    if not tips.location.is_local:
        shrink(tips.location)
    return {"removed": removed, "broken": broken}


def _old(tips: Tips) -> list[tuple[str, Entry]]:
    entries = tips.look([""])
    aged = [
        (tips.time.rough_age_ms(entry), tail, entry)
        for tail, entry in entries.items()
        if entry.stored is None
    ]
    oldest = sorted([each for each in aged if each[0] >= GIT_TOMBSTONE_MS], key=lambda each: -each[0])
    return [(tail, entry) for _, tail, entry in oldest]
