"""What the board asks beside the lists: who waits, what the last hour was like; and how an operator ends a session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dibs.base.errors import InvalidInput
from dibs.core.commands import EndSession
from dibs.core.keys import SESSION_PREFIX
from dibs.core.limits import LIST_PAGE_DEFAULT, LIST_PAGE_MAX, NAME_BYTES_MAX
from dibs.core.proof import may_use
from dibs.core.records import SessionRecord
from dibs.engine.activity import Activity
from dibs.engine.tickets import live_tickets
from dibs.server.http.arguments import name_part
from dibs.server.http.request import check_head, parse_json, parse_query, whole_number
from dibs.server.http.response import HttpError, answer_document, answer_for
from dibs.wire.board_documents import SESSION_SHOWN, activity_document, short_session, waiters_document
from dibs.wire.documents import reply_to
from dibs.wire.operations import NAMESPACE, Operation, in_path, in_query, number_in_query
from dibs.wire.permissions import require
from dibs.wire.requests import shape
from dibs.wire.values import text_of

if TYPE_CHECKING:
    from dibs.core.identity import Caller
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse
    from dibs.server.routes.table import Table

_BEGINNING = re.compile(rf"[0-9a-f]{{{SESSION_SHOWN}}}[0-9a-f-]{{0,28}}")


WAITERS = Operation(
    "GET",
    "/waiters",
    "waiters",
    "who waits in line, and for whom",
    "Jobs",
    {200: "waiters"},
    (),
    (
        *NAMESPACE,
        in_query("prefix", "Only jobs whose name begins with this", maxLength=NAME_BYTES_MAX),
        in_query("after", "`next` of the page before", maxLength=NAME_BYTES_MAX),
        number_in_query("limit", "Places on one page", 1, LIST_PAGE_MAX),
    ),
)
ACTIVITY = Operation(
    "GET",
    "/activity",
    "activity",
    "the last hour, by the minute",
    "Events",
    {200: "activity"},
    (),
    NAMESPACE,
)
BREAK = Operation(
    "POST",
    "/sessions/{id}/break",
    "session-break",
    "end somebody's session",
    "Sessions",
    {200: "session"},
    ("not_found", "session_expired"),
    (
        in_path(
            "id",
            f"The first {SESSION_SHOWN} characters of its id, or more",
            "3f2a9c1e",
            pattern=f"^{_BEGINNING.pattern}$",
        ),
    ),
    example={"reason": "its machine is gone"},
)


def board_routes(api: Api) -> Table:
    routes = BoardRoutes(api)
    return [(WAITERS, routes.waiters), (ACTIVITY, routes.activity), (BREAK, routes.break_session)]


class BoardRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._activity = Activity(api.engine.store)

    async def waiters(self, call: HttpRequest) -> HttpResponse:
        ns, asked = self._reader("waiters", call)
        prefix, after = name_part(asked, "prefix"), name_part(asked, "after")
        limit = whole_number(asked, "limit", LIST_PAGE_DEFAULT, 1, LIST_PAGE_MAX)
        store = self._api.engine.store
        page = await self._api.in_reader(lambda: live_tickets(store, ns, prefix, after, limit))
        return answer_document(waiters_document(page))

    async def activity(self, call: HttpRequest) -> HttpResponse:
        ns, _ = self._reader("activity", call)
        hour = await self._api.in_reader(lambda: self._activity.hour(ns))
        return answer_document(activity_document(hour, self._api.engine.tally.live_in(ns)))

    async def break_session(self, call: HttpRequest) -> HttpResponse:
        """An operator ends somebody's session. The whole id would prove the session, so its beginning names it."""
        check_head(call.headers)
        document = shape("session-break", parse_json(await call.rest(self._api.caller_of)))
        caller = self._api.caller_for("session-break", call.headers)
        require(caller, "session-break")
        reason = text_of(document, "reason")
        if not reason:
            raise InvalidInput("Ending somebody's session needs a reason: history keeps it.")
        beginning = call.raw_name.decode("latin-1").lower()
        session_id = await self._api.in_reader(lambda: self._find(beginning, caller))
        command = EndSession(
            session=session_id, principal=None, bound=caller.namespace, by=caller.principal, reason=reason
        )
        outcome = await self._api.engine.batcher.submit(command)
        reply = reply_to("session-break", outcome)
        if reply.body is not None and "session_id" in reply.body:
            reply.body["session_id"] = short_session(reply.body["session_id"])
            return answer_document(reply.body, reply.status)
        return answer_for(outcome, "session-break")

    def _find(self, beginning: str, caller: Caller) -> str:
        """The session with this beginning; of two, the one that is open."""
        if not _BEGINNING.fullmatch(beginning):
            raise InvalidInput("Name the session by the first 8 characters of its id.")
        found = [
            each.record
            for _, each in self._api.engine.store.scan(SESSION_PREFIX + beginning, "", 10)
            if isinstance(each.record, SessionRecord) and may_use(each.record, None, caller.namespace)
        ]
        chosen = [session.id for session in found if not session.ended_ms] or [each.id for each in found]
        if len(chosen) > 1:
            raise InvalidInput("Several sessions begin so. Give more of the id.")
        if not chosen:
            raise HttpError("There is no such session, or it ended over an hour ago.", 404, code="not_found")
        return chosen[0]

    def _reader(self, verb: str, call: HttpRequest) -> tuple[str, dict[str, str]]:
        caller = self._api.caller_for(verb, call.headers)
        require(caller, verb)
        asked = parse_query(call.query)
        return self._api.namespace_of(caller, asked, call.headers), asked
