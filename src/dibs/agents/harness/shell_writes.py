"""Finds the files that a shell command surely writes, which are claimed before it runs. Pure.

Only what can be read with certainty counts: redirections, the arguments of `tee`, `sed -i`, `mv`, `cp`, `rm`, `touch`
and a few more, and the patch that Codex reads from `apply_patch <<EOF`. A word with a variable, a substitution or a
pattern in it is left out, because what it becomes is not known, and so are relative names behind a `cd` to somewhere
unknown. A name too many would refuse an agent for nothing, so doubt leaves a name out. In all other commands
`held_names.py` looks for the files that others have. `shell_lines.py` reads the line.
"""

from __future__ import annotations

import os
import posixpath
import re

from dibs.agents.harness.hook_events import patched
from dibs.agents.harness.shell_lines import SimpleCommand, Word, commands_in, simple_commands, word

__all__ = ["simple_commands", "written"]
_IN_PLACE = re.compile(r"-[nErsuz]*i|--in-place")
# The option before sed's script, and one that it stands in.
_SCRIPT = re.compile(r"-[nErsuz]*[ef]|--expression|--file")
_WITH_SCRIPT = re.compile(r"-[nErsuz]*[ef]|--expression=|--file=")
_TARGETS = ("-t", "--target-directory")


def written(line: str, here: str | None = None) -> list[str]:
    """The paths, each once, from the folder in which the line begins, which is `here`: what is copied into a folder
    that exists is a file in it. Empty if the line cannot be read."""
    found: dict[str, None] = {}
    for command in commands_in(line):
        folder = command.folder
        names = [str(each) for each in (*command.targets, *(arguments(command, here) or ())) if _is_name(each)]
        if command.program in ("apply_patch", "applypatch"):
            names += patched("\n".join([*command.body, *command.words[1:]]))
        for name in names:
            if folder is not None or name.startswith("/"):
                found[posixpath.join(folder or "", name)] = None
    return list(found)


def _is_name(each: Word) -> bool:
    is_device = each.startswith("/dev/") and not each.startswith("/dev/shm/")  # a checkout may be in memory
    return each.sure and each != "" and not is_device and not each.startswith("-")


def arguments(command: SimpleCommand, here: str | None) -> list[Word] | None:
    """Those arguments of a command that it writes; None if the program is not known here."""
    name, rest = command.program, command.words[1:]
    if name in ("tee", "rm", "unlink"):
        return _plain(rest, ())
    if name in ("touch", "truncate"):
        return _plain(rest, ("-s", "-d", "-t", "-r", "--size", "--date", "--reference"))
    if name == "sed":
        return _sed(rest)
    if name in ("cp", "mv", "install", "ln", "rsync"):
        base = None if here is None or command.folder is None else os.path.join(here, command.folder)
        plain = _plain(rest, (*_TARGETS, "-m", "-o", "-g", "-S", "--mode", "--suffix", "--exclude", "--include", "-e"))
        given = [rest[at + 1] for at, each in enumerate(rest[:-1]) if each in _TARGETS]
        if given:  # cp -t FOLDER FILE
            plain = [*plain, word(f"{given[0]}/", sure=given[0].sure)]
        is_elsewhere = name == "rsync" and any(":" in each or each.endswith("/") for each in plain)
        if is_elsewhere or (name == "install" and ("-d" in rest or "--directory" in rest)):
            return []
        return (plain[:-1] if name == "mv" else []) + _arrivals(plain, base)
    return None


def _plain(rest: list[Word], valued: tuple[str, ...]) -> list[Word]:
    """The words that are no options, nor the values of these."""
    return [
        each for at, each in enumerate(rest) if not each.startswith("-") and not (at > 0 and rest[at - 1] in valued)
    ]


def _arrivals(words: list[Word], base: str | None) -> list[Word]:
    """The files that `cp` and `mv` write: the last word, or what is put into it if that is a folder."""
    if len(words) < 2:
        return []
    *sources, target = words
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
        elif _SCRIPT.fullmatch(each):
            given = skip = True
        elif _WITH_SCRIPT.match(each):
            given = True
        elif not each.startswith("-") and each:
            files.append(each)
    return files if given else files[1:]
