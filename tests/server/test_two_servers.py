"""Two servers on one store: a line belongs to the store, whichever server has the callers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dibs.core.commands import Release
from dibs.engine.coordinator import Coordinator
from dibs.engine.waiters import Waiter, Waiters
from tests.programs import slowness
from tests.server.harness import Poll, Server, wait_until
from tests.server.test_closed import close, reopen
from tests.server.test_sessions import open_session
from tests.server.test_waiting import WAIT, release, wait_for_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.stores.port import Store

pytestmark = pytest.mark.full

# What is looked for every 25 ms, asked for again and committed; on a machine that is busy with other things.
HEARD_WITHIN_S = 2.0


@pytest.fixture
def start(serve: Callable[[ExitStack], Server]) -> Iterator[Callable[[], Server]]:
    with ExitStack() as stack:
        yield lambda: serve(stack)


@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("queue:one-wake")
def test_a_release_at_one_server_wakes_the_one_waiter_at_the_other(
    start: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = start(), start()
    asked: dict[object, None] = {}  # by a look, as soon as the store's notice names its ticket, or by the event
    for way in ("_ask_again", "_look"):
        asks = getattr(Waiters, way)

        def spy(waiters: Waiters, waiter: Waiter, *more: object, asks: Callable[..., None] = asks) -> None:
            asked[waiter] = None
            asks(waiters, waiter, *more)

        monkeypatch.setattr(Waiters, way, spy)
    lease = there.lease("job")
    polls = wait_for_job(here, "job", 3)
    for number, poll in enumerate(polls):
        began = time.monotonic()
        release(there, "job", lease)
        body = poll.answer()
        assert time.monotonic() - began < HEARD_WITHIN_S * slowness()
        assert (body["status"], body["owner"], len(asked)) == ("acquired", f"w-{number}", number + 1)
        assert not any(later.is_answered() for later in polls[number + 1 :])
        lease = body["lease_id"]


@pytest.mark.promise("queue:fifo")
def test_waiters_at_two_servers_stand_in_one_line(start: Callable[[], Server]) -> None:
    servers = [start(), start()]
    lease = servers[0].lease("job")
    polls = [wait_for_job(servers[number % 2], "job", owner=f"w-{number}")[0] for number in range(6)]
    for number, poll in enumerate(polls):
        release(servers[number % 2], "job", lease)
        body = poll.answer()
        assert body["owner"] == f"w-{number}"
        lease = body["lease_id"]


def test_an_expiry_swept_by_anybody_wakes_the_waiter(start: Callable[[], Server]) -> None:
    here, there = start(), start()
    there.lease("job", ttl_seconds=1)
    (poll,) = wait_for_job(here, "job")
    assert poll.answer()["previous"]["how"] == "expired"


def test_a_release_without_any_server_wakes_a_waiter(start: Callable[[], Server], open_it: Callable[[], Store]) -> None:
    here = start()
    lease = here.lease("job")
    (poll,) = wait_for_job(here, "job")
    store = open_it()
    Coordinator(store).one(Release(ns="default", name="job", principal="agent", lease_id=lease))
    assert poll.answer()["status"] == "acquired"
    store.close()


@pytest.mark.promise("session")
def test_the_end_of_a_session_at_one_server_is_heard_at_the_other(start: Callable[[], Server]) -> None:
    here, there = start(), start()
    there.lease("job")
    session = open_session(there)
    poll = Poll(here, "/locks/job/acquire", {**WAIT, "session_id": session})
    wait_until(lambda: here.waiting() == 1, "it does not wait")
    assert there.ask("DELETE", f"/sessions/{session}").status == 204
    assert poll.answer()["code"] == "session_expired"


@pytest.mark.promise("queue:fifo")
def test_a_place_is_kept_over_a_restart_and_at_another_server(start: Callable[[], Server]) -> None:
    first, second = start(), start()
    lease = first.lease("job")
    polls = wait_for_job(first, "job", 2)
    first.begin_stop()
    tickets = [poll.answer()["ticket"] for poll in polls]
    (newcomer,) = wait_for_job(second, "job", owner="newcomer")
    third = start()  # the first, started again
    back = []
    for server, ticket in zip((second, third), tickets, strict=True):
        before = server.waiting()
        back.append(Poll(server, "/locks/job/acquire", {**WAIT, "ticket": ticket}))
        wait_until(lambda server=server, n=before: server.waiting() == n + 1, "it does not wait")  # type: ignore[misc]
    owners = []
    for poll in [*back, newcomer]:
        release(third, "job", lease)
        body = poll.answer()
        owners.append(body["owner"])
        lease = body["lease_id"]
    assert owners == ["w-0", "w-1", "newcomer"]


@pytest.mark.promise("queue:newest")
def test_a_newer_claim_of_a_group_at_one_server_ends_the_wait_of_the_older_at_the_other(
    start: Callable[[], Server],
) -> None:
    here, there = start(), start()
    lease = there.lease("deploy")
    older = wait_for_job(here, "deploy", owner="older", replaces="main \U0001f680/1")[0]
    other = wait_for_job(there, "deploy", owner="other")[0]
    newer = Poll(there, "/locks/deploy/acquire", {**WAIT, "owner": "newer", "replaces": "main \U0001f680/1"})
    assert older.answer() == {"status": "superseded", "name": "deploy", "group": "main \U0001f680/1", "by": "newer"}
    release(there, "deploy", lease)
    release(here, "deploy", other.answer()["lease_id"])
    assert newer.answer()["owner"] == "newer"


@pytest.mark.promise("closed")
def test_opening_at_one_server_serves_who_waits_at_the_other(start: Callable[[], Server]) -> None:
    here, there = start(), start()
    close(there, "deploy%2F")
    polls = [*wait_for_job(here, "deploy%2Fa"), *wait_for_job(here, "deploy%2Fb")]
    reopen(there, "deploy%2F")
    assert [poll.answer()["status"] for poll in polls] == ["acquired", "acquired"]
