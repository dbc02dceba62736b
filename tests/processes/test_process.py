"""The command as a process: what a shell, a pipe and a full disk do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any

import pytest

from tests.programs import environment_without_dibs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

DIBS = [sys.executable, "-m", "dibs"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = environment_without_dibs()
    return kept | {"XDG_STATE_HOME": str(tmp_path)}


def dibs(
    env: dict[str, str], *words: str | bytes, stdout: int | IO[Any] = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*DIBS, *words], env=env, stdout=stdout, stderr=subprocess.PIPE, timeout=50, check=False)


def test_the_loop_works_on_a_fresh_machine(env: dict[str, str]) -> None:
    claimed = dibs(env, "claim", "issue-1", "-q", "--owner", "agent-7")
    assert claimed.returncode == 0
    lease = claimed.stdout.decode().strip()
    assert dibs(env, "claim", "issue-1").returncode == 1
    assert b"agent-7 has issue-1" in dibs(env, "owner", "issue-1").stdout
    assert dibs(env, "release", "issue-1", "--lease", lease).returncode == 0
    assert dibs(env, "owner", "issue-1").returncode == 1


def test_a_name_in_another_encoding_is_refused_without_a_traceback(env: dict[str, str]) -> None:
    plain = dibs(env, "claim", b"caf\xe9")
    assert plain.returncode == 64
    assert b"Traceback" not in plain.stderr
    document = json.loads(dibs(env, "--json", "claim", b"caf\xe9").stdout)
    assert document["error"]["code"] == "invalid_lock_name"
    unknown = dibs(env, b"caf\xe9")
    assert unknown.returncode == 64
    assert b"Traceback" not in unknown.stderr


def test_a_closed_stdout_is_no_reason_for_a_traceback(env: dict[str, str]) -> None:
    line = " ".join([*DIBS, "claim", "issue-1", ">&-"])
    done = subprocess.run(["/bin/sh", "-c", line], env=env, capture_output=True, timeout=50, check=False)
    assert done.returncode == 0
    assert done.stderr == b""


def test_all_streams_closed_still_gives_the_exit_code(env: dict[str, str]) -> None:
    line = " ".join([*DIBS, "owner", "issue-1", "<&-", ">&-", "2>&-"])
    done = subprocess.run(["/bin/sh", "-c", line], env=env, timeout=50, check=False)
    assert done.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_reported_on_stderr(env: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        done = dibs(env, "claim", "issue-1", stdout=full)
    assert done.returncode == 70
    assert b"could not be written" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error(env: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = dibs(env, "--help", stdout=pipe)
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_terminal_that_cannot_show_a_character_gets_an_escape(env: dict[str, str]) -> None:
    done = dibs(env | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, "claim", "issue-é")
    assert done.returncode == 0
    assert b"issue-\\xe9" in done.stdout


def test_a_state_folder_that_cannot_be_written_says_so_and_exits_with_69(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    env["XDG_STATE_HOME"] = str(tmp_path / "file")
    done = dibs(env, "claim", "issue-1")
    assert done.returncode == 69
    assert done.stderr.startswith(b"dibs: ")
    assert done.stderr.count(b"\n") == 1
    document = json.loads(dibs(env, "claim", "issue-1", "--json").stdout)
    assert document["error"]["code"] == "upstream_unavailable"
    assert dibs(env, "doctor").returncode == 69


@pytest.mark.parametrize(
    "url", ["nonsense", "127.0.0.1:3427", "ftp://x", "sqlite://", "http://", "http://h:x", "unix://x"]
)
def test_a_url_that_is_none_says_what_one_looks_like_and_exits_with_64(env: dict[str, str], url: str) -> None:
    done = dibs(env | {"DIBS_URL": url}, "claim", "issue-1")
    assert done.returncode == 64
    assert b"http" in done.stderr or b"unix:///" in done.stderr
    assert b"Traceback" not in done.stderr


def test_no_server_at_all_is_reported_at_once_with_what_to_do(env: dict[str, str]) -> None:
    done = dibs(env | {"DIBS_URL": "http://127.0.0.1:1"}, "claim", "issue-1")
    assert done.returncode == 69
    assert b"Do not begin the work" in done.stderr


def test_ctrl_c_ends_it_with_130_and_without_words(env: dict[str, str]) -> None:
    words = [*DIBS, "heartbeat", "x", "--lease", "y", "--checkpoint", "-"]
    with subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        # It is blocked in reading standard input once it has opened nothing else: ask until it is gone.
        for _ in range(600):
            if _waits_for_input(child.pid):
                break
            try:
                child.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        child.send_signal(signal.SIGINT)
        assert child.wait(50) == 130
        assert child.stderr is not None
        assert child.stderr.read() == b""


def _waits_for_input(pid: int) -> bool:
    """Whether the process sleeps in a read of file descriptor 0 (Linux says so in /proc)."""
    try:
        with open(f"/proc/{pid}/syscall") as file:
            number, first, *_ = file.read().split()
    except (OSError, ValueError):
        return False
    return first == "0x0" and number not in ("running", "-1")
