"""Events of jobs as they happen: an iterator for threads. `async_events.py` has the one for event loops."""

from __future__ import annotations

import os

from dibs.base.cheap import Any, Callable, Iterator
from dibs.base.clock import steady_ms
from dibs.base.errors import EventsGone, InvalidInput
from dibs.base.jsontext import Document
from dibs.client.event_reader import EventCursor, follow
from dibs.client.transport import Transport
from dibs.core.durations import Duration, duration_ms
from dibs.sdk.answers import JobEvent, event_from, refusal_of
from dibs.sdk.methods import Handle, prefix_given
from dibs.wire.codes import NOT_NOW, kind_of
from dibs.wire.documents import Reply
from dibs.wire.parts import GAP


class EventReading(Handle):
    """The common part of both iterators: their position, and which answers end them."""

    def __init__(
        self, prefix: str, name: str | None, after: int | None, since: Duration | None, patience: Duration | None
    ) -> None:
        begins = prefix_given(prefix)
        if name is not None and begins:
            raise InvalidInput("Give name or prefix, not both.")
        if after is not None and since is not None:
            raise InvalidInput("Give after or since, not both.")
        if after is not None and (type(after) is not int or after < 0):
            raise InvalidInput("after is the seq of an event: a whole number, 0 or more.")
        self._cursor = EventCursor(begins, name, after, 0 if since is None else duration_ms(since, "since"))
        self._patience_ms = None if patience is None else duration_ms(patience, "patience")
        self._is_begun = False
        self._away_ms: int | None = None
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def position(self) -> int | None:
        """Everything up to this `seq` was handed out: the `after` of a reader that continues here. None before the
        first answer."""
        return self._cursor.position

    def _event(self, document: Document) -> JobEvent:
        if document["event"] == GAP:
            raise EventsGone(int(document["after"]), int(document["oldest"]))
        return event_from(document)

    def _heed(self, reply: Reply) -> None:
        """Raise what a reply says. A server that cannot answer now is waited for, as long as the caller wants."""
        if reply.status == 200:
            self._is_begun, self._away_ms = True, None
            return
        if not self._is_begun or kind_of(reply) != NOT_NOW:
            raise refusal_of(reply)
        self._away_ms = steady_ms() if self._away_ms is None else self._away_ms
        if self._patience_ms is not None and steady_ms() - self._away_ms >= self._patience_ms:
            self._away_ms = None
            raise refusal_of(reply)

    def _is_forked(self) -> bool:
        """Tell whether this is a child of the process that read so far. Its connections are the parent's."""
        is_so = os.getpid() != self._pid
        self._pid = os.getpid()
        return is_so


class Events(EventReading):
    """An iterator of events, for one thread at a time. It never ends by itself. An error does not end it, either: the
    next call continues after the last event that was handed out."""

    def __init__(self, open_transport: Callable[[], Transport], *wanted: Any) -> None:
        super().__init__(*wanted)
        self._open_transport = open_transport
        self._transport: Transport | None = None
        self._found: Iterator[Document | Reply] | None = None
        self._parents: list[object] = []  # dropping them would end the parent's reading

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> JobEvent:
        if self._is_forked():
            self._parents += [self._found, self._transport]
            self._found = self._transport = None
        if self._is_closed:
            raise StopIteration
        if self._found is None:
            self._transport = self._open_transport()
            self._found = follow(self._transport, self._cursor)
        try:
            item = next(self._found)
            while not isinstance(item, dict):
                self._heed(item)
                item = next(self._found)
        except BaseException:
            self._drop()
            raise
        return self._event(item)

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        self._is_closed = True
        if not self._is_forked():
            self._drop()

    def _drop(self) -> None:
        found, self._found = self._found, None
        if found is not None:
            found.close()  # type: ignore[attr-defined]  # a generator's
        self._transport = None

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
