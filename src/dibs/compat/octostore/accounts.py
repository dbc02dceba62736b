"""Tokens as users of OctoStore get them: by giving a name, where that is allowed, and by replacing their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dibs.base.errors import AuthenticationRequired, InvalidInput
from dibs.compat.octostore.bodies import user_id
from dibs.core.identity import ADMIN, AGENT, Caller
from dibs.core.limits import REGISTRATIONS_MAX
from dibs.core.names import DEFAULT_NAMESPACE, check_namespace
from dibs.engine.credentials import CredentialAdmin, credentials
from dibs.server.http.admission import PUBLIC_NAMESPACE, ClientWindows
from dibs.server.http.response import HttpError, answer_document
from dibs.wire.credentials import digest_of
from dibs.wire.operations import Operation, document_schema

if TYPE_CHECKING:
    from typing import Any

    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse
    from dibs.server.routes.table import Table

NAME_CHARS_MAX = 64
ACCOUNTS = "Tokens"
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
# To OctoStore's clients a namespace is a beginning of names. These two are where their locks and elections are: a user
# of one could see all of them by dibs' own routes.
_RESERVED = (DEFAULT_NAMESPACE, PUBLIC_NAMESPACE)
_BEARER = b"Bearer "
_FIELDS = {
    "token": ("text", "the token, shown only here"),
    "user_id": ("text", "an id made from the name"),
    "namespace": ("text?", "the only namespace it may use; null: any"),
}
REGISTER = Operation(
    "POST",
    "/auth/register",
    "register",
    "a token for a name that nobody has",
    ACCOUNTS,
    {200: document_schema({**_FIELDS, "username": ("text", "as given")})},
    ("not_found", "conflict", "rate_limited", "invalid_lock_name"),
    is_open=True,
    who="anybody on this machine, if so set",
    request={
        "type": "object",
        "properties": {
            "username": {"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX},
            "namespace": {"type": ["string", "null"], "maxLength": NAME_CHARS_MAX},
        },
        "required": ["username"],
    },
)
ROTATE = Operation(
    "POST",
    "/auth/token/rotate",
    "token-rotate-own",
    "a new token in the place of the caller's own",
    ACCOUNTS,
    {200: document_schema({**_FIELDS, "github_username": ("text", "the token's name")})},
    ("conflict", "not_found"),
)


def routes(api: Api) -> Table:
    accounts = Accounts(api)
    return [(REGISTER, accounts.register), (ROTATE, accounts.rotate)]


class Accounts:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._registering = asyncio.Lock()  # looking whether a name is free, and taking it
        self._requests = ClientWindows(REGISTRATIONS_MAX, "registrations")

    async def register(self, call: HttpRequest) -> HttpResponse:
        if not self._api.settings.local_registration:
            raise HttpError("Resource not found", 404, code="not_found")
        self._api.names.check(call.headers.items(), strict=True)  # whoever has a name gets a token
        name, namespace = _wanted(await call.json())
        self._requests.charge(call.client)
        if self._api.settings.contract is not None and namespace in _RESERVED:
            raise HttpError("local registration is unavailable for that namespace", 409, code="conflict")
        async with self._registering:
            token = await self._api.in_reader(lambda: self._make(name, namespace))
            await self._api.in_reader(self._api.look_for_tokens)
        return answer_document({"token": token, **_whose(name, namespace), "username": name})

    def _make(self, name: str, namespace: str | None) -> str:
        """Raises if the name is, or was, somebody's: who has a name has what was claimed under it."""
        store = self._api.engine.store
        taken = {each.name for each in credentials(store)} | self._api.guard.principals()
        if name.lower() in {each.lower() for each in taken}:
            raise HttpError("local registration is unavailable for that username", 409, code="conflict")
        document = {"name": name, "role": AGENT, "namespace": namespace}
        made = CredentialAdmin(store, Caller(principal=name, role=ADMIN)).ask("token-create", "", "", document)
        return str((made.body or {})["token"])

    async def rotate(self, call: HttpRequest) -> HttpResponse:
        caller = self._api.caller_for(ROTATE.id, call.headers)
        authorization = call.headers.get(b"authorization", b"").strip()
        if not authorization.startswith(_BEARER):
            raise AuthenticationRequired("Bearer token required")
        if self._api.guard.is_own_token(authorization):
            raise HttpError(
                "This token is in a file that the commands of this machine read. Remove the file and start the server "
                "again to replace it.",
                409,
                code="conflict",
            )
        digest = digest_of(authorization.removeprefix(_BEARER).decode("utf-8", "replace"))
        admin = CredentialAdmin(self._api.engine.store, caller)
        left_ms = self._api.guard.left_ms(authorization)
        token = await self._api.in_reader(lambda: admin.replace_own(digest, left_ms))
        await self._api.in_reader(self._api.look_for_tokens)
        whose = _whose(caller.principal, caller.namespace)
        return answer_document({"token": token, **whose, "github_username": caller.principal})


def _wanted(document: object) -> tuple[str, str | None]:
    name = document.get("username") if isinstance(document, dict) else None
    namespace = document.get("namespace") if isinstance(document, dict) else None
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        raise HttpError("The field username is required, and is text; namespace is text or left out.", 422)
    if not 1 <= len(name) <= NAME_CHARS_MAX or not _NAME.issuperset(name):
        raise InvalidInput(f"username is 1 to {NAME_CHARS_MAX} letters, digits, hyphens or underscores.")
    namespace = namespace.strip("/") if namespace else None
    return name, check_namespace(namespace) if namespace else None


def _whose(name: str, namespace: str | None) -> dict[str, Any]:
    return {"user_id": user_id(name, namespace), "namespace": namespace}
