"""A user's machine with git, sh and dibs on its PATH, and a state folder of its own. Real processes throughout."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dibs
from tests.programs import WAIT_S_MAX, Ran, clean_env, dibs_here, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# `field data.lock.nonce` prints that part of the JSON document on its input; of a list, that part of each.
_FIELD = """
import json, sys
found = [json.load(sys.stdin)]
for key in sys.argv[1].split("."):
    found = [part for each in found for part in (each[key] if isinstance(each[key], list) else [each[key]])]
print(*found, sep="\\n")
"""


def _folders_without_dibs(path: str) -> list[str]:
    """The `dibs` of a virtual environment that the tests run in is none of this machine's."""
    return [folder for folder in path.split(os.pathsep) if not os.path.exists(os.path.join(folder, "dibs"))]


class Shells:
    """Runs scripts as a user would, each in a shell of its own, from a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.home = folder / "work"
        self.home.mkdir()
        kept = {key: value for key, value in clean_env(folder / "state").items() if not key.startswith("GIT_")}
        self.env = kept | {
            "PATH": os.pathsep.join([str(self.bin), *_folders_without_dibs(kept.get("PATH", os.defpath))]),
            "HOME": str(folder),
            "USER": "ann",
            "LOGNAME": "ann",
            "LC_ALL": "C.UTF-8",
            # Compiled once for all of these processes, whatever is set outside.
            "PYTHONDONTWRITEBYTECODE": "",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(folder / "gitconfig"),
        }
        (folder / "gitconfig").write_text(
            "[user]\n name = Ann\n email = ann@example.org\n[init]\n defaultBranch = main\n"
            '[protocol "file"]\n allow = always\n'
        )
        source = Path(dibs.__file__).parents[1]
        self.env["PYTHONPATH"] = str(source)
        self.program("dibs", f'exec {sys.executable} -m dibs "$@"')
        self.program("field", f"exec {sys.executable} -c '{_FIELD}' \"$@\"")
        self._started: list[subprocess.Popen[str]] = []

    def program(self, name: str, script: str) -> None:
        """Put a small program on the PATH."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def serve(self, tokens: str) -> str:
        """The URL of a server on a socket, for the tokens of these lines. It ends with the test."""
        path, file = self.folder / "dibs.sock", self.folder / "tokens"
        file.write_text(tokens)
        file.chmod(0o600)
        child = self.start(f"exec dibs serve --bind unix:{path} --tokens {file}")

        def listens() -> bool:
            assert child.poll() is None, child.communicate()
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(path)) == 0

        wait_until(listens, "the server listens")
        return f"unix://{path}"

    def start(self, script: str, *, shell: str = "sh", cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        """A script in a file, in a shell that has only just begun, and goes on by itself."""
        file = self.folder / f"script-{len(self._started)}"
        file.write_text(script, encoding="utf-8", errors="surrogateescape")
        child = subprocess.Popen(
            [shell, str(file)],
            cwd=cwd or self.home,
            env=self.env | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
        self._started.append(child)
        return child

    def __call__(self, script: str, *, shell: str = "sh", cwd: Path | None = None, **env: str) -> Ran:
        """Run a script to its end."""
        return finished(self.start(script, shell=shell, cwd=cwd, **env), script)

    def close(self) -> None:
        for child in self._started:
            if child.poll() is None:
                child.kill()
            child.communicate()


def finished(child: subprocess.Popen[str], script: str = "") -> Ran:
    out, err = child.communicate(timeout=WAIT_S_MAX)
    return Ran([script], subprocess.CompletedProcess([script], child.returncode, out, err))


@pytest.fixture
def shells(tmp_path: Path, need_program: Callable[[str], str]) -> Iterator[Shells]:
    need_program("git")
    made = Shells(tmp_path)
    yield made
    made.close()


class Clone:
    """A repository whose commits are guarded: `git("commit", ...)` as its user types it."""

    def __init__(self, shells: Shells, folder: Path) -> None:
        self.shells = shells
        self.folder = folder

    def sh(self, script: str, **env: str) -> Ran:
        return self.shells(script, cwd=self.folder, **env)

    def must(self, script: str, **env: str) -> Ran:
        ran = self.sh(f"set -e\n{script}", **env)
        assert ran.exit == 0, ran
        return ran

    def write(self, path: str, text: str = "text\n") -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def stage(self, *paths: str, text: str = "text\n") -> None:
        """Write files and stage them."""
        for path in paths:
            self.write(path, text)
        self.must("git add -A")

    def held_by_another(self, *names: str) -> None:
        words = ("claim-all", "-q", "--owner", "agent-7", "--ttl", "10m", *names)
        done = dibs_here(self.shells.env, self.folder, *words)
        assert done.returncode == 0, done


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> Path:
    """A git folder with the hooks in place and policy `require`, made once to be copied."""
    need_program("git")
    shells = Shells(tmp_path_factory.mktemp("guarded"))
    Clone(shells, shells.home).must("git init -q\ndibs hook install -q\ngit config dibs.policy require")
    shells.close()
    return shells.home / ".git"


@pytest.fixture
def clone(shells: Shells, guarded: Path) -> Clone:
    """A clone with the hooks in place and policy `require`, nothing committed yet."""
    shutil.copytree(guarded, shells.home / ".git")
    return Clone(shells, shells.home)
