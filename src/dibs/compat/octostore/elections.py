"""Elections over HTTP, in OctoStore's form: documents and routes. An election is a job: its owner leads, its fencing
token is the term, its lease id is what the leader token proves. The rules are those of claims; nothing here decides.

With a token an election is in the token's namespace; without one, where that is allowed, in a namespace of its own
(`PublicRooms`). Every server has these routes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from dibs.base.clock import steady_ms
from dibs.base.errors import AuthenticationRequired, InvalidInput, InvalidTtl
from dibs.base.ids import dashed, new_room_id
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.core import events as kinds
from dibs.core import lease_outcomes, limits, outcomes
from dibs.core.caller_rights import AGENT, Caller, Limits
from dibs.core.commands import Command, Inspect
from dibs.core.events import Event
from dibs.core.names import ELECTION_PREFIX, check_name, election_job
from dibs.core.outcomes import Outcome
from dibs.core.records import Holder
from dibs.engine.auth import RateLimited
from dibs.engine.event_log import EventFilter
from dibs.server.event_stream import EventStream
from dibs.server.handlers import Api
from dibs.server.http.admission import ClientWindows
from dibs.server.http.parse import add_key, decode_name, parse_query
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import HttpError, answer_document, answer_for
from dibs.server.plugins import FixedRoutes
from dibs.server.routes.operations import routed
from dibs.server.routes.table import Handler
from dibs.server.settings import PublicElections
from dibs.wire.documents import expected
from dibs.wire.lease_documents import frame
from dibs.wire.operations import KEY, NAMESPACE, STREAM_TYPE, Operation, by_id, in_path
from dibs.wire.parts import timestamp
from dibs.wire.request_fields import NAME_FORMAT
from dibs.wire.requests import command_for, shape

CAMPAIGN, RENEW, RESIGN = "campaign", "election-renew", "resign"
LEADER, FOLLOWER, VACANT = "leader", "follower", "vacant"
SCHEMA_VERSION = 1
_ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ROOM = _ALPHANUMERIC | frozenset("-_")
_CANDIDATE = _ALPHANUMERIC | frozenset("-_.:@")


def job_of(room: str, *, public: bool) -> str:
    """The job of an election. The id of a public one must be long enough not to be met by chance."""
    if public and not (limits.ROOM_CHARS_MIN <= len(room) <= limits.ROOM_CHARS_MAX and _ROOM.issuperset(room)):
        raise InvalidInput(
            f"The id of a public election has {limits.ROOM_CHARS_MIN} to {limits.ROOM_CHARS_MAX} characters: letters, "
            "digits, - or _."
        )
    return election_job(room)


def election_command(verb: str, ns: str, room: str, document: Document, caller: Caller, *, public: bool) -> Command:
    """The request of a candidate or a leader, as a command about the job of its election."""
    job = job_of(room, public=public)
    if verb == CAMPAIGN:
        candidate, most = document["candidate_id"], limits.CANDIDATE_CHARS_MAX
        if not 1 <= len(candidate) <= most or not _CANDIDATE.issuperset(candidate):
            raise InvalidInput(f"candidate_id is 1 to {most} letters, digits or - _ . : @ characters.")
        asked: Document = {"owner": candidate, "ttl_seconds": _ttl_seconds(document, public)}
        asked |= {field: document[field] for field in ("metadata", "request_key") if field in document}
        return command_for("acquire", ns, job, asked, caller)
    asked = {"lease_id": lease_of(room, document["leader_token"])}
    if verb == RESIGN:
        return command_for("release", ns, job, asked, caller)
    if public or "ttl_seconds" in document:
        asked["ttl_seconds"] = _ttl_seconds(document, public)
    # It is an event, because those who watch want to know until when the term lasts.
    return command_for("renew", ns, job, asked, caller).replace(audited=True)


def _ttl_seconds(document: Document, public: bool) -> int:
    seconds: int = document.get("ttl_seconds", limits.ELECTION_TTL_MS_DEFAULT // 1000)
    if public and not limits.PUBLIC_TTL_MS_MIN <= seconds * 1000 <= limits.PUBLIC_TTL_MS_MAX:
        raise InvalidTtl(
            f"In a public election ttl_seconds is from {limits.PUBLIC_TTL_MS_MIN // 1000} to "
            f"{limits.PUBLIC_TTL_MS_MAX // 1000}; {seconds} was asked for."
        )
    return seconds


def token_of(room: str, lease_id: str) -> str:
    """Return what a leader proves its term with: the election, hashed, and the lease id, as 43 characters."""
    return base64.urlsafe_b64encode(_mark(room) + bytes.fromhex(lease_id.replace("-", ""))).decode().rstrip("=")


def lease_of(room: str, token: str) -> str:
    """The lease id in a leader token. That of another election gives an id that no lease has."""
    try:
        raw = base64.b64decode(token + "=", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != 32 or base64.urlsafe_b64encode(raw).decode().rstrip("=") != token:
        raise InvalidInput("Invalid leader token")
    return dashed(raw[16:].hex() if raw[:16] == _mark(room) else "0" * 32)


def _mark(room: str) -> bytes:
    return hashlib.sha256(room.encode()).digest()[:16]


def room_document(room: str) -> Document:
    """A new election. Nothing is on record before the first campaign."""
    path = f"/elections/{room}"
    return {
        "election_id": room,
        "campaign_path": f"{path}/campaign",
        "status_path": path,
        "watch_path": f"{path}/watch",
    }


def election_document(room: str, outcome: Outcome) -> Document | None:
    """The answer to a campaign, a renewal, a resignation or a look; None if the outcome is a refusal like any other."""
    if isinstance(outcome, outcomes.Granted | lease_outcomes.Renewed):
        return {
            "status": LEADER,
            "election_id": room,
            "leader": leader_document(outcome.lease),
            "leader_token": token_of(room, outcome.lease.lease_id),
            "renew_after_ms": (outcome.lease.expires_ms - outcome.now_ms) // 2,
        }
    if isinstance(outcome, outcomes.Held):
        holder = outcome.blockers[0].holder if outcome.blockers else None
        until_ms = holder.expires_ms if holder else outcome.first.expires_ms if outcome.first else 0
        return _follower(room, holder, until_ms - outcome.now_ms)
    if isinstance(outcome, outcomes.Delayed):
        return _follower(room, None, outcome.until_ms - outcome.now_ms)
    if isinstance(outcome, outcomes.Closed):
        return _follower(room, None, outcome.closure.until_ms - outcome.now_ms)
    if isinstance(outcome, lease_outcomes.Released):
        return {"election_id": room, "status": VACANT, "previous_term": outcome.ending.token}
    if isinstance(outcome, outcomes.Status):
        return state_document(room, outcome)
    return None


def _follower(room: str, holder: Holder | None, remaining_ms: int) -> Document:
    return {
        "status": FOLLOWER,
        "election_id": room,
        "leader": None if holder is None else leader_document(holder),
        "retry_after_ms": max(0, remaining_ms),
    }


def leader_document(holder: Holder) -> Document:
    return _leader(holder.owner, holder.metadata, holder.token, holder.expires_ms)


def _leader(candidate: str, metadata: str | None, term: int, expires_ms: int | None) -> Document:
    document: Document = {"candidate_id": candidate}
    if metadata is not None:
        document["metadata"] = metadata
    document["term"] = term
    document["expires_at"] = None if expires_ms is None else timestamp(expires_ms)
    return document


def state_document(room: str, state: outcomes.Status) -> Document:
    """Return who leads. There is no `leader` when nobody does."""
    holders = state.lock.holders
    if not holders:
        return {"election_id": room, "status": VACANT, "retry_after_ms": 0}
    return {
        "election_id": room,
        "status": LEADER,
        "leader": leader_document(holders[0]),
        "retry_after_ms": max(0, holders[0].expires_ms - state.now_ms),
    }


class WatchedElection:
    """Turns events of an election's job into states. Remembers the leader, whose metadata a renewal does not repeat.
    The end of a term is as the event knew it: heartbeats of a session, which move it, are no events."""

    def __init__(self, room: str, state: outcomes.Status) -> None:
        self._room = room
        document = state_document(room, state)
        self._leader: Document | None = document.get("leader")
        self.first = self._state(document["retry_after_ms"], state.now_ms)

    def change(self, event: Event) -> Document | None:
        """The state after an event; None if it changes nothing that is shown."""
        ends_ms = event.hold_ends_ms()
        known = self._leader
        if event.kind == kinds.ACQUIRED:
            self._leader = _leader(event.owner, event.metadata, event.token, ends_ms)
        elif event.kind == kinds.RENEWED and known is not None:
            self._leader = _leader(known["candidate_id"], known.get("metadata"), known["term"], ends_ms)
        elif event.kind == kinds.PROGRESS and known is not None:
            self._leader = _leader(known["candidate_id"], event.metadata, known["term"], ends_ms)
        elif event.kind in kinds.OWNERSHIP_ENDS:
            self._leader = ends_ms = None
        else:
            return None
        return self._state(0 if ends_ms is None else max(0, ends_ms - event.at_ms), event.at_ms)

    def framed(self, event: Event) -> bytes | None:
        state = self.change(event)
        return None if state is None else frame(state, event.seq, "state")

    def _state(self, remaining_ms: int, at_ms: int) -> Document:
        return {
            "schema_version": SCHEMA_VERSION,
            "election_id": self._room,
            "status": VACANT if self._leader is None else LEADER,
            "leader": self._leader,
            "retry_after_ms": remaining_ms,
            "observed_at": timestamp(at_ms),
        }


# The routes.


_ROOM_ID = in_path(
    "id",
    "The election",
    "room-1",
    format=NAME_FORMAT,
    minLength=1,
    maxLength=limits.NAME_BYTES_MAX - len(ELECTION_PREFIX),
)
_WHO = "[anybody](#elections), if so set"
OPERATIONS = by_id(
    Operation(
        "POST",
        "/elections",
        "election-open",
        "a fresh id for an election",
        "Elections",
        {201: "election-room"},
        who=_WHO,
    ),
    Operation(
        "POST",
        "/elections/{id}/campaign",
        "campaign",
        "lead, if nobody does",
        "Elections",
        {200: ("election-leader", "election-follower")},
        who=_WHO,
        codes=("invalid_lock_name", "invalid_ttl", "conflict", "lock_limit_exceeded", "capacity_exceeded", "draining"),
        parameters=(_ROOM_ID, *NAMESPACE, KEY),
        example={"candidate_id": "worker-1", "ttl_seconds": 60},
    ),
    Operation(
        "POST",
        "/elections/{id}/renew",
        "election-renew",
        "heartbeat of the leader",
        "Elections",
        {200: "election-leader"},
        who=_WHO,
        codes=("invalid_lock_name", "invalid_ttl", "lease_not_current"),
        parameters=(_ROOM_ID, *NAMESPACE),
        example={"leader_token": "the one of the campaign"},
    ),
    Operation(
        "POST",
        "/elections/{id}/resign",
        "resign",
        "lead no more",
        "Elections",
        {200: "election-resigned"},
        who=_WHO,
        codes=("invalid_lock_name", "lease_not_current"),
        parameters=(_ROOM_ID, *NAMESPACE),
        example={"leader_token": "the one of the campaign"},
    ),
    Operation(
        "GET",
        "/elections/{id}",
        "election-show",
        "who leads",
        "Elections",
        {200: "election"},
        who=_WHO,
        codes=("invalid_lock_name",),
        parameters=(_ROOM_ID, *NAMESPACE),
    ),
    Operation(
        "GET",
        "/elections/{id}/watch",
        "election-watch",
        "who leads, and each change, as a stream",
        "Elections",
        {200: {"type": "string"}},
        who=_WHO,
        codes=("invalid_lock_name", "draining"),
        parameters=(_ROOM_ID, *NAMESPACE),
        media=(STREAM_TYPE,),
    ),
)


# Elections for callers without a token: who such a caller is, and the bounds on what all of them may do.

# Public elections have a namespace of their own, so nothing in them can be in the way of a job.
PUBLIC_NAMESPACE = "public-elections"
PUBLIC_PRINCIPAL = "public"


class PublicRooms:
    """For one event loop. `settings` None: there are no public elections. Clients are counted as for connections."""

    def __init__(self, settings: PublicElections | None, steady: Callable[[], int] = steady_ms) -> None:
        self.settings = settings
        most = 0 if settings is None else settings.requests
        self.requests = ClientWindows(most, "ids and campaigns", steady)
        self._streams: Counter[str] = Counter()

    def caller(self) -> Caller:
        """Anybody. The number of rooms is counted in the store, for all servers together."""
        if self.settings is None:
            raise AuthenticationRequired(
                "Bearer token required: only a server with --public-elections lets anybody take part in elections."
            )
        most = Limits(held=self.settings.rooms)
        return Caller(principal=PUBLIC_PRINCIPAL, role=AGENT, namespace=PUBLIC_NAMESPACE, limits=most)

    def enter_stream(self, client: str) -> Callable[[], None]:
        """Count one more stream; raises if it is one too many. Call what it returns at the end of the stream."""
        assert self.settings is not None  # else nobody is let in without a token
        if self._streams[client] >= self.settings.streams_per_client:
            raise RateLimited(
                f"One client may watch {self.settings.streams_per_client} public elections at a time.",
                limits.PUBLIC_FULL_RETRY_MS,
            )
        if self._streams.total() >= self.settings.streams:
            raise RateLimited(
                f"This server has {self.settings.streams} streams of public elections, which is its limit.",
                limits.OVERLOAD_RETRY_MS,
            )
        self._streams[client] += 1

        def leave() -> None:
            self._streams[client] -= 1
            if not self._streams[client]:
                del self._streams[client]

        return leave


def open_elections(api: Api) -> FixedRoutes:
    return FixedRoutes(routed(ElectionRoutes(api).handlers(), OPERATIONS))


class ElectionRoutes:
    stream_class = EventStream

    def __init__(self, api: Api) -> None:
        self._api = api
        self._rooms = PublicRooms(api.settings.public_elections)

    def handlers(self) -> dict[str, Handler]:
        return {
            "election-open": self.open,
            **{verb: partial(self._change, verb) for verb in (CAMPAIGN, RENEW, RESIGN)},
            "election-show": self.show,
            "election-watch": self.watch,
        }

    async def open(self, call: HttpRequest) -> Reply:
        """A fresh id. It is not on record before the first campaign."""
        _, public = self._caller("election-open", call)
        if public:
            self._rooms.requests.count(call.client)
        return answer_document(room_document(new_room_id()), 201)

    async def _change(self, verb: str, call: HttpRequest) -> Reply:
        document = await self._read(verb, call)
        caller, public = self._caller(verb, call)
        if verb == CAMPAIGN:
            if public:
                self._rooms.requests.count(call.client)
            self._api.check_open()
            caller = self._api.counted(caller)
        room, ns = self._room(call), self._namespace(caller, call)
        return await self._answer(room, self._command(verb, ns, room, document, caller, public=public), call, public)

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
        return election_command(verb, ns, room, document, caller, public=public)

    async def show(self, call: HttpRequest) -> Reply:
        room, command, public = self._look("election-show", call)
        return await self._answer(room, command, call, public)

    async def watch(self, call: HttpRequest) -> Reply | EventStream:
        room, command, public = self._look("election-watch", call)
        client = call.client
        self._api.check_open()
        self._api.streams.check_room(client)
        feed = self._api.engine.feed
        leave = self._rooms.enter_stream(client) if public else lambda: None
        try:
            at = await feed.position_now()
            state = expected(await self._api.engine.batcher.submit(command), outcomes.Status)
            watched = WatchedElection(room, state)
            wanted = EventFilter(ns=command.ns, name=command.name)
            stream = self.stream_class(feed, wanted, at, watched.framed, first=frame(watched.first, at, "state"))
            self._api.streams.add(stream, client)
        except BaseException:
            leave()
            raise
        self._bound(stream, leave, call, public)
        return stream

    def _bound(self, stream: EventStream, leave: Callable[[], None], call: HttpRequest, public: bool) -> None:
        """The time at which a stream ends: a public one after its time, another one with its token."""
        leave_registry = stream.on_end
        timer: asyncio.TimerHandle | None = None
        if public and self._rooms.settings is not None:
            timer = asyncio.get_running_loop().call_later(self._rooms.settings.stream_ms / 1000, stream.hurry)
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
        if public and isinstance(outcome, outcomes.QuotaExceeded):
            says = f"{outcome.most} public elections have a leader, which is the limit of this server."
            # OctoStore's status. The server is not overloaded: it has as many as it may.
            raise HttpError(says, 409, code="capacity_exceeded", retry_after_ms=limits.PUBLIC_FULL_RETRY_MS)
        document = election_document(room, outcome)
        return answer_for(outcome) if document is None else answer_document(document)

    def _caller(self, verb: str, call: HttpRequest) -> tuple[Caller, bool]:
        """The caller, and whether it is anybody."""
        try:
            return self._api.caller_for(verb, call.headers), False
        except AuthenticationRequired:
            return self._rooms.caller(), True
