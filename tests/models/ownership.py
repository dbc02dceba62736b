"""A dumb model of dibs: it finds the owner of a job from lists that only grow. The clever rules are checked against
it.

It shares no code with `dibs.core`, only the numbers in `limits`. It is slow and small on purpose, and eager where the
core is lazy: the core keeps outages and computes a deadline when it reads one, the model moves every deadline at the
moment an outage becomes known. Agreement of two such different ways is evidence.

Every method is one command and returns a `Told`: the answer the caller must get. Access lists and quotas are not in
it. Outages beyond `OUTAGES_KEPT` are not merged here, so a longer history may only be compared as "not earlier".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dibs.core import limits


def is_resource(job: str) -> bool:
    """It can be held, and nothing else."""
    return job.startswith(("path:", "repo:", "branch:"))


@dataclass
class Grant:
    """One lease, from its grant on. Nothing is ever removed; `how` stays empty until an end is noticed."""

    worker: str
    principal: str
    lease: str
    token: int
    attempt: int
    key: str | None
    delay_ms: int
    ttl_ms: int
    until_ms: int
    heard_ms: int = 0  # the last renewal
    lost_ms: list[int] = field(default_factory=list)  # the outages since then
    metadata: str | None = None
    checkpoint: str | None = None
    how: str = ""
    at_ms: int = 0
    done_until_ms: int = 0
    retry_ms: int = 0
    reason: str | None = None
    forgotten: bool = False
    last_ms: int = 2**60  # its ceiling

    @property
    def rests_until_ms(self) -> int:
        """Until when the job rests: after a loss for its delay, after a failure for its retry time."""
        spans = {"expired": self.delay_ms, "broken": self.delay_ms, "failed": self.retry_ms}
        return self.at_ms + spans.get(self.how, 0) if spans.get(self.how) else 0


@dataclass(frozen=True)
class Told:
    """An answer in plain words. Fields that an answer does not have stay at their defaults."""

    says: str
    owner: str | None = None
    token: int | None = None
    attempt: int | None = None
    until_ms: int | None = None
    again: bool = False
    ended: str | None = None
    previous: tuple[object, ...] | None = None  # owner, how, when, checkpoint, reason, attempt
    count: int = 0


@dataclass
class Model:
    """Jobs by name; of each, every grant that ever was, oldest first."""

    grants: dict[str, list[Grant]] = field(default_factory=dict)
    pulses: list[int] = field(default_factory=list)
    outage_count: int = 0
    closed: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)  # until when, and which jobs

    # What is so

    def current(self, job: str) -> Grant | None:
        """The last grant, unless it ended. Only its worker is the owner."""
        known = self._known(job)
        return known[-1] if known and not known[-1].how else None

    def owner(self, job: str) -> str | None:
        """Who is told to be the owner: also when its time is over, until somebody notices."""
        grant = self.current(job)
        return grant.worker if grant else None

    def endings(self, job: str) -> list[Grant]:
        """The ended grants that are still remembered, newest first."""
        kept: list[Grant] = []
        for grant in [grant for grant in self._known(job) if grant.how]:
            kept = [grant, *[each for each in kept if grant.at_ms - each.at_ms < limits.REMEMBERED_MS]]
        return kept[: limits.REMEMBERED_MAX]

    def next_token(self, job: str) -> int:
        own = [grant.token for grant in self.grants.get(job, [])]
        floor = [grant.token for grants in self.grants.values() for grant in grants if grant.forgotten]
        return max([0, *own, *floor]) + 1

    def failures(self, job: str) -> int:
        """How many grants in a row were lost, up to now. Of a resource none counts."""
        count = 0
        if is_resource(job):
            return 0
        for grant in reversed([grant for grant in self._known(job) if grant.how]):
            if grant.how == "released":
                break
            count += 1
        return count

    def instants(self) -> list[int]:
        """Every moment at which something may change. A test should step on each, and just before and after it."""
        found = []
        for job in self.grants:
            for grant in self._known(job):
                found += [grant.until_ms, grant.done_until_ms, grant.at_ms + grant.delay_ms]
                found.append(grant.rests_until_ms)
                found.append(grant.at_ms + limits.IDLE_RECORD_MS)
        return sorted({*found, *[until_ms for until_ms, _ in self.closed.values()]})

    def _known(self, job: str) -> list[Grant]:
        return [grant for grant in self.grants.get(job, []) if not grant.forgotten]

    def _notice(self, job: str, now_ms: int) -> int:
        """End every lease whose deadline has come. Returns how many ended."""
        grant = self.current(job)
        if grant is None or now_ms < grant.until_ms:
            return 0
        self._lose(job, grant, "expired", grant.until_ms)
        grant.reason = "max_hold" if grant.until_ms == grant.last_ms else None
        return 1

    def _lose(self, job: str, grant: Grant, how: str, at_ms: int) -> None:
        """Without a checkpoint of its own, a grant leaves the one it got, if the job was not finished since."""
        before = self.endings(job)
        if grant.checkpoint is None and before and not before[0].done_until_ms:
            grant.checkpoint = before[0].checkpoint
        grant.how, grant.at_ms = how, at_ms

    def _previous(self, job: str) -> tuple[object, ...] | None:
        for last in self.endings(job):
            return (last.worker, last.how, last.at_ms, last.checkpoint, last.reason, last.attempt)
        return None

    # What may be asked

    def claim(
        self,
        now_ms: int,
        job: str,
        worker: str,
        principal: str,
        fresh: str,
        ttl_ms: int,
        *,
        key: str | None = None,
        lease: str | None = None,
        delay_ms: int = 0,
        metadata: str | None = None,
        again: bool = False,
        max_hold_ms: int = 0,
    ) -> Told:
        self._notice(job, now_ms)
        holder = self.current(job)
        if holder and holder.principal == principal and (lease == holder.lease or (key and key == holder.key)):
            new_ms = min(limits.REGRANT_MS, holder.ttl_ms // 12)  # a lease that is shown is left as it is for so long
            is_new = lease == holder.lease and ttl_ms <= holder.ttl_ms and now_ms - holder.heard_ms < new_ms
            if not is_new and min(now_ms + ttl_ms, holder.last_ms) > holder.until_ms:
                self._hear(holder, now_ms, max(ttl_ms, holder.ttl_ms))
            return self._granted(job, holder, again=True)
        own_endings = [grant for grant in self.endings(job) if grant.principal == principal]
        for grant in own_endings:
            if key and grant.key == key and now_ms - grant.at_ms < limits.REMEMBERED_MS:
                return Told("key-spent", owner=grant.worker, token=grant.token, ended=grant.how)
            if lease == grant.lease:
                return self._not_current(job, grant)
        if lease is not None:
            return self._not_current(job, None)
        last = self._known(job)[-1] if self._known(job) else None
        if last and now_ms < last.done_until_ms and not again:
            return Told("done", owner=last.worker, token=last.token, until_ms=last.done_until_ms)
        closed = [until_ms for until_ms, jobs in self.closed.values() if job in jobs and now_ms < until_ms]
        if closed:
            return Told("closed", until_ms=max(closed))
        if holder:
            return Told("held", owner=holder.worker, token=holder.token, until_ms=holder.until_ms)
        if last and now_ms < last.rests_until_ms:
            return Told("delayed", until_ms=last.rests_until_ms)
        granted = Grant(
            worker=worker,
            principal=principal,
            lease=fresh,
            token=self.next_token(job),
            attempt=self.failures(job) + 1,
            key=key,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            until_ms=now_ms + min(ttl_ms, max_hold_ms or ttl_ms),
            heard_ms=now_ms,
            metadata=metadata,
            last_ms=now_ms + max_hold_ms if max_hold_ms else 2**60,
        )
        self.grants.setdefault(job, []).append(granted)
        return self._granted(job, granted, again=False)

    def renew(
        self,
        now_ms: int,
        job: str,
        principal: str,
        lease: str,
        ttl_ms: int | None = None,
        metadata: str | None = None,
        checkpoint: str | None = None,
    ) -> Told:
        self._notice(job, now_ms)
        holder = self.current(job)
        if holder is None or (holder.lease, holder.principal) != (lease, principal):
            return self._not_current(job, self._ended(job, principal, lease))
        self._hear(holder, now_ms, ttl_ms or holder.ttl_ms)
        holder.metadata = holder.metadata if metadata is None else metadata
        holder.checkpoint = holder.checkpoint if checkpoint is None else checkpoint
        return Told("renewed", owner=holder.worker, token=holder.token, until_ms=holder.until_ms)

    def release(
        self,
        now_ms: int,
        job: str,
        principal: str,
        lease: str,
        done_ms: int = 0,
        checkpoint: str | None = None,
    ) -> Told:
        if done_ms and is_resource(job):
            return Told("not-a-job")
        self._notice(job, now_ms)
        holder = self.current(job)
        if holder is None or (holder.lease, holder.principal) != (lease, principal):
            ended = self._ended(job, principal, lease)
            if ended and ended.how in ("released", "failed") and (ended.done_until_ms or not done_ms):
                return Told(ended.how, owner=ended.worker, token=ended.token, again=True)
            return self._not_current(job, ended)
        holder.how, holder.at_ms = "released", now_ms
        holder.done_until_ms = now_ms + done_ms if done_ms else 0
        holder.checkpoint = holder.checkpoint if checkpoint is None else checkpoint
        return Told("released", owner=holder.worker, token=holder.token)

    def fail(
        self, now_ms: int, job: str, principal: str, lease: str, reason: str | None = None, retry_ms: int = 0
    ) -> Told:
        """Ends the grant like a release, and is remembered like a loss."""
        if is_resource(job):
            return Told("not-a-job")
        told = self.release(now_ms, job, principal, lease)
        if told.says == "released" and not told.again:
            failed = self.endings(job)[0]
            failed.how = ""
            self._lose(job, failed, "failed", now_ms)
            failed.retry_ms, failed.reason = retry_ms, reason
            return Told("failed", owner=told.owner, token=told.token)
        return told

    def break_(self, now_ms: int, job: str, reason: str | None = None) -> Told:
        self._notice(job, now_ms)
        holder = self.current(job)
        if holder is None:
            return Told("broken")
        self._lose(job, holder, "broken", now_ms)
        holder.reason = reason
        return Told("broken", owner=holder.worker, token=holder.token)

    def close(self, now_ms: int, name: str, length_ms: int, jobs: tuple[str, ...]) -> Told:
        self.closed[name] = (now_ms + length_ms, jobs)
        return Told("closed", until_ms=now_ms + length_ms)

    def open(self, now_ms: int, name: str) -> Told:
        until_ms, _ = self.closed.pop(name, (0, ()))
        return Told("opened" if now_ms < until_ms else "was-open")

    def look(self, job: str) -> Told:
        """Notices no end: the only command that changes nothing."""
        holder = self.current(job)
        if holder is None:
            return Told("free")
        return Told("held", owner=holder.worker, token=holder.token, until_ms=holder.until_ms)

    def sweep(self, now_ms: int, job: str) -> Told:
        expired = self._notice(job, now_ms)
        known = self._known(job)
        if not known or self.current(job):
            return Told("swept", count=expired)
        last = known[-1]
        if now_ms < max(last.at_ms + limits.IDLE_RECORD_MS, last.done_until_ms, last.rests_until_ms):
            return Told("swept", count=expired)
        for grant in known:
            grant.forgotten = True
        return Told("forgotten", count=expired)

    def beat(self, now_ms: int, alive_since_ms: int) -> Told:
        """A silence before this beat moves the deadline of every lease that was live when the silence began.

        `pulses` are the beats since the last one that left no doubt: short silences add up until a server is heard
        that was up all along."""
        last = self.pulses[0] if self.pulses else None
        if last is None or alive_since_ms <= self.pulses[-1]:
            self.pulses = [now_ms]
            return Told("noted")
        if alive_since_ms - last <= limits.PULSE_LATE_MS:
            self.pulses.append(now_ms)
            return Told("noted")
        self.pulses = [now_ms]
        self.outage_count += 1
        for job in self.grants:
            grant = self.current(job)
            if grant and grant.until_ms > last:
                self._credit(grant, last, now_ms)
        return Told("noted", count=now_ms - last)

    def _hear(self, grant: Grant, now_ms: int, ttl_ms: int) -> None:
        grant.heard_ms, grant.ttl_ms, grant.lost_ms = now_ms, ttl_ms, []
        grant.until_ms = min(now_ms + ttl_ms, grant.last_ms)

    def _credit(self, grant: Grant, began_ms: int, now_ms: int) -> None:
        """The credit in all: the time lost and one chance to renew. The time lost is the longest outage and ten
        minutes of the rest."""
        grant.lost_ms.append(now_ms - max(began_ms, grant.heard_ms))
        longest_ms = max(grant.lost_ms)
        others_ms = min(sum(grant.lost_ms) - longest_ms, limits.OUTAGE_CREDIT_MS_MAX)
        chance_ms = min(grant.ttl_ms, limits.OUTAGE_CREDIT_MS_MAX)
        latest_ms = grant.heard_ms + grant.ttl_ms + longest_ms + others_ms + chance_ms
        grant.until_ms = min(max(grant.until_ms, min(now_ms + chance_ms, latest_ms)), grant.last_ms)

    def _ended(self, job: str, principal: str, lease: str) -> Grant | None:
        found = [grant for grant in self.endings(job) if (grant.principal, grant.lease) == (principal, lease)]
        return found[0] if found else None

    def _granted(self, job: str, grant: Grant, *, again: bool) -> Told:
        return Told(
            "granted",
            owner=grant.worker,
            token=grant.token,
            attempt=grant.attempt,
            until_ms=grant.until_ms,
            again=again,
            previous=self._previous(job),
        )

    def _not_current(self, job: str, ended: Grant | None) -> Told:
        holder = self.current(job)
        return Told("not-current", owner=holder.worker if holder else None, ended=ended.how if ended else None)
