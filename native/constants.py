"""Marks the constants of a module, so that compiled code need not look them up by name each time.

A name in capitals that a module sets once becomes `Final`. Where `isinstance` is given the name of a tuple of classes,
the tuple is written out: a compiler can then compare types directly.
"""

from __future__ import annotations

import ast
from collections import Counter

_SKIPPED = ("TYPE_CHECKING", "MYPY", "T")  # T is a type variable


def write_constants(source: str) -> str:
    tree = ast.parse(source)
    found = _constants(tree)
    edits = [edit for node in found.values() for edit in _marked(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            kinds = node.args[1]
            made = found.get(kinds.id) if isinstance(kinds, ast.Name) else None
            if made is not None and isinstance(made.value, ast.Tuple):
                edits.append((kinds.lineno, kinds.col_offset, len(kinds.id), ast.unparse(made.value)))
    lines = source.splitlines(keepends=True)
    for line, column, length, text in sorted(edits, reverse=True):
        raw = lines[line - 1].encode()  # columns of `ast` are bytes
        lines[line - 1] = (raw[:column] + text.encode() + raw[column + length :]).decode()
    return "".join(lines)


def _constants(tree: ast.Module) -> dict[str, ast.Assign | ast.AnnAssign]:
    """Names in capitals that the module sets at its top, once."""
    found: dict[str, ast.Assign | ast.AnnAssign] = {}
    for node in tree.body:
        target = _target(node)
        if target is not None and target.id.isupper() and target.id not in _SKIPPED:
            found[target.id] = node  # type: ignore[assignment]  # what has a target is an assignment
    stored = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    times = Counter(stored)
    return {name: node for name, node in found.items() if times[name] == 1}


def _target(node: ast.stmt) -> ast.Name | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0]
    if isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        return node.target
    return None


def _marked(node: ast.Assign | ast.AnnAssign) -> list[tuple[int, int, int, str]]:
    """The edits that make an assignment `Final`: line, column, how much goes, what comes."""
    if isinstance(node, ast.Assign):
        (target,) = node.targets
        return [(target.lineno, target.end_col_offset or 0, 0, ": Final")]
    kind = node.annotation
    if kind.lineno != kind.end_lineno or "Final" in ast.unparse(kind):
        return []
    start, end = kind.col_offset, kind.end_col_offset or 0
    return [(kind.lineno, start, end - start, f"Final[{ast.unparse(kind)}]")]
