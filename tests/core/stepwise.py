"""What must hold between the records before a command and those after it, whatever the command is. Like `raw.py` it
shares no code with the rules: it reads records, events and answers, and says what is wrong in them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from dibs.core import events as kinds
from dibs.core import outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Break,
    Inspect,
    InspectSession,
    Leave,
    Release,
    Renew,
    Sweep,
    TakeNumber,
    Transfer,
    Withdraw,
)
from dibs.core.lease_outcomes import EffectRefused, Failed, Numbered, Released, Renewed, Swept, Transferred
from dibs.core.records import (
    EFFECT_BEGUN,
    EFFECT_DONE,
    META_KEY,
    SHARED,
    USAGE_PREFIX,
    Holder,
    LockRecord,
    SessionRecord,
    Ticket,
)
from dibs.core.service.credentials import Usage
from dibs.core.waiting.queue import may_wait
from dibs.testing.outside import SeriesHistory, StepHistory
from tests.core.raw import NS, Raw, wish_of, world_of
from tests.models.queue import Wish, overlap
from tests.walks.swarm import is_about_the_ask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.core.commands import Command
    from dibs.core.draft import Decision
    from dibs.core.records import Stored

CLAIMS = (Acquire, AcquireAll, AcquireAny)


class Taken(NamedTuple):
    """A step: the records before and after it, both at its own time."""

    before: Raw
    command: Command
    decision: Decision
    after: Raw
    records: Mapping[str, Stored | None]
    earlier: Mapping[str, Stored | None]
    called: frozenset[tuple[str, int]] = frozenset()  # places whose owners were told to ask again


def check_step(step: Taken) -> None:
    for check in CHECKS:
        check(step)


# Answers


def the_answer_is_true(step: Taken) -> None:
    """An answer describes the state after all that its decision does."""
    outcome, after = step.decision.outcome, step.after
    if isinstance(outcome, outcomes.Queued):
        place = after.tickets.get((outcome.name, outcome.ticket))
        assert place is not None, "told of a place that is not there"
        assert (place.lease_id, after.ticket_live(place)) == (outcome.ticket_id, True), "told of a place that is over"
        line = after.locks[outcome.name].line
        if not place.whole and not outcome.name.startswith(("path:", "repo:")):
            assert outcome.position == 1 + line.index(outcome.ticket), "told another position than it has"
    for granted in _granted(outcome):
        hold = _hold(after, granted.name, granted.lease.token)
        assert hold is not None, f"told that {granted.name} is its own, which it is not"
        assert hold.lease_id == granted.lease.lease_id, "told another lease than it has"
        assert after.hold_live(hold), "told of a lease that is over"
    if isinstance(outcome, Renewed | Transferred):
        hold = _hold(after, outcome.name, outcome.lease.token)
        assert hold is not None, "told of a lease that is not there"
        assert hold.mode == outcome.lease.mode, "told another mode than the lease has"
    if isinstance(outcome, Released | Failed):
        held = [each.lease_id for each in after.locks[outcome.name].holders]
        assert outcome.ending.lease_id not in held, "told that it let go what it still has"
    if isinstance(outcome, outcomes.Held | outcomes.Queued):
        for blocker in outcome.blockers:
            assert _hold(after, blocker.name, blocker.holder.token), "told of an owner that there is not"
    if isinstance(outcome, outcomes.AlreadyDone):
        done = after.locks[outcome.name].done
        assert (done.until_ms if done is not None else 0) > after.now_ms, "told that a job is done which is not"
    if isinstance(outcome, Swept):
        swept = step.records.get(outcome.key)
        is_left = isinstance(swept, SessionRecord) and bool(swept.ended_ms and swept.holds)
        assert outcome.unfinished == is_left, "told that more is left of a session, or that nothing is"
    if isinstance(outcome, outcomes.Parked):
        assert after.locks[outcome.name].parked, "told that a job is parked which is not"


def _granted(outcome: outcomes.Outcome) -> tuple[outcomes.Granted, ...]:
    if isinstance(outcome, outcomes.Granted):
        return (outcome,)
    return getattr(outcome, "grants", ()) + (outcome.left if isinstance(outcome, outcomes.Refused) else ())


def refusals_have_a_cause(step: Taken) -> None:
    """Whoever is told no can see why in the records."""
    outcome = step.decision.outcome
    for told in outcome.outcomes if isinstance(outcome, outcomes.Refused) else (outcome,):
        if isinstance(told, outcomes.JobOutcome):
            _look_for_cause(step, told)


def _look_for_cause(step: Taken, told: outcomes.JobOutcome) -> None:
    command, after = step.command, step.after
    lock = after.locks.get(told.name) or LockRecord(ns=NS, name=told.name)
    if isinstance(told, outcomes.Held):
        assert told.blockers or told.waiting or told.paused, "held, by nobody and for nobody"
        if not isinstance(command, Transfer):  # which is refused for the other owners, pause or not
            assert told.paused == (lock.pooled and not lock.slots), "paused, or not"
        if not told.name.startswith(("path:", "repo:")):
            was = step.before.locks.get(told.name, lock)  # with the place that the caller gives up
            assert told.waiting <= max(len(lock.line), len(was.line)), "more wait than there are"
    elif isinstance(told, outcomes.Delayed):
        assert after.now_ms < told.until_ms == lock.delay_until_ms, "delayed, and nothing says so"
    elif isinstance(told, outcomes.Closed):
        assert told.closure in after.meta.closures, "closed, by nobody"
        assert _is_closed(after, told.name), "closed, and open"
    elif isinstance(told, outcomes.TooMany | outcomes.QuotaExceeded):
        asked = [getattr(command, each, 0) for each in ("held_max", "waiting_max", "sessions_max")]
        assert told.most in asked, "too many for a limit that nobody set"
        assert told.most or getattr(command, "over_quota", False), "too many, without a limit"
    elif isinstance(told, outcomes.KeySpent):
        assert isinstance(command, CLAIMS), "nobody claimed"
        asks = [(each.principal, each.request_key) for each in lock.endings]
        asks += [(each.principal, each.request_key) for each in lock.withdrawn]
        assert (command.principal, command.request_key) in asks, "spent, and nothing says so"
        assert command.request_key is not None, "no key, and it is spent"
    elif isinstance(told, outcomes.Superseded):
        assert isinstance(command, Acquire | AcquireAll), "nobody claimed"
        assert told.group == command.replaces, "replaced in another group"
        assert lock.groups, "replaced, and there was no group"
    elif isinstance(told, outcomes.Forbidden) and isinstance(command, CLAIMS):
        lists = [each.acl for each in after.locks.values() if each.acl and overlap(each.name, told.name)]
        assert any(not set(acl) & set(command.badges) for acl in lists), "forbidden, and no list says so"
        assert not command.admin, "forbidden, to an administrator"


def a_refusal_about_the_ask_takes_nothing(step: Taken) -> None:
    """What is wrong with an ask says nothing about the job: nobody's hold goes for it, and nobody's place but that of
    who comes with its ticket."""
    if not isinstance(step.command, CLAIMS) or not is_about_the_ask(step.decision.outcome):
        return
    for event in step.decision.events:
        if event.kind == kinds.LEFT and event.reason in ("answered", "superseded", "left"):
            place = step.before.tickets.get((event.job, event.ticket))
            is_own = place is not None and place.lease_id == step.command.ticket_id
            is_live = place is not None and step.before.ticket_live(place)
            assert is_own or not is_live, "a refused ask took a live place away"
        assert event.kind not in (kinds.RELEASED, kinds.BROKEN), "a refused ask took a hold away"


# Places


def a_place_is_of_one_ask(step: Taken) -> None:
    """An ask with a key of its own is told of a place of its own, or of the one whose ticket it shows."""
    outcome, command = step.decision.outcome, step.command
    if isinstance(outcome, outcomes.Queued) and isinstance(command, Acquire | AcquireAll) and command.request_key:
        place = step.after.tickets[outcome.name, outcome.ticket]
        assert _is_own_ask(command, place), "told of the place of another ask"


def _needs(raw: Raw, place: Ticket) -> list[str]:
    """The jobs of a place that its session does not have."""
    names = [part.name for part in place.whole] or [place.name]
    return [name for name in names if not _has(raw, place.session, name, place.mode)]


def _has(raw: Raw, session: str | None, name: str, mode: str) -> bool:
    lock = raw.locks.get(name)
    if session is None or lock is None:
        return False
    return any(each.session == session and each.mode == mode and raw.hold_live(each) for each in lock.holders)


def places_go_for_a_reason(step: Taken) -> None:
    """A live place is served, or its caller said so, or the job that it needs will never be given to it."""
    command, before = step.command, step.before
    for event in step.decision.events:
        place = before.tickets.get((event.job, event.ticket)) if event.kind == kinds.LEFT else None
        if place is None or not before.ticket_live(place):
            continue
        reason = event.reason
        if reason in ("done", "parked", "forbidden", "pool changed"):
            assert _is_hopeless(step, place, str(reason)), f"a place went as {reason}, but for what its session has"
        elif reason == "answered":
            assert isinstance(command, Acquire | AcquireAll), "nobody asked"
            assert _is_own_ask(command, place), "the answer to another ask took a place away"
        elif reason == "superseded":
            is_newer = isinstance(command, Acquire | AcquireAll) and command.replaces == place.replaces
            assert is_newer, "no newer claim of its group came"
        elif reason == "left":
            assert isinstance(command, Leave | Withdraw), "nobody left"
        elif reason == "granted otherwise":
            assert _has(step.after, place.session, place.name, place.mode), "its session does not have the job"
        elif reason == "session ended":
            assert not step.after.session_live(place.session), "its session goes on"
        else:
            assert reason == "deadlock", f"a live place went as {reason!r}"


def _is_hopeless(step: Taken, place: Ticket, reason: str) -> bool:
    for raw in (step.before, step.after):
        for name in _needs(raw, place):
            locks = [each.locks.get(name) or LockRecord(ns=NS, name=name) for each in (step.before, step.after)]
            if reason == "done" and any(each.done and raw.now_ms < each.done.until_ms for each in locks):
                return True
            if reason == "done" and isinstance(step.command, Release) and step.command.name == name:
                return step.command.done_ms > 0  # and somebody behind it wanted it all the same
            if reason == "parked" and any(each.parked for each in locks):
                return True
            if reason == "forbidden" and _is_forbidden(step.after, name, place):
                return True
            if reason == "pool changed" and any(_never_fits(each, place) for each in locks):
                return True
    return False


def _is_forbidden(raw: Raw, name: str, place: Ticket) -> bool:
    lists = [lock.acl for lock in raw.locks.values() if lock.acl and overlap(lock.name, name)]
    return any(not set(acl) & set(place.badges) for acl in lists)


def _never_fits(lock: LockRecord, place: Ticket) -> bool:
    if not lock.pooled:
        return place.units > (place.slots or 1)
    return place.mode == SHARED or (lock.slots > 0 and (place.units > lock.slots or place.slots not in (0, lock.slots)))


def _is_own_ask(command: Acquire | AcquireAll, place: Ticket) -> bool:
    if command.principal != place.principal:
        return False
    if place.lease_id in (command.ticket_id, command.fresh_lease_id):
        return True
    if command.request_key is not None or place.request_key is not None:
        return command.request_key == place.request_key
    return place.session is not None and place.session == command.session


def nobody_who_is_gone_is_served(step: Taken) -> None:
    """A place that is over is given nothing."""
    served = [(each.name, each.number) for each in step.decision.handed]
    for place in served:
        was = step.before.tickets.get(place)
        assert was is None or step.before.ticket_live(was), f"{place} was over, and was served"


def one_place_of_a_group(step: Taken) -> None:
    seen: set[tuple[str, str]] = set()
    for place in step.after.tickets.values():
        if place.replaces is not None:
            assert (place.name, place.replaces) not in seen, f"two of a group wait for {place.name}"
            seen.add((place.name, place.replaces))


def nobody_is_overtaken(step: Taken) -> None:
    """No owner is made while an earlier place waits for a name that overlaps the job's, under whatever name."""
    before, after, command = step.before, step.after, step.command
    came = {(e.job, e.ticket): e.seq for e in after.events if e.kind == kinds.QUEUED}
    given = [e for e in step.decision.events if e.kind == kinds.ACQUIRED]
    if not given or isinstance(command, Transfer):
        return
    world = world_of(before)
    for event in given:
        hold = _hold(after, event.job, event.token)
        if hold is None:
            continue
        mine = came.get((event.job, event.ticket), len(after.events) + 1)
        lock = after.locks[event.job]
        wish = wish_of(hold, (event.job,), lock.slots, len(hold.slot_numbers) or 1)
        is_covered = world.covered(wish, event.job) or world_of(after).covered(wish, event.job)
        for (name, number), place in before.tickets.items():
            if came[name, number] >= mine or (name, number) not in after.tickets or not after.ticket_live(place):
                continue
            if not overlap(name, event.job) or (hold.mode == place.mode == SHARED):
                continue
            if name not in _needs(before, place) or name not in _needs(after, place):
                continue
            is_related = place.session is not None and (place.session == hold.session or after.are_related(place, hold))  # type: ignore[arg-type]  # it reads their sessions
            assert is_related or is_covered, (
                f"{hold.owner} was given {event.job} before {place.owner}, who waits for {name}"
            )


def nobody_waits_for_nothing(step: Taken) -> None:
    """Once all that is due was done, no place could be served. Who was stopped by a closure is told by its server."""
    raw = step.after
    if any(
        record is not None and (record.due_ms() or raw.now_ms + 1) <= raw.now_ms for record in step.records.values()
    ):
        return
    if not all(raw.hold_live(each) for lock in raw.locks.values() for each in lock.holders):
        return
    world = world_of(raw)
    for place in world.line:
        first = next(
            each
            for each in raw.tickets.values()
            if each.lease_id == place.wish.lease and each.name == place.wish.jobs[0]
        )
        needs = _needs(raw, first)
        parts = [(part.name, part.number) for part in first.whole] or [(first.name, first.number)]
        if first.stopped or not step.called.isdisjoint(parts) or any(_is_closed(raw, name) for name in needs):
            continue
        locks = [raw.locks[name] for name in needs]
        if any(each.parked or (each.done and raw.now_ms < each.done.until_ms) for each in locks):
            continue  # it is told when its turn comes
        if any(_never_fits(each, first) for each in locks):
            continue
        free = [name for name in needs if world.may_have(place.wish, name, place)]
        assert len(free) < len(needs), f"{first.owner} waits for {needs}, and nothing is in its way"


def _is_closed(raw: Raw, name: str) -> bool:
    for closure in raw.meta.closures:
        is_prefix = closure.name.endswith("/") and name.startswith(closure.name)
        if raw.now_ms < closure.until_ms and (is_prefix or overlap(closure.name, name)):
            return True
    return False


# Circles


def circles_are_told(step: Taken) -> None:
    """Who is told of a deadlock would wait for ever, as the model sees it. Who is told that a job is held would not,
    or would without this ask, too."""
    command, outcome = step.command, step.decision.outcome
    if not isinstance(command, Acquire | AcquireAll) or command.session not in step.after.sessions:
        return
    if command.replaces is not None:
        return  # the model has no groups: the place that is replaced may be what kept it out of the circle
    if not isinstance(outcome, outcomes.Deadlock) and (may_wait(command) or not _may_pass(outcome)):
        return
    names = command.names if isinstance(command, AcquireAll) else (command.name,)
    owner = command.owner or step.after.sessions[command.session].owner
    wish = Wish(names, owner, command.principal, "", shared=command.mode == SHARED)
    wish.slots, wish.units, wish.session = command.slots, command.units, command.session
    world = world_of(step.after)
    certain, anyway = world.would_be_stuck(wish, wait=may_wait(command))
    if not isinstance(outcome, outcomes.Deadlock):
        assert anyway or not certain, "nobody said that this wait never ends"
        return
    free = [job for job in names if world.judge(wish, job, None) == "free"]
    assert certain or world.would_close(wish, *free), f"a false circle: {outcome.cycle}"
    assert len(outcome.cycle) % 2 == 0, "owners and jobs in turn"
    assert outcome.cycle[0] == step.after.sessions[command.session].owner


def who_is_given_up_was_in_a_circle(step: Taken) -> None:
    """With the places that were given up for one, and without what others got after that, their sessions would wait
    for ever."""
    events = step.decision.events
    told = [at for at, each in enumerate(events) if each.kind == kinds.LEFT and each.reason == "deadlock"]
    places = [(events[at].job, events[at].ticket) for at in told]
    back = {place: step.before.tickets[place] for place in places if place in step.before.tickets}
    if not back:
        return
    locks, tickets = dict(step.after.locks), step.after.tickets | back
    for event in [each for each in events[told[0] :] if each.kind == kinds.ACQUIRED and each.ticket]:
        lock, place = locks[event.job], (event.job, event.ticket)
        locks[event.job] = lock.replace(holders=tuple(each for each in lock.holders if each.token != event.token))
        tickets |= {place: step.before.tickets[place]} if place in step.before.tickets else {}
    stuck = world_of(step.after._replace(locks=locks, tickets=tickets)).stuck(wants=False)
    alone = [each.owner for each in back.values() if each.session not in stuck]
    assert not alone, f"{alone} lost places for a circle that there was not"


def _may_pass(outcome: outcomes.Outcome) -> bool:
    about = outcome.outcomes if isinstance(outcome, outcomes.Refused) else (outcome,)
    return all(isinstance(each, outcomes.Held | outcomes.Delayed) for each in about)


# Owners


def _hold(raw: Raw, name: str, token: int) -> Holder | None:
    lock = raw.locks.get(name)
    return next((each for each in lock.holders if each.token == token), None) if lock is not None else None


def no_lease_ends_early(step: Taken) -> None:
    """A live hold goes only by a command about it, or with its session."""
    command, before, after = step.command, step.before, step.after
    about = getattr(command, "name", None) if isinstance(command, Release | Break | Transfer) else None
    for lock in before.locks.values():
        for hold in lock.holders:
            if lock.name == about or _hold(after, lock.name, hold.token) is not None:
                continue
            is_meant = isinstance(command, Withdraw) and command.principal == hold.principal and not hold.used
            if is_meant and before.hold_live(hold):
                assert isinstance(command, Withdraw)
                named = (command.request_key, None) if hold.request_key else (None, command.fresh_lease_id)
                assert (hold.request_key, None if hold.request_key else hold.lease_id) == named
                continue
            is_over = hold.session is not None and hold.ephemeral and not after.session_live(hold.session)
            assert is_over or not before.hold_live(hold), f"{hold.owner} lost {lock.name} too early"


def leases_keep_their_word(step: Taken) -> None:
    """A ceiling never moves, and neither does a slot. Only an owner shares its job."""
    for lock in step.after.locks.values():
        was = step.before.locks.get(lock.name)
        for hold in lock.holders if was is not None else ():
            old = _hold(step.before, lock.name, hold.token)
            if old is not None:
                assert hold.ends_ms == old.ends_ms, f"the ceiling of {hold.owner}'s {lock.name} moved"
                assert hold.slot_numbers == old.slot_numbers, f"{hold.owner} has another slot of {lock.name}"


def slots_are_the_lowest(step: Taken) -> None:
    if isinstance(step.command, Transfer):
        return
    for lock in step.after.locks.values():
        was = step.before.locks.get(lock.name)
        known = {each.token for each in was.holders} if was is not None else set()
        taken = {
            number
            for each in (*lock.holders, *(was.holders if was is not None else ()))
            for number in each.slot_numbers
        }
        for hold in lock.holders:
            if hold.token not in known and hold.slot_numbers:
                lower = set(range(max(hold.slot_numbers)))
                assert lower <= taken, (
                    f"{hold.owner} has {hold.slot_numbers} of {lock.name}, and {lower - taken} is free"
                )


# Counts


def usage_is_exact(step: Taken) -> None:
    for key, record in step.records.items():
        if isinstance(record, Usage):
            mark = f"{record.count}/{key.removeprefix(USAGE_PREFIX)}"
            held = [each for lock in step.after.locks.values() for each in lock.holders if each.charge == mark]
            waiting = [each for each in step.after.tickets.values() if each.charge == mark]
            opened = [each for each in step.after.sessions.values() if each.charge == mark]
            counts = (len(held), len(waiting), len(opened))
            assert counts == (record.held, record.waiting, record.sessions), f"{counts} are there, {record} is counted"


def steps_and_numbers_are_what_history_says(step: Taken) -> None:
    """What is on record of a job's steps and numbers, and what who asks is told of them, follows from the events."""
    outcome, command = step.decision.outcome, step.command
    steps, series = StepHistory(), SeriesHistory()
    for event in step.before.events:
        steps.follow(event)
        series.follow(event)
    told, stood = _told_of_step(command, outcome), ""
    if told is not None and isinstance(command, Renew):
        stood = steps.works[command.name].steps[told[0]].stood()
    for event in step.decision.events:
        assert (steps.follow(event), series.follow(event)) == (None, None), event
    for lock in step.after.locks.values():
        assert steps.differs(lock) is None, steps.differs(lock)
        assert series.differs(lock) is None, series.differs(lock)
    assert told is None or told[1] == stood, f"told {told} of a step that was {stood}"
    if isinstance(outcome, EffectRefused) and outcome.why == "running":
        assert steps.works[outcome.name].steps[outcome.key].running, "refused for a try that is not under way"
    if isinstance(outcome, Numbered):
        assert isinstance(command, TakeNumber)
        is_next = not (outcome.again or command.at_least or command.number)
        wrong = series.wrong_answer(outcome.name, outcome.number, outcome.owner, is_next=is_next)
        assert wrong is None, wrong
        assert outcome.number >= command.at_least or outcome.again, "told a lower number than it asked for"
        was = step.before.locks.get(outcome.name) or LockRecord(ns=NS, name=outcome.name)
        mine = [each.number for each in was.numbers if each.owner and each.request_key == command.request_key]
        assert mine == ([outcome.number] if outcome.again else []) or command.number, "one ask has two numbers"


def _told_of_step(command: Command, outcome: outcomes.Outcome) -> tuple[str, str] | None:
    """The step that somebody begins, and how it stood before as the answer says."""
    effect = outcome.effect if isinstance(outcome, Renewed) else None
    note = command.effect if isinstance(command, Renew) else None
    if effect is None or note is None or note.state != EFFECT_BEGUN:
        return None
    if effect.state == EFFECT_DONE:
        return effect.key, "done"
    return effect.key, "in_doubt" if effect.doubt_token else "new" if effect.reason is None else "failed"


def events_are_few(step: Taken) -> None:
    """Every hold and every place ends once at most, and who comes makes one of each."""
    before = step.before
    known = sum(len(lock.holders) for lock in before.locks.values()) + len(before.tickets)
    jobs = len(getattr(step.command, "names", ("one",)))
    most = 3 * known + 2 * jobs + 2
    assert len(step.decision.events) <= most, f"{len(step.decision.events)} events of one command"


def places_and_history_agree(step: Taken) -> None:
    """Whoever comes to a line is in the history, and so is whoever goes: with what it waited for, or with a reason."""
    told = step.decision.events
    came = sorted((each.job, each.ticket) for each in told if each.kind == kinds.QUEUED)
    left = sorted((each.job, each.ticket) for each in told if each.kind == kinds.LEFT)
    got = sorted((each.job, each.ticket) for each in told if each.kind == kinds.ACQUIRED and each.ticket)
    before, after = set(step.before.tickets), set(step.after.tickets)
    assert set(came) >= after - before, f"{after - before} came, and the history has {came}"
    assert set(came) - after <= {*left, *got}, f"{came} came and went without a word"
    assert set(left) | set(got) >= before - after, f"{before - after} went, and the history has {left} and {got}"
    assert not after & {*left, *got}, f"{after} are there, and the history says that {left} and {got} went"
    assert len({*came}) == len(came), "a place came twice"
    assert len({*left, *got}) == len(left) + len(got), "a place went twice"


# Writes


def nothing_is_written_for_nothing(step: Taken) -> None:
    """Every write is a conflict for somebody. A heartbeat that comes at once may write what is there. What one session
    or principal has may be the same after it lost something and got something."""
    if isinstance(step.command, Inspect | InspectSession):
        assert not step.decision.writes, "a look wrote something"
        assert not step.decision.events, "a look made history"
    for key, record in step.decision.writes.items():
        is_job = key.startswith("lock/") or (key.startswith("ticket/") and record is not None)
        if (is_job or (key == META_KEY and isinstance(step.command, Sweep))) and not isinstance(step.command, Renew):
            assert record != step.earlier.get(key), f"{key} was written as it was"


def a_sweep_gets_on(step: Taken) -> None:
    """What is due is done, or less of it is left. Where nothing is due, nothing is done."""
    if not isinstance(step.command, Sweep) or step.before.meta.frozen is not None:
        return
    now_ms, key = step.before.now_ms, step.command.key
    was, record = step.earlier.get(key), step.records.get(key)
    if was is not None and _due_ms(was) <= now_ms:
        assert step.decision.writes, f"{key} is due, and stays so for ever"
    if not any(record is not None and _due_ms(record) <= now_ms for record in step.earlier.values()):
        holds = [each for lock in step.before.locks.values() for each in lock.holders]
        is_over = bool(step.before.meta.outages) or not all(step.before.hold_live(each) for each in holds)
        is_over = is_over or any(0 < each.delay_until_ms <= now_ms for each in step.before.locks.values())
        is_over = is_over or not all(map(step.before.ticket_live, step.before.tickets.values()))
        written = [each for each in step.decision.writes if not each.startswith("ticket/")]  # who is told to ask again
        assert is_over or not written, f"nothing is due, and {written} were written"
    assert record is None or _due_ms(record) > now_ms or step.decision.writes


def _due_ms(record: Stored) -> float:
    due_ms = record.due_ms()
    return math.inf if due_ms is None else due_ms


CHECKS = (
    the_answer_is_true,
    refusals_have_a_cause,
    a_refusal_about_the_ask_takes_nothing,
    a_place_is_of_one_ask,
    places_go_for_a_reason,
    one_place_of_a_group,
    nobody_who_is_gone_is_served,
    nobody_is_overtaken,
    nobody_waits_for_nothing,
    circles_are_told,
    who_is_given_up_was_in_a_circle,
    no_lease_ends_early,
    leases_keep_their_word,
    slots_are_the_lowest,
    usage_is_exact,
    steps_and_numbers_are_what_history_says,
    events_are_few,
    places_and_history_agree,
    nothing_is_written_for_nothing,
    a_sweep_gets_on,
)
