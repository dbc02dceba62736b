"""Elections: OctoStore's routes, on the rules of claims. With a token an election is in the token's namespace; without
one, where that is allowed, in a namespace of its own (`admission.PublicRooms`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from dibs.base.errors import AuthenticationRequired, DibsError
from dibs.base.ids import new_room_id
from dibs.core.commands import Inspect
from dibs.core.identity import Caller
from dibs.core.limits import PUBLIC_FULL_RETRY_MS
from dibs.core.names import check_name
from dibs.core.outcomes import QuotaExceeded, Status
from dibs.engine.event_log import EventFilter
from dibs.server.event_stream import EventStream
from dibs.server.http.parse import add_key, decode_name, parse_query
from dibs.server.http.response import answer_document, answer_for
from dibs.server.routes.operations import routed
from dibs.wire.elections import (
    WatchedElection,
    campaign_command,
    election_document,
    job_of,
    renew_command,
    resign_command,
    room_document,
)
from dibs.wire.lease_documents import frame
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.base.reply import Reply
    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.identity import Caller
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table


class RoomsFull(DibsError):
    """As many public elections have a leader as may."""

    code = "capacity_exceeded"
    retry_after_ms = PUBLIC_FULL_RETRY_MS


CAMPAIGN = "campaign"
_COMMANDS = {CAMPAIGN: campaign_command, "election-renew": renew_command, "resign": resign_command}


def election_routes(api: Api) -> Table:
    routes = ElectionRoutes(api)
    return routed(routes.handlers())


class ElectionRoutes:
    stream_class = EventStream

    def __init__(self, api: Api) -> None:
        self._api = api

    def handlers(self) -> dict[str, Handler]:
        return {
            "election-open": self.open,
            **{verb: partial(self._change, verb) for verb in _COMMANDS},
            "election-show": self.show,
            "election-watch": self.watch,
        }

    async def open(self, call: HttpRequest) -> Reply:
        """A fresh id. It is not on record before the first campaign."""
        _, public = self._caller("election-open", call)
        self._charge(call, public)
        return answer_document(room_document(new_room_id()), 201)

    async def _change(self, verb: str, call: HttpRequest) -> Reply:
        document = await self._read(verb, call)
        caller, public = self._caller(verb, call)
        if verb == CAMPAIGN:
            self._charge(call, public)
            self._api.check_open()
            caller = self._api.counted(caller)
        room, ns = self._room(call), self._namespace(caller, call)
        command = self._command(verb, ns, room, document, caller, public=public)
        return await self._answer(room, command, call, public)

    async def _read(self, verb: str, call: HttpRequest) -> dict[str, Any]:
        document = shape(verb, await call.json())
        if verb == CAMPAIGN and b"idempotency-key" in call.headers:
            add_key(document, call.headers[b"idempotency-key"])
        return document

    def _room(self, call: HttpRequest) -> str:
        return decode_name(call.raw_name)

    def _namespace(self, caller: Caller, call: HttpRequest) -> str:
        return self._api.namespace_of(caller, parse_query(call.query), call.headers)

    def _command(
        self, verb: str, ns: str, room: str, document: dict[str, Any], caller: Caller, *, public: bool
    ) -> Command:
        return _COMMANDS[verb](ns, room, document, caller, public=public)

    async def show(self, call: HttpRequest) -> Reply:
        room, command, public = self._look("election-show", call)
        return await self._answer(room, command, call, public)

    async def watch(self, call: HttpRequest) -> Reply | EventStream:
        """The state now, and after each change."""
        room, command, public = self._look("election-watch", call)
        client = call.client
        self._api.check_open()
        self._api.streams.check_room(client)
        feed = self._api.engine.feed
        leave = self._api.rooms.enter_stream(client) if public else lambda: None
        try:
            at = await feed.position_now()
            state = await self._api.engine.batcher.submit(command)
            if not isinstance(state, Status):
                raise TypeError(type(state).__name__)
            watched = WatchedElection(room, state)
            wanted = EventFilter(ns=command.ns, name=command.name)
            first = frame(watched.first, at, "state")
            stream = self.stream_class(feed, wanted, at, _framed(watched), first=first)
            self._api.streams.add(stream, client)
        except BaseException:
            leave()
            raise
        self._bound(stream, leave, call, public)
        return stream

    def _bound(self, stream: EventStream, leave: Callable[[], None], call: HttpRequest, public: bool) -> None:
        """When a stream ends: a public one after its time, another one with its token."""
        leave_registry = stream.on_end
        timer: asyncio.TimerHandle | None = None
        if public and self._api.rooms.settings is not None:
            lasts_s = self._api.rooms.settings.stream_ms / 1000
            timer = asyncio.get_running_loop().call_later(lasts_s, stream.hurry)
        else:
            stream.is_allowed = self._api.still_allows(call.headers)

        def end() -> None:
            leave_registry()
            leave()
            if timer is not None:
                timer.cancel()

        stream.on_end = end

    def _look(self, verb: str, call: HttpRequest) -> tuple[str, Inspect, bool]:
        caller, public = self._caller(verb, call)
        room, ns = self._room(call), self._namespace(caller, call)
        return room, Inspect(ns=ns, name=check_name(job_of(room, public=public))), public

    async def _answer(self, room: str, command: Command, call: HttpRequest, public: bool) -> Reply:
        outcome = await self._api.engine.batcher.submit(command)
        if call.connection.is_gone:
            self._api.undelivered(command, outcome)
        if public and isinstance(outcome, QuotaExceeded):
            raise RoomsFull(f"{outcome.most} public elections have a leader, which is the limit of this server.")
        document = election_document(room, outcome)
        return answer_for(outcome) if document is None else answer_document(document)

    def _caller(self, verb: str, call: HttpRequest) -> tuple[Caller, bool]:
        """The caller, and whether it is anybody."""
        try:
            return self._api.caller_for(verb, call.headers), False
        except AuthenticationRequired:
            return self._api.rooms.caller(), True

    def _charge(self, call: HttpRequest, public: bool) -> None:
        if public:
            self._api.rooms.charge(call.client)


def _framed(watched: WatchedElection) -> Callable[[Event], bytes | None]:
    def framed(event: Event) -> bytes | None:
        state: dict[str, Any] | None = watched.change(event)
        return None if state is None else frame(state, event.seq, "state")

    return framed
