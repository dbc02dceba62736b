"""A hook that refuses says why, and the step that it prints works: it is taken here, and then the agent may go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dibs.agents.harness import session_finder
from tests.programs import dibs_here

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.plugins.harness.conftest import AgentProcess, Yard

GUARDED = '[[agent.command]]\nmatch = "kubectl apply"\nclaim = "deploy:prod"\n'
FILE = "path:src/a"


@pytest.fixture(autouse=True)
def _typed_by_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process: whose they are must not depend on who started the tests."""
    monkeypatch.setattr(session_finder, "_above_shell", lambda: 0)


def dibs(yard: Yard, *words: str, agent: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command as a person types it, or an agent in its shell."""
    env = {**yard.env, "CLAUDE_CODE_SESSION_ID": agent} if agent else yard.env
    return dibs_here(env, folder or yard.folder, *words)


def refusal(agent: AgentProcess, tool: str = "Edit") -> str:
    given = {"command": "kubectl apply -f x"} if tool == "Bash" else {"file_path": str(agent.folder / "src/a")}
    done = agent.send(agent.document("PreToolUse", tool, given))
    assert done.returncode == 2, done
    return done.stderr


def steps(text: str) -> list[list[str]]:
    """The commands that a refusal names, but for the one that only looks."""
    return [words.split() for words in re.findall(r"`dibs ([^`]+)`", text) if words != "list"]


@pytest.fixture
def trusted(yard: Yard) -> Yard:
    (yard.folder / ".dibs.toml").write_text(GUARDED)
    assert dibs(yard, "trust").returncode == 0
    return yard


@pytest.mark.fault("F-290")
@pytest.mark.parametrize("ending", [("--done",), ("--failed", "--retry-after", "1h")])
def test_a_file_cannot_be_closed_to_agents_by_releasing_it_as_done(yard: Yard, ending: tuple[str, ...]) -> None:
    assert dibs(yard, "claim", FILE, "--actor", "x").returncode == 0
    refused = dibs(yard, "release", FILE, "--actor", "x", *ending)
    assert refused.returncode == 64
    assert dibs(yard, "release", FILE, "--actor", "x").returncode == 0
    assert yard.agent("one-1111").edit("src/a")


@pytest.mark.fault("F-291")
def test_a_guarded_job_is_where_the_users_commands_look_for_it(trusted: Yard, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for words in (("init", "-q", str(other)), ("-C", str(other), "remote", "add", "origin", "https://h.example/o.git")):
        trusted.git(*words)
    (other / ".dibs.toml").write_text(GUARDED)
    assert dibs(trusted, "trust", folder=other).returncode == 0
    one, two = trusted.agent("one-1111"), trusted.agent("two-2222", folder=other)
    assert one.shell("kubectl apply -f x")
    assert not two.shell("kubectl apply -f x")
    for folder in (trusted.folder, other, tmp_path):
        assert "deploy:prod" in dibs(trusted, "list", folder=folder).stdout
        assert dibs(trusted, "owner", "deploy:prod", folder=folder).returncode == 0
        assert dibs(trusted, "claim", "deploy:prod", "--actor", "ci", folder=folder).returncode == 1
    one.tell("PostToolUse", tool_name="Bash", tool_input={"command": "kubectl apply -f x"})
    assert dibs(trusted, "claim", "deploy:prod", "--actor", "ci").returncode == 0
    assert not one.shell("kubectl apply -f x")
    assert not two.shell("kubectl apply -f x")
    dibs(trusted, "release", "deploy:prod", "--actor", "ci")
    assert two.shell("kubectl apply -f x")


@pytest.mark.fault("F-291")
def test_a_guarded_job_of_a_repository_that_nobody_trusts_is_its_own_and_the_step_names_where(yard: Yard) -> None:
    (yard.folder / ".dibs.toml").write_text(GUARDED)
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.shell("kubectl apply -f x")
    assert dibs(yard, "claim", "deploy:prod", "--actor", "ci").returncode == 0
    (step,) = steps(refusal(two, "Bash"))
    assert step[:2] == ["wait", "deploy:prod"]
    assert dibs(yard, *["0s" if word == "5m" else word for word in step], agent="two-2222").returncode == 1
    one.send(one.document("Stop"))
    assert dibs(yard, *step, agent="two-2222").returncode == 0
    assert two.shell("kubectl apply -f x")


def test_a_guarded_job_has_its_one_name(trusted: Yard) -> None:
    written = '[[agent.command]]\nmatch = "make a"\nclaim = "path:./src//"\n'
    (trusted.folder / ".dibs.toml").write_text(written + '[[agent.command]]\nmatch = "make b"\nclaim = "acme/app#7"\n')
    one, two = trusted.agent("one-1111"), trusted.agent("two-2222")
    assert one.shell("make a && make b")
    assert not two.shell("make a")
    assert not two.shell("make b")
    assert dibs(trusted, "owner", "path:src").returncode == 0
    assert dibs(trusted, "owner", "https://github.com/acme/app/issues/7").returncode == 0


@pytest.mark.fault("F-292")
def test_a_file_that_another_has_is_waited_for(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    text = refusal(two)
    assert text.startswith("Not written: another worker is changing this file.")
    (step,) = steps(text)
    one.send(one.document("SessionEnd"))
    assert dibs(yard, *step, agent="two-2222").returncode == 0
    assert two.edit("src/a")


@pytest.mark.fault("F-660")
def test_a_file_that_another_has_in_this_work_tree_alone_is_waited_for(yard: Yard, tmp_path: Path) -> None:
    other = tmp_path / "other"
    yard.git("worktree", "add", "-q", str(other))
    one = yard.agent("one-1111")
    two, three = yard.agent("two-2222", folder=other), yard.agent("three-3333", folder=other)
    assert one.edit("src/a")
    assert two.edit("src/a"), "one in another work tree has it for everybody"
    one.send(one.document("SessionEnd"))
    (step,) = steps(refusal(three))
    now = ["0s" if word == "5m" else word for word in step]
    waited = dibs(yard, *now, agent="three-3333", folder=other)
    assert waited.returncode == 1
    assert "claude-2222 in other@other has path:src/a " in waited.stdout
    assert "claude-2222 in other@other has path:src/a " in dibs(yard, "owner", "src/a", folder=other).stdout
    assert dibs(yard, *now, agent="two-2222", folder=other).returncode == 0, "it is its own"
    assert dibs(yard, *now).returncode == 0, "nobody has it in the first work tree"
    two.send(two.document("SessionEnd"))
    assert dibs(yard, *step, agent="three-3333", folder=other).returncode == 0
    assert three.edit("src/a")


@pytest.mark.fault("F-292")
def test_a_file_that_the_agent_claimed_by_another_name_of_its_own_is_released_by_that_name(yard: Yard) -> None:
    assert dibs(yard, "claim", FILE, "--actor", "me-too", agent="one-1111").returncode == 0
    one = yard.agent("one-1111")
    text = refusal(one)
    assert '"me-too"' in text
    (step,) = steps(text)
    assert step == ["release", FILE, "--actor", "me-too"]
    assert dibs(yard, *step, agent="one-1111").returncode == 0
    assert one.edit("src/a")


@pytest.mark.fault("F-363")
@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_guarded_job_that_the_agent_claimed_by_another_name_of_its_own_is_released_by_that_name(
    yard: Yard, is_trusted: bool
) -> None:
    (yard.folder / ".dibs.toml").write_text(GUARDED)
    where: tuple[str, ...] = ()
    if is_trusted:
        assert dibs(yard, "trust").returncode == 0
    else:
        found = dibs(yard, "hook", "status").stdout
        where = ("--namespace", found.partition("Namespace: ")[2].split()[0])
    assert dibs(yard, "claim", "deploy:prod", "--actor", "me-too", *where, agent="one-1111").returncode == 0
    one = yard.agent("one-1111")
    (step,) = steps(refusal(one, "Bash"))
    assert step == ["release", "deploy:prod", "--actor", "me-too", *where]
    assert dibs(yard, *step, agent="one-1111").returncode == 0
    assert one.shell("kubectl apply -f x")


def test_a_name_that_others_chose_is_no_command_line(yard: Yard) -> None:
    dibs(yard, "claim", FILE, "--actor", "x; rm -rf ~")
    assert steps(refusal(yard.agent("one-1111"))) == [["release"]]


@pytest.mark.fault("F-292")
def test_a_file_that_rests_after_a_loss_is_tried_again_later(yard: Yard) -> None:
    dibs(yard, "claim", FILE, "--actor", "x", "--lock-delay", "1s")
    dibs(yard, "break", FILE, "--reason", "gone")
    one = yard.agent("one-1111")
    text = refusal(one)
    assert text.startswith("Not written: dibs lets nobody change this file now.")
    assert "its last owner was lost and may still write" in text
    assert "try again in " in text
    assert "another worker" not in text
    assert dibs(yard, "claim", FILE, "--wait", "10s", "--actor", "y").returncode == 0  # it waits as long
    assert dibs(yard, "release", FILE, "--actor", "y").returncode == 0
    assert one.edit("src/a")


@pytest.mark.fault("F-292")
def test_a_file_that_an_operator_closed_is_said_to_be_closed_and_by_whom(yard: Yard) -> None:
    dibs(yard, "close", "path:src", "--for", "1h", "--reason", "release `rm -rf`")
    one = yard.agent("one-1111")
    text = refusal(one)
    assert re.search(r"closed for another (59m|1h)", text)  # 1h: within 50 ms
    assert '"release' in text
    assert "tell the person you work for." in text
    assert steps(text.replace("`rm -rf`", "")) == []
    dibs(yard, "open", "path:src")
    assert one.edit("src/a")


@pytest.mark.fault("F-293")
def test_two_agents_that_want_each_others_file_are_both_refused(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    assert two.edit("src/b")
    assert not one.edit("src/b")
    text = refusal(two)
    assert "wants one that you have" in text
    assert '"src/a": "claude-1111 in app@main" (for ' in text
    two.send(two.document("Stop"))
    assert one.edit("src/b")


@pytest.mark.fault("F-293")
def test_two_agents_in_two_work_trees_that_want_each_others_file_are_only_warned(yard: Yard, tmp_path: Path) -> None:
    yard.git("worktree", "add", "-q", str(tmp_path / "tree"))
    one, two = yard.agent("one-1111"), yard.agent("two-2222", folder=tmp_path / "tree")
    assert one.edit("src/a")
    assert two.edit("src/b")
    assert one.edit("src/b")
    done = two.send(two.document("PreToolUse", "Edit", {"file_path": str(two.folder / "src/a")}))
    assert done.returncode == 0
    assert "claude-1111" in done.stdout
    assert "in another checkout" in done.stdout


@pytest.mark.fault("F-292")
def test_a_guarded_job_that_is_done_can_be_made_to_run_again(trusted: Yard) -> None:
    dibs(trusted, "run", "deploy:prod", "--done", "--", "true")
    one = trusted.agent("one-1111")
    text = refusal(one, "Bash")
    assert "done already, by " in text
    claim, release = steps(text)
    for step in (claim, release):
        assert dibs(trusted, *step, agent="one-1111").returncode == 0
    assert one.shell("kubectl apply -f x")


@pytest.mark.fault("F-292")
@pytest.mark.parametrize("words", [("--retry-after", "1h"), ("--max-attempts", "1")])
def test_a_guarded_job_that_rests_or_is_parked_is_said_to_be_so(trusted: Yard, words: tuple[str, ...]) -> None:
    dibs(trusted, "run", "deploy:prod", *words, "--", "false")
    one = trusted.agent("one-1111")
    text = refusal(one, "Bash")
    is_parked = words[0] == "--max-attempts"
    assert ("parked after" if is_parked else "because its last owner failed") in text
    step = steps(text)[0] if is_parked else ["free", "deploy:prod"]
    assert dibs(trusted, *step).returncode == 0
    assert one.shell("kubectl apply -f x")


@pytest.mark.fault("F-294")
def test_what_became_the_parents_file_is_waited_for_no_longer(yard: Yard) -> None:
    """A shell of a subagent is its agent's: `dibs wait` must not wait for the agent itself."""
    main = yard.agent("one-1111")
    assert main.edit("src/a")
    ran = dibs(yard, "wait", FILE, "--for", "1s", agent="one-1111")
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, f"{FILE} is yours.")
    assert dibs(yard, "wait", FILE, "--for", "0s", agent="two-2222").returncode == 1
    assert dibs(yard, "wait", FILE, "--for", "0s").returncode == 1
