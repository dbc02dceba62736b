"""What OctoStore answers about locks, made from dibs' outcomes and records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.compat.octostore.callers import internal_id
from dibs.compat.octostore.ids import holder_id
from dibs.compat.octostore.refusals import OctoStoreRefusal, conflict, forbidden, no_session, session_over
from dibs.core.outcomes import (
    AclDiffers,
    Delayed,
    Forbidden,
    Granted,
    Held,
    QuotaExceeded,
    SessionOver,
    SessionUnknown,
)
from dibs.server.http.response import HttpResponse, answer_document, answer_for
from dibs.wire.parts import timestamp

if TYPE_CHECKING:
    from typing import Any

    from dibs.core.outcomes import Outcome
    from dibs.core.records import Holder, LockRecord

    Document = dict[str, Any]

LOCKS_MAX = 100  # of one user


def own_end_ms(holder: Holder) -> int:
    """When a lease ends by its own TTL. The end of its session is not shown."""
    return holder.renewed_ms + holder.ttl_ms if holder.ttl_ms else holder.expires_ms


def first_holder(lock: LockRecord) -> Holder | None:
    return lock.holders[0] if lock.holders else None


def acquired_answer(outcome: Outcome) -> HttpResponse:
    if isinstance(outcome, Granted):
        end_ms = own_end_ms(outcome.lease)
        return answer_document(
            {
                "status": "acquired",
                "lease_id": outcome.lease.lease_id,
                "fencing_token": outcome.lease.token,
                "expires_at": timestamp(end_ms),
                "renew_after_ms": max(0, end_ms - outcome.now_ms) // 2,
                "metadata": outcome.lease.metadata,
            }
        )
    if isinstance(outcome, Held) and outcome.blockers:
        holder = outcome.blockers[0].holder
        end_ms = own_end_ms(holder)
        return answer_document(
            {
                "status": "held",
                "holder_id": holder_id(internal_id(holder)),
                "expires_at": timestamp(end_ms),
                "retry_after_ms": max(0, end_ms - outcome.now_ms),
                "metadata": holder.metadata,
            }
        )
    if isinstance(outcome, Delayed):
        document = {
            "status": "delayed",
            "available_at": timestamp(outcome.until_ms),
            "lock_delay_seconds": -(-outcome.delay_ms // 1000),
            "retry_after_ms": outcome.until_ms - outcome.now_ms,
        }
        return answer_document(document, 409)
    raise refusal_of(outcome)


def refusal_of(outcome: Outcome) -> Exception:
    if isinstance(outcome, QuotaExceeded):
        return OctoStoreRefusal("lock_limit_exceeded", f"Lock limit exceeded (max {LOCKS_MAX} per user)")
    if isinstance(outcome, Forbidden):
        return forbidden("caller is not allowed to acquire this lock")
    if isinstance(outcome, AclDiffers):
        return conflict("ACL changed while acquiring the lock")
    if isinstance(outcome, SessionUnknown):
        return no_session()
    if isinstance(outcome, SessionOver):
        return session_over()
    return UnknownOutcome(outcome)


class UnknownOutcome(Exception):
    """An outcome that OctoStore has no word for, such as a parked job: another client's routes made it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.answer = answer_for(outcome)


def lock_document(lock: LockRecord) -> Document:
    holder = first_holder(lock)
    return {
        "name": lock.name,
        "status": "free" if holder is None else "held",
        "holder_id": None if holder is None else holder_id(internal_id(holder)),
        "fencing_token": lock.token if holder is None else holder.token,
        "expires_at": None if holder is None else timestamp(own_end_ms(holder)),
        "metadata": None if holder is None else holder.metadata,
    }
