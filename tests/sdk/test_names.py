"""Python takes a job by its one name, however it is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dibs import AsyncClient, Client, JobHeld

if TYPE_CHECKING:
    from pathlib import Path

ISSUE = "github://acme/app/issues/42"
ADDRESS = "https://github.com/Acme/App/issues/42"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/dibs.db"


@pytest.mark.promise("names:one-name")
def test_two_ways_to_write_an_issue_are_one_job(url: str) -> None:
    with Client(url) as client, client.claim(ADDRESS) as claim:
        assert claim.name == ISSUE
        with pytest.raises(JobHeld), client.claim("acme/app#42"):
            pass
        assert client.owner("https://github.com/acme/app/pull/42").name == ISSUE
        assert client.history("acme/app#42") == client.history(ISSUE) != []
        with client.session() as session, pytest.raises(JobHeld), session.claim("Acme/App#42"):
            pass


def test_a_claim_by_hand_is_renewed_and_released_by_any_spelling(url: str) -> None:
    with Client(url) as client:
        lease = client.acquire(ADDRESS)
        assert client.renew("acme/app#42", lease.lease_id).name == ISSUE
        client.release(name=ADDRESS, lease_id=lease.lease_id)
        assert client.owner(ISSUE).owner is None


@pytest.mark.promise("names:old-spellings")
def test_a_claim_under_an_older_spelling_keeps_working(url: str) -> None:
    with Client(url, exact=True) as before, Client(url) as client:
        lease = before.acquire(ADDRESS)
        assert lease.name == ADDRESS
        with pytest.raises(JobHeld), client.claim(ADDRESS):
            pass
        assert client.renew(ADDRESS, lease.lease_id).name == ADDRESS
        client.release(ADDRESS, lease.lease_id)
        with client.claim(ADDRESS) as claim:
            assert claim.name == ISSUE


def test_event_loops_have_the_same_names(url: str) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client, client.claim(ADDRESS) as claim:
            assert claim.name == ISSUE
            assert (await client.owner("acme/app#42")).name == ISSUE
            async with client.session() as session:
                with pytest.raises(JobHeld):
                    async with session.claim("acme/app#42"):
                        pass

    asyncio.run(work())
