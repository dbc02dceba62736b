"""Guards the work of other agents against git commands: their changed files, and their entries of the stash.

The command is refused before it starts if another agent has a changed file within its reach (`git_reach.py`) in this
checkout, or if it takes an entry of the stash that is another agent's (`stash_entries.py`). An agent that is alone is
never refused. Work in other work trees does not count, but for the stash, which they share. What the text of a command
does not show is found after it, by git's index: it was written, and a file that another agent has is as in the last
commit again.
"""

from __future__ import annotations

import os

from dibs.agents.git import git_reach, stash_entries
from dibs.agents.git.checkout_claims import Checkout, agent_of
from dibs.agents.git.git_reach import GitCommand, Reach, StashUse
from dibs.agents.git.stash_entries import StashOwner
from dibs.base.cheap import Mapping, Sequence
from dibs.base.checkout import label_of
from dibs.base.clock import wall_ms
from dibs.base.files import SHARED, content, replace_file
from dibs.base.ids import digest
from dibs.base.jsontext import Document, decode, encode
from dibs.base.terminal import plain, quoted
from dibs.cli.text.words import shell_line
from dibs.core.durations import span

_LINES_MAX = 5
_FILES_MAX = 20  # in a command that names them all
_FILE_CHARS_MAX = 200
_BYTES_MAX = 8192
_NOTES_MAX = 1000


def stash_finding(commands: Sequence[GitCommand], checkout: Checkout) -> tuple[str, str]:
    """A refusal of commands that take another agent's entry of the stash, or a remark on one whose agent has ended; one
    of the two, or both empty."""
    uses = [(command, use) for command in commands if (use := git_reach.stash_use(command.words)) is not None]
    if all(use.verb == "push" for _, use in uses):
        return "", ""
    common, agent = checkout.repository.common, checkout.agent
    ids = stash_entries.entries(common)
    owners = {entry: stash_entries.owner_of(common, entry) for entry in ids}
    theirs = {entry: each for entry, each in owners.items() if each is not None and not each.is_of(agent)}
    mine = [at for at, entry in enumerate(ids) if (each := owners[entry]) is not None and each.is_of(agent)]
    left, notice = list(ids), ""
    for command, use in uses if theirs else ():
        if use.verb == "push":
            adds = any(each.words[0] == "add" for each in commands[: commands.index(command)])
            left[:0] = [""] if _saves(command, checkout, adds=adds) else []
            continue
        taken = left if use.verb == "clear" else _taken(use, left)
        others = {entry: theirs[entry] for entry in taken if entry in theirs}
        for entry, owner in others.items():
            if not owner.has_ended():
                return _stash_text(use, ids.index(entry), owner, mine), ""
            notice = notice or _free_text(ids.index(entry), owner)
        if use.verb != "apply":
            left = [entry for entry in left if entry not in taken]
    return "", notice


def _saves(command: GitCommand, checkout: Checkout, *, adds: bool) -> bool:
    """Tell whether a push to the stash has something to save: else it makes no entry. `adds`: files that git does not
    track yet may be added before."""
    states, reach = checkout.repository.states(), _reach(command)
    if reach is None:  # `--patch`, or paths in a file: what it takes is not known
        return bool(states)
    reach = reach.replace(files=git_reach.BOTH) if adds else reach
    return bool(_within(states, reach, command.folder, checkout))


def _taken(use: StashUse, left: list[str]) -> list[str]:
    if use.commit:
        return [entry for entry in left if entry.startswith(use.commit)]
    return left[use.entry : use.entry + 1] if use.entry is not None else []


def _stash_text(use: StashUse, at: int, owner: StashOwner, mine: list[int]) -> str:
    who = f"{quoted(owner.owner)}, which made it {span(max(0, wall_ms() - owner.at_ms))} ago"
    if use.verb == "clear":
        own = " && ".join([f"git stash drop stash@{{{each}}}" for each in reversed(mine[:_LINES_MAX])])
        step = f"Drop your own: `{own}`." if mine else "You have no entry in it."
        return f"Not run: stash@{{{at}}} is the work of another worker, {who}.\n{step}"
    step = (
        f"Yours is stash@{{{mine[0]}}}: `git stash {use.verb} {'BRANCH ' * (use.verb == 'branch')}stash@{{{mine[0]}}}`."
        if mine
        else "You have no entry in it: a `git stash` that finds nothing to save makes none."
    )
    return f"Not run: the stash is shared, and stash@{{{at}}} is the work of another worker, {who}.\n{step}"


def _free_text(at: int, owner: StashOwner) -> str:
    made = f"stash@{{{at}}} was made {span(max(0, wall_ms() - owner.at_ms))} ago by {quoted(owner.owner)}"
    return f"{made}, which has ended. It is not your own work; it is free to take."


def note_pushed(checkout: Checkout, before: Sequence[str]) -> None:
    """Note the stash entry that a command of the agent has pushed, where git's hook did not. If there are several new
    ones, others may have pushed them: none is noted."""
    common = checkout.repository.common
    new = [entry for entry in stash_entries.entries(common) if entry not in before]
    if len(new) == 1 and stash_entries.owner_of(common, new[0]) is None:
        stash_entries.note_owner(common, new[0], checkout.agent, label_of({}, checkout.root))


# Changed files.


def overwrite_finding(commands: Sequence[GitCommand], checkout: Checkout) -> str:
    """A refusal of commands that overwrite changed files of other agents; empty if there are none."""
    found = [(command, reach) for command in commands if (reach := _reach(command)) is not None]
    others = checkout.held_by_others() if found else []
    if not others:
        return ""
    states = checkout.repository.states()
    for command, reach in found:
        within = _within(states, reach, command.folder, checkout)
        lines = {}
        for file in within:
            holder = _holder(checkout.key(file), others)
            if holder is not None:
                held = f" (for {span(holder['held_ms'])})" if "held_ms" in holder else ""
                lines[file] = f"{quoted(file, _FILE_CHARS_MAX)}: {quoted(holder['owner'])}{held}"
        if lines:
            own = {checkout.key(file) for file in checkout.held()}
            mine = [file for file in within if file not in lines and checkout.key(file) in own]
            return "\n".join(
                [
                    _HEADS[reach.kind].format(reach.verb),
                    *list(lines.values())[:_LINES_MAX],
                    _step(
                        reach,
                        [os.path.relpath(os.path.join(checkout.root, file), command.folder) for file in mine],
                        states,
                        next(iter(lines)),
                        checkout.root,
                    ),
                ]
            )
    return ""


_HEADS = {
    **dict.fromkeys(
        (git_reach.STASH, git_reach.RESTORE, git_reach.CLEAN, git_reach.REMOVE),
        "Not run: `git {}` would take away what other workers changed in this checkout and did not commit:",
    ),
    git_reach.COMMIT: "Not run: `git {}` would commit what other workers are still changing in this checkout:",
    git_reach.MOVE: "Not run: `git {}` would move the checkout below other workers who have uncommitted changes in it:",
}


def _reach(command: GitCommand) -> Reach | None:
    return git_reach.reach_of(command.words, lambda path: os.path.lexists(os.path.join(command.folder, path)))


def _within(states: Mapping[str, str], reach: Reach, folder: str, checkout: Checkout) -> list[str]:
    """The changed files that a command may overwrite."""
    paths = [path for each in reach.paths if (path := git_reach.from_top(checkout.root, folder, each)) is not None]
    return [
        file
        for file, state in states.items()
        if git_reach.overwrites(reach.files, state) and (not reach.paths or git_reach.is_below(file, paths))
    ]


def _holder(key: str, others: list[Document]) -> Document | None:
    return next((each for each in others if key == each["file"] or key.startswith(f"{each['file']}/")), None)


def _step(reach: Reach, mine: list[str], states: Mapping[str, str], theirs: str, root: str) -> str:
    """The command that does it with the agent's own files alone, and what else helps."""
    command = ""
    if mine and len(mine) <= _FILES_MAX:
        named = shell_line(["--", *mine])
        command = {
            git_reach.STASH: f"git stash push{' -u' * (reach.files == git_reach.BOTH)} {named}",
            git_reach.RESTORE: f"git checkout HEAD {named}",
            git_reach.CLEAN: f"git clean -f {named}",
            git_reach.COMMIT: f"git add {named} && git commit -m MESSAGE {named}",
        }.get(reach.kind, "")
    if command:
        return f"With your own files alone: `{command}`."
    none = "" if mine or reach.kind == git_reach.MOVE else "You have no such file of your own here. "
    wait = shell_line(["dibs", "wait", f"path:{theirs}", "--for", "5m"])
    if reach.kind == git_reach.REMOVE:
        return f"Wait with `{wait}`."
    return f"{none}Wait with `{wait}`, or work in a work tree of your own: `git worktree add {_free_place(root)}`."


def _free_place(root: str) -> str:
    base = os.path.basename(os.path.realpath(root))
    number = next(each for each in range(2, 1000) if not os.path.lexists(f"{root}-{each}"))
    return plain(shell_line([f"../{base}-{number}"]))


# What was lost: found after a command, and told to the agent whose work it was.


def lost_files(checkout: Checkout, since_ns: int, changed: set[str]) -> list[Document]:
    """The files of other agents that were written since a command began, and are as in the last commit again."""
    found = []
    for held in checkout.held_by_others():
        try:
            is_new = os.lstat(os.path.join(checkout.root, held["file"])).st_mtime_ns >= since_ns
        except OSError:
            continue
        if is_new and held["file"] not in changed and not any(each.startswith(f"{held['file']}/") for each in changed):
            found.append(held)
    return found


def lost_text(lost: list[Document]) -> str:
    lines = [f"{quoted(each['file'], _FILE_CHARS_MAX)}: {quoted(each['owner'])}" for each in lost[:_LINES_MAX]]
    head = (
        "These files are as in the last commit again since your command. Other workers have them claimed: if they had "
        "changed them, the changes are gone. They are told."
    )
    return "\n".join([head, *lines])


def note_lost(checkout: Checkout, lost: list[Document]) -> None:
    """Leave a note for each agent that lost something. If that fails, the agent does not hear of it."""
    folder = _lost_folder(checkout)
    try:
        os.makedirs(folder, exist_ok=True)
        for each in lost[:_NOTES_MAX]:
            note = {"file": each["file"], "agent": agent_of(each), "by": checkout.owner, "at_ms": wall_ms()}
            replace_file(os.path.join(folder, digest(note["agent"], each["file"])), encode(note), mode=SHARED)
    except OSError:
        pass


def take_lost(checkout: Checkout) -> str:
    """Say once what the commands of other agents have taken from this one; empty if it is nothing."""
    folder = _lost_folder(checkout)
    lines = []
    try:
        names = os.listdir(folder)[:_NOTES_MAX]
    except OSError:
        return ""
    for name in names:
        path = os.path.join(folder, name)
        try:
            note = decode((content(path, _BYTES_MAX) or b"").decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        texts = [note.get(key) for key in ("file", "agent", "by")] if isinstance(note, dict) else []
        if len([text for text in texts if isinstance(text, str)]) != 3 or texts[1] != checkout.agent.mark:
            continue
        try:
            os.unlink(path)
        except OSError:
            continue
        lines.append(f"{quoted(texts[0], _FILE_CHARS_MAX)}: by a command of {quoted(texts[2])}")
    if not lines:
        return ""
    head = "dibs: these files of yours were put back to the last commit. What you changed and did not commit is gone:"
    return "\n".join([head, *lines[:_LINES_MAX]])


def _lost_folder(checkout: Checkout) -> str:
    return os.path.join(checkout.repository.own, "dibs", "lost")
