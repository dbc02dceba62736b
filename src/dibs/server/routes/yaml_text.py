"""A JSON document as YAML, in blocks. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Texts that need no quotes in YAML, except words that YAML, or a reader of YAML 1.1, reads as another type.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./{}-]*(?: [A-Za-z0-9_./(){}-]+)*")
_OTHER_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))


def yaml_text(document: Any) -> str:
    return "\n".join(_lines(document, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _entry(f"{indent}{_scalar(key)}:", each, indent)
    elif isinstance(value, list) and value:
        for each in value:
            yield from _entry(f"{indent}-", each, indent)
    else:
        yield indent + _scalar(value)


def _entry(begins: str, value: Any, indent: str) -> Iterator[str]:
    """A key or a dash, with its value behind it, or below it in lines of its own."""
    if isinstance(value, dict | list) and value:
        inner = list(_lines(value, indent + "  "))
        if begins.endswith("-"):  # the first line stands behind the dash, which is as wide as the indent
            inner[0] = f"{begins} {inner[0][len(indent) + 2 :]}"
        else:
            yield begins
        yield from inner
    else:
        yield f"{begins} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _OTHER_WORDS:
        return value
    # A JSON string is a YAML string, except for characters beyond U+FFFF. YAML wants some others escaped, too.
    return re.sub(r"[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", json.dumps(value, ensure_ascii=False))
