"""Finds the files that a shell command surely writes. Pure.

Only what can be read with certainty counts: redirections, the arguments of `tee`, `sed -i`, `mv`, `cp`, `rm`, `touch`,
`git checkout --` and `git restore`, and the patch that Codex reads from `apply_patch <<EOF`. A `cd` to a literal folder
at the beginning is followed. A word with a variable, a substitution or a pattern in it is left out, because what it
becomes is not known. What interpreters and scripts write is seen only afterwards. A name too many would refuse an agent
for nothing, so doubt leaves a name out.
"""

from __future__ import annotations

import os
import posixpath
import re

from dibs.agents.harness.hook_events import patched

_ENDS = frozenset((";", "&", "|", "&&", "||", "\n", "(", ")", "{", "}", "then", "do", "else"))
_WRITES = frozenset((">", ">>", ">|", "&>", "&>>", "<>"))
# Longer ones first.
_OPERATORS = (
    "&>>",
    "&&",
    "||",
    ">>",
    ">|",
    "&>",
    "<<<",
    "<<",
    "<>",
    ">&",
    "<&",
    ">",
    "<",
    ";",
    "|",
    "&",
    "(",
    ")",
)
# What may stand before a program's name: programs that run another, and words of the shell.
_RUNNERS = (
    "sudo",
    "env",
    "command",
    "nohup",
    "time",
    "exec",
    "builtin",
    "timeout",
    "nice",
    "ionice",
    "stdbuf",
    "setsid",
)
_PREFIXES = frozenset((*_RUNNERS, "xargs", "eval", "if", "elif", "while", "until", "!"))
_HERE = re.compile(r"(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([^\s'\"\\;&|<>()]+))")
_BEGIN_OPERATORS = frozenset([each[0] for each in _OPERATORS])
_PARTED = dict.fromkeys(map(ord, ";&|()`"), "\n")
_UNSURE = frozenset("$`*?[~{}")


class _Word(str):
    """A word as the shell would pass it. `sure`: it holds nothing that the shell would replace."""

    __slots__ = ("operator", "sure")
    sure: bool
    operator: bool


def _word(text: str, *, sure: bool = True, operator: bool = False) -> _Word:
    made = _Word(text)
    made.sure, made.operator = sure, operator
    return made


def written(command: str, here: str | None = None) -> list[str]:
    """The paths, each once, from the folder in which the command begins, which is `here`: what is copied into a folder
    that exists is a file in it. Empty if the command cannot be read."""
    words = _words(command)
    if words is None:
        return []
    folder, words = _without_cd(words)
    if words and words[0] in ("apply_patch", "applypatch"):
        return [posixpath.join(folder, name) for name in patched(command)]
    found: dict[str, None] = {}
    simple: list[_Word] = []
    base = None if here is None else os.path.join(here, folder)
    skip = False
    for at, word in enumerate(words):
        if skip:
            skip = False
        elif word.operator and word in _WRITES:
            skip = True
            if at + 1 < len(words):
                _note(found, words[at + 1])
        elif word.operator and word in ("<", "<<", "<<<", ">&", "<&"):
            skip = True
        elif word in _ENDS and (word.operator or word == "\n" or not simple):
            _of_simple(simple, found, base)
            simple = []
        else:
            simple.append(word)
    _of_simple(simple, found, base)
    moves = any(word in ("cd", "pushd", "-C") for word in words)  # relative to a folder that is not known then
    return [posixpath.join(folder, name) for name in found if not moves or name.startswith("/")]


def simple_commands(command: str) -> list[list[str]]:
    """The words of each simple command, from its program's name on. What is typed into a here-document is none. A
    command that cannot be read for certain is parted at its operators."""
    words = _words(command)
    if words is None:
        return [part.split() for part in command.translate(_PARTED).split("\n")]
    found: list[list[str]] = [[]]
    for word in words:
        if word in _ENDS and (word.operator or word == "\n" or not found[-1]):
            found.append([])
        elif not (found[-1] == [] and _is_before_name(word)):
            found[-1].append(str(word))
    return [simple for simple in found if simple]


def _without_cd(words: list[_Word]) -> tuple[str, list[_Word]]:
    """The folder to which a command goes first (`cd src && make`), and the words after that. Empty: it stays."""
    folder = ""
    while len(words) > 3 and words[0] == "cd" and words[1].sure and words[2] in ("&&", ";", "\n"):
        if words[1].startswith("-"):
            break
        folder, words = posixpath.join(folder, words[1]), words[3:]
    return folder, words


def _note(found: dict[str, None], word: _Word) -> None:
    is_device = word.startswith("/dev/") and not word.startswith("/dev/shm/")  # a checkout may be in memory
    if word.sure and not word.operator and word and not is_device and not word.startswith("-"):
        found[str(word)] = None


def _of_simple(words: list[_Word], found: dict[str, None], base: str | None) -> None:
    at = next((at for at, word in enumerate(words) if not _is_before_name(word)), len(words))
    if at == len(words):
        return
    name, rest = words[at].rpartition("/")[2], words[at + 1 :]
    plain = [word for word in rest if not word.startswith("-")]
    if name in ("tee", "rm", "touch", "truncate", "unlink"):
        targets = plain
    elif name == "sed":
        targets = _sed(rest)
    elif name in ("cp", "mv"):
        targets = (plain[:-1] if name == "mv" else []) + _arrivals(plain, base)
    elif name == "git":
        targets = _git(rest)
    else:
        return
    for target in targets:
        _note(found, target)


def _is_before_name(word: _Word) -> bool:
    """Tell whether the name of the program comes after this word."""
    return word in _PREFIXES or (word.sure and "=" in word and word[0] != "=")


def _arrivals(words: list[_Word], base: str | None) -> list[_Word]:
    """The files that `cp` and `mv` write: the last word, or what is put into it if that is a folder."""
    *sources, target = words or [_word("")]
    is_folder = len(sources) > 1 or target.endswith("/")
    if not is_folder and base is not None and target.sure:
        is_folder = os.path.isdir(os.path.join(base, target))
    if not is_folder:
        return [target]
    names = [(source, posixpath.basename(source.rstrip("/"))) for source in sources]
    return [
        _word(posixpath.join(target, name), sure=source.sure and target.sure)
        for source, name in names
        if name not in ("", ".", "..")
    ]


def _sed(rest: list[_Word]) -> list[_Word]:
    if not any(word.startswith(("-i", "--in-place")) for word in rest):
        return []
    given, files, skip = False, [], False
    for word in rest:
        if skip:
            skip = False
        elif word in ("-e", "-f", "--expression", "--file"):
            given = skip = True
        elif not word.startswith("-") and word:
            files.append(word)
    return files if given else files[1:]


def _git(rest: list[_Word]) -> list[_Word]:
    if rest and rest[0] == "checkout" and "--" in rest:
        return rest[rest.index(_word("--")) + 1 :]
    restores = "--staged" not in rest and "-S" not in rest
    if rest and (rest[0] in ("mv", "rm") or (rest[0] == "restore" and restores)):
        return [word for word in rest[1:] if not word.startswith("-")]
    return []


def _words(command: str) -> list[_Word] | None:
    """The words and operators of a command line. None if a quote does not end. The text of a here-document is left out.
    The time is linear in the command's length, which an agent chooses."""
    words: list[_Word] = []
    pieces: list[str] = []  # of a word, none of them empty
    begun, sure = False, True
    at, size = 0, len(command)
    documents: list[
        tuple[str, bool]
    ] = []  # here-documents of this line: what ends each, and whether tabs may be before

    def end() -> None:
        nonlocal begun, sure
        if begun:
            words.append(_word("".join(pieces), sure=sure))
        pieces.clear()
        begun, sure = False, True

    while at < size:
        character = command[at]
        if character in "'\"":
            close = _closing(command, at)
            if close is None:
                return None
            inside = command[at + 1 : close]
            sure = sure and (character == "'" or not any(each in inside for each in "$`\\"))
            pieces += [inside] if inside else []
            begun, at = True, close + 1
        elif character == "\\" and at + 1 < size:
            if command[at + 1] != "\n":
                pieces.append(command[at + 1])
                begun = True
            at += 2
        elif character == "#" and not begun:
            at = _end_of_line(command, at)
        elif character in " \t":
            end()
            at += 1
        elif character == "\n":
            end()
            words.append(_word("\n"))
            at = _after_documents(command, at + 1, documents)
            documents.clear()
        elif character in _BEGIN_OPERATORS:
            if character == "(" and pieces and pieces[-1].endswith("$"):
                return None  # a substitution: what it holds is a command of its own
            operator = next(each for each in _OPERATORS if command.startswith(each, at))
            if character in "<>" and begun and "".join(pieces).isdecimal():  # 2> is a redirection of a number
                begun = False
            end()
            words.append(_word(operator, operator=True))
            at += len(operator)
            if operator == "<<":
                found = _HERE.match(command, at)
                if found is None:
                    size = _end_of_line(command, at)  # what follows is text
                else:
                    documents.append((found[2] or found[3] or found[4], found[1] == "-"))
        else:
            sure = sure and character not in _UNSURE
            pieces.append(character)
            begun, at = True, at + 1
    end()
    return words


def _after_documents(command: str, at: int, documents: list[tuple[str, bool]]) -> int:
    """The position of the line after some here-documents. One that does not end is text to the end."""
    for last, has_tabs in documents:
        while at < len(command):
            close = _end_of_line(command, at)
            line, at = command[at:close], close + 1
            if (line.lstrip("\t") if has_tabs else line) == last:
                break
    return min(at, len(command))


def _end_of_line(command: str, at: int) -> int:
    found = command.find("\n", at)
    return len(command) if found < 0 else found


def _closing(command: str, at: int) -> int | None:
    quote = command[at]
    place = at + 1
    while place < len(command):
        if command[place] == "\\" and quote == '"':
            place += 1
        elif command[place] == quote:
            return place
        place += 1
    return None
