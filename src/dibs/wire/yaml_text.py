"""A JSON document as YAML 1.2, in blocks, for people. Pure.

Only what JSON has. Texts are always in double quotes, as JSON writes them: which plain texts YAML takes for a number, a
date or a truth value differs between its versions.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z_-]+")
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "nan", "inf"))
_INDENT = "  "


def yaml_text(document: object) -> str:
    return "\n".join(_lines(document)) + "\n"


def _lines(value: object) -> Iterator[str]:
    """The lines of a value on its own level."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _entry(f"{_key(key)}:", inner)
    elif isinstance(value, list) and value:
        for inner in value:
            first, *others = _lines(inner)
            yield f"- {first}"
            yield from (_INDENT + line for line in others)
    else:
        yield _scalar(value)


def _entry(head: str, value: object) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield head
        yield from (_INDENT + line for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _key(key: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS
    return key if is_plain else _scalar(key)


def _scalar(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    # Characters that JSON may have as they are, and YAML not.
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
