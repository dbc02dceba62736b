"""The leader of an election, as a block: for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.errors import InvalidName
from tests.processes import wait_until
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
        thread.join(20)
        assert terms == [leader.term + 1]


@over()
@pytest.mark.promise("elect:one-leader")
def test_a_loss_is_told_at_once(client: Client) -> None:
    told: list[dibs.LeaseLost] = []
    with pytest.raises(dibs.LeaseLost), client.leader("deploys", on_lost=told.append) as leader:
        client.break_claim("election:deploys", "stuck")
        leader.checkpoint("x")
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
