"""The operations on jobs and sessions, which `Api` has decided; those on tokens and webhooks, which the engine's
`CredentialAdmin` and `WebhookAdmin` do; and what happens, as a page or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dibs.base.errors import InvalidInput, RequestRefused
from dibs.base.reply import Reply
from dibs.core.commands import Inspect
from dibs.core.events import Event
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.core.names import check_name
from dibs.core.outcomes import Status
from dibs.engine.credentials import OF_ANOTHER, CredentialAdmin, rights_page
from dibs.engine.event_log import EventFilter, collect
from dibs.engine.queries import begun
from dibs.engine.webhooks import WebhookAdmin
from dibs.server.event_stream import EventStream
from dibs.server.handlers import Api
from dibs.server.http import parse
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import NO_CONTENT, answer_document, encoded
from dibs.server.routes.operations import OPERATIONS, SINCE_S_MAX, routed
from dibs.server.routes.table import Handler, Table
from dibs.wire.credentials import check_digest, identity_rule_document
from dibs.wire.documents import expected, reply_to
from dibs.wire.lease_documents import events_document, frame, lock_change, lock_snapshot, named_event
from dibs.wire.operations import STREAM_TYPE
from dibs.wire.requests import shape

# Operations whose command is decided by the rules. The others have a handler of their own below.
_DECIDED = (
    *("acquire", "acquire-any", "acquire-all", "leave", "withdraw", "renew", "release", "transfer", "inspect"),
    *("next", "give-back", "break", "free", "acl", "pool", "close", "open"),
    *("session-open", "session-keep", "session-show", "session-end"),
)
_TOKENS = ("tokens", "token-create", "token-revoke", "token-rotate", "token-limit")
_BODILESS = ("tokens", "token-revoke")
CREATE, REMOVE, REPLAY, TEST = "webhook-create", "webhook-remove", "webhook-replay", "webhook-test"
_WEBHOOKS = ("webhooks", CREATE, "webhook-show", REMOVE, "webhook-deliveries", REPLAY, TEST)


def job_routes(api: Api) -> Table:
    events = EventRoutes(api)
    return routed(
        {
            **{verb: asks(api, verb) for verb in _DECIDED},
            "list": lambda call: _shown(api, api.list_reader(call.query, call.headers)),
            "history": lambda call: _shown(api, api.history_reader(call.raw_name, call.query, call.headers)),
            "overdue": lambda call: api.overdue(call.raw_name, call.query, call.headers),
            "events": events.events,
            "watch": events.watch,
            "sessions": lambda call: api.sessions(call.headers),
            "agents": lambda call: api.agents(call.query, call.headers),
            **{verb: partial(_token, api, verb) for verb in _TOKENS},
            "rights": partial(_rights, api),
        }
    )


def asks(api: Api, verb: str) -> Handler:
    """A handler that has the command of an operation decided. The outcome is answered without a task."""
    operation = OPERATIONS[verb]
    if operation.method in ("GET", "DELETE"):
        return lambda call: api.ask(call, verb, b"")

    def handle(call: HttpRequest) -> None:
        if not (call.head.is_acceptable or operation.body_optional):
            parse.check_head(call.headers)  # before the body has come
        call.read(api.caller_of, lambda body: api.ask(call, verb, body))

    return handle


async def _token(api: Api, verb: str, call: HttpRequest) -> Reply:
    document: dict[str, Any] = {}
    if verb not in _BODILESS:
        document = shape(verb, await call.json(api.caller_of))
    caller = api.caller_for(verb, call.headers)
    digest = check_digest(document["sha256"]) if "sha256" in document else None
    if digest and caller.namespace is not None and api.guard.is_of_another(digest, caller.namespace):
        raise RequestRefused(OF_ANOTHER, "conflict")
    name, wanted_id = parse.decode_name(call.raw_name), parse.parse_query(call.query).get("id", "")
    reply = await api.in_reader(lambda: CredentialAdmin(api.engine.store, caller).ask(verb, name, wanted_id, document))
    if verb != "tokens":
        await api.in_reader(api.look_for_tokens)
    return encoded(reply)


async def _shown(api: Api, read: Callable[[], dict[str, Any]]) -> Reply:
    return await api.in_reader(lambda: answer_document(read()))


async def _rights(api: Api, call: HttpRequest) -> Reply:
    caller = api.caller_for("rights", call.headers)
    asked = parse.parse_query(call.query)
    after = parse.whole_number(asked, "after", 0, 0, parse.SEQ_MAX)
    limit = parse.whole_number(asked, "limit", HISTORY_PAGE_DEFAULT, 1, HISTORY_PAGE_MAX)
    page = await api.in_reader(lambda: rights_page(api.engine.store, caller.namespace, after, limit))
    signed = api.guard.signed
    # An admin of one namespace does not learn who may use the others.
    rules = signed.rules if signed is not None and caller.namespace is None else ()
    return answer_document({**page, "identity": [identity_rule_document(rule) for rule in rules]})


def webhook_routes(api: Api) -> Table:
    return routed({verb: partial(_webhook, api, verb) for verb in _WEBHOOKS})


async def _webhook(api: Api, verb: str, call: HttpRequest) -> Reply:
    document: dict[str, Any] = {}
    if verb == CREATE:
        document = shape(verb, await call.json(api.caller_of))
    elif verb == REPLAY and (body := await call.rest(api.caller_of)):
        parse.check_head(call.headers)
        document = shape(verb, parse.parse_json(body))
    caller, webhook_id = api.caller_for(verb, call.headers), call.raw_name.decode("latin-1")
    ns = api.namespace_of(caller, parse.parse_query(call.query), call.headers)
    admin = WebhookAdmin(api.engine.store, caller, ns, api.engine.webhook_policy)
    dispatcher = api.engine.dispatcher
    if verb == TEST:
        result = await dispatcher.test(await api.in_reader(lambda: admin.find(webhook_id)))
        said = {"status": result.status or None, "error": result.error or None, "took_ms": result.took_ms}
        return answer_document({"delivered": not result.error, **said})
    if verb == CREATE:
        await dispatcher.check(document["url"])
    reply = await api.in_reader(lambda: admin.ask(verb, webhook_id, document))
    if verb in (CREATE, REMOVE, REPLAY):
        dispatcher.changed()
    if verb == "webhooks":
        return answer_document((reply.body or {})["webhooks"])  # a list, as OctoStore has it
    return Reply(NO_CONTENT) if verb == REMOVE else encoded(reply)


# Events: what happens, as a page or as a stream.


class EventRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._framed: tuple[Event | None, bytes] = (None, b"")

    async def events(self, call: HttpRequest) -> Reply | EventStream:
        ns, asked = self._api.reader("events", call.query, call.headers)
        wanted = _wanted(ns, asked, call.headers)
        after = _position(asked, call.headers)
        since_s = parse.whole_number(asked, "since_seconds", 0, 0, SINCE_S_MAX)
        limit = parse.whole_number(asked, "limit", HISTORY_PAGE_DEFAULT, 1, HISTORY_PAGE_MAX)
        # `follow` decides; without it, what the client accepts.
        accepts = STREAM_TYPE.encode() in call.headers.get(b"accept", b"").lower()
        follow = parse.truth(asked, "follow")
        is_stream = accepts if follow is None else follow
        if is_stream:
            self._check_room(call)
        feed, store = self._api.engine.feed, self._api.engine.store
        await self._api.in_reader(lambda: begun(store))
        if after is None and since_s:
            after = await feed.position_ago(since_s * 1000)
        if not is_stream:
            page = await self._api.in_reader(lambda: collect(store, wanted, after, limit))
            return answer_document(events_document(after, page.events, page.upto, page.oldest))
        at = await feed.position_now() if after is None else after
        return self._opened(call, EventStream(feed, wanted, at, self._frame))

    async def watch(self, call: HttpRequest) -> Reply | EventStream:
        """The state of one job and its changes, as OctoStore reports them."""
        ns, _ = self._api.reader("watch", call.query, call.headers)
        name = check_name(parse.one_name(parse.decode_name(call.raw_name), call.headers))
        self._check_room(call)
        feed = self._api.engine.feed
        at = await feed.position_now()
        state = expected(await self._api.engine.batcher.submit(Inspect(ns=ns, name=name)), Status)
        first = frame(lock_snapshot(name, reply_to("inspect", state).body or {}, state.now_ms), at)
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
    prefix = parse.name_part(asked, "prefix")
    parse.wants_one_name(headers)
    if "name" not in asked:
        return EventFilter(ns=ns, prefix=prefix)
    if prefix:
        raise InvalidInput("Give name or prefix, not both.")
    return EventFilter(ns=ns, name=check_name(parse.one_name(asked["name"], headers)))


def _position(asked: Mapping[str, str], headers: Mapping[bytes, bytes]) -> int | None:
    """Return where to begin. A browser that comes back repeats its first address, so its header is the newer word."""
    after = parse.whole_number(asked, "after", 0, 0, parse.SEQ_MAX) if "after" in asked else None
    last = headers.get(b"last-event-id")
    if last:
        sent = {"Last-Event-ID": parse.header_text(last, "Last-Event-ID")}
        return parse.whole_number(sent, "Last-Event-ID", 0, 0, parse.SEQ_MAX)
    return after


def change_frame(event: Event) -> bytes | None:
    change = lock_change(event)
    return None if change is None else frame(change, event.seq)
