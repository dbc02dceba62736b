"""The events of one session of each harness, played into `dibs agent hook`.

Those of Claude Code 2.1.325, Codex 0.166.0, Gemini CLI 0.61.0 and Copilot CLI 1.0.102 have the fields that these
programs sent, also when they resumed a session (`resumed.jsonl`). What was not seen (compaction, notebooks, the fields
of PostToolUseFailure), and all of Cursor and Windsurf, is as documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.harness.agent_identity import HARNESSES

if TYPE_CHECKING:
    from tests.plugins.harness.conftest import AgentProcess, Yard

STREAMS = Path(__file__).parent / "streams"

# The end of a turn and of a session: the same code for every harness, behind its own event names. Two with different
# ones are played in every run.
TURNS = [
    pytest.param(name, marks=() if name in ("claude", "gemini") else pytest.mark.slow)
    for name in HARNESSES
    if name != "windsurf"
]


def steps(harness: str, agent: AgentProcess) -> list[dict[str, Any]]:
    text = (STREAMS / f"{harness}.jsonl").read_text()
    for placeholder, value in (("$CWD", str(agent.folder)), ("$SESSION", agent.session)):
        text = text.replace(placeholder, value)
    return [json.loads(line) for line in text.splitlines()]


def play(agent: AgentProcess, step: dict[str, Any]) -> bool:
    """Send the event as the installed hook does, and do what the harness would do then. Whether it was let."""
    done = agent.send(step["event"], "--client", agent.harness)
    let = agent.may(done)
    if "tells" in step:
        assert step["tells"] in done.stdout
    if let and "writes" in step:
        (agent.folder / step["writes"]).write_text(f"by {agent.session}\n")
    return let


@pytest.mark.promise("agent:guard")
@pytest.mark.parametrize("harness", HARNESSES)
def test_a_session_alone_is_never_refused(yard: Yard, harness: str) -> None:
    one = yard.agent("alone-1111", harness)
    for step in steps(harness, one):
        assert play(one, step), step


@pytest.mark.promise("agent:guard")
@pytest.mark.parametrize("harness", HARNESSES)
def test_a_second_session_of_the_same_kind_writes_nothing_that_the_first_has(yard: Yard, harness: str) -> None:
    one, two = yard.agent("one-1111", harness), yard.agent("two-2222", harness)
    mine = steps(harness, one)
    last_edit = max(place for place, step in enumerate(mine) if "writes" in step)
    for step in mine[: last_edit + 1]:
        assert play(one, step), step
    for step in steps(harness, two):
        if "tells" not in step:
            assert play(two, step) is ("writes" not in step and "names" not in step), step
    written = [yard.folder / step["writes"] for step in mine if "writes" in step]
    assert {file.read_text() for file in written} == {"by one-1111\n"}


@pytest.mark.parametrize("harness", TURNS)
def test_what_a_session_committed_is_free_after_its_turn(yard: Yard, harness: str) -> None:
    one, two = yard.agent("one-1111", harness), yard.agent("two-2222", harness)
    mine = steps(harness, one)
    for step in mine[:-2]:  # the last two are the end of the turn, and of the session
        play(one, step)
    yard.git("add", "-A")
    yard.git("commit", "-q", "-m", "done")
    play(one, mine[-2])
    for step in steps(harness, two):
        assert play(two, step), step


@pytest.mark.parametrize("harness", TURNS)
def test_the_end_of_a_session_frees_what_it_left_changed(yard: Yard, harness: str) -> None:
    one, two = yard.agent("one-1111", harness), yard.agent("two-2222", harness)
    for step in steps(harness, one):
        play(one, step)
    assert two.edit("src/a")


@pytest.mark.parametrize("harness", ["claude", "codex", "gemini", "copilot"])
def test_a_session_that_its_harness_resumes_has_its_unfinished_files_again(yard: Yard, harness: str) -> None:
    one, two = yard.agent("one-1111", harness), yard.agent("two-2222", harness)
    assert one.edit("src/a")
    (yard.folder / "src/a").write_text("half of it\n")
    play(one, steps(harness, one)[-1])  # the end of its session
    text = (STREAMS / "resumed.jsonl").read_text().replace("$CWD", str(yard.folder)).replace("$SESSION", one.session)
    (event,) = [each["event"] for line in text.splitlines() if (each := json.loads(line))["harness"] == harness]
    done = one.send(event, "--client", harness)
    assert "claimed again" in done.stdout, done
    assert not two.edit("src/a")
