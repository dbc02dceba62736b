"""OctoStore's streams: events without ids, and comments as signs of life."""

from __future__ import annotations

from dibs.server.events.stream import EventStream

_ID = b"id: "
_RETRY = b"retry: "


class PlainStream(EventStream):
    """An event stream without positions. A reader that comes back begins with the state, as it does at OctoStore."""

    def _put(self, seq: int, part: bytes) -> None:
        lines = [line for line in part.split(b"\n") if not line.startswith((_ID, _RETRY))]
        super()._put(seq, b"\n".join(lines).lstrip(b"\n"))
