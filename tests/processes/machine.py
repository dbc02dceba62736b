"""dibs as processes on one file: starts them, looks at them, and waits for them with a bound."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from dibs.base import platforms
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.system import table
from tests.programs import WAIT_S_MAX, environment_without_dibs, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_SECONDS = int(WAIT_S_MAX)
# What left its process group is found by `dibs run` on Linux only. Elsewhere, commands of tests stay in their group.
LEAVES_GROUP = not platforms.IS_PORTABLE
SETSID = "setsid " if LEAVES_GROUP else ""


class Machine:
    """One user's machine: a state folder that its processes share."""

    def __init__(self, folder: Path) -> None:
        kept = environment_without_dibs()
        self.env = kept | {"XDG_STATE_HOME": str(folder), "DIBS": f"{sys.executable} -m dibs"}
        (folder / "dibs").mkdir(mode=0o700, exist_ok=True)
        self.transport = EmbeddedTransport.at(f"sqlite://{folder / 'dibs' / 'dibs.db'}")
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen([sys.executable, "-m", "dibs", *words], env=self.env, **(pipes | more))
        self._started.append(child)
        return child

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and what was printed on both streams."""
        return finished(self.start(*words, stderr=subprocess.STDOUT))

    def look(self, job: str) -> dict[str, Any]:
        return self.transport.ask(Ask("inspect", job)).body or {}

    def until(self, so: Callable[[], bool]) -> None:
        """Wait until a condition holds. Looks again at each change of the store."""
        for _ in range(PATIENCE_SECONDS * 20):
            if so():
                return
            self.transport.news(50)
        raise AssertionError("it never became so")

    def close(self) -> None:
        """Does not read what is left in the pipes: a process that a failed test left over keeps them open."""
        for child in self._started:
            child.kill()
            child.wait(PATIENCE_SECONDS)
            for pipe in (child.stdin, child.stdout, child.stderr):
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
        self.transport.close()


def finished(child: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = child.communicate(timeout=PATIENCE_SECONDS)
    return child.returncode, out


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def guards_of(run: int) -> tuple[int, int]:
    """The guardian and the second guardian of a `dibs run` whose command runs."""
    second = _only_child(run)
    return _only_child(second), second


def _only_child(pid: int) -> int:
    """Waits: for a moment, a process that looks at others may have a `ps` as its child."""

    def only() -> list[int]:
        found = table().children(pid)
        return found if len(found) == 1 else []

    return wait_until(only, f"{pid} has one child")[0]
