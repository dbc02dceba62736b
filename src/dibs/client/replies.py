"""Checks that a reply is from dibs. Pure.

A reply that lacks a field, or has one of another type, is from another server or from another version of dibs. It is
refused here, so that no program gets a wrong value.
"""

from __future__ import annotations

from dibs.base.errors import BadReply, DibsError, ServerUnreachable
from dibs.base.jsontext import decode
from dibs.client.transport import NOT_NOW
from dibs.wire.documents import Reply
from dibs.wire.fields import (
    CLAIM_REPLIES,
    LIST,
    NUMBER,
    PREVIOUS_FIELDS,
    REPLIES,
    REPLY_KINDS,
    ROW_FIELDS,
    SEVERAL_REPLIES,
    TEXT,
    is_of_kind,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.base.http1 import RawReply
    from dibs.client.urls import ServerAddress

    Document = dict[str, Any]

UNKNOWN_TYPE = 415
_CLAIMS = ("acquire", "acquire-any", "acquire-all")
_OWN_FIELDS = {"inspect": "owner", "list": "next"}  # a document without it is of another program's server
_FOREIGN = "dibs.compat.octostore.replies"  # completes such a document


def checked_reply(verb: str, raw: RawReply, address: ServerAddress) -> Reply:
    body = document_of(raw, address)
    if raw.status == UNKNOWN_TYPE:
        raise BadReply(f"{address.url} is not a dibs server; nothing was done there. Is the address right?")
    status = body.get("status") if body is not None else None
    own = _OWN_FIELDS.get(verb)
    if body is not None and raw.status < 300 and own is not None and own not in body:
        from dibs.base.annexes import annex

        foreign = annex(_FOREIGN)
        body = body if foreign is None else foreign.completed(verb, body)
    if raw.status < 300 or (verb in _CLAIMS and status in ("delayed", "parked")):
        wanted = _claim_fields(verb, str(status)) if verb in _CLAIMS else REPLIES[verb]
        if not wanted or (body is not None and _has(body, wanted)):
            return Reply(status=raw.status, body=body)
        raise BadReply(
            f"{address.url} answered with JSON that is not from dibs, or from another version of it."
        )
    if body is None or not isinstance(body.get("code"), str):
        raise _not_dibs(raw, address)
    after = raw.headers.get("retry-after", "")
    if after.isdecimal() and len(after) < 7:
        body.setdefault("retry_after_ms", int(after) * 1000)
    return Reply(status=raw.status, body=body)


def _has(body: Document, wanted: tuple[str, ...]) -> bool:
    """Whether all of `wanted` are present, with the right types. A lease must have all its fields; other documents may
    have fewer."""
    sure = "lease_id" in wanted or "session_id" in wanted
    for field in wanted:
        if field not in body:
            return False
        value = body[field]
        if (value is not None or sure) and not is_of_kind(REPLY_KINDS.get(field, TEXT), value):
            return False
        if field in ROW_FIELDS and not all(
            isinstance(row, dict) and _has(row, ROW_FIELDS[field]) for row in value or ()
        ):
            return False
    attempt, previous, skipped = body.get("attempt"), body.get("previous"), body.get("skipped")
    if previous is not None and not _is_previous(previous):
        return False
    if not sure:
        return True
    return (attempt is None or is_of_kind(NUMBER, attempt)) and (skipped is None or is_of_kind(LIST, skipped))


def _is_previous(value: object) -> bool:
    return isinstance(value, dict) and all(key in value for key in PREVIOUS_FIELDS)


def _claim_fields(verb: str, status: str) -> tuple[str, ...]:
    several = SEVERAL_REPLIES.get((verb, status))
    return several or CLAIM_REPLIES.get(status, ("a status that we know",))


def document_of(raw: RawReply, address: ServerAddress) -> Document | None:
    if not raw.body:
        if raw.status < 300:
            return None
        raise _not_dibs(raw, address)
    try:
        document = decode(raw.body.decode())
    except (ValueError, RecursionError):
        raise _not_dibs(raw, address) from None
    if isinstance(document, list):
        return {"webhooks": document}  # the only list without a name, as OctoStore has it
    if document is not None and not isinstance(document, dict):
        raise _not_dibs(raw, address)
    return document


def _not_dibs(raw: RawReply, address: ServerAddress) -> DibsError:
    if 300 <= raw.status < 400 and "location" in raw.headers:
        where = raw.headers["location"][:200]
        return BadReply(
            f"{address.url} redirects to {where!r}. Redirects are not followed; give that as DIBS_URL or --url."
        )
    if raw.status in (502, 503, 504):
        return ServerUnreachable(
            f"Something before {address.url} answered {raw.status}: the server behind it is not up. {NOT_NOW}"
        )
    return BadReply(f"{address.url} answered {raw.status}, but not as dibs does. {NOT_NOW}")
