"""An owner learns that it lost before anybody else can own: by its own clock, whatever the network, the scheduler or
the suspend button does."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dibs.sdk.heart
import dibs.sdk.hold
from dibs import AsyncClient, Client, LeaseLost
from dibs.base.clock import steady_ms
from tests.faults.proxy import Fault, Proxy
from tests.programs import WAIT_S_MAX, ServerProcess, pause, start_program, wait_until, wait_until_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.promise("loss:told")]

SLEEPER = "tests.faults.sleeper"


@pytest.fixture(params=["embedded", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None]]:
    url = f"sqlite://{tmp_path}/jobs.db"
    if request.param == "embedded":
        yield url, None
    else:
        with ServerProcess(tmp_path, store=url) as server:
            yield server.url, server.token


@contextmanager
def lost_at_the_end() -> Iterator[None]:
    """The block inside, and not something in it, raises LeaseLost."""
    with pytest.raises(LeaseLost):
        yield


def taken_at_ms(client: Client, job: str, *, patience_s: float = WAIT_S_MAX) -> int:
    """Ask without a pause until the job is ours. Returns the latest time at which the successful request was sent."""
    found: list[int] = []

    def claimed() -> bool:
        try:
            client.acquire(job, owner="next", ttl=60)
        except dibs.JobHeld:
            return False
        found.append(steady_ms())
        return True

    wait_until(claimed, "the job is free", patience_s)
    return found[0]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stopped_owner_that_wakes_does_not_write(kind: str, place: tuple[str, str | None], tmp_path: Path) -> None:
    url, token = place
    words = [kind, url, token or "", "job", str(tmp_path / "written")]
    sleeper = start_program(SLEEPER, *words, stdout=subprocess.PIPE, text=True)
    with sleeper, Client(url, token, owner="next") as client:
        try:
            assert sleeper.stdout is not None
            assert json.loads(sleeper.stdout.readline())["event"] == "holds"
            wait_until_stopped(sleeper.pid)
            taken_at_ms(client, "job")
            sleeper.send_signal(signal.SIGCONT)
            out, _ = sleeper.communicate(timeout=WAIT_S_MAX)
        finally:
            sleeper.kill()
    told = [json.loads(line) for line in out.splitlines()]
    assert [each["event"] for each in told] == ["check raised", "block raised", "on_lost was called 1 times"]
    assert not (tmp_path / "written").exists()


def test_a_server_that_is_back_in_time_costs_nothing(tmp_path: Path) -> None:
    lost: list[LeaseLost] = []
    with ServerProcess(tmp_path) as server, Proxy(lambda: server.url) as proxy:
        with (
            Client(proxy.url, server.token) as client,
            client.claim("job", ttl=60, on_lost=lost.append) as claim,
        ):
            server.kill()
            left_s = claim.remaining()
            claim.checkpoint("while it was away")  # a heartbeat, in vain; from now on it is tried every second
            asked = len(proxy.requests)
            wait_until(lambda: len(proxy.requests) > asked, "it was tried again by itself")
            assert claim.remaining() <= left_s, "nobody answered, and it was taken for a yes"
            server.start()
            wait_until(lambda: client.owner("job").checkpoint == "while it was away", "it was renewed")
            wait_until(lambda: claim.remaining() > left_s - 1, "the answer was heard")
        assert lost == []


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("fault", [Fault.SWALLOWED, Fault.REQUEST_LOST], ids=lambda fault: fault.name)
def test_an_owner_that_is_cut_off_knows_before_the_next_one_owns(
    kind: str, fault: Fault, proxy: Proxy, server: ServerProcess, job: str
) -> None:
    """All on one clock, also when the heartbeat is stuck in a call without an answer."""
    lost_ms: list[int] = []
    listening = threading.Event()

    def heard(error: LeaseLost) -> None:
        lost_ms.append(steady_ms())

    def hold_sync() -> None:
        with Client(proxy.url, server.token) as client, client.claim(job, ttl=1, on_lost=heard) as claim:
            proxy.fault = lambda request: fault
            listening.set()
            assert claim.lost.wait(WAIT_S_MAX)

    async def hold_async() -> None:
        async with AsyncClient(proxy.url, server.token) as client, client.claim(job, ttl=1, on_lost=heard):
            proxy.fault = lambda request: fault
            listening.set()
            await asyncio.sleep(WAIT_S_MAX)

    raised: list[BaseException] = []

    def run() -> None:
        try:
            hold_sync() if kind == "sync" else asyncio.run(hold_async())
        except BaseException as error:
            raised.append(error)

    owner = threading.Thread(target=run)
    owner.start()
    try:
        assert listening.wait(WAIT_S_MAX)
        with Client(server.url, server.token, owner="next") as rival:
            taken_ms = taken_at_ms(rival, job)
    finally:
        owner.join(WAIT_S_MAX)
    assert [type(error) for error in raised] == [LeaseLost]
    assert "no heartbeat was answered in time" in str(raised[0])
    assert len(lost_ms) == 1
    assert lost_ms[0] < taken_ms


class Clock:
    """The steady clock, and what a suspend adds to it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead_ms = 0
        for module in (dibs.sdk.hold, dibs.sdk.heart):
            if hasattr(module, "steady_ms"):
                patch.setattr(module, "steady_ms", self)

    def __call__(self) -> int:
        return steady_ms() + self.ahead_ms


def test_a_suspended_machine_wakes_up_without_the_job(
    place: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    url, token = place
    lost: list[LeaseLost] = []
    with (
        Client(url, token) as client,
        lost_at_the_end(),
        client.claim("job", ttl=60, on_lost=lost.append) as claim,
    ):
        claim.check()
        clock.ahead_ms = 59_000
        with pytest.raises(LeaseLost):
            claim.check()
        assert claim.lost.is_set()
        assert claim.remaining() == 0
    wait_until(lambda: lost, "on_lost is called")
    pause(0.05)
    assert len(lost) == 1


def test_a_watchdog_notices_a_suspend_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    told = threading.Event()
    with (
        Client("memory://") as client,
        lost_at_the_end(),
        client.claim("job", ttl=600, on_lost=lambda error: told.set()),
    ):
        clock.ahead_ms = 599_000
        assert told.wait(WAIT_S_MAX), "nobody looked at the clock"


def test_what_was_lost_is_never_claimed_again_nor_renewed_after_its_time(
    proxy: Proxy, server: ServerProcess, job: str
) -> None:
    with (
        Client(proxy.url, server.token) as client,
        lost_at_the_end(),
        client.claim(job, ttl=1) as claim,
    ):
        proxy.fault = lambda request: Fault.REQUEST_LOST
        assert claim.lost.wait(WAIT_S_MAX)
        asked = [request for request in proxy.requests if b"/renew" in request]
        assert len(asked) >= 3, "it was not tried again"
        proxy.fault = lambda request: Fault.NONE
        before = len(proxy.requests)
        pause(0.6)  # as long as two heartbeats
        assert len(proxy.requests) == before
        with pytest.raises(LeaseLost):
            claim.checkpoint("too late")
        assert len(proxy.requests) == before


@pytest.mark.parametrize("end", ["done", "release"])
def test_letting_go_by_hand_is_no_loss_while_a_heartbeat_is_under_way(
    end: str, proxy: Proxy, server: ServerProcess, job: str
) -> None:
    """The heartbeat arrives after the release, and is told that the lease is no more. Then the release is answered."""
    lost: list[LeaseLost] = []
    released, refused = threading.Event(), threading.Event()

    def delay_s(request: bytes) -> float:
        if b"/release" in request:
            released.set()
            refused.wait(WAIT_S_MAX)
            return 0.1  # the other answer arrives first
        if b"/renew" in request and released.is_set():
            refused.set()
        return 0.0

    proxy.delay_seconds = delay_s
    with (
        Client(proxy.url, server.token, timeout=WAIT_S_MAX) as client,
        client.claim(job, ttl=6, on_lost=lost.append) as claim,
    ):
        finish: Callable[..., Any] = getattr(claim, end)
        finish()
        assert refused.is_set(), "there was no heartbeat meanwhile"
    assert lost == []


def test_a_claim_that_nobody_has_any_more_is_not_kept(place: tuple[str, str | None]) -> None:
    url, token = place
    with Client(url, token) as client:

        def drop() -> None:
            client.claim("job", ttl=1).__enter__()

        drop()
        taken_at_ms(client, "job")


def test_a_generator_that_is_dropped_in_its_block_lets_go(place: tuple[str, str | None]) -> None:
    url, token = place

    def work(client: Client) -> Iterator[int]:
        with client.claim("job") as claim:
            yield claim.fencing_token

    with Client(url, token) as client:
        working = work(client)
        assert next(working) == 1
        assert client.owner("job").held
        del working
        assert not client.owner("job").held
