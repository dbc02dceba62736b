"""Clients of simulated servers. They claim one job, any and all, in line or not, in sessions or not, with request keys
or not; renew, hand over, release, break and look; repeat what was not answered, at another server; fall silent and die.

A client is a generator: it yields a request and is sent the answer, or None if it got none; it yields milliseconds to
let them pass. Each call is noted for the judge, and each lease that a client was told of for the checker.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.base.errors import DibsError, Overloaded
from dibs.core import commands, outcomes
from dibs.core.lease_outcomes import Renewed, SessionState, Transferred
from dibs.core.records import EXCLUSIVE, LOST, SHARED
from dibs.testing.checker import NS
from dibs.testing.judge import OK, REFUSED, UNKNOWN, RecordedCall
from dibs.testing.simulation import EPISODE, FAULTS, World

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from dibs.core.records import Holder
    from dibs.engine.waiters import Waiter
    from dibs.testing.checker import Finding
    from dibs.testing.simulation import EpisodeSettings, SimulatedServer

    Steps = Generator["Request | int", Any, Any]
    Lease = tuple[str, Holder]

CLAIMS = (commands.Acquire, commands.AcquireAny, commands.AcquireAll)
NEVER_REFUSED = (commands.Renew, commands.Release, commands.KeepSession, commands.EndSession)
LATENCIES_MS = (0, 1, 1, 3)
LATE_MS = (300, 3_000, 8_000)
TTLS_MS = (4_000, 4_000, 8_000, 30_000)
LONG_TTL_MS = 45_000
SESSION_TTL_MS = 8_000
TRIES = 6
EVER_S = 10.0**6


def jobs_of(count: int) -> list[str]:
    """Plain jobs; then two paths, one inside the other; then one that several may share."""
    return ["job-0", "path:a/b", "job-1", "shared", "path:a", *[f"job-{n}" for n in range(2, count)]][:count]


class Request:
    """One request on one connection, which its client closes when it is tired of waiting."""

    def __init__(self, client: SimulatedClient, command: commands.Command, wait_ms: int = 0) -> None:
        self._world = client.world
        self.client, self.command, self.wait_ms = client, command, wait_ms
        self._server: SimulatedServer | None = None
        self._is_open = True
        self._is_closed = self._is_gone = False  # what a look at the socket shows, and what the server's loop knows
        self._moves = client.moves
        self._waiter: Waiter | None = None

    def send(self) -> None:
        world, chance = self._world, self._world.chance
        self._server = server = self.client.next_server()
        if server is None or not server.is_started:
            world.time.later(20, None, self._heard, None)
            return
        if isinstance(self.command, CLAIMS):
            world.checker.asking.add(self.command.fresh_lease_id)
        patience_ms = self.wait_ms + chance.choice((100, 400, 1_000, 1_000))
        if world.strikes("hung-up", 0.04):
            patience_ms = chance.choice((1, 10, patience_ms))
        world.time.later(patience_ms, None, self._tire)
        is_break = isinstance(self.command, commands.Break)  # a second one is another
        is_doubled = not is_break and world.strikes("doubled", 0.05)
        for copy in range(1 + is_doubled):
            delay_ms = chance.choice(LATENCIES_MS) + (chance.choice(LATE_MS) if world.strikes("late", 0.01) else 0)
            if copy:
                Request(self.client, self.command, self.wait_ms).stray(delay_ms + chance.choice((0, 300, 3_000)))
            elif not world.strikes("lost", 0.01):
                world.time.later(delay_ms, server.loop, self._arrive)

    def stray(self, delay_ms: int) -> None:
        """A copy that comes late, with a fresh id from its server, on a connection that nobody reads."""
        world, self._is_open = self._world, False
        self._server = server = self._server or self.client.next_server()
        if isinstance(self.command, CLAIMS):
            self.command = self.command.replace(fresh_lease_id=world.fresh_id("lease"))
        if server is not None and server.is_started:
            world.time.later(delay_ms, server.loop, self._arrive)
            world.time.later(delay_ms + world.chance.choice((1, 3, 8, 1_000)), None, self._close)

    def _arrive(self) -> None:
        server, command = self._server, self.command
        assert server is not None
        try:
            if self.wait_ms and isinstance(command, commands.Acquire | commands.AcquireAll):
                has_hung_up = (lambda: self._is_closed) if self._moves else None
                self._waiter = server.waiters.ask(command, self.wait_ms, self._answer, has_hung_up=has_hung_up)
                if self._is_gone:
                    self._waiter.cancel()
            else:
                server.post(command, self._decided, self._is_away)
        except DibsError as error:
            self._refused(error)

    def _is_away(self) -> bool:
        return isinstance(self.command, CLAIMS) and (self._is_gone or (self._moves and self._is_closed))

    def _refused(self, error: DibsError) -> None:
        if isinstance(error, Overloaded) and isinstance(self.command, NEVER_REFUSED):
            self._world.say("lease:never-early", f"A server refused a heartbeat or release because of claims: {error}")
        self._answer(error)

    def _decided(self, result: Any) -> None:
        server = self._server
        assert server is not None
        if not self._answer(result):
            server.waiters.on_undelivered(self.command, result)

    def _answer(self, result: Any) -> bool:
        """The server's answer. False: it knows that nobody is there."""
        world = self._world
        if self._is_gone or (self._moves and self._is_closed):
            return False
        if self._server is not None and self._server.is_dead:
            return True
        if self._is_open and not world.strikes("lost", 0.01):
            late_ms = world.chance.choice(LATE_MS) if world.strikes("late", 0.005) else 0
            world.time.later(world.chance.choice(LATENCIES_MS) + late_ms, None, self._heard, result)
        return True

    def _heard(self, result: Any) -> None:
        if self._is_open:
            self._ends()
            self.client.go_on(result)

    def _tire(self) -> None:
        if self._is_open:
            self._ends()
            self._close()
            self.client.go_on(None)

    def _ends(self) -> None:
        self._is_open = False
        self._world.operations += 1
        if isinstance(self.command, CLAIMS):
            self._world.checker.asking.discard(self.command.fresh_lease_id)

    def _close(self) -> None:
        """The connection is closed. The server's loop hears of it a little later."""
        self._is_closed = True
        server = self._server
        if server is not None:
            self._world.time.later(self._world.chance.choice((0, 1, 20, 500)), server.loop, self._gone)

    def _gone(self) -> None:
        self._is_gone = True
        if self._waiter is not None:
            self._waiter.cancel()


class SimulatedClient:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_home = False
        self.moves = world.chance.random() < 0.5
        self._may_break = name.endswith(("0", "4", "8"))
        self._jobs = jobs_of(world.settings.jobs)
        self._plain = [job for job in self._jobs if job.startswith("job-")]
        self._turn = world.chance.randrange(10)
        self._number = 0
        self._session = ""
        self._session_until_ms = 0
        self._steps = self._life()

    def next_server(self) -> SimulatedServer | None:
        servers = self.world.servers
        self._turn += 1
        return servers[self._turn % len(servers)] if servers else None

    def go_on(self, answer: Any) -> None:
        try:
            step = self._steps.send(answer)
        except StopIteration:
            self.is_home = True
            return
        if isinstance(step, Request):
            step.send()
        else:
            self.world.time.later(step, None, self.go_on, None)

    def _life(self) -> Steps:
        chance = self.world.chance
        yield chance.randrange(200)
        while not self.world.is_calm:
            ways = [self._one, self._one, self._one, self._one, self._in_session, self._any, self._look]
            if len(self._plain) > 1:
                ways.append(self._all)
            if self._may_break:
                ways.append(self._break)
            died = yield from chance.choice(ways)()
            if died:
                self.world.start_client()
                return
            yield chance.choice((1, 10, 100))

    # Claims

    def _one(self) -> Steps:
        chance = self.world.chance
        job = chance.choice(self._jobs)
        waits = chance.random() < 0.6
        mode = SHARED if job == "shared" and chance.random() < 0.7 else EXCLUSIVE
        claim = commands.Acquire(name=job, wait=waits, mode=mode, **self._terms("key"))
        return (yield from self._claim_and_hold(claim))

    def _all(self) -> Steps:
        names = tuple(sorted(self.world.chance.sample(self._plain, 2)))
        waits = self.world.chance.random() < 0.6
        return (yield from self._claim_and_hold(commands.AcquireAll(names=names, wait=waits, **self._terms("key"))))

    def _any(self) -> Steps:
        names = tuple(self.world.chance.sample(self._plain, min(3, len(self._plain))))
        return (yield from self._claim_and_hold(commands.AcquireAny(names=names, **self._terms("any"))))

    def _terms(self, kind: str) -> dict[str, Any]:
        chance = self.world.chance
        self._number += 1
        owner = f"{self.name}.{self._number}"
        ttl_ms = chance.choice(TTLS_MS)
        if self._session and chance.random() < 0.5:
            ttl_ms = 0
        return {
            "ns": NS,
            "principal": "team",
            "owner": owner,
            "ttl_ms": ttl_ms,
            "session": self._session or None,
            "request_key": f"{kind}-{owner}" if chance.random() < 0.7 else None,
            "fresh_lease_id": "",
        }

    def _claim_and_hold(self, claim: Any) -> Steps:
        leases: list[Lease] = yield from self._claim(claim)
        died = (yield from self._hold(leases, claim)) if leases else False
        if leases and not died and claim.request_key and self.world.chance.random() < 0.1:
            late = yield from self._claim(claim)  # a repeat that comes after the release
            yield from self._release_all(late)
        return died

    def _claim(self, claim: Any) -> Steps:
        """The leases that it got. It asks again if no answer came and it can be recognised."""
        chance = self.world.chance
        for _ in range(TRIES):
            wait_ms = chance.choice((500, 2_000, 6_000)) if getattr(claim, "wait", False) else 0
            claim = claim.replace(fresh_lease_id=self.world.fresh_id("lease"))
            began_ms = self.world.time.now_ms
            result = yield Request(self, claim, wait_ms)
            grants = result.grants if isinstance(result, outcomes.GrantedAll) else [result]
            if isinstance(grants[0], outcomes.Granted):
                for each in grants:
                    key = "" if each.held_before else None  # the lease of another request of this session
                    self._note(claim, each.name, began_ms, OK, each.lease, key=key)
                    self.world.checker.told(self.name, each.name, each.lease)
                return [(each.name, each.lease) for each in grants]
            outcome = REFUSED if isinstance(result, outcomes.Outcome) else UNKNOWN
            for job in getattr(claim, "names", None) or [claim.name]:
                self._note(claim, job, began_ms, outcome, code=type(result).__name__)
            if isinstance(result, outcomes.Refused) and claim.request_key:
                self._check_nothing_left(claim, result)
            if isinstance(result, outcomes.Queued):
                follows = result.seat or result.ticket_id
                claim = claim.replace(ticket=result.ticket, ticket_id=result.ticket_id, follows=follows)
                if self.world.strikes("dead", 0.03):
                    return []
            elif outcome == REFUSED or not (claim.request_key or getattr(claim, "ticket", 0)):
                return []
            else:
                yield chance.choice((1, 100, 500))
            if self._session:
                yield from self._keep_session()
                mine = (yield from self._by_session(claim)) if not isinstance(result, outcomes.Queued) else None
                if mine is not None:
                    return [mine]
        if getattr(claim, "ticket", 0):
            yield from self._leave(claim)
        return []

    def _by_session(self, claim: Any) -> Steps:
        """What its session got by a claim without an answer: it renews that instead of claiming again."""
        if not isinstance(claim, commands.Acquire) or claim.mode == SHARED or self.world.chance.random() < 0.5:
            return None
        began_ms = self.world.time.now_ms
        result = yield Request(self, commands.Renew(ns=NS, name=claim.name, principal="team", session=self._session))
        if not isinstance(result, Renewed):
            return None
        self._note(claim, claim.name, began_ms, OK, result.lease, key="")
        self.world.checker.told(self.name, claim.name, result.lease)
        return claim.name, result.lease

    def _check_nothing_left(self, claim: Any, refused: outcomes.Refused) -> None:
        """A repeat that is told that one of its jobs was lost has none of the others."""
        if all(isinstance(each, outcomes.KeySpent) and each.ending.how in LOST for each in refused.outcomes):
            left = self.world.checker.unknown_of_key(claim.request_key)
            if left:
                self.world.say("all-or-nothing", f"{self.name} was told that its claim is lost, and has {left}.")

    def _leave(self, claim: Any) -> Steps:
        names = getattr(claim, "names", None) or [claim.name]
        self.world.checker.lets_go(names[0], claim.ticket_id)
        place: dict[str, Any] = {"ticket": claim.ticket, "ticket_id": claim.ticket_id}
        left = yield Request(self, commands.Leave(ns=NS, name=names[0], principal="team", **place))
        if isinstance(left, outcomes.Left) and not left.was_in:
            for name in names:
                yield Request(self, commands.Release(ns=NS, name=name, principal="team", lease_id=claim.ticket_id))

    # An owner

    def _hold(self, leases: list[Lease], claim: Any) -> Steps:
        """Renew them a few times, and end them somehow. True if it died."""
        world, chance = self.world, self.world.chance
        for _ in range(chance.choice((0, 1, 2, 4))):
            if world.is_calm:
                break
            ttl_ms = min(lease.ttl_ms or SESSION_TTL_MS for _, lease in leases)
            yield int(ttl_ms * chance.choice((0.01, 0.02, 0.1, 0.4, 0.8)))
            if world.strikes("silent", 0.03):
                yield int(ttl_ms * 1.3)
            elif world.strikes("silent", 0.1):  # it renews at the last moment, and somebody looks right then
                job, lease = leases[0]
                yield max(0, lease.expires_ms - world.time.now_ms - chance.choice((2, 4, 8)))
                for ms in (4, 8, 12):
                    Request(self, commands.Inspect(ns=NS, name=job)).stray(ms)
            if self._session:
                yield from self._keep_session()
            kept: list[Lease] = []
            for job, lease in leases:
                now = yield from self._renew(job, lease)
                kept += [(job, now)] if now is not None else []
            if claim.request_key and world.strikes("doubled", 0.1 if len(kept) == len(leases) else 0.5):
                Request(self, claim).stray(chance.choice((0, 10)))
            leases = kept
            if not leases:
                return False
        if world.strikes("dead", 0.04):
            return True
        if len(leases) == 1 and leases[0][1].mode == EXCLUSIVE and chance.random() < 0.08:
            leases = yield from self._transfer(*leases[0])
        yield from self._release_all(leases)
        return False

    def _renew(self, job: str, lease: Holder) -> Steps:
        """The lease as it is then; None if it is lost."""
        longer = self.world.chance.random() < 0.25 and lease.ttl_ms
        for _ in range(3):
            ttl_ms = LONG_TTL_MS if longer else None  # always the same, so that a late copy makes none shorter
            by_session = bool(self._session) and lease.mode == EXCLUSIVE and self.world.chance.random() < 0.5
            proof = {"session": self._session} if by_session else {"lease_id": lease.lease_id}
            renew = commands.Renew(ns=NS, name=job, principal="team", ttl_ms=ttl_ms, **proof)  # type: ignore[arg-type]
            began_ms = self.world.time.now_ms
            result = yield Request(self, renew)
            if isinstance(result, Renewed):
                self._note(renew, job, began_ms, OK, result.lease)
                self.world.checker.told(self.name, job, result.lease)
                return result.lease
            if isinstance(result, outcomes.NotCurrent):
                self._note(renew, job, began_ms, REFUSED, lease)
                return None
        return lease

    def _release_all(self, leases: list[Lease]) -> Steps:
        for job, lease in leases:
            self.world.checker.lets_go(job, lease.lease_id)
            release = commands.Release(ns=NS, name=job, principal="team", lease_id=lease.lease_id)
            for _ in range(4):
                began_ms = self.world.time.now_ms
                result = yield Request(self, release)
                outcome = UNKNOWN if not isinstance(result, outcomes.Outcome) else OK
                outcome = REFUSED if isinstance(result, outcomes.NotCurrent) else outcome
                self._note(release, job, began_ms, outcome, lease)
                if outcome != UNKNOWN:
                    break

    def _transfer(self, job: str, lease: Holder) -> Steps:
        """To another owner without a session, which is this client, too."""
        fresh = self.world.fresh_id("heir")
        heir: dict[str, Any] = {"fresh_lease_id": fresh, "to_owner": f"{self.name}.heir"}
        transfer = commands.Transfer(ns=NS, name=job, principal="team", lease_id=lease.lease_id, **heir)
        self.world.checker.lets_go(job, lease.lease_id)
        for _ in range(3):
            began_ms = self.world.time.now_ms
            result = yield Request(self, transfer)
            self._note(transfer, job, began_ms, OK if isinstance(result, Transferred) else UNKNOWN, lease)
            if isinstance(result, Transferred):
                self._note(transfer, job, began_ms, OK, result.lease, call="heir")
                self.world.checker.told(self.name, job, result.lease)
                return [(job, result.lease)]
            if isinstance(result, outcomes.NotCurrent) and self.world.checker.is_live(job, fresh):
                self.world.say(
                    "idem:fresh-id", f"{self.name} handed {job} over, and its repeat was told that it had not."
                )
            if isinstance(result, outcomes.Outcome):
                break
        return [(job, lease)]

    # Sessions

    def _in_session(self) -> Steps:
        self._session = self.world.fresh_id("session")
        opening = commands.OpenSession(
            ns=NS, fresh_id=self._session, principal="team", owner=self.name, ttl_ms=SESSION_TTL_MS
        )
        result = None
        began_ms = self.world.time.now_ms  # a repeat does not renew it
        for _ in range(3):
            result = yield Request(self, opening)
            if isinstance(result, SessionState):
                break
        died = False
        if isinstance(result, SessionState):
            self._session_until_ms = began_ms + SESSION_TTL_MS
            for _ in range(self.world.chance.choice((1, 2, 3))):
                ways = (self._one, self._one, self._all if len(self._plain) > 1 else self._one, self._idle)
                way = self.world.chance.choice(ways)
                died = died or (yield from way())
                if self._session_until_ms == 0:
                    break
            if not died and self._session_until_ms:
                yield from self._end_session()
            self._note_session_end(min(self._session_until_ms, self.world.time.now_ms))
        self._session = ""
        return died

    def _idle(self) -> Steps:
        """Its session has nothing for a while."""
        for _ in range(3):
            yield SESSION_TTL_MS // 3
            yield from self._keep_session()
        return False

    def _keep_session(self) -> Steps:
        """Renew it. One that is over although it was kept in time breaks a promise."""
        began_ms = self.world.time.now_ms
        if not self._session_until_ms or began_ms < self._session_until_ms - SESSION_TTL_MS * 3 // 4:
            return
        result = yield Request(self, commands.KeepSession(session=self._session, principal="team"))
        if isinstance(result, SessionState):
            self._session_until_ms = max(self._session_until_ms, began_ms + SESSION_TTL_MS)
        elif isinstance(result, outcomes.SessionOver):
            if self.world.time.now_ms < self._session_until_ms:
                self.world.say("session", f"{self._session} was over while it was kept.")
            self._note_session_end(self._session_until_ms)
            self._session_until_ms = 0

    def _end_session(self) -> Steps:
        for job, lease_id in self.world.checker.of_session(self._session):
            self.world.checker.lets_go(job, lease_id)
        self._note_session_end(self.world.time.now_ms)
        for _ in range(3):
            result = yield Request(self, commands.EndSession(session=self._session, principal="team"))
            if isinstance(result, outcomes.Outcome):
                return

    def _note_session_end(self, at_ms: int) -> None:
        """From then on its leases may be over."""
        self._add(call="session_end", job="", began=at_ms / 1000, ended=at_ms / 1000 + EVER_S, session=self._session)

    # Others

    def _look(self) -> Steps:
        job = self.world.chance.choice(self._jobs)
        began_ms = self.world.time.now_ms
        result = yield Request(self, commands.Inspect(ns=NS, name=job))
        if isinstance(result, outcomes.Status):
            holders = result.lock.holders
            token = holders[0].token if holders else 0
            self._note(None, job, began_ms, OK, call="show", held=bool(holders), token=token)
        return False

    def _break(self) -> Steps:
        job = self.world.chance.choice(self._jobs)
        began_ms = self.world.time.now_ms
        reason = self.world.fresh_id("break")
        result = yield Request(self, commands.Break(ns=NS, name=job, principal="boss", reason=reason))
        outcome = OK if isinstance(result, outcomes.Outcome) else UNKNOWN
        self._note(None, job, began_ms, outcome, call="break", ended=None if outcome == OK else began_ms / 1000 + 60)
        return False

    def _note(
        self, command: Any, job: str, began_ms: int, outcome: str, lease: Holder | None = None, **more: Any
    ) -> None:
        if job == "shared":  # the judge knows one owner at a time
            return
        line: dict[str, Any] = {"call": _CALLS.get(type(command), ""), "job": job, "began": began_ms / 1000}
        if isinstance(command, CLAIMS):
            line |= {"key": command.request_key or "", "owner": command.owner, "session": command.session or ""}
        if lease is not None:
            ttl = lease.ttl_ms / 1000 if lease.ttl_ms else EVER_S
            line |= {"lease": lease.lease_id, "token": lease.token, "ttl": ttl}
        self._add(outcome=outcome, **line | {name: value for name, value in more.items() if value is not None})

    def _add(self, *, outcome: str = UNKNOWN, **line: Any) -> None:
        calls = self.world.calls
        line.setdefault("ended", self.world.time.now_ms / 1000)
        calls.append(RecordedCall(number=len(calls) + 1, client=self.name, outcome=outcome, **line))


_CALLS: dict[Any, str] = {
    commands.Acquire: "claim",
    commands.AcquireAny: "claim_any",
    commands.AcquireAll: "claim_all",
    commands.Renew: "renew",
    commands.Release: "release",
    commands.Transfer: "transfer",
}


class Episode(NamedTuple):
    settings: EpisodeSettings
    operations: int
    faults: int
    steps: int
    found: Finding | None


def episode(settings: EpisodeSettings) -> Episode:
    log = logging.getLogger("dibs")
    before, log.disabled = log.disabled, True  # a server tells of every fault
    try:
        world = World(settings, SimulatedClient)
        found = world.run()
    finally:
        log.disabled = before
    return Episode(settings, world.operations, world.faults, world.time.steps, found[0] if found else None)


def episodes(settings: EpisodeSettings) -> Iterator[Episode]:
    """As many episodes as the operations take. Each has a seed of its own, by which it is repeated alone."""
    if "." in settings.seed:
        yield episode(settings)
        return
    left, number = settings.operations, 0
    while left > 0:
        each = episode(settings._replace(seed=f"{settings.seed}.{number}", operations=min(EPISODE, left)))
        left -= max(each.operations, 1)
        number += 1
        yield each


def shrunk(failed: Episode, tries: int = 8) -> Episode:
    """A smaller episode that breaks the same promise: with fewer kinds of faults, servers, clients, jobs, operations.
    What is left out changes all that follows, so a few seeds are tried each time."""
    assert failed.found is not None
    promise, root = failed.found.promise, failed.settings.seed.partition(".")[0]

    def smaller(settings: EpisodeSettings) -> Episode | None:
        for seed in (settings.seed, *[f"{root}.{number}" for number in range(tries)]):
            each = episode(settings._replace(seed=seed))
            if each.found is not None and each.found.promise == promise:
                return each._replace(settings=each.settings._replace(operations=max(1, each.found.operation)))
        return None

    best = failed._replace(settings=failed.settings._replace(operations=max(1, failed.found.operation)))
    for fault in FAULTS:
        best = smaller(best.settings._replace(without=best.settings.without | {fault})) or best
    for field, least in (("servers", 1), ("clients", 2), ("jobs", 1)):
        while getattr(best.settings, field) > least:
            found = smaller(best.settings._replace(**{field: getattr(best.settings, field) - 1}))
            if found is None:
                break
            best = found
    return best
