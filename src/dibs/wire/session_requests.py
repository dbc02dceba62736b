"""Turns a request document about a session into a command. Requests about jobs are in `requests.py`."""

from __future__ import annotations

from dibs.base.errors import InvalidInput, InvalidTtl
from dibs.core import limits
from dibs.core.commands import EndSession, InspectSession, KeepSession, OpenSession
from dibs.wire.shapes import is_id
from dibs.wire.values import fresh_id_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.core.commands import Command
    from dibs.core.identity import Caller

    Document = dict[str, Any]


def open_session(ns: str, document: Document, caller: Caller) -> OpenSession:
    return OpenSession(
        fresh_id=fresh_id_of(document, "fresh_session_id", caller),
        principal=caller.principal,
        owner=text_of(document, "owner") or caller.principal,
        ttl_ms=_session_ttl_ms(document),
        process=text_of(document, "process"),
        metadata=text_of(document, "metadata"),
        ns=ns,
        payer=caller.payer,
        sessions_max=caller.limits.sessions,
        parent=_parent(document),
        bound=caller.namespace,
    )


def _parent(document: Document) -> str | None:
    given: str | None = document.get("parent_id")
    return None if given is None else given.lower()


def _session_ttl_ms(document: Document) -> int:
    """`ttl_ms` as given; raises if it is out of bounds. `ttl_seconds` is clamped, as in OctoStore's contract."""
    if "ttl_ms" not in document:
        asked_ms: int = document.get("ttl_seconds", limits.SESSION_TTL_MS_DEFAULT // 1000) * 1000
        return min(max(asked_ms, limits.SESSION_TTL_MS_MIN), limits.SESSION_TTL_MS_MAX)
    ttl_ms: int = document["ttl_ms"]
    if "ttl_seconds" in document:
        raise InvalidInput("ttl_ms or ttl_seconds, not both.")
    least_ms, most_ms = limits.SESSION_OWN_TTL_MS_MIN, limits.SESSION_OWN_TTL_MS_MAX
    if not least_ms <= ttl_ms <= most_ms:
        raise InvalidTtl(f"ttl_ms is from {least_ms} to {most_ms}; {ttl_ms} was asked for.")
    return ttl_ms


def _keep_session(session_id: str, document: Document, caller: Caller) -> KeepSession:
    ttl_ms = _session_ttl_ms(document) if "ttl_ms" in document else None
    return KeepSession(
        session=_session_id(session_id),
        principal=caller.principal,
        ttl_ms=ttl_ms,
        bound=caller.namespace,
        payer=caller.payer,
        active=document.get("active", False),
    )


def _end_session(session_id: str, _: Document, caller: Caller) -> EndSession:
    return EndSession(session=_session_id(session_id), principal=caller.principal, bound=caller.namespace)


def _show_session(session_id: str, _: Document, caller: Caller) -> InspectSession:
    return InspectSession(session=_session_id(session_id), principal=caller.principal, bound=caller.namespace)


SESSION_BUILDERS: dict[str, Callable[[str, Document, Caller], Command]] = {
    "session-keep": _keep_session,
    "session-end": _end_session,
    "session-show": _show_session,
}


def _session_id(text: str) -> str:
    if not is_id(text):
        raise InvalidInput("A session id is the UUID that opening the session gave.")
    return text.lower()
