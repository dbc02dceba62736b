"""Real processes for tests: the `dibs` command, and a server that can be killed, paused and started again.

Every wait is bounded and says what it waited for. No process outlives its `with` block, even after an error inside. A
process is ended only by its own id.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

from dibs.base.clock import steady_ms
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from dibs.client.transport import Transport

    Found = TypeVar("Found")

DIBS = (sys.executable, "-m", "dibs")
ROOT = Path(__file__).parents[1]
# Only a test that fails waits this long: it is for a machine with a load of 20.
WAIT_S_MAX = 60.0
_POLL_S_MIN, _POLL_S_MAX = 0.01, 0.05
# Programs per core that want to run while scripts/test does and nothing else.
_OWN_LOAD = 3
_LISTENS = re.compile(r"listens on (\S+)\n")


def slowness() -> int:
    """How many times longer the leases of a test must last now than on a machine with nothing else to do. The tests'
    own workers do not count."""
    return max(1, int(os.getloadavg()[0] / (os.cpu_count() or 1) / _OWN_LOAD))


def wait_until(condition: Callable[[], Found | None], what: str, seconds: float = WAIT_S_MAX) -> Found:
    """The first result of `condition` that is true in Python's sense."""
    give_up_ms = steady_ms() + int(seconds * 1000)
    poll_s = _POLL_S_MIN
    while not (found := condition()):
        assert steady_ms() < give_up_ms, f"waited {seconds:g} s in vain until {what}"
        pause(poll_s)
        poll_s = min(1.2 * poll_s, _POLL_S_MAX)
    return found


def start_program(module: str, *words: str, python: str = sys.executable, **how: Any) -> subprocess.Popen[Any]:
    """A program of the tests, as a module: it imports from `tests` as the tests do. `how` is for Popen."""
    return subprocess.Popen([python, "-m", module, *words], cwd=ROOT, **how)


def ending_with_us(*words: str) -> list[str]:
    """The words that start a program which is killed when this process ends, also by SIGKILL. Start it on the main
    thread: the kernel means the thread."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *words] if setpriv else list(words)


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Ports for servers that must be told one, and that have it again after a restart. While the block lasts, no other
    program is given one of them: a socket that does not listen is bound to it. A server that sets SO_REUSEADDR, as
    servers do, may listen there nevertheless."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in sockets]


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def pass_by(until_ms: int) -> None:
    """Wait until a moment on the steady clock, never ending early."""
    while (left_ms := until_ms - steady_ms()) > 0:
        assert left_ms <= WAIT_S_MAX * 1000, "a test may not wait that long"
        pause(left_ms / 1000)


def environment_without_dibs() -> dict[str, str]:
    """Ours, with nothing set for dibs but which system's ways it uses."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("DIBS_") or name == "DIBS_PORTABLE"
    }


def clean_env(state_home: Path, **more: str) -> dict[str, str]:
    """The environment of a user whose state folder is in `state_home`, with nothing set for dibs but `more`. This
    machine's own service is none of the test's."""
    return {**environment_without_dibs(), "XDG_STATE_HOME": str(state_home), "DIBS_SYSTEM_SOCKET": "off", **more}


class Ran:
    """A command that ended."""

    def __init__(self, words: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        self.words = words
        self.exit = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def document(self) -> Any:
        """The one document of --json."""
        return json.loads(self.out)

    @property
    def data(self) -> Any:
        assert self.document["ok"] is True, self
        return self.document["data"]

    @property
    def error(self) -> Any:
        assert self.document["ok"] is False, self
        return self.document["error"]

    def __repr__(self) -> str:
        return f"<dibs {' '.join(self.words)}: exit {self.exit}\n{self.out}{self.err}>"


def dibs(env: Mapping[str, str], *words: str, stdin: str = "") -> Ran:
    """Run one command to its end."""
    done = subprocess.run(
        [*DIBS, *words],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    return Ran(words, done)


def dibs_here(env: Mapping[str, str], folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end in this process, with the environment and the folder that a process of it would have.
    For one thread at a time: both belong to the whole process."""
    from dibs.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), patch.dict(os.environ, env, clear=True):
        exit_code = run(words, os.environ, out, err, io.BytesIO(stdin.encode()))
    return subprocess.CompletedProcess(words, exit_code, out.getvalue(), err.getvalue())


class ServerProcess:
    """`dibs serve` on a free port of this machine, with a folder of its own. Start it again as often as you like."""

    def __init__(
        self,
        folder: Path,
        *,
        store: str | None = None,
        bind: str = "127.0.0.1:0",
        flags: Sequence[str] = (),
        command: Sequence[str] = DIBS,
    ) -> None:
        self.folder = folder
        self.env = clean_env(folder)
        self.store_url = store or f"sqlite://{folder}/dibs/dibs.db"
        self.url = ""
        self.starts = 0
        self._words = [*command, "serve", "--bind", bind, "--store", self.store_url, *flags]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    @property
    def log(self) -> Path:
        """What this start has said on standard error."""
        return self.folder / f"server-{self.starts}.log"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.spawn()
        self.await_start()

    def spawn(self) -> None:
        """Start it, and wait for nothing."""
        assert self._process is None or self._process.returncode is not None, "it runs already"
        self.starts += 1
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                self._words, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )

    def await_start(self) -> None:
        """Wait until the server that was spawned answers."""
        self.url = wait_until(self._greeting, "the server says where it listens")

    def _greeting(self) -> str | None:
        ended = self.process.poll()
        said = self.log.read_text()
        assert ended is None, f"the server ended with {ended}: {said}"
        listens = _LISTENS.search(said)
        return listens[1] if listens else None

    def kill(self) -> None:
        """Send SIGKILL, which the server cannot catch."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_S_MAX)

    def stop(self) -> int:
        """SIGTERM. Its exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_S_MAX)

    def pause(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self.process.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def token(self) -> str:
        """The token that it made on its first start."""
        return (self.folder / "dibs" / "token").read_text().split(":")[1]

    def transport(self, timeout_ms: int = 10_000) -> Transport:
        return connect(self.url, namespace=None, token=self.token, timeout_ms=timeout_ms)


def wait_until_stopped(pid: int) -> None:
    """Wait until a child of ours is stopped (SIGSTOP), by any process."""

    def state() -> os.waitid_result | None:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)

    found = wait_until(state, f"process {pid} stands still")
    assert found is not None
    assert found.si_code == os.CLD_STOPPED, f"process {pid} ended instead"
