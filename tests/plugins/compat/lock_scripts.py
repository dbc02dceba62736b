"""The lock commands as programs: ours as they are installed, and a stand-in for Action Llama's shell scripts.

The stand-in is written from what is known of theirs: `curl`, the key pasted into the JSON as it is, the body on stdout,
and an exit code for each HTTP status.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import dibs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = Path(dibs.__file__).parents[1]
TIMEOUT_S = 60
OURS = {"rlock": "rlock", "runlock": "runlock", "rlock-heartbeat": "rlock_heartbeat"}
VERBS = {"rlock": "acquire", "runlock": "release", "rlock-heartbeat": "heartbeat"}

_OURS = """#!{python}
import sys
sys.path.insert(0, {source!r})
from dibs.compat.action_llama.rlock import {function}
sys.exit({function}())
"""

_THEIRS = """#!/bin/sh
if [ -z "$GATEWAY_URL" ]; then echo '{{"ok":true}}'; exit 0; fi
if [ -z "$1" ]; then echo '{{"ok":false,"error":"usage: {name} <resourceKey>"}}'; exit 9; fi
reply=$(curl -s --connect-timeout 5 --max-time 10 -w '\\n%{{http_code}}' -X POST \\
    -d "{{\\"secret\\":\\"$SHUTDOWN_SECRET\\",\\"resourceKey\\":\\"$1\\"}}" "$GATEWAY_URL/locks/{verb}")
status=$(printf '%s\\n' "$reply" | tail -n 1)
printf '%s\\n' "$reply" | sed '$d'
case "$status" in
    200) exit 0 ;; 409) exit 1 ;; 404) exit 2 ;; 403) exit 3 ;; 400) exit 4 ;;
    503) exit 5 ;; 000) exit 6 ;; 502) exit 10 ;; 504) exit 11 ;; 500) exit 12 ;;
    *) exit 7 ;;
esac
"""


def install_ours(folder: Path) -> Path:
    """The three commands in a folder for PATH, as an installer would make them."""
    texts = {
        name: _OURS.format(python=sys.executable, source=str(SOURCE), function=function)
        for name, function in OURS.items()
    }
    texts["dibs"] = _OURS.format(python=sys.executable, source=str(SOURCE), function="entry").replace(
        "dibs.compat.action_llama.rlock", "dibs.cli.main"
    )
    return _write(folder, texts)


def install_theirs(folder: Path) -> Path:
    return _write(folder, {name: _THEIRS.format(name=name, verb=verb) for name, verb in VERBS.items()})


def _write(folder: Path, texts: Mapping[str, str]) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def on_path(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    unset = ("GATEWAY_URL", "SHUTDOWN_SECRET")
    kept = {name: value for name, value in env.items() if name not in unset}
    return {**kept, "PATH": f"{folder}{os.pathsep}{env['PATH']}"}


def typed(env: Mapping[str, str], cwd: Path, *words: str) -> tuple[int, str]:
    """Exit code and stdout. Nothing may stand on stderr."""
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def at_once(env: Sequence[Mapping[str, str]], cwd: Path, *words: str) -> list[int]:
    """The exit codes of one process for each environment, all at the same time."""
    children = [
        subprocess.Popen(words, env=each, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in env
    ]
    return [child.wait(TIMEOUT_S) for child in children]
