"""Records and commands with everything filled in that a test does not care about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.core.commands import Acquire, Break, Inspect, Release, Renew, SetAcl, Sweep
from dibs.core.decide import decide
from dibs.core.draft import Draft, View
from dibs.core.records import META_KEY, Ending, Holder, LockRecord, Meta, Outage, Pulse, lock_key, pulse_key

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.draft import Decision

NS = "default"
JOB = "issue-1"
KEY = lock_key(NS, JOB)


def holder(**changes: Any) -> Holder:
    """a1's hold with token 1, taken at 0 for 10 seconds. Its deadline follows from `renewed_ms` and `ttl_ms`."""
    made = Holder(
        lease_id="lease-1",
        owner="a1",
        principal="team",
        token=1,
        since_ms=0,
        renewed_ms=0,
        ttl_ms=10_000,
        expires_ms=0,
    ).replace(**changes)
    return made if "expires_ms" in changes else made.replace(expires_ms=made.renewed_ms + made.ttl_ms)


def ending(**changes: Any) -> Ending:
    made = Ending(lease_id="lease-1", owner="a1", principal="team", token=1, how="released", at_ms=0, attempt=1)
    return made.replace(**changes)


def lock(*holders: Holder, **changes: Any) -> LockRecord:
    token = max([each.token for each in holders], default=1)
    return LockRecord(ns=NS, name=JOB, token=token, holders=holders).replace(**changes)


def outage(began_ms: int, ended_ms: int) -> Outage:
    return Outage(began_ms=began_ms, ended_ms=ended_ms)


def view(
    now_ms: int, stored: LockRecord | None = None, *, meta: Meta | None = None, pulse_ms: int | None = None
) -> View:
    pulse = None if pulse_ms is None else Pulse(server="s", at_ms=pulse_ms)
    return View(now_ms, {KEY: stored, META_KEY: meta, pulse_key("s"): pulse})


def draft(now_ms: int, stored: LockRecord | None = None, outages: tuple[Outage, ...] = ()) -> Draft:
    """The input of a rule."""
    return Draft(view(now_ms, stored, meta=Meta(outages=outages)))


def decided(now_ms: int, stored: LockRecord | None, command: Command, *, meta: Meta | None = None) -> Decision:
    return decide(view(now_ms, stored, meta=meta), command)


def written(decision: Decision) -> LockRecord:
    """The job as this decision writes it."""
    record = decision.writes[KEY]
    assert isinstance(record, LockRecord)
    return record


def acquire(**changes: Any) -> Acquire:
    """b1 with its own credential asks for a minute; lease-9 is its id if it is granted."""
    made = Acquire(ns=NS, name=JOB, principal="solo", owner="b1", ttl_ms=60_000, fresh_lease_id="lease-9")
    return made.replace(**changes)


def renew(**changes: Any) -> Renew:
    return Renew(ns=NS, name=JOB, principal="team", lease_id="lease-1").replace(**changes)


def release(**changes: Any) -> Release:
    return Release(ns=NS, name=JOB, principal="team", lease_id="lease-1").replace(**changes)


def break_(**changes: Any) -> Break:
    return Break(ns=NS, name=JOB, principal="op", reason="stuck").replace(**changes)


def set_acl(**changes: Any) -> SetAcl:
    return SetAcl(ns=NS, name=JOB, principal="team", acl=("a",)).replace(**changes)


INSPECT = Inspect(ns=NS, name=JOB)
SWEEP = Sweep(key=KEY)
