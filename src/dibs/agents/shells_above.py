"""The processes above a command, as the system shows them: which program runs it, and through which shells."""

from __future__ import annotations

import os

from dibs.system import table

_SHELLS = frozenset(
    {"sh", "bash", "rbash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "oksh", "yash", "fish", "csh", "tcsh"}
)
# Programs that are written before a command and run it as their child.
_WRAPPERS = frozenset(("timeout", "time", "uv"))
STEPS_MAX = 64


class ProcessAbove:
    """A process as the system shows it. A fork has the `words` and `program` of its parent, a new shell others."""

    def __init__(self, pid: int, parent: int, program: str, words: bytes) -> None:
        self.pid = pid
        self.parent = parent
        self.program = program
        self.words = words
        self.name = os.path.basename(program).partition("-")[0].rstrip("0123456789.")

    @property
    def is_shell(self) -> bool:
        return self.name in _SHELLS


def look(pid: int) -> ProcessAbove | None:
    """None if there is no such process, or if it cannot be seen."""
    found = table().entry(pid)
    command = table().command(pid) if found is not None else None
    return None if found is None or command is None else ProcessAbove(pid, found.parent, *command)


def runner(pid: int) -> ProcessAbove | None:
    """The process that runs a command whose parent is `pid`: the first that does not only wrap it."""
    found = look(pid)
    for _ in range(STEPS_MAX):
        if found is None or found.name not in _WRAPPERS:
            return found
        found = look(found.parent)
    return None


def forked_shells(first: ProcessAbove | None) -> list[ProcessAbove]:
    """A shell and the shells it was forked from: they have the same program and the same words."""
    chain: list[ProcessAbove] = []
    found = first
    while found is not None and found.is_shell and len(chain) < STEPS_MAX:
        if chain and (found.program, found.words) != (chain[0].program, chain[0].words):
            break
        chain.append(found)
        found = look(found.parent)
    return chain
