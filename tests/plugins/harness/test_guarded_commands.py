"""Commands that a repository guards: one worker at a time runs them, and what they were claimed as ends with them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.git.guarded_commands import jobs_of
from dibs.agents.harness.shell_lines import simple_commands
from dibs.agents.repository.settings import AgentSettings
from dibs.base.errors import InvalidInput
from tests.programs import DIBS, WAIT_S_MAX, dibs_here

if TYPE_CHECKING:
    from tests.plugins.harness.conftest import AgentProcess, Yard

GUARDED = """\
[[agent.command]]
match = "git push"
claim = "branch:{branch}"

[[agent.command]]
match = "make test"
claim = "test-gate"
"""


@pytest.fixture
def guarded(yard: Yard) -> Yard:
    (yard.folder / ".dibs.toml").write_text(GUARDED)
    return yard


def ended(agent: AgentProcess, command: str) -> None:
    agent.tell("PostToolUse", tool_name="Bash", tool_input={"command": command})


def taken(yard: Yard) -> set[str]:
    ran = subprocess.run(
        [*DIBS, "list", "--quiet"],
        cwd=yard.folder,
        env=yard.env,
        capture_output=True,
        timeout=WAIT_S_MAX,
        text=True,
        check=False,
    )
    return set(ran.stdout.split())


@pytest.mark.promise("agent:command")
def test_one_agent_at_a_time_runs_a_guarded_command_and_others_stay_free(guarded: Yard) -> None:
    one, two = guarded.agent("one-1111"), guarded.agent("two-2222")
    assert one.shell("git push origin main")
    assert not two.shell("cd /tmp; git push")
    assert two.shell("git status && git pushed")
    assert two.shell("make test")
    assert not one.shell("CI=1 time make -j2 test")
    ended(one, "git push origin main")
    assert two.shell("git push")


def test_a_refusal_names_the_holder_and_a_step_that_the_agent_can_take(guarded: Yard) -> None:
    guarded.agent("3f2a77c0-1").shell("git push")
    two = guarded.agent("9b01cdef-2")
    done = two.send(two.document("PreToolUse", "Bash", {"command": "git push"}))
    assert done.returncode == 2
    assert '"branch:main": "claude-3f2a' in done.stderr
    step = done.stderr.partition("`dibs wait ")[2].partition("`")[0]
    waited = subprocess.run(
        [*DIBS, "wait", *step.replace("5m", "0s").split()],
        cwd=guarded.folder,
        env=guarded.env,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert waited.returncode == 1


def test_an_agent_is_not_in_its_own_way(guarded: Yard) -> None:
    one = guarded.agent("one-1111")
    assert one.shell("make test")
    assert one.shell("make test")
    assert one.shell("git push && make test")
    ended(one, "make test")
    assert taken(guarded) == {"branch:main"}


@pytest.mark.fault("F-457")
@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_refused_command_takes_nothing_from_one_that_runs(guarded: Yard, is_trusted: bool) -> None:
    """Where the repository is trusted, its branch and its job are claimed at two places, one after the other."""
    if is_trusted:
        assert dibs_here(guarded.env, guarded.folder, "trust").returncode == 0
    one, two = guarded.agent("one-1111"), guarded.agent("two-2222")
    assert two.shell("make test")
    assert one.shell("git push origin main")
    assert not one.shell("git push origin main && make test")  # beside it, as agents that run several at once do
    assert not two.shell("git push")
    ended(one, "git push origin main")
    assert not one.shell("git push && make test")  # what it got before it was refused is free again
    assert two.shell("git push")


def test_what_a_command_left_behind_ends_when_its_agent_stops(guarded: Yard) -> None:
    one = guarded.agent("one-1111")
    assert one.shell("git checkout -b other && git push")
    guarded.git("checkout", "-q", "-b", "other")
    ended(one, "git checkout -b other && git push")
    assert taken(guarded) == {"branch:main"}
    one.send(one.document("Stop"))
    assert taken(guarded) == set()


@pytest.mark.parametrize("harness", ["codex", "gemini", "copilot", "cursor"])
def test_each_harness_says_when_the_command_is_over(guarded: Yard, harness: str) -> None:
    one, two = guarded.agent("one-1111", harness), guarded.agent("two-2222", harness)
    assert one.shell("make test")
    assert not two.shell("make test")
    given: dict[str, Any] = {"command": "make test"}
    document = {
        "codex": lambda: one.document("PostToolUse", "Bash", given),
        "gemini": lambda: one.document("AfterTool", "run_shell_command", given),
        "copilot": lambda: one.document("postToolUse", "bash", given, toolResult={"resultType": "success"}),
        "cursor": lambda: one.document("afterShellExecution", command="make test"),
    }[harness]()
    assert one.send(document).returncode == 0
    assert two.shell("make test")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("git push", [["git", "push"]]),
        ("a && b x;c|d & e", [["a"], ["b", "x"], ["c"], ["d"], ["e"]]),
        ("A=1 sudo env B=2 git push\nls", [["git", "push"], ["ls"]]),
        ("if x; then git push; fi", [["x"], ["git", "push"]]),
        ("while ! git push; do x; done", [["git", "push"], ["x"]]),
        ("timeout 60 git push", [["git", "push"]]),
        ("git commit -F - <<'EOF'\ngit pull\nEOF\ngit push", [["git", "commit", "-F", "-"], ["git", "push"]]),
        ("cat <<-A <<B\nx\n\tA\ny\nB\ngit push", [["cat"], ["git", "push"]]),
        ("cat <<E\nnever ends\ngit push", [["cat"]]),
        ("echo 'git push; x'", [["echo", "git push; x"]]),
        ("cat <<E\ngit push\nE", [["cat"]]),
        ("git push $(x y)", [["x", "y"], ["git", "push", "$"]]),
        ("echo 'never ends; git push", [["echo", "'never", "ends"], ["git", "push"]]),
    ],
)
def test_the_simple_commands_of_a_line_are_told_apart(command: str, found: list[list[str]]) -> None:
    assert simple_commands(command) == found


@pytest.mark.parametrize(
    "value", [{"match": "x"}, [{"match": "x", "claim": ""}], [{"match": "x", "claim": "y", "run": "z"}], "x", [1]]
)
def test_a_guard_that_is_not_two_texts_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="a guarded command is"):
        AgentSettings({"command": value}, "here")


MATCHES = (
    *("git push", "git commit", "git merge", "git worktree add", "npm publish", "make test", "kubectl apply"),
    *("pkill -f", "killall", "terraform apply", "docker push"),
)


def lines_of(name: str) -> list[str]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines()[1:] if line]


def typed(line: str) -> str:
    """A line of a table as it is typed. In front of a quote, `\\n` is the shell's own."""
    return re.sub(r"\\n(?!['\"])", "\n", line).replace("\\t", "\t")


def found_in(command: str) -> set[str]:
    settings = AgentSettings({"command": [{"match": each, "claim": each} for each in MATCHES]}, "here")
    return set(jobs_of(settings, simple_commands(command), "main"))


@pytest.mark.fault("F-295")
@pytest.mark.fault("F-570")
@pytest.mark.parametrize("line", lines_of("forms.txt"))
def test_a_guarded_command_is_seen_in_the_forms_that_people_type(line: str) -> None:
    match, _, command = line.partition(" | ")
    assert match in found_in(typed(command))


@pytest.mark.fault("F-571")
@pytest.mark.parametrize("line", lines_of("mentions.txt"))
def test_a_command_that_only_mentions_what_is_guarded_is_not_stopped(line: str) -> None:
    assert found_in(typed(line)) == set()


def test_the_table_of_mentions_is_long_enough_to_mean_something() -> None:
    assert len(set(lines_of("mentions.txt"))) >= 200


@pytest.mark.fault("F-641")
@pytest.mark.promise("effect:doubt-told")
def test_an_agent_whose_command_takes_a_job_over_is_told_which_steps_are_in_doubt(guarded: Yard) -> None:
    def dibs(*words: str) -> str:
        ran = subprocess.run(
            [*DIBS, *words], cwd=guarded.folder, env=guarded.env, capture_output=True, timeout=WAIT_S_MAX, check=False
        )
        return ran.stdout.decode()

    dibs("trust")  # its jobs are where everybody looks
    dibs("claim", "test-gate", "--actor", "worker")
    dibs("once", "test-gate", "report", "--actor", "worker", "--", "sh", "-c", "kill -9 $$")
    dibs("release", "test-gate", "--actor", "worker", "--failed")
    one = guarded.agent("one-1111")
    done = one.send(one.document("PreToolUse", "Bash", {"command": "make test"}))
    said = str(done)
    assert re.search(r"test-gate.* \(dibs\): in doubt: .*report.*, begun .* by .*worker.*exit 137", said), said
    assert "Look whether it happened before you go on." in said
    done = one.send(one.document("PreToolUse", "Bash", {"command": "make test"}))
    assert "in doubt" in str(done)  # until somebody says
