"""Replies of a server that speaks OctoStore's contract and is not dibs, translated to dibs' fields. Pure.

A dibs client only reads from such a server and never claims there. OctoStore treats all users of a token as one owner,
so two workers would both get the lock. A dibs client sends the content type `application/x.dibs`; a server that does
not know that type refuses the request and changes nothing.
"""

from __future__ import annotations

from dibs.base.clock import wall_ms
from dibs.base.jsontext import Document
from dibs.wire.parts import instant_ms


def completed(verb: str, body: Document) -> Document:
    """`body` with the fields that dibs adds to OctoStore's. A document of dibs stays unchanged."""
    if verb == "inspect":
        return _lock(body)
    if verb == "list" and "next" not in body and isinstance(body.get("locks"), list):
        locks = [_lock(each) if isinstance(each, dict) else each for each in body["locks"]]
        return {**body, "locks": locks, "next": None}
    return body


def _lock(body: Document) -> Document:
    if "owner" in body or body.get("status") not in ("held", "free"):
        return body
    if body["status"] == "free":
        return {**body, "owner": None, "waiting": 0}
    return {
        **body,
        "owner": body.get("holder_id"),
        "remaining_ms": _remaining_ms(body.get("expires_at")),
        "mode": "exclusive",
        "slots": 1,
        "waiting": 0,
    }


def _remaining_ms(expires_at: object) -> int:
    """Time left by our clock, which may differ from the server's. 0 if it gives no end."""
    try:
        return max(0, instant_ms(str(expires_at)[:19] + ".000") - wall_ms())
    except ValueError:
        return 0
