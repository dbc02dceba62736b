"""Finds what git commands would overwrite in a work tree, and which entries of the stash they take. Pure.

A command has a reach: the files whose uncommitted changes it may destroy, or put into a commit of its own. A form that
is not listed has none, because a refusal for nothing costs more than one that is missed: what git itself protects
(`cherry-pick`, `apply`), what only reads, what only writes the index or a ref, and what ends a merge or rebase that was
begun. A word that the shell or git would replace (a variable, a pattern) is left out.
"""

from __future__ import annotations

import os
import posixpath

from dibs.agents.harness.shell_lines import commands_in
from dibs.base.cheap import Callable, Sequence
from dibs.base.record import Record

# Which files a command overwrites: those that git tracks; of these only what is not staged, or only what is; those that
# it does not track; all.
TRACKED, UNSTAGED, STAGED, UNTRACKED, BOTH = "tracked", "unstaged", "staged", "untracked", "both"
# What the agent would do with its own files alone, for the step in a refusal.
STASH, RESTORE, CLEAN, COMMIT, MOVE, REMOVE = "stash", "restore", "clean", "commit", "move", "remove"
# Options of git itself that have a value in the next word.
_GLOBAL = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"))
_ELSEWHERE = ("--git-dir", "--work-tree")  # another repository than the folder's
_UNSURE = frozenset("$`*?[")
_ENDS_OF_BEGUN = frozenset(
    ("--abort", "--continue", "--quit", "--skip", "--edit-todo", "--show-current-patch", "--dry-run")
)


class GitCommand:
    """One git command of a line: the folder in which it runs, and its words from the subcommand on."""

    def __init__(self, folder: str, words: Sequence[str]) -> None:
        self.folder = folder
        self.words = words


class Reach(Record):
    """The files that a command may overwrite. `paths`, as they were written: only below these; none: in the whole work
    tree."""

    verb: str
    kind: str
    files: str = TRACKED
    paths: tuple[str, ...] = ()


class StashUse(Record):
    """The use of the stash by a command. `entry` is the position of the one it takes; None: all of them. `commit`
    names it by the beginning of its id instead."""

    verb: str
    entry: int | None = None
    commit: str = ""


def git_commands(command: str, folder: str) -> list[GitCommand]:
    """The git commands of a line for the shell that begins in `folder`. Those behind a `cd` to a folder that is not
    known are left out."""
    found: list[GitCommand] = []
    for each in commands_in(command):
        if each.program == "git" and each.folder is not None:
            there, rest = _after_options(os.path.join(folder, each.folder), each.words[1:])
            if there is not None and rest:
                found.append(_at_its_tree(there, rest))
    return found


def _at_its_tree(folder: str, words: list[str]) -> GitCommand:
    """`git worktree remove TREE` is about that tree, wherever it is typed."""
    trees = _Words(words[2:]).paths if words[:2] == ["worktree", "remove"] else []
    if len(trees) == 1 and _UNSURE.isdisjoint(trees[0]) and not trees[0].startswith("~"):
        folder = os.path.join(folder, trees[0])
    return GitCommand(folder, words)


def _after_options(here: str, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The folder that git goes to, and the words from the subcommand on. No folder: another repository is named."""
    at, folder = 0, here
    while at < len(words) and words[at].startswith("-"):
        name, given = words[at], words[at + 1 : at + 2]
        if name.startswith(_ELSEWHERE):
            return None, []
        if name == "-C" and given:
            if not _UNSURE.isdisjoint(given[0]) or given[0].startswith("~"):
                return None, []
            folder = os.path.join(folder, given[0])
        at += 2 if name in _GLOBAL else 1
    return folder, list(words[at:])


# The words of a subcommand.


class _Words:
    """Options and plain words. `valued` are the options with a value in the next word. `letters` are the short ones:
    `m` is that of `-m TEXT` and of `-amTEXT`. `ends` are those whose value can only follow at once: `-uno`."""

    def __init__(self, words: Sequence[str], valued: Sequence[str] = (), letters: str = "", ends: str = "") -> None:
        self._letters, self._ends = letters, ends
        self.plain: list[str] = []
        self.after: list[str] | None = None  # what follows `--`
        self._options: set[str] = set()
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                self.after = list(words[at:])
                break
            if word.startswith("--"):
                name, has_value, _ = word.partition("=")
                self._options.add(name)
                at += 1 if name in valued and not has_value else 0
            elif word.startswith("-") and word != "-":
                at += 1 if self._takes_next(word) else 0
            else:
                self.plain.append(word)

    def _takes_next(self, word: str) -> bool:
        """Note the options of a word such as `-am`. Tell whether the value of the last is the next word."""
        for place, letter in enumerate(word[1:], 2):
            self._options.add(f"-{letter}")
            if letter in self._letters or letter in self._ends:
                return letter in self._letters and place == len(word)
        return False

    def has(self, *names: str) -> bool:
        return not self._options.isdisjoint(names)

    @property
    def paths(self) -> list[str]:
        return [*self.plain, *(self.after or ())]


def reach_of(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    """The reach of a git command; None: it has none. `exists` tells whether a path is in the folder."""
    form = _FORMS.get(words[0])
    return None if form is None else form(words[1:], exists)


def _below(verb: str, kind: str, paths: Sequence[str], files: str = TRACKED) -> Reach | None:
    """The reach of a command with paths. One of `:/`, the top, is the whole work tree."""
    known = [path for path in paths if _UNSURE.isdisjoint(path) and not path.startswith((":", "~"))]
    if not paths or ":/" in paths:
        return Reach(verb=verb, kind=kind, files=files)
    return Reach(verb=verb, kind=kind, files=files, paths=tuple(known)) if known else None


def _stash(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    verb = words[0] if words and not words[0].startswith("-") else "push"
    given = _Words(words[1:] if words[:1] == [verb] else words, ("--message",), "m")
    if verb == "branch":
        return Reach(verb="stash branch", kind=MOVE)
    if verb not in ("push", "save") or given.has("-p", "--patch", "--pathspec-from-file"):
        return None
    files = BOTH if given.has("-u", "--include-untracked", "-a", "--all") else TRACKED
    files = STAGED if given.has("-S", "--staged") else files
    return _below("stash", STASH, given.paths if verb == "push" else (), files)


def _reset(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    return Reach(verb="reset", kind=RESTORE) if _Words(words).has("--hard", "--merge", "--keep") else None


def _checkout(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    given = _Words(words, ("--orphan", "--conflict"), "bB")
    if given.has("-p", "--patch", "--pathspec-from-file", "--orphan"):
        return None
    if given.has("-f", "--force") and not given.after and len(given.plain) < 2 and not any(map(exists, given.plain)):
        return Reach(verb="checkout --force", kind=RESTORE)
    if given.after is not None:
        files = TRACKED if given.plain else UNSTAGED  # from a commit, or from the index
        return _below("checkout", RESTORE, given.after, files) if given.after else _moved("checkout", given.plain)
    if given.has("-b", "-B"):
        return _moved("checkout", given.plain)
    plain = given.plain
    if not plain or not _UNSURE.isdisjoint(plain[0]):
        return None
    if exists(plain[0]) or plain[0] == ":/":
        return _below("checkout", RESTORE, plain, UNSTAGED)
    return _below("checkout", RESTORE, plain[1:]) if len(plain) > 1 else _moved("checkout", plain)


def _moved(verb: str, to: Sequence[str]) -> Reach | None:
    """The reach of a command that checks out another commit. The one that is checked out changes no file."""
    return Reach(verb=verb, kind=MOVE) if to and to[0] not in ("HEAD", "@") else None


def _switch(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    given = _Words(words, ("--create", "--force-create", "--orphan", "--conflict"), "cC")
    if given.has("-f", "--force", "--discard-changes") and given.paths:  # without a commit, it writes no file
        return Reach(verb="switch --force", kind=RESTORE)
    return Reach(verb="switch", kind=MOVE) if given.has("--orphan") else _moved("switch", given.paths)


def _restore(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    given = _Words(words, ("--source", "--conflict"), "s")
    is_index = given.has("-S", "--staged") and not given.has("-W", "--worktree")
    if is_index or not given.paths or given.has("-p", "--patch"):
        return None
    return _below(
        "restore", RESTORE, given.paths, TRACKED if given.has("-s", "--source", "-S", "--staged") else UNSTAGED
    )


def _clean(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    given = _Words(words, ("--exclude",), "e")
    if not given.has("-f", "--force") or given.has("-n", "--dry-run", "-i", "--interactive", "-X"):
        return None
    return _below("clean", CLEAN, given.paths, UNTRACKED)


def _commit(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    valued = (
        *("--message", "--file", "--author", "--date", "--template"),
        *("--reuse-message", "--reedit-message", "--fixup", "--squash"),
        *("--cleanup", "--trailer", "--pathspec-from-file"),
    )
    given = _Words(words, valued, "mFCct", "Su")
    if given.has("-a", "--all") and not given.has("--dry-run"):
        return Reach(verb="commit -a", kind=COMMIT)
    # With paths it commits what they have now, staged or not.
    is_all = given.paths and not given.has("--dry-run", "-p", "--patch", "--interactive", "--pathspec-from-file")
    return _below("commit", COMMIT, given.paths) if is_all else None


def _worktree(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
    """git itself keeps a work tree with changes, unless it is forced. The command is at that tree."""
    if words[:1] != ["remove"] or not _Words(words[1:]).has("-f", "--force"):
        return None
    return Reach(verb="worktree remove --force", kind=REMOVE, files=BOTH)


def _joins(verb: str) -> Callable[[Sequence[str], Callable[[str], bool]], Reach | None]:
    def form(words: Sequence[str], exists: Callable[[str], bool]) -> Reach | None:
        return Reach(verb=verb, kind=MOVE) if _ENDS_OF_BEGUN.isdisjoint(words) else None

    return form


_FORMS: dict[str, Callable[[Sequence[str], Callable[[str], bool]], Reach | None]] = {
    "stash": _stash,
    "reset": _reset,
    "checkout": _checkout,
    "switch": _switch,
    "restore": _restore,
    "clean": _clean,
    "commit": _commit,
    "pull": _joins("pull"),
    "merge": _joins("merge"),
    "rebase": _joins("rebase"),
    "worktree": _worktree,
}


def overwrites(files: str, state: str) -> bool:
    """Tell whether one of these files is of a kind, by the two letters of its state in `git status`."""
    if files == BOTH or state == "??":
        return files in (BOTH, UNTRACKED)
    return files == TRACKED or (files == UNSTAGED and state[1:] != " ") or (files == STAGED and state[:1] != " ")


def is_below(file: str, paths: Sequence[str]) -> bool:
    """Tell whether a file is one of these paths or below one, all from the top. The top itself is `.`."""
    return any(path in (".", file) or file.startswith(f"{path}/") for path in paths)


def from_top(top: str, folder: str, path: str) -> str | None:
    """A path of a command in `folder` from the top of the work tree, `.` for the top; None if it leads out of it."""
    found = posixpath.relpath(os.path.realpath(os.path.join(folder, path)), os.path.realpath(top))
    return None if found == ".." or found.startswith("../") else found


def stash_use(words: Sequence[str]) -> StashUse | None:
    """The use of the stash by a git command: `push`, or one that takes entries. None: it has none, or one that cannot
    be read."""
    if words[0] != "stash":
        return None
    verb = words[1] if len(words) > 1 and not words[1].startswith("-") else "push"
    if verb in ("push", "save"):
        return StashUse(verb="push")
    if verb == "clear":
        return StashUse(verb="clear")
    if verb not in ("pop", "apply", "drop", "branch"):
        return None
    plain = _Words(words[2:]).paths[1 if verb == "branch" else 0 :]
    if not plain or plain[0] in ("stash", "refs/stash"):
        return StashUse(verb=verb, entry=0)
    number = plain[0].removeprefix("refs/").removeprefix("stash@{").removesuffix("}")
    if number.isascii() and number.isdecimal() and len(number) < 6:
        return StashUse(verb=verb, entry=int(number))
    is_id = len(number) >= 7 and all(each in "0123456789abcdef" for each in number)
    return StashUse(verb=verb, commit=number) if is_id else None
