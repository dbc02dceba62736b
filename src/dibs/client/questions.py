"""What is sent for each verb, and what an answer must have to be one. Pure: the doors send and receive.

A lost reply is not lost ownership: acquire (with its request key), renew and release may be repeated, so when a
connection breaks after the request was sent, it is sent again, unchanged, within the same deadline. A break is not:
the second one could hit the next owner. A claim that waits in line may take as long as it waits, and more.
"""

from __future__ import annotations

from dibs.client.door import FATE_UNKNOWN
from dibs.client.http1 import request_bytes
from dibs.client.transport import TimedOut
from dibs.client.urls import quote
from dibs.core.names import check_name, check_namespace
from dibs.errors import BadReply, DibsError, InvalidInput, ServerUnreachable, Unprocessable
from dibs.jsontext import decode, encode
from dibs.wire.documents import Reply
from dibs.wire.shapes import is_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.client.http1 import RawReply
    from dibs.client.urls import ServerPlace

    Document = dict[str, Any]

RETRIES_MAX = 2

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
_LEASE_FIELDS = ("name", "lease_id", "fencing_token", "expires_at", "remaining_ms")  # one of several
# Claiming several says these otherwise.
_SEVERAL_FIELDS = {
    ("acquire-any", "held"): ("refused",),
    ("acquire-all", "held"): ("refused",),
    ("acquire-all", "acquired"): ("leases", "owner", "remaining_ms", "renew_after_ms"),
}


# What is no text.
_KINDS: dict[str, type] = {
    **dict.fromkeys(("fencing_token", "position", "failures", "attempt", "ttl_seconds"), int),
    **dict.fromkeys(("remaining_ms", "renew_after_ms", "retry_after_ms", "done_ms_ago"), int),
    **dict.fromkeys(("locks", "events", "sessions", "leases", "refused", "broken"), list),
    **dict.fromkeys(("left", "freed", "active"), bool),
    **dict.fromkeys(("acl", "previous"), dict),
}


class Question:
    """One request before it is bytes. `repeatable`: asking it twice does not do it twice."""

    __slots__ = ("body", "method", "repeatable", "target", "verb", "waits_ms")

    def __init__(
        self,
        verb: str,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        repeatable: bool = True,
        waits_ms: int = 0,
    ) -> None:
        self.verb = verb
        self.method = method
        self.target = target
        self.body = body
        self.repeatable = repeatable
        self.waits_ms = waits_ms


def question(verb: str, name: str, document: Document) -> Question:
    """For one of the door's verbs. Raises InvalidInput for what cannot even be sent."""
    target = _target(verb, name)
    method = _METHODS.get(verb, "POST")
    body = None if method in ("GET", "DELETE") else _body(document)
    waits = document.get("wait_seconds")
    return Question(
        verb,
        method,
        target,
        body,
        repeatable=verb in _REPEATABLE or bool(document.get("request_key")),
        waits_ms=waits * 1000 if isinstance(waits, int) else 0,
    )


def list_question(prefix: str, after: str, limit: int) -> Question:
    query = f"?prefix={_query(prefix)}&limit={limit}"
    if after:
        query += f"&after={_query(after)}"
    return Question("list", "GET", "/locks" + query)


def history_question(name: str, limit: int) -> Question:
    return Question("history", "GET", f"/locks/{quote(check_name(name))}/history?limit={limit}")


def run_question(document: Document) -> Question:
    return Question("run-open", "POST", "/gateway/runs", _body(document))


def end_runs_question(holder: str) -> Question:
    """Not repeatable: what a second one would hit is the next run of that holder."""
    return Question("run-end", "DELETE", f"/gateway/runs/{_query(holder)}", repeatable=False)


RUNS = Question("runs", "GET", "/gateway/runs")
SESSIONS = Question("sessions", "GET", "/sessions")
HEALTH = Question("health", "GET", "/health")


class Manner:
    """How a door speaks to its server: as whom, in which namespace, and whether the connection stays."""

    def __init__(self, place: ServerPlace, *, token: str | None, namespace: str | None, keep: bool) -> None:
        self.place = place
        self.keep = keep
        self._token = token
        self._namespace = namespace

    def request(self, asked: Question) -> bytes:
        # The path of a unix:// place is the socket's, not a part of what is asked.
        base = "" if self.place.scheme == "unix" else self.place.path
        return request_bytes(asked.method, base + asked.target, self._headers(), asked.body)

    def _headers(self) -> dict[str, str]:
        headers = {"Host": self.place.authority, "Accept": "application/json"}
        if not self.keep:
            headers["Connection"] = "close"
        if self._namespace is not None:
            headers["X-Dibs-Namespace"] = check_namespace(self._namespace)
        if self._token:
            if not self._token.isascii() or not self._token.isprintable() or " " in self._token:
                raise InvalidInput(
                    "The token holds characters that no token has. Check DIBS_TOKEN or its file."
                )
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


class Tries:
    """Whether to ask once more when no answer came."""

    def __init__(self, place: ServerPlace, asked: Question) -> None:
        self._place = place
        self._asked = asked
        self._left = RETRIES_MAX if asked.repeatable else 0

    def broken(self) -> None:
        """The connection broke. Returns when it may be asked again, raises when not."""
        if self._left == 0:
            unknown = "" if self._asked.method == "GET" else f" {FATE_UNKNOWN}"
            raise ServerUnreachable(
                f"{self._place.url} closed the connection without an answer.{unknown}"
            ) from None
        self._left -= 1

    def timed_out(self, error: TimedOut) -> ServerUnreachable:
        """What to raise when the time is over."""
        if error.sent and self._asked.method != "GET":
            return ServerUnreachable(f"{error.details} {FATE_UNKNOWN}")
        return error


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


def understood(verb: str, raw: RawReply, place: ServerPlace) -> Reply:
    body = document_of(raw, place)
    status = body.get("status") if body is not None else None
    if raw.status < 300 or (verb in _CLAIMS and status in ("delayed", "parked")):
        wanted = _claim_fields(verb, str(status)) if verb in _CLAIMS else _FIELDS[verb]
        if not wanted or (body is not None and _has(body, wanted)):
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


def _has(body: Document, wanted: tuple[str, ...]) -> bool:
    """Whether all of `wanted` is there and of its kind. A lease must say everything; of others, less may be known."""
    if not all(field in body for field in wanted):
        return False
    sure = "lease_id" in wanted or "session_id" in wanted
    more = tuple(field for field in ("attempt", "previous") if sure and body.get(field) is not None)
    if not all(_is_kind(field, body[field]) or (body[field] is None and not sure) for field in wanted + more):
        return False
    leases = body["leases"] if "leases" in wanted else ()
    return all(isinstance(lease, dict) and _has(lease, _LEASE_FIELDS) for lease in leases)


def _is_kind(field: str, value: object) -> bool:
    kind = _KINDS.get(field, str)
    if kind is int:
        return type(value) is int and value >= 0  # True is no number here
    if field == "previous":
        return isinstance(value, dict) and all(
            key in value for key in ("owner", "how", "at", "fencing_token")
        )
    return isinstance(value, kind)


def _claim_fields(verb: str, status: str) -> tuple[str, ...]:
    several = _SEVERAL_FIELDS.get((verb, status))
    return several or _CLAIM_FIELDS.get(status, ("a status that we know",))


def document_of(raw: RawReply, place: ServerPlace) -> Document | None:
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
