"""Pools, slots and units in the SDK."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.sdk.answers import lease_of, status_from
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.client import Client

    Connect = Callable[[], AsyncClient]


@over()
@pytest.mark.promise("pool:operator", "slot:number", "units")
def test_a_block_in_a_pool_has_a_slot_and_its_units(client: Client) -> None:
    assert client.set_pool("gpu", 3) is None
    with client.claim("gpu") as one, client.claim("gpu", units=2) as two:
        assert (one.slot, two.slot) == (0, 1)
        assert [each.slot_numbers for each in (one, two)] == [(0,), (1, 2)]
        assert [each.leases[0].slot_numbers for each in (one, two)] == [(0,), (1, 2)]
        with pytest.raises(dibs.JobHeld), client.claim("gpu"):
            pytest.fail("a fourth slot")
        (pool,) = client.pools()
        assert (pool.name, pool.document["slots_taken"]) == ("gpu", 3)
    assert client.set_pool("gpu", None) == 3
    assert client.pools() == []


@over()
@pytest.mark.promise("nested", "slot:number")
def test_a_block_inside_one_of_several_jobs_has_the_slot_of_its_own_job(client: Client) -> None:
    client.set_pool("gpu", 3)
    with client.claim_all(["build", "gpu"]) as both, client.claim("gpu", nested=True) as inner:
        assert (both.slot, inner.name, inner.slot) == (None, "gpu", 0)


@over()
@pytest.mark.promise("all-or-nothing")
def test_so_many_of_several_are_one_block(client: Client) -> None:
    with client.claim_any(["a", "b", "c"], count=2) as claim:
        assert [lease.name for lease in claim.leases] == ["a", "b"]
        with pytest.raises(dibs.NoneFree, match="Only 1"), client.claim_any(["a", "b", "c"], count=2):
            pytest.fail("too few were free")
    assert client.owner("a").status == client.owner("b").status == "free"


@over()
@pytest.mark.promise("pool:operator")
def test_a_pool_is_set_and_used_from_an_event_loop(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            await client.set_pool("gpu", 1)
            async with client.claim("gpu") as claim:
                assert claim.slot == 0
            assert [pool.name for pool in await client.pools()] == ["gpu"]

    asyncio.run(main())


@over("memory")
@pytest.mark.fault("F-347")
def test_who_handed_its_slot_on_is_told_that_several_have_the_job(client: Client) -> None:
    client.set_pool("gpu", 3)
    with client.claim("gpu", owner="ann"), client.claim("gpu", owner="bob") as handed:
        heir = handed.transfer(to_owner="zed")
        with pytest.raises(dibs.LeaseLost, match=r"handed to zed .* ago\. ann and 1 other have the job now"):
            client.renew("gpu", handed.lease_id)
        client.release("gpu", heir.lease_id)
        with pytest.raises(dibs.LeaseLost, match=r"\. ann has the job now"):
            client.renew("gpu", handed.lease_id)


@over()
@pytest.mark.fault("F-688")
def test_paused_and_closed_are_states_of_their_own(client: Client) -> None:
    client.set_pool("gpu", 0)
    assert (client.owner("gpu").status, client.owner("gpu").held) == ("paused", False)
    client.close_job("deploy/", "migration", duration="1h")
    status = client.owner("deploy/web")
    assert (status.status, status.document["closed"]["reason"]) == ("closed", "migration")


@over()
@pytest.mark.fault("F-689")
def test_one_of_several_owners_is_broken(client: Client) -> None:
    client.set_pool("gpu", 2)
    with client.claim("gpu", owner="b") as stays:
        with pytest.raises(dibs.LeaseLost), client.claim("gpu", owner="a") as one:
            client.break_claim("gpu", "hangs", fencing_token=one.fencing_token)
            client.break_claim("gpu", "again", fencing_token=one.fencing_token)
            client.renew("gpu", one.lease_id)
        assert client.owner("gpu").owner == "b"
        assert client.renew("gpu", stays.lease_id).fencing_token == stays.fencing_token


@pytest.mark.fault("F-690")
def test_an_older_server_names_one_slot_by_itself() -> None:
    answer = {"lease_id": "x", "fencing_token": 1, "owner": "a", "expires_at": "", "remaining_ms": 1, "slot": 3}
    assert lease_of(answer, "gpu").slot_numbers == (3,)


def test_a_word_of_a_newer_server_is_given_as_it_is() -> None:
    status = status_from({"name": "a", "status": "quarantined", "fencing_token": 7})
    assert (status.status, status.held, status.owner) == ("quarantined", False, None)
    assert "quarantined" in repr(status)
