"""The HTTP request for each verb. Pure: the doors send and receive; `replies.py` checks the reply.

A lost reply is not lost ownership: renew and release may be repeated, and acquire, transfer and the opening of a
session with the key or fresh id that they have. So when a connection breaks after the request was sent, it is sent
again, within the same deadline (`exchange.py`). A break is not: the second one could hit the next owner. An access list
is not either. A claim that waits in line may take as long as it waits, and more.
"""

from __future__ import annotations

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, Unprocessable
from dibs.base.http1 import header_lines, request_with
from dibs.base.jsontext import encode
from dibs.base.traceparent import HEADER as TRACE_HEADER
from dibs.base.traceparent import inherited_traceparent, span_traceparent
from dibs.client.naming import names_of, namespace_for_names
from dibs.client.servers import SLICE_MS
from dibs.client.urls import quote
from dibs.core.names import check_name, check_namespace
from dibs.wire.shapes import OWN_TYPE, is_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.client.naming import Namespaces
    from dibs.client.servers import Servers
    from dibs.client.urls import ServerAddress

    Document = dict[str, Any]

# What may be asked twice without doing it twice. Other verbs may with a field by which a repeat is known.
_REPEATABLE = (
    *("renew", "release", "inspect", "leave", "free"),
    *("session-keep", "session-end", "session-show"),
)
_KEYS = ("request_key", "fresh_lease_id", "fresh_session_id")
_METHODS = {"inspect": "GET", "acl": "PUT", "session-show": "GET", "session-end": "DELETE"}
_TAILS = {"inspect": "", "session-show": "", "session-end": "", "session-keep": "/keepalive"}


class Question:
    """One request before it is bytes. `repeatable`: asking it twice does not do it twice. `names`: the jobs it is
    about, which tell the namespace. `document`: what a claim that waits is made from."""

    __slots__ = ("body", "document", "method", "names", "repeatable", "target", "verb", "waits_ms")

    def __init__(
        self,
        verb: str,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        repeatable: bool = True,
        waits_ms: int = 0,
        names: tuple[object, ...] = (),
        document: Document | None = None,
    ) -> None:
        self.verb = verb
        self.document = document
        self.names = names
        self.method = method
        self.target = target
        self.body = body
        self.repeatable = repeatable
        self.waits_ms = waits_ms

    def within(self, waits_ms: int) -> Question:
        """The same, waiting in line for no longer than that. The place is kept, and asked for again."""
        if self.document is None or self.waits_ms <= waits_ms:
            return self
        body = _body({**self.document, "wait_seconds": waits_ms / 1000})
        return Question(
            self.verb,
            self.method,
            self.target,
            body,
            repeatable=self.repeatable,
            waits_ms=waits_ms,
            names=self.names,
            document=self.document,
        )


def question(verb: str, name: str, document: Document) -> Question:
    """The request for one of the door's verbs. Raises InvalidInput if it cannot be sent."""
    target = _target(verb, name)
    method = _METHODS.get(verb, "POST")
    body = None if method in ("GET", "DELETE") else _body(document)
    waits = document.get("wait_seconds")
    return Question(
        verb,
        method,
        target,
        body,
        repeatable=verb in _REPEATABLE or any(document.get(key) for key in _KEYS),
        waits_ms=round(waits * 1000) if isinstance(waits, int | float) else 0,
        names=names_of(verb, name, document),
        document=document if waits else None,
    )


def list_question(prefix: str, after: str, limit: int, states: tuple[str, ...] = ("held",)) -> Question:
    query = f"?prefix={_query(prefix)}&limit={limit}"
    if states != ("held",):  # the default
        query += f"&status={','.join(states)}"
    if after:
        query += f"&after={_query(after)}"
    return Question("list", "GET", "/locks" + query, names=(prefix,))


def history_question(name: str, limit: int) -> Question:
    target = f"/locks/{quote(check_name(name))}/history?limit={limit}"
    return Question("history", "GET", target, names=(name,))


def events_question(
    prefix: str, name: str | None, after: int | None, limit: int, since_ms: int = 0, *, follow: bool = False
) -> Question:
    """A page of events, or with `follow` a stream of them."""
    about = prefix if name is None else check_name(name)
    query = f"?{'prefix' if name is None else 'name'}={_query(about)}&limit={limit}"
    if after is not None:
        query += f"&after={after}"
    elif since_ms:
        query += f"&since_seconds={-(-since_ms // 1000)}"
    return Question("events", "GET", f"/events{query}&follow={'true' if follow else 'false'}", names=(about,))


def run_question(document: Document) -> Question:
    return Question("run-open", "POST", "/gateway/runs", _body(document))


def end_runs_question(holder: str) -> Question:
    """Not repeatable: a second one could end the holder's next run."""
    return Question("run-end", "DELETE", f"/gateway/runs/{_query(holder)}", repeatable=False)


_TOKEN_ROUTES = {
    "tokens": ("GET", ""),
    "token-create": ("POST", ""),
    "token-revoke": ("DELETE", ""),
    "token-rotate": ("POST", "/rotate"),
    "token-limit": ("POST", "/limits"),
}


def rights_question(after: int, limit: int) -> Question:
    return Question("rights", "GET", f"/rights?after={after}&limit={limit}")


def token_question(verb: str, name: str, wanted_id: str, document: Document) -> Question:
    """A request about the tokens of a server. Reading, revoking and limiting can be repeated; creating a token twice
    makes two."""
    method, tail = _TOKEN_ROUTES[verb]
    target = "/tokens" + (f"/{_query(name)}{tail}" if name else "")
    if wanted_id:
        target += f"?id={_query(wanted_id)}"
    repeatable = verb in ("tokens", "token-revoke", "token-limit")
    return Question(
        verb, method, target, _body(document) if method == "POST" else None, repeatable=repeatable
    )


_WEBHOOK_ROUTES = {
    "webhooks": ("GET", ""),
    "webhook-create": ("POST", ""),
    "webhook-show": ("GET", ""),
    "webhook-remove": ("DELETE", ""),
    "webhook-deliveries": ("GET", "/deliveries"),
    "webhook-replay": ("POST", "/replay"),
    "webhook-test": ("POST", "/test"),
}


def webhook_question(verb: str, webhook_id: str, document: Document) -> Question:
    """A request about webhooks. Creating one twice makes two, and a second replay or test sends once more."""
    method, tail = _WEBHOOK_ROUTES[verb]
    target = "/webhooks" + (f"/{_query(webhook_id)}{tail}" if webhook_id else "")
    body = _body(document) if method == "POST" else None
    return Question(verb, method, target, body, repeatable=method == "GET")


RUNS = Question("runs", "GET", "/gateway/runs")
SESSIONS = Question("sessions", "GET", "/sessions")
WHOAMI = Question("whoami", "GET", "/whoami")
HEALTH = Question("health", "GET", "/health")


class RequestBuilder:
    """How a door speaks to its servers: in which namespace, and whether the connection stays. Each server is sent the
    token that is for it (`ServerAddress.token`), and no other."""

    def __init__(self, servers: Servers, *, namespace: str | Namespaces | None, keep: bool) -> None:
        self.keep = keep
        self.namespaces = namespace
        self.slice_ms = SLICE_MS
        self._servers = servers
        self._inherited = inherited_traceparent()
        self._heads: dict[tuple[str, str | None, str | None], str] = {}

    def request(self, asked: Question, address: ServerAddress) -> bytes:
        # The path of a unix:// address is the socket's, not a part of what is asked.
        base = "" if address.scheme == "unix" else address.path
        lines = self._lines(asked, address)
        return request_with(asked.method, base + asked.target, lines, asked.body, OWN_TYPE)

    def _lines(self, asked: Question, address: ServerAddress) -> str:
        """The headers."""
        namespace = namespace_for_names(self.namespaces, asked.names)
        place = (address.url, address.token, namespace)
        lines = self._heads.get(place)
        if lines is None:
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


def _target(verb: str, name: str) -> str:
    """The target of a verb. Names are checked here, too, because a name that is not text cannot be sent."""
    if verb == "session-open":
        return "/sessions"
    if verb in ("acquire-any", "acquire-all"):
        return f"/locks/{verb}"
    tail = _TAILS.get(verb, "/" + verb)
    if not verb.startswith("session-"):
        return f"/locks/{quote(check_name(name))}{tail}"
    if not is_id(name):
        raise InvalidInput("A session id is the UUID that opening the session gave.")
    return f"/sessions/{name.lower()}{tail}"


def _body(document: Document) -> bytes:
    try:
        return encode(document).encode()
    except UnicodeEncodeError:
        for name in document.get("names", ()):
            check_name(name)
        for field, value in document.items():
            if isinstance(value, str) and not _is_unicode(value):
                raise Unprocessable(f"The field {field} must be text.") from None
        raise Unprocessable("The request must be text.") from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _query(text: str) -> str:
    if not _is_unicode(text):
        raise InvalidInput("A prefix or name must be valid Unicode.")
    return quote(text)
