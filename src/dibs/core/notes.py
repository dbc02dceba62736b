"""The space for checkpoints and metadata of one job's owners.

Each owner may have a checkpoint of CHECKPOINT_BYTES_MAX and metadata of METADATA_CHARS_MAX. All owners of a job are in
one record, which every claim and heartbeat reads and writes, so all checkpoints together may have CHECKPOINTS_BYTES_MAX
and all metadata METADATA_BYTES_MAX. What is stored stays. A heartbeat that brings too much is refused. A claim is not:
who gets a job does not depend on what others noted, and a waiter could not be asked again. Its metadata is left out.
"""

from __future__ import annotations

from dibs.core.limits import CHECKPOINTS_BYTES_MAX, METADATA_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.draft import Draft
    from dibs.core.lease_outcomes import NoteTooLong
    from dibs.core.records import Holder, LockRecord


def check_room(
    draft: Draft, lock: LockRecord, mine: Holder, checkpoint: str | None, metadata: str | None = None
) -> NoteTooLong | None:
    """None if both fit beside those of the job's other owners, or are not longer than what they replace."""
    if len(lock.holders) == 1 or (checkpoint is None and metadata is None):
        return None
    others = [each for each in lock.holders if each.lease_id != mine.lease_id]
    for what, most, new, old, used in (
        (
            "checkpoints",
            CHECKPOINTS_BYTES_MAX,
            checkpoint,
            mine.checkpoint,
            [each.checkpoint for each in others],
        ),
        ("metadata", METADATA_BYTES_MAX, metadata, mine.metadata, [each.metadata for each in others]),
    ):
        if new is None:
            continue
        room = max(most - sum([_size(text) for text in used]), _size(old))
        if _size(new) > room:
            from dibs.core.lease_outcomes import NoteTooLong  # a claim needs none of them

            return NoteTooLong(
                now_ms=draft.now_ms, name=lock.name, what=what, owners=len(lock.holders), most=most, room=room
            )
    return None


def fitting(lock: LockRecord, metadata: str | None) -> str | None:
    """The metadata of a new owner, or None if it does not fit beside those of the others."""
    if metadata is None or not lock.holders:
        return metadata
    used = sum([_size(each.metadata) for each in lock.holders])
    return metadata if used + _size(metadata) <= METADATA_BYTES_MAX else None


def _size(text: str | None) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if text else 0
