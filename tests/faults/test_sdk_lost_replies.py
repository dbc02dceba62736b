"""A Python program whose server answers late, wrongly, half or not at all: one lease, nothing left behind, clear words.

Every test runs for threads and for event loops: both faces must say the same.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs import AsyncClient, Client
from dibs.base.errors import DibsError, JobHeld, Unavailable
from tests.client.scripted import ScriptedServer, reply_of
from tests.faults.proxy import Fault, Proxy
from tests.faults.standing import check_nothing_left, left_behind
from tests.programs import WAIT_S_MAX, ServerProcess, slowness, wait_until
from tests.stalls import is_in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = pytest.mark.e2e

LOST = (Fault.REPLY_LOST, Fault.REPLY_CUT)
SICK = (
    Fault.REQUEST_LOST,
    Fault.REPLY_LOST,
    Fault.REPLY_CUT,
    Fault.REPLY_GARBLED,
    Fault.REPLY_FOREIGN,
    Fault.HANGS,
    Fault.SWALLOWED,
)
HANGING = (Fault.HANGS, Fault.SWALLOWED)
# How many requests are sent until each of these faults is reported: a broken connection is tried again.
ASKED = dict.fromkeys((Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.REPLY_CUT), 3)


class Face:
    """A client for threads, asked from a coroutine, so that a test is written once. It is patient, but for what a test
    lets hang: a busy machine is no fault."""

    def __init__(self, kind: str, url: str, token: str | None) -> None:
        self.kind = kind
        self.client: Any = (AsyncClient if kind == "async" else Client)(url, token, timeout=WAIT_S_MAX)

    def hurry(self) -> None:
        """From now on wait for an answer for half a second."""
        self.client._transports.timeout_ms = 500 * slowness()

    def until_it_hangs(self, proxy: Proxy) -> None:
        """In a hurry until a request hangs: the one after it gets its answer."""
        judge, transports = proxy.fault, self.client._transports
        patient_ms = transports.timeout_ms

        def watched(request: bytes) -> Fault:
            fault = judge(request)
            if fault in HANGING:
                transports.timeout_ms = patient_ms
            return fault

        proxy.fault = watched
        self.hurry()

    async def do(self, ask: Callable[[Any], Any]) -> Any:
        if self.kind == "sync":
            return await asyncio.to_thread(ask, self.client)
        return await ask(self.client)

    async def hold(self, work: Callable[[Any], None], job: str, **wish: Any) -> None:
        """Claim, work, let go."""
        if self.kind == "async":
            async with self.client.claim(job, **wish) as claim:
                work(claim)
            return

        def whole() -> None:
            with self.client.claim(job, **wish) as claim:
                work(claim)

        await asyncio.to_thread(whole)

    async def hold_all(self, work: Callable[[Any], None], jobs: list[str]) -> None:
        if self.kind == "async":
            async with self.client.claim_all(jobs) as claim:
                work(claim)
            return

        def whole() -> None:
            with self.client.claim_all(jobs) as claim:
                work(claim)

        await asyncio.to_thread(whole)

    async def close(self) -> None:
        closed = self.client.close()
        if closed is not None:
            await closed


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def run(kind: str, url: str, token: str | None, test: Callable[[Face], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        face = Face(kind, url, token)
        try:
            await test(face)
        finally:
            await face.close()

    asyncio.run(go())


@pytest.mark.promise("idem:acquire")
@pytest.mark.promise("excl")
@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_claim_whose_reply_was_lost_is_one_lease(
    kind: str, fault: Fault, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        proxy.once("/acquire", fault)

        def work(claim: Any) -> None:
            assert left_behind(server.store_url, job) == [f"{claim.owner} holds {job} (token {claim.fencing_token})"]

        await face.hold(work, job)
        asked = [request for request in proxy.requests if b"/acquire" in request]
        assert len(asked) == 2
        events = await face.do(lambda client: client.history(job))
        assert [event.event for event in events][-2:] == ["acquired", "released"]

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.promise("idem:acquire")
@pytest.mark.parametrize("fault", SICK, ids=lambda fault: fault.name)
def test_a_claim_that_gets_no_answer_is_refused_in_time_and_leaves_nothing(
    kind: str, fault: Fault, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        proxy.each("/acquire", [fault] * ASKED.get(fault, 1))
        if fault in HANGING:
            face.until_it_hangs(proxy)
        began_s = time.monotonic()
        with pytest.raises(Unavailable) as told:
            await face.hold(lambda claim: pytest.fail("it had no answer"), job)
        assert proxy.url in told.value.details or "HTTP" in told.value.details
        assert is_in_time(began_s, 10)
        check_nothing_left(server.store_url, job)
        await face.hold(lambda claim: claim.check(), job)

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.promise("all-or-nothing")
@pytest.mark.parametrize("fault", [Fault.REPLY_GARBLED, Fault.HANGS], ids=lambda fault: fault.name)
def test_several_jobs_whose_reply_never_came_are_all_given_back(
    kind: str, fault: Fault, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        proxy.once("/acquire-all", fault)
        if fault in HANGING:
            face.until_it_hangs(proxy)
        with pytest.raises(Unavailable):
            await face.hold_all(
                lambda claim: pytest.fail("it had no answer"), [f"{job}-{number}" for number in range(3)]
            )

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.promise("queue:no-dead-grant")
@pytest.mark.parametrize("fault", [Fault.REPLY_GARBLED, Fault.HANGS], ids=lambda fault: fault.name)
def test_a_place_in_line_whose_reply_never_came_is_given_up(
    kind: str, fault: Fault, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        with Client(server.url, server.token, owner="first") as other, other.claim(job):
            proxy.once("/acquire", fault)
            if fault in HANGING:
                face.until_it_hangs(proxy)
            with pytest.raises((Unavailable, JobHeld)):  # a server that only hangs is waited for
                await face.hold(lambda claim: pytest.fail("it is held"), job, wait=2)
            wait_until(lambda: len(left_behind(server.store_url, job)) == 1, "only the owner is left", 3)

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.promise("idem:release")
@pytest.mark.parametrize("fault", SICK, ids=lambda fault: fault.name)
def test_the_end_of_a_block_lets_go_whatever_happens_to_the_first_answer(
    kind: str, fault: Fault, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        proxy.once("/release", fault)

        def work(claim: Any) -> None:
            claim.check()
            if fault in HANGING:
                face.until_it_hangs(proxy)

        await face.hold(work, job)

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.parametrize("fault", HANGING, ids=lambda fault: fault.name)
def test_a_block_ends_in_time_when_nobody_answers_its_release(
    kind: str, fault: Fault, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        proxy.each("/release", [fault] * 100)
        began_s = time.monotonic()
        await face.hold(lambda claim: face.hurry(), job, ttl=1)
        assert is_in_time(began_s, 5)
        wait_until(lambda: not left_behind(server.store_url, job), "its time is over")

    run(kind, proxy.url, server.token, test)


def test_a_connection_that_was_closed_while_idle_is_replaced_in_silence(
    kind: str, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        proxy.fault = lambda request: Fault.CLOSED_AFTER
        for _ in range(3):
            await face.hold(lambda claim: claim.check(), job)
        assert proxy.connections >= 6

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.promise("durable")
def test_a_server_that_was_killed_and_started_between_two_questions_is_not_noticed(
    kind: str, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        def work(claim: Any) -> None:
            server.kill()
            server.start()
            claim.check()

        await face.hold(work, job)
        await face.hold(work, job)

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.promise("lease:never-early")
def test_slow_answers_do_not_cost_the_claim(kind: str, job: str, proxy: Proxy, server: ServerProcess) -> None:
    async def test(face: Face) -> None:
        proxy.delay_seconds = lambda request: 0.3

        def work(claim: Any) -> None:
            renewals = len(proxy.requests)
            wait_until(lambda: len(proxy.requests) >= renewals + 2, "it was renewed twice")
            claim.check()

        if kind == "sync":
            await face.hold(work, job, ttl=3)
        else:
            async with face.client.claim(job, ttl=3) as claim:
                before = len(proxy.requests)
                while len(proxy.requests) < before + 2:
                    await asyncio.sleep(0.02)
                claim.check()

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


def acquired(**changes: Any) -> dict[str, Any]:
    return {
        "status": "acquired",
        "name": "job",
        "lease_id": "7f4df51c-1c7f-4b1f-8c57-94f9a0b6b3c1",
        "fencing_token": 1,
        "owner": "me",
        "expires_at": "2030-01-01T00:00:00Z",
        "remaining_ms": 60_000,
        "renew_after_ms": 20_000,
        **changes,
    }


def difference(body: object) -> str:
    """What is wrong with it."""
    if not isinstance(body, dict) or not body:
        return str(body)
    return str([f"{field}={value}" for field, value in body.items() if acquired().get(field) != value])


@pytest.mark.parametrize(
    "body",
    [
        acquired(remaining_ms="soon"),
        acquired(remaining_ms=None),
        acquired(remaining_ms=-5),
        acquired(remaining_ms=True),
        acquired(remaining_ms=1.5),
        acquired(fencing_token="seven"),
        acquired(lease_id=None),
        acquired(name=7),
        acquired(owner=7),
        acquired(status="granted"),
        acquired(previous="nobody"),
        acquired(previous={"who": "knows"}),
        acquired(attempt="first"),
        ["acquired"],
        "acquired",
        {},
    ],
    ids=difference,
)
def test_an_answer_that_is_not_one_is_called_so(kind: str, job: str, body: object) -> None:
    async def test(face: Face) -> None:
        with pytest.raises(DibsError) as told:
            await face.hold(lambda claim: pytest.fail("that was no lease"), job)
        assert told.value.code == "upstream_unavailable"
        assert "not from dibs" in told.value.details or "not as dibs does" in told.value.details

    answer = reply_of(200, body)
    with ScriptedServer([answer] * 4) as scripted:
        run(kind, scripted.url, "a-token", test)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://no-such-host.invalid:1", "no host"),
        (f"http://{'a' * 64}.invalid:1", "no host"),
        ("http://127.0.0.1:1", "No server answers"),
        ("unix:///nowhere/at/all", "No server answers"),
    ],
)
def test_a_server_that_is_not_there_is_named(kind: str, job: str, url: str, word: str) -> None:
    async def test(face: Face) -> None:
        face.hurry()
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match=word):
            await face.hold(lambda claim: pytest.fail("there is nobody"), job)
        with pytest.raises(Unavailable, match=word):
            await face.do(lambda client: client.owner(job))
        assert is_in_time(began_s, 15)

    run(kind, url, None, test)


def test_a_refusal_is_still_a_refusal_after_a_lost_reply(
    kind: str, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    async def test(face: Face) -> None:
        with Client(server.url, server.token, owner="first") as other, other.claim(job):
            proxy.once("/acquire", Fault.REPLY_LOST)
            with pytest.raises(JobHeld) as told:
                await face.hold(lambda claim: pytest.fail("it is held"), job)
            assert told.value.owner == "first"

    run(kind, proxy.url, server.token, test)
    check_nothing_left(server.store_url, job)


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.REPLY_GARBLED], ids=lambda fault: fault.name)
def test_a_hand_over_whose_reply_was_lost_is_asked_for_again_and_gives_the_lease_of_the_heir(
    fault: Fault, job: str, proxy: Proxy, server: ServerProcess
) -> None:
    with Client(proxy.url, server.token, timeout=WAIT_S_MAX) as client:
        proxy.once("/transfer", fault)
        with client.claim(job, ttl=1) as claim:
            heir = claim.transfer(to_owner="heir")
        assert heir.owner == "heir"
    wait_until(lambda: not left_behind(server.store_url, job), "the heir's time is over")
