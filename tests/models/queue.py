"""A dumb model of sessions, lines, trees and deadlocks. The clever rules are checked against it.

It shares no code with `dibs.core`, only the numbers in `limits`. There is one list of holds and one list of places,
both in the order in which they came. After every question the whole list of places is walked again from its beginning,
until nobody can be served any more: no line of its own a job, no reservation, no record of who waits for what.
Deadlocks are found by trying: every session that waits for nothing releases everything, every place that can then be
served is served, and so on. The sessions that are left are deadlocked.

It notices everything at the moment it happens, so a store is compared with it while a sweeper never sleeps. Access
lists, quotas, outages and the forgetting of idle jobs are not in it; the models beside it have outages and forgetting.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dibs.core import limits

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_resource(job: str) -> bool:
    """It can be held, and nothing else."""
    return job.startswith(("path:", "repo:", "branch:"))


@dataclass
class Wish:
    """What somebody asks for: one job or several at once."""

    jobs: tuple[str, ...]
    worker: str
    principal: str
    lease: str
    ttl_ms: int = 60_000
    shared: bool = False
    slots: int = 0  # 0: as the pool has them, else 1
    units: int = 1
    session: str | None = None
    lasting: bool = False
    key: str | None = None
    delay_ms: int = 0
    max_attempts: int = 0


@dataclass
class Place:
    """A wish that waits. `number` is unique."""

    wish: Wish
    number: int
    since_ms: int
    asked_ms: int  # the last time
    until_ms: int
    was_repeated: bool = False  # by another request than the one that made it


@dataclass
class Hold:
    """One owner of one job."""

    job: str
    wish: Wish
    token: int
    until_ms: int | None  # None: as long as the session
    since_ms: int = 0
    numbers: tuple[int, ...] = ()  # of its slots
    known: bool = False  # another ask of the session may rely on it


@dataclass
class Run:
    """A session."""

    principal: str
    owner: str
    ttl_ms: int
    until_ms: int
    how: str = ""  # how it ended
    parent: str | None = None
    want: tuple[Wish, int] | None = None  # what it was refused last, and when


@dataclass
class Facts:
    """The state of a job besides its owners."""

    token: int = 0
    failures: int = 0
    max_attempts: int = 0
    parked: bool = False
    slots: int = 1  # as its owners said, or an operator
    pool: bool = False  # it was an operator
    resumed: bool = False  # for `stuck`: it was paused, and may have as many slots again as anybody wants
    rests_until_ms: int = 0
    done_until_ms: int = 0
    ended: list[tuple[Wish, str, int]] = field(default_factory=list)  # newest first, with the time


def overlap(one: str, other: str) -> bool:
    """Whether two names cover a common place. A name outside a tree covers only itself."""
    if one == other:
        return True
    if not (one.startswith(("path:", "repo:")) and other.startswith(("path:", "repo:"))):
        return False
    if "repo:" in (one[:5], other[:5]):
        return True
    pairs = zip(one[5:].split("/"), other[5:].split("/"), strict=False)
    return all(left == right for left, right in pairs)


def within(inner: str, outer: str) -> bool:
    """Whether `outer` covers `inner` and is another name."""
    if inner == outer or not overlap(inner, outer):
        return False
    return outer.startswith("repo:") or (inner.startswith("path:") and len(inner) > len(outer))


@dataclass
class World:
    """Everybody and everything at one moment."""

    now_ms: int = 0
    holds: list[Hold] = field(default_factory=list)
    line: list[Place] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    numbers: int = 0
    served: list[Place] = field(default_factory=list)  # in the order in which they were
    covered_before: set[tuple[str | None, str]] = field(default_factory=set)  # for `stuck`

    def copied(self) -> World:
        """A world that can go on by itself. A wish never changes, so both have the same."""
        return replace(
            self,
            holds=[replace(hold) for hold in self.holds],
            line=[replace(place) for place in self.line],
            runs={session: replace(run) for session, run in self.runs.items()},
            facts={job: replace(facts) for job, facts in self.facts.items()},
            served=list(self.served),
            covered_before=set(self.covered_before),
        )

    def about(self, job: str) -> Facts:
        return self.facts.setdefault(job, Facts())

    def of(self, job: str) -> list[Hold]:
        return [hold for hold in self.holds if hold.job == job]

    # Who stands in whose way

    def are_related(self, one: str | None, other: str | None) -> bool:
        """Whether one session is the other's parent. They stand in nobody's way but that of others."""
        pairs = ((one, other), (other, one))
        return any(old and young in self.runs and self.runs[young].parent == old for old, young in pairs)

    def in_way(self, wish: Wish, job: str) -> list[Hold]:
        """The holds that keep `wish` from having `job`."""
        facts = self.about(job)
        if facts.pool:  # an owner without a number had it before there was a pool
            taken = sum(len(hold.numbers) or 1 for hold in self.of(job))
            fits = taken + wish.units <= facts.slots and all(hold.numbers for hold in self.of(job))
            return [] if fits else self.of(job)
        same = [hold for hold in self.of(job) if not self.are_related(wish.session, hold.wish.session)]
        if wish.shared:
            found = [hold for hold in same if not hold.wish.shared]
        else:
            taken = sum(len(hold.numbers) or 1 for hold in same)
            slots = wish.slots or 1
            alike = slots > 1 and facts.slots == slots and all(not hold.wish.shared for hold in same)
            found = [] if not same or (alike and taken + wish.units <= slots) else same
        for hold in self.holds:
            if hold.job != job and overlap(hold.job, job):
                both_shared = wish.shared and hold.wish.shared
                own = wish.session is not None and wish.session == hold.wish.session
                own = own or self.are_related(wish.session, hold.wish.session)
                found += [] if both_shared or own else [hold]
        return found

    def before(self, wish: Wish, job: str, place: Place | None) -> list[Place]:
        """The places that come before it on the way to `job`."""
        found = []
        for other in self.line:
            if other is place:
                break
            for name in other.wish.jobs:
                # Shared waiters of one plain job are served in order; in a tree they pass each other.
                apart = wish.shared and other.wish.shared and (name != job or ":" in job)
                if overlap(name, job) and not apart:
                    found.append(other)
        return found

    def owned(self, wish: Wish, job: str) -> Hold | None:
        """The hold on this very job that the same session has already."""
        if wish.session is None:
            return None
        found = [hold for hold in self.of(job) if hold.wish.session == wish.session]
        found = [hold for hold in found if hold.wish.shared == wish.shared]
        return found[0] if found else None

    def may_have(self, wish: Wish, job: str, place: Place | None) -> bool:
        if self.now_ms < self.about(job).rests_until_ms or self.in_way(wish, job) or self.paused(job):
            return False
        return not self.before(wish, job, place)

    def paused(self, job: str) -> bool:
        return self.about(job).pool and not self.about(job).slots

    def never_fits(self, wish: Wish, job: str) -> bool:
        """Whether the slots are such that it would wait for ever. A pause ends."""
        facts = self.about(job)
        if not facts.pool:
            return wish.units > (wish.slots or 1)
        if wish.shared:
            return True
        fits = wish.units <= facts.slots and wish.slots in (0, facts.slots)
        return bool(facts.slots) and not facts.resumed and not fits

    def covered(self, wish: Wish, job: str) -> bool:
        """Whether the session has all of it already, by a claim above it, or its parent or child by one of it."""
        above = [hold.wish for hold in self.holds if within(job, hold.job)]
        own = [other for other in above if wish.session and other.session == wish.session]
        return any(wish.shared or not other.shared for other in own) or self.related_cover(wish, job)

    def related_cover(self, wish: Wish, job: str) -> bool:
        if (wish.session, job) in self.covered_before:
            return True
        if self.about(job).pool:
            return False
        at_or_above = [hold.wish for hold in self.holds if job == hold.job or within(job, hold.job)]
        related = [other for other in at_or_above if self.are_related(wish.session, other.session)]
        return any(wish.shared or not other.shared for other in related)

    def otherwise(self, wish: Wish, job: str) -> bool:
        """Whether the same session waits for the same job in the other mode, or for other units."""
        places = [place.wish for place in self.own_places(wish, job)]
        return any(each.shared != wish.shared or wish.units not in (1, each.units) for each in places)

    def own_places(self, wish: Wish, job: str) -> list[Place]:
        own = [place for place in self.line if wish.session and place.wish.session == wish.session]
        return [place for place in own if job in place.wish.jobs]

    # What time brings

    def run_over(self, session: str | None) -> bool:
        if session is None:
            return False
        run = self.runs.get(session)
        return run is None or bool(run.how) or self.now_ms >= run.until_ms

    def tick(self, now_ms: int) -> None:
        """Notice all ends, and serve every place that can be served."""
        self.now_ms = now_ms
        for run in self.runs.values():
            if not run.how and now_ms >= run.until_ms:
                run.how = "expired"
        for hold in list(self.holds):
            session = hold.wish.session
            if hold.until_ms is not None and now_ms >= hold.until_ms:
                self.end(hold, "expired")
            elif session is not None and not hold.wish.lasting and self.run_over(session):
                self.end(hold, self.runs[session].how, verdict=False)
        self.serve()

    def end(self, hold: Hold, how: str, retry_ms: int = 0, *, verdict: bool = True) -> None:
        self.holds.remove(hold)
        facts = self.about(hold.job)
        run = self.runs.get(hold.wish.session or "")
        at_ms = self.now_ms
        if how == "expired":
            of_run = run.until_ms if run is not None and not hold.wish.lasting else at_ms
            at_ms = min(at_ms, of_run, at_ms if hold.until_ms is None else hold.until_ms)
        older = [each for each in facts.ended if at_ms - each[2] < limits.REMEMBERED_MS]
        facts.ended = [(hold.wish, how, at_ms), *older][: limits.REMEMBERED_MAX]
        if run is not None:
            run.want = None
        if how in ("released", "done"):
            facts.failures = 0 if verdict else facts.failures
        elif how in ("expired", "broken", "failed"):
            facts.failures += 0 if is_resource(hold.job) else 1
            rest_ms = retry_ms if how == "failed" else hold.wish.delay_ms
            if rest_ms:
                over_ms = min(self.now_ms, hold.until_ms or self.now_ms)
                facts.rests_until_ms = max(facts.rests_until_ms, over_ms + rest_ms)
            if facts.max_attempts and facts.failures >= facts.max_attempts:
                facts.parked = True

    def pointless(self, place: Place) -> bool:
        if self.now_ms >= place.until_ms or self.run_over(place.wish.session):
            return True
        needed = [job for job in place.wish.jobs if not self.owned(place.wish, job)]
        if any(self.never_fits(place.wish, job) for job in needed):
            return True
        facts = [self.about(job) for job in needed]
        return any(each.parked or self.now_ms < each.done_until_ms for each in facts)

    def serve(self) -> None:
        """Walk the places from the first to the last, again and again, until no place is served."""
        moved = True
        while moved:
            moved = False
            self.line = [place for place in self.line if not self.pointless(place)]
            for place in self.line:
                wish = place.wish
                if all(self.owned(wish, job) or self.may_have(wish, job, place) for job in wish.jobs):
                    self.line.remove(place)
                    self.served.append(place)
                    for job in wish.jobs:
                        own = self.owned(wish, job)
                        if own is None:
                            self.grant(wish, job)
                        else:
                            own.known = True
                            self.lasts(wish, own)
                    moved = True
                    break

    def grant(self, wish: Wish, job: str) -> Hold:
        facts = self.about(job)
        facts.token += 1
        facts.max_attempts = wish.max_attempts or facts.max_attempts
        facts.rests_until_ms = facts.done_until_ms = 0
        if not facts.pool and not self.of(job):
            facts.slots = wish.slots or 1
        numbers: list[int] = []
        if not wish.shared and (facts.pool or facts.slots > 1):
            taken = [number for hold in self.of(job) for number in hold.numbers]
            numbers = [number for number in range(len(taken) + wish.units) if number not in taken][: wish.units]
        until_ms = self.now_ms + wish.ttl_ms if wish.ttl_ms else None
        hold = Hold(job, wish, facts.token, until_ms, self.now_ms, tuple(numbers))
        self.holds.append(hold)
        run = self.runs.get(wish.session or "")
        if run is not None:
            run.want = None
        return hold

    # Would waiting ever end

    def stuck(self, *, wants: bool) -> set[str]:
        """The sessions that can never get what they wait for, even if all others release as soon as they can."""
        world = self.copied()
        for facts in world.facts.values():
            facts.rests_until_ms = facts.done_until_ms = 0
            facts.parked = False
        for place in world.line:
            place.until_ms = world.now_ms + 1
        polled = {}
        for session, run in world.runs.items():
            if wants and run.want is not None and not world.run_over(session):
                wish, at_ms = run.want
                if world.now_ms < at_ms + limits.WANT_MS:
                    polled[session] = (_with(wish, key=None), at_ms)
                    # A parent that ends its claim takes its child's cover away. Others may end theirs first, below.
                    covered = {(session, job) for job in wish.jobs if world.related_cover(wish, job)}
                    world.covered_before |= covered
        for facts in world.facts.values():
            if facts.pool and not facts.slots:
                facts.slots, facts.resumed = 1_000, True  # whoever paused it may end that
        world.served = []
        while True:
            world.serve()
            for place, hold in itertools.product(world.served, world.holds):
                hold.since_ms = place.since_ms if hold.wish.lease == place.wish.lease else hold.since_ms
            for session, (wish, at_ms) in list(polled.items()):
                # A poll was refused for those who were there then. Others it meets when it asks again.
                since = copy.copy(world)
                since.holds = [hold for hold in world.holds if hold.since_ms <= at_ms]
                since.line = [place for place in world.line if place.since_ms <= at_ms]
                if not any(since.waits(wish, job) for job in wish.jobs):
                    del polled[session]
            waiting = {place.wish.session for place in world.line} | set(polled)
            over = [hold for hold in world.holds if hold.wish.session not in waiting - {None}]
            if not over:
                return {session for session in waiting if session is not None}
            first = [hold for hold in over if not any(world.covers(hold, session) for session in polled)]
            world.holds = [hold for hold in world.holds if hold not in (first or over)]

    def covers(self, hold: Hold, session: str) -> bool:
        """Whether a poll of this session passes the line because of what its parent or child has."""
        return (session, hold.job) in self.covered_before and self.are_related(session, hold.wish.session)

    def waits(self, wish: Wish, job: str) -> bool:
        """Whether a poll would be told to come back. Another number of slots is only an error while it lasts."""
        verdict = self.judge(wish, job, None)
        if self.never_fits(wish, job):
            return False
        return verdict in ("held", "delayed") or (verdict == "differs" and not self.mine(wish, job, None))

    def would_be_stuck(self, wish: Wish, *, wait: bool) -> tuple[bool, bool]:
        """Whether the asker would wait for ever. Also whether it would without its own holds, so that it is no part
        of the deadlock, or without this request."""
        assert wish.session is not None
        with_all = self.copied()
        with_all.runs[wish.session].want = None if wait else (wish, self.now_ms)
        if wait:
            with_all.line.append(Place(wish, -1, self.now_ms + 1, self.now_ms, self.now_ms + 1))
        without = with_all.copied()
        without.holds = [hold for hold in without.holds if hold.wish.session != wish.session]
        without.line = [place for place in without.line if place.wish.session != wish.session or place.number == -1]
        before = self.copied()
        before.runs[wish.session].want = None  # this is what it asks for instead
        anyway = wish.session in without.stuck(wants=True) or wish.session in before.stuck(wants=True)
        return wish.session in with_all.stuck(wants=True), anyway

    def would_close(self, wish: Wish, *jobs: str) -> bool:
        """Whether granting these closes a circle: the session passes a line, in which somebody waits for it then."""
        granted = self.copied()
        for job in jobs:
            granted.grant(wish, job)
        return wish.session in granted.stuck(wants=False)

    # What may be asked

    def place_of(self, wish: Wish, ticket: str | None) -> Place | None:
        """The place that is shown; else one in which the same key waits for the same, or, without keys, the session."""
        alike = [place for place in self.line if place.wish.jobs == wish.jobs]
        alike = [place for place in alike if place.wish.principal == wish.principal]
        found = [place for place in alike if place.wish.lease == ticket]
        if not found:
            alike = [place for place in alike if place.wish.shared == wish.shared]
            found = [place for place in alike if self.repeats(wish, place.wish)]
        return found[0] if found else None

    def repeats(self, wish: Wish, other: Wish) -> bool:
        if wish.lease == other.lease or (wish.key is not None and wish.key == other.key):
            return True
        return wish.session is not None and wish.session == other.session and wish.key is None and other.key is None

    def remembered(self, job: str) -> list[tuple[Wish, str, int]]:
        return [each for each in self.about(job).ended if self.now_ms - each[2] < limits.REMEMBERED_MS]

    def mine(self, wish: Wish, job: str, ticket: str | None, *, by_session: bool = True) -> Hold | None:
        for hold in self.of(job):
            if hold.wish.principal != wish.principal:
                continue
            if hold.wish.lease in (ticket, wish.lease) or (wish.key and hold.wish.key == wish.key):
                return hold
            if by_session and wish.session is not None and hold.wish.session == wish.session:
                return hold
        return None

    def judge(self, wish: Wish, job: str, ticket: str | None, *, by_session: bool = True) -> str:
        """`mine`, `free`, or why not."""
        mine = self.mine(wish, job, ticket, by_session=False)
        spent = [ended for ended, _, _ in self.remembered(job) if wish.key and ended.key == wish.key]
        is_spent = mine is None and any(ended.principal == wish.principal for ended in spent)
        if mine is None and not is_spent:
            mine = self.mine(wish, job, ticket, by_session=by_session)
        if mine is not None:
            same = mine.wish.shared == wish.shared and wish.units in (1, len(mine.numbers) or 1)
            return "mine" if same else "differs"
        facts, held = self.about(job), self.of(job)
        if is_spent:
            return "key-spent"
        if facts.parked:
            return "parked"
        if self.never_fits(wish, job):
            return "differs"
        other_slots = held and not facts.pool and facts.slots != (wish.slots or 1)
        if other_slots and not wish.shared and not held[0].wish.shared:
            return "differs"
        waiting = bool(self.before(wish, job, None))
        if waiting and not self.in_way(wish, job):
            waiting = not self.covered(wish, job) or bool(self.own_places(wish, job))
        if self.now_ms < facts.done_until_ms:
            return "done"
        if self.in_way(wish, job) or self.paused(job) or (held and waiting):
            return "held"
        if self.now_ms < facts.rests_until_ms:
            return "delayed"
        if waiting:
            return "held"
        if not by_session and self.owned(wish, job):
            return "held"
        return "free"

    def take(self, wish: Wish, verdicts: Sequence[str], ticket: str | None) -> None:
        for job, verdict in zip(wish.jobs, verdicts, strict=True):
            if verdict == "free":
                self.grant(wish, job)
            else:
                self.extend(wish, job, ticket)

    def extend(self, wish: Wish, job: str, ticket: str | None, *, by_session: bool = True) -> None:
        """Never shorter."""
        mine = self.mine(wish, job, ticket, by_session=by_session)
        if mine is None:
            return
        mine.known = mine.known or not self.is_repeat(wish, mine, ticket)
        self.lasts(wish, mine)
        if mine.until_ms is None or not wish.ttl_ms:
            return
        if self.now_ms + wish.ttl_ms > mine.until_ms:
            mine.until_ms = self.now_ms + wish.ttl_ms
            mine.wish = _with(mine.wish, ttl_ms=wish.ttl_ms)

    def name_rest(self, wish: Wish, ticket: str | None) -> None:
        """A refusal names what an earlier answer to this claim gave. The session's other asks may know of it: then not.
        What the caller is not told of stays as it is."""
        for job in wish.jobs:
            mine = self.mine(wish, job, ticket)
            if mine is not None and self.judge(wish, job, ticket) == "mine":
                same = mine.wish.lease in (ticket, wish.lease)
                if same or (self.is_repeat(wish, mine, ticket) and not mine.known):
                    self.extend(wish, job, ticket)

    def is_repeat(self, wish: Wish, hold: Hold, ticket: str | None) -> bool:
        return hold.wish.lease in (ticket, wish.lease) or bool(wish.key and hold.wish.key == wish.key)

    def lasts(self, wish: Wish, hold: Hold) -> None:
        """Who claims for the session's life relies on a hold of the session for that long."""
        if wish.session is not None and hold.wish.session == wish.session and not wish.ttl_ms:
            hold.until_ms, hold.wish = None, _with(hold.wish, ttl_ms=0)

    def claim(self, wish: Wish, *, wait: bool = False, ticket: str | None = None) -> set[str]:
        """Every correct answer; mostly there is one. An uncertain deadlock may be reported or not. Then the caller
        says with `queue`, `refuse` or `move_on` which answer came."""
        if wish.max_attempts and all(is_resource(job) for job in wish.jobs):
            return {"not-a-job"}
        if wish.session is not None:
            run = self.runs.get(wish.session)
            if run is None or run.principal != wish.principal:
                return {"no-such-session"}
            if self.run_over(wish.session):
                return {"session-over"}
        place = self.place_of(wish, ticket) if wait else None
        verdicts = [self.judge(wish, job, ticket) for job in wish.jobs]
        bad = [verdict for verdict in verdicts if verdict not in ("mine", "free")]
        waitable = all(verdict in ("held", "delayed") for verdict in bad)
        if place is not None:
            if bad and waitable and wish.units not in (1, place.wish.units):
                return {"differs" if len(wish.jobs) == 1 else "refused"}
            if bad and waitable:
                if not place.was_repeated or self.now_ms - place.asked_ms > limits.TICKET_MS // 6:
                    place.asked_ms, place.until_ms = self.now_ms, self.now_ms + limits.TICKET_MS
                place.was_repeated = True
                return {"queued"}
            if place.wish.lease != ticket and any(verdict in ("key-spent", "differs") for verdict in bad):
                self.serve()
                return {bad[0] if len(wish.jobs) == 1 else "refused"}
            self.line.remove(place)
        if not bad:
            if self.would_close(wish, *[job for job in wish.jobs if self.judge(wish, job, ticket) == "free"]):
                return {"deadlock"}
            self.take(wish, verdicts, ticket)
            self.serve()
            return {"granted"}
        self.serve()
        own = [self.mine(wish, job, ticket) for job in wish.jobs]
        for_itself = any(each is not None and self.owned(wish, each.job) is not each for each in own)
        answer = "queued" if wait and waitable and not for_itself else "refused" if len(wish.jobs) > 1 else bad[0]
        if waitable and any(self.otherwise(wish, job) for job in wish.jobs):
            return {"differs" if len(wish.jobs) == 1 else "refused"}
        if waitable and wish.session is not None:
            certain, anyway = self.would_be_stuck(wish, wait=wait)
            if certain and not anyway:
                return {"deadlock"}
            if certain:
                return {"deadlock", answer}
        return {answer}

    def queue(self, wish: Wish) -> None:
        self.numbers += 1
        self.line.append(Place(wish, self.numbers, self.now_ms, self.now_ms, self.now_ms + limits.TICKET_MS))
        run = self.runs.get(wish.session or "")
        if run is not None:
            run.want = None

    def refuse(self, wish: Wish) -> None:
        """The session was told to come back, or that it would wait for ever. It counts as waiting if it holds
        something."""
        verdicts = {job: self.judge(wish, job, None) for job in wish.jobs if self.judge(wish, job, None) != "mine"}
        refused = [job for job, verdict in verdicts.items() if verdict != "free"]
        self.want(_with(wish, jobs=tuple(refused or verdicts)))

    def want(self, wish: Wish) -> None:
        run = self.runs.get(wish.session or "")
        if run is not None and any(hold.wish.session == wish.session for hold in self.holds):
            run.want = (wish, self.now_ms)

    def move_on(self, wish: Wish) -> None:
        """The session got a final answer to its request, and waits for nothing else."""
        run = self.runs.get(wish.session or "")
        if run is not None:
            run.want = None

    def claim_any(self, wish: Wish, count: int = 0) -> tuple[str, str]:
        """The answer, and the job that was granted; the last of them, if there are several."""
        if wish.max_attempts and all(is_resource(job) for job in wish.jobs):
            return "not-a-job", ""
        if wish.session is not None:
            run = self.runs.get(wish.session)
            if run is None or run.principal != wish.principal:
                return "no-such-session", ""
            if self.run_over(wish.session):
                return "session-over", ""
        for job in wish.jobs:
            known = [hold.wish for hold in self.of(job)] + [ended for ended, _, _ in self.remembered(job)]
            if wish.key and any((w.principal, w.key) == (wish.principal, wish.key) for w in known):
                verdict = self.judge(wish, job, None, by_session=False)
                if verdict == "mine":
                    self.extend(wish, job, None, by_session=False)
                return ("granted" if verdict == "mine" else verdict), job
        before, got = self.copied(), 0
        for job in wish.jobs:
            if self.judge(wish, job, None, by_session=False) == "free":
                if self.would_close(wish, job):
                    continue
                self.grant(wish, job)
                got += 1
                if got >= count:
                    self.serve()
                    return "granted", job
        self.__dict__.update(before.__dict__)
        self.move_on(wish)
        return "refused", ""

    def proved(self, job: str, principal: str, lease: str | None, session: str | None) -> Hold | None:
        for hold in self.of(job):
            same = hold.wish.lease == lease if lease is not None else hold.wish.session == session
            if same and hold.wish.principal == principal:
                return hold
        return None

    def was(self, job: str, principal: str, lease: str | None, session: str | None) -> str:
        for ended, how, _ in self.about(job).ended:
            same = ended.lease == lease if lease is not None else ended.session == session
            if same and ended.principal == principal:
                return how
        return ""

    def repeated(self, how: str) -> str:
        return {"released": "released-again", "done": "released-again", "failed": "failed-again"}.get(
            how, "not-current"
        )

    def release(self, job: str, principal: str, lease: str | None, session: str | None, done_ms: int = 0) -> str:
        if done_ms and is_resource(job):
            return "not-a-job"
        hold = self.proved(job, principal, lease, session)
        if hold is None:
            how = self.was(job, principal, lease, session)
            return "not-current" if done_ms and how != "done" else self.repeated(how)
        if done_ms:
            self.about(job).done_until_ms = self.now_ms + done_ms
        self.end(hold, "done" if done_ms else "released")
        self.serve()
        return "released"

    def fail(self, job: str, principal: str, lease: str | None, session: str | None, retry_ms: int) -> str:
        if is_resource(job):
            return "not-a-job"
        hold = self.proved(job, principal, lease, session)
        if hold is None:
            return self.repeated(self.was(job, principal, lease, session))
        self.end(hold, "failed", retry_ms)
        self.serve()
        return "failed"

    def renew(self, job: str, principal: str, lease: str | None, session: str | None, ttl_ms: int | None) -> str:
        hold = self.proved(job, principal, lease, session)
        if hold is None:
            return "not-current"
        told_ms = hold.until_ms if hold.known and ttl_ms is not None else 0
        if ttl_ms is not None and told_ms is not None:
            hold.wish = _with(hold.wish, ttl_ms=ttl_ms)
        if hold.wish.ttl_ms:
            hold.until_ms = max(self.now_ms + hold.wish.ttl_ms, told_ms or 0)
        hold.known = hold.wish.session is not None
        return "renewed"

    def transfer(
        self, job: str, principal: str, lease: str | None, session: str | None, heir: str | None, fresh: str
    ) -> str:
        """To a session, or to nobody in particular."""
        hold = self.proved(job, principal, lease, session)
        if hold is None:
            return "not-current"
        if heir is not None and self.run_over(heir):
            return "no-such-session"
        before = self.copied()
        run = self.runs[heir] if heir is not None else None
        ttl_ms = hold.wish.ttl_ms or (limits.TTL_MS_DEFAULT if run is None else 0)
        wish = _with(hold.wish, lease=fresh, session=heir, key=None, ttl_ms=ttl_ms)
        wish = _with(wish, principal=run.principal if run else principal, worker=run.owner if run else "heir")
        self.end(hold, "transferred")
        facts = self.about(job)
        had = facts.pool, facts.slots
        if facts.pool and not hold.numbers:  # from before the pool: it has the job alone
            facts.pool, facts.slots = False, 1
        if not (hold.numbers and (facts.pool or facts.slots == 1)) and self.in_way(_with(wish, slots=facts.slots), job):
            self.__dict__.update(before.__dict__)
            return "held"
        facts.pool, facts.slots = had
        facts.token += 1
        until_ms = self.now_ms + ttl_ms if ttl_ms else None
        self.holds.append(Hold(job, wish, facts.token, until_ms, self.now_ms, hold.numbers))
        if run is not None:
            run.want = None
            for place in list(self.line):
                if (place.wish.session, place.wish.jobs, place.wish.shared) == (heir, (job,), wish.shared):
                    self.line.remove(place)
                    self.served.append(place)
        if heir is not None and heir in self.stuck(wants=False):
            self.__dict__.update(before.__dict__)
            return "deadlock"
        self.serve()
        return "transferred"

    def break_(self, job: str) -> int:
        taken = self.of(job)
        for hold in taken:
            self.end(hold, "broken")
        self.serve()
        return len(taken)

    def set_pool(self, job: str, slots: int | None) -> None:
        facts = self.about(job)
        if slots is not None:
            facts.pool, facts.slots = True, slots
        elif facts.pool:
            facts.pool, facts.slots = False, 1
        self.serve()

    def leave(self, lease: str, principal: str) -> bool:
        found = [p for p in self.line if (p.wish.lease, p.wish.principal) == (lease, principal)]
        self.line = [place for place in self.line if place not in found]
        for place in found:
            self.want(place.wish)
        self.serve()
        return bool(found)

    def end_run(self, session: str, principal: str | None, *, dead: bool) -> str:
        run = self.runs.get(session)
        if run is None or (principal is not None and run.principal != principal):
            return "no-such-session"
        if run.how:
            return "over" if run.how == "released" and not dead else "session-over"
        run.how = "expired" if dead else "released"
        self.tick(self.now_ms)
        return "over"


def _with(wish: Wish, **changes: object) -> Wish:
    made = copy.copy(wish)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
