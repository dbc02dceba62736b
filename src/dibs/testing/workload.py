"""The life of a client that races for a few jobs on purpose, for `dibs verify` on real servers and `dibs simulate`.

It claims jobs, in line or not, in sessions or not; renews, releases, looks; repeats what came too late; falls silent
and dies. What else it does depends on the features of its race (`features.py`): an operator also breaks, closes and
sizes jobs, and a session may ask for two things at once. It waits in line by the flow of the real client
(`client/pending.py`).

A client is a generator: it yields an `Ask` and is sent the reply, or milliseconds, which pass. Each call is noted for
the judge (`judge.py`). What goes wrong between it and the servers is its stage's part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from random import Random  # noqa: TID251 - of whoever has the seed
from typing import Any, NamedTuple, Protocol

from dibs.base.errors import FATE_UNKNOWN, ServerUnreachable
from dibs.base.jsontext import Document
from dibs.client.flow import Pause, StillWaiting, status_of
from dibs.client.pending import PendingClaim
from dibs.client.transport import Ask, is_over
from dibs.core.names import is_resource
from dibs.testing.judge import NO_POOL, OK, REFUSED, THROWN_AWAY, UNKNOWN
from dibs.testing.outside import DONE, FAILED, IN_DOUBT, Outside
from dibs.wire.codes import NOT_NOW, NOT_YET, NOT_YOU, kind_of
from dibs.wire.documents import Reply, reply_for_error

Steps = Generator[Ask | int, Any, Any]


class Stage(Protocol):
    """The surroundings of a client: they send, wait and record for it."""

    chance: Random

    @property
    def outside(self) -> Outside:
        """The world that steps change."""

    def now(self) -> float:
        """Seconds of a steady clock."""

    def is_over(self) -> bool: ...

    def strikes(self, fault: str, share: float) -> bool:
        """Return whether this goes wrong now."""

    def fresh_id(self) -> str:
        """A UUID."""

    def beside(self, asked: Ask, delay_ms: int) -> None:
        """Ask this on another connection, which nobody reads."""

    def note(self, **line: Any) -> None:
        """Add a line to the record."""

    def bore(self, features: Iterable[str], places: Iterable[str]) -> None:
        """These features had an effect on these jobs and sessions."""

    def along(self, name: str, life: Callable[[Stage], Steps]) -> None:
        """Let another thread of this client live that life, at the same time."""


# Jobs that several may have at once. With other names a seed is another run.
SHARED, POOL, RELATED = "shared", "pool", "kin"
TWOS = ("two-1", "two-2")  # jobs of two slots each
SEVERAL = frozenset((SHARED, POOL, RELATED, *TWOS))
PLAIN = ("job-", "lab/")  # how the names of the others begin that are in no tree
PREFIX = "lab/"  # what is closed as a whole
GROUPS = ("g", "h")
STEPS = ("mail", "tag")
LISTS: tuple[list[str], ...] = (["user:team"], ["user:few"], ["user:team", "user:few"], [])
PAUSE_MS_MAX = 8_000
UNANSWERED_S = 60.0  # what was asked, and what others feel, may still come
_CALLS = {
    **{"acquire": "claim", "acquire-any": "claim_any", "acquire-all": "claim_all"},
    **{"inspect": "show", "session-open": "session_open", "session-end": "session_end"},
    **{verb: verb for verb in ("renew", "release", "transfer", "break", "close", "open", "pool")},
    "withdraw": "leave",
}
BY_OPERATORS = ("break", "close", "open", "pool")  # asked a second time, it is another
_GRANTS = {"acquire": "acquired", "acquire-any": "acquired", "acquire-all": "acquired", "transfer": "transferred"}


# Jobs that only some features need.
KINDS = {
    "path:a/b": {"trees"},
    "path:a": {"trees"},
    SHARED: {"shared", "share"},
    POOL: {"pools", "smaller-pools"},
    RELATED: {"nested-sessions"},
    f"{PREFIX}0": {"prefix-closures"},
    **{job: {"slots"} for job in TWOS},
}


def jobs_of(chance: Random, count: int, features: frozenset[str]) -> list[str]:
    """A plain job, some of other kinds, and more plain ones. Few, so that all are wanted by many at once."""
    kinds = [job for job, wants in KINDS.items() if not features.isdisjoint(wants)]
    kinds = chance.sample(kinds, min(count - 1, len(kinds)))
    return ["job-0", *kinds, *[f"job-{n}" for n in range(1, count - len(kinds))]]


def verdict(asked: Ask, reply: Reply) -> tuple[str, str]:
    """Translate an answer for the judge: its outcome and code."""
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
    """The terms of a race: which jobs, for how long, how patiently, and with which features (`features.py`).
    `operates`: it may use what operators may."""

    jobs: Sequence[str]
    ttls_s: Sequence[int]
    waits_ms: Sequence[int]
    pauses: Sequence[float]  # parts of a lease that pass between two heartbeats
    rests_ms: Sequence[int]  # between two things that it does
    long_ttl_s: int  # longer than the others
    session_s: int  # how long a session lasts without a word
    idle_ms: Sequence[int]  # between the words of one that has nothing
    nap_ms_max: int  # how long it keeps what it has while it does something else
    operates: bool
    features: frozenset[str]


class Workload:
    def __init__(self, name: str, stage: Stage, terms: RaceTerms, session: str = "") -> None:
        self.name, self._stage, self._terms = name, stage, terms
        self._chance = stage.chance
        self._plain = [job for job in terms.jobs if job.startswith(PLAIN)]
        self._number = 0
        self._place = ("", "")  # the ticket of the claim that waits, and the key of this claim
        self._keys: list[str] = []  # of claims that were answered
        self._session, self._parent = session, ""
        self._session_until = 0.0
        on = terms.features
        ways: list[Callable[[], Steps]] = [self._one] * 4 + [self._in_session, self._look]
        ways += [self._in_session] * bool(on & {"two-asks", "share", "groups"})
        ways += [self._any] * ("claim-any" in on)
        ways += [self._all] * ("claim-all" in on and len(self._plain) > 1)
        ways += [self._family] * ("nested-sessions" in on and RELATED in terms.jobs)
        ways += [self._count] * ("numbers" in on)
        ways += [self._operate] * terms.operates
        self._ways = ways

    def _bears(self, feature: str, share: float, borne: set[str]) -> bool:
        """Tell whether what is being asked has this feature."""
        if feature not in self._terms.features or self._chance.random() >= share:
            return False
        borne.add(feature)
        return True

    def _bore(self, reply: Reply | None, features: Iterable[str], names: Iterable[str]) -> None:
        if reply is not None and (reply.status < 300 or kind_of(reply) == NOT_YET):
            nested = ["nested-sessions"] * bool(self._parent)
            self._stage.bore([*features, *nested], [*names, *filter(None, (self._session, self._parent))])

    def life(self) -> Steps:
        """Until all is over, or until it dies: True."""
        while not self._stage.is_over():
            if (yield from self._chance.choice(self._ways)()):
                return True
            yield self._chance.choice(self._terms.rests_ms)
        return False

    # Claims

    def _one(self, job: str = "") -> Steps:
        job = job or self._chance.choice(self._terms.jobs)
        return (yield from self._claim_and_hold("acquire", [job]))

    def _any(self) -> Steps:
        jobs = [job for job in self._terms.jobs if job not in TWOS]
        names = self._chance.sample(jobs, min(3, len(jobs)))
        return (yield from self._claim_and_hold("acquire-any", names))

    def _all(self) -> Steps:
        return (yield from self._claim_and_hold("acquire-all", self._two(self._chance.choice(self._terms.jobs))))

    def _two(self, job: str) -> list[str]:
        """This one and another that does not overlap it. Jobs of two slots are claimed together: the terms of a claim
        are for all of its jobs."""
        if job in TWOS:
            return [each for each in TWOS if each in self._terms.jobs]
        jobs = [each for each in self._terms.jobs if each not in (job, *TWOS)]
        others = [each for each in jobs if not (is_resource(each) and is_resource(job))]
        return sorted([job, self._chance.choice(others)]) if others else [job]

    def _document(self, verb: str, names: list[str], borne: set[str]) -> Document:
        chance, terms = self._chance, self._terms
        self._number += 1
        owner = f"{self.name}.{self._number}"
        document: Document = {"owner": owner}
        if verb != "acquire":
            document["names"] = names
            borne.add("claim-any" if verb == "acquire-any" else "claim-all")
        if self._session:
            document["session_id"] = self._session
        if not self._session or chance.random() < 0.5:
            document["ttl_seconds"] = chance.choice(terms.ttls_s)
        if self._keys and not self._session and self._bears("keys", 0.15, borne):
            document["request_key"] = chance.choice(self._keys[-4:])
        elif not self._bears("keyless", 0.5, borne):
            document["request_key"] = owner
        if any(map(is_resource, names)):
            borne.add("trees")
        if names[0] in TWOS and self._bears("slots", 1, borne):
            document |= {"slots": 2} | ({"units": 2} if chance.random() < 0.2 else {})
        elif POOL in names and self._bears("pools", 0.8, borne):
            document["units"] = 1 + int(chance.random() * 2.5)
        elif POOL not in names and self._bears("shared", 0.7 if SHARED in names else 0.25, borne):
            document["mode"] = "shared"
        if verb != "acquire-any" and self._bears("groups", 0.4, borne):
            document["replaces"] = chance.choice(GROUPS)
        if verb == "acquire-any" and chance.random() < 0.5:
            document["count"] = chance.randrange(1, 1 + len(names))
        if verb == "acquire" and self._bears("access-lists", 0.03, borne):
            document["acl"] = {"acquire": chance.choice(LISTS[:3])}
        if self._bears("ceilings", 0.15, borne):
            document["max_hold_seconds"] = chance.choice((2, 10))
        if self._bears("delays", 0.15, borne):
            document["lock_delay_seconds"] = 1
        if self._bears("attempts", 0.4, borne):
            document["max_attempts"] = chance.choice((1, 2, 3))
        if self._bears("done-marks", 0.1, borne):
            document["again"] = True
        return document

    def _claim_and_hold(self, verb: str, names: list[str]) -> Steps:
        borne: set[str] = set()
        asked = Ask(verb, names[0] if verb == "acquire" else "", self._document(verb, names, borne))
        leases: list[Document] = yield from self._claim(asked, borne)
        died = (yield from self._hold(leases, asked)) if leases else False
        key = asked.document.get("request_key")
        if leases and not died and key is not None:
            self._keys.append(key)
            if self._chance.random() < 0.1:
                late = yield from self._ask(asked)  # a repeat that comes after the release
                yield from self._release_all(_leases(late))
        return died

    def _claim(self, asked: Ask, borne: Iterable[str] = ()) -> Steps:
        """The leases that it got."""
        chance, document = self._chance, asked.document
        if self._session and self._bears("two-asks", 0.4, set()):
            terms = self._terms._replace(features=self._terms.features - {"two-asks"})
            life = Workload(f"{self.name}b{self._number}", self._stage, terms, self._session)
            self._stage.along(life.name, lambda stage: life._second(stage, asked))
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
        self._bore(reply, borne, document.get("names", [asked.name]))
        if reply is None:
            return []
        if verdict(asked, reply)[0] == UNKNOWN and self._session:
            return (yield from self._by_session(asked))
        yield from self._release_all((reply.body or {}).get("rest", []))  # what a lost answer had given it
        return _leases(reply)

    def _now_ms(self) -> int:
        return int(self._stage.now() * 1000)

    def _ask_all(self, flow: Generator[Any, Any, Any]) -> Steps:
        """Run a flow and return its result; None if its client grew tired of it."""
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
                more = 0.15 if "dead-waiters" in self._terms.features else 0.0
                if self._stage.strikes("dead", 0.03 + more):
                    self._bore(step.reply, ["dead-waiters"] * bool(more), [(step.reply.body or {}).get("name", "")])
                    return None

    def _by_session(self, asked: Ask) -> Steps:
        """Renew what the session got by a claim without an answer, instead of claiming again."""
        if asked.verb != "acquire" or asked.name in SEVERAL or "mode" in asked.document or self._chance.random() < 0.5:
            return []
        reply = yield from self._ask(Ask("renew", asked.name, {"session_id": self._session}))
        return [reply.body] if reply.status < 300 else []

    # An owner

    def _hold(self, leases: list[Document], asked: Ask) -> Steps:
        """Renew them a few times, and end them somehow. True if it died."""
        stage, chance = self._stage, self._chance
        is_plain = len(leases) == 1 and asked.verb == "acquire"
        if is_plain and self._session and self._bears("claim-all", 0.3, set()):
            return (yield from self._more(leases[0], asked))
        if is_plain and "mode" not in asked.document and self._bears("access-lists", 0.1, set()):
            lease = leases[0]
            listed = {"acquire": chance.choice(LISTS)}
            reply = yield from self._ask(Ask("acl", lease["name"], {"acl": listed}))
            self._bore(reply, ["access-lists"], [lease["name"]])
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
            if self._bears("steps", 0.6, set()) and (yield from self._step(chance.choice(leases))):
                return True
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
        if is_plain and leases and self._bears("transfer", 0.15, set()):
            leases = yield from self._transfer(leases[0])
        yield from self._release_all(leases)
        return False

    def _renew(self, lease: Document) -> Steps:
        """The lease as it is then; None if it is lost."""
        by_session = self._session and lease["name"] not in SEVERAL and self._chance.random() < 0.5
        document: Document = {"session_id": self._session} if by_session else {"lease_id": lease["lease_id"]}
        borne: set[str] = set()
        if not self._session and self._bears("other-ttls", 0.3, borne):
            document["ttl_seconds"] = self._terms.long_ttl_s  # always the same, so that a late copy makes none shorter
        if self._bears("share", 0.15, borne):
            yield from self._share(lease["name"], document, lease["lease_id"])
        reply = yield from self._ask(Ask("renew", lease["name"], document), lease["lease_id"])
        self._bore(reply, borne, [lease["name"]])
        if reply.status < 300:
            return reply.body
        return None if verdict(Ask("renew"), reply)[0] == REFUSED else lease

    def _step(self, lease: Document) -> Steps:
        """A step that changes something outside, as `claim.once` does it. True if it died in the middle."""
        stage, chance = self._stage, self._chance
        job, token, key, of = lease["name"], lease["fencing_token"], chance.choice(STEPS), stage.fresh_id()
        known = yield from self._note_step(lease, {"effect_key": key, "effect_id": of})
        if known is None:
            return False
        stage.outside.check_answer(job, token, known)
        if known["status"] == DONE:
            return False
        result = stage.outside.finds(job, token, key) if known["status"] == IN_DOUBT else None
        if stage.strikes("dead", 0.04):
            return True
        if stage.strikes("silent", 0.06):
            yield int(lease["remaining_ms"] * 1.3)
        fate = chance.random()
        end: Document = {"effect_status": FAILED, "effect_reason": "no luck"}
        if result is None and fate > 0.2:
            result = stage.outside.does(job, token, key)
            if result is None:
                return False  # another owner was there
        if stage.strikes("dead", 0.04):
            return True
        yield chance.choice((1, 1, 100))
        if fate > 0.9:
            end = {"effect_status": IN_DOUBT, "effect_reason": "no answer"}
        elif result is not None:
            end = {"effect_status": DONE, "effect_result": result}
        yield from self._note_step(lease, {"effect_key": key, "effect_id": of, **end})
        return False

    def _note_step(self, lease: Document, note: Document) -> Steps:
        """Return what is known of the step then. None: the note was refused, or nobody knows."""
        asked = Ask("renew", lease["name"], {"lease_id": lease["lease_id"], **note})
        for _ in range(self._chance.choice((1, 3))):  # as `claim.once` insists
            began = self._stage.now()
            reply: Reply = yield asked
            outcome, code = verdict(asked, reply)
            if code != "conflict":  # that is about the step, and says nothing of the lease
                self.note(asked, began, reply, lease["lease_id"])
            if outcome != UNKNOWN:
                self._bore(reply, ["steps"], [lease["name"]])
                return (reply.body or {}).get("effect") if outcome == OK else None
        return None

    def _share(self, job: str, proof: Document, lease_id: str = "") -> Steps:
        """Let others share it from now on."""
        reply = yield from self._ask(Ask("renew", job, {**proof, "mode": "shared"}), lease_id)
        self._bore(reply, ["share"], [job])

    def _more(self, lease: Document, asked: Ask) -> Steps:
        """Claim what it has together with another job, on the same terms."""
        kept = {field: asked.document[field] for field in ("mode", "slots", "units") if field in asked.document}
        borne: set[str] = set()
        document = self._document("acquire-all", self._two(lease["name"]), borne)
        document = {field: document[field] for field in document if field not in ("mode", "slots", "units")} | kept
        leases = yield from self._claim(Ask("acquire-all", "", document), borne)
        yield self._nap_ms(1, 100, 1_000)
        yield from self._release_all(leases or [lease])
        return False

    def _nap_ms(self, *some_ms: int) -> int:
        return min(self._chance.choice(some_ms), self._terms.nap_ms_max)

    def _release_all(self, leases: list[Document]) -> Steps:
        for lease in leases:
            document: Document = {"lease_id": lease["lease_id"]}
            borne: set[str] = set()
            if not is_resource(lease["name"]) and self._bears("attempts", 0.15, borne):
                document |= {"failed": True, "reason": "no luck", "retry_after_seconds": self._chance.choice((0, 1))}
            elif not is_resource(lease["name"]) and self._bears("done-marks", 0.15, borne):
                document["done_seconds"] = self._chance.choice((1, 4))
            reply = yield from self._ask(Ask("release", lease["name"], document))
            self._bore(reply, borne, [lease["name"]])

    def _transfer(self, lease: Document) -> Steps:
        """To another owner without a session, or to a new session. Both are this client, too."""
        heir: Document = {"fresh_lease_id": self._stage.fresh_id(), "to_owner": f"{self.name}.heir"}
        before = self._session, self._session_until
        to_session = self._chance.random() < 0.5 and (yield from self._open_session())
        if to_session:
            heir["to_session"] = self._session
        asked = Ask("transfer", lease["name"], {"lease_id": lease["lease_id"], **heir})
        reply = yield from self._ask(asked)
        self._bore(reply, ["transfer"], [lease["name"]])
        got = [reply.body] if verdict(asked, reply)[0] == OK else [lease]
        if to_session:
            yield self._nap_ms(1, 100, 1_000)
            yield from self._end_session()
            self._session, self._session_until = before
        return got

    # Sessions

    def _in_session(self) -> Steps:
        died = False
        if (yield from self._open_session()):
            claims_all = "claim-all" in self._terms.features and len(self._plain) > 1
            ways = [self._one, self._one, self._all if claims_all else self._one, self._idle]
            ways += [self._any] * ("claim-any" in self._terms.features)
            ways += [self._count] * ("numbers" in self._terms.features)
            for _ in range(self._chance.choice((1, 2, 3))):
                died = died or (yield from self._chance.choice(ways)())
            if not died:
                yield from self._end_session()
        self._session = ""
        return died

    def _second(self, stage: Stage, first: Ask) -> Steps:
        """While its session asks for something, or has it, it asks for the same once more, as another thread of the
        same worker does."""
        self._stage, chance, on = stage, self._chance, self._terms.features
        yield self._nap_ms(1, 10, 100, 1_000)
        names = first.document.get("names", [first.name])
        if "share" in on and chance.random() < 0.4:
            yield from self._share(chance.choice(names), {"session_id": self._session})
        # Two asks without a key, or with the same, are one: whoever hangs up leaves the line for both.
        document = {**first.document, "owner": f"{self.name}.1", "request_key": f"{self.name}.1"}
        if "request_key" in first.document and chance.random() < 0.3:
            del document["request_key"]
        if chance.random() < 0.5:  # on other terms, which its session cannot have besides
            otherwise: list[Document] = [{"ttl_seconds": 4}, {"again": True}]
            if "mode" not in document:
                otherwise += [{"units": 3}] * (POOL in names) + [{"slots": 3}] * (names[0] in TWOS)
                otherwise += [{"mode": "shared"}] * (POOL not in names and names[0] not in TWOS)
            document |= chance.choice(otherwise)
        verb = first.verb
        if verb == "acquire-all" and chance.random() < 0.3:
            verb, document = "acquire", {field: document[field] for field in document if field != "names"}
        asked = Ask(verb, "" if verb != "acquire" else names[0], document)
        leases = yield from self._claim(asked, ["two-asks"])
        yield chance.choice((1, 100))
        yield from self._release_all([lease for lease in leases if not lease.get("held_before")])
        return False

    def _family(self) -> Steps:
        """A session and one that is part of it do not keep each other out."""
        if not (yield from self._open_session()):
            return False
        parent, until, died = self._session, self._session_until, False
        borne: set[str] = set()
        leases = yield from self._claim(Ask("acquire", RELATED, self._document("acquire", [RELATED], borne)), borne)
        if (yield from self._open_session(parent_id=parent)):
            self._parent = parent
            ways = [lambda: self._one(RELATED), self._one]
            ways += [self._all] * ("claim-all" in self._terms.features and len(self._plain) > 1)
            died = yield from self._chance.choice(ways)()
            if not died:
                yield from self._end_session()
        self._session, self._session_until, self._parent = parent, until, ""
        if not died:
            yield from self._release_all(leases)
            yield from self._end_session()
        self._session = ""
        return died

    def _open_session(self, **more: str) -> Steps:
        asked = {
            "owner": self.name,
            "ttl_ms": 1000 * self._terms.session_s,
            "fresh_session_id": self._stage.fresh_id(),
            **more,
        }
        until = self._stage.now() + self._terms.session_s
        reply = yield from self._ask(Ask("session-open", "", asked))
        if reply.status >= 300:
            return False
        self._session, self._session_until = reply.body["session_id"], until
        return True

    def _idle(self) -> Steps:
        """Its session has nothing for a while."""
        for ms in self._terms.idle_ms:
            yield ms
            yield from self._keep_session()
        return False

    def _keep_session(self) -> Steps:
        now = self._stage.now()
        if now >= self._session_until - self._terms.session_s * 0.75:
            reply = yield from self._ask(Ask("session-keep", self._session))
            if reply.status < 300:
                self._session_until = now + self._terms.session_s

    def _end_session(self) -> Steps:
        yield from self._ask(Ask("session-end", self._session))

    # Others

    def _look(self) -> Steps:
        yield from self._ask(Ask("inspect", self._chance.choice(self._terms.jobs)))

    def _count(self) -> Steps:
        """Take a number of a series, ask again as after a lost reply, and perhaps give it back."""
        chance, job = self._chance, self._chance.choice(self._plain)
        self._number += 1
        owner = f"{self.name}.{self._number}"
        document: Document = {"owner": owner, "request_key": f"{owner}n"}
        if chance.random() < 0.1:
            document["at_least"] = chance.randrange(1, 40)
        asked = Ask("next", job, document)
        reply = yield from self._ask(asked)
        if chance.random() < 0.3:
            reply = yield from self._ask(asked)
        self._bore(reply, ["numbers"], [job])
        if reply.status < 300 and chance.random() < 0.3:
            yield chance.choice((1, 100))
            back = {"number": reply.body["number"], "request_key": f"{owner}b"}
            yield from self._ask(Ask("give-back", job, back))
        return False

    def _operate(self) -> Steps:
        job, chance = self._chance.choice(self._terms.jobs), self._chance
        closing: Document = {"reason": "repairs", "for_seconds": chance.choice((1, 4))}
        is_opened = chance.random() < 0.4
        asks = {
            "breaks": Ask("break", job, {"reason": self._stage.fresh_id()}),
            "closures": Ask("open", job) if is_opened else Ask("close", job, closing),
            "prefix-closures": Ask("open", PREFIX) if is_opened else Ask("close", PREFIX, closing),
            "attempts": Ask("free", job),
            "pools": Ask("pool", POOL, {"slots": chance.choice((2, 3, 3))}),
            "smaller-pools": Ask("pool", POOL, {"slots": chance.choice((None, 0, 1, 1, 2))}),
        }
        on = [feature for feature in asks if feature in self._terms.features]
        on = [feature for feature in on if not feature.endswith("pools") or POOL in self._terms.jobs]
        if not on:
            yield from self._look()
            return
        feature = chance.choice(on)
        reply = yield from self._ask(asks[feature])
        about = [each for each in self._plain if each.startswith(PREFIX)] if feature == "prefix-closures" else []
        self._bore(reply, [feature], about or [asks[feature].name])

    # The record

    def _ask(self, asked: Ask, lease_id: str = "") -> Steps:
        """The reply. `lease_id`: what it is about, if the document does not say so."""
        began = self._stage.now()
        reply: Reply = yield asked
        self.note(asked, began, reply, lease_id)
        return reply

    def note(self, asked: Ask, began: float, reply: Reply, lease_id: str = "") -> None:
        if asked.verb not in _CALLS or (asked.verb == "inspect" and asked.name in SEVERAL):
            return
        outcome, code = verdict(asked, reply)
        ended, document, body = self._stage.now(), asked.document, reply.body or {}
        shares = asked.verb == "renew" and document.get("mode") == "shared"
        if outcome == UNKNOWN and (shares or asked.verb in BY_OPERATORS):
            ended = began + UNANSWERED_S
        # Who gets a lease by other means than a claim is not told whether it is the only owner.
        may_share = asked.name in SEVERAL or self._terms.features & {"share", "shared"}
        line: Document = {"client": self.name, "call": _CALLS[asked.verb], "job": asked.name}
        line |= {"began": began, "ended": ended, "outcome": outcome, "code": code}
        if kind_of(reply) in (NOT_NOW, NOT_YOU):
            line["says"] = str(body.get("details") or "")
        if asked.verb.startswith("acquire"):
            self._note_claim(asked, reply, line)
            return
        if asked.verb == "withdraw":
            ticket, key = self._place  # who shows the ticket need not name the key
            key = document.get("request_key") or (key if document.get("ticket") == ticket else "")
            for job in document["names"]:
                self._stage.note(**line | {"job": job, "key": key})
            return
        if asked.verb == "inspect":
            line |= {"held": body.get("status") == "held", "token": body.get("fencing_token") or 0}
        elif asked.verb == "session-open":
            line |= {"job": "", "session": body.get("session_id", ""), "parent": document.get("parent_id", "")}
        elif asked.verb == "session-end":
            line |= {"job": "", "session": asked.name}
        elif asked.verb == "close":
            line["ttl"] = document["for_seconds"]
        elif asked.verb == "pool":
            line["slots"] = NO_POOL if document["slots"] is None else document["slots"]
        elif shares:
            line |= {"call": "share", "lease": document.get("lease_id", lease_id)}
            line["session"] = document.get("session_id", "")
        elif asked.verb == "renew" and outcome == OK:
            line |= _lease_fields(body) | {"session": document.get("session_id", "")}
            if not lease_id:  # what an earlier claim of the session got, which may have asked for less than all of it
                line |= {"call": "claim"} | ({"units": 1} if may_share else {})
        elif asked.verb not in BY_OPERATORS:
            line["lease"] = document.get("lease_id", lease_id)
        self._stage.note(**line)
        if asked.verb == "transfer" and outcome == OK and not may_share:
            heir = {"owner": document["to_owner"], "session": document.get("to_session", "")}
            self._stage.note(**line | _lease_fields(body) | {"call": "heir"} | heir)

    def _note_claim(self, asked: Ask, reply: Reply, line: Document) -> None:
        """A line for each job that it got, or did not get."""
        document, body = asked.document, reply.body or {}
        line |= {"key": document.get("request_key", ""), "owner": document["owner"]}
        line |= {"session": document.get("session_id", ""), "group": document.get("replaces", "")}
        if body.get("ticket"):
            self._place = body["ticket"], line["key"]
        if asked.verb == "acquire" and body.get("ticket"):
            line |= {"ticket": body["ticket"], "position": body["position"]}
        got = _leases(reply)
        for each in got:
            lease = {"job": each["name"], "ceiling": document.get("max_hold_seconds", 0)} | _lease_fields(each)
            if each.get("held_before") or each["owner"] != document["owner"]:  # an earlier ask got it
                lease |= {"key": "", "ceiling": 0}
            self._stage.note(**line | lease | _part_of(each["name"], document))
        for job in () if got else document.get("names", [asked.name]):
            self._stage.note(**line | {"job": job} | _part_of(job, document))


def lost() -> Reply:
    return reply_for_error(ServerUnreachable(f"{THROWN_AWAY} {FATE_UNKNOWN}"))


def _part_of(job: str, document: Document) -> Document:
    """The part of the job that a claim is for: nothing is said of one that wants it alone."""
    if document.get("mode") == "shared":
        return {"units": 1}
    if job == POOL or "slots" in document:
        return {"units": document.get("units", 1), "slots": document.get("slots", 0)}
    return {}


def _leases(reply: Reply | None) -> list[Document]:
    """The leases in the answer to a claim."""
    if reply is None or status_of(reply) != "acquired" or reply.body is None:
        return []
    found: list[Document] = reply.body.get("leases") or [reply.body]
    return found


def _lease_fields(lease: Document) -> Document:
    """The fields of a lease that the judge needs: nobody else has the job for that long after it was asked for."""
    return {"lease": lease["lease_id"], "token": lease["fencing_token"], "ttl": lease["remaining_ms"] / 1000}
