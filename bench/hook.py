"""How long hooks take: `dibs hook run pre-commit` for 1,000 staged files, next to a Python that does nothing; and with
--agent, `dibs agent hook` before an edit, next to that Python and to `dibs claim`, all cold.

The agent's hook claims a file that it has already, and one that nobody has; it also stands before and after a shell
command that writes nothing. The aim is four times the Python that does nothing.

On a local SQLite store with live path claims, none of them in the way, and the policy `require` with `own`, so that
every path is looked at twice. Interleaved, one process at a time. The aim is 150 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from procs import BenchError, plain_environment
from stats import paired_ratio, spread

AIM_SECONDS = 0.150
DIBS = [sys.executable, "-m", "dibs"]
HOOK = [*DIBS, "hook", "run", "pre-commit"]
PASS = [sys.executable, "-c", "pass"]


def run(words: list[str], folder: Path, env: dict[str, str]) -> float:
    """Seconds from start to end of one command, which must succeed and say nothing."""
    start = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, timeout=60, check=False)
    spent = time.perf_counter() - start
    if done.returncode or done.stderr:
        raise BenchError(f"{' '.join(words[:4])}: exit {done.returncode}: {done.stderr.decode()[-500:]}")
    return spent


def prepare(folder: Path, env: dict[str, str], files: int, claims: int) -> None:
    """A repository with `files` staged files under `src`, which is ours, and `claims` claims of others beside it."""
    for number in range(files):
        path = folder / "src" / f"d{number % 20}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n")
    run(["git", "init", "-q"], folder, env)
    run(["git", "config", "dibs.policy", "require"], folder, env)
    run(["git", "config", "dibs.own", "true"], folder, env)
    run(["git", "add", "-A"], folder, env)
    run([*DIBS, "lock", "acquire", "path:src", "--ttl", "1h"], folder, env)
    names = [f"path:others/{number}" for number in range(claims)]
    for first in range(0, claims, 100):
        run([*DIBS, "claim-all", "-q", "--ttl", "1h", *names[first : first + 100]], folder, env)


def event(folder: Path, file: str) -> bytes:
    """What Claude Code writes to a hook before an edit."""
    document = {
        "session_id": "bench-1111",
        "hook_event_name": "PreToolUse",
        "cwd": str(folder),
        "tool_name": "Edit",
        "tool_input": {"file_path": str(folder / file)},
    }
    return json.dumps(document).encode()


def timed(words: list[str], folder: Path, env: dict[str, str], given: bytes = b"") -> float:
    start = time.perf_counter()
    done = subprocess.run(words, input=given, cwd=folder, env=env, capture_output=True, timeout=60, check=False)
    spent = time.perf_counter() - start
    if done.returncode or done.stderr:
        raise BenchError(f"{' '.join(words[:4])}: exit {done.returncode}: {done.stderr.decode()[-500:]}")
    return spent


def shell(folder: Path, moment: str) -> bytes:
    """The event of a shell command that writes nothing."""
    document = json.loads(event(folder, "a"))
    return json.dumps(
        {**document, "hook_event_name": moment, "tool_name": "Bash", "tool_input": {"command": "ls"}}
    ).encode()


def agent(work: Path, env: dict[str, str], runs: int) -> None:
    """Print what a hook costs before an edit and around a shell command, by a Python that does nothing."""
    run(["git", "init", "-q"], work, env)
    hook = [*DIBS, "agent", "hook"]
    timed(hook, work, env, event(work, "a"))
    timed([*DIBS, "claim", "-q", "warm"], work, env)
    rows = []
    for number in range(runs):
        again = timed(hook, work, env, event(work, "a"))
        fresh = timed(hook, work, env, event(work, f"f{number}"))
        before = timed(hook, work, env, shell(work, "PreToolUse"))
        after = timed(hook, work, env, shell(work, "PostToolUse"))
        claim_s = timed([*DIBS, "claim", "-q", f"job-{number}"], work, env)
        rows.append((again, fresh, before, after, claim_s, timed(PASS, work, env)))
    nothing = [row[-1] for row in rows]
    print(f"{runs} runs; median (least to most)")
    kinds = ("a file it has", "a free file", "before a shell", "after a shell", "dibs claim", "python -c pass")
    for place, what in enumerate(kinds):
        found = spread([row[place] for row in rows])
        ratio = paired_ratio([row[place] for row in rows], nothing)
        assert ratio is not None
        line = f"{found.median * 1e3:6.1f} ms  ({found.low * 1e3:.1f} to {found.high * 1e3:.1f})"
        print(f"  {what:<16}{line}  {ratio.median:.2f} times python -c pass")


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--files", type=int, default=1_000)
    made.add_argument("--claims", type=int, default=100)
    made.add_argument("--runs", type=int, default=25)
    made.add_argument("--agent", action="store_true", help="measure `dibs agent hook` instead")
    args = made.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = plain_environment({"XDG_STATE_HOME": str(folder / "state"), "DIBS_ACTOR": "bench"})
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # as for a user: modules are compiled already
        env["PYTHONPYCACHEPREFIX"] = os.fspath(folder / "compiled")
        try:
            work = folder / "work"
            work.mkdir()
            if args.agent:
                env.pop("DIBS_ACTOR")
                agent(work, env, args.runs)
                return 0
            prepare(work, env, args.files, args.claims)
            run(HOOK, work, env)
            pairs = [(run(HOOK, work, env), run(PASS, work, env)) for _ in range(args.runs)]
        except BenchError as error:
            print(f"!!! {error}", file=sys.stderr)
            return 1
    hook, base = spread([pair[0] for pair in pairs]), spread([pair[1] for pair in pairs])
    ratio = paired_ratio([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    assert ratio is not None
    print(f"{args.files} files, {args.claims} claims, {args.runs} runs; median (least to most)")
    for what, found in (("dibs hook run pre-commit", hook), ("python -c pass", base)):
        print(f"  {what:<26}{found.median * 1e3:6.1f} ms  ({found.low * 1e3:.1f} to {found.high * 1e3:.1f})")
    print(f"  {'hook by pass, in pairs':<26}{ratio.median:6.1f}")
    print(f"aim of {AIM_SECONDS * 1e3:.0f} ms: {'met' if hook.median < AIM_SECONDS else '!!! NOT MET'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
