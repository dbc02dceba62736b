"""Reply documents about held jobs, releases, reads and operators' commands. Those for claims are in `documents.py`."""

from __future__ import annotations

from dibs.core import lease_outcomes, outcomes
from dibs.wire.inspect import acl_document, status_document
from dibs.wire.parts import lease_document, previous_document, timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Document = dict[str, Any]


def freed(outcome: lease_outcomes.Freed) -> Document:
    return {"name": outcome.name, "freed": outcome.was_parked}


def left(outcome: outcomes.Left) -> Document:
    return {"name": outcome.name, "left": outcome.was_in}


def transferred(outcome: lease_outcomes.Transferred) -> Document:
    lease = outcome.lease
    return {
        "status": "transferred",
        **lease_document(outcome.name, lease, outcome.now_ms),
        "checkpoint": lease.checkpoint,
    }


def session_document(outcome: lease_outcomes.SessionState) -> Document:
    """A session, as its owner sees it."""
    session = outcome.session
    return {
        "session_id": session.id,
        "user_id": session.principal,
        "owner": session.owner,
        "metadata": session.metadata,
        "since": timestamp(session.since_ms),
        "expires_at": timestamp(session.expires_ms),
        "remaining_ms": max(0, session.expires_ms - outcome.now_ms) if outcome.live else 0,
        "ttl_seconds": session.ttl_ms // 1000,
        "keepalive_interval_secs": max(1, session.ttl_ms // 2000),
        "active": outcome.live,
        "lock_count": len(outcome.holds),
        "holds": [
            {
                "name": hold.name,
                "namespace": hold.ns,
                "fencing_token": hold.holder.token,
                "mode": hold.holder.mode,
                "remaining_ms": max(0, hold.holder.expires_ms - outcome.now_ms),
                "waiting": hold.waiting,
            }
            for hold in outcome.holds
        ],
        "waits": [wait.name for wait in session.waits],
    }


def kept_document(outcome: lease_outcomes.SessionState) -> Document:
    """A session that was renewed, which does not read what it holds. If somebody began to wait for a job of it, that
    is named."""
    document = session_document(outcome)
    del document["lock_count"], document["holds"]
    if outcome.wanted:
        document["wanted"] = [
            {"name": each.name, "namespace": each.ns, "waiting": each.waiting, "new_waiters": each.new}
            for each in outcome.wanted
        ]
    return document


def renewed(outcome: lease_outcomes.Renewed) -> Document:
    document = lease_document(outcome.name, outcome.lease, outcome.now_ms)
    document["checkpoint"] = outcome.lease.checkpoint
    document["waiting"] = outcome.waiting
    document["new_waiters"] = outcome.new
    return document


def released(outcome: lease_outcomes.Released) -> None:
    return None


def failed(outcome: lease_outcomes.Failed) -> Document:
    return {
        "status": "failed",
        "name": outcome.name,
        "failures": outcome.failures,
        "parked": outcome.parked,
        "retry_after_ms": max(0, outcome.until_ms - outcome.now_ms),
        "previous": previous_document(outcome.ending),
    }


def broken(outcome: lease_outcomes.Broken) -> Document:
    return {
        "name": outcome.name,
        "broken": [
            {"owner": holder.owner, "fencing_token": holder.token, "checkpoint": holder.checkpoint}
            for holder in outcome.holders
        ],
    }


def acl_set(outcome: lease_outcomes.AclSet) -> Document:
    return {"name": outcome.name, "acl": acl_document(outcome.acl)}


def status(outcome: outcomes.Status) -> Document:
    document = status_document(outcome.lock, outcome.now_ms, with_acl=True)
    document["waiting"] = outcome.waiting
    if outcome.overlapping:
        document["overlapping"] = [
            {"name": blocker.name, "owner": blocker.holder.owner, "mode": blocker.holder.mode}
            for blocker in outcome.overlapping
        ]
    return document


PRESENT: dict[type[Any], Callable[[Any], Document | None]] = {
    lease_outcomes.Freed: freed,
    outcomes.Left: left,
    lease_outcomes.Transferred: transferred,
    lease_outcomes.SessionState: session_document,
    lease_outcomes.Renewed: renewed,
    lease_outcomes.Released: released,
    lease_outcomes.Failed: failed,
    lease_outcomes.Broken: broken,
    lease_outcomes.AclSet: acl_set,
    outcomes.Status: status,
}
