"""Servers the benchmark starts: on free loopback ports, waited for, always stopped by their own process id."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
READY_SECONDS = 60.0  # much longer than it takes, unless the machine is full
STOP_SECONDS = 10.0


class BenchError(Exception):
    """A measurement could not be made. The text gives the reason."""


SERVER_CORE, LOAD_CORE = 0, 1


@contextlib.contextmanager
def on_core(number: int) -> Iterator[None]:
    """What is started in the block runs on this core, of those that this process may use. With a single one, nothing is
    done."""
    before = os.sched_getaffinity(0)
    if len(before) > 1:
        os.sched_setaffinity(0, {sorted(before)[number]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that every `finally` stops what it started."""

    def leave(signum: int, _frame: object) -> None:
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, leave)


def http_ready(url: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    return ready


def plain_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without its dibs settings: they would aim the benchmark at a real store. As for a user,
    Python writes down the bytecode of what it imports."""
    left_out = ("DIBS_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    return kept | dict(extra or {})


@contextlib.contextmanager
def serving(
    argv: Sequence[str],
    log: Path,
    ready: Callable[[], bool],
    extra_env: Mapping[str, str] | None = None,
    ready_seconds: float = READY_SECONDS,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server for the length of a `with` block, which begins when the server is ready."""
    with log.open("wb") as sink:
        child = subprocess.Popen(
            argv, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, env=plain_environment(extra_env)
        )
    try:
        _wait_ready(child, argv, log, ready, ready_seconds)
        yield child
    finally:
        stop(child)


def _wait_ready(
    child: subprocess.Popen[bytes],
    argv: Sequence[str],
    log: Path,
    ready: Callable[[], bool],
    ready_seconds: float,
) -> None:
    limit = time.monotonic() + ready_seconds
    while not ready():
        ended = child.poll() is not None
        if ended or time.monotonic() > limit:
            what = f"ended with code {child.returncode}" if ended else f"not ready in {ready_seconds:.0f} s"
            tail = log.read_text(errors="replace")[-1500:]
            raise BenchError(f"{' '.join(argv[:5])} … {what}\n{tail}")
        time.sleep(0.02)


def stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(STOP_SECONDS)


def _family(roots: Sequence[int]) -> dict[int, float]:
    """These processes and all below them: CPU seconds by process id, those of ended children included."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = status.read_text().rpartition(")")[2].split()
            pid = int(status.parent.name)
            parents.setdefault(int(words[1]), []).append(pid)
            spent[pid] = sum(map(int, words[11:15])) / TICKS
    left, found = list(roots), {}
    while left:
        pid = left.pop()
        found[pid] = spent.get(pid, 0.0)
        left += parents.get(pid, [])
    return found


def cpu_seconds(*roots: int) -> float:
    """User and system time of these processes and of all below them, the ended ones included."""
    return sum(_family(roots).values())


def memory_mb(*roots: int) -> float:
    """Memory of these processes and of all below them; what several share is counted once."""
    total = 0
    for pid in _family(roots):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024
