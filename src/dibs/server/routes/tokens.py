"""The routes about tokens: for admins. What they do is `engine/credentials.py`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dibs.base.errors import RequestRefused
from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.engine.credentials import OF_ANOTHER, CredentialAdmin, rights_page
from dibs.server.http.parse import SEQ_MAX, decode_name, parse_query, whole_number
from dibs.server.http.response import answer_document, encoded
from dibs.server.routes.operations import routed
from dibs.wire.credentials import check_digest
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from typing import Any

    from dibs.base.reply import Reply
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Table


def rights_routes(api: Api) -> Table:
    async def rights(call: HttpRequest) -> Reply:
        caller = api.caller_for("rights", call.headers)
        asked = parse_query(call.query)
        after = whole_number(asked, "after", 0, 0, SEQ_MAX)
        limit = whole_number(asked, "limit", HISTORY_PAGE_DEFAULT, 1, HISTORY_PAGE_MAX)
        store = api.engine.store
        page = await api.in_reader(lambda: rights_page(store, caller.namespace, after, limit))
        return answer_document(page)

    return routed({"rights": rights})


_VERBS = ("tokens", "token-create", "token-revoke", "token-rotate", "token-limit")
_BODILESS = ("tokens", "token-revoke")


def token_routes(api: Api) -> Table:
    return routed({verb: partial(_answer, api, verb) for verb in _VERBS})


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
