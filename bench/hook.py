"""How long `dibs hook run pre-commit` takes for 1,000 staged files, next to a Python that does nothing.

On a local SQLite store with live path claims, none of them in the way, and the policy `require` with `own`, so that
every path is looked at twice. Interleaved, one process at a time. The aim is 150 ms.
"""

from __future__ import annotations

import argparse
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


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--files", type=int, default=1_000)
    made.add_argument("--claims", type=int, default=100)
    made.add_argument("--runs", type=int, default=25)
    args = made.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = plain_environment({"XDG_STATE_HOME": str(folder / "state"), "DIBS_ACTOR": "bench"})
        env["PYTHONPYCACHEPREFIX"] = os.fspath(folder / "compiled")
        try:
            work = folder / "work"
            work.mkdir()
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
