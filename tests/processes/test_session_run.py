"""session run: what happens to the child, to the session and to its jobs, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dibs.system.session_mark import process_mark
from tests.client.scripted import ScriptedServer, reply_of
from tests.processes.machine import Machine, finished, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.promise("session")]

CLAIM = "$DIBS claim job -q >/dev/null && echo ready"
TTL_SECONDS = 60


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def run_sh(machine: Machine, script: str, *flags: str) -> tuple[int, str]:
    return machine.run("session", "run", *flags, "--", "/bin/sh", "-c", script)


def test_inside_names_are_enough_and_the_childs_code_is_passed_on(machine: Machine) -> None:
    script = "$DIBS claim job && $DIBS heartbeat job -q && $DIBS owner job -q && exit 7"
    code, out = run_sh(machine, script, "--owner", "agent-7", "--namespace", "acme")
    assert code == 7
    assert out.startswith("Claimed job until the session ends, as agent-7.\n")
    assert out.endswith("agent-7\n")
    assert machine.run("owner", "job", "--namespace", "acme")[0] == 1
    assert machine.run("session", "list")[1] == "No session is open.\n"


def test_the_child_has_our_input_and_its_own_words(machine: Machine) -> None:
    program = "import sys; print(sys.argv[1:], sys.stdin.read())"
    words = ("session", "run", "--", sys.executable, "-c", program, "$HOME", "--json", "a b", "*")
    child = machine.start(*words, stdin=-1)
    out, _ = child.communicate("typed", timeout=50)
    assert out == "['$HOME', '--json', 'a b', '*'] typed\n"


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("/no/such/program", 127, "there is no such command"),
        ("", 127, "there is no such command"),
        ("{folder}", 126, "permission denied"),
        ("{folder}/file", 126, "permission denied"),
    ],
)
def test_a_command_that_cannot_be_started_is_reported_and_leaves_no_session(
    machine: Machine, tmp_path: Path, word: str, code: int, says: str
) -> None:
    (tmp_path / "file").touch(mode=0o644)
    ran = machine.run("session", "run", "--", word.format(folder=tmp_path))
    assert ran[0] == code
    assert says in ran[1]
    assert machine.run("session", "list")[1] == "No session is open.\n"


def test_json_comes_after_what_the_command_printed(machine: Machine) -> None:
    code, out = run_sh(machine, "echo hello; exit 3", "--json")
    hello, document = out.splitlines()
    assert (code, hello) == (3, "hello")
    assert '"ok": false' in document
    assert '"code": "exited"' in document


def test_a_child_that_is_killed_gives_128_and_the_signal_and_its_jobs_are_free(machine: Machine) -> None:
    child = machine.start("session", "run", "--", "/bin/sh", "-c", f"{CLAIM}; kill -9 $$")
    assert first_line(child) == "ready"
    assert finished(child)[0] == 137
    assert machine.look("job")["status"] == "free"


@pytest.mark.promise("attempts")
def test_a_command_that_fails_leaves_the_count_of_attempts_as_it_was(machine: Machine) -> None:
    assert run_sh(machine, f"{CLAIM}; exec $DIBS release job --failed")[0] == 0
    assert run_sh(machine, f"{CLAIM}; exit 1")[0] == 1
    assert run_sh(machine, "$DIBS claim job --json")[1].count('"attempt": 2') == 2  # its own, and the one before


@pytest.mark.promise("attempts")
def test_a_run_that_succeeds_begins_the_count_anew_after_one_that_failed(machine: Machine) -> None:
    assert machine.run("run", "job", "--", "/bin/sh", "-c", "exit 1")[0] == 1
    assert machine.run("run", "job", "--", "/bin/sh", "-c", "test $DIBS_ATTEMPT = 2")[0] == 0
    assert machine.run("run", "job", "--", "/bin/sh", "-c", "test $DIBS_ATTEMPT = 1")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_the_childs(machine: Machine, number: int) -> None:
    script = f"trap 'echo caught; exit 5' {number}; echo ready; while :; do sleep 0.05; done"
    child = machine.start("session", "run", "--", "/bin/sh", "-c", script)
    assert first_line(child) == "ready"
    child.send_signal(number)
    assert finished(child) == (5, "caught\n")


def test_a_neighbour_sees_that_the_wrapper_was_killed_and_need_not_wait(machine: Machine) -> None:
    began = time.monotonic()
    child = machine.start("session", "run", "--", "/bin/sh", "-c", f"{CLAIM}; exec sleep 600")
    assert first_line(child) == "ready"
    assert machine.run("claim", "job")[0] == 1
    child.kill()
    finished(child)  # also: the command's output has ended, so it went down with the wrapper
    assert machine.run("claim", "job", "--owner", "next")[0] == 0
    assert time.monotonic() - began < TTL_SECONDS / 2
    assert machine.look("job")["owner"] == "next"


def test_a_waiter_gets_the_job_of_a_killed_wrapper_too(machine: Machine) -> None:
    child = machine.start("session", "run", "--", "/bin/sh", "-c", f"{CLAIM}; exec sleep 600")
    assert first_line(child) == "ready"
    waiter = machine.start("claim", "job", "-q", "--wait", "50s")
    machine.until(lambda: machine.look("job").get("waiting") == 1)
    child.kill()
    child.wait(50)
    assert finished(waiter)[0] == 0


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_lost_session_stops_the_whole_group_and_exits_with_20(machine: Machine, stubborn: bool) -> None:
    trap = "trap '' TERM;" if stubborn else ""
    script = f"{trap} {CLAIM}; echo $DIBS_SESSION; sleep 600 & echo $!; wait; sleep 600"
    words = ("--ttl", "10s", "--", "/bin/sh", "-c", script)
    child = machine.start("session", "run", *words)
    assert first_line(child) == "ready"
    session, grandchild = first_line(child), int(first_line(child))
    assert machine.run("session", "end", session)[0] == 0
    out, err = child.communicate(timeout=50)
    assert (child.returncode, out) == (20, "")
    assert "The session was lost (This session ended" in err
    assert process_mark(grandchild) is None


@pytest.mark.promise("loss:told")
def test_a_server_that_is_gone_is_a_lost_session_before_its_ttl_is_over(machine: Machine) -> None:
    opened = {"session_id": "00000000-0000-4000-8000-000000000000", "owner": "o", "remaining_ms": 10_000}
    with ScriptedServer([reply_of(201, opened | {"ttl_seconds": 10})]) as server:
        began = time.monotonic()
        script = 'echo "$DIBS_URL $DIBS_SESSION"; exec sleep 600'
        child = machine.start("--url", server.url, "session", "run", "--", "/bin/sh", "-c", script)
        assert first_line(child) == f"{server.url} {opened['session_id']}"
        _, err = child.communicate(timeout=50)
    assert child.returncode == 20
    assert "The session was lost (No server answers" in err
    assert "expires within 10s" in err
    assert time.monotonic() - began < 10


def test_no_session_no_command(machine: Machine) -> None:
    code, out = machine.run("--url", "http://127.0.0.1:1", "session", "run", "--", "echo", "ran")
    assert code == 69
    assert "ran" not in out


def test_at_a_terminal_the_command_reads_the_keyboard_and_has_ctrl_c(machine: Machine) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; read x; echo got $x; while :; do sleep 0.05; done"
    words = [sys.executable, "-m", "dibs", "session", "run", "--", "/bin/sh", "-c", script]
    spawn = f"import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({words!r})))"
    with subprocess.Popen(
        [sys.executable, "-c", spawn], env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def read_until(word: bytes) -> None:
            seen = b""
            while word not in seen:
                some = os.read(child.stdout.fileno(), 1000)  # type: ignore[union-attr]
                assert some, seen
                seen += some

        read_until(b"ready")
        child.stdin.write(b"words\n")
        child.stdin.flush()
        read_until(b"got words")
        child.stdin.write(b"\x03")
        child.stdin.flush()
        read_until(b"caught")
        assert child.wait(50) == 9
