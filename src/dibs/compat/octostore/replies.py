"""A server that speaks OctoStore's contract and is not dibs: what it says of its locks, in dibs' fields. Pure.

Reading is understood. Nothing is ever claimed there: OctoStore takes all who share a token for one owner, so two
workers would both be told yes. A dibs client marks what it sends as `application/x.dibs`, and a server that does not
know that type refuses it before it does anything.
"""

from __future__ import annotations

from dibs.clock import wall_ms
from dibs.wire.parts import instant_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]


def completed(verb: str, body: Document) -> Document:
    """`body` with the fields that dibs has beside OctoStore's. A document of dibs is left as it is."""
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
    """Its clock and ours may differ; it says no more than when the lease ends. 0 when it does not even say that."""
    try:
        text = str(expires_at)
        return max(0, instant_ms(text[:19] + ".000") - wall_ms())
    except ValueError:
        return 0
