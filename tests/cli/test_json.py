"""--json: one document, with the same places for its fields in every outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal


def test_who_has_a_job_stands_at_one_place_whether_it_was_claimed_or_looked_at(terminal: Terminal) -> None:
    lease = terminal.claim("a", "--owner", "agent-7")
    for words in (("claim", "a"), ("owner", "a"), ("wait", "a", "--for", "0")):
        document = terminal(*words, "--json").document
        assert document["data"]["owner"] == "agent-7", words
    terminal("release", "a", "--lease", lease, "--done=1h")
    for words in (("claim", "a"), ("owner", "a"), ("wait", "a")):
        document = terminal(*words, "--json").document
        assert document["data"]["done"]["owner"] == "agent-7", words


def test_an_error_says_its_sentence_once(terminal: Terminal) -> None:
    ran = terminal("release", "a", "--lease", "00000000-0000-4000-8000-000000000000", "--json")
    sentence = ran.error["message"]
    assert ran.out.count(sentence) == 1
    assert not {"error", "code", "details"} & set(ran.error["details"])
    assert "data" not in ran.document


def test_a_heartbeat_names_its_job(terminal: Terminal) -> None:
    lease = terminal.claim("a")
    assert terminal("heartbeat", "a", "--lease", lease, "--json").data["name"] == "a"
