"""What `dibs.testing` offers to those who test their own code."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.testing.clients import MemoryDibs, memory_client
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from pathlib import Path


def test_clients_of_one_memory_exclude_each_other_and_time_moves_when_told() -> None:
    jobs = MemoryDibs()
    with jobs.client("alice") as alice, jobs.client("bob") as bob:
        lease = alice.acquire("job", ttl="1m")
        with pytest.raises(dibs.JobHeld) as told:
            bob.acquire("job")
        assert told.value.owner == "alice"
        jobs.advance("61s")
        assert bob.acquire("job").fencing_token == 2
        with pytest.raises(dibs.LeaseLost):
            alice.renew("job", lease.lease_id)
    with jobs.client("carol") as carol:
        assert carol.owner("job").owner == "bob", "closing a client closes nobody else's"


def test_a_claim_that_ran_out_while_its_block_ran_learns_of_it() -> None:
    jobs = MemoryDibs()
    with jobs.client("alice") as alice, pytest.raises(dibs.LeaseLost), alice.claim("job", ttl="30s") as claim:
        jobs.advance("31s")
        claim.checkpoint("half")


def test_a_claim_sees_at_once_that_the_time_was_moved() -> None:
    jobs = MemoryDibs()
    with jobs.client("alice") as alice:
        with alice.claim("job", ttl="60s") as claim:
            jobs.advance("40s")
            claim.check()
        with pytest.raises(dibs.LeaseLost, match="no heartbeat was answered"), alice.claim("job", ttl="60s") as claim:
            jobs.advance("61s")
            assert claim.lost.is_set()
            claim.check()
        session = alice.session(ttl="60s")
        with pytest.raises(dibs.LeaseLost), session, session.claim("other") as claim:
            jobs.advance("61s")
            claim.check()

    async def go() -> None:
        client = jobs.async_client("bob")
        async with client.claim("job", ttl="60s") as claim:
            jobs.advance("61s")
            claim.check()

    with pytest.raises(dibs.LeaseLost):
        asyncio.run(go())


def test_the_functions_use_these_jobs_inside_the_block_and_not_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", f"sqlite://{tmp_path}/jobs.db")
    jobs = MemoryDibs()
    with jobs.as_default("agent"):
        with dibs.claim("job"):
            assert dibs.get_job_owner("job") == "agent"
            assert jobs.client().owner("job").owner == "agent"

        async def go() -> None:
            async with dibs.claim("job") as claim:
                assert claim.owner == "agent"

        asyncio.run(go())
    assert not (tmp_path / "jobs.db").exists()
    assert dibs.get_job_owner("job") is None
    assert (tmp_path / "jobs.db").exists()


def test_a_client_of_its_own_takes_one_call() -> None:
    with memory_client("agent") as client, client.claim("job") as claim:
        assert claim.owner == "agent"


FIXTURE_USED = """
import dibs

def test_one(memory_dibs):
    with dibs.claim("job") as claim:
        assert claim.fencing_token == 1
        claim.done()

def test_two(memory_dibs):
    with dibs.claim("job") as claim:
        assert claim.fencing_token == 1
"""


@pytest.mark.full
def test_the_fixture_gives_each_test_its_own_jobs(tmp_path: Path) -> None:
    """In a process of its own: pytest's `pytester` forgets all modules that any thread has imported meanwhile, so that
    later tests import some of them twice."""
    (tmp_path / "test_used.py").write_text(FIXTURE_USED)
    words = [sys.executable, "-m", "pytest", "-p", "dibs.testing.fixtures", "-p", "no:cacheprovider", "test_used.py"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr
