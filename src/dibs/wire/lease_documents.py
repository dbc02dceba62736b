"""Reply documents about held jobs, releases and operators' commands, and for reading jobs, history, lines and the last
hour. Those for claims are in `documents.py`, those about sessions in `session_documents.py`. What is for reading never
holds a lease id."""

from __future__ import annotations

from dibs.base.cheap import Any, Callable
from dibs.base.jsontext import Document, encode
from dibs.core import lease_outcomes, outcomes
from dibs.core.claims.effects import before
from dibs.core.claims.inspect import state_of
from dibs.core.events import CLOSED, LOCK_CHANGES, Event
from dibs.core.holds.capacity import units_of
from dibs.core.holds.closures import longest
from dibs.core.lease_outcomes import TicketPage, TicketState
from dibs.core.names import in_tree
from dibs.core.records import DONE, HELD, PARKED, Closure, Done, LockRecord
from dibs.core.session_outcomes import SessionState
from dibs.core.waiting.tickets import names_of
from dibs.wire import parts
from dibs.wire.session_documents import session_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.successes import LastRun

SESSION_SHOWN = 8  # how much of a session's id everybody may see: it names the session and does not prove it


def short_session(session_id: str) -> str:
    return session_id[:SESSION_SHOWN] + "…"


def waiters_document(page: TicketPage) -> Document:
    return {
        "waiters": [waiter_document(state, page.now_ms) for state in page.tickets],
        "now": parts.timestamp(page.now_ms),
        "next": page.next_after,
    }


def waiter_document(state: TicketState, now_ms: int) -> Document:
    """A place in line: no ticket, which is its proof."""
    ticket = state.ticket
    document: Document = {
        "name": state.ticket.name,
        "owner": state.ticket.owner,
        "position": state.position,
        "since": parts.moment(state.ticket.since_ms),
        "waiting_ms": max(0, now_ms - ticket.since_ms),
        "mode": ticket.mode,
        "units": ticket.units,
        "job_status": state.state,
        "metadata": ticket.metadata,
        "holders": [
            {
                "name": blocker.name,
                "owner": blocker.holder.owner,
                "fencing_token": blocker.holder.token,
                "session": _session(blocker.holder.session),
            }
            for blocker in state.blockers
        ],
        "session": _session(ticket.session),
    }
    if ticket.whole:
        document["names"] = list(names_of(ticket))
    if state.closure is not None:
        document["closed"] = parts.closure_document(state.closure, now_ms)
    return document


def _session(session_id: str | None) -> str | None:
    return None if session_id is None else short_session(session_id)


def activity_document(hour: Any, held: int, stuck: dict[str, int]) -> Document:
    """The events in each minute of the last hour, counted, and how many claims and stuck jobs there are."""
    counted = {"now": parts.moment(hour.now_ms), "since": parts.moment(hour.first_ms), "minutes": hour.counts}
    return {**counted, "held": held, "stuck": stuck, "whole": hour.is_whole}


def status_document(
    lock: LockRecord, now_ms: int, closure: Closure | None = None, *, frozen: bool = False, with_acl: bool = False
) -> Document:
    """The state of one job. Only live holds may be in `lock`."""
    document: Document = {
        "name": lock.name,
        "status": state_of(lock, now_ms, closure, frozen=frozen),
        "holder_id": None,
        "owner": None,
        "fencing_token": lock.token,
        "expires_at": None,
        "metadata": None,
    }
    if lock.holders:
        document.update(parts.holder_document(min(lock.holders, key=lambda each: each.expires_ms), now_ms))
        document["slots"] = lock.slots
        if lock.holders[0].slot_numbers:
            document["slots_taken"] = units_of(lock.holders)
        if len(lock.holders) > 1:
            document["holders"] = [parts.holder_document(each, now_ms) for each in lock.holders]
    if lock.pooled:
        document |= {"slots": lock.slots, "slots_taken": units_of(lock.holders), "pool": True}
    if lock.last_number:
        document["last_number"] = lock.last_number
    if document["status"] == DONE and lock.done is not None:
        document["done"] = done_document(lock.done)
    if document["status"] not in (HELD, PARKED, DONE) and now_ms < lock.delay_until_ms:
        document["available_at"] = parts.timestamp(lock.delay_until_ms)
        document["retry_after_ms"] = lock.delay_until_ms - now_ms
    if lock.endings:
        document["previous"] = parts.previous_document(lock.endings[0])
    if lock.effects:
        document["effects"] = parts.effects_document(lock.effects, lock.holders)
    if with_acl and lock.acl:
        document["acl"] = acl_document(lock.acl)
    if closure is not None:
        document["closed"] = parts.closure_document(closure, now_ms)
    return document


def done_document(done: Done) -> Document:
    return {
        "owner": done.owner,
        "at": parts.moment(done.at_ms),
        "until": parts.moment(done.until_ms),
        "result": done.result,
        "fencing_token": done.token,
    }


def acl_document(entries: tuple[str, ...]) -> Document:
    return {"acquire": ["token:[redacted]" if entry.startswith("token:") else entry for entry in entries]}


def list_document(
    locks: list[LockRecord],
    now_ms: int,
    prefix: str,
    after: str | None,
    closures: tuple[Closure, ...] = (),
    *,
    frozen: bool = False,
    whole: bool = True,
) -> Document:
    """A page of jobs. `next` is what to send as `after` for the following page, null on the last. `total` is null if
    there are more jobs (`next` is set, or not `whole`), because counting them costs as much as listing them."""
    document: Document = {
        "locks": [_listed(lock, now_ms, closures, frozen=frozen) for lock in locks],
        "total": len(locks) if whole and after is None else None,
        "prefix": prefix,
        "next": after,
    }
    near = [each for each in closures if each.name.startswith(prefix) or prefix.startswith(each.name)]
    if near:
        document["closures"] = [parts.closure_document(each, now_ms) for each in near]
    return document


def _listed(lock: LockRecord, now_ms: int, closures: tuple[Closure, ...], *, frozen: bool) -> Document:
    """In a tree all claims have one line, and who waits for which costs a read of its own."""
    closure = longest(closures, lock.ns, lock.name, now_ms) if closures else None
    document = status_document(lock, now_ms, closure, frozen=frozen)
    if not in_tree(lock.name):
        document["waiting"] = len(lock.line)
    return document


def event_document(event: Event) -> Document:
    """One event of history, without empty fields."""
    document: Document = {"seq": event.seq, "at": parts.timestamp(event.at_ms), "event": event.kind}
    if event.owner:
        document.update(owner=event.owner, fencing_token=event.token, attempt=event.attempt, **parts.slot_fields(event))
    texts = {
        "metadata": event.metadata,
        "checkpoint": event.checkpoint,
        "effect_key": event.effect_key,
        "result": event.result,
        "by": event.by,
        "reason": event.reason,
    }
    document |= {field: text for field, text in texts.items() if text is not None}
    if event.ttl_ms is not None:
        document["ttl_seconds"] = event.ttl_ms // 1000
    if event.retry_ms is not None:
        document["retry_after_seconds"] = event.retry_ms // 1000
    if event.done_until_ms is not None:
        document["done_until"] = parts.timestamp(event.done_until_ms)
    if event.uncounted:
        document["uncounted"] = True
    if event.kind == CLOSED and event.until_ms is not None:
        document["until"] = parts.timestamp(event.until_ms)
    return document


def overdue_document(run: LastRun, within_seconds: int) -> Document:
    """Tell whether a job succeeded in time. Nobody can say by how much it is overdue if no success is on record."""
    late_ms, last = run.late_ms(within_seconds * 1000), run.success
    document: Document = {
        "status": "in_time" if late_ms == 0 else "overdue",
        "name": run.name,
        "within_seconds": within_seconds,
        "last_success": None,
        "overdue_ms": late_ms,
    }
    if last is not None:
        document["last_success"] = {
            "at": parts.moment(last.at_ms),
            "ms_ago": run.now_ms - last.at_ms,
            "owner": last.owner,
            "fencing_token": last.token,
            "done": last.done,
            "result": last.result,
        }
    elif run.since_ms is not None:
        document["record_since"] = parts.timestamp(run.since_ms)
    if run.owner is not None:
        document["held_by"], document["held_ms"] = run.owner, run.now_ms - run.held_since_ms
    return document


def history_document(name: str, events: list[Event]) -> Document:
    return {"name": name, "events": [event_document(event) for event in events]}


def named_event(event: Event) -> Document:
    """An event, with the job and namespace that it is about."""
    return {**event_document(event), "name": event.job, "namespace": event.ns}


def gap_document(after: int, oldest: int) -> Document:
    """Events after `after` are not on record any more; `oldest` is the first that is."""
    return {"event": parts.GAP, "after": after, "oldest": oldest}


def events_document(after: int | None, events: list[Event], upto: int, oldest: int | None) -> Document:
    """A page of events after a position. `next_after` is the position after them."""
    gap = None if oldest is None else gap_document(after or 0, oldest)
    return {"events": [named_event(event) for event in events], "next_after": upto, "gap": gap}


# Events of a stream, as server-sent frames. `client/event_reader.py` reads them.


def frame(document: Document, seq: int, kind: str = "") -> bytes:
    """One event of a stream. JSON has no line ends, so the document is one line."""
    name = f"event: {kind}\n" if kind else ""
    return f"id: {seq}\n{name}data: {encode(document)}\n\n".encode()


def position_frame(seq: int, note: str) -> bytes:
    """No event: only the position up to which everything was sent. A reader that comes back continues there."""
    return f": {note}\nid: {seq}\n\n".encode()


def retry_frame(after_ms: int) -> bytes:
    """Return how long a reader waits before it comes back."""
    return f"retry: {after_ms}\n\n".encode()


def lock_change(event: Event) -> Document | None:
    """An event as OctoStore reports it to those who watch a lock; None if it does not report it."""
    change = LOCK_CHANGES.get(event.kind)
    if change is None:
        return None
    document: Document = {"event": change, "lock_name": event.job}
    if change in ("acquired", "renewed"):
        document["fencing_token"] = event.token
        ends_ms = event.hold_ends_ms()
        document["expires_at"] = None if ends_ms is None else parts.timestamp(ends_ms)
    return {**document, "observed_at": parts.timestamp(event.at_ms)}


def lock_snapshot(name: str, state: Document, now_ms: int) -> Document:
    """The first frame for somebody who watches a lock: how it stands. `state` is the document of GET /locks/{name}."""
    document: Document = {"event": "released", "lock_name": name}
    if state.get("status") == "held":
        document["event"] = "acquired"
        document["fencing_token"] = state["fencing_token"]
        document["expires_at"] = state["expires_at"]
    return {**document, "observed_at": parts.timestamp(now_ms)}


def transferred(outcome: lease_outcomes.Transferred) -> Document:
    document = parts.lease_document("transferred", outcome.name, outcome.lease, outcome.now_ms)
    document["checkpoint"] = outcome.lease.checkpoint
    return document


def renewed(outcome: lease_outcomes.Renewed) -> Document:
    document = parts.lease_document("", outcome.name, outcome.lease, outcome.now_ms)
    del document["status"]  # a renewal has only one answer
    document["checkpoint"] = outcome.lease.checkpoint
    document["waiting"] = outcome.waiting
    document["new_waiters"] = outcome.new
    if outcome.effect is not None:
        document["effect"] = parts.effect_document(outcome.effect, before(outcome.effect))
    return document


def failed(outcome: lease_outcomes.Failed) -> Document:
    return {
        "status": "failed",
        "name": outcome.name,
        "failures": outcome.failures,
        "parked": outcome.parked,
        "retry_after_ms": max(0, outcome.until_ms - outcome.now_ms),
        "previous": parts.previous_document(outcome.ending),
    }


def broken(outcome: lease_outcomes.Broken) -> Document:
    broken = [
        {"owner": holder.owner, "fencing_token": holder.token, "checkpoint": holder.checkpoint}
        for holder in outcome.holders
    ]
    return {"name": outcome.name, "broken": broken}


def status(outcome: outcomes.Status) -> Document:
    document = status_document(outcome.lock, outcome.now_ms, outcome.closure, frozen=outcome.frozen, with_acl=True)
    document["waiting"] = outcome.waiting
    if outcome.overlapping:
        document["overlapping"] = [
            {"name": blocker.name, "owner": blocker.holder.owner, "mode": blocker.holder.mode}
            for blocker in outcome.overlapping
        ]
    if outcome.unnamed:
        document["overlapping_count"] = len(outcome.overlapping) + outcome.unnamed
    return document


def opened(outcome: lease_outcomes.Opened) -> Document:
    document: Document = {"name": outcome.name, "opened": outcome.was_closed}
    if outcome.closure is not None:
        document["closed"] = parts.closure_document(outcome.closure, outcome.now_ms)
    return document


def numbered(outcome: lease_outcomes.Numbered) -> Document:
    document: Document = {"name": outcome.name, "number": outcome.number, "owner": outcome.owner}
    if outcome.again:
        document["again"] = True
    return document


PRESENT: dict[type[Any], Callable[[Any], Document | None]] = {
    lease_outcomes.Freed: lambda outcome: {"name": outcome.name, "freed": outcome.was_parked},
    outcomes.Left: lambda outcome: {"name": outcome.name, "left": outcome.was_in},
    outcomes.Withdrawn: lambda outcome: {
        "status": "withdrawn",
        "left": outcome.left,
        "released": list(outcome.released),
        "kept": list(outcome.kept),
    },
    lease_outcomes.Transferred: transferred,
    SessionState: session_document,
    lease_outcomes.Renewed: renewed,
    lease_outcomes.Released: lambda outcome: None,
    lease_outcomes.Failed: failed,
    lease_outcomes.Broken: broken,
    lease_outcomes.ClosureSet: lambda outcome: parts.closure_document(outcome.closure, outcome.now_ms),
    lease_outcomes.Opened: opened,
    lease_outcomes.AclSet: lambda outcome: {"name": outcome.name, "acl": acl_document(outcome.acl)},
    lease_outcomes.PoolSet: lambda outcome: {
        "name": outcome.name,
        "slots": outcome.slots,
        "was": outcome.was,
        "slots_taken": outcome.taken,
        "waiting": outcome.waiting,
    },
    lease_outcomes.Numbered: numbered,
    lease_outcomes.NumberReturned: lambda outcome: {
        "name": outcome.name,
        "number": outcome.number,
        "returned": outcome.was_taken,
        "last_number": outcome.last_number,
    },
    outcomes.Status: status,
}
