"""Action Llama's two lock tools, under the names and arguments its prompts use since 0.27.

`dibs mcp --action-llama` offers them beside dibs' own. The connection is the holder, as the run is in Action Llama, so
neither tool takes a proof. A lock lasts as long as the connection, so `ttl_seconds` is checked and otherwise ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dibs.agents.answers import ToolAnswer, ToolArguments
from dibs.agents.tools import Tool
from dibs.base.errors import LeaseLost, NotClaimed, WouldDeadlock
from dibs.core.limits import TTL_MS_MAX

if TYPE_CHECKING:
    from dibs.agents.backend import ToolBackend

ResourceKey = Annotated[str, Field(description="URI of the resource, such as github://acme/app/issues/42.")]


class AcquireLock(ToolArguments):
    resource_key: ResourceKey
    ttl_seconds: Annotated[
        int | None,
        Field(ge=1, le=TTL_MS_MAX // 1000, description="Not needed: the lock is kept for you."),
    ] = None


class ReleaseLock(ToolArguments):
    resource_key: ResourceKey


class LockAnswer(ToolAnswer):
    ok: Annotated[bool, Field(description="False: do not go on with this resource.")]
    holder: Annotated[str | None, Field(description="Who has it, if somebody else does.")] = None


async def acquire_lock(backend: ToolBackend, asked: AcquireLock) -> LockAnswer:
    key = asked.resource_key
    try:
        await backend.claim("acquire", [key], owner=None)
    except WouldDeadlock as error:
        circle = " → ".join(error.cycle)
        return LockAnswer(ok=False, message=f"Lock not acquired: Deadlock detected: {circle}")
    except NotClaimed as error:
        holder = error.owner
        why = f"Lock held by {holder}" if holder and error.code == "held" else error.details
        return LockAnswer(ok=False, holder=holder, message=f"Lock not acquired: {why}")
    return LockAnswer(ok=True, message=f"Lock acquired on {key}")


async def release_lock(backend: ToolBackend, asked: ReleaseLock) -> LockAnswer:
    try:
        await backend.release(asked.resource_key, None, done=None, result=None, checkpoint=None)
    except LeaseLost as lost:
        return LockAnswer(ok=False, message=f"Could not release lock: {lost.why}")
    return LockAnswer(ok=True, message=f"Lock released on {asked.resource_key}")


TOOLS = (
    Tool(
        "acquire_lock",
        "Acquire a lock",
        "Lock a shared resource (issue, pull request, deployment) before you work on it. If this fails for any "
        "reason, skip that resource: do not wait and do not go on without the lock.",
        AcquireLock,
        AcquireLock,
        LockAnswer,
        acquire_lock,
    ),
    Tool(
        "release_lock",
        "Release a lock",
        "Release a lock that you acquired, when you are through with the resource.",
        ReleaseLock,
        ReleaseLock,
        LockAnswer,
        release_lock,
        destructive=True,
    ),
)
