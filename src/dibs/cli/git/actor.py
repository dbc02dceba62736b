"""Who types `dibs lock`, when no lease id is passed along: grite's "actor", without an actor that two agents share.

grite takes every process of a clone for one actor, so that its agents never exclude each other. Here an actor is one of

- a name that the caller gives (`--actor`, DIBS_ACTOR), or a folder that stands for one, as in grite (`--data-dir`,
  GRITE_HOME): whoever gives the same says that it is the same worker;
- else the shell that runs the command, as the system knows it: one process, by boot, pid and start.

A shell that was forked (a subshell, a pipeline) is another process, and so another actor. Two allowances make scripts
work. A subshell may keep alive what the shell it was forked from holds (a renewal loop in the background). And what a
subshell took that is gone (`x=$(dibs lock acquire ... | jq ...)`) belongs to the shell it was forked from. Neither
makes a lease that two live ones could each take for their own: only the taker acquires it again or releases it.

An agent that runs every command in a shell of its own is the parent of shells that are gone. It, and whatever it runs,
may renew and release by name what such a shell took (`may_end`); it may not acquire it again, because two agents may
share that parent.

Where the command's parent is no shell (an agent's program that runs it directly) there is no actor: two agents inside
one such program would share it.
"""

from __future__ import annotations

import os

from dibs import proc
from dibs.cli.framework.parse import UsageError
from dibs.core.limits import OWNER_CHARS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.cli.framework.context import Call

_SHELLS = frozenset("sh bash rbash dash ash busybox zsh ksh mksh oksh yash fish csh tcsh".split())
# Programs that a shell puts before a command and that run it as a child of theirs.
_WRAPPERS = frozenset(("timeout", "time", "uv"))
_STEPS_MAX = 64


class Actor:
    """`marks` name it for good: one mark for a named one; for a shell its own, then those it was forked from, nearest
    first. None at all: nobody can tell. `owner` is what others are shown, None where nothing better is known. `parent`
    is the mark of whoever runs the shell, if there is one. `named`: the caller gave the name."""

    __slots__ = ("marks", "named", "owner", "parent")

    def __init__(
        self, marks: tuple[str, ...], owner: str | None, *, parent: str | None = None, named: bool = False
    ) -> None:
        self.marks = marks
        self.owner = owner
        self.parent = parent
        self.named = named


def actor_of(call: Call, *, in_hook: bool = False) -> Actor:
    """The actor of this command. `in_hook`: git runs it, so that whoever runs git is meant."""
    named = _named(call)
    if named is not None:
        return named
    chain = _forked_shells(_runner_of_git() if in_hook else _runner(os.getppid()))
    from dibs.client.embedded import process_mark

    marks: list[str] = []
    for shell in chain:
        mark = process_mark(shell.pid)
        if mark is None:  # it ended just now: what lies beyond it is not known to be the same
            break
        marks.append(mark)
    if not marks:
        return Actor((), None)
    owner = None if call.settings.pick("owner", "DIBS_OWNER") else f"{call.settings.owner}:{chain[0].pid}"
    # A shell whose parent is gone was given to the first process of all, which is nobody's.
    above = chain[-1].parent if len(marks) == len(chain) and chain[-1].parent > 1 else None
    return Actor(tuple(marks), owner, parent=None if above is None else process_mark(above))


def _named(call: Call) -> Actor | None:
    """Who the caller says to be. A flag wins over a variable, a name over a folder."""
    name: str | None = call.values.get("actor")
    folder: str | None = call.values.get("data_dir")
    if name is None and folder is None:
        name, folder = call.env.get("DIBS_ACTOR") or None, call.env.get("GRITE_HOME") or None
    if name is not None:
        return Actor((f"name:{_checked(call, name)}",), name, named=True)
    if folder is None:
        return None
    if not folder.strip():
        raise UsageError("--data-dir is empty. Give a folder, or leave it out.", call.command)
    whole = os.path.realpath(folder)
    last = _checked(call, os.path.basename(whole) or "/")
    # grite keeps an actor in a folder of its id's: that folder and that id are the same actor.
    is_actor = os.path.basename(os.path.dirname(whole)) == "actors"
    return Actor((f"name:{last}" if is_actor else f"home:{whole}",), last, named=True)


def _checked(call: Call, name: str) -> str:
    if not name.strip() or not name.isprintable() or len(name) > OWNER_CHARS_MAX:
        raise UsageError(
            f"--actor (DIBS_ACTOR) is a printable name of 1 to {OWNER_CHARS_MAX} characters, not {name!a}.",
            call.command,
        )
    return name


def took_it(taker: Mapping[str, list[str]], actor: Actor) -> bool:
    """Whether the actor took what is remembered so, or has it from a subshell that is gone."""
    marks = taker["marks"]
    if not actor.marks or actor.marks[0] not in marks:
        return False
    from dibs.client.embedded import is_gone

    return all(is_gone(mark) for mark in marks[: marks.index(actor.marks[0])])


def may_keep(taker: Mapping[str, list[str]], actor: Actor) -> bool:
    """Whether the actor may keep alive what is remembered so: the taker, and subshells forked from it."""
    return took_it(taker, actor) or (bool(taker["marks"]) and taker["marks"][0] in actor.marks)


def may_end(taker: Mapping[str, Any], actor: Actor) -> bool:
    """Whether the actor may renew and release, by its name, what is remembered so: the taker; and when the shell that
    took it is gone, whoever descends from that shell's parent."""
    if took_it(taker, actor):
        return True
    parent, marks = taker.get("parent"), taker["marks"]
    if not parent or actor.named:
        return False
    from dibs.client.embedded import is_gone, lineage

    return all(is_gone(mark) for mark in marks) and parent in lineage(os.getppid())


class _Process:
    """A process as /proc shows it. `words` and `program` together tell a fork from a shell of its own."""

    __slots__ = ("name", "parent", "pid", "program", "words")

    def __init__(self, pid: int, parent: int, program: str, words: bytes) -> None:
        self.pid = pid
        self.parent = parent
        self.program = program
        self.words = words
        self.name = (
            os.path.basename(program.removesuffix(" (deleted)")).partition("-")[0].rstrip("0123456789.")
        )

    @property
    def is_shell(self) -> bool:
        return self.name in _SHELLS


def _look(pid: int) -> _Process | None:
    """None where there is no such process, or the system does not let us see it."""
    try:
        parent = int(proc.stat(pid)[1])
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read()
        return _Process(pid, parent, os.readlink(f"/proc/{pid}/exe"), words)
    except (OSError, ValueError, IndexError):
        return None


def _runner(pid: int) -> _Process | None:
    """Who runs a command whose parent is `pid`: that one, or past it where it only wraps a command."""
    found = _look(pid)
    for _ in range(_STEPS_MAX):
        if found is None or found.name not in _WRAPPERS:
            return found
        found = _look(found.parent)
    return None


def _runner_of_git() -> _Process | None:
    """Whoever runs the git that runs this hook: past the hook's own shell, git, and the shells of git's aliases. Where
    there is no git, somebody typed the hook's command, and is meant."""
    found = _look(os.getppid())
    runner = None
    for _ in range(_STEPS_MAX):
        if found is None:
            break
        if found.name == "git":
            runner = _runner(found.parent)
        elif runner is not None and not (found.is_shell and _is_git(found.parent)):
            break
        found = _look(found.parent)
    return runner or _runner(os.getppid())


def _is_git(pid: int) -> bool:
    found = _look(pid)
    return found is not None and found.name == "git"


def _forked_shells(first: _Process | None) -> list[_Process]:
    """A shell, and those it was forked from: the same program with the same words, so nothing was started anew."""
    chain: list[_Process] = []
    found = first
    while found is not None and found.is_shell and len(chain) < _STEPS_MAX:
        if chain and (found.program, found.words) != (chain[0].program, chain[0].words):
            break
        chain.append(found)
        found = _look(found.parent)
    return chain
