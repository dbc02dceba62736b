"""Blocks of one flow inside each other, and sharing what was had alone."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.base.reply import Reply
from tests.build import tries
from tests.programs import wait_until
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.claim import Claim
    from dibs.sdk.client import Client


@over()
@pytest.mark.promise("nested")
def test_the_inner_block_has_the_same_lease_and_the_outer_one_releases_it(client: Client) -> None:
    with client.claim("job") as outer:
        with client.claim("job", nested=True) as inner, client.claim("job", nested=True) as innermost:
            assert inner.lease_id == outer.lease_id == innermost.lease_id
            assert innermost.fencing_token == 1
        assert client.owner("job").held
        outer.check()
    assert not client.owner("job").held
    assert [event.event for event in client.history("job")] == ["acquired", "released"]


@over("memory")
@pytest.mark.promise("nested")
def test_an_inner_block_that_raises_ends_nothing_and_the_last_one_decides(client: Client) -> None:
    with client.claim("job") as outer:
        with pytest.raises(ZeroDivisionError), client.claim("job", nested=True):
            raise ZeroDivisionError
        outer.check()
    assert client.history("job")[-1].event == "released"
    with pytest.raises(ZeroDivisionError), client.claim("job"), client.claim("job", nested=True):
        raise ZeroDivisionError
    assert client.history("job")[-1].event == "failed"


@over("memory")
@pytest.mark.promise("nested")
def test_it_is_nested_only_in_its_own_thread_client_and_session(client: Client) -> None:
    told: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with client.claim("job", nested=True):
                pytest.fail("two owners")
        except dibs.JobHeld as error:
            told.append(error)

    with client.claim("job", nested=True):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with client.session() as session, pytest.raises(dibs.JobHeld), session.claim("job", nested=True):
            pytest.fail("another owner")
        with pytest.raises(dibs.JobHeld), client.claim("job"):
            pytest.fail("not nested")
    assert len(told) == 1
    with client.claim("job", nested=True) as next_one:
        assert next_one.fencing_token == 2


@over("memory", "server")
@pytest.mark.promise("nested")
def test_it_is_nested_in_a_session_and_in_a_claim_of_several(client: Client) -> None:
    with client.session() as session, session.claim_all(["a", "b"]) as outer:
        with session.claim("b", nested=True) as inner:
            assert (inner.name, inner.names) == ("b", ("b",))
            assert inner.fencing_token == outer.fencing_tokens["b"]
        assert client.owner("b").held


@over("memory")
@pytest.mark.promise("nested")
def test_a_loss_reaches_every_level(client: Client) -> None:
    heard: list[str] = []
    with pytest.raises(dibs.LeaseLost), client.claim("job") as outer:  # noqa: SIM117 - the levels
        with client.claim("job", nested=True, on_lost=lambda error: heard.append(error.name)) as inner:
            client.break_claim("job", "an outage")
            with pytest.raises(dibs.LeaseLost):
                inner.checkpoint("half")
            assert inner.lost.is_set()
            assert outer.lost.is_set()
            with pytest.raises(dibs.LeaseLost):
                outer.check()
    wait_until(lambda: heard == ["job"], "it was not told")


@over("memory")
@pytest.mark.promise("nested")
def test_only_the_last_block_may_end_what_several_have(client: Client) -> None:
    with client.claim("job") as outer:
        with client.claim("job", nested=True) as inner:
            for end in (inner.done, inner.release, inner.fail, inner.share, outer.done, outer.share):
                with pytest.raises(dibs.InvalidInput, match="2 blocks"):
                    end()
        outer.done("ready")
    assert client.owner("job").status == "done"


@over("memory")
@pytest.mark.promise("nested")
def test_inside_a_shared_claim_nobody_has_it_alone(client: Client) -> None:
    with client.claim("job", shared=True):
        with client.claim("job", shared=True, nested=True):
            pass
        with pytest.raises(dibs.InvalidInput, match="shared in the block around"), client.claim("job", nested=True):
            pytest.fail("alone")
        assert client.owner("job").held
    with client.claim("job"), client.claim("job", shared=True, nested=True):
        pass


@over("sqlite", "server")
@pytest.mark.promise("share")
def test_an_owner_alone_shares_with_those_who_wait_to_share(connect: Callable[..., Client]) -> None:
    client, got = connect(), threading.Event()
    other = connect("bob")

    def reader() -> None:
        with other.claim("table", shared=True, wait=60, owner="bob"):
            got.set()

    with client.claim("table") as claim:
        thread = threading.Thread(target=reader)
        thread.start()
        wait_until(lambda: client.owner("table").document.get("waiting") == 1, "it does not wait")
        claim.share()
        claim.share()
        assert got.wait(60)
        thread.join()
        assert client.owner("table").document["mode"] == "shared"
        with pytest.raises(dibs.InvalidInput), client.claim("table", nested=True):
            pytest.fail("alone")
        claim.check()
    kinds = [event.event for event in client.history("table")]
    assert kinds.count("shared") == 1


@over("memory")
def test_a_reentrant_lock_is_released_as_often_as_it_was_acquired(client: Client) -> None:
    lock, same = dibs.RLock("job", client=client), dibs.RLock("job", client=client)
    assert lock.acquire()
    with same, lock:
        assert lock.acquire(blocking=False)
        lock.release()
    assert lock.locked()
    lock.release()
    assert not lock.locked()
    with pytest.raises(RuntimeError):
        lock.release()


@over("memory", "server")
@pytest.mark.promise("nested")
def test_tasks_nest_each_for_itself_and_a_loss_ends_every_level(connect_async: Callable[..., AsyncClient]) -> None:
    async def stranger(client: AsyncClient) -> str:
        try:
            async with client.claim("job", nested=True):
                return "two owners"
        except dibs.JobHeld:
            return "held"

    async def main() -> None:
        async with connect_async() as client:
            async with client.claim("job") as outer, client.claim("job", nested=True) as inner:
                assert inner.lease_id == outer.lease_id
                found = await asyncio.gather(stranger(client), stranger(client))
                assert set(found) == {"held"}
            assert not (await client.owner("job")).held
            seen: list[type[BaseException]] = []
            with pytest.raises(dibs.LeaseLost):
                async with client.claim("job", ttl=3):
                    try:
                        async with client.claim("job", nested=True):
                            await client.break_claim("job", "an outage")
                            await asyncio.sleep(60)
                    except BaseException as error:
                        seen.append(type(error))
                        raise
            assert seen in ([asyncio.CancelledError], [dibs.LeaseLost])
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            async with client.claim("job") as claim:
                await claim.share()
                assert (await client.owner("job")).document["mode"] == "shared"

    asyncio.run(main())


@over("memory")
@pytest.mark.promise("nested")
def test_many_threads_with_levels_and_errors_never_overlap(client: Client) -> None:
    inside, most, errors = [0], [0], list[BaseException]()

    def work(level: int) -> None:
        with client.claim("job", nested=True, wait=60):
            inside[0] += level == 0
            most[0] = max(most[0], inside[0])
            try:
                if level < 3:
                    work(level + 1)
                elif threading.get_ident() % 2:
                    raise ZeroDivisionError
            finally:
                inside[0] -= level == 0

    def run() -> None:
        for _ in range(5):
            try:
                work(0)
            except ZeroDivisionError:
                pass
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, most) == ([], [1])
    assert client.owner("job").fencing_token == 30


ENDS: dict[str, tuple[Callable[[Claim], object], str]] = {
    "done": (lambda claim: claim.done("ready"), "done"),
    "release": (lambda claim: claim.release(), "free"),
    "fail": (lambda claim: claim.fail("away"), "free"),
    "transfer": (lambda claim: claim.transfer(to_owner="zed"), "held"),
}


def last_event(client: Client, name: str) -> str:
    return client.history(name)[-1].event


@contextmanager
def within(client: Client, place: str) -> Iterator[Any]:
    """What to claim with: a client, or a session of it."""
    if place == "client":
        yield client
    else:
        with client.session() as session:
            yield session


@over("memory")
@pytest.mark.promise("nested")
@pytest.mark.fault("F-344")
@pytest.mark.parametrize("place", ["client", "session"])
def test_an_inner_blocks_checkpoint_is_of_its_own_name(client: Client, place: str) -> None:
    with within(client, place) as claims, claims.claim_all(["a", "b", "c"]) as outer:
        outer.checkpoint("all")
        with claims.claim("b", nested=True) as inner:
            inner.checkpoint("only b", metadata="mine")
            assert [client.owner(name).checkpoint for name in "abc"] == ["all", "only b", "all"]
            assert [client.owner(name).metadata for name in "abc"] == [None, "mine", None]
            outer.checkpoint("again")
            assert [client.owner(name).checkpoint for name in "abc"] == ["again"] * 3


@over("memory")
@pytest.mark.promise("nested")
@pytest.mark.fault("F-344")
@pytest.mark.parametrize("place", ["client", "session"])
@pytest.mark.parametrize("end", ENDS)
def test_when_the_outer_block_ends_first_the_inner_one_has_and_ends_its_own_name(
    client: Client, place: str, end: str
) -> None:
    act, status = ENDS[end]
    with within(client, place) as claims:
        outer = claims.claim_all(["a", "b"])
        inner = claims.claim("b", nested=True)
        with outer:
            inner.__enter__()
            for act_of in (inner.done, inner.release, inner.fail, inner.share, outer.done):
                with pytest.raises(dibs.InvalidInput, match="2 blocks"):
                    act_of()
        assert (client.owner("a").status, client.owner("b").status) == ("free", "held")
        assert (outer.names, inner.names) == (("a", "b"), ("b",))
        inner.check()
        inner.checkpoint("half")
        returned = act(inner)
        assert client.owner("b").status == status
        assert last_event(client, "a") == "released"
        if isinstance(returned, dibs.Lease):
            assert (returned.name, client.owner("b").owner) == ("b", "zed")
        with pytest.raises(dibs.LeaseLost):
            inner.check()
        inner.__exit__(None, None, None)
        assert client.owner("b").status == status
        with claims.claim("a") as again:  # nothing of the first claim is in the way
            again.checkpoint("more")


@over("memory", "server")
@pytest.mark.promise("nested")
@pytest.mark.fault("F-344")
def test_a_name_is_released_with_the_last_block_that_has_it_whichever_ends_first(client: Client) -> None:
    """Random orders of entering and leaving, beside a count of the blocks by name."""
    for seed in range(tries(25, 400)):
        chance = random.Random(seed)
        names = ["a", "b", "c"][: chance.randint(1, 3)]
        blocks: list[Claim] = [client.claim_all(names)]
        blocks += [client.claim(chance.choice(names), nested=True) for _ in range(chance.randint(0, 4))]
        for block in blocks:
            block.__enter__()
        raised = chance.random() < 0.3
        while blocks:
            block = blocks.pop(chance.randrange(len(blocks)))
            alone = [name for name in block.names if all(name not in other.names for other in blocks)]
            error = ValueError() if raised else None
            block.__exit__(type(error), error, None)
            held = {name for other in blocks for name in other.names}
            assert {name for name in names if client.owner(name).held} == held, seed
            assert {last_event(client, name) for name in alone} <= {"failed" if raised else "released"}, seed
            for other in blocks:
                other.check()


@over("memory")
@pytest.mark.fault("F-344")
def test_two_inner_blocks_that_are_left_end_each_its_own(client: Client) -> None:
    with ExitStack() as stack:
        with client.claim_all(["a", "b", "c"]):
            first = stack.enter_context(client.claim("a", nested=True))
            second = stack.enter_context(client.claim("b", nested=True))
        assert last_event(client, "c") == "released"
        first.done("ready")
        for act in (first.check, first.done, first.share, lambda: first.checkpoint("late")):
            with pytest.raises(dibs.LeaseLost, match=r"a is not ours any more.*it was released"):
                act()
        assert first.remaining() == 0
        second.check()
        second.share()
        with client.claim("b", shared=True, nested=True):
            pass
        assert client.owner("b").document["mode"] == "shared"
        client.break_claim("b", "an outage")
        with pytest.raises(dibs.LeaseLost, match="b is not ours"):
            second.checkpoint("half")
        with pytest.raises(dibs.LeaseLost, match="b is not ours"):
            second.__exit__(None, None, None)
        stack.pop_all()
        first.__exit__(None, None, None)  # it ended well, before the loss


@over("memory")
@pytest.mark.fault("F-344")
def test_a_renewal_under_way_takes_no_lease_that_its_block_let_go_of_for_a_loss(client: Client) -> None:
    with ExitStack() as stack:
        with client.claim_all(["a", "b"]):
            inner = stack.enter_context(client.claim("b", nested=True))
            renewal = inner._hold.heartbeat()
            asked: Any = next(renewal)
        assert (asked.verb, asked.name) == ("renew", "a")
        asked = renewal.send(Reply(409, {"code": "lease_not_current", "details": "It was released."}))
        assert (asked.verb, asked.name) == ("renew", "b")
        renewal.close()
        inner.check()


@over("memory")
@pytest.mark.fault("F-344")
def test_a_lock_inside_a_claim_of_several_has_its_own_name(client: Client) -> None:
    lock = dibs.RLock("b", client=client)
    with client.claim_all(["a", "b"]):
        lock.acquire()
        lock.acquire()
    assert (client.owner("a").held, client.owner("b").held) == (False, True)
    lock.release()
    assert client.owner("b").held
    lock.claim.checkpoint("half")
    lock.release()
    assert not client.owner("b").held


@over("memory")
@pytest.mark.fault("F-344")
def test_the_same_for_blocks_of_a_loop(connect_async: Callable[..., AsyncClient]) -> None:
    async def main() -> None:
        async with connect_async() as client, AsyncExitStack() as stack:
            async with client.claim_all(["a", "b"]):
                inner = await stack.enter_async_context(client.claim("b", nested=True))
                await inner.checkpoint("only b")
                assert (await client.owner("a")).checkpoint is None
                with pytest.raises(dibs.InvalidInput, match="2 blocks"):
                    await inner.done()
            assert [(await client.owner(name)).held for name in "ab"] == [False, True]
            assert (await inner.transfer(to_owner="zed")).name == "b"
            assert (await client.owner("b")).owner == "zed"
            with pytest.raises(dibs.LeaseLost):
                inner.check()
            assert (await client.history("a"))[-1].event == "released"

    asyncio.run(main())
