"""The builds of dibs that are measured beside each other: pure Python, compiled, an older version.

`NAME=PYTHON` is the Python of an environment that has the build installed; `NAME=PYTHON:FOLDER` puts a folder with a
source tree (`src`) before what is installed there. Both may be relative to the current folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from procs import BenchError, plain_environment
from targets import ACQUIRE, CYCLE, WAVE, DibsTarget

OURS = "dibs"


@dataclass(frozen=True, slots=True)
class Build:
    name: str = OURS
    python: str = sys.executable
    source: str = ""

    @classmethod
    def parse(cls, text: str) -> Build:
        name, _, rest = text.partition("=")
        python, _, source = rest.partition(":")
        if not name or not python:
            raise BenchError(f"{text!r} is not NAME=PYTHON or NAME=PYTHON:FOLDER")
        # Commands of it run in other folders. A link to an interpreter is how an environment is known: not resolved.
        return cls(name, os.path.abspath(python), os.path.abspath(source) if source else "")

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": self.source} if self.source else {}

    @property
    def script(self) -> str:
        return str(Path(self.python).parent / "dibs")

    def target(self) -> DibsTarget:
        before = ("env", *(f"{key}={value}" for key, value in self.env.items())) if self.env else ()
        return DibsTarget((*before, self.python, "-m", "dibs"), self.name, (ACQUIRE, CYCLE, WAVE))

    def run(self, argv: list[str], seconds: float) -> str:
        """The last line that a program of the bench prints, run by this build's Python."""
        try:
            done = subprocess.run(
                [self.python, *argv],
                env=plain_environment(self.env),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{self.name}: {argv[0]} did not end within {seconds:.0f} s") from error
        if done.returncode != 0 or not done.stdout:
            raise BenchError(
                f"{self.name}: {argv[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"
            )
        return done.stdout.splitlines()[-1]
