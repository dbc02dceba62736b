"""Running what a page tells its reader to type, and comparing what comes out with what the page says.

A page is run from top to bottom in one shell, in an empty home folder:

    ```sh run           is typed
    ```sh run other     is typed in another terminal, and left running
    ```python run       is run as a script
    ```python agent.py  is saved under that name, for what is typed later
    ```text             after one that is run: what it prints. An exit code other than 0 is its last line: (exit 1)
    ```text other       what the other terminal says in the end, once its command is over

What differs from run to run (ids, times, sizes, secrets) is compared by its shape. Port 3427 stands for a free one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import dibs
from tests.docs.pages import Block, blocks
from tests.programs import environment_without_dibs, reserved_ports

TIMEOUT_S = 60
KNOWN = ("sh run", "sh run other", "python run", "text", "text other")
SAVED = re.compile(r"python (?P<file>\w+\.py)")
PORT = "3427"
HOME = "/home/you"
_SHAPES = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\b[0-9a-f]{12}\b", "HASH"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\dZ", "TIME"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "TIME"),
    (r"\b\d\d:\d\d:\d\dZ?\b", "TIME"),
    (r"\b\w{3}, \d\d \w{3} \d{4} TIME GMT", "TIME"),
    (r"\b(just now|\d+ (second|minute|hour)s? ago)", "AGO"),
    (r"\b\d+(ms|s|m|h|d)\b( \d+(ms|s|m|h|d)\b)?", "LENGTH"),
    (r"[A-Za-z0-9_-]{40,}", "SECRET"),
    (r'(_(ms|seconds)": ?)\d+', r"\1NUMBER"),
    (r"\breq_[A-Za-z0-9]+", "REQUEST"),
    (r"\(pid \d+\)", "(pid NUMBER)"),
    (r"[+±-]?\d+(\.\d)? ms\b", "NUMBER ms"),
    (r"(?<![\w.-])\d{3,}(?![\w.-])", "NUMBER"),
    (r"\b\d+(\.\d+)? (bytes|KiB|MiB|GiB)", "SIZE"),
    (r"Python \d[\w.]*", "Python"),
    (r"[ \t]+", " "),
)


class Said(NamedTuple):
    """A `text` block of a page, and what really came out."""

    block: Block
    output: str


def shape_of(text: str) -> str:
    """`text` with everything that differs from run to run replaced by what it is."""
    for pattern, word in _SHAPES:
        text = re.sub(pattern, word, text)
    return text.strip()


def is_known(info: str) -> bool:
    """Whether a block with that mark is run, saved, or compared."""
    return info in KNOWN or SAVED.fullmatch(info) is not None


def run_page(page: str, folder: Path) -> list[Said]:
    """Type everything on `page` that is marked so. Raises if it takes too long, or if a step fails unannounced."""
    steps = [block for block in blocks(page) if is_known(block.info)]
    with reserved_ports(1) as (free,):
        return _run_page(page, steps, folder, str(free))


def _run_page(page: str, steps: list[Block], folder: Path, port: str) -> list[Said]:
    script = folder / "page.bash"
    script.write_text(_script(steps, folder).replace(PORT, port), encoding="utf-8")
    process = subprocess.Popen(
        ["bash", str(script)],
        cwd=_made(folder / "work"),
        env={**_environment(folder), "DIBS_BIND": f"127.0.0.1:{port}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        written = process.communicate(timeout=TIMEOUT_S)[0].decode()
    finally:
        _end(process)
    return _said(page, steps, _cleaned(written, str(folder / "home"), port))


def _cleaned(written: str, home: str, port: str) -> str:
    """Without what belongs to the machine or is secret."""
    written = written.replace(home, HOME).replace(port, PORT)
    # A shell at a terminal says no more than this when a command was killed.
    written = re.sub(r"^\S*page\.bash: line \d+: +\d+ Killed .*$", "Killed", written, flags=re.MULTILINE)
    written = written.replace(f"you@{os.uname().nodename}", "you@host")
    return re.sub(r"dibs_[0-9a-f]{64}", "dibs_<64 hex digits>", written)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _environment(folder: Path) -> dict[str, str]:
    """As on a fresh machine, with commands that are those under test and a `python` that can import them."""
    programs = _made(folder / "bin")
    source = Path(dibs.__file__).parents[1]
    words = {"dibs": "-m dibs", "python": ""}
    for name in ("rlock", "runlock", "rlock-heartbeat"):
        function = name.replace("-", "_")
        words[name] = f'-c "import sys; from dibs.compat.action_llama.rlock import {function}; sys.exit({function}())"'
    for name, rest in words.items():
        command = programs / name
        text = f'#!/bin/sh\nexport PYTHONPATH={source}\nexec {sys.executable} {rest} "$@"\n'
        command.write_text(text, encoding="utf-8")
        command.chmod(0o755)
    kept = {key: value for key, value in environment_without_dibs().items() if not key.startswith("XDG_")}
    path = f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}"
    home = str(_made(folder / "home"))
    return {
        **kept,
        "PATH": path,
        "HOME": home,
        "USER": "you",
        "LOGNAME": "you",
        "TZ": "UTC",
        "LANG": "C.UTF-8",
    }


def _script(steps: list[Block], folder: Path) -> str:
    """One shell for the whole page. Each step ends with a line that says so and with what exit code."""
    lines = ["others=()", "trap 'kill \"${others[@]}\" 2>/dev/null' EXIT"]
    for number, step in enumerate(steps):
        log = folder / f"other-{number}"
        saved = SAVED.fullmatch(step.info)
        if saved:
            (_made(folder / "work") / saved["file"]).write_text(step.text, encoding="utf-8")
        elif step.info in ("sh run", "python run"):
            lines += ["{", _typed(step, number, folder), "} </dev/null 2>&1"]
            lines += [f"printf '\\n@@ {number} %d\\n' $?"]
        elif step.info == "sh run other":
            lines += [f"( {step.text}\n) </dev/null >{log} 2>&1 &", "others+=($!)", f"other_log={log}"]
            # The page goes on when it has said something; what says nothing while it waits gets a moment.
            tries = 100 if "dibs serve" in step.text or "python" in step.text else 10
            lines += [f"for _ in {{1..{tries}}}; do [ -s {log} ] && break; sleep 0.1; done"]
            lines += [f"cat {log}; printf '\\n@@ {number} 0\\n'"]
        elif step.info == "text other":
            lines += [
                'wait "${others[-1]}"; code=$?',
                f"cat \"$other_log\"; printf '\\n@@ {number} %d\\n' $code",
            ]
    return "\n".join(lines) + "\n"


def _typed(step: Block, number: int, folder: Path) -> str:
    """What stands in the shell's script for a block that is run."""
    if step.info == "sh run":
        return step.text
    file = folder / f"block-{number}.py"
    file.write_text(step.text, encoding="utf-8")
    return f"python {file}"


def _said(page: str, steps: list[Block], written: str) -> list[Said]:
    outputs: dict[int, str] = {}
    at = 0
    for mark in re.finditer(r"\n?^@@ (\d+) (\d+)\n", written, re.MULTILINE):
        output, code = written[at : mark.start()].strip("\n"), int(mark[2])
        outputs[int(mark[1])] = f"{output}\n(exit {code})".strip("\n") if code else output
        at = mark.end()
    found: list[Said] = []
    for number, step in enumerate(steps):
        if step.info == "text" or SAVED.fullmatch(step.info):
            continue
        assert number in outputs, f"never came to: {step.text}\n{written[-2000:]}"
        after = steps[number + 1] if number + 1 < len(steps) else step
        if step.info == "text other":
            found.append(Said(step, outputs[number]))
        elif after.info == "text" and page[step.end : after.start].split() == ["```", "```text"]:
            found.append(Said(after, outputs[number]))
        else:
            assert "(exit " not in outputs[number], f"{step.text}\n{outputs[number]}"
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """The shell and whatever it left behind, all of which is of its own session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(timeout=10)
