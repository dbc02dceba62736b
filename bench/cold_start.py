"""How long `dibs claim` and `dibs run JOB -- true` take from the shell, next to a Python that does nothing.

Interleaved, one process at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from load import generator_cpu_seconds
from procs import BenchError, plain_environment
from stats import paired_ratio, spread
from targets import DibsTarget

if TYPE_CHECKING:
    from builds import Build

BASE, EMBEDDED, SERVER = "python -c pass", "dibs claim, embedded store", "dibs claim, server"
RUN = "dibs run true, embedded store"


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argv: Callable[[], list[str]]
    env: Mapping[str, str]


def dibs_script() -> str:
    """The `dibs` beside this Python, as a user of the environment would start it."""
    beside = Path(sys.executable).parent / "dibs"
    found = str(beside) if beside.exists() else shutil.which("dibs")
    if found is None:
        raise BenchError("no `dibs` script beside this Python nor on PATH: install the project first")
    return found


def timed(command: Command) -> float:
    """Seconds from start to end of one run, which must succeed."""
    argv = command.argv()
    start = time.perf_counter()
    done = subprocess.run(argv, env=command.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    spent = time.perf_counter() - start
    if done.returncode != 0:
        text = (done.stderr or done.stdout).decode(errors="replace")[-800:]
        raise BenchError(f"{command.name}: {' '.join(argv)} ended with {done.returncode}: {text}")
    return spent


def interleaved(commands: Sequence[Command], runs: int) -> dict[str, list[float]]:
    """One untimed run each creates the database and warms the file cache; then turn by turn."""
    for command in commands:
        timed(command)
    spent: dict[str, list[float]] = {command.name: [] for command in commands}
    for _ in range(runs):
        for command in commands:
            spent[command.name].append(timed(command))
    return spent


def by_build(runs: int, folder: Path, builds: Sequence[Build]) -> dict[str, tuple[list[float], list[float]]]:
    """Milliseconds and CPU milliseconds of each run, by command: `dibs claim` of every build, in turns."""
    numbers = itertools.count(1)

    def claim(script: str) -> Callable[[], list[str]]:
        return lambda: [script, "claim", f"cold-start-{next(numbers)}"]

    with (
        tempfile.TemporaryDirectory(prefix="dibs-cold-", dir=folder) as temp,
        contextlib.ExitStack() as stack,
    ):
        own = {"HOME": temp, "XDG_STATE_HOME": f"{temp}/state", "XDG_CONFIG_HOME": f"{temp}/config"}
        commands = [Command(BASE, lambda: [sys.executable, "-c", "pass"], plain_environment(own))]
        for number, build in enumerate(builds):
            place = Path(temp) / str(number)
            place.mkdir()
            local = own | build.env | {"XDG_STATE_HOME": str(place / "state")}
            server = stack.enter_context(build.target().open(place))
            remote = local | {"DIBS_URL": server.url, "DIBS_TOKEN": server.next_token()}
            run = claim(build.script)
            commands.append(Command(f"{build.name} claim, embedded", run, plain_environment(local)))
            commands.append(Command(f"{build.name} claim, server", run, plain_environment(remote)))
        spent: dict[str, tuple[list[float], list[float]]] = {each.name: ([], []) for each in commands}
        for turn in range(-1, runs):
            for command in commands:
                used = generator_cpu_seconds()
                taken = timed(command) * 1e3
                if turn >= 0:
                    spent[command.name][0].append(taken)
                    spent[command.name][1].append((generator_cpu_seconds() - used) * 1e3)
        return spent


def measure(runs: int, folder: Path, dibs: DibsTarget, script: str) -> dict[str, list[float]]:
    numbers = itertools.count(1)

    def claim() -> list[str]:
        return [script, "claim", f"cold-start-{next(numbers)}"]

    def run() -> list[str]:
        return [script, "run", f"cold-start-{next(numbers)}", "--", "true"]

    with tempfile.TemporaryDirectory(prefix="dibs-cold-", dir=folder) as temp:
        root = Path(temp)
        (root / "server").mkdir()
        # A home of its own, so that no user's configuration file is read.
        own = {"XDG_STATE_HOME": str(root / "state"), "XDG_CONFIG_HOME": str(root / "config"), "HOME": temp}
        with dibs.open(root / "server") as server:
            remote = own | {"DIBS_URL": server.url, "DIBS_TOKEN": server.next_token()}
            commands = [
                Command(BASE, lambda: [sys.executable, "-c", "pass"], plain_environment(own)),
                Command(EMBEDDED, claim, plain_environment(own)),
                Command(RUN, run, plain_environment(own)),
                Command(SERVER, claim, plain_environment(remote)),
            ]
            return interleaved(commands, runs)


def table(spent: Mapping[str, Sequence[float]]) -> list[str]:
    base = spent[BASE]
    lines = ["**Cold start, ms**", "", "| command | time | times `python -c pass` |", "| --- | ---: | ---: |"]
    for name, values in spent.items():
        ratio = paired_ratio(values, base)
        ratio_text = ratio.text(2) if ratio and name != BASE else "1"
        lines.append(f"| `{name}` | {spread([v * 1e3 for v in values]).text(1)} | {ratio_text} |")
    return [*lines, ""]
