"""The space for checkpoints of one job's owners.

Each owner may have a checkpoint of CHECKPOINT_BYTES_MAX. All owners of a job are in one record, which every claim
reads and writes, so all checkpoints together may have CHECKPOINTS_BYTES_MAX. Existing checkpoints stay, even if an
older version allowed more.
"""

from __future__ import annotations

from dibs.core.lease_outcomes import CheckpointTooLong
from dibs.core.limits import CHECKPOINTS_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.draft import Draft
    from dibs.core.records import Holder, LockRecord


def check_room(
    draft: Draft, lock: LockRecord, mine: Holder, checkpoint: str | None
) -> CheckpointTooLong | None:
    """None if `checkpoint` fits beside those of the job's other owners, or is not longer than the one it replaces."""
    if checkpoint is None or len(lock.holders) == 1:
        return None
    others = sum([_size(each.checkpoint) for each in lock.holders if each.lease_id != mine.lease_id])
    room = max(CHECKPOINTS_BYTES_MAX - others, _size(mine.checkpoint))
    if _size(checkpoint) <= room:
        return None
    return CheckpointTooLong(now_ms=draft.now_ms, name=lock.name, owners=len(lock.holders), room=room)


def _size(text: str | None) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if text else 0
