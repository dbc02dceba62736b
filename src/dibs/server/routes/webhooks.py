"""The routes about webhooks: OctoStore's, and more. What they do is `engine/webhooks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.reply import Reply
from dibs.engine.webhooks import WebhookAdmin
from dibs.server.http.parse import check_head, parse_json, parse_query
from dibs.server.http.response import NO_CONTENT, answer_document, encoded
from dibs.server.routes.table import section
from dibs.wire.operations import NAMESPACE, document_schema, in_path
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table
    from dibs.wire.operations import Operation

_ID = in_path("id", "The webhook", "6f0c6a3e-8d0d-4b0e-9a57-2f6f1a2b3c4d", format="uuid")
_ONE = "/webhooks/{id}"
_UNKNOWN = ("not_found",)
_webhook = section("Webhooks", (_ID,))
# The fields of answers: kind and meaning.
_WEBHOOK = {
    "id": ("text", "its id"),
    "user_id": ("text", "the name of its owner's token"),
    "url": ("text", "where deliveries go"),
    "secret": ("text?", "`****` if it has one; it is never shown"),
    "events": ("texts", "what is sent, as given"),
    "lock_pattern": ("text", "of which jobs, as given"),
    "namespace": ("text", "the namespace of these jobs"),
    "created_at": ("text", "since when"),
    "active": ("flag", "whether it delivers"),
    "stopped": ("text?", "why it does not"),
}
_STANDING = {
    "delivered": ("number", "how many deliveries succeeded"),
    "failed": ("number", "how many tries failed"),
    "waiting": ("number", "how many jobs have something to be sent"),
    "dead": ("number", "how many dead letters are on record"),
    "dropped": ("number", "how many dead letters are not on record any more, because there were too many"),
    "gaps": ("number", "how often history was pruned before it was sent"),
    "after": ("number", "the number of the last event that was looked at"),
    "behind": ("number", "how many numbers follow it in the store"),
}
_DELIVERIES = {
    "deliveries": (
        "list",
        "the newest tries first: `id` (of the event), `at`, `name`, `event`, `try`, `status`, `error`, `took_ms`",
    ),
    "waiting": ("list", "jobs whose next event rests: `name`, `after`, `tries`, `next_try_at`, `error`"),
    "dead": ("list", "dead letters: `id` (of the event), `name`, `event`, `at`, `tries`, `error`, `again`"),
}
_TESTED = {
    "delivered": ("flag", "whether the target answered with 2xx"),
    "status": ("number?", "the status of its answer"),
    "error": ("text?", "why it counts as failed"),
    "took_ms": ("number", "how long it took"),
}
WEBHOOKS = _webhook(
    "GET /webhooks",
    "webhooks",
    "webhooks: those of the token; for an operator or admin, all",
    {200: {"type": "array", "items": document_schema(_WEBHOOK)}},
    (),
    (),
)
CREATE = _webhook(
    "POST /webhooks",
    "webhook-create",
    "send events to a URL",
    {201: document_schema(_WEBHOOK)},
    (),
    NAMESPACE,
    example={"url": "https://hooks.example.com/dibs", "events": ["acquired", "released"]},
)
SHOW = _webhook(
    f"GET {_ONE}",
    "webhook-show",
    "one, and how its deliveries stand",
    {200: document_schema(_WEBHOOK | _STANDING)},
    _UNKNOWN,
)
REMOVE = _webhook(f"DELETE {_ONE}", "webhook-remove", "send no more", {204: None}, _UNKNOWN)
DELIVERIES = _webhook(
    f"GET {_ONE}/deliveries",
    "webhook-deliveries",
    "the delivery log, what waits, and the dead letters",
    {200: document_schema(_DELIVERIES)},
    _UNKNOWN,
)
REPLAY = _webhook(
    f"POST {_ONE}/replay",
    "webhook-replay",
    "send the dead letters again, or all events after one",
    {200: document_schema(_WEBHOOK)},
    _UNKNOWN,
    body_optional=True,
)
TEST = _webhook(
    f"POST {_ONE}/test",
    "webhook-test",
    "send a delivery that is about nothing, now",
    {200: document_schema(_TESTED)},
    _UNKNOWN,
)


def webhook_routes(api: Api) -> Table:
    routes = WebhookRoutes(api)
    return [
        (WEBHOOKS, routes.asks(WEBHOOKS)),
        (CREATE, routes.create),
        (SHOW, routes.asks(SHOW)),
        (REMOVE, routes.asks(REMOVE)),
        (DELIVERIES, routes.asks(DELIVERIES)),
        (REPLAY, routes.asks(REPLAY)),
        (TEST, routes.test),
    ]


class WebhookRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api

    def asks(self, operation: Operation) -> Handler:
        async def handle(call: HttpRequest) -> Reply:
            document: object = {}
            body = await call.rest(self._api.caller_of) if operation is REPLAY else b""
            if body:
                check_head(call.headers)
                document = shape(operation.id, parse_json(body))
            admin = self._admin(operation, call)
            reply = await self._api.in_reader(
                lambda: admin.ask(operation.id, call.raw_name.decode("latin-1"), document)
            )
            if operation in (REMOVE, REPLAY):
                self._api.engine.dispatcher.changed()
            if operation is WEBHOOKS:
                return answer_document((reply.body or {})["webhooks"])  # a list, as OctoStore has it
            return Reply(NO_CONTENT) if operation is REMOVE else encoded(reply)

        return handle

    async def create(self, call: HttpRequest) -> Reply:
        document = shape(CREATE.id, await call.json(self._api.caller_of))
        admin = self._admin(CREATE, call)
        dispatcher = self._api.engine.dispatcher
        await dispatcher.check(document["url"])
        reply = await self._api.in_reader(lambda: admin.ask(CREATE.id, "", document))
        dispatcher.changed()
        return encoded(reply)

    async def test(self, call: HttpRequest) -> Reply:
        admin = self._admin(TEST, call)
        webhook = await self._api.in_reader(lambda: admin.find(call.raw_name.decode("latin-1")))
        result = await self._api.engine.dispatcher.test(webhook)
        return answer_document(
            {
                "delivered": not result.error,
                "status": result.status or None,
                "error": result.error or None,
                "took_ms": result.took_ms,
            }
        )

    def _admin(self, operation: Operation, call: HttpRequest) -> WebhookAdmin:
        caller = self._api.caller_for(operation.id, call.headers)
        ns = self._api.namespace_of(caller, parse_query(call.query), call.headers)
        return WebhookAdmin(self._api.engine.store, caller, ns, self._api.engine.webhook_policy)
