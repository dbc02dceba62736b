"""Every command line of dibs that a message or an alert names in backticks exists, with its flags."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dibs.cli.framework import registry
from dibs.cli.framework.spec import GLOBAL

ROOT = Path(__file__).parents[2]
# Words of headers, by which a server shows that it is one's own.
HEADERS = ("key id", "proof")
_NAMED = re.compile(r"`dibs ([a-z][^`]*)`")


def named() -> list[tuple[str, str]]:
    """Where a command line is named, and the line without `dibs`."""
    found = []
    for path in sorted((ROOT / "src/dibs").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "`dibs" in text else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [(path.name, line) for line in _NAMED.findall(" ".join(node.value.split()))]
    for path in sorted((ROOT / "deploy").rglob("*.*")):
        found += [(path.name, line) for line in _NAMED.findall(path.read_text(encoding="utf-8"))]
    return sorted({(where, line) for where, line in found if line not in HEADERS})


def unknown_words(line: str) -> list[str]:
    """The words of a command line that no command of this name takes."""
    words = line.partition(" -- ")[0].split()
    families = {name.partition(" ")[0] for name in registry.shipped_names() if " " in name}
    name = next((each for each in (" ".join(words[:2]), words[0]) if each in registry.shipped_names()), None)
    if name is None:
        return [] if words[0] in (families | registry.ALIASES.keys() | {"help"}) else words[:1]
    command = registry.load(name)
    flags = {each for option in (*command.options, *GLOBAL) for each in (option.flag, option.short)}
    return [word for word in words[1:] if word.startswith("-") and word.partition("=")[0] not in flags]


def test_every_command_line_in_a_text_can_be_typed() -> None:
    lines = named()
    assert {"alerts.yml", "guard_texts.py"} <= {where for where, _ in lines}, "these are there to be checked"
    assert [(where, line, unknown_words(line)) for where, line in lines if unknown_words(line)] == []
