"""New files whose names have a number: no two agents, in whichever work tree, make one number twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.agents.repository.settings import AgentSettings
from dibs.base.errors import InvalidInput
from tests.programs import dibs_here

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.harness.conftest import AgentProcess, Yard

NUMBERED = """\
[[agent.file]]
match = "migrations/{n}_*.sql"
claim = "migration:{n}"
"""


@pytest.fixture
def numbered(yard: Yard) -> Yard:
    (yard.folder / ".dibs.toml").write_text(NUMBERED)
    (yard.folder / "migrations").mkdir()
    (yard.folder / "migrations/0435_old.sql").write_text("x\n")
    yard.git("add", "-A")
    yard.git("commit", "-q", "-m", "numbers")
    return yard


def refused(agent: AgentProcess, file: str) -> str:
    path = str(agent.folder / file)
    return agent.send(agent.document("PreToolUse", "Write", {"file_path": path, "content": "y"})).stderr


@pytest.mark.promise("agent:number")
def test_the_second_file_with_a_number_is_refused_also_when_the_first_agent_is_gone(
    numbered: Yard, tmp_path: Path
) -> None:
    numbered.git("worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    one, two = numbered.agent("1111-1"), numbered.agent("2222-2", folder=tmp_path / "other")
    assert one.edit("migrations/0436_mine.sql")
    one.send(one.document("SessionEnd", reason="other"))
    told = refused(two, "migrations/0436_yours.sql")
    assert 'number 0436 of "migration" is taken; "claude-1111' in told
    assert "Name the file with 0437" in told
    assert not two.shell("cat > migrations/0436_yours.sql <<EOF\nx\nEOF")
    assert two.edit("migrations/0437_yours.sql")
    assert two.edit("migrations/0437_renamed.sql")  # its own number under another name
    assert "Name the file with 0438" in refused(numbered.agent("3333-3"), "migrations/0437_third.sql")


@pytest.mark.fault("F-771")
def test_no_file_is_numbered_while_the_series_is_closed(numbered: Yard) -> None:
    agent = numbered.agent("1111-1")
    assert dibs_here(numbered.env, numbered.folder, "trust").returncode == 0  # its series is where everybody looks
    close = ("close", "migration", "--for", "5m", "--reason", "the table is rebuilt")
    assert dibs_here(numbered.env, numbered.folder, *close).returncode == 0
    told = refused(agent, "migrations/0436_mine.sql")
    assert 'Not written: number 0436 of "migration" is not given out; closed for another' in told
    assert 'says "the table is rebuilt"' in told


def test_what_is_there_may_be_edited_and_a_number_that_a_file_has_is_used(numbered: Yard) -> None:
    one = numbered.agent("1111-1")
    assert one.edit("migrations/0435_old.sql")
    assert '"migrations/0435_old.sql" has it' in refused(one, "migrations/0435_new.sql")
    assert "Name the file with 0436" in refused(one, "migrations/0435_new.sql")
    assert one.edit("migrations/notes.md")
    assert one.edit("other/0435_x.sql")


def test_a_number_is_given_back_by_the_command_in_the_refusal(numbered: Yard) -> None:
    one, two = numbered.agent("1111-1"), numbered.agent("2222-2")
    assert one.edit("migrations/0436_mine.sql")
    step = refused(two, "migrations/0436_yours.sql").partition("`dibs ")[2].partition("`")[0]
    assert dibs_here(numbered.env, numbered.folder, *step.split()).returncode == 0
    assert two.edit("migrations/0436_yours.sql")


@pytest.mark.parametrize(
    "value", [{"match": "x"}, {"match": "{n}", "claim": "m"}, {"match": "x", "claim": "m:{n}"}, "x", [1], [{}]]
)
def test_a_numbered_file_that_is_not_two_texts_with_a_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="a numbered file is"):
        AgentSettings({"file": value}, "here")
