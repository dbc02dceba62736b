"""The forms of OctoStore: its refusals, its ids, its streams, and request bodies as it reads them.

A body is JSON alone, unknown fields are ignored, and null is the same as left out. A body that cannot be read is
refused before anybody asks who sent it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from typing import Any

from dibs.base.errors import AuthenticationFailed, AuthenticationRequired, DibsError, InvalidInput, NotAllowed
from dibs.base.ids import new_request_id
from dibs.base.jsontext import Document, is_unicode
from dibs.base.reply import Reply
from dibs.core.commands import ClaimPolicy
from dibs.engine.auth import RateLimited
from dibs.server.event_stream import EventStream
from dibs.server.http.parse import FieldTwice
from dibs.server.http.request import HttpRequest, Known
from dibs.server.http.response import UNSUPPORTED, HttpError, answer_for_error, encoded
from dibs.wire import OWN_TYPE
from dibs.wire.codes import CODES
from dibs.wire.values import U32_MAX, token_badge

# Refusals in OctoStore's words: the same status, title, code and details as an OctoStore server gives.

NOT_FOUND = "Resource not found"


class OctoStoreRefusal(DibsError):
    """`title` None: that of the code. Details begin with the title where OctoStore's do."""

    def __init__(
        self, code: str, details: str, *, status: int = 0, title: str | None = None, retry_s: int | None = None
    ) -> None:
        super().__init__(details)
        self.code = code
        self.status = status or CODES[code].http
        self.title = title or CODES[code].title
        self.retry_s = retry_s


def refused(code: str, details: str) -> OctoStoreRefusal:
    return OctoStoreRefusal(code, f"{CODES[code].title}: {details}")


def no_session() -> OctoStoreRefusal:
    return OctoStoreRefusal("not_found", "Session not found", title="Session not found")


def session_over() -> OctoStoreRefusal:
    return OctoStoreRefusal("session_expired", "Session expired")


def not_current(*, is_held: bool) -> OctoStoreRefusal:
    """The lock is somebody else's, or nobody's."""
    details, status = ("Invalid lease ID", 400) if is_held else ("Lease is not current", 404)
    return OctoStoreRefusal("lease_not_current", details, status=status)


def unsupported(status: int) -> OctoStoreRefusal:
    """Return what its framework refuses: the body, the type, the method, the address."""
    if status == 404:
        return OctoStoreRefusal("not_found", NOT_FOUND)
    return OctoStoreRefusal("invalid_input", UNSUPPORTED, status=status)


def answer_refusal(error: Exception) -> Reply:
    """The answer for an error. What OctoStore does not know (a store that is away) is answered in dibs' words."""
    found = _translated(error)
    if not isinstance(found, OctoStoreRefusal):
        return answer_for_error(found)
    body: dict[str, Any] = {
        "code": found.code,
        "details": found.details,
        "error": found.title,
        "request_id": new_request_id(),
    }
    if found.retry_s is not None:
        body["retry_after_ms"] = found.retry_s * 1000
    return encoded(Reply(found.status, body))


def _translated(error: Exception) -> Exception:
    if isinstance(error, AuthenticationRequired):
        return OctoStoreRefusal("authentication_required", "Bearer token required")
    if isinstance(error, AuthenticationFailed):
        return OctoStoreRefusal("authentication_failed", "Authentication failed")
    if isinstance(error, RateLimited):
        seconds = -(-error.retry_after_ms // 1000)
        return OctoStoreRefusal("rate_limited", f"Rate limit exceeded; retry in {seconds} seconds", retry_s=seconds)
    if isinstance(error, NotAllowed):
        return refused("forbidden", error.details)
    if isinstance(error, HttpError) and error.code == "invalid_input":
        return unsupported(error.status)
    if isinstance(error, HttpError) and error.code == "conflict":
        return refused("conflict", error.details)
    if isinstance(error, InvalidInput):
        return refused(error.code, error.details)
    return error


# What OctoStore's contract wants of claims, beyond dibs' own rules.
OCTOSTORE = ClaimPolicy(delays_release=True, one_counter=True)

# The ids that OctoStore shows, made from what dibs has: a user is a principal, a holder is a user or a session.

_USER = b"dibs octostore user\0"
_HOLDER = b"octostore.public-lock-holder.v1\0"


def user_id(principal: str, namespace: str | None) -> str:
    """The id of a principal. It says nothing about the name."""
    return _uuid(hashlib.sha256(_USER + f"{namespace or ''}/{principal}".encode()).digest())


def holder_id(internal: str) -> str:
    """The id that is shown of whoever holds a lock: one-way, because a session's own id is a proof."""
    return _uuid(hashlib.sha256(_HOLDER + bytes.fromhex(internal.replace("-", ""))).digest())


def _uuid(digest: bytes) -> str:
    """A UUID of version 8: custom."""
    raw = bytearray(digest[:16])
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# OctoStore's streams: events without ids, and comments as signs of life.


class PlainStream(EventStream):
    """An event stream without positions. A reader that comes back begins with the state, as it does at OctoStore."""

    def _put(self, seq: int, part: bytes) -> None:
        lines = [line for line in part.split(b"\n") if not line.startswith((b"id: ", b"retry: "))]
        super()._put(seq, b"\n".join(lines).lstrip(b"\n"))


NAME_BYTES_MAX, PART_BYTES_MAX = 256, 64
_CHARACTERS = "alphanumeric characters, hyphens, underscores, dots, and slashes"
TTL_S_DEFAULT = 60
TTL_S_MAX = 3600
METADATA_CHARS_MAX = 1024
DELAY_S_MAX = 30
ACL_ENTRIES_MAX = 100
ACL_ENTRY_BYTES_MAX = 256
USER_CHARS_MAX = 64
UNREADABLE, WRONG_TYPE = 400, 422


async def read_body(call: HttpRequest, known: Known, fields: dict[str, str]) -> Document:
    """The known fields of the body. `fields` has their kinds; "!" marks a required one."""
    if call.headers.get(b"content-type", b"").startswith(OWN_TYPE.encode()):
        raise unsupported(415)  # dibs' own clients ask for rules that are not these
    try:
        document = await call.json(known)
    except HttpError as error:
        raise unsupported(error.status) from None
    except FieldTwice:
        raise unsupported(WRONG_TYPE) from None
    except InvalidInput:
        raise unsupported(UNREADABLE) from None
    if not isinstance(document, dict):
        raise unsupported(WRONG_TYPE)
    found: Document = {}
    for field, kind in fields.items():
        value = document.get(field)
        if value is None:
            if kind.endswith("!"):
                raise unsupported(WRONG_TYPE)
            continue
        found[field] = _read(kind.rstrip("!"), value)
    return found


def _read(kind: str, value: Any) -> Any:
    if kind == "acl":
        kind, value = "texts", value.get("acquire") if isinstance(value, dict) else None
    try:
        if _FITS["text" if kind == "id" else kind](value):
            return str(uuid.UUID(value)) if kind == "id" else value
    except ValueError:
        pass
    raise unsupported(WRONG_TYPE)


_FITS: dict[str, Callable[[Any], bool]] = {
    "number": lambda value: type(value) is int and 0 <= value <= U32_MAX,
    "text": lambda value: isinstance(value, str) and is_unicode(value),
    "texts": lambda value: isinstance(value, list) and all(map(_FITS["text"], value)),
    "flag": lambda value: isinstance(value, bool),
}


def check_lock_name(name: str) -> str:
    parts = name.split("/")
    for is_wrong, rule in (
        (not name, "cannot be empty"),
        (len(name.encode()) > NAME_BYTES_MAX, f"cannot exceed {NAME_BYTES_MAX} characters"),
        ("" in (parts[0], parts[-1]), "cannot start or end with '/'"),
        ("" in parts, "cannot contain consecutive slashes"),
        (".." in parts, "cannot contain '..' path segments"),
        (not all(each.isalnum() or each in "-_./" for each in name), f"can only contain {_CHARACTERS}"),
        (
            any(len(part.encode()) > PART_BYTES_MAX for part in parts),
            f"path components cannot exceed {PART_BYTES_MAX} characters",
        ),
    ):
        if is_wrong:
            raise refused("invalid_lock_name", f"Lock name {rule}")
    return name


def ttl_ms_of(document: Document) -> int:
    seconds: int = document.get("ttl_seconds", TTL_S_DEFAULT)
    if seconds == 0:
        raise refused("invalid_ttl", "TTL must be greater than 0")
    if seconds > TTL_S_MAX:
        raise refused("invalid_ttl", f"TTL cannot exceed {TTL_S_MAX} seconds (1 hour)")
    return seconds * 1000


def metadata_of(document: Document) -> str | None:
    metadata: str | None = document.get("metadata")
    if metadata is not None and len(metadata) > METADATA_CHARS_MAX:
        raise refused("invalid_input", f"Metadata cannot exceed {METADATA_CHARS_MAX} characters")
    return metadata


def delay_ms_of(document: Document) -> int:
    seconds: int = document.get("lock_delay_seconds", 0)
    if seconds > DELAY_S_MAX:
        raise refused("invalid_input", f"lock_delay_seconds must be between 0 and {DELAY_S_MAX}")
    return seconds * 1000


def acl_of(entries: list[str]) -> tuple[str, ...]:
    """The entries as dibs keeps them: names in lower case, tokens as their hashes."""
    if not entries:
        raise refused("invalid_input", "acl.acquire must not be empty")
    if len(entries) > ACL_ENTRIES_MAX:
        raise refused("invalid_input", f"acl.acquire cannot contain more than {ACL_ENTRIES_MAX} principals")
    return tuple(sorted({_entry(entry.strip()) for entry in entries}))


def _entry(entry: str) -> str:
    if len(entry.encode()) > ACL_ENTRY_BYTES_MAX:
        raise refused("invalid_input", f"acl principals cannot exceed {ACL_ENTRY_BYTES_MAX} characters")
    kind, _, value = entry.partition(":")
    if kind == "token" and value:
        return token_badge(value)
    plain = value.replace("-", "a")
    if kind == "user" and len(value) <= USER_CHARS_MAX and plain.isascii() and plain.isalnum():
        return f"user:{value.lower()}"
    raise refused("invalid_input", "acl principals must use user:<github_username> or token:<token>")
