"""OctoStore's pages for an admin: what is held, who has a token, and the last minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, InvalidInput
from dibs.compat.octostore.bodies import user_id
from dibs.core import events
from dibs.core.limits import ADMIN_GUESSES_MAX, LIST_PAGE_MAX
from dibs.engine.credentials import credentials
from dibs.engine.queries import claimed
from dibs.server.http.admission import ClientWindows
from dibs.server.http.parse import parse_query
from dibs.server.http.response import answer_document
from dibs.server.routes.health import HEALTH
from dibs.wire.operations import NAMESPACE, Operation, document_schema, in_query
from dibs.wire.parts import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from dibs.core.identity import Caller
    from dibs.core.records import LockRecord
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse
    from dibs.server.routes.table import Table

KEY_HEADERS = (b"x-admin-key", b"x-octostore-admin-key")
BEARER_ADMIN = b"Bearer admin:"
WINDOWS_S = {"1h": 3_600, "12h": 43_200, "24h": 86_400, "7d": 604_800}
STATUS = Operation(
    "GET",
    "/admin/status",
    "admin-status",
    "what is held, and who has a token",
    HEALTH,
    {
        200: document_schema(
            {
                "healthy": ("flag", "true"),
                "uptime_seconds": ("number", "since the server started"),
                "active_locks": ("number", "live leases in the namespace"),
                "total_users": ("number", "principals with a token"),
                "total_acquires": ("number", "since the server started"),
                "total_releases": ("number", "since the server started"),
                "locks": (
                    "list",
                    "`name`, `holder_username`, `metadata`, `fencing_token`, `expires_at`, `ttl_remaining_seconds`",
                ),
                "users": ("list", "`id`, `github_username` (the principal), `created_at`"),
            }
        )
    },
    parameters=NAMESPACE,
)
TIMESERIES = Operation(
    "GET",
    "/admin/metrics/timeseries",
    "timeseries",
    "the last minutes of this server, one number for each",
    HEALTH,
    {
        200: document_schema(
            {
                "window": ("text", "as asked"),
                "timestamps": ("list", "the beginnings of minutes, in seconds since 1970"),
                "request_volume": ("list", "requests in each minute"),
                "acquire_rates": ("list", "new leases in the store"),
                "release_rates": ("list", "releases in the store"),
                "active_locks": ("list", "live leases in the store at the end of the minute"),
            }
        )
    },
    parameters=(in_query("window", "How far back", enum=list(WINDOWS_S), default="1h"),),
)


def routes(api: Api) -> Table:
    pages = AdminPages(api)
    return [(STATUS, pages.status), (TIMESERIES, pages.timeseries)]


def key_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return what came as an admin's key."""
    for name in KEY_HEADERS:
        if name in headers:
            return headers[name].strip()
    authorization = headers.get(b"authorization", b"").strip()
    return authorization.removeprefix(BEARER_ADMIN) if authorization.startswith(BEARER_ADMIN) else None


class AdminPages:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._guesses = ClientWindows(ADMIN_GUESSES_MAX, "wrong keys")

    async def status(self, call: HttpRequest) -> HttpResponse:
        caller = self.admit(STATUS.id, call)
        ns = self._api.namespace_of(caller, parse_query(call.query), call.headers)
        return answer_document(await self._api.in_reader(lambda: self._status(ns, caller.namespace)))

    async def timeseries(self, call: HttpRequest) -> HttpResponse:
        self.admit(TIMESERIES.id, call)
        window = parse_query(call.query).get("window", "1h")
        if window not in WINDOWS_S:
            raise InvalidInput("window must be one of: 1h, 12h, 24h, 7d")
        minutes = self._api.minutes.since(WINDOWS_S[window])
        return answer_document(
            {
                "window": window,
                "timestamps": [each.at_s for each in minutes],
                "request_volume": [each.requests for each in minutes],
                "acquire_rates": [each.acquires for each in minutes],
                "release_rates": [each.releases for each in minutes],
                "active_locks": [each.live for each in minutes],
            }
        )

    def admit(self, verb: str, call: HttpRequest) -> Caller:
        """The caller, who must be an admin: by its token, or by a token as a key. Wrong keys are few, so that a short
        one cannot be guessed."""
        key = key_of(call.headers)
        if key is None:
            return self._api.caller_for(verb, call.headers)
        self._guesses.check(call.client)
        try:
            return self._api.caller_for(verb, {b"authorization": b"Bearer " + key})
        except (AuthenticationFailed, AuthenticationRequired):
            self._guesses.charge(call.client)
            raise

    def _status(self, ns: str, bound: str | None) -> dict[str, Any]:
        engine = self._api.engine
        page = claimed(engine.store, ns, limit=LIST_PAGE_MAX)
        locks = [each for lock in page.locks for each in _rows(lock, page.now_ms)]
        users = self._users(bound)
        return {
            "healthy": True,
            "uptime_seconds": engine.uptime_ms() // 1000,
            "active_locks": len(locks) if page.next_after is None else engine.tally.live,
            "total_users": len(users),
            "total_acquires": engine.tally.kinds[events.ACQUIRED],
            "total_releases": engine.tally.kinds[events.RELEASED],
            "locks": locks,
            "users": users,
        }

    def _users(self, bound: str | None) -> list[dict[str, Any]]:
        """Everybody with a token, in the store or in the server's file. An admin of one namespace sees its own."""
        store = self._api.engine.store
        now_ms = store.read(()).now_ms
        since: dict[tuple[str, str | None], int] = {}
        for each in credentials(store):
            if not each.is_over(now_ms) and bound in (None, each.namespace):
                since.setdefault((each.name, each.namespace), each.since_ms)
        started_ms = now_ms - self._api.engine.uptime_ms()
        for caller in self._api.guard.callers():
            if bound in (None, caller.namespace):
                since.setdefault((caller.principal, caller.namespace), started_ms)
        return [
            {"id": user_id(*whose), "github_username": whose[0], "created_at": _offset(since_ms)}
            for whose, since_ms in sorted(since.items(), key=lambda each: (each[0][0], each[0][1] or ""))
        ]


def _rows(lock: LockRecord, now_ms: int) -> Iterator[dict[str, Any]]:
    for holder in lock.holders:
        yield {
            "name": lock.name,
            "holder_username": holder.principal,
            "metadata": holder.metadata,
            "fencing_token": holder.token,
            "expires_at": _offset(holder.expires_ms),
            "ttl_remaining_seconds": max(0, holder.expires_ms - now_ms) // 1000,
        }


def _offset(ms: int) -> str:
    return timestamp(ms).replace("Z", "+00:00")
