"""Somebody who pastes the blocks of a page for operators, on this machine.

`systemctl`, `ssh`, `sudo` and `pip` are stand-ins: a service is a server of the test, a machine is its name, and to
install is to put another source in place. Everything else on the page is what is run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.docs.pages import DOCS, blocks, read
from tests.programs import ROOT, WAIT_S_MAX, ServerProcess, clean_env

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROGRAMS = {
    "dibs": 'PYTHONPATH="$INSTALLED" exec "$PYTHON" -m dibs "$@"',
    "pip": '[ "$1 $2" = "install --upgrade" ] && ln -sfn "$3" "$INSTALLED"',
    "ssh": 'export MACHINE="${1%%.*}"; shift; exec "$@"',
    "sudo": 'exec "$@"',
    "systemctl": 'echo "$1 ${MACHINE:-one}" >"$UNITS/asked"; read -r code <"$UNITS/told"; exit "$code"',
}


def block_of(page: str, word: str) -> str:
    """The one block of a how-to that has this word."""
    (found,) = [block.text for block in blocks(read(DOCS / "how-to" / page)) if word in block.text]
    return found


def _pipe(path: Path) -> int:
    """A named pipe that has a reader and a writer, so that nobody waits for one who was killed."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


class Operator:
    """`services` are the servers by the names of their machines. `here` says what a text of the page is here."""

    def __init__(self, folder: Path, here: Mapping[str, str], source: Path = ROOT / "src") -> None:
        self._folder = folder
        self._here = here
        self.services: dict[str, ServerProcess] = {}
        self.installed = folder / "installed"
        self.installed.symlink_to(source)
        # Called after a service was started, with its name.
        self.after_start: Callable[[str], object] = lambda name: None
        self.trouble: BaseException | None = None
        for name, text in _PROGRAMS.items():
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            program.chmod(0o755)
        self._asked, self._told = (_pipe(folder / name) for name in ("asked", "told"))
        self._listens = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self) -> Self:
        self._listens.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._asked, b"\n")
        self._listens.join(WAIT_S_MAX)
        for server in self.services.values():
            server.kill()
        os.close(self._told)

    @property
    def command(self) -> list[str]:
        """The `dibs` that is installed when it is started."""
        return ["env", f"PYTHONPATH={self.installed}", sys.executable, "-m", "dibs"]

    def serve(self, name: str, store: str, port: int, *flags: str) -> ServerProcess:
        """A service that runs."""
        home = self._folder / f"machine-{name}"
        home.mkdir()
        server = ServerProcess(home, store=store, bind=f"127.0.0.1:{port}", flags=flags, command=self.command)
        self.services[name] = server
        server.start()
        (self._folder / f"url-{name}").write_text(server.url)
        return server

    def paste(self, text: str) -> subprocess.CompletedProcess[str]:
        """Type these lines. A line that fails ends it."""
        for there, here in self._here.items():
            text = text.replace(there, here)
        path = f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        more = {"PATH": path, "UNITS": str(self._folder), "INSTALLED": str(self.installed), "PYTHON": sys.executable}
        done = subprocess.run(
            ["bash", "-ec", text],
            env=clean_env(self._folder / "home", **more),
            capture_output=True,
            text=True,
            timeout=4 * WAIT_S_MAX,
            check=False,
        )
        assert self.trouble is None, self.trouble
        return done

    def _answer(self) -> None:
        """Does what `systemctl` asks for."""
        with os.fdopen(self._asked) as lines:
            while asked := lines.readline().split():
                try:
                    self._do(*asked)
                    code = b"0\n"
                except BaseException as error:
                    self.trouble, code = error, b"1\n"
                os.write(self._told, code)

    def _do(self, verb: str, name: str) -> None:
        server = self.services[name]
        if verb in ("stop", "restart"):
            assert server.stop() == 0
        if verb in ("start", "restart"):
            server.start()
            self.after_start(name)
