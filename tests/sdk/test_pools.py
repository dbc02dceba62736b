"""Pools, slots and units in the SDK."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import dibs
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
        assert (one.slot, two.slot, two.leases[0].slot_numbers) == (0, 1, (1, 2))
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
