"""Every route is declared, and every declaration is whole."""

from __future__ import annotations

import re
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from dibs.agents.http_endpoint import MCP, McpEndpoint
from dibs.client.replies import REPLIES
from dibs.compat.action_llama.routes import Gateway
from dibs.core.identity import LEAST_ROLE
from dibs.server import app
from dibs.server.http.fast_lane import FastLaneProtocol
from dibs.server.settings import ServerSettings
from dibs.wire.answer_fields import ANSWERS
from dibs.wire.codes import CODES
from dibs.wire.fields import REQUESTS
from dibs.wire.operations import NULL, Operation, codes_of

API = cast("Any", MagicMock(settings=ServerSettings()))
GATEWAY = Gateway(API, 60_000)
OPERATIONS = [operation for operation, _ in (*app.served_table(API), *GATEWAY.routes())] + [MCP]


def titled(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def test_every_served_route_is_declared_once() -> None:
    routes = app.all_routes(API, [GATEWAY], McpEndpoint(API))
    served = [
        f"{method} {route.path.replace(':segment', '')}"
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    ]
    assert sorted(served) == sorted(titled(operation) for operation in OPERATIONS)
    assert len(set(served)) == len(served)


def test_every_request_is_of_an_operation() -> None:
    listed = [operation.id for operation in OPERATIONS if operation.is_listed]
    assert len(set(listed)) == len(listed)
    assert REQUESTS.keys() | REPLIES.keys() | LEAST_ROLE.keys() <= set(listed)


@pytest.mark.parametrize("operation", OPERATIONS, ids=titled)
def test_a_declaration_is_whole(operation: Operation) -> None:
    in_path = [each.name for each in operation.parameters if each.where == "path"]
    assert re.findall(r"\{(\w+)\}", operation.path) == in_path
    assert operation.summary[-1] != "."
    assert all(each.meaning[-1] != "." for each in operation.parameters)
    assert operation.is_open or operation.id in LEAST_ROLE or operation is MCP
    needed = {field for field, kind in REQUESTS.get(operation.id, {}).items() if kind[-1] in "!?"}
    assert needed <= (operation.example or {}).keys(), "an example of its body"
    for answer in operation.answers.values():
        if isinstance(answer, str | tuple):
            assert {answer} if isinstance(answer, str) else set(answer) <= {*ANSWERS, NULL}
    assert {code for codes in codes_of(operation).values() for code in codes} <= CODES.keys()


@pytest.mark.parametrize("operation", OPERATIONS, ids=titled)
def test_the_fast_lane_knows_no_other_address(operation: Operation) -> None:
    """An address that the fast lane takes is the declared one, with the declared verb."""
    lane = FastLaneProtocol.__new__(FastLaneProtocol)
    url = re.sub(r"\{\w+\}", "job", operation.path).encode()
    if lane.route(operation.method.encode(), url):
        assert (lane._verb, lane._raw_name) == (operation.id, b"job" if b"job" in url else b"")
