"""The example of a release: its owner is killed before and after every step, and no step is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from dibs.base.ids import new_token
from tests.build import tries
from tests.programs import ROOT, WAIT_S_MAX, ServerProcess, slowness

pytestmark = [pytest.mark.full, pytest.mark.promise("effect:once", "effect:doubt-told")]

STEPS = ("build", "tag", "publish", "announce", "close-milestone")
# Ends itself as the kernel would: nothing of it can note anything any more.
DRIVER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from release_in_five_steps import release

def between(step, moment):
    if [step, moment] == sys.argv[4:6]:
        os.kill(os.getpid(), signal.SIGKILL)

release("v7", Path(sys.argv[2]), ttl=int(sys.argv[3]), between=between)
"""


@pytest.mark.parametrize("kind", ["sqlite", "server", "postgres", "etcd", "git"])
def test_a_release_that_is_killed_at_every_step_does_none_twice(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        env = {**os.environ, "HOME": str(tmp_path), **_place(kind, tmp_path, request, stack)}
        killed = STEPS if kind == "sqlite" or tries(0, 1) else STEPS[1:2]
        ttl = 2 if kind == "sqlite" else 6  # a store behind other processes is slower on a busy machine
        _release(tmp_path, env, killed, ttl * slowness())


def _place(kind: str, tmp_path: Path, request: pytest.FixtureRequest, stack: ExitStack) -> dict[str, str]:
    """What names a fresh store of this kind."""
    match kind:
        case "server":
            server = stack.enter_context(ServerProcess(tmp_path))
            return {"DIBS_URL": server.url, "DIBS_TOKEN": server.token}
        case "postgres":
            return {"DIBS_URL": request.getfixturevalue("postgres_schema")().url}
        case "etcd":
            return {"DIBS_URL": request.getfixturevalue("etcd_cluster").url(f"release/{new_token()}")}
        case "git":
            request.getfixturevalue("need_program")("git")
            subprocess.run(["git", "init", "-q", "--template=", str(tmp_path)], check=True)
            return {"DIBS_URL": "git:"}
    return {"DIBS_URL": f"sqlite://{tmp_path}/dibs.db"}


def _release(tmp_path: Path, env: dict[str, str], killed: tuple[str, ...], ttl: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def owner(*killed_at: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", DRIVER, str(ROOT / "examples"), str(outside), str(ttl), *killed_at]
        env["DIBS_OWNER"] = "-".join(["killed", *killed_at]) if killed_at else "last"
        return subprocess.run(
            words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=2 * WAIT_S_MAX, check=False
        )

    for step in killed:
        for moment in ("before", "after"):
            ended = owner(step, moment)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
    last = owner()
    assert last.returncode == 0, last.stderr
    # What was in doubt was looked up: the last owner found what the one before it did.
    assert f"{killed[-1]}: found" in last.stdout.splitlines()
    assert [(outside / step).read_text() for step in STEPS] == [f"v7 by step {step}\n" for step in STEPS]
