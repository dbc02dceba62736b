"""OctoStore's webhooks: a user has its own, and is told of its own locks alone. Deliveries are dibs'."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from dibs.base.errors import UnknownWebhook
from dibs.compat.octostore.bodies import read_body
from dibs.compat.octostore.callers import id_of
from dibs.compat.octostore.refusals import OctoStoreRefusal, invalid, unsupported
from dibs.core.identity import AGENT, Caller
from dibs.core.limits import WEBHOOKS_PER_PRINCIPAL_MAX
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.core.webhooks import EVERY, Webhook
from dibs.engine.webhooks.admin import WebhookAdmin
from dibs.engine.webhooks.target import TargetRefused, check_addresses, parse_target
from dibs.server.http.response import NO_CONTENT, HttpResponse, answer_document
from dibs.server.routes.webhooks import CREATE, REMOVE, WEBHOOKS
from dibs.wire.webhooks import webhook_document

if TYPE_CHECKING:
    from typing import Any

    from dibs.compat.octostore.callers import User, UserDirectory
    from dibs.engine.webhooks.target import Target, TargetPolicy
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest

    Document = dict[str, Any]

EVENTS = ("acquired", "released", "renewed", "expired", EVERY)
FIELDS = {CREATE.id: {"url": "text!", "secret": "text", "events": "texts", "lock_pattern": "text"}}
_NOT_PUBLIC = "Webhook URL must resolve only to public network addresses"


class Webhooks:
    def __init__(self, api: Api, callers: UserDirectory) -> None:
        self._api = api
        self._callers = callers

    async def listing(self, call: HttpRequest) -> HttpResponse:
        admin = self._admin(self._callers.user(WEBHOOKS.id, call))
        found = await self._api.in_reader(admin.mine)
        return answer_document([_document(each) for each in found])

    async def create(self, call: HttpRequest) -> HttpResponse:
        document = await read_body(call, self._api.caller_of, FIELDS[CREATE.id])
        user = self._callers.user(CREATE.id, call)
        policy = self._api.engine.webhook_policy
        document["url"] = _url(document["url"], policy)
        if not set(document.get("events", ())) <= set(EVENTS):
            raise invalid("Webhook events must be acquired, released, renewed, expired, or *")
        admin = self._admin(user)
        webhook = await self._api.in_reader(lambda: _made(admin, document))
        self._api.engine.dispatcher.changed()
        return answer_document(_document(webhook), 201)

    async def remove(self, call: HttpRequest) -> HttpResponse:
        given = call.raw_name.decode("latin-1")
        try:
            webhook_id = str(uuid.UUID(given))
        except ValueError:
            raise unsupported(400) from None
        admin = self._admin(self._callers.user(REMOVE.id, call))
        try:
            await self._api.in_reader(lambda: admin.ask(REMOVE.id, webhook_id, {}))
        except UnknownWebhook:
            raise OctoStoreRefusal("not_found", "Resource not found: Webhook not found") from None
        self._api.engine.dispatcher.changed()
        return HttpResponse(NO_CONTENT, b"", answer_document({}).request_id)

    def _admin(self, user: User) -> WebhookAdmin:
        """As an agent, who sees its own webhooks alone: so does the admin there."""
        caller = Caller(principal=user.principal, role=AGENT, namespace=user.scope)
        engine = self._api.engine
        return WebhookAdmin(engine.store, caller, DEFAULT_NAMESPACE, engine.webhook_policy, own=True)


def _made(admin: WebhookAdmin, document: Document) -> Webhook:
    if len(admin.mine()) >= WEBHOOKS_PER_PRINCIPAL_MAX:
        raise invalid(f"Maximum {WEBHOOKS_PER_PRINCIPAL_MAX} webhooks per user")
    reply = admin.ask(CREATE.id, "", document)
    return admin.find((reply.body or {})["id"])


def _document(webhook: Webhook) -> Document:
    shown = webhook_document(webhook)
    fields = ("id", "url", "secret", "events", "created_at", "active")
    return {
        **{field: shown[field] for field in fields},
        "user_id": id_of(webhook.principal),
        "lock_pattern": None if webhook.pattern == EVERY else webhook.pattern,
    }


def _url(text: str, policy: TargetPolicy) -> str:
    """The URL as it is kept. A host that is an address is checked now, and every host when something is sent."""
    try:
        target = parse_target(text, policy)
    except TargetRefused:
        raise invalid(_why(text)) from None
    try:
        _check_host(target, policy)
    except TargetRefused:
        raise invalid(_NOT_PUBLIC) from None
    return f"{'https' if target.is_tls else 'http'}://{target.host_header}{target.path}"


def _check_host(target: Target, policy: TargetPolicy) -> None:
    is_address = ":" in target.host or target.host.replace(".", "").isdecimal()
    if is_address or target.host == "localhost":
        check_addresses(("127.0.0.1",) if target.host == "localhost" else (target.host,), policy)


def _why(text: str) -> str:
    scheme, colon, rest = text.partition("://")
    if not colon:
        return "Webhook URL must be a valid HTTPS URL"
    if scheme.lower() != "https":
        return "Webhook URL must use HTTPS"
    if "@" in rest.partition("/")[0]:
        return "Webhook URL must not contain credentials"
    return "Webhook URL must be a valid HTTPS URL"
