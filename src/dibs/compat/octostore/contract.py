"""`dibs serve --octostore`: the operations that OctoStore has are answered as it answers them, and all other operations
of dibs stay as they are. The variables of an OctoStore server are the settings; a malformed one ends the start, as it
does there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dibs.base.errors import InvalidInput
from dibs.client.transport import unread
from dibs.compat.octostore.admin import user_names
from dibs.compat.octostore.bodies import PlainStream, answer_refusal, unsupported
from dibs.compat.octostore.callers import UserDirectory, fixed_callers
from dibs.compat.octostore.description import described
from dibs.compat.octostore.locks import Locks, UnknownOutcome, own_end_ms
from dibs.compat.octostore.routes import Elections, Sessions, Webhooks
from dibs.core import events
from dibs.core.commands import Inspect
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.core.outcomes import Status
from dibs.engine.event_log import EventFilter
from dibs.server.http.response import ClientGone, HttpError, answer_document
from dibs.server.routes.jobs import change_frame
from dibs.server.settings import PublicElections
from dibs.stores.port import maintenance_of
from dibs.wire.lease_documents import frame, lock_snapshot
from dibs.wire.parts import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dibs.base.reply import Reply
    from dibs.core.identity import Caller
    from dibs.server.event_stream import EventStream
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table

BIND_DEFAULT = "127.0.0.1:3000"  # its own default is 0.0.0.0, which other machines reach
ORIGINS = (
    "https://octostore.io",
    "https://www.octostore.io",
    "http://localhost:3000",
    "http://localhost:4173",
    "http://127.0.0.1:4173",
)
ADMIN_PAGES = ("admin-status", "timeseries", "metrics")
OTHERS = ("register", "token-rotate-own")  # dibs' handlers, with OctoStore's refusals
_YES, _NO = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
_ELECTIONS = {
    "rooms": "MAX_PUBLIC_ELECTIONS",
    "requests": "PUBLIC_ELECTION_REQUESTS_PER_MINUTE",
    "streams": "PUBLIC_ELECTION_WATCH_STREAMS_GLOBAL",
    "streams_per_client": "PUBLIC_ELECTION_WATCH_STREAMS_PER_CLIENT",
}
_UNSERVED = ("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET", "OAUTH_DASHBOARD_URL", "ADMIN_USERNAME")


@dataclass(frozen=True)
class OctoStoreContract:
    """Makes a server stand in for OctoStore's own: with its users, as names and tokens, and its admin's key."""

    users: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    says = "users    those of STATIC_TOKENS, and of the store; dibs' own clients may only look"
    tries = "curl -H 'Authorization: Bearer TOKEN'"

    @property
    def callers(self) -> dict[bytes, Caller]:
        return fixed_callers(self.users, self.admin_key)

    def served(self, api: Api, table: Table) -> Table:
        """`table`, with OctoStore's answers where it has the operation."""
        routes = OctoStoreRoutes(api, self.admin_key)
        own = routes.handlers()
        made: Table = []
        for operation, handler in table:
            if operation.id in (*own, *ADMIN_PAGES, *OTHERS):
                # An admin's page: by the admin key, as a header or after `Bearer admin:`, or by dibs' own roles.
                admit = routes.callers.admit_admin if operation.id in ADMIN_PAGES else None
                handler = _in_its_words(own.get(operation.id, handler), admit)
                operation = described(operation)
            made.append((operation, handler))
        return made

    def refusal(self, error: HttpError) -> Reply:
        reply = answer_refusal(unsupported(error.status))
        reply.headers |= {name: value.replace(" ", "") for name, value in error.headers.items()}
        return reply


def settings_from(environ: Mapping[str, str]) -> dict[str, Any]:
    for name in _UNSERVED:
        if environ.get(name):
            raise InvalidInput(f"{name} is for signing in with GitHub, which dibs does not do. Unset it.")
    users = _users(environ)
    admin_key = _text(environ, "ADMIN_KEY")
    if admin_key is not None and any(token == admin_key for _, token in users):
        raise InvalidInput("ADMIN_KEY must not match any configured static bearer token.")
    registers = _flag(environ, "LOCAL_REGISTRATION", False)
    if registers and users:
        raise InvalidInput("LOCAL_REGISTRATION cannot be combined with STATIC_TOKENS or STATIC_TOKENS_FILE.")
    return {
        "bind": environ.get("BIND_ADDR") or BIND_DEFAULT,
        "contract": OctoStoreContract(users=users, admin_key=admin_key),
        "local_registration": registers,
        "public_elections": _elections(environ),
        "cors_origins": ORIGINS,
        # Any other value than these two means no there, too.
        "webhook_allow_private": environ.get("OCTOSTORE_WEBHOOK_ALLOW_PRIVATE_NETWORKS") in ("1", "true"),
        "webhook_ca": _ca_bundle(environ),
    }


def _elections(environ: Mapping[str, str]) -> PublicElections | None:
    if not _flag(environ, "PUBLIC_ELECTIONS", True):
        return None
    plain = PublicElections()
    found = {field: _number(environ, name, getattr(plain, field)) for field, name in _ELECTIONS.items()}
    stream_s = _number(environ, "PUBLIC_ELECTION_WATCH_MAX_SECONDS", plain.stream_ms // 1000)
    return PublicElections(**found, stream_ms=stream_s * 1000)


def _users(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    text = _text(environ, "STATIC_TOKENS")
    if text is not None:
        found += _pairs(text, "STATIC_TOKENS")
    path = _text(environ, "STATIC_TOKENS_FILE")
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                found += _pairs(file.read(), "STATIC_TOKENS_FILE")
        except (OSError, UnicodeDecodeError):
            raise InvalidInput(f"STATIC_TOKENS_FILE {path} cannot be read.") from None
    for several in ([name.lower() for name, _ in found], [token for _, token in found]):
        if len(set(several)) != len(several):
            raise InvalidInput("STATIC_TOKENS names a user or a token twice. Give each user one token of its own.")
    return tuple(found)


def _ca_bundle(environ: Mapping[str, str]) -> str | None:
    """The file with the authorities that targets of webhooks may have besides the system's."""
    path = environ.get("OCTOSTORE_CA_BUNDLE")
    fault = None if path is None else unread("OCTOSTORE_CA_BUNDLE", path)
    if fault is not None:
        raise InvalidInput(fault)
    return path


def _pairs(text: str, source: str) -> list[tuple[str, str]]:
    """`user:token`, or a token alone, with commas or line ends between. No message holds a token."""
    entries = [entry.strip() for line in text.splitlines() for entry in line.split(",")]
    pairs = []
    for number, entry in enumerate([each for each in entries if each and not each.startswith("#")], start=1):
        name, colon, token = entry.partition(":")
        name, token = (name.strip(), token.strip()) if colon else (entry, entry)
        if not name or not token or any(character.isspace() for character in token):
            raise InvalidInput(f"{source} has an invalid entry: number {number}. Write user:token.")
        pairs.append((name, token))
    if not pairs:
        raise InvalidInput(f"{source} must contain at least one token.")
    return pairs


def _text(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name)
    if value is not None and not value.strip():
        raise InvalidInput(f"{name} must not be empty when set.")
    return value


def _flag(environ: Mapping[str, str], name: str, default: bool) -> bool:
    value = environ.get(name)
    if value is None:
        return default
    word = value.strip().lower()
    if word not in (*_YES, *_NO):
        raise InvalidInput(f"{name} must be one of true, false, 1, 0, on, off, yes, or no.")
    return word in _YES


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name)
    if value is None:
        return default
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise InvalidInput(f"{name} must be a positive integer.")
    return int(text)


class OctoStoreRoutes:
    def __init__(self, api: Api, admin_key: str | None) -> None:
        self._api = api
        self.callers = UserDirectory(api, admin_key)

    def handlers(self) -> dict[str, Handler]:
        locks, sessions = Locks(self._api, self.callers), Sessions(self._api, self.callers)
        hooks = Webhooks(self._api, self.callers)
        return {
            **{verb: getattr(locks, verb) for verb in ("acquire", "renew", "release", "inspect", "acl")},
            "list": locks.listing,
            **{f"session-{word}": getattr(sessions, word) for word in ("open", "keep", "show", "end")},
            **{f"webhook-{word}": getattr(hooks, word) for word in ("create", "remove")},
            "webhooks": hooks.listing,
            **Elections(self._api).handlers(),
            **{verb: getattr(self, verb) for verb in ("watch", "health", "status")},
        }

    async def watch(self, call: HttpRequest) -> EventStream:
        user = self.callers.user("watch", call)
        name = self.callers.lock_name(call, user)
        self._api.check_open()
        client = call.client
        self._api.streams.check_room(client)
        feed = self._api.engine.feed
        at = await feed.position_now()
        state = await self._api.engine.batcher.submit(Inspect(ns=DEFAULT_NAMESPACE, name=name))
        shown: dict[str, Any] = {"status": "free"}
        if isinstance(state, Status) and state.lock.holders:
            holder = state.lock.holders[0]
            expires_at = timestamp(own_end_ms(holder))
            shown = {"status": "held", "fencing_token": holder.token, "expires_at": expires_at}
        first = frame(lock_snapshot(name, shown, state.now_ms), at)
        wanted = EventFilter(ns=DEFAULT_NAMESPACE, name=name)
        stream = PlainStream(feed, wanted, at, change_frame, first=first)
        if not user.is_admin:
            stream.is_allowed = self._api.still_allows(call.headers)
        self._api.streams.add(stream, client)
        return stream

    async def health(self, call: HttpRequest) -> Reply:
        """Unlike OctoStore's, it asks the store: 503 if that does not answer."""
        answer = await self._api.health()
        if answer.status != 200:
            return answer
        size = await self._api.in_reader(lambda: maintenance_of(self._api.engine.store).size_bytes())
        return answer_document({"db_size_bytes": size, "status": "ok", "storage": "wal"})

    async def status(self, call: HttpRequest) -> Reply:
        tally = self._api.engine.tally
        return answer_document(
            {
                "active_locks": tally.live,
                "status": "ok",
                "total_acquires": tally.kinds[events.ACQUIRED],
                "total_releases": tally.kinds[events.RELEASED],
                "total_users": len(user_names(self._api.guard, self._api.settings.contract)),
                "uptime_seconds": self._api.engine.uptime_ms() // 1000,
            }
        )


def _in_its_words(handler: Handler, admit: Callable[[HttpRequest], None] | None) -> Handler:
    async def handle(call: HttpRequest) -> Reply | EventStream:
        try:
            if admit is not None:
                admit(call)  # the handler finds an admin's token in the request then
            answer: Reply | EventStream = await handler(call)
            return answer
        except ClientGone:
            raise
        except UnknownOutcome as unknown:
            return unknown.answer
        except Exception as error:
            return answer_refusal(error)

    return handle
