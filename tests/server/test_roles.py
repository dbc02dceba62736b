"""Who may ask what: every route and every MCP tool, by every role, held to the one table in `core/caller_rights.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pytest

from dibs.agents.mcp.http_endpoint import MCP
from dibs.agents.mcp.tools import TOOLS
from dibs.compat.action_llama.routes import Gateway
from dibs.core.caller_rights import AGENT, LEAST_ROLE, ROLES, VIEWER, may
from dibs.server import http_server
from dibs.server.settings import ServerSettings
from dibs.wire.fields import REQUESTS
from tests.server.harness import UNKNOWN_LEASE, running
from tests.server.test_mcp import agent as mcp_agent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.harness import Server

TTL_MS = 60_000
OWN = {"token-rotate-own"}  # would replace the tokens of these tests
BODIES: dict[str, dict[str, Any]] = {
    "acquire-any": {"names": ["roles"]},
    "acquire-all": {"names": ["roles"]},
    "renew": {"lease_id": UNKNOWN_LEASE},
    "release": {"lease_id": UNKNOWN_LEASE},
    "leave": {"ticket": "1.x"},
    "withdraw": {"request_key": "k", "names": ["job"]},
    "transfer": {"lease_id": UNKNOWN_LEASE, "to_owner": "somebody"},
    "break": {"reason": "stuck"},
    "acl": {"acl": None},
    "pool": {"slots": 2},
    "give-back": {"number": 1},
    "close": {"for_seconds": 60, "reason": "stop"},
    "run-open": {"holder": "dev-1"},
    "token-create": {"name": "somebody"},
    "webhook-create": {"url": "https://127.0.0.1/"},
    "campaign": {"candidate_id": "somebody"},
    "election-renew": {"leader_token": "A" * 43},
    "resign": {"leader_token": "A" * 43},
}


def operations() -> list[tuple[str, str, str]]:
    """Method, path and verb of every operation that wants a token."""
    table = [
        *http_server.served_table(cast("Any", MagicMock(settings=ServerSettings()))),
        *Gateway(cast("Any", MagicMock()), TTL_MS).routes(),
    ]
    return sorted(
        (each.method, each.path, each.id)
        for each, _ in table
        if not each.is_open and each.is_listed and each.id not in OWN and each is not MCP  # its tools ask the others
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("roles"), gateway_ttl_ms=TTL_MS) as server:
        yield server


def test_every_verb_of_a_request_has_its_row_in_the_table() -> None:
    assert REQUESTS.keys() - {"login"} <= LEAST_ROLE.keys()
    assert {verb for _, _, verb in operations()} == LEAST_ROLE.keys() - OWN


@pytest.mark.promise("roles")
@pytest.mark.parametrize(("method", "path", "verb"), operations(), ids=str)
@pytest.mark.parametrize("role", ROLES)
def test_a_route_is_for_the_roles_of_its_row_and_no_other(
    served: Server, method: str, path: str, verb: str, role: str
) -> None:
    name = UNKNOWN_LEASE if path.startswith("/sessions") else "roles"
    body = None if method in ("GET", "DELETE") else BODIES.get(verb, {})
    method = "HEAD" if path.endswith("/watch") else method  # a stream would not end
    path = path.replace("{name}", name).replace("{id}", name)
    reply = served.ask(method, path, body, who=role)
    refused = reply.status == 403 and f"role is {role}" in reply.body.decode()
    looks_only = reply.status == 403 and "look and change nothing" in reply.body.decode()
    assert (refused or looks_only) is not may(role, verb), (reply.status, reply.body)
    assert served.ask(method, path, body, who=None).status == 401


@pytest.mark.promise("roles")
@pytest.mark.anyio
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
async def test_an_mcp_tool_that_changes_something_is_not_for_viewers(served: Server, tool: Any) -> None:
    arguments: dict[str, Any] = {
        "job": "mcp-roles",
        "jobs": ["mcp-roles"],
        "to_owner": "x",
        "wait_seconds": 0,
    }
    if not tool.renews_loose:
        arguments["lease_id"] = UNKNOWN_LEASE
    takes = {field.name for field in tool.takes}
    given = {field: value for field, value in arguments.items() if field in takes}
    for role in (VIEWER, AGENT):
        async with mcp_agent(served, role) as client:
            result = await client.client.call_tool(tool.name, given)
        answer = str(result.content)
        assert ("look and change nothing" in answer) is (role == VIEWER and not tool.reads), (role, answer)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
