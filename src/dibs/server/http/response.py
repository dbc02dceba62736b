"""HTTP responses: a status, a body, an id for the request.

Errors have exactly the keys error, code, details and request_id; where asking later helps, also retry_after_ms and the
Retry-After header. An unexpected exception is answered as an internal error, and logged with the request's id.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dibs.base.errors import DibsError
from dibs.base.ids import new_request_id
from dibs.wire.codes import CODES
from dibs.wire.documents import Reply, document_to, reply_for_error

if TYPE_CHECKING:
    from typing import Any

    from dibs.core.outcomes import Outcome

log = logging.getLogger("dibs")

Header = tuple[bytes, bytes]
encode = msgspec.json.Encoder().encode
JSON = b"application/json"
NO_STORE: Header = (b"cache-control", b"no-store")
UNSUPPORTED = "The request could not be parsed or is not supported by this endpoint"
TOO_MANY = 429
MISDIRECTED = 421  # a request for another store
NO_CONTENT = 204  # has no body, and no headers about one


# The `HttpRequest` that is being answered, for what is called on the way and is not handed it: the log, and whoever
# knows the caller or the outcome. Known only where somebody observes requests (a log in JSON, `--traces`).
current: ContextVar[Any] = ContextVar("dibs-request", default=None)


def note(**what: str) -> None:
    """Add to what is known of the request that is being answered."""
    found = current.get()
    if found is not None:
        for name, value in what.items():
            setattr(found, name, value)


class HttpError(DibsError):
    """The HTTP request is not one that we serve: unknown address, method, media type, or too large."""

    def __init__(
        self, details: str, status: int, *, code: str = "invalid_input", headers: tuple[Header, ...] = ()
    ) -> None:
        super().__init__(details)
        self.code = code
        self.status = status
        self.headers = headers


class ClientGone(Exception):
    """The client is gone."""


class HttpResponse(NamedTuple):
    """A response, without the headers that a connection adds (date, connection: close)."""

    status: int
    body: bytes
    request_id: bytes
    more: tuple[Header, ...] = ()
    kind: bytes = JSON  # of the body

    def headers(self) -> list[Header]:
        """Nobody on the way keeps an answer: it is about now, and it may show a token. Only files of a page say how
        they are kept."""
        more = self.more
        if not any(name == b"cache-control" for name, _ in more):
            more = (NO_STORE, *more)
        if self.status == NO_CONTENT:
            return [(b"x-request-id", self.request_id), *more]
        return [
            (b"content-type", self.kind),
            (b"content-length", str(len(self.body)).encode()),
            (b"x-request-id", self.request_id),
            *more,
        ]


def answer_for(result: Outcome | BaseException, verb: str = "") -> HttpResponse:
    """The response for the outcome of `verb`, or for its error. Never raises."""
    if isinstance(result, BaseException):
        return answer_for_error(result)
    try:
        status, document = document_to(verb, result)
        request_id = new_request_id()
        if status == 200:  # as most are
            return HttpResponse(200, encode(document), request_id.encode())
        if status >= 400 and document is not None and "error" in document:
            document["request_id"] = request_id
        body = b"" if status == NO_CONTENT else encode(document)
        more: tuple[Header, ...] = ()
        if status == TOO_MANY and document is not None:
            more = (_retry_after(document["retry_after_ms"]),)
        return HttpResponse(status, body, request_id.encode(), more)
    except Exception as error:
        return answer_for_error(error)


def answer_document(document: dict[str, Any] | list[Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, encode(document), new_request_id().encode())


def answer_text(text: str, kind: bytes, more: tuple[Header, ...] = ()) -> HttpResponse:
    """A body that is not JSON. `kind` is its whole content type."""
    return HttpResponse(200, text.encode(), new_request_id().encode(), more, kind)


def answer_for_error(error: BaseException) -> HttpResponse:
    reply = reply_for(error)
    body = reply.body or {}
    more = error.headers if isinstance(error, HttpError) else ()
    if "retry_after_ms" in body:
        more = (*more, _retry_after(body["retry_after_ms"]))
    return HttpResponse(reply.status, encode(body), body["request_id"].encode(), more)


def reply_for(error: BaseException) -> Reply:
    """The reply for an error, which is noted, and logged if it is a fault."""
    request_id = new_request_id()
    reply = _refusal(error) if isinstance(error, HttpError) else reply_for_error(error)
    body: dict[str, Any] = {**(reply.body or {}), "request_id": request_id}
    if body["code"] == "internal_error":
        log.error("request %s failed", request_id, exc_info=error)
    note(outcome=body["code"])
    retry_after_ms = getattr(error, "retry_after_ms", None)
    if retry_after_ms is not None:
        body["retry_after_ms"] = retry_after_ms
    return reply.replace(body=body)


def _retry_after(ms: int) -> Header:
    """In whole seconds, rounded up."""
    return b"retry-after", str(-(-ms // 1000)).encode()


def _refusal(error: HttpError) -> Reply:
    body = {"error": CODES[error.code].title, "code": error.code, "details": error.details}
    return Reply(status=error.status, body=body)
