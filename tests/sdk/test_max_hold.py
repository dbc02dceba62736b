"""A claim with a ceiling: its owner is told of the loss as of any other, with the reason. And closed jobs."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

import dibs
from dibs.testing.clients import MemoryDibs
from tests.programs import WAIT_S_MAX

REACHED = "reached the longest time that it may last"


@pytest.mark.promise("max-hold", "loss:told")
def test_a_claim_is_lost_at_its_ceiling_however_often_it_is_renewed() -> None:
    jobs = MemoryDibs()
    with jobs.client("alice") as alice, jobs.client("bob") as bob:
        told: list[dibs.LeaseLost] = []
        was_told = threading.Event()

        def on_lost(lost: dibs.LeaseLost) -> None:
            told.append(lost)
            was_told.set()

        with (
            pytest.raises(dibs.LeaseLost, match=REACHED),
            alice.claim("job", ttl="60s", max_hold="150s", on_lost=on_lost) as claim,
        ):
            assert claim.ends_at is not None
            for _ in range(4):
                jobs.advance("35s")
                claim.checkpoint("half")
                assert claim.remaining() <= 150
            claim.check()
            assert claim.remaining() < 10
            jobs.advance("9600ms")
            claim.check()
        assert was_told.wait(WAIT_S_MAX)
        assert REACHED in told[0].why
        jobs.advance("400ms")
        lease = bob.acquire("job", max_hold=10)
        assert lease.previous is not None
        assert (lease.previous.how, lease.previous.reason, lease.checkpoint) == ("expired", "max_hold", "half")
        assert (lease.ends_in_ms, lease.remaining_ms) == (10_000, 10_000)


@pytest.mark.promise("max-hold", "loss:told")
def test_a_claim_in_a_session_is_lost_at_its_ceiling_and_the_session_goes_on() -> None:
    jobs = MemoryDibs()
    with jobs.client("alice") as alice, alice.session(ttl="60s") as session, session.claim("other") as other:
        with pytest.raises(dibs.LeaseLost, match=REACHED), session.claim("job", max_hold="100s") as claim:
            jobs.advance("50s")
            session._grip.heart.beat()  # type: ignore[union-attr]
            claim.check()
            jobs.advance("49s")
            assert claim.lost.is_set()
        other.check()
        session.check()


@pytest.mark.promise("max-hold", "loss:told")
def test_an_asynchronous_block_is_cancelled_at_the_ceiling() -> None:
    jobs = MemoryDibs()

    async def go() -> None:
        client = jobs.async_client("bob")
        async with client.claim("job", ttl="60s", max_hold="30s"):
            asyncio.get_running_loop().call_soon(jobs.advance, "29s")
            await asyncio.sleep(WAIT_S_MAX)

    with pytest.raises(dibs.LeaseLost, match=REACHED):
        asyncio.run(go())


@pytest.mark.promise("closed")
def test_a_closed_job_raises_its_reason_and_end() -> None:
    jobs = MemoryDibs()
    with jobs.client("alice") as alice:
        alice.close_job("deploy/", "migration", duration="2h")
        with pytest.raises(dibs.JobClosed, match="migration") as told, alice.claim("deploy/web"):
            pass
        assert (told.value.reason, told.value.retry_after) == ("migration", 7_200)
        assert told.value.until is not None
        with pytest.raises(dibs.NoneFree) as several, alice.claim_any(["deploy/web"]):
            pass
        assert isinstance(several.value.refusals[0], dibs.JobClosed)
        assert alice.open_job("deploy/") is True
        assert alice.open_job("deploy/") is False
        until = datetime.fromtimestamp(jobs.clock() / 1000, UTC) + timedelta(hours=1)
        alice.close_job("deploy/", "again", until=until)
        assert alice.owner("deploy/web").document["closed"]["remaining_ms"] == 3_600_000
        with pytest.raises(dibs.InvalidInput, match="time zone"):
            alice.close_job("deploy/", "again", until=until.replace(tzinfo=None))

    async def go() -> None:
        client = jobs.async_client("bob")
        assert await client.open_job("deploy/")
        await client.close_job("deploy/", "twice", duration=60)

    asyncio.run(go())
