"""A name that needs git is looked up in a thread: git must not stop the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from dibs.agents.mcp.backend import ToolBackend
from dibs.client.naming import Naming
from dibs.sdk.async_client import AsyncClient

if TYPE_CHECKING:
    from collections.abc import Callable

ISSUE = "github://acme/app/issues/42"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which names that are not plain were looked up."""
    seen: list[int] = []
    real: Callable[[Naming, str], str] = Naming.of

    def noted(self: Naming, name: str) -> str:
        if "#" in name:
            seen.append(threading.get_ident())
        return real(self, name)

    monkeypatch.setattr(Naming, "of", noted)
    return seen


@pytest.mark.promise("names:one-name")
def test_no_call_of_the_async_client_looks_a_name_up_in_the_loop(threads: list[int]) -> None:
    async def work() -> int:
        async with AsyncClient("memory://") as client:
            async with client.claim("acme/app#42") as claim:
                assert claim.name == ISSUE
                assert (await client.owner("acme/app#42")).held
            async with client.claim_any(["acme/app#42", "issue-7"]) as claim:
                assert claim.name == ISSUE
            async with client.claim_all(["acme/app#42", "issue-7"]) as claim:
                assert claim.names == (ISSUE, "issue-7")
            lease = await client.acquire("acme/app#42")
            await client.release("acme/app#42", lease.lease_id)
            async with client.session() as session, session.claim("acme/app#42") as claim:
                assert claim.name == ISSUE
            async with client.events(name="acme/app#42", after=0) as events:
                assert (await anext(events)).event
        return threading.get_ident()

    loop_thread = asyncio.run(work())
    assert len(threads) >= 8
    assert loop_thread not in threads


def test_no_tool_looks_a_name_up_in_the_loop(threads: list[int]) -> None:
    async def work() -> int:
        async with AsyncClient("memory://") as client:
            backend = ToolBackend(client._transports)
            assert await backend.one_name("acme/app#42") == ISSUE
            assert await backend.one_names(["acme/app#42", "issue-7"]) == [ISSUE, "issue-7"]
        return threading.get_ident()

    loop_thread = asyncio.run(work())
    assert len(threads) == 2
    assert loop_thread not in threads
