"""dibs run: a claim around a command. What it is given, what its exit code means, and what is left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from dibs.base.clock import steady_ms
from dibs.cli.supervise import process_session
from dibs.cli.supervise.process_session import CheckpointFile
from dibs.client.transport import Ask
from dibs.system.session_mark import process_mark
from tests.processes.machine import SETSID, Machine, finished, first_line
from tests.programs import WAIT_S_MAX
from tests.stalls import is_in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def run_sh(machine: Machine, script: str, *flags: str) -> tuple[int, str]:
    return machine.run("run", "job", *flags, "--", "/bin/sh", "-c", script)


def type_and_read(child: subprocess.Popen[bytes], typed: bytes, answer: bytes) -> None:
    """At a terminal: type something, and read until it was answered."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(typed)
    child.stdin.flush()
    seen = b""
    while answer not in seen:
        ready = select.select([child.stdout], [], [], 20)[0]
        some = os.read(child.stdout.fileno(), 1000) if ready else b""
        assert some, seen
        seen += some


@pytest.mark.quick
def test_the_job_is_held_while_the_command_runs_and_free_afterwards(machine: Machine) -> None:
    code, out = run_sh(machine, "$DIBS owner job -q; exit 7", "--owner", "agent-7")
    assert (code, out) == (7, "agent-7\n")
    assert machine.look("job")["status"] == "free"
    assert machine.run("session", "list")[1] == "No session is open.\n"


@pytest.mark.quick
def test_the_command_is_told_what_it_holds_and_may_speak_for_it_by_name(machine: Machine) -> None:
    machine.env |= {"DIBS_LEASE": "of-somebody", "DIBS_CHECKPOINT": "of-somebody"}
    script = (
        'echo "$DIBS_JOB $DIBS_FENCING_TOKEN $DIBS_ATTEMPT $DIBS_OWNER [$DIBS_LEASE$DIBS_CHECKPOINT]"; '
        "$DIBS heartbeat job --checkpoint 'page 3' -q; kill -9 $$"
    )
    assert run_sh(machine, script, "--owner", "a") == (137, "job 1 1 a []\n")
    code, out = run_sh(machine, 'echo "$DIBS_CHECKPOINT, $DIBS_PREVIOUS_OWNER, $DIBS_PREVIOUS_END"')
    assert (code, out) == (0, "page 3, a, failed\n")


def test_the_deadline_is_a_time_before_the_claim_could_be_given_away(machine: Machine) -> None:
    program = "import os, time; print(int(os.environ['DIBS_DEADLINE_MS']) / 1000 - time.time())"
    code, out = machine.run("run", "job", "--ttl", "40s", "--", sys.executable, "-c", program)
    assert code == 0
    assert 0 < float(out) <= 40 - 5.5


def test_who_comes_second_is_told_who_has_it_and_runs_nothing(machine: Machine) -> None:
    machine.run("claim", "job", "--owner", "agent-7")
    child = machine.start("run", "job", "--", "echo", "ran")
    out, err = child.communicate(timeout=50)
    assert (child.returncode, out) == (1, "")
    assert err.startswith("dibs: Held: agent-7 has job for another ")
    assert machine.run("run", "job", "-q", "--", "echo", "ran") == (1, "")
    assert machine.run("run", "-n", "-E", "9", "-q", "job", "--", "echo", "ran") == (9, "")
    assert machine.run("run", "-w", "1", "-E", "9", "-q", "job", "--", "echo", "ran") == (9, "")
    code, out = machine.run("run", "job", "--json", "--", "echo", "ran")
    assert code == 1
    assert '"code": "held"' in out
    assert machine.run("session", "list")[1] == "No session is open.\n"


def test_two_may_share_and_a_third_alone_may_not(machine: Machine) -> None:
    code, out = run_sh(machine, "$DIBS run -s job -- echo both; $DIBS run -q job -- echo alone", "-s")
    assert (code, out) == (1, "both\n")


def test_in_line_the_session_stays_alive_and_the_turn_comes(machine: Machine) -> None:
    lease = machine.run("claim", "job", "-q", "--ttl", "1m")[1].strip()
    child = machine.start("run", "job", "-w", "1m", "--ttl", "10s", "--", "echo", "ran")
    machine.until(lambda: machine.look("job").get("waiting") == 1)
    (session,) = machine.transport.ask(Ask("sessions")).body["sessions"]  # type: ignore[index]
    first = session["expires_at"]
    machine.until(lambda: machine.transport.ask(Ask("sessions")).body["sessions"][0]["expires_at"] != first)  # type: ignore[index]
    assert machine.run("release", "job", "--lease", lease)[0] == 0
    assert finished(child) == (0, "ran\n")


@pytest.mark.quick
def test_only_a_command_that_succeeds_marks_the_job_as_done(machine: Machine) -> None:
    assert run_sh(machine, "exit 3", "--done=1h") == (3, "")
    assert run_sh(machine, "exit 0", "--done=1h", "--result", "PR 77") == (0, "")
    code, out = run_sh(machine, "echo ran", "--done=1h")
    assert code == 4
    assert "PR 77" in out
    assert "ran" not in out


@pytest.mark.promise("overdue")
def test_a_command_that_succeeds_is_a_success_of_the_job_and_one_that_fails_is_none(machine: Machine) -> None:
    assert run_sh(machine, "exit 0")[0] == 0
    assert run_sh(machine, "exit 1")[0] == 1
    code, out = machine.run("overdue", "job")
    assert (code, out.partition(" succeeded ")[0]) == (0, "In time: job")


def test_a_script_may_let_the_job_go_itself_and_go_on(machine: Machine) -> None:
    code, out = run_sh(machine, "$DIBS release job -q; $DIBS owner job -q; echo on", "--ttl", "10s")
    assert (code, out) == (0, "on\n")


def test_notes_are_the_checkpoint_and_the_next_run_elsewhere_starts_with_them(machine: Machine, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    flags = ("--checkpoint-file", str(here))
    assert run_sh(machine, 'printf "page 3\\n" > "$DIBS_CHECKPOINT_FILE"; exit 1', *flags) == (1, "")
    assert run_sh(machine, 'cat "$DIBS_CHECKPOINT_FILE"', "--checkpoint-file", str(there)) == (0, "page 3")
    there.write_text("mine")
    assert run_sh(machine, 'cat "$DIBS_CHECKPOINT_FILE"', "--checkpoint-file", str(there)) == (0, "mine")
    code, out = run_sh(machine, "head -c 5000 /dev/zero > $DIBS_CHECKPOINT_FILE", *flags)
    assert code == 0
    assert "longer than 4096 bytes" in out


def test_notes_go_out_while_the_command_runs(machine: Machine, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    child = machine.start("run", "job", "--ttl", "10s", "--checkpoint-file", str(notes), "--", "cat", stdin=-1)
    machine.until(lambda: machine.look("job").get("owner") is not None)
    notes.write_text("half way")
    machine.until(lambda: machine.look("job").get("checkpoint") == "half way")
    child.communicate("", timeout=50)
    assert child.returncode == 0


def test_notes_that_cannot_be_written_stop_it_before_it_begins(machine: Machine) -> None:
    run_sh(machine, "$DIBS heartbeat job --checkpoint x -q")
    code, out = run_sh(machine, "echo ran", "--checkpoint-file", "/proc/no-such-file")
    assert code == 64
    assert "cannot be written" in out
    assert "ran\n" not in out


@pytest.mark.fault("F-334")
@pytest.mark.parametrize("kind", ["folder", "pipe", "below nothing"])
def test_a_checkpoint_file_that_can_be_none_is_refused_before_anything_is_claimed(
    machine: Machine, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "notes"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = path / "file"
    code, out = run_sh(machine, "echo ran", "--checkpoint-file", str(path))
    assert (code, "ran\n" in out) == (64, False)
    assert str(path) in out
    assert machine.look("job").get("previous") is None


@pytest.mark.fault("F-334")
def test_a_checkpoint_file_that_becomes_a_pipe_stops_neither_renewals_nor_the_end(
    machine: Machine, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    script = "mkfifo $DIBS_CHECKPOINT_FILE; echo up; exec sleep 600"
    words = ("run", "job", "--ttl", "3s", "--checkpoint-file", str(notes), "--", "/bin/sh", "-c", script)
    child = machine.start(*words, stderr=subprocess.STDOUT)
    assert first_line(child) == "up"
    (session,) = machine.transport.ask(Ask("sessions")).body["sessions"]  # type: ignore[index]
    first = session["expires_at"]
    machine.until(lambda: machine.transport.ask(Ask("sessions")).body["sessions"][0]["expires_at"] != first)  # type: ignore[index]
    child.terminate()
    code, out = finished(child)
    assert code == 143
    assert "notes was not sent as the checkpoint: it is no ordinary file" in out
    assert machine.look("job")["status"] == "free"


@pytest.mark.fault("F-334")
def test_a_file_system_that_hangs_stops_only_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung, real = threading.Event(), os.open

    def hangs(path: str, *how: int) -> int:
        hung.wait(WAIT_S_MAX)
        return real(path, *how)

    path = tmp_path / "notes"
    path.write_text("page 3")
    notes = CheckpointFile(str(path))
    monkeypatch.setattr(os, "open", hangs)
    began_s = monotonic()
    assert [notes.news(1), notes.news(1)] == [None, None]
    assert is_in_time(began_s, 1)
    assert notes.trouble == "its file system does not answer"
    path.write_text("page 4")
    hung.set()
    assert notes.last_news() == "page 4"
    assert not notes.trouble
    notes.sent("page 4")
    assert notes.news(50_000) is None
    hung.clear()
    assert notes.news(1) is None
    hung.set()
    assert notes.last_news() is None
    assert not notes.trouble  # what the file has was sent


@pytest.mark.fault("F-372")
def test_where_no_thread_can_be_started_only_the_checkpoint_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes"
    path.write_text("page 3")
    notes = CheckpointFile(str(path))
    with monkeypatch.context() as patched:
        patched.setattr(process_session, "start_new_thread", Mock(side_effect=RuntimeError("can't start new thread")))
        assert notes.news() is None
        assert notes.last_news() is None
        assert notes.trouble == "no thread can be started to read it"
    assert notes.news(50_000) == "page 3"
    assert notes.trouble is None


@pytest.mark.fault("F-335")
def test_the_newest_checkpoint_counts_wherever_it_was_noted(machine: Machine, tmp_path: Path) -> None:
    flags = ("--checkpoint-file", str(tmp_path / "notes"))
    beat = "$DIBS heartbeat job -q --checkpoint"
    assert run_sh(machine, f"echo file > $DIBS_CHECKPOINT_FILE; {beat} beat; exit 1", *flags)[0] == 1
    assert machine.look("job")["previous"]["checkpoint"] == "beat"
    assert run_sh(machine, f"{beat} beat-2; echo file-2 > $DIBS_CHECKPOINT_FILE; exit 1", *flags)[0] == 1
    assert machine.look("job")["previous"]["checkpoint"] == "file-2"
    assert run_sh(machine, f"$DIBS claim other -q; {beat.replace('job', 'other')} theirs; exit 1", *flags)[0] == 1
    assert (tmp_path / "notes").read_text() == "file-2\n"


def test_input_and_words_are_the_commands(machine: Machine) -> None:
    program = "import sys; print(sys.argv[1:], sys.stdin.read())"
    words = ("run", "job", "--", sys.executable, "-c", program, "$HOME", "--json", "a b", "--", "*")
    child = machine.start(*words, stdin=-1)
    out, _ = child.communicate("typed", timeout=50)
    assert out == "['$HOME', '--json', 'a b', '--', '*'] typed\n"


def test_what_others_gave_us_open_the_command_has_open_too(machine: Machine) -> None:
    reading, writing = os.pipe()
    child = machine.start("run", "job", "--", "/bin/sh", "-c", f"echo hi >/dev/fd/{writing}", pass_fds=[writing])
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read() == "hi\n"  # and it ends: nobody else keeps it open
    assert finished(child)[0] == 0


def test_without_input_and_output_it_runs_all_the_same(machine: Machine, tmp_path: Path) -> None:
    script = f"$DIBS run job -- sh -c 'ls -l /proc/$$/fd > {tmp_path}/open' <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", script], env=machine.env, timeout=50, check=False)
    assert done.returncode == 0
    assert "dibs" not in (tmp_path / "open").read_text()
    assert machine.look("job")["status"] == "free"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_the_commands(machine: Machine, number: int) -> None:
    script = f"trap 'echo caught; exit 5' {number}; echo ready; while :; do sleep 0.05; done"
    child = machine.start("run", "job", "--", "/bin/sh", "-c", script)
    assert first_line(child) == "ready"
    child.send_signal(number)
    assert finished(child) == (5, "caught\n")


def test_signals_have_their_usual_meaning_inside_and_nohup_is_kept(machine: Machine) -> None:
    script = "trap '' HUP; exec $DIBS run job -- grep -E '^Sig(Ign|Blk)' /proc/self/status"
    child = subprocess.run(
        ["/bin/sh", "-c", script], env=machine.env, capture_output=True, text=True, timeout=50, check=True
    )
    masks = dict(line.split(":\t") for line in child.stdout.splitlines())
    assert int(masks["SigBlk"], 16) == 0
    internal = 1 << 32 - 1 | 1 << 33 - 1  # the C library's own, which posix_spawn sets to be ignored
    assert int(masks["SigIgn"], 16) & ~internal == 1 << signal.SIGHUP - 1


def test_what_it_leaves_running_ends_with_it_unless_that_is_wanted(machine: Machine) -> None:
    script = f"{SETSID}sleep 600 </dev/null >/dev/null 2>&1 & echo $!"
    code, out = run_sh(machine, script)
    assert code == 0
    assert process_mark(int(out)) is None
    code, out = run_sh(machine, script, "--leave-children")
    assert process_mark(int(out)) is not None
    os.kill(int(out), signal.SIGKILL)


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("/no/such/program", 127, "there is no such command"),
        ("no-such-program", 127, "there is no such command"),
        ("", 127, "there is no such command"),
        ("{folder}", 126, "permission denied"),
    ],
)
def test_a_command_that_cannot_be_started_is_reported_and_leaves_nothing(
    machine: Machine, tmp_path: Path, word: str, code: int, says: str
) -> None:
    ran = machine.run("run", "job", "--done=1h", "--", word.format(folder=tmp_path))
    assert ran[0] == code
    assert says in ran[1]
    assert machine.look("job")["status"] == "free"


def test_json_comes_after_what_the_command_printed(machine: Machine) -> None:
    code, out = run_sh(machine, "echo hello", "--json")
    hello, document = out.splitlines()
    assert (code, hello) == (0, "hello")
    assert '"fencing_token": 1' in document


def test_at_a_terminal_ctrl_c_is_the_commands_and_so_is_the_keyboard(machine: Machine) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; read x; echo got $x; while :; do sleep 0.05; done"
    words = [sys.executable, "-m", "dibs", "run", "job", "--", "/bin/sh", "-c", script]
    spawn = f"import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({words!r})))"
    with subprocess.Popen(
        [sys.executable, "-c", spawn], env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        for typed, answer in ((b"", b"ready"), (b"words\n", b"got words"), (b"\x03", b"caught")):
            type_and_read(child, typed, answer)
        assert child.wait(50) == 9
    assert machine.look("job")["status"] == "free"


@pytest.mark.fault("F-789")
@pytest.mark.parametrize(
    ("flags", "code"), [(("--done=1h",), 0), (("--max-attempts", "1"), 1)], ids=["exits with 0", "fails"]
)
def test_ctrl_c_at_a_terminal_makes_no_end_of_work_whatever_the_command_then_exits_with(
    flags: tuple[str, ...], code: int, machine: Machine
) -> None:
    script = f"trap 'exit {code}' INT; echo ready; while :; do sleep 0.05; done"
    words = [sys.executable, "-m", "dibs", "run", "job", *flags, "--", "/bin/sh", "-c", script]
    spawn = f"import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({words!r})))"
    with subprocess.Popen(
        [sys.executable, "-c", spawn], env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        type_and_read(child, b"", b"ready")
        type_and_read(child, b"\x03", b"^C")
        assert child.wait(50) == code
    found = machine.look("job")
    assert (found["status"], found.get("failures", 0)) == ("free", 0)


def test_at_a_terminal_ctrl_z_stops_both_and_fg_goes_on(machine: Machine, need_program: Callable[[str], str]) -> None:
    bash = need_program("bash")
    # The terminal shows what is typed, too: what is waited for is typed otherwise than it is printed.
    program = f"""{sys.executable} -m dibs run job -- sh -c 'echo re"a"dy; read x; echo got-$x'\n"""
    spawn = f"import pty; pty.spawn([{bash!r}, '--norc', '--noediting', '-i'])"
    steps = (
        (program.encode(), b"ready"),
        (b"\x1a", b"Stopped"),
        (b"fg\n", b"sh -c"),
        (b"words\n", b"got-words"),
    )
    with subprocess.Popen(
        [sys.executable, "-c", spawn], env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            for typed, answer in steps:
                type_and_read(child, typed, answer)
        finally:
            child.kill()  # the terminal hangs up on the shell


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "job", "--kill-after", "20s", "--ttl", "30s", "--", "true"), "Use --ttl 33s or more"),
        (("run", "job", "--kill-after", "25h", "--", "true"), "the most is 1d"),
        (("run", "job", "--kill-after", "23h", "--", "true"), "Choose less: a TTL is at most 1d"),
        (("run", "job", "--ttl", "500ms", "--", "true"), "a session lives from 1s to 1d"),
        (("run", "job", "--ttl", "3s", "--kill-after", "2s", "--", "true"), "Use --ttl 6s or more"),
        (("run", "job", "-n", "-w", "5", "--", "true"), "--no-wait or --wait"),
        (("run", "job", "-E", "300", "--", "true"), "from 0 to 255"),
        (("run", "job", "--result", "x", "--", "true"), "--result needs --done"),
        (("run", "job"), "run needs COMMAND after --"),
        (("run", "--", "true"), "run needs JOB before --"),
        (("run", "job", "sleep", "5"), "dibs run job -- sleep."),
        (("run", "--", "-odd"), "run needs JOB before --"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_begun(
    terminal: Terminal, words: tuple[str, ...], says: str
) -> None:
    ran = terminal(*words)
    assert ran.exit == 64
    assert says in ran.err
    assert terminal.store.events(0, 10) == []


def test_a_name_that_begins_with_a_dash_stands_between_two_of_them(machine: Machine) -> None:
    assert machine.run("run", "--", "-odd", "--", "/bin/sh", "-c", "echo $DIBS_JOB") == (0, "-odd\n")


@pytest.mark.parametrize(
    "inner",
    [
        "$DIBS run job --wait 20s -- echo ran",
        "$DIBS hold job --wait 20s",
        "$DIBS session run -- $DIBS claim job --wait 20s",
        "$DIBS session run -- $DIBS claim-all other job --wait 20s",
        "$DIBS run other -- $DIBS run job --wait 20s -- echo ran",
    ],
)
@pytest.mark.promise("deadlock")
def test_a_wait_for_a_job_of_the_run_around_it_is_refused(inner: str, machine: Machine) -> None:
    code, out = machine.run("run", "job", "--", "sh", "-c", f"exec {inner}")
    assert code == 3
    assert "held by the `dibs run` around this command" in out


def test_a_wait_inside_a_run_for_the_same_name_in_another_namespace_goes_on(machine: Machine) -> None:
    inner = "exec $DIBS run job --namespace other --wait 5s -- echo ran"
    assert machine.run("run", "job", "--", "sh", "-c", inner) == (0, "ran\n")
    assert machine.run("run", "job", "--namespace", "other", "--", "sh", "-c", inner)[0] == 3


def test_a_wait_inside_a_run_for_what_somebody_else_has_goes_on(machine: Machine) -> None:
    assert machine.run("run", "job", "--", "sh", "-c", "$DIBS claim job --wait 5s")[0] == 0
    inner = "exec $DIBS run path:src/b --wait 5s -- echo ran"
    assert machine.run("run", "path:src/a", "--", "sh", "-c", inner) == (0, "ran\n")
    assert machine.run("run", "path:src", "--", "sh", "-c", inner)[0] == 3
    assert machine.run(
        "run",
        "path:src",
        "--namespace",
        "other",
        "--",
        "sh",
        "-c",
        "$DIBS run path:src --namespace third --wait 5s -- echo ran",
    ) == (0, "ran\n")
    assert machine.run("run", "job", "--shared", "--", "sh", "-c", "$DIBS run job -s --wait 5s -- echo ran")[0] == 0


def test_what_was_done_already_has_the_exit_code_that_is_wanted(machine: Machine) -> None:
    assert machine.run("run", "job", "-q", "--done=1h", "--", "true")[0] == 0
    assert machine.run("run", "job", "-q", "--", "echo", "ran") == (4, "")
    assert machine.run("run", "job", "-q", "--done-exit-code", "0", "-E", "9", "--", "echo", "ran") == (0, "")
    assert machine.run("run", "job", "--done-exit-code", "x", "--", "true")[0] == 64


@pytest.mark.parametrize("ttl", ["1s", "2s", "3s"])
def test_a_short_ttl_is_kept_for_as_long_as_the_command_runs(ttl: str, machine: Machine) -> None:
    words = ("run", "job", "--ttl", ttl, "--", "sh", "-c", "sleep 2.5; echo $DIBS_JOB")
    # A machine that stands still for a second loses it, and rightly; not three times in a row.
    assert any(machine.run(*words) == (0, "job\n") for _ in range(3))


def test_a_short_ttl_is_kept_in_line_too(machine: Machine) -> None:
    first = machine.start("run", "job", "--", "cat", stdin=-1)
    machine.until(lambda: machine.look("job").get("owner") is not None)
    waiter = machine.start("run", "job", "--ttl", "2s", "--wait", "20s", "--", "echo", "ran")
    machine.until(lambda: machine.look("job").get("waiting") == 1)
    since = steady_ms()
    machine.until(lambda: steady_ms() - since > 4_000)
    first.communicate("", timeout=50)
    assert finished(waiter) == (0, "ran\n")
