"""The HTTP request for each verb. Pure: the transports send and receive; `exchange.py` checks the reply.

A lost reply is not lost ownership: renew and release may be repeated, and acquire, transfer and the opening of a
session with the key or fresh id that they have. So when a connection breaks after the request was sent, it is sent
again, within the same deadline (`exchange.py`). A break is not: the second one could hit the next owner. An access list
is not either. A claim that waits in line may take as long as it waits, and more.
"""

from __future__ import annotations

import math

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, Unprocessable
from dibs.base.http1 import header_lines, request_with
from dibs.base.ids import is_id
from dibs.base.jsontext import encode, is_unicode
from dibs.base.traceparent import HEADER as TRACE_HEADER
from dibs.base.traceparent import inherited_traceparent, span_traceparent
from dibs.client.servers import SLICE_MS, Servers
from dibs.client.transport import Ask, JobNamespaces
from dibs.client.urls import ServerAddress, quote
from dibs.core.names import check_name, check_namespace
from dibs.wire import OWN_TYPE

# What may be asked twice without doing it twice, beside what is only read, and what has a field that shows a repeat.
_REPEATABLE = (
    *("renew", "release", "leave", "withdraw", "free", "close", "open"),
    *("session-keep", "session-end"),
    *("token-revoke", "token-limit"),
)
_KEYS = ("request_key", "fresh_lease_id", "fresh_session_id")
_BODILESS = ("GET", "DELETE")
_TOKEN = ("id", "name", "role", "valid")
_WEBHOOK = ("id", "url", "lock_pattern", "active")
_JOB = ("name", "status", "fencing_token")
_LOCKS = "/locks/{}/"
# Of each verb the method, the target ({} is the name), and the least that a reply has, if it has anything: other JSON
# did not come from dibs. A verb that is sent by GET has its fields in the query. What a claim's reply must have depends
# on its status.
VERBS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "renew": ("POST", _LOCKS + "renew", ("lease_id", "remaining_ms")),
    "leave": ("POST", _LOCKS + "leave", ("left",)),
    "withdraw": ("POST", "/locks/withdraw", ("left", "released", "kept")),
    "transfer": ("POST", _LOCKS + "transfer", ("lease_id", "fencing_token", "owner", "remaining_ms")),
    "free": ("POST", _LOCKS + "free", ("freed",)),
    "close": ("POST", _LOCKS + "close", ("name", "until", "reason")),
    "open": ("POST", _LOCKS + "open", ("name", "opened")),
    "inspect": ("GET", "/locks/{}", _JOB),
    "break": ("POST", _LOCKS + "break", ("name", "broken")),
    "acl": ("PUT", _LOCKS + "acl", ("acl",)),
    "pool": ("PUT", _LOCKS + "pool", ("slots", "was")),
    "next": ("POST", _LOCKS + "next", ("name", "number", "owner")),
    "give-back": ("POST", _LOCKS + "give-back", ("number", "returned")),
    "acquire-any": ("POST", "/locks/acquire-any", ()),
    "acquire-all": ("POST", "/locks/acquire-all", ()),
    "list": ("GET", "/locks", ("locks", "next")),
    "history": ("GET", _LOCKS + "history", ("name", "events")),
    "overdue": ("GET", _LOCKS + "overdue", ("name", "status", "overdue_ms")),
    "events": ("GET", "/events", ("events", "next_after")),
    "waiters": ("GET", "/waiters", ("waiters",)),
    "sessions": ("GET", "/sessions", ("sessions",)),
    "agents": ("GET", "/agents", ("agents", "next")),
    "session-open": ("POST", "/sessions", ("session_id", "owner", "remaining_ms", "ttl_seconds")),
    "session-show": ("GET", "/sessions/{}", ("session_id", "owner", "remaining_ms", "active")),
    "session-keep": ("POST", "/sessions/{}/keepalive", ("session_id", "remaining_ms")),
    "session-end": ("DELETE", "/sessions/{}", ()),
    "runs": ("GET", "/gateway/runs", ("runs",)),
    "run-open": ("POST", "/gateway/runs", ("secret", "holder", "namespace")),
    "run-end": ("DELETE", "/gateway/runs/{}", ("holder", "ended", "released")),
    "rights": ("GET", "/rights", ()),
    "whoami": ("GET", "/whoami", ("principal", "role")),
    "health": ("GET", "/health", ()),
    "tokens": ("GET", "/tokens", ("tokens",)),
    "token-create": ("POST", "/tokens", _TOKEN),
    "token-revoke": ("DELETE", "/tokens/{}", ("revoked",)),
    "token-rotate": ("POST", "/tokens/{}/rotate", (*_TOKEN, "token", "replaces")),
    "token-limit": ("POST", "/tokens/{}/limits", ("tokens",)),
    "webhooks": ("GET", "/webhooks", ("webhooks",)),
    "webhook-create": ("POST", "/webhooks", _WEBHOOK),
    "webhook-show": ("GET", "/webhooks/{}", _WEBHOOK),
    "webhook-remove": ("DELETE", "/webhooks/{}", ()),
    "webhook-deliveries": ("GET", "/webhooks/{}/deliveries", ("deliveries",)),
    "webhook-replay": ("POST", "/webhooks/{}/replay", _WEBHOOK),
    "webhook-test": ("POST", "/webhooks/{}/test", ("took_ms",)),
}
# What each entry has in a list of several.
ROW_FIELDS = {
    **dict.fromkeys(("leases", "rest"), ("name", "lease_id", "fencing_token", "expires_at", "remaining_ms")),
    "locks": _JOB,
    "events": ("seq", "at", "event"),
    "sessions": ("session_id",),
    "agents": ("name", "client", "state"),
    "tokens": _TOKEN,
    "revoked": _TOKEN,
    "webhooks": _WEBHOOK,
}


def method_of(asked: Ask) -> str:
    return VERBS[asked.verb][0] if asked.verb in VERBS else "POST"


def is_repeatable(asked: Ask) -> bool:
    """True if asking it twice does not do it twice."""
    known = asked.verb in _REPEATABLE or any(asked.document.get(key) for key in _KEYS)
    return known or method_of(asked) == "GET" or (asked.verb == "run-open" and "secret" in asked.document)


def waits_ms(asked: Ask) -> int:
    """Return how long the other side may wait in line before it answers."""
    waits = asked.document.get("wait_seconds")
    return round(waits * 1000) if isinstance(waits, int | float) else 0


def within(asked: Ask, most_ms: int) -> Ask:
    """The same, waiting in line for no longer than that. The place is kept, and asked for again."""
    if waits_ms(asked) <= most_ms:
        return asked
    return Ask(asked.verb, asked.name, {**asked.document, "wait_seconds": most_ms / 1000})


def target_of(asked: Ask) -> str:
    """Path and query. Raises InvalidInput and InvalidName if it cannot be sent."""
    method, route, _ = VERBS.get(asked.verb) or ("POST", _LOCKS + asked.verb, ())
    target = route.replace("{}", _segment(asked)) if "{}" in route else route
    terms = ""
    if method in _BODILESS:
        terms = _terms(asked)
    elif asked.verb.startswith("token-") and "id" in asked.document:
        terms = f"id={_query(asked.document['id'])}"
    return f"{target}?{terms}" if terms else target


def body_of(asked: Ask) -> bytes | None:
    if method_of(asked) in _BODILESS:
        return None
    document = asked.document
    if asked.verb.startswith("token-") and "id" in document:  # it is in the query
        document = {key: value for key, value in document.items() if key != "id"}
    try:
        return encode(document).encode()
    except UnicodeEncodeError:
        for name in document.get("names", ()):
            check_name(name)
        for field, value in document.items():
            if isinstance(value, str) and not is_unicode(value):
                raise Unprocessable(f"The field {field} must be text.") from None
        raise Unprocessable("The request must be text.") from None


def _segment(asked: Ask) -> str:
    """The name as a part of a target. Names are checked here, too, because a name that is not text cannot be sent."""
    if asked.verb.startswith("session-"):
        if not is_id(asked.name):
            raise InvalidInput("A session id is the UUID that opening the session gave.")
        return asked.name.lower()
    return quote(check_name(asked.name)) if asked.jobs else _query(asked.name)


def _terms(asked: Ask) -> str:
    terms = {key: value for key, value in asked.document.items() if value not in (None, "")}
    if asked.verb == "list" or (asked.verb == "events" and "name" not in terms):
        terms = {"prefix": asked.name, **terms}
    elif asked.verb == "events":
        check_name(terms["name"])
    # A number is a whole one in a query, and rather more than less.
    whole = {key: math.ceil(value) if isinstance(value, float) else value for key, value in terms.items()}
    return "&".join([f"{key}={_query(str(value))}" for key, value in whole.items()])


HEADS_MAX = 64  # servers, tokens and namespaces that a client has at a time, and more


class RequestBuilder:
    """Makes the requests of a transport: for its namespace, and for a connection that stays or not. Each server is sent
    the token that is for it (`ServerAddress.token`), and no other."""

    def __init__(self, servers: Servers, *, naming: JobNamespaces, keep: bool) -> None:
        self.keep = keep
        self.naming = naming
        self.slice_ms = SLICE_MS
        self._servers = servers
        self._inherited = inherited_traceparent()
        self._heads: dict[tuple[str, str | None, str | None], str] = {}

    def request(self, asked: Ask, address: ServerAddress) -> bytes:
        """The bytes of a request. Raises InvalidInput and InvalidName if it cannot be sent."""
        # The path of a unix:// address is the socket's, not a part of what is asked.
        base = "" if address.scheme == "unix" else address.path
        target, body = base + target_of(asked), body_of(asked)
        return request_with(method_of(asked), target, self._lines(asked, address), body, OWN_TYPE)

    def _lines(self, asked: Ask, address: ServerAddress) -> str:
        namespace = self.naming.namespace(asked.jobs)
        if address.renewed is not None:
            address.token = address.renewed()
        place = (address.url, address.token, namespace)
        lines = self._heads.get(place)
        if lines is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()  # of tokens that were replaced
            lines = self._heads[place] = header_lines(self._same_headers(namespace, address))
        if not self._servers.is_one:
            lines += f"X-Dibs-Servers: {len(self._servers)}\r\n"
            store_id = self._servers.store_id(steady_ms())
            if store_id is not None:
                lines += f"X-Dibs-Store: {store_id}\r\n"
        trace = span_traceparent() or self._inherited
        return lines if trace is None else f"{lines}{TRACE_HEADER}: {trace}\r\n"

    def _same_headers(self, namespace: str | None, address: ServerAddress) -> dict[str, str]:
        """Those that are the same for every request to a server in a namespace."""
        headers = {"Host": address.authority, "Accept": "application/json"}
        if not self.keep:
            headers["Connection"] = "close"
        if namespace is not None:
            headers["X-Dibs-Namespace"] = check_namespace(namespace)
        if address.token:
            if not address.token.isascii() or not address.token.isprintable() or " " in address.token:
                raise InvalidInput("The token has invalid characters. Check DIBS_TOKEN or its file.")
            headers["Authorization"] = f"Bearer {address.token}"
        return headers


def _query(text: str) -> str:
    if not is_unicode(text):
        raise InvalidInput("A prefix or name must be valid Unicode.")
    return quote(text)
