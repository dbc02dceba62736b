"""From an outcome to a reply: status and JSON document. The same over HTTP and embedded.

The fields are those of OctoStore's contract, and ours beside them (docs/reference/http.md lists both). Absolute times
are for people and logs; `remaining_ms`, `renew_after_ms` and `retry_after_ms` are what a client acts on, because
clients' clocks differ from the store's.
"""

from __future__ import annotations

import time

from dibs.core import outcomes
from dibs.core.durations import format_duration
from dibs.core.record import Record
from dibs.wire.codes import OUTCOMES, row_of_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Ending, Holder, Lock

    Document = dict[str, Any]


class Reply(Record):
    """What goes back to the caller. `body` None is JSON null."""

    status: int
    body: dict[str, Any] | None


_SECONDS: dict[int, str] = {}  # a busy server says the same few seconds thousands of times


def timestamp(ms: int) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    text = _SECONDS.get(ms // 1000)
    if text is None:
        year, month, day, hour, minute, second, *_ = time.gmtime(ms // 1000)
        text = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        if len(_SECONDS) >= 256:
            _SECONDS.clear()
        _SECONDS[ms // 1000] = text
    return f"{text}.{ms % 1000:03}Z"


def reply_for(outcome: Outcome) -> Reply:
    """The reply that says `outcome`."""
    row = OUTCOMES[type(outcome)]
    present = _PRESENT.get(type(outcome))
    if present is not None:
        return Reply(status=row.http, body=present(outcome))
    status, details = _refusal(outcome, row.http)
    return Reply(status=status, body=_error(row.title, row.word, details))


def reply_for_error(error: BaseException) -> Reply:
    """The reply for an exception. What is not ours is told as an internal error, without its insides."""
    row = row_of_error(error)
    details = (
        getattr(error, "details", None) or "dibs failed in a way it should not; the server's log says more."
    )
    return Reply(status=row.http, body=_error(row.title, row.word, details))


def _error(title: str, code: str, details: str) -> Document:
    return {"error": title, "code": code, "details": details}


def _acquired(outcome: outcomes.Granted) -> Document:
    lease = outcome.lease
    remaining_ms = lease.expires_ms - outcome.now_ms
    document: Document = {
        "status": "acquired",
        "name": outcome.name,
        "lease_id": lease.lease_id,
        "fencing_token": lease.token,
        "owner": lease.owner,
        "expires_at": timestamp(lease.expires_ms),
        "remaining_ms": remaining_ms,
        "renew_after_ms": remaining_ms // 2,
        "metadata": lease.metadata,
        "attempt": lease.attempt,
    }
    if outcome.previous is not None:
        document["previous"] = _previous(outcome.previous)
    return document


def _held(outcome: outcomes.Held) -> Document:
    # With several holders, the one that ends first is the one worth waiting for.
    holder = min(outcome.holders, key=lambda each: each.expires_ms)
    remaining_ms = holder.expires_ms - outcome.now_ms
    return {
        "status": "held",
        "name": outcome.name,
        **_holder(holder, outcome.now_ms),
        "retry_after_ms": remaining_ms,
    }


def _done(outcome: outcomes.AlreadyDone) -> Document:
    done = outcome.done
    return {
        "status": "done",
        "name": outcome.name,
        "owner": done.owner,
        "done_at": timestamp(done.at_ms),
        "done_ms_ago": outcome.now_ms - done.at_ms,
        "until": timestamp(done.until_ms),
        "retry_after_ms": done.until_ms - outcome.now_ms,
        "fencing_token": done.token,
        "result": done.result,
    }


def _delayed(outcome: outcomes.Delayed) -> Document:
    return {
        "status": "delayed",
        "name": outcome.name,
        "available_at": timestamp(outcome.until_ms),
        "lock_delay_seconds": -(-outcome.delay_ms // 1000),
        "retry_after_ms": outcome.until_ms - outcome.now_ms,
    }


def _renewed(outcome: outcomes.Renewed) -> Document:
    lease = outcome.lease
    remaining_ms = lease.expires_ms - outcome.now_ms
    return {
        "lease_id": lease.lease_id,
        "fencing_token": lease.token,
        "expires_at": timestamp(lease.expires_ms),
        "remaining_ms": remaining_ms,
        "renew_after_ms": remaining_ms // 2,
        "metadata": lease.metadata,
        "checkpoint": lease.checkpoint,
    }


def _released(outcome: outcomes.Released) -> None:
    return None


def _broken(outcome: outcomes.Broken) -> Document:
    return {
        "name": outcome.name,
        "broken": [
            {"owner": holder.owner, "fencing_token": holder.token, "checkpoint": holder.checkpoint}
            for holder in outcome.holders
        ],
    }


def _acl_set(outcome: outcomes.AclSet) -> Document:
    return {"name": outcome.name, "acl": _acl(outcome.acl)}


def _status(outcome: outcomes.Status) -> Document:
    return status_document(outcome.lock, outcome.now_ms, with_acl=True)


def status_document(lock: Lock, now_ms: int, *, with_acl: bool = False) -> Document:
    """How one job stands. `lock` must be settled at `now_ms`."""
    document: Document = {
        "name": lock.name,
        "status": _state(lock, now_ms),
        "holder_id": None,
        "owner": None,
        "fencing_token": lock.token,
        "expires_at": None,
        "metadata": None,
    }
    if lock.holders:
        holder = min(lock.holders, key=lambda each: each.expires_ms)
        document.update(_holder(holder, now_ms))
    if document["status"] == "done" and lock.done is not None:
        document["done"] = {
            "owner": lock.done.owner,
            "at": timestamp(lock.done.at_ms),
            "until": timestamp(lock.done.until_ms),
            "result": lock.done.result,
            "fencing_token": lock.done.token,
        }
    if document["status"] == "delayed":
        document["available_at"] = timestamp(lock.delay_until_ms)
        document["retry_after_ms"] = lock.delay_until_ms - now_ms
    if lock.endings:
        document["previous"] = _previous(lock.endings[0])
    if with_acl and lock.acl:
        document["acl"] = _acl(lock.acl)
    return document


def _state(lock: Lock, now_ms: int) -> str:
    if lock.holders:
        return "held"
    if lock.done is not None and now_ms < lock.done.until_ms:
        return "done"
    return "delayed" if now_ms < lock.delay_until_ms else "free"


def _holder(holder: Holder, now_ms: int) -> Document:
    """A hold as everybody may see it: no lease id, no request key."""
    return {
        "holder_id": holder_id(holder),
        "owner": holder.owner,
        "fencing_token": holder.token,
        "since": timestamp(holder.since_ms),
        "held_ms": now_ms - holder.since_ms,
        "expires_at": timestamp(holder.expires_ms),
        "remaining_ms": holder.expires_ms - now_ms,
        "metadata": holder.metadata,
        "checkpoint": holder.checkpoint,
        "attempt": holder.attempt,
    }


def holder_id(holder: Holder) -> str:
    """A one-way name for a hold's owner, shaped like a UUID: the same for the same credential and owner."""
    import hashlib  # only refusals and listings need it

    text = hashlib.sha256(f"{holder.principal}\0{holder.owner}".encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def _previous(ending: Ending) -> Document:
    document: Document = {
        "owner": ending.owner,
        "how": ending.how,
        "at": timestamp(ending.at_ms),
        "fencing_token": ending.token,
        "checkpoint": ending.checkpoint,
    }
    if ending.reason is not None:
        document["by"] = ending.by
        document["reason"] = ending.reason
    return document


def _acl(entries: tuple[str, ...]) -> Document:
    return {"acquire": ["token:[redacted]" if entry.startswith("token:") else entry for entry in entries]}


def list_document(locks: list[Lock], now_ms: int, prefix: str, after: str | None) -> Document:
    """A page of held jobs. `next` is what to send as `after` for the following page, null on the last."""
    return {
        "locks": [status_document(lock, now_ms) for lock in locks],
        "total": len(locks),
        "prefix": prefix,
        "next": after,
    }


def event_document(event: Event) -> Document:
    """One line of history, without what is empty."""
    document: Document = {"seq": event.seq, "at": timestamp(event.at_ms), "event": event.kind}
    if event.owner:
        document.update(owner=event.owner, fencing_token=event.token, attempt=event.attempt)
    for field in ("metadata", "checkpoint", "result", "by", "reason"):
        value = getattr(event, field)
        if value is not None:
            document[field] = value
    if event.ttl_ms is not None:
        document["ttl_seconds"] = event.ttl_ms // 1000
    if event.done_until_ms is not None:
        document["done_until"] = timestamp(event.done_until_ms)
    return document


def history_document(name: str, events: list[Event]) -> Document:
    return {"name": name, "events": [event_document(event) for event in events]}


def _refusal(outcome: Outcome, status: int) -> tuple[int, str]:
    """HTTP status and the sentence that says what happened and what to do next."""
    if isinstance(outcome, outcomes.NotCurrent):
        # The contract tells "somebody else is in" (400) from "nobody is" (404).
        return (400 if outcome.holders else 404), _why_not_current(outcome)
    if isinstance(outcome, outcomes.KeySpent):
        ago = format_duration(outcome.now_ms - outcome.ending.at_ms)
        return status, (
            f"This request key's lease was {outcome.ending.how} {ago} ago. "
            "Repeating it cannot claim the job again; use a new request key for a new claim."
        )
    return status, _SENTENCES[type(outcome)]


_SENTENCES: dict[type[Record], str] = {
    outcomes.Forbidden: "The job's access list does not allow this.",
    outcomes.AclDiffers: "The job has another access list. Leave acl out, or change it with PUT /locks/{name}/acl.",
    outcomes.NotFound: "There is no such job on record.",
    outcomes.QuotaExceeded: "This token holds as many jobs as it may. Release some, or ask the operator for more.",
}


def _why_not_current(outcome: outcomes.NotCurrent) -> str:
    ending = outcome.ending
    now = f" {outcome.holders[0].owner} has the job now." if outcome.holders else " Nobody has the job now."
    if ending is None:
        return "This lease id does not hold the job." + now
    ago = format_duration(outcome.now_ms - ending.at_ms)
    if ending.how == "broken":
        return f"This lease was broken {ago} ago by {ending.by}: {ending.reason}." + now
    if ending.how == "expired":
        return f"This lease expired {ago} ago: no heartbeat came in time. Stop the work." + now
    return f"This lease was {ending.how} {ago} ago." + now


_PRESENT: dict[type[Any], Callable[[Any], Document | None]] = {
    outcomes.Granted: _acquired,
    outcomes.Held: _held,
    outcomes.AlreadyDone: _done,
    outcomes.Delayed: _delayed,
    outcomes.Renewed: _renewed,
    outcomes.Released: _released,
    outcomes.Broken: _broken,
    outcomes.AclSet: _acl_set,
    outcomes.Status: _status,
}
