"""How a session ends, what is told of it, and what a repeated end is answered."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core import events
from dibs.core.commands import Acquire, EndSession, Inspect, OpenSession, Sweep
from dibs.core.lease_outcomes import Swept
from dibs.core.outcomes import SessionOver, Status
from dibs.core.records import session_key
from dibs.core.session_outcomes import SessionState
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock

TTL_MS = 60_000


class Run:
    """A session with one job."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_763_000_000_000)
        self.store = MemoryStore(self.clock)
        self.rules = Coordinator(self.store)
        self.rules.one(OpenSession(ns="default", fresh_id="s", principal="p", owner="me", ttl_ms=TTL_MS, process="one"))
        terms: dict[str, Any] = {"ns": "default", "principal": "p", "owner": "me", "ttl_ms": 0, "session": "s"}
        self.rules.one(Acquire(name="job", fresh_lease_id="l", **terms))

    def end(self, **more: Any) -> Any:
        return self.rules.one(EndSession(**{"session": "s", "principal": None, **more}))

    def how(self) -> tuple[str, str | None, str | None]:
        """How its job ended, by whom and why."""
        found = self.rules.one(Inspect(ns="default", name="job"))
        assert isinstance(found, Status)
        ending = found.lock.endings[0]
        return ending.how, ending.by, ending.reason

    def told(self, kind: str) -> list[tuple[str | None, str | None]]:
        return [(each.by, each.reason) for each in self.store.events(0, 100) if each.kind == kind]


@pytest.fixture
def run() -> Run:
    return Run()


BY = {"by": "op", "reason": "stuck"}


@pytest.mark.promise("session")
@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        ({}, {}, SessionState),
        ({}, {"dead": True}, SessionOver),
        ({}, BY, SessionState),
        ({"dead": True}, {}, SessionOver),
        ({"dead": True}, {"dead": True}, SessionOver),
        ({"dead": True}, BY, SessionOver),
        (BY, BY, SessionState),
        (BY, {}, SessionOver),
    ],
)
def test_ending_a_session_again_succeeds_if_it_ended_as_the_caller_wants(
    run: Run, first: dict[str, Any], second: dict[str, Any], answer: type[SessionState | SessionOver]
) -> None:
    assert isinstance(run.end(**first), SessionState)
    again = run.end(**second)
    assert isinstance(again, answer)
    assert not again.session.is_live()
    assert isinstance(again, SessionOver) or not again.live


@pytest.mark.promise("session", "audit")
@pytest.mark.parametrize(
    ("late", "end", "told", "ended"),
    [
        (False, {}, (None, "released"), ("released", None, None)),
        (False, {"dead": True}, (None, "expired"), ("expired", None, None)),
        (False, BY, ("op", "stuck"), ("broken", "op", "stuck")),
        (True, {}, (None, "expired"), ("expired", None, None)),
        (True, BY, (None, "expired"), ("expired", None, None)),
    ],
)
def test_the_job_of_a_session_ends_as_the_session_does_and_it_is_told_who_ended_it(
    run: Run, late: bool, end: dict[str, Any], told: tuple[str | None, str], ended: tuple[str, str | None, str | None]
) -> None:
    run.clock.advance(TTL_MS if late else 1)
    run.end(**end)
    assert run.told(events.SESSION_ENDED) == [told]
    assert run.how() == ended


def test_a_session_that_has_another_process_by_now_goes_on_and_says_so(run: Run) -> None:
    found = run.end(dead=True, process="another")
    assert isinstance(found, SessionState)
    assert found.live
    assert found.session.is_live()


def test_a_sweep_of_a_live_session_has_nothing_left_to_do(run: Run) -> None:
    swept = run.rules.one(Sweep(key=session_key("s")))
    assert isinstance(swept, Swept)
    assert not swept.unfinished
