"""GET /rights: what changed about who may do what, for admins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.engine.rights_log import rights_page
from dibs.server.http.arguments import SEQ_MAX
from dibs.server.http.request import parse_query, whole_number
from dibs.server.http.response import answer_document
from dibs.wire.operations import Operation, number_in_query
from dibs.wire.permissions import require
from dibs.wire.schemas import document_schema

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse
    from dibs.server.routes.table import Table

RIGHTS = Operation(
    "GET",
    "/rights",
    "rights",
    "changes of tokens, webhooks and access lists",
    "Tokens",
    {
        200: document_schema(
            {
                "events": ("list", "in order, as in `GET /events`, each also with `user_id`: whose it is"),
                "next": ("number?", "what to send as `after` for the following page, null on the last"),
                "gap": ("object?", "null, or what was asked for and is no longer on record"),
            }
        )
    },
    parameters=(
        number_in_query("after", "Begin after the event with this number", 0, SEQ_MAX),
        number_in_query("limit", "At most so many events", 1, HISTORY_PAGE_MAX),
    ),
)


def rights_routes(api: Api) -> Table:
    async def rights(call: HttpRequest) -> HttpResponse:
        caller = api.caller_for(RIGHTS.id, call.headers)
        require(caller, RIGHTS.id)
        asked = parse_query(call.query)
        after = whole_number(asked, "after", 0, 0, SEQ_MAX)
        limit = whole_number(asked, "limit", HISTORY_PAGE_DEFAULT, 1, HISTORY_PAGE_MAX)
        store = api.engine.store
        page = await api.in_reader(lambda: rights_page(store, caller.namespace, after, limit))
        return answer_document(page)

    return [(RIGHTS, rights)]
