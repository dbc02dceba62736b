"""The judge of a run of `dibs verify`: compares what clients asked and were answered with the promises.

It knows the promises and none of the rules. A run is a list of calls, a line of JSON each (`RecordedCall`).
All times are of one clock. A client is *sure* of a job from the answer that gave it the job until one TTL after it sent
what was answered last, or until it sends a release. It needs no network to know that. A client of the SDK says by
itself how long it was sure (`held`).
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from dibs.core.limits import REMEMBERED_MAX, REMEMBERED_MS

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
# Calls that may bring a lease; `heir` is the new owner of a transfer.
CLAIMS = ("claim", "claim_any", "claim_all", "heir")
# Calls after which a lease may be over although its time is not.
ENDS = ("release", "transfer", "break", "session_end")
PAUSE, KILL = "pause", "kill"  # of a server: no calls, but a reader of the record wants to know
PLACE_S = 10  # a place in the queue lasts longer than this without a question


@dataclass(frozen=True)
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
    key: str = ""  # the request key of a claim
    owner: str = ""
    lease: str = ""
    token: int = 0
    ttl: float = 0
    session: str = ""
    held: bool = False  # of `show`: somebody has the job, with this token


@dataclass(frozen=True)
class Violation:
    """A promise, and the calls that cannot all be true if it was kept."""

    promise: str
    says: str
    calls: tuple[RecordedCall, ...]

    def window(self, run: Sequence[RecordedCall]) -> list[RecordedCall]:
        """The calls about the same job that overlap the time of these, in order: what a reader needs to see."""
        job = self.calls[0].job
        first, last = min(call.began for call in self.calls), max(call.ended for call in self.calls)
        return [call for call in run if call.job == job and call.ended >= first and call.began <= last]


@dataclass
class Life:
    """A lease of one job, as its clients know it. A claim of several jobs has one id for all its leases."""

    grant: RecordedCall  # the first answer that gave it
    beats: list[RecordedCall] = field(default_factory=list)  # answers after which its time counts anew, by their end
    ends: list[RecordedCall] = field(default_factory=list)  # what may have ended it before its time

    def sure(self) -> Iterator[tuple[float, float]]:
        """The times in which its client was sure. After a silence that was too long it is not, until a renewal."""
        last = min((call.began for call in self.ends), default=float("inf"))
        for beat in (self.grant, *self.beats):
            begin, end = (beat.began, beat.ended) if beat.call == "held" else (beat.ended, beat.began + beat.ttl)
            if begin < min(end, last):
                yield begin, min(end, last)


class Turn(NamedTuple):
    """A claim that was served: its first question, the answer with a place in the queue if there was one, the grant."""

    asked: RecordedCall
    place: RecordedCall | None
    grant: RecordedCall


def read_calls(lines: Iterable[str]) -> list[RecordedCall]:
    """The calls of a recorded run, in the order of their beginnings. A last line that was cut off is left out."""
    known = {each.name for each in fields(RecordedCall)}
    calls = []
    for line in lines:
        try:
            document: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        calls.append(RecordedCall(**{name: value for name, value in document.items() if name in known}))
    return sorted(calls, key=lambda call: (call.began, call.number))


def judge(run: Sequence[RecordedCall]) -> list[Violation]:
    """Every violation that the calls show. Empty: the answers could all have been given by one correct server."""
    wrong: list[Violation] = []
    lives = _lives(run, wrong)
    by_job: dict[str, list[Life]] = defaultdict(list)
    for life in lives.values():
        by_job[life.grant.job].append(life)
    for mine in by_job.values():
        mine.sort(key=lambda life: life.grant.ended)
        wrong += _two_owners(mine)
        wrong += _tokens(mine)
        wrong += _late_requests(mine)
    wrong += _keys(run)
    wrong += _places(run)
    wrong += _lost_early(run, lives)
    wrong += _reads(run, by_job)
    return sorted(wrong, key=lambda each: each.calls[-1].ended)


def _lives(run: Sequence[RecordedCall], wrong: list[Violation]) -> dict[tuple[str, str], Life]:
    lives: dict[tuple[str, str], Life] = {}
    for call in sorted(run, key=lambda call: call.ended):
        if call.outcome != OK or not call.lease or call.call in ENDS:
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
        of["session", life.grant.session].append(life)
        of["job", life.grant.job].append(life)
    for call in run:
        if call.call == "session_end":
            ended = of["session", call.session]
        elif call.call == "break":
            ended = [life for life in of["job", call.job] if life.grant.began <= call.ended]
        else:
            mine = lives.get((call.job, call.lease)) if call.call in ENDS else None
            ended = [] if mine is None else [mine]
        for life in ended:
            life.ends.append(call)
    return lives


def _two_owners(lives: list[Life]) -> Iterator[Violation]:
    spans = sorted((begin, end, at) for at, life in enumerate(lives) for begin, end in life.sure())
    last: tuple[float, float, int] | None = None
    for span in spans:
        if last is not None and span[2] != last[2] and span[0] < last[1]:
            one, two = lives[last[2]].grant, lives[span[2]].grant
            both = min(last[1], span[1]) - span[0]
            said = f"{one.client} and {two.client} were both sure of {one.job} for {both:.3f} s."
            yield Violation("excl", said, (one, two))
        if last is None or span[1] > last[1]:
            last = span


def _tokens(lives: list[Life]) -> Iterator[Violation]:
    """A client that asks after another was answered gets a larger token."""
    seen: dict[int, RecordedCall] = {}
    for life in lives:
        other = seen.setdefault(life.grant.token, life.grant)
        if other is not life.grant:
            yield Violation("token:rises", f"Two leases of {other.job} have token {other.token}.", (other, life.grant))
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
    """A renewal cannot succeed that was sent after its lease was released, or another was told of a larger token."""
    for life in lives:
        gone = next((end for end in life.ends if (end.call, end.outcome) == ("release", OK)), None)
        beat = next((beat for beat in life.beats if gone is not None and beat.began > gone.ended), None)
        if gone is not None and beat is not None:
            yield Violation("proof", f"A lease of {beat.job} was alive after its release.", (gone, beat))
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


def _keys(run: Sequence[RecordedCall]) -> Iterator[Violation]:
    """One request key, one lease: unless the first is so old that its job has forgotten the key."""
    known: dict[tuple[str, str], RecordedCall] = {}
    for call in sorted(run, key=lambda call: call.ended):
        if call.call not in CLAIMS or call.outcome != OK or not call.key:
            continue
        first = known.get((call.key, call.job), call)
        known[call.key, call.job] = call
        is_known = abs(call.token - first.token) <= REMEMBERED_MAX and call.ended - first.began < REMEMBERED_MS / 1000
        if first.lease != call.lease and is_known:
            yield Violation("idem:acquire", f"One request key got two leases of {call.job}.", (first, call))


def _places(run: Sequence[RecordedCall]) -> Iterator[Violation]:
    """A client that asks after another was given its place in the queue is served after it, if that one kept asking."""
    asked: dict[tuple[str, str], RecordedCall] = {}  # by job and key: the first question
    waits: dict[tuple[str, str], tuple[RecordedCall, float]] = {}  # the answer with a place; the last answer
    served: dict[str, list[Turn]] = defaultdict(list)
    for call in sorted(run, key=lambda call: call.ended):
        if call.call not in ("claim", "leave") or not call.key:
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
        spans = sorted((begin, end, at) for at, life in enumerate(lives) for begin, end in life.sure())
        ends = [(life.grant.token, end) for life in lives for end in life.ends]
        released = {token: end for token, end in ends if (end.call, end.outcome) == ("release", OK)}
        for call in calls:
            gone = released.get(call.token) if call.held else None
            if gone is not None and gone.ended < call.began:
                yield Violation("proof", f"{job} was shown with an owner that had released it.", (gone, call))
            at = bisect_left(spans, (call.began,)) - 1
            if at >= 0 and call.ended < spans[at][1]:
                owner = lives[spans[at][2]].grant
                if not call.held or call.token != owner.token:
                    yield Violation("excl", f"{job} was shown without its owner.", (owner, call))
            before = [life.grant for life in lives[max(0, at - 2) : at + 1] if life.grant.ended < call.began]
            newer = next((grant for grant in before if call.held and grant.token > call.token), None)
            if newer is not None:
                yield Violation("token:rises", f"{job} was shown with an owner of long ago.", (newer, call))
