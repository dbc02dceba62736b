"""dibs over HTTP: the same door, asked through a server.

A lost reply is not lost ownership: acquire (with its request key), renew and release may be repeated, so when a
connection breaks after the request was sent, it is sent again, unchanged, within the same deadline. A break is not:
the second one could hit the next owner. A claim that waits in line may take as long as it waits, and more.
"""

from __future__ import annotations

from dibs.client.door import FATE_UNKNOWN
from dibs.client.http1 import Broken, request_bytes
from dibs.client.transport import Deadline, TimedOut, exchange
from dibs.client.urls import quote
from dibs.core.names import check_name, check_namespace
from dibs.errors import BadReply, DibsError, InvalidInput, ServerUnreachable, Unprocessable
from dibs.ids import new_id
from dibs.jsontext import decode, encode
from dibs.wire.documents import Reply, reply_for_error
from dibs.wire.shapes import is_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.client.http1 import RawReply
    from dibs.client.urls import ServerPlace

    Document = dict[str, Any]

RETRIES_MAX = 2
TIMEOUT_MS_DEFAULT = 10_000

_CLAIMS = ("acquire", "acquire-any", "acquire-all")
# What may be asked twice without doing it twice. A claim may with its request key.
_REPEATABLE = ("renew", "release", "inspect", "leave", "free", "session-keep", "session-end", "session-show")
_METHODS = {"inspect": "GET", "acl": "PUT", "session-show": "GET", "session-end": "DELETE"}
_TAILS = {"inspect": "", "session-show": "", "session-end": "", "session-keep": "/keepalive"}
# What an answer has at least, by verb; a claim's by its status. What lacks it is some other server's JSON.
_FIELDS = {
    "renew": ("lease_id", "remaining_ms"),
    "release": (),
    "leave": ("left",),
    "transfer": ("lease_id", "fencing_token", "owner", "remaining_ms"),
    "free": ("freed",),
    "inspect": ("name", "status", "fencing_token"),
    "break": ("name", "broken"),
    "acl": ("acl",),
    "list": ("locks", "next"),
    "history": ("name", "events"),
    "session-open": ("session_id", "owner", "remaining_ms", "ttl_seconds"),
    "session-keep": ("session_id", "remaining_ms"),
    "session-show": ("session_id", "owner", "remaining_ms", "active"),
    "session-end": (),
    "sessions": ("sessions",),
    "run-open": ("secret", "holder", "namespace"),
    "runs": ("runs",),
    "run-end": ("holder", "ended", "released"),
}
_CLAIM_FIELDS = {
    "acquired": (
        "name",
        "lease_id",
        "fencing_token",
        "owner",
        "expires_at",
        "remaining_ms",
        "renew_after_ms",
    ),
    "held": ("name", "owner", "remaining_ms"),
    "queued": ("name", "ticket", "position", "owner", "remaining_ms", "retry_after_ms"),
    "done": ("name", "owner", "done_ms_ago", "retry_after_ms"),
    "delayed": ("name", "retry_after_ms"),
    "parked": ("name", "failures"),
}
# Claiming several says these otherwise.
_SEVERAL_FIELDS = {
    ("acquire-any", "held"): ("refused",),
    ("acquire-all", "held"): ("refused",),
    ("acquire-all", "acquired"): ("leases", "owner", "remaining_ms", "renew_after_ms"),
}


class HttpDoor:
    """A door to a server. `timeout_ms` bounds each call, its retries included."""

    def __init__(
        self,
        place: ServerPlace,
        *,
        token: str | None = None,
        namespace: str | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> None:
        self.place = place
        self._token = token
        self._namespace = namespace
        self._timeout_ms = timeout_ms

    def call(self, verb: str, name: str, document: Document) -> Reply:
        def answer() -> Reply:
            target = _target(verb, name)
            method = _METHODS.get(verb, "POST")
            body = None if method in ("GET", "DELETE") else _body(document)
            repeatable = verb in _REPEATABLE or bool(document.get("request_key"))
            waits = document.get("wait_seconds")
            waits_ms = waits * 1000 if isinstance(waits, int) else 0
            return self._ask(verb, method, target, body, repeatable=repeatable, waits_ms=waits_ms)

        return _reply(answer)

    def claimed(self, prefix: str, after: str, limit: int) -> Reply:
        def answer() -> Reply:
            query = f"?prefix={_query(prefix)}&limit={limit}"
            if after:
                query += f"&after={_query(after)}"
            return self._ask("list", "GET", "/locks" + query)

        return _reply(answer)

    def history(self, name: str, limit: int) -> Reply:
        return _reply(
            lambda: self._ask("history", "GET", f"/locks/{quote(check_name(name))}/history?limit={limit}")
        )

    def sessions(self) -> Reply:
        return _reply(lambda: self._ask("sessions", "GET", "/sessions"))

    def open_run(self, document: Document) -> Reply:
        """Begin a run on a server that serves the gateway. Repeatable, because the secret comes with the request."""

        def answer() -> Reply:
            with_secret = {"secret": new_id(), **document}
            return self._ask("run-open", "POST", "/gateway/runs", _body(with_secret))

        return _reply(answer)

    def runs(self) -> Reply:
        return _reply(lambda: self._ask("runs", "GET", "/gateway/runs"))

    def end_runs(self, holder: str) -> Reply:
        """Not repeatable: what a second one would hit is the next run of that holder."""

        def answer() -> Reply:
            return self._ask("run-end", "DELETE", f"/gateway/runs/{_query(holder)}", repeatable=False)

        return _reply(answer)

    def news(self, timeout_ms: int) -> None:
        """A server tells no news to those who do not wait in line: time passes."""
        from time import sleep

        sleep(timeout_ms / 1000)

    def close(self) -> None:
        """Connections live for one request; there is nothing to let go of."""

    def health(self) -> Document:
        """What GET /health says. Raises what went wrong."""
        raw = self._exchange("GET", "/health", None, repeatable=True)
        document = _document(raw, self.place)
        if document is None:
            raise BadReply(f"{self.place.url} answered /health with nothing.")
        return document

    def _ask(
        self,
        verb: str,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        repeatable: bool = True,
        waits_ms: int = 0,
    ) -> Reply:
        raw = self._exchange(method, target, body, repeatable=repeatable, waits_ms=waits_ms)
        return _understood(verb, raw, self.place)

    def _exchange(
        self, method: str, target: str, body: bytes | None, *, repeatable: bool, waits_ms: int = 0
    ) -> RawReply:
        # The path of a unix:// place is the socket's, not a part of what is asked.
        base = "" if self.place.scheme == "unix" else self.place.path
        request = request_bytes(method, base + target, self._headers(), body)
        deadline = Deadline(self._timeout_ms + waits_ms)
        for left in range(RETRIES_MAX if repeatable else 0, -1, -1):
            try:
                return exchange(self.place, request, deadline)
            except Broken:
                if left == 0:
                    break
            except TimedOut as error:
                if error.sent and not method == "GET":
                    raise ServerUnreachable(f"{error.details} {FATE_UNKNOWN}") from None
                raise
        unknown = "" if method == "GET" else f" {FATE_UNKNOWN}"
        raise ServerUnreachable(f"{self.place.url} closed the connection without an answer.{unknown}")

    def _headers(self) -> dict[str, str]:
        headers = {"Host": self.place.authority, "Accept": "application/json", "Connection": "close"}
        if self._namespace is not None:
            headers["X-Dibs-Namespace"] = check_namespace(self._namespace)
        if self._token:
            if not self._token.isascii() or not self._token.isprintable() or " " in self._token:
                raise InvalidInput(
                    "The token holds characters that no token has. Check DIBS_TOKEN or its file."
                )
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


def _reply(answer: Callable[[], Reply]) -> Reply:
    try:
        return answer()
    except DibsError as error:
        return reply_for_error(error)


def _target(verb: str, name: str) -> str:
    """Where a verb is asked. Names are checked here too, because one that is not text cannot be sent at all."""
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


def _understood(verb: str, raw: RawReply, place: ServerPlace) -> Reply:
    body = _document(raw, place)
    status = body.get("status") if body is not None else None
    if raw.status < 300 or (verb in _CLAIMS and status in ("delayed", "parked")):
        wanted = _claim_fields(verb, str(status)) if verb in _CLAIMS else _FIELDS[verb]
        if not wanted or (body is not None and all(field in body for field in wanted)):
            return Reply(status=raw.status, body=body)
        raise BadReply(
            f"{place.url} answered with JSON that is not from dibs, or from another version of it."
        )
    if body is None or not isinstance(body.get("code"), str):
        raise _not_dibs(raw, place)
    after = raw.headers.get("retry-after", "")
    if after.isdecimal() and len(after) < 7:
        body.setdefault("retry_after_ms", int(after) * 1000)
    return Reply(status=raw.status, body=body)


def _claim_fields(verb: str, status: str) -> tuple[str, ...]:
    several = _SEVERAL_FIELDS.get((verb, status))
    return several or _CLAIM_FIELDS.get(status, ("a status that we know",))


def _document(raw: RawReply, place: ServerPlace) -> Document | None:
    if not raw.body:
        if raw.status < 300:
            return None
        raise _not_dibs(raw, place)
    try:
        document = decode(raw.body.decode())
    except (ValueError, RecursionError):
        raise _not_dibs(raw, place) from None
    if document is not None and not isinstance(document, dict):
        raise _not_dibs(raw, place)
    return document


def _not_dibs(raw: RawReply, place: ServerPlace) -> DibsError:
    if 300 <= raw.status < 400 and "location" in raw.headers:
        where = raw.headers["location"][:200]
        return BadReply(
            f"{place.url} redirects to {where!r}. Redirects are not followed; give that as DIBS_URL or --url."
        )
    if raw.status in (502, 503, 504):
        return ServerUnreachable(
            f"Something before {place.url} answered {raw.status}: the server behind it is not up."
        )
    return BadReply(f"{place.url} answered {raw.status}, but not as dibs does. Check DIBS_URL or --url.")
