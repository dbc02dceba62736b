"""Every route is declared, and every declaration is whole."""

from __future__ import annotations

import re
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from dibs.agents.mcp.http_endpoint import MCP
from dibs.client.requests import VERBS
from dibs.compat.action_llama.routes import Gateway
from dibs.core.caller_rights import LEAST_ROLE
from dibs.server import http_server
from dibs.server.http.response import answer_for_error
from dibs.server.routes.table import Router
from dibs.server.settings import ServerSettings
from dibs.wire.answer_fields import ANSWERS
from dibs.wire.codes import CODES, OUTCOMES, STATUSES_OF_NO
from dibs.wire.fields import REQUESTS
from dibs.wire.operations import NULL, Operation, codes_of

API = cast("Any", MagicMock(settings=ServerSettings()))
GATEWAY = Gateway(API, 60_000)
OPERATIONS = [operation for operation, _ in (*http_server.served_table(API), *GATEWAY.routes())]


def documents_of(operation: Operation, least: int = 0) -> set[str]:
    """The names of its answers, from this status on."""
    given = [answer for status, answer in operation.answers.items() if status >= least]
    names = [(each,) if isinstance(each, str) else each for each in given if isinstance(each, str | tuple)]
    return {name for each in names for name in each}


def titled(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def test_every_served_route_is_declared_once() -> None:
    http_server.build_router(API, [GATEWAY])
    served = [titled(operation) for operation in API.operations]
    assert sorted(served) == sorted(titled(operation) for operation in OPERATIONS)
    assert len(set(served)) == len(served)


def test_every_request_is_of_an_operation() -> None:
    listed = [operation.id for operation in OPERATIONS if operation.is_listed]
    assert len(set(listed)) == len(listed)
    assert REQUESTS.keys() | VERBS.keys() | LEAST_ROLE.keys() <= set(listed)


def test_clients_ask_by_the_methods_and_paths_that_are_declared() -> None:
    declared = {each.id: (each.method, re.sub(r"\{\w+\}", "{}", each.path)) for each in OPERATIONS if each.is_listed}
    assert {verb: declared[verb] for verb in VERBS} == {verb: route[:2] for verb, route in VERBS.items()}


@pytest.mark.fault("F-771")
@pytest.mark.fault("F-772")
def test_clients_know_which_answers_of_which_operations_say_no() -> None:
    words = {row.word for row in OUTCOMES.values() if row.kind is not None} - CODES.keys()
    for each in OPERATIONS:
        declared = (documents_of(each) & words) | documents_of(each, 400)
        known = STATUSES_OF_NO.get(each.id, frozenset())
        assert declared <= known, each.id
        assert declared == known or "refused" in documents_of(each), each.id  # that has the status of its jobs


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
def test_every_address_leads_to_its_operation(operation: Operation) -> None:
    router = Router([(each, lambda call: None) for each in OPERATIONS], answer_for_error)
    path = re.sub(r"\{\w+\}", "job", operation.path).encode()
    route, name = router.find(operation.method.encode(), path)
    assert route is not None
    assert (route.verb, name) == (operation.id, b"job" if "{" in operation.path else b"")
