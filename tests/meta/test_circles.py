"""No two files of the source import each other, however long the way round is.

Every import counts, also one inside a function or under `if TYPE_CHECKING`: a reader who follows imports should never
come back to the file they began with.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def modules() -> dict[str, Path]:
    """All modules by name. A package is its `__init__` file."""
    found = {}
    for file in sorted((SOURCE / "dibs").rglob("*.py")):
        path = file.parent if file.name == "__init__.py" else file.with_suffix("")
        found[".".join(path.relative_to(SOURCE).parts)] = file
    return found


def imports_of(source: str, known: set[str]) -> set[str]:
    """The modules of ours that a file names. `from a import b` is the module a.b where there is one, else a."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written out here"
            base = node.module or ""
            found |= {name if (name := f"{base}.{alias.name}") in known else base for alias in node.names}
    return found & known


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other."""
    reach: dict[str, set[str]] = {}
    for start, imported in graph.items():
        seen: set[str] = set()
        left = list(imported)
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += graph.get(name, ())
        reach[start] = seen
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, ())))
        for name in graph
        if name in reach[name]
    }
    return [list(group) for group in sorted(groups)]


def test_no_two_files_import_each_other() -> None:
    found = modules()
    graph = {name: imports_of(file.read_text(encoding="utf-8"), set(found)) - {name} for name, file in found.items()}
    assert circles(graph) == []


def test_a_circle_is_found_however_long_and_what_only_leads_to_it_is_not_in_it() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": set[str]()}
    assert circles(graph) == [["a", "b", "c"]]


def test_an_import_for_types_counts() -> None:
    source = "def f():\n    from x import y, z\nif TYPE_CHECKING:\n    import x.w\n"
    assert imports_of(source, {"x", "x.y", "x.w"}) == {"x", "x.y", "x.w"}
