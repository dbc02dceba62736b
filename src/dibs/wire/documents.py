"""From an outcome to a reply: status and JSON document. The same over HTTP and embedded.

The fields are those of OctoStore's contract, plus our own (docs/reference/http.md lists both). Absolute times are for
people and logs; clients use `remaining_ms`, `renew_after_ms` and `retry_after_ms`, because clocks differ.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, Sequence, TypeVar
from dibs.base.errors import FATE_UNKNOWN, RequestFailed
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.core.limits import OVERLOAD_RETRY_MS, TICKET_KEEP_MS
from dibs.wire.codes import OUTCOMES, CodeRow, row_of_error
from dibs.wire.parts import (
    closure_document,
    effects_document,
    first_document,
    in_the_way,
    lease_document,
    previous_document,
    timestamp,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core import outcomes

__all__ = ["Reply", "expected", "failed", "refused_document", "reply_for_error", "reply_to"]

Known = TypeVar("Known")


def reply_to(verb: str, outcome: outcomes.Outcome) -> Reply:
    if verb in _SESSION_VERBS:
        from dibs.core.session_outcomes import SessionState
        from dibs.wire.session_documents import kept_document, session_document

        if isinstance(outcome, SessionState):
            if verb == "session-open":
                return Reply(201, session_document(outcome))
            return Reply(204) if verb == "session-end" else Reply(200, kept_document(outcome))
    return _reply_for(outcome)


def _reply_for(outcome: outcomes.Outcome) -> Reply:
    """The reply for `outcome`, whatever was asked."""
    kind = type(outcome)
    form = _FORMS.get(kind)
    if form is None:
        present = _PRESENT.get(kind.__name__)
        if present is None:  # most commands claim, and need no other
            from dibs.wire.lease_documents import PRESENT

            present = PRESENT.get(kind)
        form = _FORMS[kind] = OUTCOMES[kind.__name__], present
    row, present = form
    if present is not None:
        return Reply(row.http, present(outcome))
    from dibs.core.outcomes import Deadlock, NotCurrent, TooMany  # no grant needs them
    from dibs.wire.refusals import refusal

    status, details = refusal(outcome, row.http)
    body = _error(row.title, row.word, details)
    if isinstance(outcome, Deadlock):
        body["cycle"] = list(outcome.cycle)
    elif isinstance(outcome, NotCurrent) and outcome.ending is not None:
        body["ended"] = outcome.ending.how
    elif isinstance(outcome, TooMany):
        body["retry_after_ms"] = OVERLOAD_RETRY_MS
    elif row.word == "number_taken":
        from dibs.wire.refusals import taken_number

        body |= taken_number(outcome)
    return Reply(status, body)


def expected(outcome: outcomes.Outcome, *kinds: type[Known]) -> Known:
    """Return an outcome that whoever asked knows: it is of one of these kinds. Raises any other as the refusal that it
    is. Else it would be taken for one of those: of a frozen store, for a session that is not there."""
    if isinstance(outcome, kinds):
        return outcome
    raise failed(outcome)


def failed(outcome: outcomes.Outcome) -> RequestFailed:
    return RequestFailed(reply_to("", outcome))


def reply_for_error(error: BaseException, *, sent: bool = True) -> Reply:
    """The reply for an exception. An unexpected one is an internal error without details."""
    if isinstance(error, RequestFailed):
        return error.reply
    row = row_of_error(error)
    details = getattr(error, "details", None) or "dibs failed in a way it should not; the server's log says more."
    if getattr(error, "unknown", False):
        details = f"{details} {FATE_UNKNOWN}"
    return Reply(row.http, _error(row.title, row.word, details), answered=False, sent=sent)


def _error(title: str, code: str, details: str) -> Document:
    return {"error": title, "code": code, "details": details}


def _acquired(outcome: outcomes.Granted) -> Document:
    document = lease_document("acquired", outcome.name, outcome.lease, outcome.now_ms)
    if outcome.held_before:
        document["held_before"] = True
    if outcome.previous is not None:
        document["previous"] = previous_document(outcome.previous)
        if outcome.effects:
            document["previous"]["effects"] = effects_document(outcome.effects, (outcome.lease,))
    if outcome.skipped:
        # In few fields, because there may be a thousand.
        document["skipped"] = [
            {field: value for field, value in _entry(each).items() if field in _SKIPPED_FIELDS}
            for each in outcome.skipped
        ]
    return document


_SKIPPED_FIELDS = frozenset(
    {
        "name",
        "status",
        "owner",
        "conflict",
        "remaining_ms",
        "retry_after_ms",
        "done_ms_ago",
        "failures",
        "details",
        "closed",
    }
)


def _acquired_all(outcome: outcomes.GrantedAll) -> Document:
    leases = [_acquired(granted) for granted in outcome.grants]
    remaining_ms = min(lease["remaining_ms"] for lease in leases)
    return {
        "status": "acquired",
        "lease_id": leases[0]["lease_id"],
        "owner": leases[0]["owner"],
        "remaining_ms": remaining_ms,
        "renew_after_ms": remaining_ms // 2,
        "leases": leases,
    }


def _held(outcome: outcomes.Held) -> Document:
    document = in_the_way(outcome.name, outcome.blockers, outcome.unnamed, outcome.now_ms)
    if outcome.first is not None:
        document |= first_document(outcome.first)
    # If no hold is in the way, others in line come first: they will have the job in a moment.
    # 0 left: it is not known yet whether its owner could have renewed. A moment later it is.
    retry_after_ms = (document["remaining_ms"] if outcome.blockers else 0) or 1_000
    if outcome.paused:
        document["paused"] = True
    return {
        "status": "held",
        "name": outcome.name,
        **document,
        "waiting": outcome.waiting,
        "retry_after_ms": retry_after_ms,
    }


def _queued(outcome: outcomes.Queued) -> Document:
    from dibs.wire.values import ticket_text  # only lines have tickets

    document = in_the_way(outcome.name, outcome.blockers, outcome.unnamed, outcome.now_ms)
    remaining_ms = document["remaining_ms"] if outcome.blockers else TICKET_KEEP_MS
    if outcome.closure is not None:
        document["closed"] = closure_document(outcome.closure, outcome.now_ms)
    if outcome.paused:
        document["paused"] = True
    return {
        "status": "queued",
        "name": outcome.name,
        "ticket": ticket_text(outcome.ns, outcome.name, outcome.ticket, outcome.ticket_id),
        "position": outcome.position,
        **document,
        # Asking again keeps the place, so this is never longer than a waiter may stay silent.
        "retry_after_ms": max(1, min(TICKET_KEEP_MS, remaining_ms)),
    }


def _refused(outcome: outcomes.Refused) -> Document:
    document = refused_document([_entry(each) for each in outcome.outcomes], all_of=outcome.all_of, free=outcome.free)
    if outcome.count:
        document["free"] = outcome.free
    if outcome.left:
        document["rest"] = [_acquired(granted) for granted in outcome.left]
    return document


def refused_document(entries: Sequence[Document], *, all_of: int = 0, free: int = 0) -> Document:
    """None of several jobs was claimed: one entry for each says why, but for `free` ones, which were too few."""
    from dibs.core.outcomes import refused_status  # a client that reads replies needs no rules

    document: Document = {
        "status": refused_status([*[entry["status"] for entry in entries], *["free"] * free], all_of),
        "refused": list(entries),
    }
    if document["status"] != "parked":  # no time frees what is parked
        waits = [entry["retry_after_ms"] for entry in entries if entry.get("retry_after_ms")] or [1_000]
        document["retry_after_ms"] = max(waits) if all_of else min(waits)
    return document


def _entry(outcome: outcomes.Outcome) -> Document:
    """The outcome for one of several names, as an entry of a list."""
    entry = dict(_reply_for(outcome).body or {})
    if "code" in entry:  # an error has no name of its own
        entry = {"name": getattr(outcome, "name", None), "status": entry["code"], **entry}
    return entry


def _parked(outcome: outcomes.Parked) -> Document:
    document: Document = {"status": "parked", "name": outcome.name, "failures": outcome.failures}
    if outcome.ending is not None:
        document["previous"] = previous_document(outcome.ending)
    return document


def _superseded(outcome: outcomes.Superseded) -> Document:
    document: Document = {"status": "superseded", "name": outcome.name, "group": outcome.group}
    if outcome.by:
        document["by"] = outcome.by
    return document


def _done(outcome: outcomes.AlreadyDone) -> Document:
    from dibs.wire.lease_documents import done_document  # rare

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
        "done": done_document(done),
    }


def _delayed(outcome: outcomes.Delayed) -> Document:
    document: Document = {
        "status": "delayed",
        "name": outcome.name,
        "available_at": timestamp(outcome.until_ms),
        "lock_delay_seconds": -(-outcome.delay_ms // 1000),
        "retry_after_ms": outcome.until_ms - outcome.now_ms,
    }
    if outcome.ending is not None:
        document["previous"] = previous_document(outcome.ending)
    return document


def _closed(outcome: outcomes.Closed) -> Document:
    closed = closure_document(outcome.closure, outcome.now_ms)
    return {"status": "closed", "name": outcome.name, "closed": closed, "retry_after_ms": closed["remaining_ms"]}


_SESSION_VERBS = frozenset(("session-open", "session-keep", "session-end"))
# Of outcomes seen before the row, and what makes the document; None: it is sent as an error.
_FORMS: dict[type[Any], tuple[CodeRow, Callable[[Any], Document | None] | None]] = {}
# By the names of the outcomes: a client of a server makes no outcome, and does not import them.
_PRESENT: dict[str, Callable[[Any], Document | None]] = {
    "Granted": _acquired,
    "GrantedAll": _acquired_all,
    "Held": _held,
    "Queued": _queued,
    "Refused": _refused,
    "Parked": _parked,
    "Superseded": _superseded,
    "AlreadyDone": _done,
    "Delayed": _delayed,
    "Closed": _closed,
}
