"""A session and its parent are one worker for everybody else; two children of one parent are two."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.base.ids import new_id
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.core.caller_rights import Caller
from dibs.core.commands import Sweep
from dibs.core.limits import SESSION_OWN_TTL_MS_MAX, SESSION_TOMBSTONE_MS
from dibs.core.records import session_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock


class Family:
    """A parent with two children, and a stranger, at one store."""

    def __init__(self) -> None:
        store = MemoryStore(ManualClock(1_763_000_000_000))
        self.transport = EmbeddedTransport(lambda: Coordinator(store))
        self.parent = self.open()
        self.child = self.open(parent_id=self.parent)
        self.sibling = self.open(parent_id=self.parent)
        self.stranger = self.open()

    def open(self, **more: str) -> str:
        reply = self.transport.ask(Ask("session-open", "", {"owner": "somebody", "ttl_ms": 60_000, **more}))
        assert reply.status == 201, reply
        return str((reply.body or {})["session_id"])

    def claim(self, session: str, job: str, **more: Any) -> str:
        reply = self.transport.ask(Ask("acquire", job, {"session_id": session, **more}))
        return str((reply.body or {})["status"])

    def release(self, session: str, job: str) -> int:
        return self.transport.ask(Ask("release", job, {"session_id": session})).status


@pytest.fixture
def family() -> Family:
    return Family()


@pytest.mark.promise("excl:related")
@pytest.mark.parametrize("job", ["issue-7", "path:src/a"])
def test_parent_and_child_do_not_block_each_other_and_siblings_and_strangers_do(family: Family, job: str) -> None:
    for first, second in ((family.parent, family.child), (family.child, family.parent)):
        assert family.claim(first, job) == "acquired"
        assert family.claim(second, job) == "acquired"
        assert family.claim(family.sibling, job) == "held"
        assert family.claim(family.stranger, job) == "held"
        family.release(first, job)
        assert family.claim(family.stranger, job) == "held"
        family.release(second, job)
    assert family.claim(family.stranger, job) == "acquired"


@pytest.mark.promise("excl:related")
def test_a_child_claims_below_its_parents_folder_and_its_sibling_only_elsewhere_below_it(
    family: Family,
) -> None:
    assert family.claim(family.parent, "path:src") == "acquired"
    assert family.claim(family.child, "path:src/a") == "acquired"
    assert family.claim(family.sibling, "path:src/a") == "held"
    assert family.claim(family.sibling, "path:src/b") == "acquired"
    assert family.claim(family.stranger, "path:src/c") == "held"


@pytest.mark.parametrize("job", ["issue-7", "path:src/a"])
def test_somebody_who_waits_for_the_parent_does_not_keep_the_child_out(family: Family, job: str) -> None:
    family.claim(family.parent, job)
    assert family.claim(family.stranger, job, wait_seconds=0.01) == "queued"
    assert family.claim(family.child, job) == "acquired"
    family.release(family.parent, job)
    assert family.claim(family.stranger, job) == "held"


def test_only_a_live_session_of_ones_own_can_be_a_parent(family: Family) -> None:
    family.transport.ask(Ask("session-end", family.parent))
    reply = family.transport.ask(Ask("session-open", "", {"owner": "x", "parent_id": family.parent}))
    assert reply.status == 410, reply
    unknown = "00000000-0000-4000-8000-000000000000"
    assert family.transport.ask(Ask("session-open", "", {"owner": "x", "parent_id": unknown})).status == 404


def test_the_end_of_a_child_leaves_its_parents_claim(family: Family) -> None:
    family.claim(family.parent, "path:src/a")
    family.claim(family.child, "path:src/a")
    family.transport.ask(Ask("session-end", family.child))
    assert family.claim(family.stranger, "path:src/a") == "held"
    assert family.claim(family.sibling, "path:src/a") == "acquired"


@pytest.mark.promise("excl:related")
@pytest.mark.parametrize("job", ["issue-7", "path:src/a"])
def test_a_child_cannot_hand_to_a_stranger_what_its_parent_has_too(family: Family, job: str) -> None:
    assert family.claim(family.parent, job) == "acquired"
    assert family.claim(family.child, job) == "acquired"
    asked = {"session_id": family.child, "to_session": family.stranger}
    assert (family.transport.ask(Ask("transfer", job, asked)).body or {})["status"] == "held"
    assert family.claim(family.stranger, job) == "held"
    family.release(family.parent, job)
    assert (family.transport.ask(Ask("transfer", job, asked)).body or {})["status"] != "held"


@pytest.mark.promise("excl:related", "deadlock")
def test_waiting_behind_the_parent_is_no_deadlock_of_the_child(family: Family) -> None:
    assert family.claim(family.stranger, "path:src/y") == "acquired"
    assert family.claim(family.child, "path:src/x") == "acquired"
    assert family.claim(family.parent, "repo:r", wait_seconds=0.01) == "queued"
    assert family.claim(family.child, "path:src/y") == "held"


@pytest.mark.promise("excl:related", "deadlock")
@pytest.mark.fault("F-254")
@pytest.mark.parametrize("job", ["issue-7", "path:src/a"])
def test_a_job_of_the_child_is_refused_to_the_parent_if_that_closes_a_circle(family: Family, job: str) -> None:
    assert family.claim(family.stranger, "tests") == "acquired"
    assert family.claim(family.child, job) == "acquired"
    assert family.claim(family.parent, "tests", wait_seconds=0.01) == "queued"
    assert family.claim(family.stranger, job, wait_seconds=0.01) == "queued"
    for verb, about in (("acquire", job), ("acquire-all", [job, "other"])):
        asked = {"names": about} if verb == "acquire-all" else {}
        reply = family.transport.ask(Ask(verb, "" if asked else job, {"session_id": family.parent, **asked}))
        assert (reply.body or {})["code"] == "deadlock", reply
        assert reply.body["cycle"] == ["somebody", "tests", "somebody", job]  # type: ignore[index]
    asked = {"names": [job, "other"], "session_id": family.parent}
    assert (family.transport.ask(Ask("acquire-any", "", asked)).body or {})["name"] == "other"
    family.release(family.child, job)
    assert family.claim(family.stranger, job) == "acquired"
    family.transport.ask(Ask("session-end", family.stranger))
    assert family.claim(family.parent, "tests") == "acquired"


@pytest.mark.fault("F-141")
@pytest.mark.promise("excl:related")
def test_who_knows_the_id_of_a_parent_that_is_long_over_does_not_become_the_parent() -> None:
    clock = ManualClock(1_763_000_000_000)
    store = MemoryStore(clock)
    owner, thief = (
        EmbeddedTransport(lambda: Coordinator(store), caller=Caller(principal=who)) for who in ("bob", "ana")
    )

    def opened(transport: EmbeddedTransport, **more: str) -> str:
        reply = transport.ask(Ask("session-open", "", {"ttl_ms": SESSION_OWN_TTL_MS_MAX, **more}))
        return str((reply.body or {})["session_id"])

    parent = opened(owner, fresh_session_id=new_id())
    child = opened(owner, parent_id=parent)
    assert owner.ask(Ask("acquire", "issue-7", {"session_id": child})).status == 200
    owner.ask(Ask("session-end", parent))
    clock.advance(SESSION_TOMBSTONE_MS + 1)
    Coordinator(store).one(Sweep(key=session_key(parent)))
    stolen = opened(thief, fresh_session_id=parent)
    reply = thief.ask(Ask("acquire", "issue-7", {"session_id": stolen}))
    assert (reply.body or {})["status"] == "held"


@pytest.mark.promise("deadlock")
@pytest.mark.fault("F-503")
@pytest.mark.parametrize("job", ["issue-7", "path:src/a"])
def test_a_child_that_shares_what_its_parent_has_alone_is_in_nobodys_way_who_would_share_it(
    family: Family, job: str
) -> None:
    """Who waits to share it waits for the parent alone: that the child waits for something of his is no circle."""
    assert family.claim(family.parent, job) == "acquired"
    assert family.claim(family.child, job, mode="shared") == "acquired"
    assert family.claim(family.stranger, "other") == "acquired"
    assert family.claim(family.child, "other") == "held"  # a refused ask counts as waiting
    assert family.claim(family.stranger, job, mode="shared") == "held"
    family.release(family.parent, job)
    assert family.claim(family.stranger, job, mode="shared") == "acquired"
