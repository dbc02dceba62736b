"""A lane of a webhook at work: a job with something to send, and its next events in memory."""

from __future__ import annotations

from dibs.core.events import Event
from dibs.core.webhooks import GAP, Lane

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.webhooks import DeadLetter


class LaneState:
    """`letter`: it is a dead letter that is tried again."""

    __slots__ = ("after", "error", "is_busy", "job", "last", "letter", "queue", "tries", "until_ms")

    def __init__(self, lane: Lane, letter: DeadLetter | None = None) -> None:
        self.job = lane.job
        self.after = lane.after
        self.last = lane.last
        self.tries = lane.tries
        self.until_ms = lane.until_ms
        self.error = lane.error
        self.letter = letter
        self.queue: list[Event] = []
        self.is_busy = False

    def saved(self) -> Lane:
        return Lane(
            job=self.job,
            after=self.after,
            last=self.last,
            tries=self.tries,
            until_ms=self.until_ms,
            error=self.error,
        )

    def is_gap(self) -> bool:
        return not self.job

    def head(self, now_ms: int) -> Event:
        """The next event. Of a gap, an event that says so: `ticket` is the number before it."""
        if self.is_gap():
            return Event(at_ms=now_ms, kind=GAP, seq=self.last, ticket=self.after)
        return self.queue[0]
