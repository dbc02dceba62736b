"""Says what each class is made from, and how each compiled one is made: as machine code with attributes of fixed types,
or as a class of Python.

mypyc makes a class machine code even if its base is none (`Exception`, `ABC`, a class of a module that is not
compiled). Such an object can be referred to weakly, and then the process ends when the object does (mypy 2.4). So a
class with such a base stays a class of Python, and only its methods are compiled; and so do its other bases, because
it could not have both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

# Classes that interpreted ones inherit from: the threads of a server, and tests.
_OPEN = ("Batcher", "Decider", "EngineThread", "HttpConnection")
_OPEN_MARK = "@mypyc_attr(allow_interpreted_subclasses=True)\n"
# A class with a decorator that mypyc does not know is a class of Python. (It knows `mypyc_attr(native_class=False)`,
# but would look that up when the program runs.)
_PYTHON_MARK = "@(lambda made: made)\n"
_LEFT_TO_MYPYC = ("Generic", "NamedTuple", "Protocol", "TypedDict")

Name = tuple[str, str]
"""Of a class: its module, and its name there."""


def bases_of(folder: Path, paths: Iterable[Path]) -> dict[Name, list[Name]]:
    """The bases of each class at the top of the modules at `paths`."""
    bases: dict[Name, list[Name]] = {}
    for path in paths:
        module, tree = module_of(folder, path), ast.parse(path.read_text(encoding="utf-8"))
        known = {node.name: (module, node.name) for node in tree.body if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                known |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                written = [ast.unparse(base).partition("[")[0] for base in node.bases]
                bases[module, node.name] = [known.get(name, ("", name)) for name in written]
    return bases


def made_from(base: Name, bases: dict[Name, list[Name]]) -> set[Name]:
    """The classes that inherit from `base`, directly or not."""
    found = {base}
    while more := {name for name, above in bases.items() if not found.isdisjoint(above)} - found:
        found |= more
    return found - {base}


def python_classes(folder: Path, compiled: set[str]) -> set[Name]:
    """The classes of the modules in `compiled` that stay classes of Python."""
    written = bases_of(folder, [Path(each) for each in compiled])
    bases = {name: [each for each in above if each[1] not in _LEFT_TO_MYPYC] for name, above in written.items()}
    python: set[Name] = set()
    while True:
        more = {name for name, above in bases.items() if any(base not in bases or base in python for base in above)}
        more |= {base for name in more for base in bases[name] if base in bases}
        if more <= python:
            return python
        python |= more


def mark_classes(module: str, source: str, python: set[Name]) -> str:
    """The source of a compiled module, its classes marked for mypyc."""

    def marked(found: re.Match[str]) -> str:
        if (module, found[1]) in python:
            return _PYTHON_MARK + found[0]
        return (_OPEN_MARK if found[1] in _OPEN else "") + found[0]

    return re.sub(r"^class (\w+)\b", marked, source, flags=re.MULTILINE)


def module_of(folder: Path, path: Path) -> str:
    """The name that others import a file by."""
    return ".".join([folder.name, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__")
