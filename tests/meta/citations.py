"""Which tests cite which id with a mark, such as `@pytest.mark.promise("excl")` or `@pytest.mark.fault("F-001")`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
# The contract suite that dibs ships counts as tests.
PLACES = (ROOT / "tests", ROOT / "src" / "dibs" / "testing")


class Citation(NamedTuple):
    id: str
    file: str
    line: int


def _is_mark(node: ast.AST, mark: str) -> bool:
    if not (isinstance(node, ast.Attribute) and node.attr == mark):
        return False
    return getattr(node.value, "attr", getattr(node.value, "id", None)) == "mark"


def citations_in(source: str, file: str, mark: str) -> Iterator[Citation]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _is_mark(node.func, mark):
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{file}:{node.lineno}: write the id out"
                yield Citation(str(argument.value), file, node.lineno)


def all_citations(mark: str) -> list[Citation]:
    files = [file for place in PLACES for file in sorted(place.rglob("*.py"))]
    sources = [(file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()) for file in files]
    return [
        citation
        for source, file in sources
        if f"mark.{mark}" in source  # a tree of each file would take seconds
        for citation in citations_in(source, file, mark)
    ]
