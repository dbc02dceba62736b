"""OctoStore's pages that every server has: those for an admin, tokens as its users get them, its form of /metrics."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dibs.base.clock import wall_ms
from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, InvalidInput, InvalidName
from dibs.base.files import content
from dibs.base.jsontext import encode
from dibs.base.reply import Reply
from dibs.compat.octostore.bodies import user_id
from dibs.compat.octostore.elections import PUBLIC_NAMESPACE
from dibs.core import events
from dibs.core.caller_rights import ADMIN, AGENT, Caller
from dibs.core.limits import ADMIN_GUESSES_MAX, LIST_PAGE_MAX, MINUTES_KEPT, REGISTRATIONS_MAX
from dibs.core.names import DEFAULT_NAMESPACE, ELECTION_PREFIX, check_namespace
from dibs.core.records import Holder, LockRecord
from dibs.engine.auth import TokenGuard
from dibs.engine.credentials import CredentialAdmin, credentials
from dibs.engine.metrics import RequestCounts
from dibs.engine.queries import claimed
from dibs.engine.tally import Tally
from dibs.server.contract import Contract
from dibs.server.handlers import Api
from dibs.server.http.admission import ClientWindows
from dibs.server.http.parse import parse_query
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import HttpError, answer_document
from dibs.server.monitor.metric_table import Scrape
from dibs.server.plugins import FixedRoutes
from dibs.server.routes.operations import routed
from dibs.wire.answer_fields import Answer, flag, number, numbers, parts, text
from dibs.wire.credentials import digest_of
from dibs.wire.operations import NAMESPACE, Operation, by_id, document_schema, in_query
from dibs.wire.parts import offset_timestamp

KEY_HEADERS = (b"x-admin-key", b"x-octostore-admin-key")
BEARER_ADMIN = b"Bearer admin:"
ELECTIONS = "__election/"  # with which the locks begin that are elections there
ADMIN_PRINCIPAL = "admin key"  # with a blank, so that no token can have this name
WINDOWS_S = {"1h": 3_600, "12h": 43_200, "24h": 86_400, "7d": 604_800}
NAME_CHARS_MAX = 64
STATUS, TIMESERIES, REGISTER, ROTATE = "admin-status", "timeseries", "register", "token-rotate-own"
_TOKEN: Answer = {
    "token": text("the token, shown only here"),
    "user_id": text("an id made from the name"),
    "namespace": text("the only namespace it may use; null: any", null=True),
}
_ANSWERS: dict[str, Answer] = {
    "registered": {
        **_TOKEN,
        "username": text("as given"),
    },
    "rotated": {
        **_TOKEN,
        "github_username": text("the token's name"),
    },
    "admin": {
        "healthy": flag("true"),
        "uptime_seconds": number("since the server started"),
        "active_locks": number("live leases in the namespace"),
        "total_users": number("principals with a token"),
        "total_acquires": number("since the server started"),
        "total_releases": number("since the server started"),
        "locks": parts("`name`, `holder_username`, `metadata`, `fencing_token`, `expires_at`, `ttl_remaining_seconds`"),
        "users": parts("`id`, `github_username` (the principal), `created_at`"),
    },
    "minutes": {
        "window": text("as asked"),
        "timestamps": numbers("the beginnings of minutes, in seconds since 1970"),
        "request_volume": numbers("requests in each minute"),
        "acquire_rates": numbers("new leases in the store"),
        "release_rates": numbers("releases in the store"),
        "active_locks": numbers("live leases in the store at the end of the minute"),
    },
}
_MINUTES = dict(zip(list(_ANSWERS["minutes"])[1:], ("at_s", "requests", "acquires", "releases", "live"), strict=True))
_REGISTERS = {
    "type": "object",
    "properties": {
        "username": {"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX},
        "namespace": {"type": ["string", "null"], "maxLength": NAME_CHARS_MAX},
    },
    "required": ["username"],
}
_WINDOW = in_query("window", "How far back", enum=list(WINDOWS_S), default="1h")
_SCHEMAS = {name: document_schema(fields) for name, fields in _ANSWERS.items()}
OPERATIONS = by_id(
    Operation(
        "GET",
        "/admin/status",
        "admin-status",
        "what is held, and who has a token",
        "Health",
        {200: _SCHEMAS["admin"]},
        parameters=NAMESPACE,
    ),
    Operation(
        "GET",
        "/admin/metrics/timeseries",
        "timeseries",
        "the last minutes of this server, one number for each",
        "Health",
        {200: _SCHEMAS["minutes"]},
        parameters=(_WINDOW,),
    ),
    Operation(
        "POST",
        "/auth/register",
        "register",
        "a token for a name that nobody has",
        "Tokens",
        {200: _SCHEMAS["registered"]},
        is_open=True,
        who="anybody on this machine, if so set",
        codes=("not_found", "conflict", "rate_limited"),
        request=_REGISTERS,
    ),
    Operation(
        "POST",
        "/auth/token/rotate",
        "token-rotate-own",
        "replace the caller's own token by a new one",
        "Tokens",
        {200: _SCHEMAS["rotated"]},
        codes=("conflict", "not_found"),
    ),
)


def open_accounts(api: Api) -> FixedRoutes:
    accounts, pages = Accounts(api), AdminPages(api)
    handlers = {REGISTER: accounts.register, ROTATE: accounts.rotate, STATUS: pages.status}
    return FixedRoutes(routed({**handlers, TIMESERIES: pages.timeseries}, OPERATIONS))


def key_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    for name in KEY_HEADERS:
        if name in headers:
            return headers[name].strip()
    authorization = headers.get(b"authorization", b"").strip()
    return authorization.removeprefix(BEARER_ADMIN) if authorization.startswith(BEARER_ADMIN) else None


def user_names(guard: TokenGuard, contract: Contract | None) -> set[str]:
    """Everybody with a token. OctoStore does not count its admin, nor the server's own token."""
    if contract is None:
        return guard.principals()
    return guard.principals() - {caller.principal for caller in guard.callers() if caller.role == ADMIN}


# In each of the last minutes, what this server saw: requests, new leases, releases, and leases.

MINUTE_S = 60


class Minute(NamedTuple):
    at_s: int  # its beginning, in seconds since 1970
    requests: int
    acquires: int
    releases: int
    live: int


class MinuteSeries:
    """For one event loop. A timer compares running counts once a minute, so a request costs nothing more."""

    def __init__(self, tally: Tally, wall: Callable[[], int] = wall_ms) -> None:
        self._tally = tally
        self._wall = wall
        self._kept: deque[Minute] = deque(maxlen=MINUTES_KEPT)
        self._requests: Callable[[], int] = lambda: 0
        self._before = (0, 0, 0)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, requests: Callable[[], int]) -> None:
        """`requests` counts all requests up to now."""
        self._requests = requests
        self._before = self._counts()
        self._later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def since(self, age_s: int) -> list[Minute]:
        oldest_s = self._wall() // 1000 - age_s
        return [minute for minute in self._kept if minute.at_s >= oldest_s]

    def note(self) -> None:
        now = self._counts()
        requests, acquires, releases = (max(0, new - old) for new, old in zip(now, self._before, strict=True))
        begun_s = self._wall() // 1000 - MINUTE_S // 2  # a timer may come a little early or late
        begun_s -= begun_s % MINUTE_S
        self._kept.append(Minute(begun_s, requests, acquires, releases, self._tally.live))
        self._before = now

    def _counts(self) -> tuple[int, int, int]:
        kinds = self._tally.kinds
        return self._requests(), kinds[events.ACQUIRED], kinds[events.RELEASED]

    def _later(self) -> None:
        wait_s = max(1.0, MINUTE_S - self._wall() / 1000 % MINUTE_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self.note()
        self._later()


class AdminPages:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._minutes = MinuteSeries(api.engine.tally)
        api.on_start.append(self._minutes.start)
        api.on_close.append(self._minutes.stop)
        self._guesses = ClientWindows(ADMIN_GUESSES_MAX, "wrong keys")

    async def status(self, call: HttpRequest) -> Reply:
        caller = self.admit(STATUS, call)
        ns = self._api.namespace_of(caller, parse_query(call.query), call.headers)
        return answer_document(await self._api.in_reader(lambda: self._status(ns, caller.namespace)))

    async def timeseries(self, call: HttpRequest) -> Reply:
        self.admit(TIMESERIES, call)
        window = parse_query(call.query).get("window", "1h")
        if window not in WINDOWS_S:
            raise InvalidInput("window must be one of: 1h, 12h, 24h, 7d")
        minutes = self._minutes.since(WINDOWS_S[window])
        rows = {name: [getattr(each, field) for each in minutes] for name, field in _MINUTES.items()}
        return answer_document({"window": window, **rows})

    def admit(self, verb: str, call: HttpRequest) -> Caller:
        """The caller, who must be an admin: by its token, or by a token as a key, of which few may be wrong."""
        key = key_of(call.headers)
        if key is None:
            return self._api.caller_for(verb, call.headers)
        try:
            return self._api.caller_for(verb, {b"authorization": b"Bearer " + key})
        except (AuthenticationFailed, AuthenticationRequired):
            self._guesses.count(call.client)  # after it was looked at: wrong ones cost the right one nothing
            raise

    def _status(self, ns: str, bound: str | None) -> dict[str, Any]:
        engine = self._api.engine
        spaces = (ns,) if self._api.settings.contract is None else (ns, PUBLIC_NAMESPACE)
        pages = [claimed(engine.store, each, limit=LIST_PAGE_MAX) for each in spaces]
        locks = [each for page in pages for lock in page.locks for each in _rows(lock, page.now_ms)]
        users = self._users(bound)
        return {
            "healthy": True,
            "uptime_seconds": engine.uptime_ms() // 1000,
            "active_locks": engine.tally.live if any(page.next_after for page in pages) else len(locks),
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
        names = user_names(self._api.guard, self._api.settings.contract)
        for caller in self._api.guard.callers():
            if bound in (None, caller.namespace) and caller.principal in names:
                since.setdefault((caller.principal, caller.namespace), started_ms)
        return [
            {"id": user_id(*whose), "github_username": whose[0], "created_at": offset_timestamp(since_ms)}
            for whose, since_ms in sorted(since.items(), key=lambda each: (each[0][0], each[0][1] or ""))
        ]


def _rows(lock: LockRecord, now_ms: int) -> Iterator[dict[str, Any]]:
    for holder in lock.holders:
        yield {
            "name": lock.name,
            "holder_username": "admin" if holder.principal == ADMIN_PRINCIPAL else holder.principal,
            "metadata": holder.metadata,
            "fencing_token": holder.token,
            "expires_at": offset_timestamp(holder.expires_ms),
            "ttl_remaining_seconds": max(0, holder.expires_ms - now_ms) // 1000,
            **(_leader(lock.name, holder) if lock.ns == PUBLIC_NAMESPACE else {}),
        }


def _leader(name: str, holder: Holder) -> dict[str, str]:
    """The leader of a public election, as OctoStore shows it."""
    note = {} if holder.metadata is None else {"metadata": holder.metadata}
    return {
        "name": ELECTIONS + name.removeprefix(ELECTION_PREFIX),
        "holder_username": "unknown",
        "metadata": encode({"candidate_id": holder.owner, **note}),
    }


# Tokens as users of OctoStore get them: by giving a name, where that is allowed, and by replacing their own.

_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
# To OctoStore's clients a namespace is a beginning of names. These two are where their locks and elections are: a user
# of one could see all of them by dibs' own routes.
RESERVED = (DEFAULT_NAMESPACE, PUBLIC_NAMESPACE)
_BEARER = b"Bearer "


class Accounts:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._registering = asyncio.Lock()  # looking whether a name is free, and taking it
        self._requests = ClientWindows(REGISTRATIONS_MAX, "registrations")

    async def register(self, call: HttpRequest) -> Reply:
        if not self._api.settings.local_registration:
            raise HttpError("Resource not found", 404, code="not_found")
        self._api.names.check(call.headers.items(), strict=True)  # whoever has a name gets a token
        name, namespace = _wanted(await call.json())
        self._requests.count(call.client)
        if self._api.settings.contract is not None and namespace in RESERVED:
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

    async def rotate(self, call: HttpRequest) -> Reply:
        caller = self._api.caller_for(ROTATE, call.headers)
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
        if self._api.guard.is_in_file(authorization):  # else the new one would be valid after its line is removed
            raise HttpError(
                "This token is in your operator's file of tokens. Ask for a new line there; nothing was replaced.",
                409,
                code="conflict",
            )
        if self._api.guard.is_signed(authorization):  # else who has it for a minute would have one that never ends
            raise HttpError(
                "This token is one that its issuer signed, for a time. Ask the issuer for the next one.",
                409,
                code="conflict",
            )
        digest = digest_of(authorization.removeprefix(_BEARER).decode("utf-8", "replace"))
        admin = CredentialAdmin(self._api.engine.store, caller)
        token = await self._api.in_reader(lambda: admin.replace_own(digest))
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
    try:
        return name, check_namespace(namespace) if namespace else None
    except InvalidName as error:
        raise InvalidInput(error.details) from None


def _whose(name: str, namespace: str | None) -> dict[str, Any]:
    return {"user_id": user_id(name, namespace), "namespace": namespace}


# OctoStore's endpoint for each of dibs' operations.
_ENDPOINTS = {
    **{verb: verb for verb in ("acquire", "release", "renew", "list")},
    "inspect": "status",
    **dict.fromkeys(("register", "token-rotate-own"), "auth"),
    **dict.fromkeys(("election-open", "campaign", "election-renew", "resign"), "election"),
    **dict.fromkeys(("election-show", "election-watch"), "election"),
}


def metrics_document(scrape: Scrape, guard: TokenGuard, contract: Contract | None = None) -> dict[str, Any]:
    """The numbers for Prometheus in OctoStore's form. With a contract: without operations that it does not have."""
    metrics = scrape.metrics
    endpoints = _by_endpoint(metrics.requests, only_its_own=contract is not None)
    uptime_ms = max(scrape.engine.uptime_ms(), 1)
    requests = sum(sum(counts.counted().classes) for counts in list(metrics.requests.values()))
    return {
        "uptime_seconds": uptime_ms // 1000,
        "total_requests": requests,
        "requests_per_second": round(requests * 1000 / uptime_ms, 2),
        "active_locks": scrape.engine.tally.live,
        "total_users": len(user_names(guard, contract)),
        "endpoints": {verb: _endpoint(counts) for verb, counts in sorted(endpoints.items())},
        "lock_store": {
            "total_acquires": metrics.events[events.ACQUIRED],
            "total_releases": metrics.events[events.RELEASED],
            "total_expirations": metrics.events[events.EXPIRED],
            "cache_hits": 0,  # never counted there, either
            "cache_misses": 0,
        },
        "memory_bytes": _resident_bytes(),
    }


def _resident_bytes() -> int | None:
    """Memory of this process that is in RAM. Linux only."""
    pages = (content("/proc/self/statm") or b"").split()
    return int(pages[1]) * resource.getpagesize() if len(pages) > 1 else None


def _by_endpoint(requests: dict[str, RequestCounts], *, only_its_own: bool) -> dict[str, RequestCounts]:
    """OctoStore's endpoints, which are always there, and those of dibs' operations that it does not have."""
    found = {name: RequestCounts() for name in dict.fromkeys(_ENDPOINTS.values())}
    for verb, counts in list(requests.items()):
        name = _ENDPOINTS.get(verb)
        if name is not None:
            found[name].include(counts.counted())
        elif verb not in found and not only_its_own:
            found[verb] = counts.counted()
    return found


def _endpoint(counts: RequestCounts) -> dict[str, Any]:
    """Times in milliseconds, least and most as whole ones. Percentiles are upper bounds of buckets."""
    durations, count = counts.durations, sum(counts.classes)
    return {
        "count": count,
        "errors": counts.classes[4] + counts.classes[5],
        "avg_ms": _ms(durations.total / max(count, 1)),
        "min_ms": int(min(counts.min_s, counts.max_s) * 1000),
        "max_ms": int(counts.max_s * 1000),
        "p50_ms": _ms(durations.quantile(0.5)),
        "p95_ms": _ms(durations.quantile(0.95)),
        "p99_ms": _ms(durations.quantile(0.99)),
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
