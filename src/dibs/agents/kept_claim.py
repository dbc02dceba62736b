"""One claim that a connection keeps, and helper functions for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dibs.agents.words import YOU
from dibs.base.errors import InvalidInput, JobHeld
from dibs.client.queueing import Ask
from dibs.sdk.answers import body_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.base.errors import DibsError
    from dibs.client.queueing import Flow
    from dibs.sdk.answers import Lease
    from dibs.sdk.async_claim import AsyncClaim
    from dibs.wire.documents import Reply

T = TypeVar("T")


class KeptClaim:
    """A claim whose block is open. `elsewhere`: the agent had it before, by a command, a hook or another connection."""

    def __init__(self, claim: AsyncClaim, *, elsewhere: bool = False) -> None:
        self.claim = claim
        self.elsewhere = elsewhere
        self.over = asyncio.Event()  # the agent has released it
        self.entered: asyncio.Future[None] = ignore_failure(asyncio.get_running_loop().create_future())
        self.told = False  # the agent was told that it is lost
        self.ending = False  # the agent is releasing it


def holds_of(session_id: str) -> Flow[set[tuple[str, int]]]:
    """What a session holds, by name and fencing token; nothing if it has ended."""
    reply: Reply = yield Ask("session-show", session_id, {})
    if reply.status in (404, 410):
        return set()
    return {(each["name"], each["fencing_token"]) for each in body_of(reply).get("holds", ())}


def kept_active(session_id: str) -> Flow[dict[str, int]]:
    """Renew a session because its agent is at work. Returns the jobs for which somebody began to wait."""
    reply: Reply = yield Ask("session-keep", session_id, {"active": True})
    body = (reply.body or {}) if reply.status < 300 else {}
    return {each["name"]: each["waiting"] for each in body.get("wanted", ())}


def with_time(given: Lease, renewed: Lease) -> Lease:
    return replace(given, remaining_ms=renewed.remaining_ms, expires_at=renewed.expires_at)


def ignore_failure(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """Mark the future's exception as retrieved, because the caller that would await it may be gone."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


async def wait_for_either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(one.wait()), asyncio.ensure_future(other.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def already_claiming(verb: str, names: Sequence[str]) -> DibsError:
    if verb == "acquire":
        return InvalidInput(f"Another call of yours is claiming {names[0]} now: wait for its answer.")
    held = [{"name": name, "status": "held", "owner": YOU} for name in names]
    return JobHeld("You already have, or are claiming, each of these jobs.", {"refused": held})
