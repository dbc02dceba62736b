"""Steps and numbers as the history has them, and the world outside, where steps really happen.

`StepHistory` and `SeriesHistory` follow events and know none of the rules (`core/claims/effects.py`, `numbers.py`): who
began which step of which work and how that ended, and who has which number. A record, or an answer, that says something
else is wrong. `Outside` is what the simulated clients change: it counts how often each step of a work really happened,
and compares that with what the owners are told. It refuses who comes with an older fencing token, as fenced systems do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from dibs.base.jsontext import Document
from dibs.core import events as kinds
from dibs.core.events import Event
from dibs.core.records import EFFECT_BEGUN, EFFECT_DONE, EffectState, LockRecord

ONCE, DOUBT, NUMBER = "effect:once", "effect:doubt-told", "number"
NEW, RUNNING, DONE, FAILED, IN_DOUBT = "new", "running", "done", "failed", "in_doubt"
_ENDS = {kinds.EFFECT_DONE: DONE, kinds.EFFECT_FAILED: FAILED, kinds.EFFECT_IN_DOUBT: IN_DOUBT}

Wrong = tuple[str, str]  # a promise, and a sentence


class StepTries:
    """The tries of one step. `running` is the token of the one that has begun; 0: none has."""

    def __init__(self) -> None:
        self.running = 0
        self.ends: list[str] = []
        self.doubts: list[tuple[str, int]] = []  # owner and token of each try of which nobody knows how it ended
        self.results: list[str] = []  # of each time that it really happened

    def stood(self) -> str:
        """Return how the step stood before the try that has begun."""
        if DONE in self.ends:
            return DONE
        return IN_DOUBT if self.doubts else FAILED if self.ends else NEW

    def stands(self) -> str:
        return RUNNING if self.running else self.stood()


class WorkSteps:
    """The steps of the work under one name until it is released, and claimed anew. `since` is its first token; 0: it
    may have begun before anybody looked."""

    def __init__(self, since: int = 0) -> None:
        self.since = since
        self.owners: dict[int, str] = {}
        self.is_done = False
        self.steps: defaultdict[str, StepTries] = defaultdict(StepTries)


class StepHistory:
    def __init__(self) -> None:
        self.works: defaultdict[str, WorkSteps] = defaultdict(WorkSteps)
        self.work_of: dict[tuple[str, int], WorkSteps] = {}  # by job and token
        self._over: set[tuple[str, str]] = set()  # job and id of each try that has ended

    def follow(self, event: Event) -> Wrong | None:
        """Take an event into account. Returns what cannot be true of it."""
        work, token = self.works[event.job], event.token
        if event.kind == kinds.ACQUIRED:
            if not work.owners and (work.is_done or not work.steps):
                work = self.works[event.job] = WorkSteps(token)
            work.owners[token] = event.owner
            self.work_of[event.job, token] = work
        elif event.kind in kinds.OWNERSHIP_ENDS:
            work.owners.pop(token, None)
            for step in [each for each in work.steps.values() if each.running == token]:
                self._ended(step, IN_DOUBT, event)  # it never said how that ended
            if event.kind == kinds.RELEASED and not event.uncounted and not work.owners:
                work.is_done = event.done_until_ms is not None
                if not work.is_done:
                    self.works[event.job] = WorkSteps(token)
        elif event.kind == kinds.FORGOTTEN:
            self.works[event.job] = WorkSteps(token)
        elif event.kind == kinds.EFFECT_BEGUN:
            return self._begun(event, work.steps[event.effect_key or ""], work)
        elif event.kind in _ENDS:
            step = work.steps[event.effect_key or ""]
            if step.running != token or token not in work.owners:
                return ONCE, f"{event.owner} noted the end of {_step(event)}, and had not begun it."
            self._ended(step, _ENDS[event.kind], event)
        return None

    def _begun(self, event: Event, step: StepTries, work: WorkSteps) -> Wrong | None:
        stood, was_running, step.running = step.stood(), step.running, event.token
        if event.token not in work.owners:
            return ONCE, f"{event.owner} began {_step(event)}, and does not have the job."
        if stood == DONE or was_running:
            return ONCE, f"{event.owner} began {_step(event)}, which is {DONE if stood == DONE else 'under way'}."
        return None

    def _ended(self, step: StepTries, how: str, event: Event) -> None:
        step.running = 0
        step.ends.append(how)
        if how == IN_DOUBT:
            step.doubts.append((event.owner, event.token))

    def differs(self, lock: LockRecord) -> Wrong | None:
        """Return what the record of a job says of its steps that the history does not, or the other way round."""
        work = self.works[lock.name]
        noted = {each.key: each for each in lock.effects}
        for key in sorted({*noted, *work.steps}):
            step = work.steps.get(key) or StepTries()
            said = _said(noted[key], lock) if key in noted else NEW
            if said == RUNNING and (lock.name, noted[key].id) in self._over:
                return ONCE, f"A try of step {key} of {lock.name} that had ended was begun again."
            if said != step.stands():
                promise = DOUBT if step.stands() == IN_DOUBT else ONCE
                return promise, f"Step {key} of {lock.name} is {step.stands()}, and its record says {said}."
            if key in noted and step.stood() != DONE and _doubt(noted[key], said) != (step.doubts or [("", 0)])[0]:
                return DOUBT, f"Step {key} of {lock.name} is in doubt since {step.doubts[:1]}: {noted[key]}."
        self._over.update([(lock.name, each.id) for each in lock.effects if each.state != EFFECT_BEGUN])
        return None


def _step(event: Event) -> str:
    return f"step {event.effect_key} of {event.job}"


def _said(effect: EffectState, lock: LockRecord) -> str:
    if effect.state == EFFECT_BEGUN:
        return RUNNING if effect.token in [each.token for each in lock.holders] else IN_DOUBT
    return DONE if effect.state == EFFECT_DONE else IN_DOUBT if effect.doubt_token else FAILED


def _doubt(effect: EffectState, said: str) -> tuple[str, int]:
    if said == IN_DOUBT and not effect.doubt_token:
        return effect.owner, effect.token
    return effect.doubt_owner, effect.doubt_token


class SeriesHistory:
    def __init__(self) -> None:
        self.taken: defaultdict[str, dict[int, str]] = defaultdict(dict)  # by job: numbers and owners
        self._free: defaultdict[str, set[int]] = defaultdict(set)  # given back
        self._last: defaultdict[str, int] = defaultdict(int)
        self._after: dict[tuple[str, int], int] = {}  # job and number: the last one when it was given
        self._given: dict[tuple[str, int, str], int] = {}  # job, number, owner: how many were left out before it

    def follow(self, event: Event) -> Wrong | None:
        if event.kind not in (kinds.NUMBERED, kinds.NUMBER_RETURNED):
            return None
        job, number = event.job, int(event.reason or 0)
        taken, free, last = self.taken[job], self._free[job], self._last[job]
        if event.kind == kinds.NUMBER_RETURNED:
            taken.pop(number, None)
            after = self._after.get((job, number), last)
            if number == last and after < last:  # it is as if it had never been given
                self._last[job] = max([after, *[each for each in taken if each < number]])
                self._free[job] = {each for each in free if each <= self._last[job]}
            else:
                free.add(number)
            return None
        owner = taken.get(number)
        self._given[job, number, event.owner] = number - min([*free, 1 + last])
        self._after[job, number], self._last[job] = last, max(last, number)
        free.discard(number)
        taken[number] = event.owner
        return None if owner is None else (NUMBER, f"{event.owner} was given {number} of {job}, which {owner} has.")

    def wrong_answer(self, job: str, number: int, owner: str, *, is_next: bool) -> Wrong | None:
        """Return what is wrong with this answer to who asked for a number, or for just the next one."""
        left_out = self._given.get((job, number, owner))
        if left_out is None:
            return NUMBER, f"{owner} was told that {number} of {job} is its own, which it was never given."
        if is_next and left_out > 0:
            return NUMBER, f"{owner} asked for the next number of {job} and got {number}: {left_out} were left out."
        return None

    def differs(self, lock: LockRecord) -> Wrong | None:
        taken = self.taken[lock.name]
        if lock.last_number < max(taken, default=0):
            return NUMBER, f"The last number of {lock.name} is {lock.last_number}, and {max(taken)} is taken."
        for each in lock.numbers:
            if taken.get(each.number, "") != each.owner:
                return (
                    NUMBER,
                    f"{each.number} of {lock.name} is {taken.get(each.number)}'s, and on record {each.owner}'s.",
                )
        return None


class Outside:
    """All of it for one store. `say` takes a promise and a sentence."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self.steps, self.series = StepHistory(), SeriesHistory()
        self._seen: dict[tuple[str, str], int] = {}  # by job and step: the highest token that came
        self._asks: dict[tuple[str, str], tuple[int, str]] = {}  # by job and request key: its number, and whose it is
        # By job and number, then by request key of each give-back: whose the number was when that was first sent. An
        # empty name: nobody here knows.
        self._given_back: defaultdict[tuple[str, int], dict[str, str]] = defaultdict(dict)
        self._happened = 0

    def goes_on_from(self, before: Outside) -> None:
        """An older copy took over. Whose a number is that was given back before is not known from now on."""
        for number, whose in before._given_back.items():
            self._given_back[number] = dict.fromkeys(whose, "")

    def learn(self, events: Iterable[Event]) -> None:
        """The history of an older copy. What happened outside under it is not known here."""
        for event in events:
            self.follow(event)
        for work in (*self.steps.works.values(), *self.steps.work_of.values()):
            work.since = 0

    def follow(self, event: Event) -> None:
        self._report(self.steps.follow(event))
        if event.kind == kinds.NUMBER_RETURNED:
            self._report(self._freed(event.job, int(event.reason or 0)))
        self._report(self.series.follow(event))

    def _freed(self, job: str, number: int) -> Wrong | None:
        owner = self.series.taken[job].get(number, "")
        if not owner or not {"", owner}.isdisjoint(self._given_back[job, number].values()):
            return None
        return NUMBER, f"{number} of {job} was freed, which {owner} has and did not give back."

    def written(self, lock: LockRecord) -> None:
        self._report(self.steps.differs(lock))
        self._report(self.series.differs(lock))

    def _report(self, wrong: Wrong | None) -> None:
        if wrong is not None:
            self._say(*wrong)

    # What clients do

    def check_answer(self, job: str, token: int, shown: Document) -> None:
        """An owner that begins a step reads how it stands. One that has lost the job meanwhile may be told what is not
        true any more."""
        key, status = str(shown["key"]), shown["status"]
        work = self.steps.work_of.get((job, token))
        if work is None or not work.since or token not in work.owners:
            return
        step, who = work.steps[key], work.owners[token]
        if status in (NEW, FAILED) and step.results:
            self._say(ONCE, f"{who} was told that step {key} of {job} is {status}, and it had happened.")
        if status == DONE and shown.get("result") not in step.results:
            self._say(ONCE, f"{who} was told that step {key} of {job} gave {shown.get('result')}, and it never did.")
        if status == IN_DOUBT and (shown.get("owner"), shown.get("fencing_token")) not in step.doubts[:1]:
            self._say(
                DOUBT, f"{who} was told {shown} of step {key} of {job}, and it is in doubt since {step.doubts[:1]}."
            )

    def finds(self, job: str, token: int, key: str) -> str | None:
        """An owner looks whether it has happened. Older ones come too late from now on."""
        self._seen[job, key] = max(token, self._seen.get((job, key), 0))
        work = self.steps.work_of.get((job, token))
        return work.steps[key].results[-1] if work is not None and work.steps[key].results else None

    def does(self, job: str, token: int, key: str) -> str | None:
        """It happens; returns what it gives. None: a later owner was here."""
        if token < self._seen.get((job, key), 0):
            return None
        self._seen[job, key] = token
        work = self.steps.work_of.get((job, token))
        if work is None:  # its token was lost with a store; its lease may live on under another one
            work = self.steps.works[job]
            work.since = 0
        self._happened += 1
        results = work.steps[key].results
        results.append(f"{key}-{self._happened}")
        if len(results) > 1 and work.since:
            self._say(ONCE, f"Step {key} of {job} happened {len(results)} times.")
        return results[-1]

    def gives_back(self, job: str, number: int, request_key: str) -> None:
        """A client sends this, perhaps once more."""
        self._given_back[job, number].setdefault(request_key, self.series.taken[job].get(number, ""))

    def numbered(self, job: str, number: int, owner: str, request_key: str, *, is_next: bool) -> None:
        """A server has this number for an ask. A repeat gets the same, until that is given back."""
        self._report(self.series.wrong_answer(job, number, owner, is_next=is_next))
        first, whose = self._asks.setdefault((job, request_key), (number, owner))
        if first != number and self.series.taken[job].get(first) == whose:
            self._say(NUMBER, f"One ask of {owner} got {first} and {number} of {job}.")
