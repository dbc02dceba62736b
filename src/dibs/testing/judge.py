"""The judge of a run of `dibs verify`: compares what clients asked and were answered with the promises.

It knows the promises and none of the rules. A run is a list of calls, a line of JSON each (`RecordedCall`).
All times are of one clock. A client is *sure* of a job from the answer that gave it the job until one TTL after it sent
what was answered last, or until it sends a release. It needs no network to know that. A client of the SDK says by
itself how long it was sure (`held`).

`exercised` counts what a run did at all: a judge that saw no grant has proved nothing.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, NamedTuple

from dibs.base.errors import InvalidInput
from dibs.core.limits import REMEMBERED_MAX, REMEMBERED_MS

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
# Calls that may bring a lease; `heir` is the new owner of a transfer.
CLAIMS = ("claim", "claim_any", "claim_all", "heir")
BY_OWNER = ("release", "transfer")  # whoever was told that one was done has the lease no more
# Calls after which a lease may be over although its time is not.
ENDS = (*BY_OWNER, "break", "session_end")
_EVIDENCE = (*CLAIMS, "renew", "share", "show", "held")  # what says that a client has a job, or must not have it
SHARE = "share"  # its owner no longer wants the job alone
NO_POOL = -1  # the slots of a job that is a pool no longer: any number may share it
PAUSE, KILL = "pause", "kill"  # of a server: no calls, but a reader of the record wants to know
RACE = "race"  # the last line: what was raced
SHOWN_MAX = 40  # lines of one window
SILENCE_S = 1.0  # for so long a store with clients answers nobody only if something is wrong
UNDER_WAY_S = 15  # no request takes longer than this
PLACE_S = 10  # a place in the queue lasts longer than this without a question
# What every run is to do. Its last line says what else it was to do, and how often it did (`race`).
ALWAYS = ("grants", "renewals", "hand-overs", "waits served", "lost answers", "repeats")
THROWN_AWAY = "The answer was thrown away."  # by the client, on purpose
CLOCK_S = 0.01  # times in answers are whole milliseconds


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call and its answer. A call of several jobs has a line for each job that it got."""

    number: int
    client: str
    call: str
    job: str
    began: float
    ended: float
    outcome: str  # ok, refused, or unknown: no answer came, or it was thrown away on purpose
    code: str = ""  # why it was refused
    says: str = ""  # of a no that is not about the job: what the client was told
    key: str = ""  # the request key of a claim
    owner: str = ""
    lease: str = ""
    token: int = 0
    ttl: float = 0
    session: str = ""
    held: bool = False  # of `show`: somebody has the job, with this token
    units: int = 0  # of a claim: how many of the job's slots it takes, or 1 if it shares the job; 0: it wants it alone
    slots: int = 0  # of a claim: how many the job has by its terms; of `pool`: how many it has from now on
    ceiling: float = 0  # of a claim: it is lost so many seconds after its grant
    group: str = ""  # of a claim: it takes the place of an older one of this group
    ticket: str = ""  # of a claim that waits: its place
    position: int = 0
    parent: str = ""  # of `session_open`: the session that the new one is part of
    # of `race`, the last line: how often each had an effect
    features: dict[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Violation:
    """A promise, and the calls that cannot all be true if it was kept."""

    promise: str
    says: str
    calls: tuple[RecordedCall, ...]

    def window(self, run: Sequence[RecordedCall]) -> list[RecordedCall]:
        """The calls about the same job that overlap the time of these, in order: what a reader needs to see."""
        jobs = {call.job for call in self.calls}
        first, last = min(call.began for call in self.calls), max(call.ended for call in self.calls)
        return [call for call in run if call.job in jobs and call.ended >= first and call.began <= last]

    def lines(self, run: Sequence[RecordedCall]) -> list[str]:
        """The window as text. The calls that cannot all be true have a mark."""
        window = self.window(run)
        start = min(each.began for each in window)
        lines = []
        for each in window[:SHOWN_MAX]:
            mark = ">" if each in self.calls else " "
            span = f"{each.began - start:8.3f} to {each.ended - start:8.3f}"
            said = " ".join(filter(None, (each.outcome, each.code, f"token {each.token}" if each.token else "")))
            lines.append(f"{mark} {span}  {each.client:<6} {each.call:<11} {said}  {each.lease[:8]}".rstrip())
        if len(window) > SHOWN_MAX:
            lines.append(f"  and {len(window) - SHOWN_MAX} more")
        return lines


@dataclass
class Life:
    """A lease of one job, as its clients know it. A claim of several jobs has one id for all its leases."""

    grant: RecordedCall  # the first answer that gave it
    beats: list[RecordedCall] = field(default_factory=list)  # answers after which its time counts anew, by their end
    ends: list[RecordedCall] = field(default_factory=list)  # what may have ended it before its time
    shared: float = float("inf")  # from then on others may share the job, if they want no more

    @property
    def last(self) -> float:
        """The last moment at which its client was sure of it, if nothing ended it."""
        return max(call.ended + call.ttl for call in (self.grant, *self.beats))

    def sure(self) -> Iterator[tuple[float, float]]:
        """The times in which its client was sure. After a silence that was too long it is not, until a renewal."""
        last = min((call.began for call in self.ends), default=float("inf"))
        for beat in (self.grant, *self.beats):
            begin, end = (beat.began, beat.ended) if beat.call == "held" else (beat.ended, beat.began + beat.ttl)
            if begin < min(end, last):
                yield begin, min(end, last)

    def alone(self) -> Iterator[tuple[float, float]]:
        """The times in which it was sure that it was the only owner."""
        return ((begin, min(end, self.shared)) for begin, end in self.sure() if begin < self.shared)

    def shares(self, at: float) -> bool:
        return bool(self.grant.units) or self.shared <= at


class Turn(NamedTuple):
    """A claim that was served: its first question, the answer with a place in the queue if there was one, the grant."""

    asked: RecordedCall
    place: RecordedCall | None
    grant: RecordedCall


_KINDS: dict[str, Any] = {"int": int, "str": str, "float": (int, float), "bool": bool, "dict[str, int]": dict}


def read_calls(lines: Iterable[str]) -> list[RecordedCall]:
    """The calls of a recorded run, in the order of their beginnings. A last line that was cut off is left out; another
    that is none says that the record is damaged, and raises InvalidInput. Of a record that was cut off (a full disk, a
    kill) the last calls are left out that could show a violation: what excuses them may have been under way."""
    known = {each.name: _KINDS[str(each.type)] for each in fields(RecordedCall)}
    calls: list[RecordedCall] = []
    damaged = 0
    for number, line in enumerate(lines, 1):
        if damaged:
            raise InvalidInput(f"Line {damaged} is not a call. The record is damaged: it proves nothing.")
        try:
            document: dict[str, Any] = json.loads(line)
            call = RecordedCall(**{name: value for name, value in document.items() if name in known})
        except (AttributeError, TypeError, ValueError):
            damaged = number
            continue
        if not all(isinstance(value, known[name]) for name, value in document.items() if name in known):
            damaged = number
            continue
        calls.append(call)
    if calls and calls[-1].call != RACE:
        whole = max(call.began for call in calls) - UNDER_WAY_S
        calls = [call for call in calls if call.ended < whole or call.outcome == UNKNOWN or call.call not in _EVIDENCE]
    return sorted(calls, key=lambda call: (call.began, call.number))


def judge(run: Sequence[RecordedCall]) -> list[Violation]:
    """Every violation that the calls show. Empty: the answers could all have been given by one correct server."""
    wrong: list[Violation] = []
    families = Families(run)
    lives = lives_of(run, families, wrong)
    asked = _first_asked(run)
    silences = _silences(run)
    pools: dict[str, list[RecordedCall]] = defaultdict(list)
    for call in run:
        if call.call == "pool" and call.outcome != REFUSED:
            pools[call.job].append(call)
    alone: dict[str, list[Life]] = {}  # those who want a job for themselves
    for job, mine in by_job(lives.values()).items():
        mine.sort(key=lambda life: life.grant.ended)
        related = families.of(mine)
        alone[job] = [life for life in mine if not life.grant.units and not families.share(life, related)]
        wrong += _too_many_owners(mine, pools[job], families, asked)
        wrong += _same_tokens(mine)
        wrong += _falling_tokens(alone[job])
        wrong += _late_requests(alone[job])
        wrong += _ceilings(mine, silences)
    wrong += _keys(run)
    wrong += _closed(run, lives, asked)
    # Who is of an owner's family does not wait for it.
    wrong += _order([call for call in run if not families.has(call.session)])
    wrong += _changed_places(run)
    wrong += _replaced(run)
    wrong += _lost_early(run, lives)
    wrong += _reads(run, alone)
    return sorted(wrong, key=lambda each: each.calls[-1].ended)


def _first_asked(run: Sequence[RecordedCall]) -> dict[tuple[str, str], float]:
    """Return when each claim was first sent, by its job and request key. It may have been granted since, if its answer
    was lost."""
    asked: dict[tuple[str, str], float] = {}
    for call in run:
        if call.call in CLAIMS and call.key:
            asked.setdefault((call.job, call.key), call.began)
    return asked


class Families:
    """Sessions and those that are part of them: they do not keep each other out, and end together."""

    def __init__(self, run: Iterable[RecordedCall]) -> None:
        opened = [call for call in run if call.call == "session_open" and call.session]  # "" after a lost answer
        self._parents = {call.session: call.parent for call in opened if call.parent}
        self._all = self._parents.keys() | self._parents.values()

    def root(self, session: str) -> str:
        while session in self._parents:
            session = self._parents[session]
        return session

    def ends_with(self, session: str, ended: str) -> bool:
        while session != ended and session in self._parents:
            session = self._parents[session]
        return session == ended

    def are_related(self, one: str, other: str) -> bool:
        return bool(one) and self.root(one) == self.root(other)

    def has(self, session: str) -> bool:
        """Tell whether a session is part of another, or has others."""
        return session in self._all

    def of(self, lives: Iterable[Life]) -> dict[str, list[Life]]:
        """The lives of each family that has several sessions."""
        found: dict[str, list[Life]] = defaultdict(list)
        for life in lives:
            if self.has(life.grant.session):
                found[self.root(life.grant.session)].append(life)
        return found

    def share(self, life: Life, related: Mapping[str, list[Life]]) -> bool:
        """Tell whether another of its family may have had the job at the same time."""
        began, last = life.grant.began, life.last
        near = related.get(self.root(life.grant.session), ())
        return any(each.grant.began < last and each.last > began for each in near if each is not life)


def lives_of(run: Sequence[RecordedCall], families: Families, wrong: list[Violation]) -> dict[tuple[str, str], Life]:
    """Each lease, by its job and id. `wrong` gets what one answer says of it and another does not."""
    lives: dict[tuple[str, str], Life] = {}
    for call in sorted(run, key=lambda call: call.ended):
        if call.outcome != OK or not call.lease or call.call in (*ENDS, SHARE):
            continue
        life = lives.get((call.job, call.lease))
        if life is None:
            if call.call in CLAIMS:
                lives[call.job, call.lease] = Life(call)
            continue
        if life.grant.token != call.token:
            said = f"One lease of {call.job} has tokens {life.grant.token} and {call.token}."
            wrong.append(Violation("token:rises", said, (life.grant, call)))
        life.beats.append(call)
    of: dict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in lives.values():
        life.beats.sort(key=lambda call: call.ended)
        of["family", families.root(life.grant.session)].append(life)
        of["key", life.grant.key].append(life)
    owners = {job: LivesOfJob(each) for job, each in by_job(lives.values()).items()}
    for call in run:
        if call.call == "session_end":
            family = of["family", families.root(call.session)]
            ended = [life for life in family if families.ends_with(life.grant.session, call.session)]
        elif call.call in (SHARE, "break"):
            ended = owners[call.job].during(call) if call.job in owners else []
            if call.call == SHARE:
                _share(ended, call)
                ended = []
        elif call.call == "leave":  # its claim may have been served before
            ended = [life for life in of["key", call.key] if call.key and life.grant.job == call.job]
        else:
            mine = lives.get((call.job, call.lease)) if call.call in ENDS else None
            ended = [] if mine is None else [mine]
        for life in ended:
            life.ends.append(call)
    return lives


def by_job(lives: Iterable[Life]) -> dict[str, list[Life]]:
    found: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        found[life.grant.job].append(life)
    return found


class LivesOfJob:
    """The lives of one job, for questions in the order of their beginnings."""

    def __init__(self, lives: list[Life]) -> None:
        self._later = sorted(lives, key=lambda life: life.grant.began, reverse=True)
        self._near: list[Life] = []

    def during(self, call: RecordedCall) -> list[Life]:
        """The lives that may have lasted during this call."""
        while self._later and self._later[-1].grant.began <= call.ended:
            self._near.append(self._later.pop())
        self._near = [life for life in self._near if life.last >= call.began]
        return [life for life in self._near if life.grant.began <= call.ended]


def _share(lives: Iterable[Life], call: RecordedCall) -> None:
    for life in lives if call.outcome != REFUSED else ():
        if call.lease == life.grant.lease or (call.session and call.session == life.grant.session):
            life.shared = min(life.shared, call.began)


def _too_many_owners(
    lives: list[Life], pool: list[RecordedCall], families: Families, asked: Mapping[tuple[str, str], float]
) -> Iterator[Violation]:
    """An owner that wants a job alone has it alone, but for its family. The others have no more units than it has."""
    spans = sorted((begin, end, at) for at, life in enumerate(lives) for begin, end in life.sure())
    now: list[tuple[float, float, int]] = []  # who is sure at the beginning of a span
    for span in spans:
        now = [each for each in now if each[1] > span[0] and each[2] != span[2]]
        two = lives[span[2]].grant
        others = [lives[each[2]].grant for each in now]
        for each, one in zip(now, others, strict=True):
            share = lives[each[2]].shares(span[0]) and lives[span[2]].shares(span[0])
            if not share and not families.are_related(one.session, two.session):
                both = min(each[1], span[1]) - span[0]
                said = f"{one.client} and {two.client} were both sure of {one.job} for {both:.3f} s."
                yield Violation("excl", said, (one, two))
        now.append(span)
        owners = [grant for grant in (*others, two) if grant.units]
        if not two.units or any(_shares(grant, pool) for grant in owners):
            continue
        slots, taken = _slots(owners, pool, asked), sum(grant.units for grant in owners)
        if 0 < slots < taken:
            said = f"{len(owners)} owners of {two.job} were sure of {taken} units together, and it has {slots} slots."
            yield Violation("units", said, tuple(owners))


def _shares(grant: RecordedCall, pool: list[RecordedCall]) -> bool:
    return not grant.slots and not pool


def _slots(owners: list[RecordedCall], pool: list[RecordedCall], asked: Mapping[tuple[str, str], float]) -> int:
    """The most slots that the job can have had while these owners came; 0 if it may have had no number of them. A pool
    that got fewer takes nothing away."""
    slots = max((grant.slots for grant in owners), default=0)
    first = min(asked.get((grant.job, grant.key), grant.began) for grant in owners)
    last = max(grant.ended for grant in owners)
    known = [call for call in pool if call.outcome == OK and call.ended < first]
    newest = max((call.began for call in known), default=0.0)
    sizes = [call.slots for call in pool if call.began <= last and (call.ended >= newest or call.outcome != OK)]
    return slots if NO_POOL in sizes else max([slots, *sizes])


def _same_tokens(lives: list[Life]) -> Iterator[Violation]:
    seen: dict[int, RecordedCall] = {}
    for life in lives:
        other = seen.setdefault(life.grant.token, life.grant)
        if other is not life.grant:
            yield Violation("token:rises", f"Two leases of {other.job} have token {other.token}.", (other, life.grant))


def _falling_tokens(lives: list[Life]) -> Iterator[Violation]:
    """A client that asks after another was answered gets a larger token."""
    asked = sorted(lives, key=lambda life: life.grant.began)
    at, highest = 0, None
    for life in asked:
        while at < len(lives) and lives[at].grant.ended < life.grant.began:
            if highest is None or lives[at].grant.token > highest.token:
                highest = lives[at].grant
            at += 1
        if highest is not None and life.grant.token < highest.token:
            said = f"Token {life.grant.token} of {highest.job} was given after token {highest.token}."
            yield Violation("token:rises", said, (highest, life.grant))


def _late_requests(lives: list[Life]) -> Iterator[Violation]:
    """A renewal cannot succeed that was sent after its lease was given away, or another was told of a larger token."""
    for life in lives:
        gone = next((end for end in life.ends if end.call in BY_OWNER and end.outcome == OK), None)
        beat = next((beat for beat in life.beats if gone is not None and beat.began > gone.ended), None)
        if gone is not None and beat is not None:
            yield Violation("proof", f"A lease of {beat.job} was alive after its {gone.call}.", (gone, beat))
    first: list[RecordedCall] = []  # by their end, with the smallest end of all larger tokens
    for life in sorted(lives, key=lambda life: life.grant.token, reverse=True):
        if first:
            for beat in life.beats:
                if beat.began > first[-1].ended:
                    said = f"A lease of {beat.job} with token {beat.token} was renewed under a later owner."
                    yield Violation("proof", said, (first[-1], beat))
                    break
        if not first or life.grant.ended < first[-1].ended:
            first.append(life.grant)


def _ceilings(lives: list[Life], silences: list[tuple[float, float]]) -> Iterator[Violation]:
    """No answer promises more time than the ceiling of a lease leaves. While a store answers nobody, its clock may
    stand."""
    for life in lives:
        if not life.grant.ceiling:
            continue
        last = life.grant.ended + life.grant.ceiling + CLOCK_S
        last += sum(end - begin for begin, end in silences if life.grant.began < end and begin < last)
        late = next((each for each in (life.grant, *life.beats) if each.began + each.ttl > last), None)
        if late is not None:
            over = late.began + late.ttl - last
            said = f"{late.client} was promised {late.job} for {over:.3f} s more than its ceiling leaves."
            yield Violation("max-hold", said, (life.grant, late))


def _silences(run: Sequence[RecordedCall]) -> list[tuple[float, float]]:
    """The times in which a store answered nobody, if they were long."""
    ends = sorted(call.ended for call in run if call.outcome != UNKNOWN)
    return [(begin, end) for begin, end in pairwise(ends) if end - begin > SILENCE_S]


def _keys(run: Sequence[RecordedCall]) -> Iterator[Violation]:
    """One request key, one lease: unless the first is so old that its job has forgotten the key."""
    known: dict[tuple[str, str], RecordedCall] = {}
    for call in sorted(run, key=lambda call: call.ended):
        if call.call not in CLAIMS or call.outcome != OK or not call.key or call.units:
            continue
        first = known.get((call.key, call.job), call)
        known[call.key, call.job] = call
        is_known = abs(call.token - first.token) <= REMEMBERED_MAX and call.ended - first.began < REMEMBERED_MS / 1000
        if first.lease != call.lease and is_known:
            yield Violation("idem:acquire", f"One request key got two leases of {call.job}.", (first, call))


def _closed(
    run: Sequence[RecordedCall], lives: dict[tuple[str, str], Life], asked: Mapping[tuple[str, str], float]
) -> Iterator[Violation]:
    """A job that is closed is granted to nobody who asks for it."""
    changes: dict[str, list[RecordedCall]] = defaultdict(list)
    for call in run:
        if call.call in ("close", "open") and call.outcome != REFUSED:
            changes[call.job].append(call)
    for life in lives.values():
        grant = life.grant
        first = asked.get((grant.job, grant.key), 0.0)
        for name in (grant.job, grant.job[: grant.job.find("/") + 1]):
            mine = [call for call in changes.get(name, ()) if call.began < grant.ended]
            last = max(mine, key=lambda call: call.ended, default=None)
            if last is None or (last.call, last.outcome) != ("close", OK) or last.ended >= first:
                continue
            is_clear = all(call.ended < last.began for call in mine if call is not last and call.outcome == OK)
            is_clear = is_clear and all(call.outcome == OK for call in mine)
            if is_clear and grant.ended < last.began + last.ttl:
                said = f"{grant.client} asked for {grant.job} and got it while {name} was closed."
                yield Violation("closed", said, (last, grant))


def _order(run: Sequence[RecordedCall]) -> Iterator[Violation]:
    """A client that asks after another was given its place in the queue is served after it, if that one kept asking."""
    asked: dict[tuple[str, str], RecordedCall] = {}  # by job and key: the first question
    waits: dict[tuple[str, str], tuple[RecordedCall, float]] = {}  # the answer with a place; the last answer
    served: dict[str, list[Turn]] = defaultdict(list)
    for call in sorted(run, key=lambda call: call.ended):
        if call.call not in ("claim", "leave") or not call.key or call.units:
            continue
        mine = call.job, call.key
        asked.setdefault(mine, call)
        place, seen = waits.pop(mine, (None, call.ended))
        if call.ended - seen > PLACE_S:
            place = None
        if call.outcome == OK and call.call == "claim":
            served[call.job].append(Turn(asked[mine], place, call))
        elif call.code == "queued":
            waits[mine] = (place or call, call.ended)
        elif call.outcome == UNKNOWN and place is not None and call.call == "claim":
            waits[mine] = (place, seen)
    for job, turns in served.items():
        turns.sort(key=lambda turn: turn.asked.began)
        begun = [turn.asked.began for turn in turns]
        # For each, the one with the smallest token among those who asked no sooner.
        first = turns[:]
        for at in range(len(turns) - 2, -1, -1):
            if first[at + 1].grant.token < first[at].grant.token:
                first[at] = first[at + 1]
        for turn in turns:
            at = len(turns) if turn.place is None else bisect_right(begun, turn.place.ended)
            if at < len(turns) and first[at].grant.token < turn.grant.token:
                early, late = first[at].grant, turn.grant
                said = f"{early.client} came to the line of {job} after {late.client} and was served before it."
                yield Violation("queue:fifo", said, tuple(filter(None, (turn.place, first[at].asked, early, late))))


def _waiting(run: Sequence[RecordedCall]) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    """Two answers to one claim that waits, the second asked for after the first came, and soon enough."""
    last: dict[tuple[str, str], RecordedCall] = {}
    for call in sorted(run, key=lambda call: call.ended):
        if call.call not in ("claim", "leave") or not call.key:
            continue
        mine = call.job, call.key
        before = last.get(mine)
        if call.code == "queued" and call.outcome == REFUSED:
            if before is not None and before.ended < call.began and call.ended - before.ended < PLACE_S:
                yield before, call
            last[mine] = call
        elif call.outcome != UNKNOWN or call.call == "leave":
            last.pop(mine, None)


def _changed_places(run: Sequence[RecordedCall]) -> Iterator[Violation]:
    """A waiter that keeps asking keeps its place, and nobody comes before it."""
    asks: dict[tuple[str, str], list[RecordedCall]] = defaultdict(list)  # that may have got the job for their session
    for call in run:
        if call.session and call.call == "claim" and call.outcome != REFUSED:
            asks[call.job, call.session].append(call)
    for before, call in _waiting(run):
        if call.ticket != before.ticket:
            # With the job its session needs no place; it may have given it back before this one asked again.
            others = asks.get((call.job, call.session), ())
            if any(each.began < call.ended and each.ended > before.began for each in others):
                continue
            said = f"{call.client} waited for {call.job}, asked again in time, and was given another place."
            yield Violation("queue:fifo", said, (before, call))
        elif call.position > before.position:
            said = f"{call.client} was number {before.position} in the line of {call.job}, and then {call.position}."
            yield Violation("queue:fifo", said, (before, call))


def _replaced(run: Sequence[RecordedCall]) -> Iterator[Violation]:
    """Of a group only the newest waits."""
    newest: dict[tuple[str, str], RecordedCall] = {}  # the first answer of the place that came last
    groups: dict[str, str] = {}  # by place: the first one that was named
    places: set[str] = set()
    for call in sorted(run, key=lambda call: call.ended):
        if call.code != "queued" or not call.group or not call.ticket:
            continue
        if groups.setdefault(call.ticket, call.group) != call.group:
            continue  # another ask of its session keeps the place, and the place stays in its group
        newer = newest.get((call.job, call.group))
        if newer is None or call.ticket == newer.ticket:
            newest.setdefault((call.job, call.group), call)
        elif call.ticket not in places:
            newest[call.job, call.group] = call
        elif newer.ended < call.began:
            said = f"{call.client} went on waiting for {call.job}, though {newer.client} of its group came later."
            yield Violation("queue:newest", said, (newer, call))
        places.add(call.ticket)


def _lost_early(run: Sequence[RecordedCall], lives: dict[tuple[str, str], Life]) -> Iterator[Violation]:
    """A lease cannot be lost before its time, but by its owner, its session's end, or an operator."""
    for call in run:
        life = lives.get((call.job, call.lease))
        if life is None or call.outcome != REFUSED or call.call not in ("renew", "release"):
            continue
        before = [each for each in (life.grant, *life.beats) if each.ended <= call.began]
        until = max((each.began + each.ttl for each in before), default=0.0)
        over = any(each.began < call.ended and each is not call for each in life.ends)
        if call.ended < until and not over:
            said = f"{call.client} was told that its lease of {call.job} is lost, {until - call.ended:.3f} s too early."
            yield Violation("lease:never-early", said, (before[-1], call))


def _reads(run: Sequence[RecordedCall], by_job: dict[str, list[Life]]) -> Iterator[Violation]:
    """An answer about a job is not older than what was answered before the question."""
    shown: dict[str, list[RecordedCall]] = defaultdict(list)
    for call in run:
        if call.call == "show" and call.outcome == OK:
            shown[call.job].append(call)
    for job, calls in shown.items():
        lives = by_job.get(job, [])
        spans = sorted((begin, end, at) for at, life in enumerate(lives) for begin, end in life.alone())
        ends = [(life.grant.token, end) for life in lives for end in life.ends]
        given_away = {token: end for token, end in ends if end.call in BY_OWNER and end.outcome == OK}
        for call in calls:
            gone = given_away.get(call.token) if call.held else None
            if gone is not None and gone.ended < call.began:
                yield Violation("proof", f"{job} was shown with its owner of before a {gone.call}.", (gone, call))
            at = bisect_left(spans, (call.began,)) - 1
            if at >= 0 and call.ended < spans[at][1]:
                owner = lives[spans[at][2]].grant
                if not call.held or call.token != owner.token:
                    yield Violation("excl", f"{job} was shown without its owner.", (owner, call))
            before = [life.grant for life in lives[max(0, at - 2) : at + 1] if life.grant.ended < call.began]
            newer = next((grant for grant in before if call.held and grant.token > call.token), None)
            if newer is not None:
                yield Violation("token:rises", f"{job} was shown with an owner of long ago.", (newer, call))


def exercised(run: Sequence[RecordedCall]) -> dict[str, int]:
    """Count each kind of thing that happened. What was to happen and did not is 0."""
    counts = Counter(dict.fromkeys(ALWAYS, 0))
    leases: set[tuple[str, str]] = set()
    last: dict[str, str] = {}  # who had the job last
    waits: set[tuple[str, str]] = set()
    unknown: set[tuple[str, str]] = set()  # a claim that was repeated because its answer was lost
    for call in sorted(run, key=lambda call: call.ended):
        counts.update(call.features)
        if call.outcome == UNKNOWN and call.call in CLAIMS:
            counts["lost answers"] += 1
            unknown.add((call.job, call.key))
        if call.code == "queued":
            waits.add((call.job, call.key))
        if call.outcome != OK:
            continue
        counts["renewals"] += call.call == "renew"
        if call.call in (PAUSE, KILL):
            counts[f"{call.call}s"] += 1
        if call.call not in CLAIMS or not call.lease:
            continue
        if (call.job, call.lease) in leases:
            counts["repeats"] += 1
            continue
        leases.add((call.job, call.lease))
        counts["grants"] += 1
        counts["repeats"] += bool(call.key) and (call.job, call.key) in unknown
        counts["hand-overs"] += last.get(call.job, call.client) != call.client
        counts["waits served"] += (call.job, call.key) in waits
        last[call.job] = call.client
    return dict(counts)


def other_noes(run: Sequence[RecordedCall]) -> Counter[str]:
    """Count each no that clients were told and that is not about a job: a server is away, or they may not do it."""
    return Counter(call.says for call in run if call.says and not call.says.startswith(THROWN_AWAY))
