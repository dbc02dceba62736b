"""Refusals in OctoStore's words: the same status, title, code and details as an OctoStore server gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, DibsError, InvalidInput, NotAllowed
from dibs.base.ids import new_request_id
from dibs.engine.auth import RateLimited
from dibs.server.http.response import UNSUPPORTED, HttpError, HttpResponse, answer_for_error, encode
from dibs.wire.codes import CODES

if TYPE_CHECKING:
    from typing import Any

    from dibs.server.http.response import Header

NOT_FOUND = "Resource not found"


class OctoStoreRefusal(DibsError):
    """`title` None: that of the code. Details begin with the title where OctoStore's do."""

    def __init__(
        self,
        code: str,
        details: str,
        *,
        status: int = 0,
        title: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        super().__init__(details)
        self.code = code
        self.status = status or CODES[code].http
        self.title = title or CODES[code].title
        self.retry_s = retry_s


def invalid(details: str) -> OctoStoreRefusal:
    return OctoStoreRefusal("invalid_input", f"Invalid input: {details}")


def invalid_ttl(details: str) -> OctoStoreRefusal:
    return OctoStoreRefusal("invalid_ttl", f"Invalid TTL: {details}")


def invalid_name(details: str) -> OctoStoreRefusal:
    return OctoStoreRefusal("invalid_lock_name", f"Invalid lock name: {details}")


def forbidden(details: str) -> OctoStoreRefusal:
    return OctoStoreRefusal("forbidden", f"Forbidden: {details}")


def conflict(details: str) -> OctoStoreRefusal:
    return OctoStoreRefusal("conflict", f"Conflict: {details}")


def no_session() -> OctoStoreRefusal:
    return OctoStoreRefusal("not_found", "Session not found", title="Session not found")


def session_over() -> OctoStoreRefusal:
    return OctoStoreRefusal("session_expired", "Session expired")


def lease_taken() -> OctoStoreRefusal:
    return OctoStoreRefusal("lease_not_current", "Invalid lease ID", status=400)


def lease_gone() -> OctoStoreRefusal:
    return OctoStoreRefusal("lease_not_current", "Lease is not current", status=404)


def unsupported(status: int) -> OctoStoreRefusal:
    """Return what its framework refuses: the body, the type, the method, the address."""
    if status == 404:
        return OctoStoreRefusal("not_found", NOT_FOUND)
    return OctoStoreRefusal("invalid_input", UNSUPPORTED, status=status)


def answer_refusal(error: Exception) -> HttpResponse:
    """The answer for an error. What OctoStore does not know (a store that is away, a server that drains) is answered in
    dibs' words."""
    found = _translated(error)
    if not isinstance(found, OctoStoreRefusal):
        return answer_for_error(found)
    request_id = new_request_id()
    body: dict[str, Any] = {
        "code": found.code,
        "details": found.details,
        "error": found.title,
        "request_id": request_id,
    }
    more: tuple[Header, ...] = ()
    if found.retry_s is not None:
        body["retry_after_ms"] = found.retry_s * 1000
        more = ((b"retry-after", str(found.retry_s).encode()),)
    return HttpResponse(found.status, encode(body), request_id.encode(), more)


def _translated(error: Exception) -> Exception:
    if isinstance(error, AuthenticationRequired):
        return OctoStoreRefusal("authentication_required", "Bearer token required")
    if isinstance(error, AuthenticationFailed):
        return OctoStoreRefusal("authentication_failed", "Authentication failed")
    if isinstance(error, RateLimited):
        seconds = -(-error.retry_after_ms // 1000)
        details = f"Rate limit exceeded; retry in {seconds} seconds"
        return OctoStoreRefusal("rate_limited", details, retry_s=seconds)
    if isinstance(error, NotAllowed):
        return forbidden(error.details)
    if isinstance(error, HttpError) and error.code == "invalid_input":
        return unsupported(error.status)
    if isinstance(error, InvalidInput):
        return OctoStoreRefusal(error.code, f"{CODES[error.code].title}: {error.details}")
    return error
