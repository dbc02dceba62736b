"""Running what a page tells its reader to type, and comparing what comes out with what the page says.

A page is typed from top to bottom in one shell, on a machine whose home other pages have used before:

    ```sh run           is typed
    ```sh run other     is typed in another terminal, and left running
    ```python run       is run as a script
    ```python agent.py  is saved under that name, for what is typed later
    ```text             after one that is run: what it prints. An exit code other than 0 is its last line: (exit 1)
    ```text other       what the other terminal says in the end, once its command is over

At the end of the page Ctrl-C is pressed in the other terminals. What differs from run to run (ids, times, sizes,
secrets) is compared by its shape.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.docs.pages import Block, blocks
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docs.machine import Machine

TIMEOUT_S = 2 * WAIT_S_MAX
KNOWN = ("sh run", "sh run other", "python run", "text", "text other")
SAVED = re.compile(r"python (?P<file>\w+\.py)")
# Of the shell, not of the page.
_OWN_VARIABLES = re.compile(r"(_|PWD|OLDPWD|SHLVL)=")
_SHAPES = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\b[0-9a-f]{12}\b", "HASH"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\dZ", "TIME"),
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


class Typed(NamedTuple):
    """A page that was typed. `changed` is what the shell is left with: variables that it exports, and its folder."""

    said: list[Said]
    changed: list[str]


def shape_of(text: str) -> str:
    """`text` with everything that differs from run to run replaced by what it is."""
    for pattern, word in _SHAPES:
        text = re.sub(pattern, word, text)
    return text.strip()


def is_known(info: str) -> bool:
    """Whether a block with that mark is run, saved, or compared."""
    return info in KNOWN or SAVED.fullmatch(info) is not None


def run_page(page: str, machine: Machine) -> Typed:
    """Type everything on `page` that is marked so. Raises if it takes too long, or if a step fails unannounced."""
    steps = [block for block in blocks(page) if is_known(block.info)]
    script, before, after = (machine.folder / name for name in ("page.bash", "before", "after"))
    after.unlink(missing_ok=True)
    script.write_text(_script(steps, machine, before, after), encoding="utf-8")
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = machine.start("bash", str(script), **pipes)
    try:
        written = process.communicate(timeout=TIMEOUT_S)[0].decode()
    finally:
        _end(process)
    said = _said(page, steps, _cleaned(written))
    return Typed(said, sorted(_state(after) ^ _state(before)))


def _state(file: Path) -> set[str]:
    """What a shell exports, and its folder."""
    lines = file.read_text(encoding="utf-8").split("\0")
    return {line for line in lines if line and not _OWN_VARIABLES.match(line)}


def _cleaned(written: str) -> str:
    """Without what is secret."""
    # A shell at a terminal says no more than this when a command was killed.
    written = re.sub(r"^\S*page\.bash: line \d+: +\d+ Killed .*$", "Killed", written, flags=re.MULTILINE)
    return re.sub(r"dibs_[0-9a-f]{64}", "dibs_<64 hex digits>", written)


def _script(steps: list[Block], machine: Machine, before: Path, after: Path) -> str:
    """One shell for the whole page. Each step ends with a line that says so and with what exit code."""
    state = "{ env -0; printf 'folder %s\\0' \"$PWD\"; }"
    lines = [f"{state} >{before}", "others=()"]
    for number, step in enumerate(steps):
        log = machine.folder / f"other-{number}"
        saved = SAVED.fullmatch(step.info)
        if saved:
            (machine.home / "work" / saved["file"]).write_text(step.text, encoding="utf-8")
        elif step.info in ("sh run", "python run"):
            lines += ["{", _typed(step, number, machine.folder), "} </dev/null 2>&1"]
            lines += [f"printf '\\n@@ {number} %d\\n' $?"]
        elif step.info == "sh run other":
            # A job of its own, as in another terminal: Ctrl-C reaches all of it, and is not ignored.
            lines += [f"rm -f {log}", "set -m", f"( {step.text}\n) </dev/null >{log} 2>&1 &", "set +m"]
            lines += ["others+=($!)", f"other_log={log}"]
            # The page goes on when a server listens, or when something else has said something; what says nothing
            # while it waits gets a moment.
            serves = "dibs serve" in step.text
            ready = f"grep -qs 'listens on' {log}" if serves else f"[ -s {log} ]"
            tries = 300 if serves or "python" in step.text else 10
            lines += [f"for _ in {{1..{tries}}}; do {ready} && break; sleep 0.1; done"]
            lines += [f"cat {log}; printf '\\n@@ {number} 0\\n'"]
        elif step.info == "text other":
            lines += [
                'wait "${others[-1]}"; code=$?',
                f"cat \"$other_log\"; printf '\\n@@ {number} %d\\n' $code",
            ]
    lines += [f"{state} >{after}"]
    lines += ['for other in "${others[@]}"; do kill -INT -- "-$other"; wait "$other"; done 2>/dev/null']
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
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=WAIT_S_MAX)
