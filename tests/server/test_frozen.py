"""Every route there is, asked of a store that is frozen to be moved, and of one whose import is not complete: nobody is
told that anything was changed, or that something is not there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pytest

from dibs.compat.action_llama.routes import Gateway
from dibs.core.commands import Freeze, Thaw
from dibs.engine.coordinator import run_one
from dibs.server import http_server
from dibs.server.settings import ServerSettings
from tests.server.harness import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.wire.operations import Operation
    from tests.server.harness import Server

API = cast("Any", MagicMock(settings=ServerSettings()))
OPERATIONS = [operation for operation, _ in (*http_server.served_table(API), *Gateway(API, 60_000).routes())]
ID = "df5857f9-d9e5-b365-6232-094043c5c5bc"
# These tell nothing of the store's jobs, sessions, tokens and webhooks, or just how it is. Nobody can register here.
ABOUT_SERVER = {
    *("activity", "dashboard", "dashboard-file", "election-open", "health", "healthz", "llms-txt", "login", "logout"),
    *("metrics", "metrics-prometheus", "openapi-json", "openapi-yaml", "proof", "ready", "readyz", "register"),
    *("skill", "status", "timeseries", "whoami"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("frozen"), gateway_ttl_ms=60_000) as server:
        yield server


def titled(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def target(operation: Operation) -> str:
    path = re.sub(r"\{(\w+)\}", lambda part: ID if part[1] == "id" else "job-1", operation.path)
    return f"{path}?secret={ID}" if operation.path.endswith("/locks/list") else path


def records_of(server: Server) -> list[tuple[str, str]]:
    return [(each[0], repr(each[1])) for each in server.store.scan("", "", 1_000)]


@pytest.mark.promise("move:whole")
@pytest.mark.parametrize("incomplete", [False, True])
@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.id not in ABOUT_SERVER], ids=titled)
def test_no_route_tells_what_is_not_so(served: Server, operation: Operation, incomplete: bool) -> None:
    if operation.id.endswith("watch") and not incomplete:
        pytest.skip("a look that does not end")
    run_one(served.store, Freeze(id="move", over=None, incomplete=incomplete))
    try:
        before, last = records_of(served), served.store.newest_seq()
        reply = served.ask(operation.method, target(operation), operation.example, who="admin")
        if incomplete:  # or the ask is wrong, whatever the store has
            assert reply.status in (503, 400, 406, 409, 501), reply.json
        elif operation.method != "GET":
            assert reply.status >= 400, reply.json
        assert (records_of(served), served.store.newest_seq()) == (before, last)
    finally:
        run_one(served.store, Thaw(id="move"))
