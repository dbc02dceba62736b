"""Frames of server-sent events: how a server writes an event, and how a client reads it."""

from __future__ import annotations

from dibs.base.jsontext import encode
from dibs.core.events import LOCK_CHANGES
from dibs.wire.lease_documents import event_document
from dibs.wire.parts import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dibs.core.events import Event

    Document = dict[str, Any]

FRAME_BYTES_MAX = 1024 * 1024
GAP = "gap"
DROPPED = "dropped"


def named_event(event: Event) -> Document:
    """An event, with the job and namespace that it is about."""
    return {**event_document(event), "name": event.job, "namespace": event.ns}


def gap_document(after: int, oldest: int) -> Document:
    """Events after `after` are not on record any more; `oldest` is the first that is."""
    return {"event": GAP, "after": after, "oldest": oldest}


def events_document(after: int | None, events: list[Event], upto: int, oldest: int | None) -> Document:
    """A page of events after a position. `next_after` is the position after them."""
    gap = None if oldest is None else gap_document(after or 0, oldest)
    return {"events": [named_event(event) for event in events], "next_after": upto, "gap": gap}


def frame(document: Document, seq: int, kind: str = "") -> bytes:
    """One event of a stream. JSON has no line ends, so the document is one line."""
    name = f"event: {kind}\n" if kind else ""
    return f"id: {seq}\n{name}data: {encode(document)}\n\n".encode()


def position_frame(seq: int, note: str) -> bytes:
    """No event: only the position up to which everything was sent. A reader that comes back continues there."""
    return f": {note}\nid: {seq}\n\n".encode()


def retry_frame(after_ms: int) -> bytes:
    """Return how long a reader waits before it comes back."""
    return f"retry: {after_ms}\n\n".encode()


def lock_change(event: Event) -> Document | None:
    """An event as OctoStore tells it to those who watch a lock; None if it does not tell it."""
    change = LOCK_CHANGES.get(event.kind)
    if change is None:
        return None
    document: Document = {"event": change, "lock_name": event.job}
    if change in ("acquired", "renewed"):
        document["fencing_token"] = event.token
        ends_ms = event.hold_ends_ms()
        document["expires_at"] = None if ends_ms is None else timestamp(ends_ms)
    return {**document, "observed_at": timestamp(event.at_ms)}


def lock_snapshot(name: str, state: Document, now_ms: int) -> Document:
    """The first frame for somebody who watches a lock: how it stands. `state` is the document of GET /locks/{name}."""
    document: Document = {"event": "released", "lock_name": name}
    if state.get("status") == "held":
        document["event"] = "acquired"
        document["fencing_token"] = state["fencing_token"]
        document["expires_at"] = state["expires_at"]
    return {**document, "observed_at": timestamp(now_ms)}


class FrameReader:
    """Reads frames from bytes as they come. A frame is its event name (empty for most), its data, and the position
    after it; a frame without data has only the position."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self.last_id: str = ""

    def feed(self, data: bytes) -> Iterator[tuple[str, str, str]]:
        """Raises ValueError for a line without end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > FRAME_BYTES_MAX:
            raise ValueError("a line without end")
        for raw in lines:
            line = raw.decode("utf-8", "replace").removesuffix("\r")
            if line:
                self._line(line)
                continue
            found = (self._name, "\n".join(self._data), self.last_id)
            self._name, self._data = "", []
            yield found

    def _line(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self.last_id = value
