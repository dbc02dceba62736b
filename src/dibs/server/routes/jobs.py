"""The operations on jobs and sessions, which `Api` has decided, and those on tokens and webhooks, which the engine's
`CredentialAdmin` and `WebhookAdmin` do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dibs.base.errors import RequestRefused
from dibs.base.reply import Reply
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.engine.credentials import OF_ANOTHER, CredentialAdmin, rights_page
from dibs.engine.webhooks import WebhookAdmin
from dibs.server.http.parse import SEQ_MAX, check_head, decode_name, parse_json, parse_query, whole_number
from dibs.server.http.response import NO_CONTENT, answer_document, encoded
from dibs.server.routes.operations import OPERATIONS, routed
from dibs.wire.credentials import check_digest
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from typing import Any

    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table


_ASKED = "acquire acquire-any acquire-all leave renew release transfer break free acl pool inspect close open"
_TOKENS = ("tokens", "token-create", "token-revoke", "token-rotate", "token-limit")
_BODILESS = ("tokens", "token-revoke")
CREATE, REMOVE, REPLAY, TEST = "webhook-create", "webhook-remove", "webhook-replay", "webhook-test"
_WEBHOOKS = ("webhooks", CREATE, "webhook-show", REMOVE, "webhook-deliveries", REPLAY, TEST)


def job_routes(api: Api) -> Table:
    return routed(
        {
            **{verb: asks(api, verb) for verb in _ASKED.split()},
            "list": lambda call: api.list(call.query, call.headers),
            "history": lambda call: api.history(call.raw_name, call.query, call.headers),
            "overdue": lambda call: api.overdue(call.raw_name, call.query, call.headers),
        }
    )


def asks(api: Api, verb: str) -> Handler:
    """A handler that has the command of an operation decided. The outcome is answered without a task."""
    operation = OPERATIONS[verb]
    if operation.method in ("GET", "DELETE"):
        return lambda call: api.ask(call, verb, b"")

    def handle(call: HttpRequest) -> None:
        if not (call.head.is_acceptable or operation.body_optional):
            check_head(call.headers)  # before the body has come
        call.read(api.caller_of, lambda body: api.ask(call, verb, body))

    return handle


def session_routes(api: Api) -> Table:
    return routed(
        {
            "session-open": asks(api, "session-open"),
            "sessions": lambda call: api.sessions(call.headers),
            **{verb: asks(api, verb) for verb in ("session-keep", "session-show", "session-end")},
        }
    )


def token_routes(api: Api) -> Table:
    return routed({**{verb: partial(_token, api, verb) for verb in _TOKENS}, "rights": partial(_rights, api)})


async def _token(api: Api, verb: str, call: HttpRequest) -> Reply:
    document: dict[str, Any] = {}
    if verb not in _BODILESS:
        document = shape(verb, await call.json(api.caller_of))
    caller = api.caller_for(verb, call.headers)
    digest = check_digest(document["sha256"]) if "sha256" in document else None
    if digest and caller.namespace is not None and api.guard.is_of_another(digest, caller.namespace):
        raise RequestRefused(OF_ANOTHER, "conflict")
    name, wanted_id = decode_name(call.raw_name), parse_query(call.query).get("id", "")
    reply = await api.in_reader(lambda: CredentialAdmin(api.engine.store, caller).ask(verb, name, wanted_id, document))
    if verb != "tokens":
        await api.in_reader(api.look_for_tokens)
    return encoded(reply)


async def _rights(api: Api, call: HttpRequest) -> Reply:
    caller = api.caller_for("rights", call.headers)
    asked = parse_query(call.query)
    after = whole_number(asked, "after", 0, 0, SEQ_MAX)
    limit = whole_number(asked, "limit", HISTORY_PAGE_DEFAULT, 1, HISTORY_PAGE_MAX)
    return answer_document(await api.in_reader(lambda: rights_page(api.engine.store, caller.namespace, after, limit)))


def webhook_routes(api: Api) -> Table:
    return routed({verb: partial(_webhook, api, verb) for verb in _WEBHOOKS})


async def _webhook(api: Api, verb: str, call: HttpRequest) -> Reply:
    document: dict[str, Any] = {}
    if verb == CREATE:
        document = shape(verb, await call.json(api.caller_of))
    elif verb == REPLAY and (body := await call.rest(api.caller_of)):
        check_head(call.headers)
        document = shape(verb, parse_json(body))
    caller, webhook_id = api.caller_for(verb, call.headers), call.raw_name.decode("latin-1")
    ns = api.namespace_of(caller, parse_query(call.query), call.headers)
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
