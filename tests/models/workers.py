"""Workers that claim jobs at several servers, keep them, pass them on and die. Each notes when it was sure of a job.

A worker goes to the next server when one does not answer, with the same request key: so it finds its place in the line,
or the job it was given. While it lives it renews at whichever server answers, and must never lose what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.core import lease_outcomes, outcomes
from dibs.core.commands import Acquire, KeepSession, Leave, OpenSession, Release, Renew
from tests.models.history import ObservedHold

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.engine.liveness import Result
    from dibs.engine.waiters import Waiter
    from tests.models.servers import Cluster, Server

NS = "default"
PATIENCE_MS = 400  # how long a worker waits for an answer that should come at once
TTL_MS = 6_000


class Call:
    """One question, asked at one server after the other until one of them answers."""

    def __init__(self, worker: Worker, command: Command, done: Callable[[Any], None]) -> None:
        self.worker, self.command, self.done = worker, command, done
        self.is_over = False
        self._asked_ms = -PATIENCE_MS
        self._round = 0

    def act(self) -> None:
        now_ms = self.worker.cluster.clock.steady_ms()
        if now_ms - self._asked_ms < PATIENCE_MS:
            return
        self._asked_ms = now_ms
        self._round += 1
        this = self._round
        server = self.worker.next_server()
        if server is not None:
            server.post(self.command, lambda result: self._answered(this, result))

    def _answered(self, this: int, result: Result) -> None:
        if self.is_over or isinstance(result, BaseException):
            return  # the next try comes
        self.is_over = True
        self.done(result)


class Worker:
    def __init__(self, cluster: Cluster, name: str, jobs: tuple[str, ...], *, in_session: bool) -> None:
        self.cluster, self.name, self.jobs = cluster, name, jobs
        self.session = f"session-{name}" if in_session else None
        self.is_dead = False
        self.wrong: list[str] = []
        self.seen: list[ObservedHold] = []
        self.deadlocks = self.claims = self.moves = 0
        self._is_stopping = False
        self._turn = cluster.chance.randrange(10)
        self._calls: list[Call] = []
        self._leases: dict[str, Any] = {}  # by job: what it was last told
        self._renew_at_ms: dict[str, int] = {}
        self._release_at_ms: dict[str, int] = {}
        self._asking: tuple[Acquire, Server, Waiter] | None = None
        self._unasked: Acquire | None = None  # there was no server; its place may still be there
        self._giving_back: set[str] = set()  # until the release is answered, a claim would find the job ours
        self._keep_at_ms = 0
        if self.session is not None:
            opened = OpenSession(ns="default", fresh_id=self.session, principal="team", owner=name, ttl_ms=TTL_MS)
            self._call(opened, lambda outcome: None)

    # At the servers

    def next_server(self) -> Server | None:
        servers = self.cluster.servers
        self._turn += 1
        return servers[self._turn % len(servers)] if servers else None

    def _call(self, command: Command, done: Callable[[Any], None]) -> None:
        self._calls.append(Call(self, command, done))

    def die(self) -> None:
        """Dies without a message. It is no longer sure of any job."""
        self.is_dead = True
        for job in list(self._leases):
            self._note_end(job)

    def act(self) -> None:
        if self.is_dead:
            return
        now_ms, chance = self.cluster.clock.steady_ms(), self.cluster.chance
        for call in self._calls:
            call.act()
        self._calls = [call for call in self._calls if not call.is_over]
        if self._is_stopping:
            return
        if self.session is not None and now_ms >= self._keep_at_ms:
            self._keep_at_ms = now_ms + TTL_MS // 4
            self._call(KeepSession(session=self.session, principal="team"), self._kept)
        for job, at_ms in list(self._renew_at_ms.items()):
            if now_ms >= at_ms:
                self._renew_at_ms[job] = now_ms + TTL_MS // 4
                self._renew(job)
        for job, at_ms in list(self._release_at_ms.items()):
            if now_ms >= at_ms:
                self._release(job)
        if self._unasked is not None:
            self._ask(self._unasked)
        elif self._asking is not None:
            self._go_on()
        elif len(self._leases) < (2 if self.session else 1) and chance.random() < 0.2:
            taken = {*self._leases, *self._giving_back}
            self._claim(chance.choice([job for job in self.jobs if job not in taken]))

    # Claiming

    def _claim(self, job: str) -> None:
        self.claims += 1
        key = f"{self.name}-{self.claims}"
        claim = Acquire(
            ns=NS,
            name=job,
            principal="team",
            owner=self.name,
            ttl_ms=TTL_MS,
            fresh_lease_id=f"lease-{key}-0",
            session=self.session,
            wait=True,
            request_key=key,
        )
        self._ask(claim)

    def _ask(self, claim: Acquire) -> None:
        server = self.next_server()
        self._unasked = claim if server is None else None
        if server is None:
            return
        wait_ms = self.cluster.chance.choice((1_000, 5_000, 60_000))
        waiter = server.waiters.ask(
            claim, wait_ms, lambda result: self._answered(claim, server, result), has_hung_up=lambda: False
        )
        self._asking = (claim, server, waiter)

    def _go_on(self) -> None:
        """Goes to another server if its server is gone; now and then also if it is not."""
        assert self._asking is not None
        claim, server, waiter = self._asking
        if not server.is_dead and (server in self.cluster.able() or self.cluster.chance.random() > 0.02):
            return
        self.moves += 1
        waiter.cancel()
        self._again(claim)

    def _again(self, claim: Acquire, **fields: Any) -> None:
        stem, number = claim.fresh_lease_id.rsplit("-", 1)
        self._asking = None
        self._ask(claim.replace(fresh_lease_id=f"{stem}-{int(number) + 1}", **fields))

    def _answered(self, claim: Acquire, server: Server, result: Any) -> bool:
        if self.is_dead or server.is_dead or self._asking is None or self._asking[:2] != (claim, server):
            return False
        if isinstance(result, outcomes.Granted):
            self._asking = None
            self._granted(result)
        elif isinstance(result, outcomes.Queued):
            self._again(claim, ticket=result.ticket, ticket_id=result.ticket_id)
        elif isinstance(result, BaseException):
            self._again(claim)
        else:
            self._asking = None
            self.deadlocks += isinstance(result, outcomes.Deadlock)
            if isinstance(result, outcomes.SessionOver | outcomes.SessionUnknown) and self._keep_at_ms:
                self.is_dead = isinstance(result, outcomes.SessionOver)  # `_kept` reports it, too
        return True

    def _granted(self, outcome: outcomes.Granted) -> None:
        job, now_ms = outcome.name, self.cluster.clock.steady_ms()
        if job in self._leases:
            return
        self._leases[job] = outcome.lease
        if outcome.lease.expires_ms - self.cluster.clock() < TTL_MS // 2:
            # The answer came so late that the lease may be over: the worker counts from its request, and releases.
            self._giving_back.add(job)
            self._call(Release(**self._proof(job)), lambda outcome: self._giving_back.discard(job))
            del self._leases[job]
            return
        self.seen.append(self._observed(job, self.cluster.clock()))
        self._renew_at_ms[job] = now_ms + TTL_MS // 4
        self._release_at_ms[job] = now_ms + self.cluster.chance.choice((50, 500, 2_000, 10_000))

    # Keeping

    def _observed(self, job: str, from_ms: int) -> ObservedHold:
        lease = self._leases[job]
        return ObservedHold(job, self.name, lease.token, from_ms, lease.expires_ms)

    def _note_end(self, job: str, *, keep: bool = False) -> None:
        now_ms = self.cluster.clock()
        token = self._leases[job].token
        for at, hold in enumerate(self.seen):
            if (hold.job, hold.token) == (job, token):
                until_ms = self._leases[job].expires_ms if keep else min(now_ms, hold.until_ms)
                self.seen[at] = ObservedHold(job, self.name, token, hold.from_ms, until_ms)

    def _proof(self, job: str) -> dict[str, Any]:
        return {"ns": NS, "name": job, "principal": "team", "lease_id": self._leases[job].lease_id}

    def _renew(self, job: str) -> None:
        token = self._leases[job].token
        self._call(Renew(**self._proof(job)), lambda outcome: self._renewed(job, token, outcome))

    def _renewed(self, job: str, token: int, outcome: Any) -> None:
        lease = self._leases.get(job)
        if lease is None or lease.token != token:
            return
        if isinstance(outcome, lease_outcomes.Renewed):
            self._leases[job] = outcome.lease
            self._note_end(job, keep=True)
        elif isinstance(outcome, outcomes.NotCurrent):
            self.wrong.append(f"{self.name} lost {job} while it was there: {outcome}")
            self._forget(job)

    def _kept(self, outcome: Any) -> None:
        if isinstance(outcome, outcomes.SessionOver):
            self.wrong.append(f"{self.session} ended while it was kept: {outcome}")
            self.is_dead = True

    def _release(self, job: str) -> None:
        self._note_end(job)
        self._giving_back.add(job)
        self._call(Release(**self._proof(job)), lambda outcome: self._released(job, outcome))
        self._forget(job)

    def _released(self, job: str, outcome: Any) -> None:
        self._giving_back.discard(job)
        if isinstance(outcome, outcomes.NotCurrent):
            self.wrong.append(f"{self.name} could not give {job} back: {outcome}")

    def _forget(self, job: str) -> None:
        del self._leases[job]
        self._renew_at_ms.pop(job, None)
        self._release_at_ms.pop(job, None)

    def stop(self) -> None:
        """Release its jobs and ask for nothing more. Its session is left to run out."""
        self._is_stopping = True
        for job in list(self._leases):
            self._release(job)
        if self._asking is not None:
            claim, _, waiter = self._asking
            waiter.cancel()
            self._asking = None
            if claim.ticket and claim.ticket_id:
                place = {"ticket": claim.ticket, "ticket_id": claim.ticket_id}
                leave = Leave(ns=NS, name=claim.name, principal="team", **place)  # type: ignore[arg-type]
                self._call(leave, lambda outcome: None)
