"""A clone of acme/app, a stand-in for gh on its PATH, and the dibs command there. Nothing here reaches GitHub."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.cli.main import run
from tests.programs import DIBS, WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

STAND_IN = Path(__file__).parent / "stand_in_gh.py"


class GitHubStandIn:
    """What the stand-in for gh answers from, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "github.json"
        self._calls = folder / "github.json.calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = self.bin / "gh"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{STAND_IN}" "$@"\n')
        program.chmod(0o755)
        self.write({"issues": {"acme/app": {}}})

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return found

    def write(self, state: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(state), encoding="utf-8")

    def issue(self, number: int, place: str = "acme/app", **fields: Any) -> None:
        state = self.read()
        issues = state["issues"].setdefault(place, {})
        issues[str(number)] = issues.get(str(number), {}) | fields
        self.write(state)

    def seen(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.read()["issues"]["acme/app"][str(number)]
        return found

    def fails(self, *modes: str, always: str = "") -> None:
        self.write(self.read() | {"modes": list(modes), "mode": always})

    def calls(self) -> list[dict[str, Any]]:
        lines = self._calls.read_text(encoding="utf-8").splitlines() if self._calls.exists() else []
        return [json.loads(line) for line in lines]


class Ran:
    def __init__(self, exit_code: int, out: str, err: str) -> None:
        self.exit = exit_code
        self.out = out
        self.err = err

    @property
    def data(self) -> dict[str, Any]:
        document = json.loads(self.out)
        found: dict[str, Any] = document["data"] if "data" in document else document["error"]
        return found


class Clone:
    """A clone of acme/app with settings, and a store of its own."""

    def __init__(self, folder: Path, github: GitHubStandIn) -> None:
        self.folder = folder / "app"
        self.folder.mkdir()
        self.github = github
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("DIBS_", "GH_", "GITHUB_"))}
        self.env = kept | {
            "PATH": f"{github.bin}:{os.environ['PATH']}",
            "DIBS_URL": f"sqlite://{folder / 'dibs.db'}",
            "XDG_STATE_HOME": str(folder / "state"),
            "STAND_IN_GH": str(github.path),
            "DIBS_OWNER": "w1",
        }
        self.git("init", "-q")
        self.git("remote", "add", "origin", "https://github.com/Acme/App.git")

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.folder, check=True, timeout=WAIT_S_MAX, env=self.env)

    def settings(self, *lines: str) -> None:
        (self.folder / ".dibs.toml").write_text("\n".join(["[tracker]", *lines, ""]), encoding="utf-8")

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*DIBS, *words],
            cwd=self.folder,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, **env: str) -> Ran:
        """A command in this process, or in one of its own if it forks."""
        if words[0] in ("run", "hold"):
            return self._in_process_of_its_own(words, env)
        out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
        os.chdir(self.folder)
        try:
            code = run(words, self.env | env, out, err, None)
        finally:
            os.chdir(before)
        return Ran(code, out.getvalue(), err.getvalue())

    def _in_process_of_its_own(self, words: tuple[str, ...], env: dict[str, str]) -> Ran:
        child = self.start(*words, **env)
        try:
            out, err = child.communicate(timeout=WAIT_S_MAX)
        finally:
            end(child)
        return Ran(child.returncode, out, err)

    def claim(self, job: str, *flags: str) -> str:
        ran = self("claim", "-q", *flags, job)
        assert ran.exit == 0, ran.err
        return ran.out.strip()


def end(child: subprocess.Popen[str]) -> None:
    """Leave no process and no pipe behind, whatever happened."""
    if child.poll() is None:
        child.kill()
    child.communicate()


@pytest.fixture
def github(tmp_path: Path) -> GitHubStandIn:
    return GitHubStandIn(tmp_path)


@pytest.fixture
def clone(tmp_path: Path, github: GitHubStandIn, need_program: Callable[[str], str]) -> Clone:
    need_program("git")
    made = Clone(tmp_path, github)
    made.settings('check = "github"')
    return made
