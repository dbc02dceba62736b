"""Hooks that are killed, stopped, fed with too much, or run where nothing works: nobody is blocked, and nothing that is
claimed is given to two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.programs import DIBS, WAIT_S_MAX, pause, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.plugins.harness.conftest import AgentProcess, Yard

pytestmark = [pytest.mark.e2e, pytest.mark.full]
KILLS = 25


def started_edit(agent: AgentProcess, file: str) -> subprocess.Popen[bytes]:
    given = {"file_path": str(agent.folder / file)}
    process = subprocess.Popen(
        [*DIBS, "agent", "hook"],
        env=agent.env,
        cwd=agent.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(agent.document("PreToolUse", "Edit", given)).encode())
    process.stdin.close()
    return process


@pytest.mark.promise("agent:guard")
def test_hooks_that_are_killed_at_any_moment_leave_one_owner_and_no_lock(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    for number in range(KILLS):
        victims = [started_edit(agent, "src/a") for agent in (one, two)]
        pause(number * 0.012)  # from before its first line to after its last
        for victim in victims:
            victim.kill()
            victim.wait(WAIT_S_MAX)
    let = [agent for agent in (one, two) if agent.edit("src/a")]
    assert len(let) == 1
    assert all(agent.edit("src/b") is (agent is one) for agent in (one, two))


def test_a_hook_that_stands_still_keeps_no_other_agent_waiting(yard: Yard) -> None:
    """It is stopped while it has the gate of its agent, which its own next hooks wait for, but not for ever."""
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    gates = list((yard.folder.parent / "state").rglob("gate-*"))
    (gate,) = gates
    holder = subprocess.Popen(
        ["python3", "-c", f"import fcntl, time; f = open({str(gate)!r}); fcntl.flock(f, 2); print(flush=True);"
         " time.sleep(600)"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        assert not two.edit("src/a")
        assert two.edit("src/b")
        given = {"file_path": str(yard.folder / "src/c")}
        done = one.send(one.document("PreToolUse", "Edit", given))
        assert done.returncode == 0
        assert "stands still" in done.stderr
    finally:
        holder.kill()
        holder.wait(WAIT_S_MAX)
        holder.stdout.close()
    assert one.edit("src/c")


def test_hooks_that_are_stopped_and_continued_give_a_file_to_one(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    stopped = []
    for number in range(8):
        stopped.append(started_edit(one, "src/a"))
        pause(0.02 * number)
        stopped[-1].send_signal(signal.SIGSTOP)
    other = started_edit(two, "src/a")
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    codes = [process.wait(WAIT_S_MAX) for process in stopped]
    assert set(codes) in ({0}, {2}) or 0 in codes
    second = other.wait(WAIT_S_MAX)
    let = [agent for agent in (one, two) if agent.edit("src/a")]
    assert len(let) == 1
    assert (let == [two]) is (second == 0)


@pytest.mark.parametrize("lines", ["one", "many"])
def test_a_patch_of_five_megabytes_is_read_and_every_file_of_it_claimed(yard: Yard, lines: str) -> None:
    one, two = yard.agent("one-1111", "codex"), yard.agent("two-2222", "codex")
    body = "+" + "x" * 5_000_000 + "\n" if lines == "one" else "+some line of a generated file\n" * 170_000
    patch = f"*** Begin Patch\n*** Add File: src/first\n{body}*** Update File: src/last\n@@\n-x\n+y\n*** End Patch\n"
    assert one.may(one.send(one.document("PreToolUse", "apply_patch", {"command": patch})))
    assert not two.edit("src/first")
    assert not two.edit("src/last")


def test_a_patch_of_many_files_is_claimed_as_a_whole_or_refused_as_a_whole(yard: Yard) -> None:
    one, two = yard.agent("one-1111", "codex"), yard.agent("two-2222", "codex")
    files = "".join([f"*** Add File: src/f{number}\n+x\n" for number in range(300)])
    patch = f"*** Begin Patch\n{files}*** End Patch\n"
    assert two.edit("src/f299")
    assert not one.may(one.send(one.document("PreToolUse", "apply_patch", {"command": patch})))
    two.send(two.document("Stop"))
    assert one.may(one.send(one.document("PreToolUse", "apply_patch", {"command": patch})))
    assert not two.edit("src/f0")
    assert not two.edit("src/f299")


def test_a_session_id_that_is_used_again_is_a_new_agent_after_its_end(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    one.send(one.document("SessionEnd", reason="other"))
    assert two.edit("src/a")
    assert not one.edit("src/a")
    assert one.edit("src/b")


def test_one_session_in_two_processes_at_once_is_one_agent(yard: Yard) -> None:
    processes = [started_edit(yard.agent("one-1111"), f"src/{name}") for name in "abc" * 3]
    assert {process.wait(WAIT_S_MAX) for process in processes} == {0}
    two = yard.agent("two-2222")
    assert not any(two.edit(f"src/{name}") for name in "abc")


@pytest.mark.parametrize("closed", ["<&-", ">&- </dev/null", "2>&- </dev/null", "<&- >&- 2>&-"])
def test_a_hook_without_its_files_refuses_nothing(yard: Yard, closed: str) -> None:
    command = f"{' '.join(DIBS)} agent hook {closed}"
    done = subprocess.run(["sh", "-c", command], env=yard.env, timeout=WAIT_S_MAX, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("requires", [False, True])
def test_without_a_folder_to_write_nothing_is_refused_unless_the_check_is_required(
    yard: Yard, tmp_path: Path, requires: bool
) -> None:
    if requires:
        (yard.folder / ".dibs.toml").write_text("[agent]\nrequire = true\n")
    (tmp_path / "file").write_text("")
    one = yard.agent("one-1111")
    one.env = {**yard.env, "XDG_STATE_HOME": str(tmp_path / "file"), "HOME": str(tmp_path / "file")}
    given = {"file_path": str(yard.folder / "src/a")}
    done = one.send(one.document("PreToolUse", "Edit", given))
    assert done.returncode == (2 if requires else 0)
    assert done.stderr
    assert "Traceback" not in done.stderr
    done = one.send(one.document("PreToolUse", "Bash", {"command": "make; echo > src/a"}))
    assert done.returncode == (2 if requires else 0)


def test_on_a_full_disk_nothing_is_refused_and_the_reason_is_said(yard: Yard, small_disk: Path) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    for agent in (one, two):
        agent.env = {**yard.env, "XDG_STATE_HOME": str(small_disk)}
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 300_000)
    assert one.edit("src/a")
    with open(filler, "ab", buffering=0) as file:
        while os.statvfs(small_disk).f_bavail:
            file.write(b"x" * 4096)
    given = {"file_path": str(yard.folder / "src/b")}
    done = two.send(two.document("PreToolUse", "Edit", given))
    assert done.returncode == 0
    assert "dibs: nothing was claimed" in done.stderr
    filler.unlink()
    assert not two.edit("src/a")
    assert two.edit("src/b")


def test_where_processes_are_hidden_agents_are_kept_apart_all_the_same(
    yard: Yard, need_root: None, need_program: Callable[[str], str]
) -> None:
    process = subprocess.Popen(["sleep", "600"])
    one = yard.agent("one-1111")
    one.env = {**yard.env, "CLAUDE_PID": str(process.pid)}
    assert one.edit("src/a")
    two = yard.agent("two-2222")
    event = json.dumps(two.document("PreToolUse", "Edit", {"file_path": str(yard.folder / "src/a")}))
    script = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    hidden = [need_program("unshare"), "--mount", "sh", "-c", script, "sh", *DIBS, "agent", "hook"]

    def code() -> int:
        done = subprocess.run(
            hidden, env=yard.env, input=event.encode(), timeout=WAIT_S_MAX, check=False, capture_output=True
        )
        return done.returncode

    try:
        assert code() == 2
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)
    wait_until(lambda: code() == 0, "the file is free")
