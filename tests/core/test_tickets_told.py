"""A refusal says when the owner was last heard of, and an owner is told once of each that waits."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.base.ids import new_id
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.core.limits import TICKET_MS, WANTED_MAX
from dibs.core.records import META_KEY, LockRecord, SessionRecord, lock_key, session_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.wire.values import ticket_text

START_MS = 1_763_000_000_000
Document = dict[str, Any]


class Office:
    """One store, and callers who hold and wait."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.store = MemoryStore(self.clock)
        self.transport = EmbeddedTransport(lambda: Coordinator(self.store))

    def ask(self, verb: str, name: str, **document: object) -> Document:
        return dict(self.transport.ask(Ask(verb, name, document)).body or {})

    def session(self, **more: object) -> str:
        return str(self.ask("session-open", "", owner="holder", ttl_ms=600_000, **more)["session_id"])

    def hold(self, job: str, **more: object) -> Document:
        got = self.ask("acquire", job, **{"owner": "holder", "ttl_seconds": 600, **more})
        assert got["status"] == "acquired", got
        return got

    def wait(self, job: str, owner: str = "waiter", **more: object) -> str:
        """Get in line. A ticket that nobody has makes the transport ask for a place without waiting for it."""
        lost = ticket_text("default", job, 999_999, new_id())
        got = self.ask("acquire", job, owner=owner, ticket=lost, **more)
        assert got["status"] == "queued", got
        return str(got["ticket"])

    def beat(self, held: Document) -> tuple[int, int]:
        """How many wait, and of how many of them the owner is told for the first time."""
        kept = self.ask("renew", held["name"], lease_id=held["lease_id"])
        return kept["waiting"], kept["new_waiters"]

    def work(self, session: str) -> list[tuple[str, int, int]]:
        """The worker itself renews its session."""
        told = self.ask("session-keep", session, active=True).get("wanted", [])
        return [(each["name"], each["waiting"], each["new_waiters"]) for each in told]


@pytest.fixture
def office() -> Office:
    return Office()


def test_a_refusal_says_how_long_ago_the_owner_sent_a_heartbeat(office: Office) -> None:
    held = office.hold("job")
    office.clock.advance(200_000)
    office.ask("renew", "job", lease_id=held["lease_id"])
    office.clock.advance(14_000)
    refused = office.ask("acquire", "job", owner="other")
    assert (refused["status"], refused["silent_ms"], refused["held_ms"]) == ("held", 14_000, 214_000)
    assert refused["last_heartbeat"] == "2025-11-13T02:16:40.000Z"
    assert "idle_ms" not in refused


def test_a_sign_of_life_of_the_session_is_one_of_its_jobs(office: Office) -> None:
    session = office.session()
    office.hold("job", session_id=session, ttl_seconds=None)
    office.clock.advance(120_000)
    office.ask("session-keep", session)
    office.clock.advance(5_000)
    for refused in (office.ask("acquire", "job", owner="other"), office.ask("inspect", "job")):
        assert refused["silent_ms"] == 5_000
        assert "idle_ms" not in refused


def test_heartbeats_of_a_timer_do_not_hide_that_the_worker_does_nothing(office: Office) -> None:
    session = office.session()
    office.hold("job", session_id=session, ttl_seconds=None)
    office.work(session)
    for _ in range(3):
        office.clock.advance(300_000)
        office.ask("session-keep", session)
    office.clock.advance(2_000)
    refused = office.ask("acquire", "job", owner="other")
    assert (refused["silent_ms"], refused["idle_ms"]) == (2_000, 902_000)


def test_a_stepped_clock_never_shows_a_sign_of_life_in_the_future(office: Office) -> None:
    office.hold("job")
    back = MemoryStore(lambda: START_MS - 3_600_000)
    keys = [lock_key("default", "job"), META_KEY]
    found = office.store.read(keys).records
    back.commit({}, {key: each.record for key, each in found.items() if each.record is not None}, ())
    refused = EmbeddedTransport(lambda: Coordinator(back)).ask(Ask("acquire", "job", {"owner": "other"})).body or {}
    assert (refused["status"], refused["silent_ms"]) == ("held", 0)


def test_a_record_of_an_earlier_version_is_refused_with_what_it_has(office: Office) -> None:
    """Neither the hold nor its session has the newer fields."""
    session = office.session()
    office.hold("job", session_id=session, ttl_seconds=None)
    for key, kind in ((lock_key("default", "job"), LockRecord), (session_key(session), SessionRecord)):
        found = office.store.read((key,)).records[key]
        assert found.record is not None
        old = found.record.dump()
        for field in ("told", "wanted", "active_ms", "heard_ms"):
            old.pop(field, None)
        office.store.commit({key: found.version}, {key: kind.load(old)}, ())
    office.clock.advance(7_000)
    assert office.ask("acquire", "job", owner="other")["silent_ms"] == 7_000


@pytest.mark.promise("queue:holder-told")
@pytest.mark.parametrize("job", ["job", "path:src/a"])
def test_an_owner_is_told_of_each_waiter_once(office: Office, job: str) -> None:
    held = office.hold(job)
    assert office.beat(held) == (0, 0)
    office.wait(job, "one")
    assert office.beat(held) == (1, 1)
    assert office.beat(held) == (1, 0)
    office.wait(job, "two")
    assert office.beat(held) == (2, 1)
    assert office.beat(held) == (2, 0)


@pytest.mark.promise("queue:holder-told")
def test_a_waiter_that_left_before_the_heartbeat_is_not_told_and_the_next_one_is(office: Office) -> None:
    held = office.hold("job")
    office.ask("leave", "job", ticket=office.wait("job", "one"))
    assert office.beat(held) == (0, 0)
    office.wait("job", "two")
    assert office.beat(held) == (1, 1)


@pytest.mark.promise("queue:holder-told")
def test_whoever_waits_under_another_name_of_the_tree_is_told_once_in_any_order(office: Office) -> None:
    held, session = office.hold("path:src"), office.session()
    office.hold("path:lib/b", session_id=session, ttl_seconds=None)
    for count, job in enumerate(("path:src/a", "path:src/b", "path:src/a/c"), start=1):
        office.wait(job, f"w{count}")
        assert office.beat(held) == (count, 1)
        assert office.beat(held) == (count, 0)
    office.wait("path:lib", "w4")
    assert office.beat(held) == (3, 0)
    assert office.work(session) == [("path:lib/b", 1, 1)]
    assert office.work(session) == []


@pytest.mark.promise("queue:holder-told")
def test_a_session_is_told_when_the_worker_asks_and_not_by_its_timer(office: Office) -> None:
    session = office.session()
    for job in ("a", "b"):
        office.hold(job, session_id=session, ttl_seconds=None)
    office.wait("a", "one")
    assert "wanted" not in office.ask("session-keep", session)
    office.wait("a", "two")
    assert office.work(session) == [("a", 2, 2)]
    assert office.work(session) == []
    office.wait("b", "three")
    assert office.work(session) == [("b", 1, 1)]
    held = {each["name"]: each["waiting"] for each in office.ask("session-show", session)["holds"]}
    assert held == {"a": 2, "b": 1}


@pytest.mark.promise("queue:holder-told")
@pytest.mark.parametrize("job", ["job", "path:src/a"])
def test_the_next_owner_is_told_of_those_who_wait_already(office: Office, job: str) -> None:
    held, session = office.hold(job), office.session()
    first = office.wait(job, "one", session_id=session)
    office.wait(job, "two")
    office.wait(job, "three")
    assert office.beat(held) == (3, 3)
    office.ask("release", job, lease_id=held["lease_id"])
    assert office.ask("acquire", job, owner="one", session_id=session, ticket=first)["status"] == "acquired"
    assert office.work(session) == [(job, 2, 2)]
    assert office.work(session) == []


@pytest.mark.promise("queue:holder-told")
def test_whoever_is_handed_the_job_is_told_of_those_who_wait(office: Office) -> None:
    held, heir = office.hold("path:src"), office.session()
    office.wait("path:src/a", "one")
    assert office.beat(held) == (1, 1)
    office.ask("transfer", "path:src", lease_id=held["lease_id"], to_session=heir)
    assert office.work(heir) == [("path:src", 1, 1)]
    assert office.ask("renew", "path:src", session_id=heir)["waiting"] == 1


@pytest.mark.promise("queue:holder-told")
def test_whose_turn_it_is_in_a_tree_is_told_of_those_who_wait_for_other_names(office: Office) -> None:
    held = office.hold("path:src")
    first = office.wait("path:src", "one")
    office.wait("path:src/a", "two")
    office.ask("release", "path:src", lease_id=held["lease_id"])
    assert office.beat(office.hold("path:src", owner="one", ticket=first)) == (1, 1)


def test_a_session_is_not_told_of_its_own_place(office: Office) -> None:
    session = office.session()
    office.hold("path:src/a", session_id=session, ttl_seconds=None)
    office.hold("path:src/b")
    office.wait("path:src", "holder", session_id=session)
    assert office.work(session) == []
    office.wait("path:src/a", "another")
    assert office.work(session) == [("path:src/a", 1, 1)]


def test_a_thousand_waiters_are_one_number(office: Office) -> None:
    held, session = office.hold("job"), office.session()
    office.hold("other", session_id=session, ttl_seconds=None)
    for number in range(1_000):
        office.wait("job", f"w{number}")
        office.wait("other", f"w{number}")
        if number % 100 == 0:  # nobody loses its place meanwhile
            office.clock.advance(TICKET_MS // 100)
    assert office.beat(held) == (1_000, 1_000)
    assert office.beat(held) == (1_000, 0)
    assert office.work(session) == [("other", 1_000, 1_000)]


def test_what_a_session_is_told_at_once_is_bounded_and_the_rest_comes_with_later_waiters(
    office: Office,
) -> None:
    session = office.session()
    for number in range(WANTED_MAX + 5):
        office.hold(f"job-{number}", session_id=session, ttl_seconds=None)
        office.wait(f"job-{number}")
    assert len(office.work(session)) == WANTED_MAX
    office.wait(f"job-{WANTED_MAX + 1}", "another")
    assert office.work(session) == [(f"job-{WANTED_MAX + 1}", 2, 2)]


def test_two_that_ask_for_one_session_at_once_are_not_both_told(office: Office) -> None:
    session = office.session()
    office.hold("job", session_id=session, ttl_seconds=None)
    office.wait("job")
    told = [office.work(session) for _ in range(2)]
    assert sorted(map(len, told)) == [0, 1]
    assert office.ask("renew", "job", session_id=session)["new_waiters"] == 0
