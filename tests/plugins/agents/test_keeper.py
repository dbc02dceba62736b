"""The server keeps claims: they live as long as their connection, and a loss is reported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dibs.agents.mcp import backend as backends
from dibs.base.errors import DibsError, LeaseLost
from dibs.client.embedded import EmbeddedTransport
from dibs.sdk.async_transport import ThreadedTransport
from dibs.wire.documents import Reply, reply_for_error
from tests.plugins.agents.connection import backend_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dibs.agents.mcp.backend import ToolBackend
    from dibs.client.transport import Ask
    from tests.plugins.agents.connection import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend(store: Store) -> AsyncIterator[ToolBackend]:
    transport = store.transport(ThreadedTransport)
    made = backend_of(transport, "agent-7")
    yield made
    await made.close()
    transport.close()


@pytest.mark.promise("session")
async def test_the_end_of_a_connection_lets_go_of_all_it_claimed_and_of_nothing_else(store: Store, mode: str) -> None:
    async with store.agent("agent-8", mode) as other:
        await other.call("claim_job", job="theirs")
        async with store.agent("agent-7", mode) as agent:
            for job in ("a", "b"):
                await agent.call("claim_job", job=job)
            assert [each["lock_count"] for each in store.sessions() if each["owner"] == "agent-7"] == [2]
        assert (store.status("a"), store.status("b"), store.status("theirs")) == ("free", "free", "held")
        assert [each["owner"] for each in store.sessions()] == ["agent-8"]
    assert store.sessions() == []


async def test_a_connection_that_claims_nothing_leaves_no_session(store: Store) -> None:
    async with store.agent("agent-7") as agent:
        await agent.call("list_claimed_jobs")
        await agent.call("get_job_owner", job="a")
    assert store.ask("inspect", "a").status in (200, 404)
    assert store.sessions() == []


async def test_a_claim_without_a_call_is_kept_by_the_heart_of_the_session(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is told that it has less time than it has, so that its heart beats soon."""
    kept: list[str] = []

    class Listening(EmbeddedTransport):
        def ask(self, asked: Ask) -> Reply:
            reply = super().ask(asked)
            if asked.verb == "session-open" and reply.body:
                reply = Reply(status=reply.status, body={**reply.body, "remaining_ms": 2_000})
            if asked.verb == "session-keep":
                kept.append(asked.name)
            return reply

    monkeypatch.setattr("dibs.client.embedded.EmbeddedTransport", Listening)
    transport = store.transport(ThreadedTransport)
    backend = backend_of(transport, "agent-7")
    [lease], _ = await backend.claim("acquire", ["a"])
    async with asyncio.timeout(10):
        while not kept:
            await asyncio.sleep(0.01)
    assert (await backend.heartbeat("a", None))[0].lease_id == lease.lease_id
    await backend.close()
    transport.close()


@pytest.mark.promise("loss:told")
async def test_a_claim_that_was_broken_is_reported_with_the_next_answer_once(store: Store, mode: str) -> None:
    async with store.agent("agent-7", mode) as agent:
        await agent.call("claim_job", job="a")
        await agent.call("claim_job", job="b")
        store.ask("break", "a", reason="stuck")
        answer = await agent.call("list_claimed_jobs")
        [lost] = answer["lost"]
        assert lost["job"] == "a"
        assert "broken" in lost["why"]
        assert "stuck" in lost["why"]
        assert "lost" not in await agent.call("list_claimed_jobs")
        assert (await agent.call("heartbeat_job", job="b"))["yours"] is True
        assert (await agent.call("heartbeat_job", job="a"))["yours"] is False


async def test_a_loss_is_reported_with_a_tool_error_too(store: Store) -> None:
    async with store.agent("agent-7") as agent:
        await agent.call("claim_job", job="a")
        store.ask("break", "a", reason="stuck")
        said = await agent.error("claim_job", job="")
        assert "And a is not yours any more" in said
        assert "Stop the work" in said


async def test_a_broken_claim_can_be_claimed_anew_and_the_loss_is_reported_beside(store: Store) -> None:
    async with store.agent("agent-7") as agent:
        first = await agent.call("claim_job", job="a")
        store.ask("break", "a", reason="stuck")
        second = await agent.call("claim_job", job="a")
        assert second["claimed"] is True
        assert second["fencing_token"] > first["fencing_token"]
        assert [each["job"] for each in second["lost"]] == ["a"]


async def test_a_session_that_was_ended_is_reported_and_the_next_claim_opens_another(store: Store) -> None:
    async with store.agent("agent-7") as agent:
        await agent.call("claim_job", job="a")
        [session] = store.sessions()
        store.ask("session-end", session["session_id"])
        answer = await agent.call("claim_job", job="b")
        assert answer["claimed"] is True
        assert [each["job"] for each in answer["lost"]] == ["a"]
        [anew] = store.sessions()
        assert anew["session_id"] != session["session_id"]
        assert "lost" not in await agent.call("list_claimed_jobs")
    assert store.status("b") == "free"


async def test_a_call_that_is_cancelled_in_line_leaves_no_place_behind(store: Store, mode: str) -> None:
    async with store.agent("agent-7", mode) as first, store.agent("agent-8", mode) as second:
        await first.call("claim_job", job="a")
        waiting = asyncio.create_task(second.call("claim_job", job="a", wait_seconds=60))
        async with asyncio.timeout(10):
            while (await first.call("get_job_owner", job="a"))["waiting"] == 0:
                await asyncio.sleep(0.01)
            waiting.cancel()
            while (await first.call("get_job_owner", job="a"))["waiting"] != 0:
                await asyncio.sleep(0.01)
        await first.call("release_job", job="a")
        assert store.status("a") == "free"


async def test_a_connection_that_ends_in_mid_claim_leaves_nothing_behind(store: Store) -> None:
    async with store.agent("agent-7") as first:
        await first.call("claim_job", job="a")
        async with store.agent("agent-8") as second:
            waiting = asyncio.create_task(second.call("claim_job", job="a", wait_seconds=60))
            async with asyncio.timeout(10):
                while (await first.call("get_job_owner", job="a"))["waiting"] == 0:
                    await asyncio.sleep(0.01)
        with pytest.raises(BaseException):  # noqa: B017, PT011 - how the client puts it is the SDK's affair
            await waiting
        assert (await first.call("get_job_owner", job="a"))["waiting"] == 0
        assert [each["owner"] for each in store.sessions()] == ["agent-7"]


async def test_a_claim_granted_to_somebody_who_is_gone_is_let_go(store: Store, backend: ToolBackend) -> None:
    asking = asyncio.create_task(backend.claim("acquire", ["a"]))
    await asyncio.sleep(0)  # it has begun
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await backend.close()
    assert store.status("a") == "free"
    assert store.sessions() == []


async def test_two_calls_for_one_job_at_once_are_one_claim(store: Store, backend: ToolBackend) -> None:
    first = asyncio.create_task(backend.claim("acquire", ["a"]))
    await asyncio.sleep(0)
    with pytest.raises(DibsError, match="Another call of yours is claiming a now"):
        await backend.claim("acquire", ["a"])
    [lease], _ = await first
    [again], _ = await backend.claim("acquire", ["a"])
    assert again.lease_id == lease.lease_id


async def test_a_release_that_got_no_answer_keeps_the_claim_for_another_try(store: Store) -> None:
    class Deaf(ThreadedTransport):
        deaf = False

        async def ask(self, step: Ask, timeout_ms: int, lane: str) -> Reply:
            if self.deaf and step.verb == "release":
                from dibs.base.errors import StoreUnavailable

                return reply_for_error(StoreUnavailable("busy"))
            return await super().ask(step, timeout_ms, lane)

    transport = store.transport(Deaf)
    backend = backend_of(transport, "agent-7")
    await backend.claim("acquire", ["a"])
    transport.deaf = True
    with pytest.raises(DibsError, match="busy"):
        await backend.release("a", None, done=None, result=None, checkpoint=None)
    assert backend.has("a")
    transport.deaf = False
    await backend.release("a", None, done=None, result=None, checkpoint=None)
    assert not backend.has("a")
    assert store.status("a") == "free"
    await backend.close()
    transport.close()


async def test_closing_is_bounded_when_the_store_does_not_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(ThreadedTransport):
        answers = asyncio.Event()

        async def ask(self, step: Ask, timeout_ms: int, lane: str) -> Reply:
            await self.answers.wait()
            return await super().ask(step, timeout_ms, lane)

    monkeypatch.setattr(backends, "CLOSE_SECONDS_MAX", 0.05)
    transport = store.transport(Stuck)
    transport.answers.set()
    backend = backend_of(transport, "agent-7")
    await backend.claim("acquire", ["a"])
    transport.answers.clear()
    async with asyncio.timeout(5):
        await backend.close()
    assert store.status("a") == "held"  # it goes with its TTL
    monkeypatch.undo()
    transport.answers.set()
    await backend.close()
    assert store.status("a") == "free"
    transport.close()


async def test_what_this_connection_has_not_claimed_is_not_proven_by_it(backend: ToolBackend) -> None:
    with pytest.raises(LeaseLost, match="has not claimed it"):
        await backend.heartbeat("a", None)
