"""How many claims and expiries there are a second, from the stored events."""

from __future__ import annotations

from collections import deque

from dibs.client.event_reader import EventCursor
from dibs.core.events import ACQUIRED, EXPIRED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.client.door import Door

WINDOW_MS = 60_000
PAGES_MAX = 5  # of one look; on a very busy store the rest is skipped, and the rate is that of what was seen


class EventRate:
    """`update` reads what is new. Times are arguments."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._cursor = EventCursor(prefix, None, None)
        self._seen: deque[tuple[int, int, int]] = deque()  # until when, and how many claims and expiries
        self._since_ms: int | None = None

    def update(self, door: Door, now_ms: int) -> None:
        claims = expiries = 0
        for _ in range(PAGES_MAX):
            reply = door.events(*self._cursor.question())
            if reply.status != 200:
                return
            self._cursor.take_page(reply.body or {})
            for event in iter(self._cursor.pop, None):
                claims += event["event"] == ACQUIRED
                expiries += event["event"] == EXPIRED
            if self._cursor.is_current:
                break
        else:
            self._cursor = EventCursor(self._prefix, None, None)
        if self._since_ms is None:
            self._since_ms = now_ms
            return
        self._seen.append((now_ms, claims, expiries))
        while self._seen[0][0] < now_ms - WINDOW_MS:
            self._since_ms = self._seen.popleft()[0]

    def rates(self, now_ms: int) -> tuple[float, float] | None:
        """Claims and expiries a second, over the last minute. None before there are two looks."""
        if self._since_ms is None or now_ms <= self._since_ms or not self._seen:
            return None
        seconds = (now_ms - self._since_ms) / 1000
        return sum(each[1] for each in self._seen) / seconds, sum(each[2] for each in self._seen) / seconds
