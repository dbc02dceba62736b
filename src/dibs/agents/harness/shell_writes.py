"""Finds the files that a shell command surely writes. Pure.

Only what can be read with certainty counts: redirections, the arguments of `tee`, `sed -i`, `mv`, `cp`, `rm`, `touch`,
`git checkout --` and `git restore`, and the patch that Codex reads from `apply_patch <<EOF`. A word with a variable, a
substitution or a pattern in it is left out, because what it becomes is not known, and so are relative names behind a
`cd` to somewhere unknown. What interpreters and scripts write is seen only afterwards. A name too many would refuse an
agent for nothing, so doubt leaves a name out. `shell_lines.py` reads the line.
"""

from __future__ import annotations

import os
import posixpath
import re

from dibs.agents.harness.hook_events import patched
from dibs.agents.harness.shell_lines import SimpleCommand, Word, commands_in, simple_commands, word

__all__ = ["simple_commands", "written"]
_IN_PLACE = re.compile(r"-[nErsuz]*i|--in-place")


def written(line: str, here: str | None = None) -> list[str]:
    """The paths, each once, from the folder in which the line begins, which is `here`: what is copied into a folder
    that exists is a file in it. Empty if the line cannot be read."""
    found: dict[str, None] = {}
    for command in commands_in(line):
        folder = command.folder
        names = [str(each) for each in (*command.targets, *_arguments(command, here)) if _is_name(each)]
        if command.program in ("apply_patch", "applypatch"):
            names += patched("\n".join([*command.body, *command.words[1:]]))
        for name in names:
            if folder is not None or name.startswith("/"):
                found[posixpath.join(folder or "", name)] = None
    return list(found)


def _is_name(each: Word) -> bool:
    is_device = each.startswith("/dev/") and not each.startswith("/dev/shm/")  # a checkout may be in memory
    return each.sure and each != "" and not is_device and not each.startswith("-")


def _arguments(command: SimpleCommand, here: str | None) -> list[Word]:
    """Those arguments of a command that it writes."""
    name, rest = command.program, command.words[1:]
    plain = [each for each in rest if not each.startswith("-")]
    if name in ("tee", "rm", "touch", "truncate", "unlink"):
        return plain
    if name == "sed":
        return _sed(rest)
    if name in ("cp", "mv"):
        base = None if here is None or command.folder is None else os.path.join(here, command.folder)
        return (plain[:-1] if name == "mv" else []) + _arrivals(plain, base)
    return _git(rest) if name == "git" else []


def _arrivals(words: list[Word], base: str | None) -> list[Word]:
    """The files that `cp` and `mv` write: the last word, or what is put into it if that is a folder."""
    *sources, target = words or [word("")]
    is_folder = len(sources) > 1 or target.endswith("/")
    if not is_folder and base is not None and target.sure:
        is_folder = os.path.isdir(os.path.join(base, target))
    if not is_folder:
        return [target]
    names = [(source, posixpath.basename(source.rstrip("/"))) for source in sources]
    return [
        word(posixpath.join(target, name), sure=source.sure and target.sure)
        for source, name in names
        if name not in ("", ".", "..")
    ]


def _sed(rest: list[Word]) -> list[Word]:
    if not any(_IN_PLACE.match(each) for each in rest):
        return []
    given, files, skip = False, [], False
    for each in rest:
        if skip:
            skip = False
        elif each in ("-e", "-f", "--expression", "--file"):
            given = skip = True
        elif not each.startswith("-") and each:
            files.append(each)
    return files if given else files[1:]


def _git(rest: list[Word]) -> list[Word]:
    if rest and rest[0] == "checkout" and "--" in rest:
        return rest[rest.index(word("--")) + 1 :]
    restores = "--staged" not in rest and "-S" not in rest
    if rest and (rest[0] in ("mv", "rm") or (rest[0] == "restore" and restores)):
        return [each for each in rest[1:] if not each.startswith("-")]
    return []
