"""Effects: steps of the work that change something outside, and must not be repeated blindly. `effect:once` and
`effect:doubt-told` live here.

A lease cannot make such a step happen exactly once: its owner may die after the step and before it can say so. So an
owner notes a step twice, each time with a heartbeat: before it begins, and how it ended. The notes are in the job's
record and outlive the owner. The next owner that comes to the same step is answered one of four things:

    new        nobody has begun it
    done       somebody did it; the result is known, and the step is not begun again
    failed     every owner that began it said that it failed
    in doubt   an owner began it and never said how it ended, or said that it does not know

A step in doubt stays in doubt until an owner says that it is done: the failure of a later try says nothing about the
first one. Only the owner of the job can write notes, because only it can renew. So a lost owner changes nothing.

A try has an id, so that a repeat of its notes is recognised, also after the next tries of its owner (`earlier`). An end
without an id is that of the try under this lease: for an owner that keeps no ids, or whose program was killed while its
lease lives on.

The notes belong to the work in progress. They outlast failures, losses and transfers. A release without failure ends
them, once nobody has the job; a done mark keeps them for its time, and the claim after it begins anew. While a job has
several owners no step of it begins, because nobody could say whose step it was. A resource, which is no work, has none.
"""

from __future__ import annotations

from dibs.core import events
from dibs.core.commands import EffectNote
from dibs.core.draft import Draft
from dibs.core.lease_outcomes import EffectRefused
from dibs.core.limits import EFFECT_TRIES_MAX, EFFECTS_MAX
from dibs.core.names import is_resource
from dibs.core.records import (
    EFFECT_BEGUN,
    EFFECT_DONE,
    EFFECT_FAILED,
    EFFECT_IN_DOUBT,
    EXCLUSIVE,
    EffectState,
    Holder,
    LockRecord,
)

# What is said of a step. `RUNNING` is for those who look at a job; its owner is refused a second beginning.
NEW = "new"
DONE = EFFECT_DONE
FAILED = EFFECT_FAILED
IN_DOUBT = EFFECT_IN_DOUBT
RUNNING = "running"

# Why a note is refused.
IS_RUNNING = "running"
TOO_MANY = "full"
NOT_BEGUN = "not_begun"
SEVERAL_OWNERS = "shared"
OF_RESOURCE = "resource"

_KINDS = {
    EFFECT_DONE: events.EFFECT_DONE,
    EFFECT_FAILED: events.EFFECT_FAILED,
    EFFECT_IN_DOUBT: events.EFFECT_IN_DOUBT,
}


def note_effect(
    draft: Draft, lock: LockRecord, mine: Holder, note: EffectNote
) -> tuple[tuple[EffectState, ...], EffectState] | EffectRefused:
    """The job's notes with this one, and the step as its owner is answered: a beginning with what is known of the step
    from before. A repeat of a note is answered as the note was."""
    known = next((each for each in lock.effects if each.key == note.key), None)
    if note.state == EFFECT_BEGUN:
        return _begun(draft, lock, mine, note, known)
    if known is None or known.token != mine.token or note.id not in (None, known.id):
        return _refused(draft, lock, note, NOT_BEGUN, known)
    if known.state != EFFECT_BEGUN:  # the first word counts
        return lock.effects, known
    ended = known.replace(state=EFFECT_FAILED, at_ms=draft.now_ms)
    if note.state == EFFECT_DONE:
        ended = ended.replace(state=EFFECT_DONE, result=note.result, reason=None)
        ended = ended.replace(doubt_owner="", doubt_token=0, doubt_ms=0)
    elif note.state == EFFECT_IN_DOUBT:
        ended = _doubted(ended, known, note.reason)
    elif not known.doubt_token:
        ended = ended.replace(reason=note.reason or "")
    draft.emit_for_hold(_KINDS[note.state], lock, mine, effect_key=note.key, result=ended.result, reason=note.reason)
    return _with(lock, ended), ended


def _begun(
    draft: Draft, lock: LockRecord, mine: Holder, note: EffectNote, known: EffectState | None
) -> tuple[tuple[EffectState, ...], EffectState] | EffectRefused:
    if is_resource(lock.name):
        return _refused(draft, lock, note, OF_RESOURCE, known)
    if known is not None and (known.state == EFFECT_DONE or _is_try(known, mine, note)):
        return lock.effects, known
    if mine.mode != EXCLUSIVE or mine.slot_numbers or len(lock.holders) > 1:
        return _refused(draft, lock, note, SEVERAL_OWNERS, known)
    if known is None and len(lock.effects) >= EFFECTS_MAX:
        return _refused(draft, lock, note, TOO_MANY, known)
    if known is not None and status_of(known, lock.holders) == RUNNING:
        return _refused(draft, lock, note, IS_RUNNING, known)
    earlier: tuple[str, ...] = ()
    if known is not None and known.token == mine.token:
        earlier = (*known.earlier, known.id)[-EFFECT_TRIES_MAX:]
    begun = EffectState(
        key=note.key,
        id=note.id or "",
        earlier=earlier,
        state=EFFECT_BEGUN,
        owner=mine.owner,
        token=mine.token,
        at_ms=draft.now_ms,
        reason=known.reason if known is not None else None,
    )
    if known is not None and (known.state == EFFECT_BEGUN or known.doubt_token):
        begun = _doubted(begun, known)
    draft.emit_for_hold(events.EFFECT_BEGUN, lock, mine, effect_key=note.key)
    return _with(lock, begun), begun


def _is_try(known: EffectState, mine: Holder, note: EffectNote) -> bool:
    """Return whether a note is of the try on record, which may have ended since, or of one before it: a copy of its
    beginning comes late."""
    return known.token == mine.token and (note.id == known.id or note.id in known.earlier)


def _doubted(effect: EffectState, by: EffectState, reason: str | None = None) -> EffectState:
    """`effect`, in doubt since `by` began, with what its owner said; or for as long as that was, and as it was."""
    doubt: tuple[str, int, int] = (by.owner, by.token, by.at_ms)
    if by.doubt_token:
        doubt, reason = (by.doubt_owner, by.doubt_token, by.doubt_ms), by.reason
    return effect.replace(doubt_owner=doubt[0], doubt_token=doubt[1], doubt_ms=doubt[2], reason=reason)


def _with(lock: LockRecord, effect: EffectState) -> tuple[EffectState, ...]:
    """In the order in which they were first begun."""
    if any(each.key == effect.key for each in lock.effects):
        return tuple([effect if each.key == effect.key else each for each in lock.effects])
    return (*lock.effects, effect)


def _refused(draft: Draft, lock: LockRecord, note: EffectNote, why: str, known: EffectState | None) -> EffectRefused:
    return EffectRefused(now_ms=draft.now_ms, name=lock.name, key=note.key, why=why, known=known)


def before(effect: EffectState) -> str:
    """Tell how a step stood before it was begun, from the note of its beginning; or how it ended."""
    if effect.state == EFFECT_DONE:
        return DONE
    if effect.doubt_token:
        return IN_DOUBT
    return FAILED if effect.reason is not None else NEW


def status_of(effect: EffectState, holders: tuple[Holder, ...]) -> str:
    """Tell how a step stands, as everybody may know it. A beginning whose owner has gone is in doubt."""
    if effect.state == EFFECT_BEGUN and any(each.token == effect.token for each in holders):
        return RUNNING
    return IN_DOUBT if effect.state == EFFECT_BEGUN else before(effect)
