"""Claims of an event loop are renewed by threads: a loop that is blocked, closed or one of several."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.base.clock import steady_ms
from dibs.sdk import heart
from tests.programs import WAIT_S_MAX, slowness, wait_until
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.claim_state import ClaimState
    from dibs.sdk.client import Client
    from dibs.sdk.hold import Hold

    Connect = Callable[..., Client]
    ConnectAsync = Callable[..., AsyncClient]

pytestmark = pytest.mark.promise("loss:told")


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "dibs heart"}


def renewed(claim: ClaimState[Any]) -> bool:
    return claim.remaining() > 50


@over("sqlite", "server")
@pytest.mark.fault("F-170")
def test_a_loop_that_is_blocked_for_longer_than_the_ttl_keeps_its_job(connect_async: ConnectAsync) -> None:
    ttl = 4 * slowness()

    async def main() -> None:
        async with connect_async() as client, client.claim("job", ttl=ttl) as claim:
            until_ms = steady_ms() + 1.2 * ttl * 1000
            wait_until(lambda: steady_ms() > until_ms, "the TTL is over, and the loop was blocked all the time")
            claim.check()
            await claim.checkpoint("half")
            assert (await client.owner("job")).checkpoint == "half"

    asyncio.run(main())


@over("sqlite", "server")
@pytest.mark.parametrize("awaits", [True, False], ids=["that goes on", "whose block ends"])
def test_a_blocked_loop_is_told_of_a_loss_as_soon_as_it_runs(
    connect: Connect, connect_async: ConnectAsync, due: Callable[[], None], *, awaits: bool
) -> None:
    told: list[dibs.LeaseLost] = []
    operator = connect("operator")

    async def main() -> None:
        async with connect_async() as client:
            with pytest.raises(dibs.LeaseLost, match="it hangs"):
                async with client.claim("job", ttl=60, on_lost=told.append) as claim:
                    operator.break_claim("job", "it hangs")
                    due()
                    wait_until(lambda: claim._hold.is_over, "the thread learned of it while the loop was blocked")
                    assert told == []
                    if awaits:
                        await asyncio.sleep(WAIT_S_MAX)
                        pytest.fail("went on working")
            assert claim.lost.is_set()
            await asyncio.sleep(0)
            assert len(told) == 1

    asyncio.run(main())


@over("memory")
def test_many_claims_of_one_loop_share_one_thread(
    connect_async: ConnectAsync, due: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heart, "STUCK_MS", 1_000 * WAIT_S_MAX)  # however slow this machine is
    before = threads()  # some may be about to end

    async def main() -> None:
        async with connect_async() as client:
            claims = [client.claim(f"job-{number}", ttl=60) for number in range(100)]
            for claim in claims:
                await claim.__aenter__()
            due()
            wait_until(lambda: all(renewed(claim) for claim in claims), "all are renewed")
            assert len(threads() - before) == 1
            for claim in claims:
                await claim.__aexit__(None, None, None)
            assert await client.list() == []

    asyncio.run(main())


@over("memory")
def test_a_renewal_that_hangs_holds_up_no_other(
    connect_async: ConnectAsync, due: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go_on = threading.Event(), threading.Event()
    beat = heart.beat_once

    def slow(hold: Hold, transports: object) -> None:
        if not hangs.is_set():
            hangs.set()
            go_on.wait(WAIT_S_MAX)
        beat(hold, transports)  # type: ignore[arg-type]  # what it was given

    monkeypatch.setattr(heart, "beat_once", slow)

    async def main() -> None:
        async with connect_async() as client, client.claim("a", ttl=60) as one, client.claim("b", ttl=60) as other:
            due()
            assert hangs.wait(WAIT_S_MAX)
            wait_until(lambda: renewed(one) or renewed(other), "the other one is renewed")
            assert renewed(one) != renewed(other)
            go_on.set()
            wait_until(lambda: renewed(one) and renewed(other), "and then the first")

    asyncio.run(main())


@over("memory")
def test_a_claim_whose_loop_was_closed_or_that_was_dropped_is_not_kept(connect_async: ConnectAsync) -> None:
    client = connect_async()
    loop = asyncio.new_event_loop()
    claim = client.claim("job")
    loop.run_until_complete(claim.__aenter__())
    hold = claim._hold
    loop.close()
    wait_until(lambda: hold.is_over, "nobody works on it any more")

    async def drop() -> Hold:
        dropped = client.claim("other")
        await dropped.__aenter__()
        return dropped._hold

    async def main() -> None:
        hold = await drop()
        gc.collect()
        assert hold.is_over

    asyncio.run(main())
    asyncio.run(client.close())


@over("sqlite", "server")
def test_loops_in_several_threads_keep_the_claims_of_one_client(
    connect_async: ConnectAsync, due: Callable[[], None]
) -> None:
    client = connect_async()
    inside = threading.Barrier(5, timeout=WAIT_S_MAX)
    kept: list[str] = []

    async def work(name: str) -> None:
        async with client.claim(name, ttl=60) as claim:
            inside.wait()
            inside.wait()
            wait_until(lambda: renewed(claim), f"{name} is renewed")
            kept.append(claim.name)

    workers = [threading.Thread(target=asyncio.run, args=(work(f"job-{number}"),)) for number in range(4)]
    for worker in workers:
        worker.start()
    inside.wait()
    due()
    inside.wait()
    for worker in workers:
        worker.join(WAIT_S_MAX)
    assert len(kept) == 4
    assert asyncio.run(client.list()) == []
    asyncio.run(client.close())


@over("memory")
def test_a_program_that_cancels_all_tasks_and_goes_on_is_still_told_of_the_loss(
    connect_async: ConnectAsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with connect_async() as client:
            with pytest.raises(dibs.LeaseLost, match="no heartbeat was answered"):
                async with asyncio.timeout(WAIT_S_MAX), client.claim("job", ttl=60):
                    for task in asyncio.all_tasks() - {asyncio.current_task()}:
                        task.cancel()
                    monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 58_000)
                    await asyncio.sleep(WAIT_S_MAX)

    asyncio.run(main())


def test_a_program_that_ends_in_its_block_does_not_wait_for_the_thread_that_renews() -> None:
    program = """
import asyncio, sys, dibs
from tests.programs import wait_until

async def main():
    async with dibs.AsyncClient("memory://") as client, client.claim("job", ttl=3) as claim:
        wait_until(lambda: claim.remaining() < 2.1, "its first heartbeat is due")
        wait_until(lambda: claim.remaining() > 2.1, "it is renewed")
        sys.exit(3)

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
    )
    assert (ended.returncode, ended.stderr) == (3, "")
