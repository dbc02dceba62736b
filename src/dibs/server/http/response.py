"""Replies as HTTP sends them: with the bytes of their body, and an id for the request.

Errors have exactly the keys error, code, details and request_id; where asking later helps, also retry_after_ms and the
Retry-After header, and for a caller without a valid token `help`. An unexpected exception is answered as an internal
error, and logged with the request's id.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import msgspec

from dibs.base.clock import steady_ms
from dibs.base.errors import FATE_UNKNOWN, DibsError, RequestFailed
from dibs.base.ids import new_request_id
from dibs.base.logger import log
from dibs.base.reply import NO_HEADERS, Reply
from dibs.core.outcomes import Outcome
from dibs.wire.codes import CODES
from dibs.wire.documents import reply_for_error, reply_to

Header = tuple[bytes, bytes]
encode = msgspec.json.Encoder().encode
JSON = b"application/json"
NO_STORE = {"cache-control": "no-store"}
UNSUPPORTED = "The request could not be parsed or is not supported by this endpoint"
TOO_MANY = 429
UNKNOWN_CALLER = 401
HELP = "GET /llms.txt and /SKILL.md, without a token."  # for an agent that was given nothing but an address
MISDIRECTED = 421  # a request for another store
NO_CONTENT = 204  # has no body, and no headers about one


# The `HttpRequest` that is being answered, for what is called on the way and is not handed it: the log, and whoever
# knows the caller or the outcome. Known only where somebody observes requests (a log in JSON, `--traces`).
current: ContextVar[Any] = ContextVar("dibs-request", default=None)


def note(**what: str) -> None:
    found = current.get()
    if found is not None:
        for name, value in what.items():
            setattr(found, name, value)


class HttpError(DibsError):
    """The HTTP request is not one that we serve: unknown address, method, media type, too large, or one too many."""

    def __init__(
        self,
        details: str,
        status: int,
        *,
        code: str = "invalid_input",
        headers: dict[str, str] = NO_HEADERS,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(details)
        self.code = code
        self.status = status
        self.headers = headers
        self.retry_after_ms = retry_after_ms


class ClientGone(Exception):
    """The client is gone."""


def answer_for(result: Outcome | BaseException, verb: str = "") -> Reply:
    """The answer for the outcome of `verb`, or for its error. Never raises."""
    if isinstance(result, BaseException):
        return answer_for_error(result)
    try:
        return _answer_with(reply_to(verb, result))
    except Exception as error:
        return answer_for_error(error)


def _answer_with(reply: Reply) -> Reply:
    document = reply.body
    if reply.status == 200:  # as most are
        reply.content = encode(document)
        return reply
    if document is not None and "error" in document:
        document["request_id"] = new_request_id()
    return encoded(reply)


class TroubleLog:
    """Trouble of the store is in the log once in EVERY_MS, however many are refused for it."""

    EVERY_MS = 10_000
    next_ms = 0

    def note(self, request_id: str, error: DibsError) -> None:
        now_ms = steady_ms()
        if now_ms >= self.next_ms:
            self.next_ms = now_ms + self.EVERY_MS
            log.warning("the store: %s (request %s, and others perhaps)", error.details, request_id)


trouble_log = TroubleLog()


def public_reply(error: BaseException) -> Reply:
    """The reply for an error, in words for callers. Trouble between a server and its store is not theirs."""
    reply = reply_for_error(error)
    if reply.body is not None and isinstance(error, DibsError) and error.public is not None:
        reply.body["details"] = f"{error.public} {FATE_UNKNOWN}" if getattr(error, "unknown", False) else error.public
    return reply


def answer_for_error(error: BaseException) -> Reply:
    """The answer for an error, which is counted, and logged if it is a bug."""
    if isinstance(error, RequestFailed):
        note(outcome=error.code)
        return _answer_with(error.reply)
    request_id = new_request_id()
    if isinstance(error, HttpError):
        document = {"error": CODES[error.code].title, "code": error.code, "details": error.details}
        reply = Reply(error.status, document, headers=error.headers)
    else:
        reply = public_reply(error)
    body = reply.body = {**(reply.body or {}), "request_id": request_id}
    if body["code"] == "internal_error":
        log.error("request %s failed", request_id, exc_info=error)
    elif isinstance(error, DibsError) and error.public is not None:
        trouble_log.note(request_id, error)
    note(outcome=body["code"])
    if reply.status == UNKNOWN_CALLER:
        body["help"] = HELP
    retry_after_ms = getattr(error, "retry_after_ms", None)
    if retry_after_ms is not None:
        body["retry_after_ms"] = retry_after_ms
    return encoded(reply)


def answer_document(document: dict[str, Any] | list[Any], status: int = 200) -> Reply:
    return Reply(status, content=encode(document))


def answer_text(text: str, kind: str, more: dict[str, str] = NO_HEADERS) -> Reply:
    """A body that is not JSON. `kind` is its whole content type."""
    return Reply(200, content=text.encode(), headers={"content-type": kind, **more})


def encoded(reply: Reply) -> Reply:
    """A reply as it is sent. An error has its request's id in the headers, too, and the time to come back."""
    document = reply.body
    if document is not None and "request_id" in document:
        later = {"retry-after": str(-(-document["retry_after_ms"] // 1000))} if "retry_after_ms" in document else {}
        reply.headers = {"x-request-id": document["request_id"], **reply.headers, **later}
    if reply.status != NO_CONTENT:
        reply.content = encode(document)
    return reply


def headers_of(reply: Reply, request_id: bytes) -> dict[str, str]:
    """All headers of an answer, but for those that a connection adds (date, connection: close). Nobody on the way keeps
    an answer: it is about now, and it may show a token. Only files of a page say how they are kept."""
    about = {"content-type": JSON.decode(), "content-length": str(len(reply.content))}
    kept = {} if "cache-control" in reply.headers else NO_STORE
    return {
        **({} if reply.status == NO_CONTENT else about),
        "x-request-id": request_id.decode(),
        **kept,
        **reply.headers,
    }
