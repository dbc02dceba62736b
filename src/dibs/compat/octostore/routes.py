"""Sessions, elections and webhooks as OctoStore answers them.

Sessions are dibs' own. Elections are always public, with nothing that dibs adds. A user has its own webhooks, which get
the events of its own locks alone; deliveries are dibs'.
"""

from __future__ import annotations

import uuid
from typing import Any

from dibs.base.errors import AuthenticationRequired, InvalidInput, InvalidName, InvalidTtl, NotOnRecord
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.compat.octostore import bodies
from dibs.compat.octostore.callers import Handlers, User, id_of
from dibs.compat.octostore.elections import (
    CAMPAIGN,
    PUBLIC_NAMESPACE,
    RENEW,
    RESIGN,
    ElectionRoutes,
    election_document,
)
from dibs.core import limits
from dibs.core.caller_rights import AGENT, Caller
from dibs.core.commands import Acquire, Command, EndSession, Inspect, InspectSession, KeepSession, OpenSession
from dibs.core.lease_outcomes import Released
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.core.outcomes import NotCurrent, Outcome, QuotaExceeded, SessionOver, SessionUnknown, Status
from dibs.core.records import RELEASED
from dibs.core.service.webhooks import EVERY, Webhook
from dibs.core.session_outcomes import SessionState
from dibs.engine.webhooks import TargetPolicy, TargetRefused, WebhookAdmin, check_addresses, parse_target
from dibs.server.http.parse import decode_name
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import NO_CONTENT, answer_document, answer_for
from dibs.server.routes.jobs import CREATE, REMOVE
from dibs.wire.documents import expected
from dibs.wire.parts import timestamp
from dibs.wire.webhooks import webhook_document

FULL_RETRY_S = 30
EVENTS = ("acquired", "released", "renewed", "expired", EVERY)
# What the body of a request may have, by verb.
FIELDS = {
    "session-open": {"ttl_seconds": "number"},
    CAMPAIGN: {"candidate_id": "text!", "ttl_seconds": "number", "metadata": "text"},
    RENEW: {"leader_token": "text!", "ttl_seconds": "number"},
    RESIGN: {"leader_token": "text!", "ttl_seconds": "number"},
    CREATE: {"url": "text!", "secret": "text", "events": "texts", "lock_pattern": "text"},
}


class Sessions(Handlers):
    async def open(self, call: HttpRequest) -> Reply:
        document = await bodies.read_body(call, self._api.caller_of, FIELDS["session-open"])
        user = self._callers.user("session-open", call)
        self._api.check_open()
        asked_ms = document.get("ttl_seconds", limits.SESSION_TTL_MS_DEFAULT // 1000) * 1000
        command = OpenSession(
            fresh_id=new_id(),
            principal=user.principal,
            owner=user.principal,
            ttl_ms=min(max(asked_ms, limits.SESSION_TTL_MS_MIN), limits.SESSION_TTL_MS_MAX),
            ns=user.scope or DEFAULT_NAMESPACE,
        )
        state = _opened(await self._submit(command))
        return answer_document(
            {
                "session_id": state.session.id,
                "expires_at": timestamp(state.session.expires_ms),
                "keepalive_interval_secs": state.session.ttl_ms // 2000,
            },
            201,
        )

    async def keep(self, call: HttpRequest) -> Reply:
        session_id, user = _id_in(call), self._callers.user("session-keep", call)
        state = _opened(await self._submit(KeepSession(session=session_id, principal=user.principal, bound=user.scope)))
        return answer_document({"session_id": session_id, "expires_at": timestamp(state.session.expires_ms)})

    async def show(self, call: HttpRequest) -> Reply:
        session_id, user = _id_in(call), self._callers.user("session-show", call)
        state = await self._look(session_id, user)
        return answer_document(
            {
                "session_id": session_id,
                "user_id": user.id,
                "expires_at": timestamp(state.session.expires_ms),
                "lock_count": len(state.holds),
                "active": state.live,
            }
        )

    async def end(self, call: HttpRequest) -> Reply:
        session_id, user = _id_in(call), self._callers.user("session-end", call)
        await self._look(session_id, user)
        ended = await self._submit(EndSession(session=session_id, principal=user.principal, bound=user.scope))
        if isinstance(expected(ended, SessionState, SessionOver, SessionUnknown), SessionUnknown):
            raise bodies.no_session()
        return Reply(NO_CONTENT)

    async def _look(self, session_id: str, user: User) -> SessionState:
        """The session, if it has not ended: one that has is unknown."""
        looked = await self._submit(InspectSession(session=session_id, principal=user.principal))
        found = expected(looked, SessionState, SessionUnknown)
        if not isinstance(found, SessionState) or not user.has(found.session) or found.session.ended_ms:
            raise bodies.no_session()
        return found


def _opened(outcome: Outcome) -> SessionState:
    if isinstance(outcome, SessionOver) and outcome.session.how != RELEASED:
        raise bodies.session_over()
    if isinstance(outcome, SessionOver | SessionUnknown):
        raise bodies.no_session()
    return expected(outcome, SessionState)


def _id_in(call: HttpRequest) -> str:
    try:
        return str(uuid.UUID(decode_name(call.raw_name)))
    except (ValueError, InvalidName):
        raise bodies.unsupported(400) from None


class Elections(ElectionRoutes):
    """dibs' election routes, with other words around the same commands."""

    stream_class = bodies.PlainStream

    async def _read(self, verb: str, call: HttpRequest) -> dict[str, Any]:
        return await bodies.read_body(call, self._no_stranger, FIELDS[verb])

    @staticmethod
    def _no_stranger(headers: object) -> None:
        """Nobody is known here, so nobody may send more than a stranger."""
        raise AuthenticationRequired("Bearer token required")

    def _caller(self, verb: str, call: HttpRequest) -> tuple[Caller, bool]:
        if self._rooms.settings is None:
            raise bodies.refused("forbidden", "Public elections are disabled on this server")
        return self._rooms.caller(), True

    def _namespace(self, caller: Caller, call: HttpRequest) -> str:
        return PUBLIC_NAMESPACE

    def _room(self, call: HttpRequest) -> str:
        room = decode_name(call.raw_name)
        if not limits.ROOM_CHARS_MIN <= len(room.encode()) <= limits.ROOM_CHARS_MAX:
            bounds = f"{limits.ROOM_CHARS_MIN} and {limits.ROOM_CHARS_MAX}"
            raise bodies.refused("invalid_input", f"Election ID must be between {bounds} characters")
        if not (room.isascii() and room.replace("-", "a").replace("_", "a").isalnum()):
            raise bodies.refused("invalid_input", "Election ID may only contain letters, numbers, '-' and '_'")
        return room

    def _command(
        self, verb: str, ns: str, room: str, document: dict[str, Any], caller: Caller, *, public: bool
    ) -> Command:
        if verb == CAMPAIGN:
            candidate, most = document["candidate_id"], limits.CANDIDATE_CHARS_MAX
            if not 1 <= len(candidate.encode()) <= most:
                raise bodies.refused("invalid_input", f"Candidate ID must be between 1 and {most} characters")
            plain = candidate.translate(dict.fromkeys(map(ord, "-_.:@"), "a"))
            if not (plain.isascii() and plain.isalnum()):
                raise bodies.refused("invalid_input", "Candidate ID contains unsupported characters")
            bodies.metadata_of(document)
        if verb == RESIGN:
            document = {"leader_token": document["leader_token"]}
        try:
            command = super()._command(verb, ns, room, document, caller, public=public)
        except InvalidTtl:
            raise bodies.refused("invalid_ttl", "Public election TTL must be between 5 and 300 seconds") from None
        except InvalidInput as error:
            raise bodies.refused("invalid_input", error.details) from None
        return command.replace(policy=bodies.OCTOSTORE) if isinstance(command, Acquire) else command

    async def _answer(self, room: str, command: Command, call: HttpRequest, public: bool) -> Reply:
        outcome = await self._api.engine.batcher.submit(command)
        if isinstance(outcome, QuotaExceeded):
            raise bodies.OctoStoreRefusal(
                "capacity_exceeded",
                "Capacity exceeded: Public election capacity reached; retry later or self-host OctoStore",
                retry_s=FULL_RETRY_S,
            )
        if isinstance(outcome, NotCurrent):
            raise bodies.not_current(is_held=bool(outcome.holders))
        if isinstance(outcome, Released) and outcome.again:
            state = await self._api.engine.batcher.submit(Inspect(ns=PUBLIC_NAMESPACE, name=outcome.name))
            raise bodies.not_current(is_held=bool(expected(state, Status).lock.holders))
        document = election_document(room, outcome)
        return answer_for(outcome) if document is None else answer_document(document)


class Webhooks(Handlers):
    async def listing(self, call: HttpRequest) -> Reply:
        admin = self._admin(self._callers.user("webhooks", call))
        return answer_document([_document(each) for each in await self._api.in_reader(admin.mine)])

    async def create(self, call: HttpRequest) -> Reply:
        document = await bodies.read_body(call, self._api.caller_of, FIELDS[CREATE])
        user = self._callers.user(CREATE, call)
        document["url"] = _url(document["url"], self._api.engine.webhook_policy)
        if not set(document.get("events", ())) <= set(EVENTS):
            raise bodies.refused("invalid_input", "Webhook events must be acquired, released, renewed, expired, or *")
        admin = self._admin(user)
        webhook = await self._api.in_reader(lambda: _made(admin, document))
        self._api.engine.dispatcher.changed()
        return answer_document(_document(webhook), 201)

    async def remove(self, call: HttpRequest) -> Reply:
        webhook_id = _id_in(call)
        admin = self._admin(self._callers.user(REMOVE, call))
        try:
            await self._api.in_reader(lambda: admin.ask(REMOVE, webhook_id, {}))
        except NotOnRecord:
            raise bodies.OctoStoreRefusal("not_found", "Resource not found: Webhook not found") from None
        self._api.engine.dispatcher.changed()
        return Reply(NO_CONTENT)

    def _admin(self, user: User) -> WebhookAdmin:
        """As an agent, who sees its own webhooks alone: so does the admin there."""
        caller = Caller(principal=user.principal, role=AGENT, namespace=user.scope)
        engine = self._api.engine
        return WebhookAdmin(engine.store, caller, DEFAULT_NAMESPACE, engine.webhook_policy, own=True)


def _made(admin: WebhookAdmin, document: Document) -> Webhook:
    if len(admin.mine()) >= limits.WEBHOOKS_PER_PRINCIPAL_MAX:
        raise bodies.refused("invalid_input", f"Maximum {limits.WEBHOOKS_PER_PRINCIPAL_MAX} webhooks per user")
    return admin.find((admin.ask(CREATE, "", document).body or {})["id"])


def _document(webhook: Webhook) -> Document:
    shown = webhook_document(webhook)
    fields = ("id", "url", "secret", "events", "created_at", "active")
    return {
        **{field: shown[field] for field in fields},
        "user_id": id_of(webhook.principal),
        "lock_pattern": None if webhook.pattern == EVERY else webhook.pattern,
    }


def _url(text: str, policy: TargetPolicy) -> str:
    try:
        target = parse_target(text, policy)
    except TargetRefused:
        raise bodies.refused("invalid_input", _why(text)) from None
    # A host that is an address is checked now, and every host when something is sent.
    is_address = ":" in target.host or target.host.replace(".", "").isdecimal()
    try:
        if is_address or target.host == "localhost":
            check_addresses(("127.0.0.1",) if target.host == "localhost" else (target.host,), policy)
    except TargetRefused:
        raise bodies.refused("invalid_input", "Webhook URL must resolve only to public network addresses") from None
    return f"{'https' if target.is_tls else 'http'}://{target.host_header}{target.path}"


def _why(text: str) -> str:
    scheme, colon, rest = text.partition("://")
    if colon and scheme.lower() != "https":
        return "Webhook URL must use HTTPS"
    if "@" in rest.partition("/")[0]:
        return "Webhook URL must not contain credentials"
    return "Webhook URL must be a valid HTTPS URL"
