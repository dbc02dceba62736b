"""Reads a server's stream of events, and follows events through any transport."""

from __future__ import annotations

from collections import deque
from time import sleep

from dibs.base.cheap import Callable, Iterator
from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, ServerUnreachable
from dibs.base.generators import run_generator
from dibs.base.http1 import ConnectionLost, ReplyReader
from dibs.base.jsontext import Document, decode
from dibs.client.connection import DO_NOT_BEGIN, Deadline, ServerConnection, receive, send
from dibs.client.transport import Ask, Streamed, Transport
from dibs.core import limits
from dibs.wire.documents import Reply
from dibs.wire.parts import DROPPED, GAP

AWAIT_MS = 24 * 3600 * 1000
PAUSE_MS = 50
FRAME_BYTES_MAX = 1024 * 1024


def why_away(details: str) -> str:
    """Return why no server answers, for somebody who only looks: without the advice for workers."""
    return details.replace(DO_NOT_BEGIN, "").strip()


def asked_events(
    prefix: str, name: str | None, after: int | None, limit: int, since_ms: int = 0, *, follow: bool = False
) -> Ask:
    """A page of events of all jobs whose name begins with `prefix`, or of one job, after a position; or else those of
    the last `since_ms` milliseconds; or else the newest. With `follow` a stream of them."""
    terms: Document = {} if name is None else {"name": name}
    terms["limit"] = limit
    if after is not None:
        terms["after"] = after
    elif since_ms:
        terms["since_seconds"] = since_ms / 1000
    return Ask("events", prefix if name is None else name, {**terms, "follow": "true" if follow else "false"})


class FrameReader:
    """Reads frames from bytes as they come. A frame: event name (empty for most), data, and the position after it."""

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
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                found = (self._name, "\n".join(self._data), self.last_id)
                self._name, self._data = "", []
                yield found
            elif field == "data":
                self._data.append(value)
            elif field == "event":
                self._name = value
            elif field == "id" and "\0" not in value:
                self.last_id = value


class EventCursor:
    """The position of a reader of events: what it asks for next, and takes from answers. Pure: no I/O and no clock.

    A page of events comes first. It also reports gaps and failures. When a page has brought everything, the reader
    waits for a stream, and asks for a page again when the stream has ended, for whatever reason."""

    def __init__(self, prefix: str, name: str | None, after: int | None, since_ms: int = 0) -> None:
        self.prefix = prefix
        self.name = name
        self.position = after  # everything up to here was handed out; None until an answer says where "now" is
        self.is_current = False  # nothing is known to come after the position: wait for a stream
        self.is_refused = False  # the last stream brought nothing, nor did the page after it: pause before the next
        self._since_ms = since_ms
        self._waiting: deque[Document] = deque()
        self._upto = 0
        self._streams_from: int | None = None

    @property
    def _begins_now(self) -> bool:
        return self.position is None and not self._since_ms

    def question(self) -> Ask:
        """The next page. Somebody who begins now asks for one event, only to learn its position."""
        limit = 1 if self._begins_now else limits.LIST_PAGE_DEFAULT
        return asked_events(self.prefix, self.name, self.position, limit, self._since_ms)

    def stream(self) -> Ask:
        assert self.position is not None
        self._streams_from = self._upto = self.position
        return asked_events(self.prefix, self.name, self.position, 1, follow=True)

    def take_page(self, page: Document) -> None:
        if not self._begins_now:
            self._waiting.extend([page["gap"]] if page.get("gap") else [])
            self._waiting.extend(page["events"])
        self.is_current = not self._waiting
        self._upto = int(page["next_after"])
        if not self._waiting:
            self.position = self._upto
        self.is_refused = self.is_current and self.position == self._streams_from
        self._streams_from = None

    def take_streamed(self, streamed: Streamed) -> None:
        position, event = streamed
        if position <= self._upto:  # it was there before
            return
        self._upto = position
        if event is not None:
            self._waiting.append(event)
        elif not self._waiting:
            self.position = position

    def end_stream(self) -> None:
        self.is_current = False

    def pop(self) -> Document | None:
        """The next event or gap that was taken and not handed out yet."""
        if not self._waiting:
            return None
        found = self._waiting.popleft()
        last = int(found["oldest"]) - 1 if found["event"] == GAP else int(found["seq"])
        self.position = last if self._waiting else self._upto
        return found


class StreamFrames(FrameReader):
    """The events and positions in the bytes of a stream. `is_over`: the server reported a gap, or that the reader is
    too slow. A page of events says the same, so whoever follows learns of it there."""

    is_over = False

    def read(self, part: bytes) -> Iterator[Streamed]:
        """Raises ValueError for what is no stream of events."""
        for kind, data, last_id in self.feed(part):
            if kind in (GAP, DROPPED):
                self.is_over = True
                return
            if data:
                event = decode(data)
                if not isinstance(event, dict) or not isinstance(event.get("seq"), int):
                    raise ValueError("no event")
                yield event["seq"], event
            elif last_id.isdecimal() and len(last_id) < 20:
                yield int(last_id), None


def _stream(
    server: ServerConnection, request: bytes, deadline: Deadline, silence_ms: Callable[[], int]
) -> Iterator[bytes]:
    """The parts of a stream as they come, over a connection of its own. Raises ServerUnreachable, or ConnectionLost if
    it breaks, is no stream, or is silent for `silence_ms`, which is asked each time.

    This module is not compiled: a compiled generator that is dropped does not run its `finally`."""
    connection = server.proven(deadline)
    try:
        send(connection, request, deadline)
        reader = ReplyReader(limits.HEAD_BYTES_MAX, limits.REPLY_BYTES_MAX)
        if not run_generator(reader.stream_head(), lambda _: receive(connection, deadline)):
            raise ConnectionLost
        while part := run_generator(reader.stream_part(), lambda _: receive(connection, Deadline(silence_ms()))):
            yield part
    except OSError as error:  # TimeoutError among them
        raise ConnectionLost from error
    finally:
        connection.close()


def read_events(
    connection: ServerConnection, request: bytes, deadline: Deadline, timeout_ms: int
) -> Iterator[Streamed]:
    """The events and positions of a stream, until it ends or breaks."""
    until_ms = steady_ms() + timeout_ms
    frames = StreamFrames()
    try:
        for part in _stream(
            connection, request, deadline, lambda: min(limits.STREAM_SILENCE_MS, until_ms - steady_ms())
        ):
            yield from frames.read(part)
            if frames.is_over:
                return
    except (ConnectionLost, ServerUnreachable, BadReply, ValueError):
        return


def follow(transport: Transport, cursor: EventCursor, *, for_ms: int | None = None) -> Iterator[Document | Reply]:
    """Events and gaps as they happen, each once and in order, for ever or for `for_ms`. Each reply is yielded as well:
    it may be a failure. Whoever goes on after it comes back to the same position, at whichever server answers."""
    until_ms = steady_ms() + (AWAIT_MS * 3650 if for_ms is None else for_ms)
    while True:
        yield from iter(cursor.pop, None)
        if cursor.is_current:
            left_ms = until_ms - steady_ms()
            if left_ms <= 0:
                return
            if cursor.is_refused:  # a server that begins no stream is asked for pages instead
                _pause(until_ms)
            for streamed in transport.await_events(cursor.stream(), min(left_ms, AWAIT_MS)):
                cursor.take_streamed(streamed)
                yield from iter(cursor.pop, None)
            cursor.end_stream()
            continue
        reply = transport.ask(cursor.question())
        yield reply
        if reply.status == 200:
            cursor.take_page(reply.body or {})
        elif steady_ms() >= until_ms:
            return
        else:
            _pause(until_ms)


def _pause(until_ms: int) -> None:
    sleep(max(0, min(limits.STREAM_RETRY_MS, until_ms - steady_ms())) / 1000)
