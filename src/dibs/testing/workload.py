"""What a client does that races for a few jobs on purpose, for `dibs verify` on real servers and `dibs simulate`.

It claims one job, any and all, in line or not, in sessions or not, with request keys or not; renews, hands over,
releases, looks; repeats what came too late; falls silent and dies; an operator also breaks, closes and sizes jobs. It
waits in line by the flow of the real client (`client/pending.py`).

A client is a generator: it yields an `Ask` and is sent the reply, or milliseconds, which pass. Each call is noted for
the judge (`judge.py`). What goes wrong between it and the servers is its stage's part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random  # noqa: TID251 - of whoever has the seed
from typing import Any, NamedTuple, Protocol

from dibs.base.jsontext import Document
from dibs.client.door import Ask, is_over
from dibs.client.flow import Pause, StillWaiting, status_of
from dibs.client.pending import PendingClaim
from dibs.core.names import is_resource
from dibs.testing.judge import OK, REFUSED, UNKNOWN
from dibs.wire.codes import NOT_NOW, kind_of
from dibs.wire.documents import Reply

Steps = Generator[Ask | int, Any, Any]


class Stage(Protocol):
    """Where a client acts."""

    chance: Random

    def now(self) -> float:
        """Seconds of a steady clock."""

    def is_over(self) -> bool: ...

    def strikes(self, fault: str, share: float) -> bool:
        """Tell whether this goes wrong now."""

    def fresh_id(self) -> str:
        """A UUID."""

    def beside(self, asked: Ask, delay_ms: int) -> None:
        """Ask this on another connection, which nobody reads."""

    def note(self, **line: Any) -> None:
        """Add a line to the record."""


SHARED, POOL, KIN = "shared", "pool", "kin"  # jobs that several may have at once: the judge knows one owner at a time
SEVERAL = frozenset((SHARED, POOL, KIN))
PAUSE_MS_MAX = 8_000
SESSION_TTL_S = 10
LONG_TTL_S = 25
UNANSWERED_BREAK_S = 60.0  # it may still come
_CALLS = {
    **{"acquire": "claim", "acquire-any": "claim_any", "acquire-all": "claim_all"},
    **{"inspect": "show", "session-end": "session_end"},
    **{verb: verb for verb in ("renew", "release", "transfer", "break", "leave")},
}
_GRANTS = {"acquire": "acquired", "acquire-any": "acquired", "acquire-all": "acquired", "transfer": "transferred"}


def verdict(asked: Ask, reply: Reply) -> tuple[str, str]:
    """What an answer says for the judge, and why."""
    body = reply.body or {}
    code = str(body.get("code") or "")
    is_unsaid = asked.verb == "renew" and is_over(reply) and code != "lease_not_current"  # nothing about the job
    if kind_of(reply) == NOT_NOW or is_unsaid:
        return UNKNOWN, code
    if reply.status >= 300:
        return REFUSED, code
    if asked.verb in _GRANTS and status_of(reply) != _GRANTS[asked.verb]:
        return REFUSED, str(status_of(reply))
    return OK, code


class RaceTerms(NamedTuple):
    """What clients of a race want: which jobs, for how long, and how patiently. `operates`: it may use what operators
    may. `plainly`: no features but those that the judge knows all about."""

    jobs: Sequence[str]
    ttls_s: Sequence[int]
    waits_ms: Sequence[int]
    pauses: Sequence[float]  # parts of a lease that pass between two heartbeats
    operates: bool
    plainly: bool


class Workload:
    def __init__(self, name: str, stage: Stage, terms: RaceTerms) -> None:
        self.name, self._stage, self._terms = name, stage, terms
        self._chance = stage.chance
        self._plain = [job for job in terms.jobs if job.startswith("job-")]
        self._number = 0
        self._key = ""  # of the claim that waits
        self._session = ""
        self._session_until = 0.0
        ways: list[Callable[[], Steps]] = [self._one] * 4 + [self._in_session, self._any, self._look]
        ways += [self._all] if len(self._plain) > 1 else []
        ways += [self._family] if KIN in terms.jobs else []
        ways += [self._operate] if terms.operates else []
        self._ways = ways

    def life(self) -> Steps:
        """Until all is over, or until it dies: True."""
        while not self._stage.is_over():
            if (yield from self._chance.choice(self._ways)()):
                return True
            yield self._chance.choice((1, 10, 100))
        return False

    # Claims

    def _one(self, job: str = "") -> Steps:
        job = job or self._chance.choice(self._terms.jobs)
        return (yield from self._claim_and_hold("acquire", [job]))

    def _any(self) -> Steps:
        names = self._chance.sample(self._plain, min(3, len(self._plain)))
        return (yield from self._claim_and_hold("acquire-any", names))

    def _all(self) -> Steps:
        return (yield from self._claim_and_hold("acquire-all", sorted(self._chance.sample(self._plain, 2))))

    def _document(self, verb: str, names: list[str]) -> Document:
        chance, terms = self._chance, self._terms
        self._number += 1
        owner = f"{self.name}.{self._number}"
        document: Document = {"owner": owner}
        if verb != "acquire":
            document["names"] = names
        if self._session:
            document["session_id"] = self._session
        if not self._session or chance.random() < 0.5:
            document["ttl_seconds"] = chance.choice(terms.ttls_s)
        if chance.random() < 0.7 or terms.plainly:
            document["request_key"] = owner
        if not terms.plainly:
            odds = chance.random()
            if names == [SHARED] and odds < 0.7:
                document["mode"] = "shared"
            elif names == [POOL]:
                document["units"] = 1 + int(odds * 2.5)
            elif odds < 0.06:
                document["max_hold_seconds"] = chance.choice((2, 10))
            elif odds < 0.16 and verb != "acquire-any":
                document["replaces"] = "newest"
            elif odds < 0.2:
                document["lock_delay_seconds"] = 1
        return document

    def _claim_and_hold(self, verb: str, names: list[str]) -> Steps:
        asked = Ask(verb, names[0] if verb == "acquire" else "", self._document(verb, names))
        leases: list[Document] = yield from self._claim(asked)
        died = (yield from self._hold(leases, asked)) if leases else False
        if leases and not died and "request_key" in asked.document and self._chance.random() < 0.1:
            late = yield from self._ask(asked)  # a repeat that comes after the release
            yield from self._release_all(_leases(late))
        return died

    def _claim(self, asked: Ask) -> Steps:
        """The leases that it got."""
        chance, document = self._chance, asked.document
        self._key = document.get("request_key", "")
        wait_ms = chance.choice(self._terms.waits_ms) if asked.verb != "acquire-any" and chance.random() < 0.6 else 0
        claim = PendingClaim(asked.verb, asked.name, dict(document), wait_ms=wait_ms, steady=self._now_ms)
        reply: Reply | None = None
        if "request_key" not in document:  # what nobody could recognise is asked once, unless it has a ticket
            reply = yield from self._ask_all(claim.ask_once(wait_ms))
        if "request_key" in document or (reply is not None and status_of(reply) == "queued"):
            reply = yield from self._ask_all(claim.claim())
            if reply is None and chance.random() < 0.5:  # it lost its patience
                claim.own_key = "request_key" in document
                yield from self._ask_all(claim.withdraw())
        if reply is None:
            return []
        if verdict(asked, reply)[0] == UNKNOWN and self._session:
            return (yield from self._by_session(asked))
        yield from self._release_all((reply.body or {}).get("rest", []))  # what a lost answer had given it
        return _leases(reply)

    def _now_ms(self) -> int:
        return int(self._stage.now() * 1000)

    def _ask_all(self, flow: Generator[Any, Any, Any]) -> Steps:
        """What a flow returns; None if its client was tired of it."""
        answer: Any = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            if isinstance(step, Ask):
                answer = yield from self._ask(step)
            elif isinstance(step, Pause):
                yield step.ms
            elif isinstance(step, StillWaiting):
                if self._session:
                    yield from self._keep_session()
                if self._stage.strikes("dead", 0.03):
                    return None

    def _by_session(self, asked: Ask) -> Steps:
        """What its session got by a claim without an answer: it renews that instead of claiming again."""
        if asked.verb != "acquire" or asked.name in SEVERAL or self._chance.random() < 0.5:
            return []
        reply = yield from self._ask(Ask("renew", asked.name, {"session_id": self._session}))
        return [reply.body] if reply.status < 300 else []

    # An owner

    def _hold(self, leases: list[Document], asked: Ask) -> Steps:
        """Renew them a few times, and end them somehow. True if it died."""
        stage, chance = self._stage, self._chance
        for _ in range(chance.choice((0, 1, 1, 4))):
            if stage.is_over():
                break
            heard_ms = self._now_ms()
            left_ms = min(lease["remaining_ms"] for lease in leases)
            yield int(min(left_ms, PAUSE_MS_MAX) * chance.choice(self._terms.pauses))
            if stage.strikes("silent", 0.03):
                yield int(left_ms * 1.3)
            elif stage.strikes("silent", 0.1):  # it renews at the last moment, and somebody looks right then
                yield max(0, heard_ms + left_ms - self._now_ms() - chance.choice((2, 4, 8)))
                for ms in (4, 8, 12):
                    stage.beside(Ask("inspect", leases[0]["name"]), ms)
            if self._session:
                yield from self._keep_session()
            kept = []
            for lease in leases[1:] if len(leases) > 1 and stage.strikes("silent", 0.2) else leases:  # it forgets one
                now = yield from self._renew(lease)
                kept += [now] if now is not None else []
            if "request_key" in asked.document and stage.strikes("doubled", 0.1 if len(kept) == len(leases) else 0.5):
                stage.beside(asked, chance.choice((0, 10, left_ms)))
            leases = kept
            if not leases:
                return False
        if stage.strikes("dead", 0.04):
            return True
        if len(leases) == 1 and "mode" not in asked.document and chance.random() < 0.08:
            leases = yield from self._transfer(leases[0])
        yield from self._release_all(leases)
        return False

    def _renew(self, lease: Document) -> Steps:
        """The lease as it is then; None if it is lost."""
        by_session = self._session and lease["name"] not in SEVERAL and self._chance.random() < 0.5
        document: Document = {"session_id": self._session} if by_session else {"lease_id": lease["lease_id"]}
        if not self._session and not self._terms.plainly and self._chance.random() < 0.25:
            document["ttl_seconds"] = LONG_TTL_S  # always the same, so that a late copy makes none shorter
        reply = yield from self._ask(Ask("renew", lease["name"], document), lease["lease_id"])
        if reply.status < 300:
            return reply.body
        return None if verdict(Ask("renew"), reply)[0] == REFUSED else lease

    def _release_all(self, leases: list[Document]) -> Steps:
        for lease in leases:
            document: Document = {"lease_id": lease["lease_id"]}
            is_job = not is_resource(lease["name"])
            if is_job and not self._terms.plainly and self._chance.random() < 0.03:
                document |= {"failed": True, "reason": "no luck", "retry_after_seconds": 1}
            yield from self._ask(Ask("release", lease["name"], document))

    def _transfer(self, lease: Document) -> Steps:
        """To another owner without a session, which is this client, too."""
        heir = {"to_owner": f"{self.name}.heir", "fresh_lease_id": self._stage.fresh_id()}
        asked = Ask("transfer", lease["name"], {"lease_id": lease["lease_id"], **heir})
        reply = yield from self._ask(asked)
        return [reply.body] if verdict(asked, reply)[0] == OK else [lease]

    # Sessions

    def _in_session(self) -> Steps:
        died = False
        if (yield from self._open_session()):
            ways = (self._one, self._one, self._all if len(self._plain) > 1 else self._one, self._idle)
            for _ in range(self._chance.choice((1, 2, 3))):
                died = died or (yield from self._chance.choice(ways)())
            if not died:
                yield from self._end_session()
        self._session = ""
        return died

    def _family(self) -> Steps:
        """A session and one that is part of it do not keep each other out."""
        if not (yield from self._open_session()):
            return False
        parent, until, died = self._session, self._session_until, False
        leases = yield from self._claim(Ask("acquire", KIN, self._document("acquire", [KIN])))
        if (yield from self._open_session(parent_id=parent)):
            died = yield from self._one(KIN)
            if not died:
                yield from self._end_session()
        self._session, self._session_until = parent, until
        if not died:
            yield from self._release_all(leases)
            yield from self._end_session()
        self._session = ""
        return died

    def _open_session(self, **more: str) -> Steps:
        asked = {"owner": self.name, "ttl_seconds": SESSION_TTL_S, "fresh_session_id": self._stage.fresh_id(), **more}
        until = self._stage.now() + SESSION_TTL_S
        reply = yield from self._ask(Ask("session-open", "", asked))
        if reply.status >= 300:
            return False
        self._session, self._session_until = reply.body["session_id"], until
        return True

    def _idle(self) -> Steps:
        """Its session has nothing for a while."""
        for _ in range(3):
            yield SESSION_TTL_S * 300
            yield from self._keep_session()
        return False

    def _keep_session(self) -> Steps:
        now = self._stage.now()
        if now >= self._session_until - SESSION_TTL_S * 0.75:
            reply = yield from self._ask(Ask("session-keep", self._session))
            if reply.status < 300:
                self._session_until = now + SESSION_TTL_S

    def _end_session(self) -> Steps:
        yield from self._ask(Ask("session-end", self._session))

    # Others

    def _look(self) -> Steps:
        yield from self._ask(Ask("inspect", self._chance.choice(self._terms.jobs)))

    def _operate(self) -> Steps:
        job, odds = self._chance.choice(self._terms.jobs), self._chance.random()
        if self._terms.plainly or odds < 0.4:
            yield from self._ask(Ask("break", job, {"reason": self._stage.fresh_id()}))
        elif odds < 0.6:
            yield from self._ask(Ask("close", job, {"reason": "repairs", "for_seconds": self._chance.choice((1, 4))}))
        elif odds < 0.8:
            yield from self._ask(Ask("open", job))
        elif POOL in self._terms.jobs:
            yield from self._ask(Ask("pool", POOL, {"slots": self._chance.choice((None, 0, 1, 2, 3, 3))}))

    # The record

    def _ask(self, asked: Ask, lease_id: str = "") -> Steps:
        """The reply. `lease_id`: what it is about, if the document does not say so."""
        began = self._stage.now()
        reply: Reply = yield asked
        self.note(asked, began, reply, lease_id)
        return reply

    def note(self, asked: Ask, began: float, reply: Reply, lease_id: str = "") -> None:
        if asked.verb not in _CALLS or asked.name in SEVERAL:
            return
        outcome, code = verdict(asked, reply)
        ended, document, body = self._stage.now(), asked.document, reply.body or {}
        if (asked.verb, outcome) == ("break", UNKNOWN):
            ended = began + UNANSWERED_BREAK_S
        line = {"client": self.name, "call": _CALLS[asked.verb], "job": asked.name, "began": began, "ended": ended}
        line |= {"outcome": outcome, "code": code}
        if asked.verb.startswith("acquire"):
            line |= {"key": document.get("request_key", ""), "owner": document["owner"]}
            line["session"] = document.get("session_id", "")
            got = _leases(reply)
            for each in got:
                told = {"job": each["name"]} | _told(each)
                if each.get("held_before") or each["owner"] != document["owner"]:  # an earlier ask got it
                    told["key"] = ""
                self._stage.note(**line | told)
            for job in () if got else document.get("names", [asked.name]):
                self._stage.note(**line | {"job": job})
            return
        if asked.verb == "inspect":
            line |= {"held": body.get("status") == "held", "token": body.get("fencing_token") or 0}
        elif asked.verb == "leave":
            line["key"] = self._key
        elif asked.verb == "session-end":
            line |= {"job": "", "session": asked.name}
        elif asked.verb == "renew" and outcome == OK:
            line |= _told(body) | {"call": "renew" if lease_id else "claim", "session": document.get("session_id", "")}
        else:
            line["lease"] = document.get("lease_id", lease_id)
        self._stage.note(**line)
        if asked.verb == "transfer" and outcome == OK:
            self._stage.note(**line | _told(body) | {"call": "heir", "owner": document["to_owner"]})


def _leases(reply: Reply | None) -> list[Document]:
    """The leases in the answer to a claim."""
    if reply is None or status_of(reply) != "acquired" or reply.body is None:
        return []
    found: list[Document] = reply.body.get("leases") or [reply.body]
    return found


def _told(lease: Document) -> Document:
    """What the judge wants to know of a lease: nobody else has it for so long after it was asked for."""
    return {"lease": lease["lease_id"], "token": lease["fencing_token"], "ttl": lease["remaining_ms"] / 1000}
