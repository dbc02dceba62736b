"""GET /events and GET /locks/{name}/watch: what happens, as a page or as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.errors import InvalidInput
from dibs.core.commands import Inspect
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.core.names import check_name
from dibs.engine.event_log import EventFilter, collect
from dibs.server.event_stream import EventStream
from dibs.server.http.parse import (
    SEQ_MAX,
    decode_name,
    header_text,
    name_part,
    one_name,
    truth,
    wants_one_name,
    whole_number,
)
from dibs.server.http.response import answer_document
from dibs.server.routes.operations import SINCE_S_MAX, routed
from dibs.wire.documents import reply_to
from dibs.wire.lease_documents import events_document, frame, lock_change, lock_snapshot, named_event
from dibs.wire.operations import STREAM_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.base.reply import Reply
    from dibs.core.events import Event
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Table


def event_routes(api: Api) -> Table:
    routes = EventRoutes(api)
    return routed({"events": routes.events, "watch": routes.watch})


class EventRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._framed: tuple[Event | None, bytes] = (None, b"")

    async def events(self, call: HttpRequest) -> Reply | EventStream:
        """A page of events, or a stream of them."""
        ns, asked = self._api.reader("events", call.query, call.headers)
        wanted = _wanted(ns, asked, call.headers)
        after = _position(asked, call.headers)
        since_s = whole_number(asked, "since_seconds", 0, 0, SINCE_S_MAX)
        limit = whole_number(asked, "limit", HISTORY_PAGE_DEFAULT, 1, HISTORY_PAGE_MAX)
        is_stream = _is_stream(asked, call.headers)
        if is_stream:
            self._check_room(call)
        feed = self._api.engine.feed
        if after is None and since_s:
            after = await feed.position_ago(since_s * 1000)
        if not is_stream:
            store = self._api.engine.store
            page = await self._api.in_reader(lambda: collect(store, wanted, after, limit))
            return answer_document(events_document(after, page.events, page.upto, page.oldest))
        at = await feed.position_now() if after is None else after
        return self._opened(call, EventStream(feed, wanted, at, self._frame))

    async def watch(self, call: HttpRequest) -> Reply | EventStream:
        """The state of one job and its changes, as OctoStore tells them."""
        ns, _ = self._api.reader("watch", call.query, call.headers)
        name = check_name(one_name(decode_name(call.raw_name), call.headers))
        self._check_room(call)
        feed = self._api.engine.feed
        at = await feed.position_now()
        state = await self._api.engine.batcher.submit(Inspect(ns=ns, name=name))
        state_document = reply_to("inspect", state).body or {}
        first = frame(lock_snapshot(name, state_document, state.now_ms), at)
        stream = EventStream(feed, EventFilter(ns=ns, name=name), at, change_frame, first=first)
        return self._opened(call, stream)

    def _frame(self, event: Event) -> bytes:
        """The feed hands an event to all streams in turn. They share its bytes."""
        if self._framed[0] is not event:
            self._framed = event, frame(named_event(event), event.seq)
        return self._framed[1]

    def _check_room(self, call: HttpRequest) -> None:
        self._api.check_open()
        self._api.streams.check_room(call.client)

    def _opened(self, call: HttpRequest, stream: EventStream) -> EventStream:
        stream.is_allowed = self._api.still_allows(call.headers)
        self._api.streams.add(stream, call.client)
        return stream


def _wanted(ns: str, asked: Mapping[str, str], headers: Mapping[bytes, bytes]) -> EventFilter:
    prefix = name_part(asked, "prefix")
    wants_one_name(headers)
    if "name" not in asked:
        return EventFilter(ns=ns, prefix=prefix)
    if prefix:
        raise InvalidInput("Give name or prefix, not both.")
    return EventFilter(ns=ns, name=check_name(one_name(asked["name"], headers)))


def _is_stream(asked: Mapping[str, str], headers: Mapping[bytes, bytes]) -> bool:
    """`follow` decides; without it, what the client accepts."""
    follow = truth(asked, "follow")
    return STREAM_TYPE.encode() in headers.get(b"accept", b"").lower() if follow is None else follow


def _position(asked: Mapping[str, str], headers: Mapping[bytes, bytes]) -> int | None:
    """Return where to begin. A browser that comes back repeats its first address, so its header is the newer word."""
    after = whole_number(asked, "after", 0, 0, SEQ_MAX) if "after" in asked else None
    last = headers.get(b"last-event-id")
    if last:
        told = {"Last-Event-ID": header_text(last, "Last-Event-ID")}
        return whole_number(told, "Last-Event-ID", 0, 0, SEQ_MAX)
    return after


def change_frame(event: Event) -> bytes | None:
    change = lock_change(event)
    return None if change is None else frame(change, event.seq)
