"""The routes about webhooks: OctoStore's, and more. What they do is `engine/webhooks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.reply import Reply
from dibs.engine.webhooks import WebhookAdmin
from dibs.server.http.parse import check_head, parse_json, parse_query
from dibs.server.http.response import NO_CONTENT, answer_document, encoded
from dibs.server.routes.operations import routed
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table

CREATE, REMOVE, REPLAY, TEST = "webhook-create", "webhook-remove", "webhook-replay", "webhook-test"


def webhook_routes(api: Api) -> Table:
    routes = WebhookRoutes(api)
    return routed(
        {
            "webhooks": routes.asks("webhooks"),
            CREATE: routes.create,
            "webhook-show": routes.asks("webhook-show"),
            REMOVE: routes.asks(REMOVE),
            "webhook-deliveries": routes.asks("webhook-deliveries"),
            REPLAY: routes.asks(REPLAY),
            TEST: routes.test,
        }
    )


class WebhookRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api

    def asks(self, verb: str) -> Handler:
        async def handle(call: HttpRequest) -> Reply:
            document: object = {}
            body = await call.rest(self._api.caller_of) if verb == REPLAY else b""
            if body:
                check_head(call.headers)
                document = shape(verb, parse_json(body))
            admin = self._admin(verb, call)
            reply = await self._api.in_reader(lambda: admin.ask(verb, call.raw_name.decode("latin-1"), document))
            if verb in (REMOVE, REPLAY):
                self._api.engine.dispatcher.changed()
            if verb == "webhooks":
                return answer_document((reply.body or {})["webhooks"])  # a list, as OctoStore has it
            return Reply(NO_CONTENT) if verb == REMOVE else encoded(reply)

        return handle

    async def create(self, call: HttpRequest) -> Reply:
        document = shape(CREATE, await call.json(self._api.caller_of))
        admin = self._admin(CREATE, call)
        dispatcher = self._api.engine.dispatcher
        await dispatcher.check(document["url"])
        reply = await self._api.in_reader(lambda: admin.ask(CREATE, "", document))
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

    def _admin(self, verb: str, call: HttpRequest) -> WebhookAdmin:
        caller = self._api.caller_for(verb, call.headers)
        ns = self._api.namespace_of(caller, parse_query(call.query), call.headers)
        return WebhookAdmin(self._api.engine.store, caller, ns, self._api.engine.webhook_policy)
