"""Reply documents about sessions."""

from __future__ import annotations

from dibs.base.jsontext import Document
from dibs.core.session_outcomes import SessionLease, SessionState
from dibs.wire import parts


def session_document(outcome: SessionState) -> Document:
    """A session, as its owner sees it."""
    session = outcome.session
    return {
        "session_id": session.id,
        "user_id": session.principal,
        "owner": session.owner,
        "metadata": session.metadata,
        "since": parts.timestamp(session.since_ms),
        "expires_at": parts.timestamp(session.expires_ms),
        "remaining_ms": max(0, session.expires_ms - outcome.now_ms) if outcome.live else 0,
        "ttl_seconds": session.ttl_ms // 1000,
        "keepalive_interval_secs": max(1, session.ttl_ms // 2000),
        "active": outcome.live,
        "lock_count": len(outcome.holds),
        "holds": [_session_hold(hold, outcome.now_ms) for hold in outcome.holds],
        "waits": [wait.name for wait in session.waits],
    }


def _session_hold(hold: SessionLease, now_ms: int) -> Document:
    document = {"name": hold.name, "namespace": hold.ns, "fencing_token": hold.holder.token, "mode": hold.holder.mode}
    document |= {"remaining_ms": max(0, hold.holder.expires_ms - now_ms), "waiting": hold.waiting}
    if hold.holder.ends_ms:
        document["ends_in_ms"] = max(0, hold.holder.ends_ms - now_ms)
    return document | parts.slot_fields(hold.holder)


def kept_document(outcome: SessionState) -> Document:
    """A renewed session, without what it holds; with its jobs for which somebody began to wait."""
    document = session_document(outcome)
    del document["lock_count"], document["holds"]
    if outcome.wanted:
        document["wanted"] = [
            {"name": each.name, "namespace": each.ns, "waiting": each.waiting, "new_waiters": each.new}
            for each in outcome.wanted
        ]
    return document
