"""The caller of `dibs lock` without a lease id: grite's "actor", but never one that two agents share.

In grite all processes of a clone are one actor, so its agents never exclude each other. Here an actor is one of

- a name that the caller gives (`--actor`, DIBS_ACTOR), or a folder that stands for one, as in grite (`--data-dir`,
  GRITE_HOME): the same name means the same worker;
- else the shell that runs the command: one process, identified by boot, pid and start time.

A forked shell (a subshell, a pipeline) is another process, and so another actor. Scripts need two exceptions. A
subshell may renew the locks of the shell that it was forked from (a renewal loop in the background). And the locks of
a subshell that has ended (`x=$(dibs lock acquire ... | jq ...)`) belong to the shell that it was forked from. With
neither exception can two live shells both own a lease: only the one that took it can acquire it again or release it.

An agent may run every command in a new shell. The agent and all its processes may renew and release by name the locks
of such a shell after it has ended (`may_end`). They may not acquire them again: two agents may share that parent.

An actor's locks do not exclude each other where names overlap: they are taken in one session. A named actor's is the
session of `dibs claim --actor` (`cli/framework/actor_session.py`). A shell has one for its `path:` and `repo:` locks.

If the command's parent is no shell (an agent's program runs it), there is no actor: two agents would share it.
"""

from __future__ import annotations

import os

from dibs.agents.shells_above import STEPS_MAX, ProcessAbove, forked_shells, look, runner
from dibs.base.cheap import Any, Callable, Mapping
from dibs.base.files import lock_file, replace_file, state_folder
from dibs.base.jsontext import decode, encode
from dibs.base.record import Record
from dibs.cli.framework.actor_session import ActorSession, checked_actor, session_named
from dibs.cli.framework.context import Call
from dibs.cli.framework.parse import UsageError
from dibs.core.limits import LOCK_MEMORY_MS
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.system.session_mark import is_gone, lineage, process_mark

Entry = dict[str, Any]
Change = Callable[[list[Entry]], list[Entry]]


# The leases of actors, remembered between commands for users of grite's recipes.
#
# These recipes acquire, renew and release without passing a lease id. So the id is kept in a file below `locks` in the
# state folder, readable by its owner only. `dibs lock` and `dibs claim --staged` write it; they and the hooks read it;
# no other command does. `agents/shell_actor.py` decides whose an entry is.
#
# An entry proves nothing by itself: the store decides, by the lease id in it, whether the lease is current.

_GATE_MS = 5_000


class RememberedLeases:
    """The remembered leases of one namespace in one store. `now_ms` is wall time."""

    def __init__(self, env: Mapping[str, str], url: str | None, namespace: str | None, now_ms: int) -> None:
        self._folder = os.path.join(state_folder(env), "locks")
        self._where = [url or "", namespace or DEFAULT_NAMESPACE]
        self._now_ms = now_ms

    def entries(self, resource: str) -> list[Entry]:
        """The entries of a resource, newest first. A file that cannot be read counts as empty."""
        key = [*self._where, resource]
        return [entry for entry in _read(self._file(resource)) if entry["key"] == key]

    def remember(self, resource: str, entry: Entry, *, replaces: bool = True) -> Entry | None:
        """Keep `entry` in place of the same actor's entry. Without `replaces` that one stays: two commands of one actor
        use one request key. Returns the entry that is kept; None if the file cannot be written."""
        kept: Entry = {"key": [*self._where, resource], **entry}

        def change(entries: list[Entry]) -> list[Entry]:
            nonlocal kept
            same = [each for each in entries if (each["key"], each["marks"]) == (kept["key"], kept["marks"])]
            if same and not replaces:
                kept = same[0]
            return [kept, *[each for each in entries if each not in same]]

        return kept if self._change(self._file(resource), change) else None

    def forget(self, resource: str, request_key: str) -> None:
        """Drop the entry with this request key: its lease has ended, or was never granted."""
        self._change(self._file(resource), lambda all_: [each for each in all_ if each["request_key"] != request_key])

    def tidy(self) -> None:
        """Drop entries that ended long ago."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(".json")]
        except OSError:
            return
        for name in names:
            self._change(os.path.join(self._folder, name), lambda entries: entries)

    def _file(self, resource: str) -> str:
        import binascii

        # Several keys may share a file, so each entry has its own key.
        digest = binascii.crc32("\0".join([*self._where, resource]).encode("utf-8", "surrogatepass"))
        return os.path.join(self._folder, f"{digest:08x}.json")

    def _change(self, path: str, change: Change) -> bool:
        """One writer at a time, and readers see the old file or the new one."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            gate = os.open(os.path.join(self._folder, "gate"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            if not lock_file(gate, _GATE_MS):
                return False
            left = [entry for entry in change(_read(path)) if self._now_ms < entry["until_ms"] + LOCK_MEMORY_MS]
            if left:
                replace_file(path, encode(left))
            elif os.path.lexists(path):
                os.unlink(path)
        except OSError:
            return False
        finally:
            os.close(gate)
        return True


def _read(path: str) -> list[Entry]:
    try:
        with open(path, encoding="utf-8") as file:
            entries: list[Entry] = decode(file.read())
    except (OSError, ValueError):
        return []
    return entries


_NAME = "name:"  # how the mark of an actor with a name begins


class Actor(Record):
    """`marks` identify the actor: one mark for a named actor; for a shell its own mark, then those of the shells it
    was forked from, nearest first. No marks: the actor is unknown. `owner` is the name shown to others, or None.
    `parent` is the mark of the process that runs the shell, if there is one. `named`: the caller gave the name."""

    marks: tuple[str, ...] = ()
    owner: str | None = None
    parent: str | None = None
    named: bool = False

    def entry(self, owner: str, request_key: str, lease_id: str | None, token: int | None) -> Entry:
        """The entry to remember for a lease that it took, without the lease's end."""
        lease = {"request_key": request_key, "lease_id": lease_id, "token": token}
        return {"marks": list(self.marks), "parent": self.parent, "owner": owner, **lease}


def actor_of(call: Call, *, in_hook: bool = False) -> Actor:
    """The actor of this command. `in_hook`: git runs the command, so the actor is the one who runs git."""
    named = _named(call)
    if named is not None:
        return named
    chain = forked_shells(_runner_of_git() if in_hook else runner(os.getppid()))
    marks: list[str] = []
    for shell in chain:
        mark = process_mark(shell.pid)
        if mark is None:  # it ended just now, so its parents are unknown
            break
        marks.append(mark)
    if not marks:
        return Actor()
    owner = None if call.settings.pick("owner", "DIBS_OWNER") else f"{call.settings.owner}:{chain[0].pid}"
    # A shell whose parent has ended belongs to process 1, which identifies nobody.
    above = chain[-1].parent if len(marks) == len(chain) and chain[-1].parent > 1 else None
    return Actor(marks=tuple(marks), owner=owner, parent=None if above is None else process_mark(above))


def _named(call: Call) -> Actor | None:
    """The actor that the caller names. A flag takes precedence over a variable, a name over a folder."""
    name: str | None = call.values.get("actor")
    folder: str | None = call.values.get("data_dir")
    if name is None and folder is None:
        name, folder = call.env.get("DIBS_ACTOR") or None, call.env.get("GRITE_HOME") or None
    if name is not None:
        return Actor(marks=(f"{_NAME}{checked_actor(call, name)}",), owner=name, named=True)
    if folder is None:
        return None
    if not folder.strip():
        raise UsageError("--data-dir is empty. Give a folder, or leave it out.", call.command)
    whole = os.path.realpath(folder)
    last = checked_actor(call, os.path.basename(whole) or "/")
    # grite names an actor's folder after the actor's id: the folder and the id are the same actor.
    is_actor = os.path.basename(os.path.dirname(whole)) == "actors"
    return Actor(marks=(f"{_NAME}{last}" if is_actor else f"home:{whole}",), owner=last, named=True)


def session_of(call: Call, mark: str, owner: str) -> ActorSession:
    """The session of the actor whose first mark this is."""
    if mark.startswith(_NAME):
        return session_named(call, mark.removeprefix(_NAME))
    return ActorSession(call, mark, owner=owner)


def took_it(taker: Mapping[str, list[str]], actor: Actor) -> bool:
    """Tell whether the actor took this remembered lease, or inherited it from a subshell that has ended."""
    marks = taker["marks"]
    if not actor.marks or actor.marks[0] not in marks:
        return False
    return all(is_gone(mark) for mark in marks[: marks.index(actor.marks[0])])


def may_keep(taker: Mapping[str, list[str]], actor: Actor) -> bool:
    """Tell whether the actor may renew this remembered lease: the one that took it, and subshells forked from it."""
    return took_it(taker, actor) or (bool(taker["marks"]) and taker["marks"][0] in actor.marks)


def may_end(taker: Mapping[str, Any], actor: Actor) -> bool:
    """Tell whether the actor may renew and release this remembered lease by name: the one that took it; and after that
    shell has ended, all descendants of the shell's parent."""
    if took_it(taker, actor):
        return True
    parent, marks = taker.get("parent"), taker["marks"]
    if not parent or actor.named:
        return False
    return all(is_gone(mark) for mark in marks) and parent in lineage(os.getppid())


def _runner_of_git() -> ProcessAbove | None:
    """The process that runs the git that runs this hook: skips the hook's shell, git, and the shells of git's aliases.
    If no git runs it, this is the process in which somebody typed the hook's command."""
    found = look(os.getppid())
    run_by = None
    for _ in range(STEPS_MAX):
        if found is None:
            break
        above = look(found.parent)
        if found.name == "git":
            run_by = runner(found.parent)
        elif run_by is not None and not (found.is_shell and above is not None and above.name == "git"):
            break
        found = above
    return run_by or runner(os.getppid())
