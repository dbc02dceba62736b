"""The leader of an election, as a block: for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base.errors import InvalidInput, InvalidName
from tests.programs import wait_until
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.client import Client

    Connect = Callable[..., AsyncClient]


@over()
def test_a_leader_has_the_elections_job_and_a_term_that_rises(client: Client) -> None:
    with client.leader("deploys", metadata="eu") as leader:
        assert (leader.election, leader.name, leader.is_leader) == ("deploys", "election:deploys", True)
        status = client.owner("election:deploys")
        assert (status.owner, status.fencing_token, status.metadata) == ("alice", leader.term, "eu")
        first = leader.term
    with client.leader("deploys") as leader:
        assert leader.term == first + 1


@over()
@pytest.mark.parametrize("name", ["", " deploys", None])
def test_an_election_without_a_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidName, match="An election's name"):
        client.leader(name)


@over()
def test_somebody_else_leads(client: Client) -> None:
    with (
        client.leader("deploys"),
        pytest.raises(dibs.JobHeld) as refused,
        client.leader("deploys", owner="bob", wait=None),
    ):
        pytest.fail("two leaders")
    assert refused.value.owner == "alice"


@over()
def test_the_next_candidate_leads_as_soon_as_the_leader_resigns(client: Client) -> None:
    terms: list[int] = []

    def follow() -> None:
        with client.leader("deploys", owner="bob") as follower:
            terms.append(follower.term)

    with client.leader("deploys") as leader:
        thread = threading.Thread(target=follow)
        thread.start()
        wait_until(lambda: client.history("election:deploys")[-1].event == "queued", "nobody waits")
        leader.resign()
        assert not leader.is_leader
        thread.join(60)
        assert terms == [leader.term + 1]


@over()
@pytest.mark.promise("elect:one-leader")
def test_a_loss_is_reported_at_once(client: Client) -> None:
    told: list[dibs.LeaseLost] = []
    with pytest.raises(dibs.LeaseLost), client.leader("deploys", on_lost=told.append) as leader:
        client.break_claim("election:deploys", "stuck")
        leader.checkpoint("x")
    wait_until(lambda: told, "on_lost is called, in a thread of its own")
    assert [each.name for each in told] == ["election:deploys"]


@over()
def test_a_block_that_raises_resigns_and_has_not_failed(client: Client) -> None:
    with pytest.raises(ValueError, match="x"), client.leader("deploys"):
        raise ValueError("x")
    with client.leader("deploys") as leader:
        assert leader.attempt == 1


@over()
def test_an_event_loop_leads_as_well(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            async with client.leader("deploys") as leader:
                assert leader.is_leader
                with pytest.raises(dibs.JobHeld):
                    async with client.leader("deploys", owner="bob", wait=0.05):
                        pytest.fail("two leaders")
                await leader.resign()
                assert leader.remaining() == 0
            async with client.leader("deploys") as again:
                assert again.term == leader.term + 1

    asyncio.run(main())


@over()
def test_a_leader_is_for_one_block(client: Client) -> None:
    leader = client.leader("deploys")
    with leader:
        with pytest.raises(InvalidInput, match="A leader is for one block only"), leader:
            pytest.fail("the block began within itself")
        assert leader.is_leader, "the block that runs is not disturbed"
    with pytest.raises(InvalidInput, match="Make another one with the client"), leader:
        pytest.fail("a second block began")
    assert client.owner("election:deploys").status == "free"


@over("memory")
def test_of_two_threads_with_one_leader_one_leads(client: Client) -> None:
    leader = client.leader("deploys", wait=None)
    told: list[str] = []
    both, told_both = threading.Barrier(2), threading.Barrier(2)

    def lead() -> None:
        both.wait(60)
        try:
            with leader:
                told.append("leads")
                told_both.wait(60)
        except InvalidInput as refused:
            told.append(refused.details)
            told_both.wait(60)

    threads = [threading.Thread(target=lead) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(told) == ["A leader is for one block only. Make another one with the client.", "leads"]
    assert client.owner("election:deploys").status == "free"


@over()
def test_a_term_is_known_from_the_block_on(client: Client) -> None:
    leader = client.leader("deploys")
    for ask in (lambda: leader.term, lambda: leader.election, lambda: leader.is_leader, leader.resign):
        with pytest.raises(InvalidInput, match=r"The election was not won yet.*`with … as leader:`"):
            ask()
    with leader:
        term = leader.term
        leader.resign()
        assert (leader.term, leader.is_leader) == (term, False)
        with pytest.raises(dibs.LeaseLost):
            leader.resign()
    assert (leader.term, leader.is_leader) == (term, False)


@over()
def test_nobody_leads_with_a_client_that_was_closed(connect: Callable[..., Client]) -> None:
    client = connect()
    leader = client.leader("deploys")
    client.close()
    with pytest.raises(dibs.Unavailable, match="closed"), leader:
        pytest.fail("it leads without a client")


@over("sqlite", "server")
def test_a_candidate_that_is_cancelled_leaves_no_place_in_line_and_no_lease(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client, connect_async("bob") as other:
            async with client.leader("deploys"):
                candidate = other.leader("deploys")
                campaign = asyncio.create_task(candidate.__aenter__())
                async with asyncio.timeout(20):
                    while not (await client.owner("election:deploys")).document.get("waiting"):
                        await asyncio.sleep(0.01)
                campaign.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await campaign
                status = await client.owner("election:deploys")
                assert status.document["waiting"] == 0
                with pytest.raises(InvalidInput, match="The election was not won yet"):
                    _ = candidate.term
            assert (await client.owner("election:deploys")).status == "free"

    asyncio.run(main())
