"""The successes of a job, for those who ask whether it ran in time.

A hold ended in success if its owner released it without saying that it failed, marked as done or not: so does `dibs
run` after a command that exited with 0, and a block of the SDK that did not raise. An interrupted worker, the end of a
session, and a lease whose grant reached nobody say nothing about the work (`uncounted`). Like a loss, they are no
success.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core import events
from dibs.core.events import Event
from dibs.core.records import RELEASED, LockRecord


class Success(Record):
    at_ms: int
    owner: str
    token: int
    done: bool = False
    result: str | None = None


class LastRun(Record):
    """The last success on record. Without one, `since_ms` is where the record begins. `owner` is who has
    the job now."""

    now_ms: int
    name: str
    success: Success | None = None
    since_ms: int | None = None
    owner: str | None = None
    held_since_ms: int = 0

    def late_ms(self, within_ms: int) -> int | None:
        """By how much it is overdue: 0 if it is in time, None if there is no success to count from."""
        return None if self.success is None else max(0, self.now_ms - self.success.at_ms - within_ms)


def success_of(event: Event) -> Success | None:
    if event.kind != events.RELEASED or event.uncounted:
        return None
    done = event.done_until_ms is not None
    return Success(at_ms=event.at_ms, owner=event.owner, token=event.token, done=done, result=event.result)


def success_in(lock: LockRecord) -> Success | None:
    """The last success that a job's record remembers. The result is there while the job is marked as done."""
    for ending in lock.endings:
        if ending.how == RELEASED and not ending.uncounted:
            marked = lock.done if lock.done is not None and lock.done.token == ending.token else None
            result = marked.result if marked is not None else None
            return Success(at_ms=ending.at_ms, owner=ending.owner, token=ending.token, done=ending.done, result=result)
    if lock.done is None:
        return None
    mark = lock.done
    return Success(at_ms=mark.at_ms, owner=mark.owner, token=mark.token, done=True, result=mark.result)
