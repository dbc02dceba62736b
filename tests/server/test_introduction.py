"""What a server tells a program or an agent that has nothing but its address."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dibs.agents.shipped_files import skill_text
from dibs.compat.octostore.contract import OctoStoreContract
from dibs.server.settings import ServerSettings
from tests.server.harness import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("introduction")) as server:
        yield server


@pytest.mark.fault("F-694")
@pytest.mark.parametrize(
    "accept", [None, "*/*", "application/json", "text/markdown, text/plain;q=0.5", "*/*, text/html;q=0"]
)
def test_who_takes_no_page_is_told_what_this_is(served: Server, accept: str | None) -> None:
    told = served.ask("GET", "/", who=None, headers={} if accept is None else {"Accept": accept})
    assert (told.status, told.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert told.body == served.ask("GET", "/llms.txt", who=None).body
    assert told.body.startswith(b"# dibs\n")
    assert len(told.body) < 1500


@pytest.mark.parametrize("accept", ["text/html", "text/html,application/xhtml+xml,*/*;q=0.8", "TEXT/HTML"])
def test_a_browser_gets_the_page(served: Server, accept: str) -> None:
    page = served.ask("GET", "/", who=None, headers={"Accept": accept})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["vary"] == "accept"  # a cache on the way must not give it to a program


@pytest.mark.fault("F-694")
def test_all_that_it_names_is_there(served: Server) -> None:
    text = served.ask("GET", "/llms.txt", who=None).body.decode()
    for path in re.findall(r"\]\((/[^)]+)\)", text):
        assert served.ask("GET", path, who=None).status == 200, path
    [part] = re.findall(r"`(/openapi\.json\?[^`]+)`", text)
    assert served.ask("GET", part, who=None).json["paths"].keys() == {"/locks/{name}/acquire"}
    listed = {(each.method, each.path) for each in served.api.operations}
    for method, path in re.findall(r"`(GET|POST) (/[^`]+)`", text):
        assert (method, path) in listed


def test_the_skill_is_the_one_of_this_version(served: Server) -> None:
    reply = served.ask("GET", "/SKILL.md", who=None)
    assert reply.headers["content-type"] == "text/markdown; charset=utf-8"
    assert reply.body.decode() == skill_text()
    assert served.ask("HEAD", "/SKILL.md", who=None).body == b""


@pytest.mark.fault("F-694")
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer nobody"}])
def test_a_refusal_for_want_of_a_token_names_it(served: Server, headers: dict[str, str]) -> None:
    for method, path, body in (("GET", "/locks", None), ("POST", "/locks/x/acquire", {}), ("GET", "/whoami", None)):
        refused = served.ask(method, path, body, who=None, headers=headers)
        assert refused.status == 401
        for path in re.findall(r"/[A-Za-z.]+", refused.json["help"]):
            assert served.ask("GET", path, who=None).status == 200


@pytest.mark.fault("F-786")
def test_a_server_in_the_place_of_octostores_has_its_page_and_its_refusals(tmp_path: Path) -> None:
    contract = OctoStoreContract(users=(("alice", "tok-a"),))
    with running(tmp_path, settings=ServerSettings(contract=contract)) as server:
        assert server.ask("GET", "/", who=None).headers["content-type"] == "text/html; charset=utf-8"
        assert "help" not in server.ask("GET", "/locks", who=None).json
        told = server.ask("GET", "/llms.txt", who=None).body
        assert b"another program's rules" in told
        assert b"SKILL.md" not in told  # dibs' own command may only look there
        assert server.ask("GET", "/SKILL.md", who=None).status == 404
