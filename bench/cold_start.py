"""How long the commands that people and agents start take, next to a Python that does nothing.

`dibs claim` and `dibs run JOB -- true`, the hooks of coding agents, and `dibs mcp` to its first answer. Interleaved,
one process at a time, on a store that exists already.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from load import generator_cpu_seconds
from procs import BenchError, plain_environment

if TYPE_CHECKING:
    from builds import Build

BASE = "python -c pass"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argv: Callable[[], list[str]]
    env: Mapping[str, str]
    given: Callable[[], bytes] = lambda: b""
    folder: Path | None = None


def timed(command: Command) -> float:
    """Seconds from start to end of one run, which must succeed."""
    argv, given = command.argv(), command.given()
    start = time.perf_counter()
    done = subprocess.run(
        argv, env=command.env, input=given, cwd=command.folder, capture_output=True, timeout=30, check=False
    )
    spent = time.perf_counter() - start
    if done.returncode != 0:
        text = (done.stderr or done.stdout).decode(errors="replace")[-800:]
        raise BenchError(f"{command.name}: {' '.join(argv)} ended with {done.returncode}: {text}")
    return spent


def by_build(runs: int, folder: Path, builds: Sequence[Build]) -> dict[str, tuple[list[float], list[float]]]:
    """Milliseconds and CPU milliseconds of each run, by command: those of every build, in turns."""
    with (
        tempfile.TemporaryDirectory(prefix="dibs-cold-", dir=folder) as temp,
        contextlib.ExitStack() as stack,
    ):
        # A home of its own, so that no user's configuration file is read.
        own = {"HOME": temp, "XDG_STATE_HOME": f"{temp}/state", "XDG_CONFIG_HOME": f"{temp}/config"}
        commands = [Command(BASE, lambda: [sys.executable, "-c", "pass"], plain_environment(own))]
        for number, build in enumerate(builds):
            place = Path(temp) / str(number)
            place.mkdir()
            local = own | build.env | {"XDG_STATE_HOME": str(place / "state")}
            server = stack.enter_context(build.target().open(place))
            remote = local | {"DIBS_URL": server.url, "DIBS_TOKEN": server.next_token()}
            commands += _commands(build, place, plain_environment(local), plain_environment(remote))
        spent: dict[str, tuple[list[float], list[float]]] = {each.name: ([], []) for each in commands}
        for turn in range(-1, runs):  # the first does not count: it creates the database and warms the file cache
            for command in commands:
                used = generator_cpu_seconds()
                taken = timed(command) * 1e3
                if turn >= 0:
                    spent[command.name][0].append(taken)
                    spent[command.name][1].append((generator_cpu_seconds() - used) * 1e3)
        return spent


def _commands(build: Build, place: Path, local: Mapping[str, str], remote: Mapping[str, str]) -> Iterator[Command]:
    numbers = itertools.count(1)
    script = build.script
    work = place / "work"
    subprocess.run(["git", "init", "-q", str(work)], check=True, timeout=30)

    def claim() -> list[str]:
        return [script, "claim", f"cold-start-{next(numbers)}"]

    def event(moment: str, tool: str, given: dict[str, str], session: str = "bench-1111") -> bytes:
        """What Claude Code writes to a hook."""
        document = {"session_id": session, "hook_event_name": moment, "cwd": str(work)}
        return json.dumps(document | {"tool_name": tool, "tool_input": given}).encode()

    def hook(what: str, given: Callable[[], bytes]) -> Command:
        return Command(f"{build.name} hook, {what}", lambda: [script, "agent", "hook"], local, given, work)

    yield Command(f"{build.name} claim, embedded", claim, local)
    yield Command(f"{build.name} claim, server", claim, remote)
    yield Command(f"{build.name} run true", lambda: [script, "run", f"run-{next(numbers)}", "--", "true"], local)
    yield hook("before a shell command", lambda: event("PreToolUse", "Bash", {"command": "ls"}))
    yield hook("after a shell command", lambda: event("PostToolUse", "Bash", {"command": "ls"}))
    yield hook("before an edit", lambda: event("PreToolUse", "Edit", {"file_path": str(work / f"f{next(numbers)}")}))
    # The first agent has files claimed by now, so a second one that names a file asks whose it is.
    named = {"command": "./codemod other.py"}
    yield hook("before a command with a file, alone", lambda: event("PreToolUse", "Bash", named))
    yield hook("the same beside another agent", lambda: event("PreToolUse", "Bash", named, "bench-2222"))
    hello = json.dumps(INITIALIZE).encode() + b"\n"
    yield Command(f"{build.name} mcp, first answer", lambda: [script, "mcp"], local, lambda: hello)
