"""No two modules import each other, neither when they run nor for their annotations."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
# Circles that are still there, by the folder in which they are. Take one out when it is gone.
KNOWN = ("dibs.stores.git", "dibs.stores.sqlite", "dibs.cli.git")


def modules() -> dict[str, Path]:
    found = {}
    for file in SOURCE.rglob("*.py"):
        found[".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")] = file
    return found


def imports(file: Path, names: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                found.add(whole if whole in names else node.module)
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & names


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return None


def test_no_modules_import_each_other() -> None:
    files = modules()
    graph = {name: imports(file, set(files)) for name, file in files.items()}
    for name, needs in graph.items():
        folder = name.rpartition(".")[0]
        if folder in KNOWN:
            needs -= {each for each in needs if each.rpartition(".")[0] == folder}
    assert circle(graph) is None


def test_a_circle_would_be_seen() -> None:
    found = circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert found is not None
    assert set(found) == {"a", "b", "c"}
