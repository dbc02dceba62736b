"""The dashboard: a page at /, and its parts at /ui/. The files are in `dashboard/`; all data comes from the API. Who
asks for / and takes no page is a program, and is introduced to the server instead.

The page holds nothing secret, so no token is needed for it. The browser may run and load only these files.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache

from dibs.base.errors import AuthenticationFailed, InvalidInput, NotAllowed
from dibs.base.reply import Reply
from dibs.core.caller_rights import Caller
from dibs.core.commands import EndSession
from dibs.core.holds.proof import may_use
from dibs.core.limits import LIST_PAGE_DEFAULT, LIST_PAGE_MAX, LOGIN_FAILURES_MAX
from dibs.core.records import SESSION_PREFIX, SessionRecord
from dibs.engine.activity import Activity
from dibs.engine.queries import begun, live_tickets
from dibs.server.handlers import Api
from dibs.server.http.admission import ClientWindows
from dibs.server.http.browser import cookie_for, has_mark, is_from_own_page
from dibs.server.http.parse import decode_name, name_part, takes, whole_number
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import NO_CONTENT, HttpError, answer_document, answer_for, answer_text, encoded
from dibs.server.routes.introduction import introduction
from dibs.server.routes.operations import SESSION_BEGINNING, routed
from dibs.server.routes.table import Table
from dibs.wire.credentials import whoami_document
from dibs.wire.documents import reply_to
from dibs.wire.lease_documents import activity_document, short_session, waiters_document
from dibs.wire.requests import shape
from dibs.wire.values import text_of

# POST /login, POST /logout and GET /whoami: a browser's login by token (`http/browser.py`), and who the caller is.


def login_routes(api: Api) -> Table:
    routes = LoginRoutes(api)
    return routed({"login": routes.login, "logout": routes.logout, "whoami": routes.whoami})


class LoginRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._failures = ClientWindows(LOGIN_FAILURES_MAX, "failed logins")

    async def login(self, call: HttpRequest) -> Reply:
        document = shape("login", await call.json())
        if b"origin" in call.headers or b"sec-fetch-site" in call.headers:
            _check_page(call)  # else a foreign page could log the browser in with a token of its own
        token = (text_of(document, "token") or "").strip()
        authorization = b"Bearer " + token.encode()
        try:
            caller = self._api.caller_for("login", {b"authorization": authorization})
        except AuthenticationFailed:
            self._failures.count(call.client)  # after it was looked at: wrong tokens cost the right one nothing
            raise
        answer = answer_document(whoami_document(caller, self._api.guard.ends_ms(authorization)))
        answer.headers = {"set-cookie": cookie_for(token, call.scheme)}
        return answer

    async def logout(self, call: HttpRequest) -> Reply:
        """Clear the cookie. It needs no credential: a cookie that is no longer valid is cleared, too."""
        _check_page(call)
        if not has_mark(call.headers):
            raise NotAllowed("Send the header X-Dibs-Request: 1 to log out.")
        return Reply(NO_CONTENT, headers={"set-cookie": cookie_for("", call.scheme)})

    async def whoami(self, call: HttpRequest) -> Reply:
        caller = self._api.caller_for("whoami", call.headers)
        ends_ms = self._api.guard.ends_ms(call.headers.get(b"authorization"))
        return answer_document(whoami_document(caller, ends_ms))


def _check_page(call: HttpRequest) -> None:
    if not is_from_own_page(call.method, call.scheme, call.headers):
        raise NotAllowed("Only a page of this server may do this.")


# What the board asks beside the lists: who waits, what the last hour was like; and how an operator ends a session.

_BEGINNING = re.compile(SESSION_BEGINNING)


def board_routes(api: Api) -> Table:
    routes = BoardRoutes(api)
    return routed({"waiters": routes.waiters, "activity": routes.activity, "session-break": routes.break_session})


class BoardRoutes:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._activity = Activity(api.engine.store)

    async def waiters(self, call: HttpRequest) -> Reply:
        ns, asked = self._api.reader("waiters", call.query, call.headers)
        prefix, after = name_part(asked, "prefix"), name_part(asked, "after")
        limit = whole_number(asked, "limit", LIST_PAGE_DEFAULT, 1, LIST_PAGE_MAX)
        store = self._api.engine.store
        page = await self._api.in_reader(lambda: live_tickets(store, ns, prefix, after, limit))
        return answer_document(waiters_document(page))

    async def activity(self, call: HttpRequest) -> Reply:
        ns, _ = self._api.reader("activity", call.query, call.headers)
        hour = await self._api.in_reader(lambda: self._activity.hour(ns))
        held, stuck = self._api.engine.tally.live_in(ns), self._api.engine.tally.stuck_in(ns)
        return answer_document(activity_document(hour, held, stuck))

    async def break_session(self, call: HttpRequest) -> Reply:
        """An operator ends somebody's session. The whole id would prove the session, so its beginning names it."""
        document = shape("session-break", await call.json(self._api.caller_of))
        caller = self._api.caller_for("session-break", call.headers)
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
            return encoded(reply)
        return answer_for(outcome, "session-break")

    def _find(self, beginning: str, caller: Caller) -> str:
        if not _BEGINNING.fullmatch(beginning):
            raise InvalidInput("Name the session by the first 8 characters of its id.")
        begun(self._api.engine.store)
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


PAGE = "index.html"
_NOT_MODIFIED = 304
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "dashboard")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # ask each time; the tag makes that cheap
}


def dashboard_routes(api: Api) -> Table:
    text = introduction(api)

    def page(call: HttpRequest) -> Reply:
        # A server in the place of another program's has a page here for everybody, as that has.
        is_page = api.settings.contract is not None or takes(call.headers.get(b"accept", b""), b"text/html")
        return _file(call) if is_page else text

    return routed({"dashboard": page, "dashboard-file": _file})


def _file(call: HttpRequest) -> Reply:
    file = _files().get(PAGE if call.path == b"/" else decode_name(call.raw_name))
    if file is None:
        raise HttpError("The dashboard has no such file.", 404, code="not_found")
    known = [tag.strip().removeprefix(b"W/") for tag in call.headers.get(b"if-none-match", b"").split(b",")]
    return Reply(_NOT_MODIFIED, headers=file.headers) if file.headers["etag"].encode() in known else file


@cache
def _files() -> dict[str, Reply]:
    """All files, read once. Only what is in the folder can be asked for, by its whole name."""
    found = {}
    for name in os.listdir(_FOLDER):
        kind = _TYPES.get(os.path.splitext(name)[1])
        if kind is not None:
            with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
                text = file.read()
            tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
            varies = {"vary": "accept"} if name == PAGE else {}
            found[name] = answer_text(text, f"{kind}; charset=utf-8", {**_HEADERS, **varies, "etag": tag})
    return found
