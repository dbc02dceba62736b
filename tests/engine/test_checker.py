"""What the checker of the simulation holds against a server: no more than its clients were told."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.commands import Acquire
from dibs.core.events import ACQUIRED, POOL_SET, Event
from dibs.core.outcomes import Granted
from dibs.core.records import Holder, LockRecord, lock_key
from dibs.testing.checker import NS, Checker

NOW_MS = 1_000_000
JOB = "job-0"


class Court:
    """A checker, and what it said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.checker = Checker(lambda promise, says: self.said.append((promise, says)), {}, lambda begin, end: "")

    def write(self, hold: Holder, *events: Event) -> None:
        lock = LockRecord(ns=NS, name=JOB, token=hold.token, holders=(hold,))
        self.checker.committed({lock_key(NS, JOB): lock}, events, NOW_MS)


def lease(ttl_ms: int, expires_ms: int) -> Holder:
    times: dict[str, Any] = {"since_ms": NOW_MS, "renewed_ms": NOW_MS, "ttl_ms": ttl_ms, "expires_ms": expires_ms}
    return Holder(lease_id="L1", owner="c1", principal="team", token=1, session="s", **times)


def tell(court: Court, hold: Holder) -> None:
    terms: dict[str, Any] = {"ns": NS, "principal": "team", "owner": "c1", "session": "s", "fresh_lease_id": "L1"}
    ask = Acquire(name=JOB, ttl_ms=20_000, **terms)
    court.write(hold, Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1))
    court.checker.heard("c1", ask, Granted(now_ms=NOW_MS, name=JOB, lease=hold), NOW_MS, NOW_MS)


@pytest.mark.fault("F-352")
def test_a_lease_was_told_to_end_with_its_session_and_may_be_written_so() -> None:
    """A late repeat of the session's earlier claim makes it last as long as the session, which is what was told."""
    court = Court()
    tell(court, lease(20_000, NOW_MS + 9_490))
    court.write(lease(0, NOW_MS + 9_490))
    assert court.said == []


def test_a_lease_that_ends_before_its_owner_was_told_is_one_that_was_cut() -> None:
    court = Court()
    tell(court, lease(20_000, NOW_MS + 9_490))
    court.write(lease(20_000, NOW_MS + 9_000))
    assert court.said == [("lease:never-early", f"c1's lease of {JOB} was cut by 490 ms.")]


def test_too_many_owners_of_a_pool_are_told_in_units_and_slots() -> None:
    court = Court()
    pool = Event(at_ms=NOW_MS, kind=POOL_SET, ns=NS, job=JOB, reason="2 slots")
    one = Event(at_ms=NOW_MS, kind=ACQUIRED, ns=NS, job=JOB, owner="c1", token=1, slot_numbers=(0,))
    court.checker.committed({}, [pool, one], NOW_MS)
    two = one.replace(owner="c2", token=2, slot_numbers=(1, 2))
    court.checker.committed({}, [two], NOW_MS)
    assert ("excl", f"c2 was given 2 units of {JOB}: c1 had 1 of its 2 slots.") in court.said
