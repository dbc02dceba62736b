"""When a job last succeeded: from its record, else from the history, and what is said when both are gone."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.commands import Acquire, Break, EndSession, OpenSession, Release, Sweep
from dibs.core.limits import HISTORY_PAGE_DEFAULT, IDLE_RECORD_MS, REMEMBERED_MAX
from dibs.core.records import lock_key
from dibs.engine.coordinator import Coordinator
from dibs.engine.queries import Successes, last_run
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.wire.lease_documents import overdue_document

NS, JOB, HOUR_MS = "default", "nightly-report", 3_600_000


class Worker:
    """Runs the job, and ends it in some way."""

    def __init__(self) -> None:
        self.clock: ManualClock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.rules = Coordinator(self.store)
        self.runs = 0

    def claim(self, **more: Any) -> str:
        self.runs += 1
        lease = f"lease-{self.runs}"
        terms = {"ns": NS, "name": JOB, "principal": "ci", "owner": f"ci-{self.runs}", "ttl_ms": HOUR_MS, **more}
        self.rules.one(Acquire(fresh_lease_id=lease, again=True, **terms))
        return lease

    def run(self, **how: Any) -> None:
        lease = self.claim()
        self.clock.advance(60_000)
        self.rules.one(Release(ns=NS, name=JOB, principal="ci", lease_id=lease, **how))

    def told(self, within_ms: int = 26 * HOUR_MS) -> dict[str, Any]:
        return overdue_document(last_run(self.store, NS, JOB), within_ms // 1000)

    @property
    def last(self) -> str | None:
        last = self.told()["last_success"]
        return None if last is None else last["owner"]


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.mark.promise("overdue")
def test_a_release_is_a_success_as_done_or_not_and_nothing_else_is(worker: Worker) -> None:
    worker.run()
    assert worker.last == "ci-1"
    worker.run(failed=True)
    worker.run(uncounted=True)
    lease = worker.claim()
    worker.rules.one(Break(ns=NS, name=JOB, principal="op", reason="stuck"))
    assert lease
    worker.claim()
    worker.clock.advance(2 * HOUR_MS)
    worker.rules.one(Sweep(key=lock_key(NS, JOB)))
    worker.rules.one(
        OpenSession(ns=NS, fresh_id="s", principal="ci", owner="ci", ttl_ms=HOUR_MS),
    )
    worker.claim(session="s", ttl_ms=0)
    worker.rules.one(EndSession(session="s", principal="ci"))
    assert worker.last == "ci-1"
    worker.run(done_ms=HOUR_MS, result="all green")
    told = worker.told()
    assert (told["last_success"]["done"], told["last_success"]["result"]) == (True, "all green")


@pytest.mark.promise("overdue")
def test_it_is_overdue_from_the_first_moment_after_the_time(worker: Worker) -> None:
    worker.run()
    worker.clock.advance(26 * HOUR_MS)
    assert (worker.told()["status"], worker.told()["overdue_ms"]) == ("in_time", 0)
    worker.clock.advance(1)
    assert (worker.told()["status"], worker.told()["overdue_ms"]) == ("overdue", 1)
    worker.claim()
    worker.clock.advance(60_000)
    told = worker.told()
    assert (told["status"], told["held_by"], told["held_ms"]) == ("overdue", "ci-2", 60_000)


@pytest.mark.promise("overdue")
def test_when_the_record_is_dropped_the_history_answers_and_then_says_how_far_it_reaches(worker: Worker) -> None:
    worker.run(done_ms=HOUR_MS, result="ok")
    began = worker.told()["last_success"]["at"]
    worker.clock.advance(IDLE_RECORD_MS + HOUR_MS)
    worker.rules.one(Sweep(key=lock_key(NS, JOB)))
    assert worker.store.read((lock_key(NS, JOB),)).records[lock_key(NS, JOB)].record is None
    told = worker.told(48 * HOUR_MS)
    assert (told["status"], told["last_success"]["at"], told["last_success"]["result"]) == ("in_time", began, "ok")
    worker.rules.one(Release(ns=NS, name="other", principal="ci", lease_id="none"))
    worker.store.prune(keep=1, before_ms=worker.clock())
    told = worker.told(48 * HOUR_MS)
    assert (told["status"], told["last_success"], told["overdue_ms"]) == ("overdue", None, None)
    assert told["record_since"] > began
    worker.store.prune(keep=0, before_ms=worker.clock() + 1)
    assert "record_since" not in worker.told()


def test_a_success_is_found_behind_many_failures_and_much_progress(worker: Worker) -> None:
    worker.run(done_ms=HOUR_MS, result="ok")
    for _ in range(max(REMEMBERED_MAX, HISTORY_PAGE_DEFAULT)):
        worker.run(failed=True)
    told = worker.told()
    assert (told["last_success"]["owner"], told["last_success"]["result"]) == ("ci-1", "ok")


@pytest.mark.promise("overdue")
def test_named_jobs_are_followed_by_events_and_others_are_not(worker: Worker) -> None:
    worker.run()
    successes = Successes([(NS, JOB), (NS, "never")])
    successes.begin(worker.store)
    first = successes.at_ms[NS, JOB]
    assert (first, successes.at_ms[NS, "never"]) == (worker.clock(), 0)
    worker.run(failed=True)
    successes.heard(worker.store.events(0, 100))
    assert successes.at_ms[NS, JOB] == first
    worker.run()
    successes.heard(worker.store.events(0, 100))
    successes.heard(worker.store.events(0, 2))
    assert successes.at_ms == {(NS, JOB): worker.clock(), (NS, "never"): 0}
