"""dibs pointed at a server that has OctoStore's contract and is not dibs: it may look, and takes nothing."""

from __future__ import annotations

import io
from typing import Any

import pytest

import dibs
from dibs.base.errors import Unavailable
from dibs.cli.main import run
from dibs.client.http import HttpTransport
from dibs.client.servers import Servers
from dibs.client.transport import Ask
from dibs.client.urls import server_address
from tests.client.scripted import ScriptedServer, reply_of

# As its GET /locks/{name} answers.
HELD = {
    "name": "issue-1",
    "status": "held",
    "holder_id": "0b52c1a7-7a6c-5d5e-8a4b-6f3c9c1f2a10",
    "fencing_token": 41,
    "expires_at": "2126-11-15T02:16:05.123456789Z",
    "metadata": "repo=acme/app",
}
FREE = {**HELD, "status": "free", "holder_id": None, "expires_at": None, "metadata": None}
REFUSED = {
    "error": "Invalid input",
    "code": "invalid_input",
    "details": "The request could not be parsed or is not supported by this endpoint",
    "request_id": "req_0123456789abcdef0123456789abcdef",
}


def typed(server: ScriptedServer, *words: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    code = run([words[0], "--url", server.url, *words[1:]], {"DIBS_TOKEN": "t"}, out, err, None)
    return code, out.getvalue() + err.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ("claim", "issue-1"),
        ("claim-any", "issue-1", "issue-2"),
        ("run", "issue-1", "--", "true"),
        ("release", "issue-1", "--lease", "0b52c1a7-7a6c-5d5e-8a4b-6f3c9c1f2a10"),
    ],
)
def test_nothing_is_sent_there_that_it_would_carry_out(words: tuple[str, ...]) -> None:
    with ScriptedServer([reply_of(415, REFUSED)] * 3) as server:
        code, said = typed(server, *words)
    assert code != 0
    assert "is not a dibs server" in said
    assert "nothing was done there" in said
    # It takes application/json and anything that ends in +json, and refuses the rest with 415.
    for request in server.requests:
        head = request.partition(b"\r\n\r\n")[0].lower()
        assert b"content-type: application/x.dibs" in head


def test_a_dibs_server_with_octostores_rules_is_named_as_one() -> None:
    refused = reply_of(415, REFUSED, "X-Dibs-Store: 0b52c1a7-7a6c-5d5e-8a4b-6f3c9c1f2a10")
    with ScriptedServer([refused] * 3) as server:
        code, said = typed(server, "claim", "issue-1")
    assert code != 0
    assert "--octostore" in said
    assert "nothing was done there" in said


def test_who_holds_a_lock_there_is_told() -> None:
    with ScriptedServer([reply_of(200, HELD)]) as server:
        code, said = typed(server, "owner", "issue-1")
    assert code == 0
    assert HELD["holder_id"] in said  # type: ignore[operator]
    with ScriptedServer([reply_of(200, HELD)]) as server, dibs.Client(server.url, token="t") as client:
        found = client.owner("issue-1").owner
    assert found == HELD["holder_id"]


@pytest.mark.parametrize("document", [HELD, FREE, {**HELD, "expires_at": None}, {**HELD, "expires_at": "soon"}])
def test_a_lock_there_has_every_field_that_dibs_shows(document: dict[str, Any]) -> None:
    with ScriptedServer([reply_of(200, document)] * 2) as server:
        reply = HttpTransport(Servers((server_address(server.url),))).ask(Ask("inspect", "issue-1"))
        code, _ = typed(server, "owner", "issue-1")
    assert reply.status == 200
    assert reply.body is not None
    assert reply.body["owner"] == document["holder_id"]
    assert code == (0 if document["status"] == "held" else 1)


def test_its_list_is_one_page_without_more() -> None:
    page = {"locks": [HELD], "total": 1, "prefix": None}
    with ScriptedServer([reply_of(200, page)] * 8) as server, dibs.Client(server.url, token="t") as client:
        code, said = typed(server, "list")
        found = client.list("issue-")
    assert (code, len(found)) == (0, 1)
    assert "issue-1" in said


def test_waiting_for_a_lock_there_ends_when_it_is_free() -> None:
    with ScriptedServer([reply_of(200, HELD), reply_of(200, FREE)]) as server:
        code, _ = typed(server, "wait", "issue-1", "--for", "20s")
    assert code == 0


def test_the_sdk_raises_and_takes_nothing() -> None:
    with (
        ScriptedServer([reply_of(415, REFUSED)]) as server,
        dibs.Client(server.url, token="t") as client,
        pytest.raises(Unavailable, match="not a dibs server"),
    ):
        client.acquire("issue-1")
