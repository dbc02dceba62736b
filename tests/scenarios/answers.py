"""How answers and events read in a scenario: one row of `ANSWERS` an outcome."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from dibs.base.record import Record
from dibs.core import events, lease_outcomes, outcomes, session_outcomes
from dibs.core import lease_outcomes as upkeep_outcomes
from dibs.core.records import EXCLUSIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dibs.core.draft import HandedOver
    from dibs.core.records import Closure, Ending, Holder

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def span(ms: int) -> str:
    """Exact, in the largest unit that fits, and readable by `parse_duration`."""
    for unit, size in _UNITS:
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def _quoted(text: str) -> str:
    return text if text and not any(each.isspace() or each in "'\"" for each in text) else shlex.quote(text)


def _words(*parts: str | None, **pairs: object) -> str:
    """`granted token=1 metadata='a b'`: words, then pairs; what is None is left out."""
    said = [part for part in parts if part]
    said += [f"{name.replace('_', '-')}={_quoted(str(value))}" for name, value in pairs.items() if value is not None]
    return " ".join(said)


def _owners(holders: Iterable[Holder]) -> str | None:
    return ", ".join(holder.owner for holder in holders) or None


def _hold(holder: Holder, now_ms: int) -> dict[str, object]:
    return {
        "token": holder.token,
        "remaining": span(holder.expires_ms - now_ms),
        "ends_in": span(holder.ends_ms - now_ms) if holder.ends_ms else None,
        "mode": holder.mode if holder.mode != EXCLUSIVE else None,
        "metadata": holder.metadata,
        "checkpoint": holder.checkpoint,
    }


def _end(ending: Ending | None) -> dict[str, object]:
    if ending is None:
        return {}
    return {
        "ended": ending.how,
        "ended_at": span(ending.at_ms),
        "broken_by" if ending.how == "broken" else "to": ending.by,
        "reason": ending.reason,
    }


def _granted(told: outcomes.Granted) -> str:
    before = told.previous
    return _words(
        "granted",
        "again" if told.again else None,
        attempt=told.lease.attempt,
        **_hold(told.lease, told.now_ms),
        previous=f"{before.owner}:{before.how}#{before.token}" if before else None,
        previous_checkpoint=before.checkpoint if before else None,
        previous_reason=before.reason if before else None,
    )


def _in_way(blockers: tuple[outcomes.Blocker, ...], name: str, now_ms: int) -> list[str]:
    return [
        _words(on=each.name if each.name != name else None, by=each.holder.owner, **_hold(each.holder, now_ms))
        for each in blockers
    ]


def _held(told: outcomes.Held) -> str:
    waiting = f"waiting={told.waiting}" if told.waiting else None
    found = _in_way(told.blockers, told.name, told.now_ms) or [""]
    return "; ".join(_words("held", each, waiting) for each in found)


def _queued(told: outcomes.Queued) -> str:
    rests_ms = told.delay_until_ms - told.now_ms
    return _words(
        "queued",
        position=told.position,
        ticket=told.ticket,
        behind=_owners(each.holder for each in told.blockers),
        rests=span(rests_ms) if rests_ms > 0 else None,
        closed=_left(told.closure, told.now_ms),
    )


def _left(closure: Closure | None, now_ms: int) -> str | None:
    return None if closure is None else span(closure.until_ms - now_ms)


def _each(told: outcomes.Refused | outcomes.GrantedAll) -> str:
    """The answer for several jobs: each with its own."""
    found: tuple[Any, ...] = told.grants if isinstance(told, outcomes.GrantedAll) else told.outcomes
    told_of = [f"{each.name} {ANSWERS[type(each)](each)}" for each in found]
    told_of += [f"still {each.name}" for each in getattr(told, "left", ())]
    return "; ".join(told_of)


def _done(told: outcomes.AlreadyDone) -> str:
    done, now_ms = told.done, told.now_ms
    return _words(
        "done",
        by=done.owner,
        ago=span(now_ms - done.at_ms),
        remaining=span(done.until_ms - now_ms),
        result=done.result,
    )


def _not_current(told: outcomes.NotCurrent) -> str:
    return _words("not-current", **_end(told.ending), holder=_owners(told.holders))


def _status(told: outcomes.Status) -> str:
    lock = told.lock
    more: dict[str, object] = {
        "waiting": told.waiting or None,
        "acl": ",".join(lock.acl) or None,
        "overlapping": ",".join(each.name for each in told.overlapping) or None,
        "closed": _left(told.closure, told.now_ms),
    }
    if not lock.holders:
        return _words(
            "parked" if lock.parked else "free",
            None if told.seen else "unseen",
            token=lock.token,
            done_by=lock.done.owner if lock.done and told.now_ms < lock.done.until_ms else None,
            rests=span(lock.delay_until_ms - told.now_ms) if told.now_ms < lock.delay_until_ms else None,
            **more,
        )
    return "; ".join(_words("held", by=h.owner, **_hold(h, told.now_ms), **more) for h in lock.holders)


def _session(told: session_outcomes.SessionState) -> str:
    session = told.session
    return _words(
        "live" if told.live else "over",
        remaining=span(session.expires_ms - told.now_ms) if told.live else None,
        how=session.how,
        holds=",".join(each.name for each in told.holds) or None,
        waits=",".join(each.name for each in session.waits) or None,
    )


ANSWERS: dict[type[Record], Callable[[Any], str]] = {
    outcomes.Granted: _granted,
    outcomes.GrantedAll: _each,
    outcomes.Held: _held,
    outcomes.Queued: _queued,
    outcomes.Refused: _each,
    outcomes.Deadlock: lambda told: _words("deadlock", cycle=",".join(told.cycle)),
    outcomes.Differs: lambda told: _words("differs", what=told.what, has=told.has, asked=told.asked),
    outcomes.Superseded: lambda told: _words("superseded", group=told.group, by=told.by or None),
    outcomes.Parked: lambda told: _words("parked", failures=told.failures, **_end(told.ending)),
    lease_outcomes.Freed: lambda told: _words("freed", None if told.was_parked else "was not parked"),
    outcomes.Left: lambda told: _words("left", None if told.was_in else "was not in line"),
    outcomes.TicketsKept: lambda told: _words("gone" if told.gone else "kept"),
    lease_outcomes.Transferred: lambda told: _words(
        "transferred",
        to=told.lease.owner,
        attempt=told.lease.attempt,
        **_hold(told.lease, told.now_ms),
    ),
    session_outcomes.SessionState: _session,
    outcomes.SessionUnknown: lambda told: "no-such-session",
    outcomes.SessionOver: lambda told: _words("session-over", how=told.session.how),
    outcomes.AlreadyDone: _done,
    outcomes.Delayed: lambda told: _words(
        "delayed", remaining=span(told.until_ms - told.now_ms), of=span(told.delay_ms)
    ),
    lease_outcomes.Renewed: lambda told: _words("renewed", **_hold(told.lease, told.now_ms)),
    lease_outcomes.Released: lambda told: _words(
        "released",
        "again" if told.again else None,
        token=told.ending.token,
        checkpoint=told.ending.checkpoint,
    ),
    lease_outcomes.Failed: lambda told: _words(
        "failed",
        "again" if told.again else None,
        "parked" if told.parked else None,
        token=told.ending.token,
        failures=told.failures,
        rests=span(told.until_ms - told.now_ms) if told.until_ms > told.now_ms else None,
        checkpoint=told.ending.checkpoint,
    ),
    outcomes.NotCurrent: _not_current,
    outcomes.KeySpent: lambda told: (
        _words("key-spent", token=told.ending.token, **_end(told.ending)) if told.ending else "withdrawn before"
    ),
    outcomes.Withdrawn: lambda told: _words(
        "withdrawn",
        "left" if told.left else None,
        released=", ".join(told.released) or None,
        kept=", ".join(told.kept) or None,
    ),
    outcomes.Forbidden: lambda told: "forbidden",
    outcomes.AclDiffers: lambda told: "acl-differs",
    lease_outcomes.EffectRefused: lambda told: f"step refused: {told.why}",
    lease_outcomes.NotAJob: lambda told: f"not-a-job {told.what}",
    lease_outcomes.NoteTooLong: lambda told: "note-too-long",
    outcomes.Closed: lambda told: _words(
        "closed", remaining=_left(told.closure, told.now_ms), of=told.closure.name, reason=told.closure.reason
    ),
    lease_outcomes.ClosureSet: lambda told: _words("closed-now", remaining=_left(told.closure, told.now_ms)),
    lease_outcomes.NotClosed: lambda told: "not-closed",
    lease_outcomes.Opened: lambda told: _words(
        "opened" if told.was_closed else "was-open", closed=_left(told.closure, told.now_ms)
    ),
    lease_outcomes.AclSet: lambda told: _words("acl-set", acl=",".join(told.acl)),
    lease_outcomes.PoolSet: lambda told: _words("pool-set", slots=told.slots, was=told.was),
    lease_outcomes.Numbered: lambda told: _words("numbered", number=told.number),
    lease_outcomes.NumberTaken: lambda told: _words("number-taken", next=told.following),
    lease_outcomes.NumberReturned: lambda told: _words("number-returned", last=told.last_number),
    lease_outcomes.NotFound: lambda told: "not-found",
    outcomes.QuotaExceeded: lambda told: "over-quota",
    outcomes.TooMany: lambda told: f"too-many {told.what}",
    upkeep_outcomes.Counted: lambda told: "counted",
    lease_outcomes.Broken: lambda told: _words("broken", taken_from=_owners(told.holders) or "nobody"),
    outcomes.Status: _status,
    upkeep_outcomes.Swept: lambda told: _words(
        "swept", "forgotten" if told.forgotten else None, expired=told.expired or None
    ),
    upkeep_outcomes.Frozen: lambda told: _words("frozen", by=told.mark.id),
    upkeep_outcomes.FreezeNoted: lambda told: "noted",
    upkeep_outcomes.Thawed: lambda told: "thawed" if told.was_frozen else "was-not-frozen",
    upkeep_outcomes.Raised: lambda told: _words("raised", floor=told.floor),
    upkeep_outcomes.Identified: lambda told: _words("store", id=told.store_id),
    upkeep_outcomes.BeatRecorded: lambda told: _words("noted", outage=span(told.outage_ms) if told.outage_ms else None),
}


def told_handed(handed: HandedOver) -> str:
    """`a2 gets issue-1#2`: a waiter that got the job by this commit."""
    outcome = handed.outcome
    grants = outcome.grants if isinstance(outcome, outcomes.GrantedAll) else (outcome,)
    return " and ".join(f"{grant.lease.owner} gets {grant.name}#{grant.lease.token}" for grant in grants)


def told_event(event: events.Event) -> str:
    if event.kind == events.OUTAGE:
        return _words("outage", lasted=span(event.at_ms - (event.began_ms or 0)))
    about = f"{event.job}#{event.token}" if event.token or not event.ticket else event.job
    return _words(
        event.kind,
        event.owner or None,
        about if event.job else None,
        ticket=event.ticket or None,
        metadata=event.metadata,
        checkpoint=event.checkpoint,
        result=event.result,
        done_until=span(event.done_until_ms) if event.done_until_ms else None,
        by=event.by,
        reason=event.reason,
        retry=span(event.retry_ms) if event.retry_ms else None,
    )
