"""Action Llama's two lock tools, under the names and arguments its prompts use since 0.27.

`dibs mcp --action-llama` offers them beside dibs' own. The connection is the holder, as the run is in Action Llama, so
neither tool takes a proof. A lock lasts as long as the connection, so `ttl_seconds` may be any number, and is ignored.
"""

from __future__ import annotations

from typing import Any

from dibs.agents.mcp.backend import ToolBackend
from dibs.agents.mcp.tool_fields import IGNORED, OF_EVERY, TRUTH, ToolField
from dibs.agents.mcp.tools import tool
from dibs.base.errors import LeaseLost, NotClaimed, WouldDeadlock
from dibs.base.jsontext import Document
from dibs.compat.action_llama.protocol import Rejected, check_key

KEY = ToolField("resource_key", "URI of the resource, such as github://acme/app/issues/42.", always=True)
TTL = ToolField("ttl_seconds", "Not needed: the lock is kept for you.", IGNORED)
LOCK_ANSWER = (
    *OF_EVERY,
    ToolField("ok", "False: do not go on with this resource.", TRUTH, always=True),
    ToolField("holder", "Who has it, if somebody else does."),
)


@tool(
    "Acquire a lock",
    "Lock a shared resource (issue, pull request, deployment) before you work on it. If this fails for any "
    "reason, skip that resource: do not wait and do not go on without the lock.",
    (KEY, TTL),
    LOCK_ANSWER,
)
async def acquire_lock(backend: ToolBackend, asked: Any) -> Document:
    key = asked.resource_key
    try:
        check_key(key)
        await backend.claim("acquire", [key])
    except WouldDeadlock as error:
        circle = " → ".join(error.cycle)
        return {"ok": False, "message": f"Lock not acquired: Deadlock detected: {circle}"}
    except NotClaimed as error:
        holder = error.owner
        why = f"Lock held by {holder}" if holder and error.code == "held" else error.details
        return {"ok": False, "holder": holder, "message": f"Lock not acquired: {why}"}
    except Rejected as rejected:
        return {"ok": False, "message": f"Lock not acquired: {_why(rejected)}"}
    return {"ok": True, "message": f"Lock acquired on {key}"}


@tool(
    "Release a lock",
    "Release a lock that you acquired, when you are through with the resource.",
    (KEY,),
    LOCK_ANSWER,
    destructive=True,
)
async def release_lock(backend: ToolBackend, asked: Any) -> Document:
    key = asked.resource_key
    try:
        check_key(key)
        await backend.release(key, None, done=None, result=None, checkpoint=None)
    except LeaseLost:
        found = await backend.status(key)
        holder = found.owner if found.held else None
        why = f"held by {holder}" if holder else "lock not found"
        return {"ok": False, "holder": holder, "message": f"Could not release lock: {why}"}
    except Rejected as rejected:
        return {"ok": False, "message": f"Could not release lock: {_why(rejected)}"}
    return {"ok": True, "message": f"Lock released on {key}"}


def _why(rejected: Rejected) -> str:
    return f"{rejected.body['error']}. {rejected.body['reason']}"


TOOLS = (acquire_lock, release_lock)
