"""A writer that stands still keeps everybody from writing: they are told which process it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.stores.sqlite import SqliteStore
from dibs.testing.contract_base import lock, put
from tests.programs import WAIT_S_MAX, wait_until_stopped

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("writes", flush=True)
sys.stdin.read()
"""


@pytest.mark.linux("who holds a lock")
@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux says who holds a lock")
@pytest.mark.parametrize("is_stopped", [True, False])
def test_who_cannot_write_is_told_which_process_does(tmp_path: Path, is_stopped: bool) -> None:
    path = str(tmp_path / "dibs.db")
    store = SqliteStore(path, busy_ms=50)
    put(store, lock("x"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER, path], **pipes) as writer:  # type: ignore[call-overload]
        try:
            assert writer.stdout.readline() == b"writes\n"
            if is_stopped:
                writer.send_signal(signal.SIGSTOP)
                wait_until_stopped(writer.pid)
            with pytest.raises(StoreUnavailable, match=f"by process {writer.pid} ") as caught:
                put(store, lock("y"))
            assert (f"kill -CONT {writer.pid}" in str(caught.value)) is is_stopped
        finally:
            writer.kill()
            writer.wait(WAIT_S_MAX)
    put(store, lock("y"))
    store.close()
