"""The state of a job, in one word."""

from __future__ import annotations

from dibs.core.records import DELAYED, DONE, FREE, HELD, PARKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.records import LockRecord


def state_of(lock: LockRecord, now_ms: int) -> str:
    """One of STATES. `lock` must be settled at `now_ms`: only live holds are in it."""
    if lock.holders:
        return HELD
    if lock.parked:
        return PARKED
    if lock.done is not None and now_ms < lock.done.until_ms:
        return DONE
    return DELAYED if now_ms < lock.delay_until_ms else FREE
