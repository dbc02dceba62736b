"""The claim as a block, for event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base.clock import steady_ms
from dibs.sdk.async_transport import ThreadedTransport
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.transport import Ask
    from dibs.sdk.async_client import AsyncClient
    from dibs.wire.documents import Reply

    Connect = Callable[..., AsyncClient]

PATIENCE_S = 20


@over()
def test_a_block_has_the_job_and_lets_it_go(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            async with client.claim("job", ttl=30) as claim:
                assert (await client.owner("job")).owner == "alice"
                await claim.checkpoint("half")
                with pytest.raises(dibs.JobHeld) as refused:
                    async with client.claim("job"):
                        pytest.fail("two owners")
                assert refused.value.owner == "alice"
            async with client.claim("job") as claim:
                assert claim.previous is not None
                assert claim.previous.checkpoint == "half"
                await claim.done("r", done=60)
            with pytest.raises(dibs.JobDone):
                async with client.claim("job"):
                    pytest.fail("done twice")
            assert await client.list() == []

    asyncio.run(main())


@over()
def test_a_loop_over_a_backlog_ends_when_all_is_done(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            for _ in range(2):
                async with client.claim_any(["a", "b"]) as claim:
                    await claim.done()
            with pytest.raises(dibs.JobDone) as told:
                async with client.claim_any(["a", "b"]):
                    pytest.fail("done twice")
            assert [each.code for each in told.value.refusals] == ["done", "done"]
            async with client.claim("c"):
                with pytest.raises(dibs.NoneFree) as mixed:
                    async with client.claim_any(["a", "c"]):
                        pytest.fail("two owners")
                assert [each.owner for each in mixed.value.refusals] == ["alice", "alice"]

    asyncio.run(main())


@over()
@pytest.mark.promise("loss:told")
def test_a_loss_cancels_the_block_and_is_raised_at_its_end(
    connect_async: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dibs.LeaseLost] = []

    async def main() -> None:
        async with connect_async() as client:
            with pytest.raises(dibs.LeaseLost, match="it hangs"):
                async with client.claim("job", ttl=60, on_lost=told.append) as claim:
                    await client.break_claim("job", "it hangs")
                    # The next heartbeat is due, and the deadline far away.
                    monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 20_000)
                    await asyncio.sleep(PATIENCE_S)
                    pytest.fail("went on working")
            assert claim.lost.is_set()
            assert len(told) == 1
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    asyncio.run(main())


@over("sqlite")
@pytest.mark.promise("loss:told")
def test_the_deadline_cancels_the_block_without_the_store(
    connect_async: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def main() -> None:
        async with connect_async() as client:
            with pytest.raises(dibs.LeaseLost, match="no heartbeat was answered"):
                async with client.claim("job", ttl=60):
                    monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 58_000)
                    await asyncio.sleep(PATIENCE_S)
                    pytest.fail("went on working")
            monkeypatch.undo()
            assert (await client.owner("job")).held

    asyncio.run(main())


@over("memory")
def test_check_raises_in_the_block_and_cancels_nothing_more(
    connect_async: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def main() -> None:
        async with connect_async() as client:
            with pytest.raises(dibs.LeaseLost):
                async with client.claim("job", ttl=60) as claim:
                    monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 58_000)
                    claim.check()
            await asyncio.sleep(0)  # a cancellation that was left over would be raised here

    asyncio.run(main())


@over()
def test_somebody_elses_cancellation_stays_one_and_lets_go(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            entered = asyncio.Event()

            async def work() -> None:
                async with client.claim("job"):
                    entered.set()
                    await asyncio.sleep(PATIENCE_S)

            task = asyncio.create_task(work())
            await asyncio.wait_for(entered.wait(), PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not (await client.owner("job")).held

    asyncio.run(main())


@over()
@pytest.mark.promise("queue:no-dead-grant")
def test_a_waiter_that_is_cancelled_leaves_the_line(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            async with client.claim("job"):

                async def wait() -> None:
                    async with client.claim("job", wait=PATIENCE_S):
                        pytest.fail("two owners")

                task = asyncio.create_task(wait())
                async with asyncio.timeout(PATIENCE_S):
                    while (await client.owner("job")).document["waiting"] != 1:
                        await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(PATIENCE_S):
                    while (await client.owner("job")).document["waiting"] != 0:
                        await asyncio.sleep(0.01)
            assert not (await client.owner("job")).held

    asyncio.run(main())


@over()
@pytest.mark.promise("queue:fifo")
def test_twenty_tasks_wait_in_line_and_each_gets_its_turn(connect_async: Connect) -> None:
    inside = 0
    order: list[int] = []

    async def main() -> None:
        nonlocal inside
        async with connect_async() as client:

            async def work() -> None:
                nonlocal inside
                async with client.claim("job", wait=60, ttl=30) as claim:
                    inside += 1
                    assert inside == 1
                    order.append(claim.fencing_token)
                    await asyncio.sleep(0)
                    inside -= 1

            async with asyncio.timeout(60):
                await asyncio.gather(*(work() for _ in range(20)))

    asyncio.run(main())
    assert order == sorted(order)
    assert len(order) == 20


@over()
def test_a_session_holds_several_jobs_and_its_loss_cancels_the_block(
    connect_async: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def main() -> None:
        async with connect_async() as client:
            session = client.session(ttl=10, owner="worker")
            async with session, session.claim("a"), session.claim_any(["a", "b"]) as claim:
                assert claim.name == "b"
                assert {status.owner for status in await client.list()} == {"worker"}
            assert await client.list() == []
            with pytest.raises(dibs.LeaseLost):
                async with client.session(ttl=10):
                    monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 10_000)
                    await asyncio.sleep(PATIENCE_S)
                    pytest.fail("went on working")

    asyncio.run(main())


@over()
def test_by_hand_the_names_are_the_same(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            lease = await client.acquire("job")
            assert (await client.renew("job", lease.lease_id)).fencing_token == 1
            given = await client.transfer("job", lease.lease_id, to_owner="bob")
            await client.release("job", given.lease_id)
            assert [event.event for event in await client.history("job")][-1] == "released"

    asyncio.run(main())


@over("server", "sqlite")
def test_one_client_serves_several_loops(connect_async: Connect) -> None:
    client = connect_async()

    async def once() -> None:
        async with client.claim("job"):
            pass

    for _ in range(3):
        asyncio.run(once())
    asyncio.run(client.close())


@over("sqlite")
def test_who_lets_go_does_not_stand_behind_those_who_ask(
    connect_async: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many questions wait for a thread: a block and a session end at once."""
    free = threading.Event()
    asked = ThreadedTransport._ask

    def slow(transport: ThreadedTransport, step: Ask) -> Reply:
        if step.verb == "inspect":
            free.wait(PATIENCE_S)
        return asked(transport, step)

    monkeypatch.setattr(ThreadedTransport, "_ask", slow)

    async def main() -> None:
        async with connect_async() as client:
            async with asyncio.timeout(PATIENCE_S / 2):
                async with client.session(), client.claim("job"):
                    asking = [asyncio.create_task(client.owner("other")) for _ in range(50)]
                    await asyncio.sleep(0)
            assert not any(task.done() for task in asking)
            free.set()
            await asyncio.gather(*asking)
            assert not (await client.owner("job")).held

    asyncio.run(main())
