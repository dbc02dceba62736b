"""Edit JSON as its author wrote it: comments, order, indentation and a comma behind the last entry stay. Pure.

Coding agents read settings with `//` and `/* */` comments. A file that is parsed and written anew would lose them. Each
function takes a text and returns a text; `remove` takes out what `put` and `append` wrote, to the byte. A path names a
value by keys and by positions in lists.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

Path = tuple[str | int, ...]

_COMMENTS = re.compile(r'("(?:\\.|[^"\\])*")|//[^\r\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMAS = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')
_COMMA = re.compile(r"\s*,")
_DECODER = json.JSONDecoder()


def value_of(text: str) -> Any:
    """Raises ValueError."""
    return json.loads(_strict(text))


def put(text: str, path: Path, value: object) -> str:
    """Write a member that is not there, and the objects above it that are not there."""
    above, missing = _parted(text, path[:-1])
    for key in reversed((*missing[1:], path[-1]) if missing else ()):
        value = {key: value}
    return _with_last(text, above, f"{json.dumps((missing or path[-1:])[0])}: ", value)


def append(text: str, path: Path, value: object) -> str:
    """Write an item at the end of a list, or the list if it is not there."""
    return put(text, path, [value]) if _parted(text, path)[1] else _with_last(text, path, "", value)


def remove(text: str, path: Path) -> str:
    """Take out an entry, and what it leaves empty above it, but for the outermost object."""
    strict = _strict(text)
    entries = _entries(strict, _start(strict, path[:-1]))
    if len(entries) == 1 and len(path) > 1:
        return remove(text, path[:-1])
    at = max(number for number, entry in enumerate(entries) if entry.key == path[-1])
    _, begin, _, end = entries[at]
    commas = _without_comments(text)
    behind = _COMMA.match(commas, end)
    left = text[: len(text[:begin].rstrip())]
    if behind is None and at > 0:
        comma = commas.rindex(",", 0, begin)
        left = left[:comma] + left[comma + 1 :]
    return left + text[behind.end() if behind else end :]


def _with_last(text: str, path: Path, label: str, value: object) -> str:
    """Write one more entry into the object or list at `path`, behind all that is in it, comments too."""
    strict = _strict(text)
    start = _start(strict, path)
    close = _DECODER.raw_decode(strict, start)[1] - 1
    entries = _entries(strict, start)
    newline = "\r\n" if "\r\n" in text else "\n"
    is_spread = bool(entries) and "\n" in text[start : entries[0].begin]
    indent = _indent(text, entries[0].begin) if is_spread else _indent(text, start) + "  "
    entry = newline + indent + label + json.dumps(value, indent=2, ensure_ascii=False).replace("\n", newline + indent)
    last = len(text[:close].rstrip())
    if not entries:
        end = "" if newline in text[last:close] else newline + _indent(text, start)
        return text[:last] + entry + end + text[last:]
    if _without_comments(text)[:close].rstrip().endswith(","):
        return text[:last] + entry + "," + text[last:]
    comma = entries[-1].end
    return text[:comma] + "," + text[comma:last] + entry + text[last:]


class _Entry(NamedTuple):
    """A member of an object or an item of a list. `begin` is where its key begins, `end` where its value ends."""

    key: str | int
    begin: int
    value: int
    end: int


def _entries(strict: str, start: int) -> list[_Entry]:
    entries: list[_Entry] = []
    at = _skip(strict, start + 1)
    while strict[at] not in "}]":
        key: str | int = len(entries)
        begin = at
        if strict[start] == "{":
            key, colon = _DECODER.raw_decode(strict, at)
            at = _skip(strict, _skip(strict, colon) + 1)
        end = _DECODER.raw_decode(strict, at)[1]
        entries.append(_Entry(key, begin, at, end))
        at = _skip(strict, end)
        at = _skip(strict, at + 1) if strict[at] == "," else at
    return entries


def _parted(text: str, path: Path) -> tuple[Path, Path]:
    """Return the part of a path that is there, and the part that is not."""
    value = value_of(text)
    for number, key in enumerate(path):
        if isinstance(value, dict) and key not in value:
            return path[:number], path[number:]
        value = value[key]
    return path, ()


def _start(strict: str, path: Path) -> int:
    """Return where a value begins. Of a key that is written twice the last counts, as for readers of JSON."""
    at = _skip(strict, 0)
    for key in path:
        at = max(entry.value for entry in _entries(strict, at) if entry.key == key)
    return at


def _indent(text: str, at: int) -> str:
    """Return what the line of this position begins with."""
    line = text[max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _skip(strict: str, at: int) -> int:
    while strict[at].isspace():
        at += 1
    return at


def _without_comments(text: str) -> str:
    """Return a text of the same length: what is at a position stays there."""
    return _COMMENTS.sub(_blank, text)


def _strict(text: str) -> str:
    return _LAST_COMMAS.sub(_blank, _without_comments(text))


def _blank(found: re.Match[str]) -> str:
    return found[1] or " " * len(found[0])
