"""The machine on which the pages are read: one home and one working folder for all of them, and a network of its own.

What pages write to /etc, /home, /run and /var nobody else sees, and it is gone with the machine. So what is run is what
is printed: a server listens on port 3427, the home is /home/you, the host is called `host`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import dibs
from tests.programs import WAIT_S_MAX, environment_without_dibs, wait_until

HOME = "/home/you"
WORK = f"{HOME}/work"
NEEDS = ("bash", "curl", "git", "groupadd", "hostname", "ip", "mount", "nsenter", "unshare")
# $1 is a folder that stays the same inside and outside. What is written below the four goes into memory instead.
_SET_UP = """
set -e
PATH=$PATH:/usr/sbin
mount -t tmpfs dibs /media
mkdir /media/shared
mount --bind "$1" /media/shared
for top in etc home run var; do
    mkdir "/media/$top" "/media/.$top"
    mount -t overlay -o "lowerdir=/$top,upperdir=/media/$top,workdir=/media/.$top" overlay "/$top"
done
mount --bind /media/shared "$1"
mkdir /home/you
mount --bind "$1/home" /home/you
ip link set lo up
hostname host
echo ready
exec cat
"""


class Machine:
    """Its namespaces last as long as one process, which ends with ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        for name in ("bin", "home/work"):
            (folder / name).mkdir(parents=True)
        self.env = self._environment()
        words = ["unshare", "--mount", "--net", "--uts", "sh", "-c", _SET_UP, "sh", str(folder)]
        self._first = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._first.stdout is not None
        said = self._first.stdout.readline()
        if said != b"ready\n":
            said += self._first.stdout.read()
            self.close()
            raise OSError(f"a machine of its own cannot be made here: {said.decode()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *words: str, **how: Any) -> subprocess.Popen[bytes]:
        """A program of this machine, in the working folder. `how` is for Popen."""
        enter = ["nsenter", f"--target={self._first.pid}", "--mount", "--net", "--uts", "env", f"--chdir={WORK}"]
        return subprocess.Popen([*enter, *words], env=self.env, start_new_session=True, **how)

    def running(self) -> dict[int, str]:
        """What runs on this machine: process ids and command lines."""
        network = os.readlink(f"/proc/{self._first.pid}/ns/net")
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is about to
                if os.readlink(process / "ns/net") == network and process.name != str(self._first.pid):
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(process.name)] = words.decode(errors="replace")
        return found

    def end_all(self) -> None:
        """End what runs here, and whatever that starts meanwhile."""

        def none_is_left() -> bool:
            for pid in (left := self.running()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_until(none_is_left, "all programs of the machine have ended")

    def close(self) -> None:
        if self._first.poll() is None:
            self.end_all()
        for pipe in (self._first.stdin, self._first.stdout):
            assert pipe is not None
            pipe.close()
        self._first.wait(WAIT_S_MAX)

    def _environment(self) -> dict[str, str]:
        """As for a new user, with commands that are those under test and a `python` that can import them."""
        programs = self.folder / "bin"
        source = Path(dibs.__file__).parents[1]
        words = {"dibs": "-m dibs", "python": ""}
        for name in ("rlock", "runlock", "rlock-heartbeat"):
            function = name.replace("-", "_")
            importing = f"import sys; from dibs.compat.action_llama.rlock import {function}"
            words[name] = f'-c "{importing}; sys.exit({function}())"'
        for name, rest in words.items():
            command = programs / name
            text = f'#!/bin/sh\nexport PYTHONPATH={source}\nexec {sys.executable} {rest} "$@"\n'
            command.write_text(text, encoding="utf-8")
            command.chmod(0o755)
        kept = {key: value for key, value in environment_without_dibs().items() if not key.startswith("XDG_")}
        path = f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
        user = {"HOME": HOME, "USER": "you", "LOGNAME": "you", "TZ": "UTC", "LANG": "C.UTF-8"}
        return {**kept, **user, "PATH": path}
