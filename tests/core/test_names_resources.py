"""A name has one kind. A resource can be held, and nothing else; only jobs are done, fail, or are parked."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from dibs.core import outcomes
from dibs.core.claims.inspect import state_of
from dibs.core.commands import AcquireAll, AcquireAny, Command, Inspect
from dibs.core.decide import decide
from dibs.core.draft import Decision, View
from dibs.core.lease_outcomes import Broken, NotAJob, Released
from dibs.core.names import RESOURCES, is_resource
from dibs.core.records import DELAYED, FREE, Done, LockRecord, lock_key
from tests.core.make import JOB, NS, acquire, break_, ending, holder, lock, release

NAMES = ("path:src/a.py", "repo:deploy", "branch:main")
FILE = NAMES[0]
DAY_MS = 86_400_000
OLD = Done(owner="a1", token=1, at_ms=0, until_ms=DAY_MS)


def decided(now_ms: int, command: Command, *stored: LockRecord, before: Decision | None = None) -> Decision:
    """What is decided over these jobs, and what the decision before wrote. There is no other record."""
    view = View(now_ms, {lock_key(NS, each.name): each for each in stored} | (before.writes if before else {}))
    view.load = lambda keys: view.records.update({key: view.records.get(key) for key in keys})
    return decide(view, command)


def test_paths_repositories_and_branches_are_resources_and_nothing_else_is() -> None:
    assert all(is_resource(f"{begin}x") for begin in RESOURCES)
    others = ("issue-1", "pathological", "PATH:x", "election:branch:main", "deploy:prod", "a path:x", "path", "branch")
    assert not any(is_resource(name) for name in others)


@pytest.mark.fault("F-290")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("said", [{"done_ms": DAY_MS}, {"failed": True}, {"failed": True, "retry_ms": 60_000}])
def test_a_resource_is_released_neither_as_done_nor_as_failed(name: str, said: dict[str, Any]) -> None:
    held = lock(holder(), name=name)
    refused = decided(1, release(name=name, **said), held)
    assert refused.outcome == NotAJob(now_ms=1, name=name, what="failed" if "failed" in said else "done")
    assert not refused.writes
    assert not refused.events
    assert isinstance(decided(1, release(name=name), held).outcome, Released)


@pytest.mark.fault("F-290")
@pytest.mark.parametrize("name", NAMES)
def test_old_marks_of_a_resource_count_for_nothing(name: str) -> None:
    marks: list[dict[str, Any]] = [
        {"done": OLD},
        {"parked": True, "failures": 3, "max_attempts": 3},
        {"delay_until_ms": DAY_MS, "endings": (ending(how="failed"),)},
        {"failures": 2},
    ]
    for one, other in product(marks, repeat=2):
        old = lock(**{"name": name, **one, **other})
        assert state_of(old, 1) == FREE
        seen = decided(1, Inspect(ns=NS, name=name), old).outcome
        assert isinstance(seen, outcomes.Status)
        assert state_of(seen.lock, 1) == FREE
        granted = decided(1, acquire(name=name), old).outcome
        assert isinstance(granted, outcomes.Granted)
        assert granted.lease.attempt == 1


def test_a_delay_after_a_loss_counts_for_a_resource_too_because_its_owner_may_still_write() -> None:
    lost = lock(name=FILE, delay_until_ms=5_000, endings=(ending(how="expired"),))
    assert state_of(lost, 1) == DELAYED
    assert isinstance(decided(1, acquire(name=FILE), lost).outcome, outcomes.Delayed)
    assert isinstance(decided(5_000, acquire(name=FILE), lost).outcome, outcomes.Granted)


@pytest.mark.parametrize("name", NAMES)
def test_losses_of_a_resource_are_not_counted_and_never_park_it(name: str) -> None:
    held = lock(holder(attempt=1), name=name, max_attempts=1)
    broken = decided(1, break_(name=name), held)
    assert isinstance(broken.outcome, Broken)
    kept = broken.writes[lock_key(NS, name)]
    assert isinstance(kept, LockRecord)
    assert (kept.failures, kept.parked) == (0, False)
    assert [event.kind for event in broken.events] == ["broken"]


@pytest.mark.parametrize("names", [(FILE,), (FILE, "repo:deploy"), (FILE, JOB), (JOB,)])
def test_a_limit_of_attempts_is_for_jobs_and_beside_jobs_it_is_about_the_jobs(names: tuple[str, ...]) -> None:
    terms: dict[str, Any] = {
        "ns": NS,
        "principal": "p",
        "owner": "b1",
        "ttl_ms": 60_000,
        "fresh_lease_id": "lease-9",
        "max_attempts": 3,
    }
    commands: list[Command] = [AcquireAny(names=names, **terms), AcquireAll(names=names, **terms)]
    if len(names) == 1:
        commands.append(acquire(name=names[0], max_attempts=3))
    for command in commands:
        found = decided(1, command).outcome
        if JOB in names:
            assert isinstance(found, outcomes.Granted | outcomes.GrantedAll)
        else:
            assert found == NotAJob(now_ms=1, name=FILE, what="max_attempts")


def test_a_claim_again_on_a_resource_is_an_ordinary_claim() -> None:
    assert isinstance(decided(1, acquire(name=FILE, again=True)).outcome, outcomes.Granted)


def test_a_waiter_for_a_resource_with_an_old_mark_is_served() -> None:
    """A mark that an older version wrote while somebody waited must not empty the line."""
    held = lock(holder(), name="branch:main", done=OLD)
    queued = decided(1, acquire(name="branch:main", wait=True), held)
    assert isinstance(queued.outcome, outcomes.Queued)
    after = decided(2, release(name="branch:main"), before=queued)
    kept = after.writes[lock_key(NS, "branch:main")]
    assert isinstance(kept, LockRecord)
    assert [each.owner for each in kept.holders] == ["b1"]
