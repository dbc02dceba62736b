"""Programs that dibs runs: git and gh."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.base.git_program import run_git, run_program

if TYPE_CHECKING:
    from pathlib import Path

SHORT_MS, LONG_MS = 200, 60_000


def run(script: str, given: bytes = b"", timeout_ms: int = LONG_MS) -> tuple[int, bytes, str]:
    done = run_program(["sh", "-c", script], env=os.environ, given=given, timeout_ms=timeout_ms)
    return done.code, done.out, done.err


def test_what_a_program_writes_and_its_exit_code_come_back() -> None:
    assert run("echo out; echo err >&2; exit 3") == (3, b"out\n", "err\n")
    assert run("kill -TERM $$") == (-15, b"", "")


def test_a_megabyte_goes_in_and_comes_out_at_the_same_time() -> None:
    given = b"0123456789abcdef" * 65_536
    assert run("tee /dev/stderr", given) == (0, given, given.decode())


def test_a_program_that_reads_nothing_is_no_error() -> None:
    assert run("exec 0<&-; echo done", b"x" * 1_000_000) == (0, b"done\n", "")
    assert run("cat") == (0, b"", "")


def test_a_program_that_takes_too_long_is_killed_with_its_children() -> None:
    done = run_program(
        ["sh", "-c", "sleep 1000 & echo $!; wait"], env=os.environ, given=b"", timeout_ms=SHORT_MS, install=""
    )
    assert done.timed_out
    assert not done.out
    closed = run_program(["sh", "-c", "exec >&- 2>&-; sleep 1000"], env=os.environ, given=b"", timeout_ms=SHORT_MS)
    assert closed.timed_out


def test_a_missing_program_and_a_missing_folder_are_reported() -> None:
    with pytest.raises(StoreUnavailable, match="not installed"):
        run_program(["no-such-program"], env=os.environ, given=b"", timeout_ms=LONG_MS)
    with pytest.raises(StoreUnavailable, match="is gone"):
        run_git(["--version"], env=os.environ, folder="/no/such/folder")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the files of a process cannot be listed")
def test_a_program_gets_none_of_the_files_that_dibs_was_started_with(tmp_path: Path) -> None:
    """And no stream of it is mixed up if the standard streams are closed."""
    script = (
        "import os; from dibs.base.git_program import run_program;"
        "done = run_program(['sh', '-c', 'ls /proc/self/fd; echo err >&2'], env=os.environ, given=b'', "
        "timeout_ms=60000);"
        "open('told', 'wb').write(done.out + done.err.encode())"
    )
    files = os.pipe()
    read, _ = files
    for closed in ("", "<&-", "<&- >&- 2>&-"):
        command = f'{sys.executable} -c "{script}" {closed}; cat told; rm told'
        told = subprocess.run(
            ["sh", "-c", command], capture_output=True, pass_fds=(read,), timeout=60, check=True, cwd=tmp_path
        )
        assert told.stdout.decode().split() == ["0", "1", "2", "3", "err"], closed  # 3 is the list itself
    for end in files:
        os.close(end)
