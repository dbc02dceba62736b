"""The routes about tokens: for admins. What they do is `engine/credentials.py`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dibs.base.errors import RequestRefused
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.engine.credentials import OF_ANOTHER, CredentialAdmin, rights_page
from dibs.server.http.parse import SEQ_MAX, decode_name, parse_query, whole_number
from dibs.server.http.response import answer_document, encoded
from dibs.server.routes.table import section
from dibs.wire.credentials import check_digest
from dibs.wire.operations import Link, document_schema, in_path, in_query, number_in_query
from dibs.wire.request_fields import PRINCIPAL_PATTERN
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from typing import Any

    from dibs.base.reply import Reply
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Table


_NAME = in_path("name", "The principal", "ci", pattern=PRINCIPAL_PATTERN)
_ID = in_query("id", "One token: the beginning of its hash")
_token = section("Tokens", (_NAME, _ID))

# GET /rights: what changed about who may do what, for admins.

RIGHTS = _token(
    "GET /rights",
    "rights",
    "changes of tokens, webhooks and access lists",
    {
        200: document_schema(
            {
                "events": ("list", "in order, as in `GET /events`, each also with `user_id`: whose it is"),
                "next": ("number?", "what to send as `after` for the following page, null on the last"),
                "gap": ("object?", "null, or what was asked for and is no longer on record"),
            }
        )
    },
    (),
    (
        number_in_query("after", "Begin after the event with this number", 0, SEQ_MAX),
        number_in_query("limit", "At most so many events", 1, HISTORY_PAGE_MAX),
    ),
)


def rights_routes(api: Api) -> Table:
    async def rights(call: HttpRequest) -> Reply:
        caller = api.caller_for(RIGHTS.id, call.headers)
        asked = parse_query(call.query)
        after = whole_number(asked, "after", 0, 0, SEQ_MAX)
        limit = whole_number(asked, "limit", HISTORY_PAGE_DEFAULT, 1, HISTORY_PAGE_MAX)
        store = api.engine.store
        page = await api.in_reader(lambda: rights_page(store, caller.namespace, after, limit))
        return answer_document(page)

    return [(RIGHTS, rights)]


_BODILESS = ("tokens", "token-revoke")
TOKENS = _token("GET /tokens", "tokens", "the tokens of the store", {200: "tokens"}, (), ())
CREATE = _token(
    "POST /tokens",
    "token-create",
    "make one",
    {201: "token"},
    ("conflict", "invalid_lock_name"),
    (),
    example={"name": "ci", "role": "agent"},
    links=(Link("revoke", "token-revoke", "Revoke it", 201, {"name": "$response.body#/name"}),),
)
REVOKE = _token("DELETE /tokens/{name}", "token-revoke", "revoke somebody's", {200: "token-revoke"}, ("not_found",))
ROTATE = _token(
    "POST /tokens/{name}/rotate",
    "token-rotate",
    "put a new one in the place of one",
    {200: "token-rotate"},
    ("not_found",),
    example={"grace_seconds": 600},
)
LIMITS = _token(
    "POST /tokens/{name}/limits",
    "token-limit",
    "how much the holder of a token may have",
    {200: "token-limit"},
    ("not_found",),
    example={"max_held": 10},
)


def token_routes(api: Api) -> Table:
    return [(each, partial(_answer, api, each.id)) for each in (TOKENS, CREATE, REVOKE, ROTATE, LIMITS)]


async def _answer(api: Api, verb: str, call: HttpRequest) -> Reply:
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
