"""Processes as neighbours see them: marks, who descends from whom, and that nobody alive is taken for dead."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.system import table
from dibs.system.processes import ABOUT, LinuxProcesses
from dibs.system.session_mark import (
    VARIABLE,
    guarded_env,
    guarded_mark,
    is_gone,
    lineage,
    marked,
    none_is_left,
    process_mark,
)
from tests.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CANNOT_START = (126, 127)  # what setpriv and the loader answer
NOBODY = "65534"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE) as child:
        yield child


def asked(mark: str, *wrapper: str) -> str:
    """What another process, started by `wrapper`, says of a mark: True when it is gone."""
    script = "import sys; from dibs.system.session_mark import is_gone; print(is_gone(sys.argv[1]))"
    ran = subprocess.run(
        [*wrapper, sys.executable, "-c", script, mark],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if ran.returncode in CANNOT_START:
        pytest.skip(f"another user cannot start this Python: {ran.stderr}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_a_lineage_begins_with_the_process_and_goes_on_with_its_parent() -> None:
    found = lineage(os.getpid())
    assert found[0] == process_mark(os.getpid())
    if os.getppid() > 1:
        assert found[1] == process_mark(os.getppid())
    assert len(set(found)) == len(found)


def test_the_first_process_of_all_is_nobodys_ancestor() -> None:
    assert lineage(1) == [process_mark(1)]
    assert process_mark(1) not in lineage(os.getpid())[1:]
    assert lineage(0) == []


def test_a_process_that_has_ended_has_no_lineage_and_its_mark_is_gone() -> None:
    child = subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE)
    [mark, parent, *_] = lineage(child.pid)
    assert parent == process_mark(os.getpid())
    assert not is_gone(mark)
    child.communicate()
    assert is_gone(mark)
    assert lineage(child.pid) == []
    assert process_mark(child.pid) is None


@pytest.mark.parametrize("has_handles", [True, False])
def test_a_process_that_nobody_has_collected_yet_has_ended(has_handles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_handles:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = subprocess.Popen(["true"])
    mark = process_mark(child.pid)
    wait_until(lambda: is_gone(mark) or mark is None, "it has ended")
    assert process_mark(child.pid) is None
    child.wait()


def test_a_number_that_came_again_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    mark = process_mark(sleeper.pid)
    assert mark is not None
    before, _, started = mark.rpartition(":")
    if started.startswith(ABOUT):
        assert not is_gone(f"{before}:{ABOUT}20010101000000")
    else:
        assert is_gone(f"{before}:{int(started) - 1}")
    assert not is_gone(f"{before}:")  # when it began was not known


@pytest.mark.parametrize("has_handles", [True, False])
def test_a_process_whose_first_thread_ended_while_others_work_is_alive(
    has_handles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import _thread, ctypes, os, sys\n"
        "def work():\n    print('at it', flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
        "_thread.start_new_thread(work, ())\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"  # exit, of one thread
    )
    if not has_handles:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as child:  # type: ignore[call-overload]
        mark = process_mark(child.pid)
        assert child.stdout.readline() == b"at it\n"
        wait_until(
            lambda: (found := LinuxProcesses().entry(child.pid)) and found.has_ended,
            "its first thread has ended",
        )
        assert child.poll() is None
        assert not is_gone(mark)
        assert process_mark(child.pid) == mark
        child.stdin.close()
    assert is_gone(mark)


def test_what_cannot_be_read_is_alive(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    mark = process_mark(sleeper.pid)
    monkeypatch.setattr(type(table()), "entry", lambda self, pid: None)  # as with hidepid=2
    assert not is_gone(mark)
    monkeypatch.setattr(os, "kill", _not_allowed)
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert not is_gone(mark)


def _not_allowed(pid: int, number: int) -> None:
    raise PermissionError


@pytest.mark.parametrize("text", ["", ":", "a:b:c", "::1:1", "guarded:", "guarded:x", "guarded:x:y:z:1:2", "\0"])
def test_a_mark_that_says_nothing_names_nobody_dead(text: str) -> None:
    assert not is_gone(text)


@pytest.mark.parametrize("number", ["0", "-1", "99999999999", "4294967297", "٣", "1 "])
def test_a_mark_with_a_number_that_is_none_names_nobody_dead(number: str) -> None:
    mark = process_mark(os.getpid())
    assert mark is not None
    boot, namespace, *_ = mark.split(":")
    assert not is_gone(f"{boot}:{namespace}:{number}:1") or number == "4294967297"


# Hardened hosts. They need root, as CI has it.


def test_another_user_sees_that_a_process_lives(
    sleeper: subprocess.Popen[bytes], need_root: None, need_program: Callable[[str], str]
) -> None:
    mark = process_mark(sleeper.pid)
    assert mark is not None
    as_nobody = (need_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    assert asked(mark, *as_nobody) == "False"


def test_where_proc_hides_others_processes_they_are_alive_until_they_end(
    sleeper: subprocess.Popen[bytes], need_root: None, need_program: Callable[[str], str]
) -> None:
    mark = process_mark(sleeper.pid)
    assert mark is not None
    hidden = (
        *(need_program("unshare"), "--mount", "sh", "-c"),
        'mount -t proc -o hidepid=2 proc /proc && exec "$@"',
        *("sh", need_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    )
    assert asked(mark, *hidden) == "False"
    sleeper.communicate()
    assert asked(mark, *hidden) == "True"


def test_in_a_namespace_that_shares_the_outer_proc_a_worker_is_seen_for_what_it_is(
    need_root: None, need_program: Callable[[str], str]
) -> None:
    script = (
        "import os, subprocess, sys\n"
        "from dibs.system.session_mark import is_gone, lineage, process_mark\n"
        "child = subprocess.Popen(['sh', '-c', 'read x'], stdin=subprocess.PIPE)\n"
        "mark = process_mark(child.pid)\n"
        "print(mark is not None, is_gone(mark), is_gone(process_mark(os.getpid())), lineage(os.getpid()))\n"
        "child.communicate()\n"
        "print(is_gone(mark))\n"
    )
    unshare = need_program("unshare")
    ran = subprocess.run(
        [unshare, "--fork", "--pid", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "True False False []\nTrue\n", ran.stderr


@pytest.mark.linux("PID namespaces")
def test_a_neighbour_in_another_namespace_says_nothing_about_our_processes(
    need_root: None, need_program: Callable[[str], str]
) -> None:
    child = subprocess.Popen(["true"])
    mark = process_mark(child.pid) or process_mark(os.getpid())
    child.wait()
    assert mark is not None
    assert asked(mark, need_program("unshare"), "--fork", "--pid", "--mount-proc") == "False"


# Commands and everything they started.


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of this machine, as far as the test goes: what else runs here may be anybody's."""
    pids: list[int] = []
    monkeypatch.setattr(type(table()), "pids", lambda self: list(pids))
    return pids


def end_all(token: str) -> bool:
    """Whether nobody was left to be ended."""
    found = marked(token)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not found


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def own_start() -> int:
    found = table().entry(os.getpid())
    assert found is not None
    return int(found.started)


def started(token: str, script: str, **more: object) -> subprocess.Popen[bytes]:
    env = {**os.environ, **guarded_env(os.environ, token)}
    return subprocess.Popen(["sh", "-c", script], env=env, stdin=subprocess.PIPE, **more)  # type: ignore[call-overload,no-any-return]


@pytest.mark.linux("environments of other processes")
def test_a_command_is_there_while_anything_that_it_started_is(only: list[int]) -> None:
    guard = subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE)
    mark = guarded_mark("abc123", [guard.pid])
    # It starts no other program once it has said its number: meanwhile it would have no environment.
    orphaning = "exec 3<&0; setsid sh -c 'echo $$; exec >&-; read x <&3' & exit 0"
    left = started("abc123", orphaning, stdout=subprocess.PIPE)
    assert left.stdout is not None
    assert left.stdin is not None
    orphan = int(left.stdout.readline())
    only += [guard.pid, left.pid, orphan]
    left.wait()
    assert not is_gone(mark)
    guard.communicate()
    assert marked("abc123") == [orphan]
    assert not is_gone(mark)
    os.kill(orphan, signal.SIGKILL)
    wait_until(lambda: is_gone(mark), "the orphan is gone")
    left.stdin.close()
    left.stdout.close()


@pytest.mark.linux("environments of other processes")
def test_a_command_inside_another_is_part_of_both(only: list[int]) -> None:
    outer = started("outer1", f'{VARIABLE}="${VARIABLE} inner1" exec sh -c "read x"')
    only += [os.getpid(), outer.pid]
    wait_until(lambda: marked("inner1"), "the inner one runs")
    assert marked("outer1") == marked("inner1") == [outer.pid]
    assert marked("oute") == []
    outer.communicate()
    wait_until(lambda: none_is_left("outer1", own_start()), "it is gone")


@pytest.mark.linux("environments of other processes")
def test_what_wrote_over_its_environment_may_be_part_of_the_command(only: list[int]) -> None:
    since = own_start()
    words = ["env", "-i", "/bin/sh", "-c", "echo; read x"]
    wiped = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    only += [os.getpid(), wiped.pid]
    assert wiped.stdout is not None
    assert wiped.stdout.readline()  # before, it has no environment for a moment, and may get ours
    assert not environment_of(wiped.pid)
    assert not none_is_left("abc124", since)
    wiped.communicate()
    wait_until(lambda: none_is_left("abc124", since), "it is gone")


@pytest.mark.linux("environments of other processes")
def test_a_process_that_keeps_starting_itself_anew_is_not_overlooked(tmp_path: Path) -> None:
    """Each lives for a moment, and has started the next one before it ends; the last one stays."""
    runner = tmp_path / "runner"
    runner.write_text('[ $1 -gt 0 ] || exec sleep 600\nsetsid sh "$0" $(($1-1)) &\n')
    first = started("abc125", f"exec sh {runner} 200", stdout=subprocess.DEVNULL)
    assert first.stdin is not None
    first.stdin.close()
    first.wait()
    try:
        for _ in range(40):
            assert not none_is_left("abc125", own_start())
    finally:
        wait_until(lambda: end_all("abc125"), "all are gone")


def test_where_processes_are_hidden_a_command_is_never_found_gone(
    need_root: None, need_program: Callable[[str], str]
) -> None:
    guard = subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE)
    mark = guarded_mark("abc126", [guard.pid])
    assert mark is not None
    guard.communicate()
    hidden = (
        *(need_program("unshare"), "--mount", "sh", "-c"),
        'mount -t proc -o hidepid=2 proc /proc && exec "$@"',
        *("sh", need_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    )
    assert asked(mark, *hidden) == "False"
