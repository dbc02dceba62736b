"""`dibs serve --octostore`: the operations that OctoStore has are answered as it answers them, and all other operations
of dibs stay as they are. The variables of an OctoStore server are the settings; a malformed one ends the start, as it
does there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dibs.base.errors import InvalidInput
from dibs.base.reply import Reply
from dibs.client.connection import unread
from dibs.compat import Schemas
from dibs.compat.octostore import bodies, locks, routes
from dibs.compat.octostore.admin import user_names
from dibs.compat.octostore.bodies import PlainStream, answer_refusal, unsupported
from dibs.compat.octostore.callers import UserDirectory, fixed_callers
from dibs.compat.octostore.locks import Locks, own_end_ms
from dibs.compat.octostore.routes import Elections, Sessions, Webhooks
from dibs.core import events
from dibs.core.caller_rights import Caller
from dibs.core.commands import Inspect
from dibs.core.limits import PUBLIC_TTL_MS_MAX, PUBLIC_TTL_MS_MIN
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.core.outcomes import Status
from dibs.engine.event_log import EventFilter
from dibs.server.event_stream import EventStream
from dibs.server.handlers import Api
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import ClientGone, HttpError, answer_document
from dibs.server.routes.jobs import change_frame
from dibs.server.routes.operations import DOCUMENTS
from dibs.server.routes.table import Handler, Table
from dibs.server.settings import PublicElections
from dibs.stores.port import maintenance_of
from dibs.wire.answer_fields import ANSWERS, flag, number, part, parts, text, texts
from dibs.wire.documents import expected
from dibs.wire.lease_documents import frame, lock_snapshot
from dibs.wire.operations import ID_PATTERN, JOB, OTHERWISE, Operation, Schema, in_path
from dibs.wire.parts import timestamp
from dibs.wire.values import U32_MAX

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
    for nth, entry in enumerate([each for each in entries if each and not each.startswith("#")], start=1):
        name, colon, token = entry.partition(":")
        name, token = (name.strip(), token.strip()) if colon else (entry, entry)
        if not name or not token or any(character.isspace() for character in token):
            raise InvalidInput(f"{source} has an invalid entry: number {nth}. Write user:token.")
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
            "acquire": locks.acquire,
            "renew": locks.renew,
            "release": locks.release,
            "inspect": locks.inspect,
            "acl": locks.acl,
            "list": locks.listing,
            "session-open": sessions.open,
            "session-keep": sessions.keep,
            "session-show": sessions.show,
            "session-end": sessions.end,
            "webhook-create": hooks.create,
            "webhook-remove": hooks.remove,
            "webhooks": hooks.listing,
            **Elections(self._api).handlers(),
            "watch": self.watch,
            "health": self.health,
            "status": self.status,
        }

    async def watch(self, call: HttpRequest) -> EventStream:
        user = self.callers.user("watch", call)
        name = self.callers.lock_name(call, user)
        self._api.check_open()
        client = call.client
        self._api.streams.check_room(client)
        feed = self._api.engine.feed
        at = await feed.position_now()
        looked = await self._api.engine.batcher.submit(Inspect(ns=DEFAULT_NAMESPACE, name=name))
        state = expected(looked, Status)
        shown: dict[str, Any] = {"status": "free"}
        if state.lock.holders:
            holder = state.lock.holders[0]
            shown = {"status": "held", "fencing_token": holder.token, "expires_at": timestamp(own_end_ms(holder))}
        first = frame(lock_snapshot(name, shown, state.now_ms), at)
        stream = PlainStream(feed, EventFilter(ns=DEFAULT_NAMESPACE, name=name), at, change_frame, first=first)
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
        except Exception as error:
            return answer_refusal(error)

    return handle


# What `/openapi.json` shows of these operations. Fields come from the tables that the handlers read. Pure.

ABOUT = "In OctoStore's form: this server runs with `--octostore`."
# What the fields of answers mean, wherever they are, where it is not what they mean in dibs' own.
_FIELDS = Schemas(
    {
        **{
            name: field
            for fields in reversed([*ANSWERS.values(), *DOCUMENTS.values()])
            for name, field in fields.items()
        },
        "acl": part("who may acquire the lock"),
        "active": flag("whether it is in use"),
        "code": text("what is the matter, for programs"),
        "details": text("the same, for people"),
        "events": texts("which events"),
        "expires_at": text("when it ends without a renewal or a keepalive"),
        "fencing_token": number("rises with every lease of the store; of a free lock, the next one"),
        "id": text("the webhook"),
        "lock_count": number("how many locks it holds"),
        "lock_delay_seconds": number("the delay that its last holder asked for"),
        "lock_pattern": text("of which locks; null: of all"),
        "locks": parts("the locks that are held, each as `GET /locks/{name}` shows it"),
        "metadata": text("of the holder"),
        "name": text("the lock"),
        "prefix": text("with which their names begin"),
        "secret": text("`****` if there is one"),
        "status": text("`acquired`, `held`, `free`, `delayed` or `ok`"),
        "storage": text("`wal`"),
        "total": number("how many"),
        "url": text("where to"),
        "user_id": text("whose it is"),
    }
)
_REFUSED = _FIELDS.of(
    "error",
    "code",
    "details",
    "request_id",
    "retry_after_ms",
    optional=("request_id", "retry_after_ms"),
    title="octostore-refusal",
)
_TAKEN = _FIELDS.of(
    "status", "lease_id", "fencing_token", "expires_at", "renew_after_ms", "metadata", null=("metadata",)
)
_HELD = _FIELDS.of("status", "holder_id", "expires_at", "retry_after_ms", "metadata", null=("metadata",))
_DELAYED = _FIELDS.of("status", "available_at", "lock_delay_seconds", "retry_after_ms")
_WEBHOOK = _FIELDS.of(
    "id",
    "user_id",
    "url",
    "secret",
    "events",
    "lock_pattern",
    "created_at",
    "active",
    null=("secret", "lock_pattern"),
    title="octostore-webhook",
)
# By the id of the operation, then by status. The others answer the same fields in both forms.
_ANSWERS: dict[str, dict[int, Any]] = {
    "acquire": {200: {"oneOf": [_TAKEN, _HELD]}, 409: {"oneOf": [_DELAYED, _REFUSED]}},
    "renew": {200: _FIELDS.of("lease_id", "expires_at", "renew_after_ms")},
    "release": {200: {"type": "null"}},
    "inspect": {
        200: _FIELDS.of(
            "name",
            "status",
            "holder_id",
            "fencing_token",
            "expires_at",
            "metadata",
            "acl",
            null=("holder_id", "expires_at", "metadata"),
            optional=("acl",),
        )
    },
    "list": {200: _FIELDS.of("locks", "total", "prefix", null=("prefix",))},
    "acl": {200: _FIELDS.of("name", "acl")},
    "session-open": {201: _FIELDS.of("session_id", "expires_at", "keepalive_interval_secs")},
    "session-keep": {200: _FIELDS.of("session_id", "expires_at")},
    "session-show": {200: _FIELDS.of("session_id", "user_id", "expires_at", "lock_count", "active")},
    "webhooks": {200: {"type": "array", "items": _WEBHOOK}},
    "webhook-create": {201: _WEBHOOK},
    "health": {200: _FIELDS.of("status", "storage", "db_size_bytes")},
    "status": {
        200: _FIELDS.of("status", "uptime_seconds", "active_locks", "total_users", "total_acquires", "total_releases")
    },
}
_KINDS: dict[str, Schema] = {
    "number": {"type": "integer", "minimum": 0, "maximum": U32_MAX},
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "flag": {"type": "boolean"},
    "id": {"type": "string", "format": "uuid", "pattern": ID_PATTERN},
    "acl": {
        "type": "object",
        "properties": {
            "acquire": {
                "type": "array",
                "items": {"type": "string", "maxLength": bodies.ACL_ENTRY_BYTES_MAX},
                "minItems": 1,
                "maxItems": bodies.ACL_ENTRIES_MAX,
            }
        },
        "required": ["acquire"],
    },
}
_LOCK_TTL = {"minimum": 1, "maximum": bodies.TTL_S_MAX}
_TERM = {"minimum": PUBLIC_TTL_MS_MIN // 1000, "maximum": PUBLIC_TTL_MS_MAX // 1000}
_BOUNDS = {
    ("acquire", "ttl_seconds"): _LOCK_TTL,
    ("renew", "ttl_seconds"): _LOCK_TTL,
    ("campaign", "ttl_seconds"): _TERM,
    ("election-renew", "ttl_seconds"): _TERM,
    ("acquire", "metadata"): {"maxLength": bodies.METADATA_CHARS_MAX},
    ("campaign", "metadata"): {"maxLength": bodies.METADATA_CHARS_MAX},
    ("acquire", "lock_delay_seconds"): {"maximum": bodies.DELAY_S_MAX},
}
_NAME = in_path("name", "The lock, percent-encoded", "issue-42", minLength=1, maxLength=bodies.NAME_BYTES_MAX)
_QUERIES = ("prefix", "window")  # all that it reads


def described(operation: Operation) -> Operation:
    """An operation that OctoStore has, as it has it."""
    fields = {**locks.FIELDS, **routes.FIELDS}.get(operation.id, {})
    answers = {OTHERWISE: _REFUSED, **_ANSWERS.get(operation.id, operation.answers)}
    example = {field: said for field, said in (operation.example or {}).items() if field in fields}
    is_open = operation.is_open or operation.section == "Elections"
    parameters = [each for each in operation.parameters if each.where == "path" or each.name in _QUERIES]
    return operation._replace(
        answers=answers,
        codes=(),
        parameters=tuple([_NAME if each is JOB else each for each in parameters]),
        request=_request(operation.id, fields) if fields else None,
        example=example or None,
        links=tuple(link for link in operation.links if link.to in _ANSWERS),
        is_open=is_open,
        who="" if is_open else operation.who,
        about=f"{operation.about} {ABOUT}".strip(),
        is_foreign=True,
    )


def _request(verb: str, fields: dict[str, str]) -> Schema:
    """A field that may be left out may be null."""
    properties = {}
    for name, kind in fields.items():
        schema = {**_KINDS[kind.rstrip("!")], **_BOUNDS.get((verb, name), {})}
        if not kind.endswith("!"):
            schema["type"] = [schema["type"], "null"]
        properties[name] = schema
    found: Schema = {"type": "object", "properties": properties}
    required = [field for field, kind in fields.items() if kind.endswith("!")]
    return {**found, "required": required} if required else found
