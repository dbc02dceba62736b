"""The changes that a mutant may be: one node of a function's syntax tree, replaced by another."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
LARGE = 100  # one more of so many is no change that anybody sees
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
WORDS_FOR_PEOPLE = ("__repr__", "__str__", "notices")
LOGS = ("log", "logger", "_log")
# Reading ahead: what is not read then is read later, and the answer is the same.
READ_AHEAD = ("need_sessions", "_need_jobs", "_load", "keys_of")


@dataclass(frozen=True)
class Mutant:
    """One change. `function` names the function at the top of its module or class that has it."""

    path: Path
    function: str
    first_line: int  # of the function, its decorators included
    line: int
    statement: int  # the line of the statement that has it
    what: str
    number: int  # of the change among those of the file

    def code(self) -> CodeType | None:
        """The function as it is with the change. None: Python does not take it."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        for change in _changes(tree):
            if change.number == self.number:
                change.make()
                break
        try:
            whole = compile(ast.fix_missing_locations(tree), str(self.path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None
        return _find(whole, self.function, self.first_line)


def mutants(path: Path) -> list[Mutant]:
    """All mutants of one file, in the order of its lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        Mutant(path, each.function, each.first_line, each.line, each.statement, each.what, each.number)
        for each in _changes(tree)
    ]


def probed(path: Path) -> Iterator[tuple[int, CodeType]]:
    """Its functions, by their first line, such that each statement notes itself: `__noted__[its line] = 1`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = list(_functions(tree, ""))
    for place in places:
        for node in ast.walk(place.node):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, [each for statement in block for each in (_probe(statement), statement)])
    whole = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    for place in places:
        code = _find(whole, place.function, place.first_line)
        if code is not None:
            yield place.first_line, code


def _probe(statement: ast.AST) -> ast.stmt:
    line: int = getattr(statement, "lineno")  # noqa: B009
    made = ast.parse(f"__noted__[{line}] = 1").body[0]
    for each in ast.walk(made):
        ast.copy_location(each, statement)
    return made


def _find(code: CodeType, function: str, first_line: int) -> CodeType | None:
    if code.co_qualname == function and code.co_firstlineno == first_line:
        return code
    inner = (_find(each, function, first_line) for each in code.co_consts if hasattr(each, "co_qualname"))
    return next((each for each in inner if each is not None), None)


class _Change:
    def __init__(self, number: int, place: _Place, statement: int, node: ast.AST, new: ast.AST, what: str) -> None:
        self.number = number
        self.function, self.first_line = place.function, place.first_line
        self.line: int = getattr(node, "lineno", place.first_line)
        self.statement = statement
        self.what = what
        self._place = place
        self._node, self._new = node, new

    def make(self) -> None:
        """Put the new node into the tree."""
        for parent in ast.walk(self._place.node):
            for name, value in ast.iter_fields(parent):
                if value is self._node:
                    setattr(parent, name, ast.copy_location(self._new, self._node))
                elif isinstance(value, list):
                    for index, each in enumerate(value):
                        if each is self._node:
                            value[index] = ast.copy_location(self._new, self._node)


@dataclass(frozen=True)
class _Place:
    node: ast.AST
    function: str
    first_line: int


def _changes(tree: ast.Module) -> Iterator[_Change]:
    number = 0
    for place in _functions(tree, ""):
        for node, statement in _inside(place.node):
            for new, what in _replacements(node):
                yield _Change(number, place, statement, node, new, what)
                number += 1


def _functions(node: ast.AST, within: str) -> Iterator[_Place]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if child.name not in WORDS_FOR_PEOPLE + READ_AHEAD:
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                yield _Place(child, within + child.name, first)
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.")
        elif isinstance(child, (ast.If, ast.Try)) and not _is_for_types(child):
            yield from _functions(child, within)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _inside(function: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """The nodes of its body that decide something (no annotations, messages, logs or assertions, no reading ahead), and
    the lines of their statements."""
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    waiting: list[tuple[ast.AST, int]] = [(each, each.lineno) for each in reversed(function.body)]
    while waiting:
        node, line = waiting.pop()
        if _is_beside(node):
            continue
        line = node.lineno if isinstance(node, ast.stmt) else line
        yield node, line
        if isinstance(node, ast.Raise):
            continue  # its message
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value is not None else []
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            children = list(node.body)
        elif isinstance(node, ast.Compare) and _is_about_time(node):
            children = [each for each in children if not isinstance(each, ast.Constant)]
        elif isinstance(node, ast.Subscript):
            children = [node.value, node.slice] if not _is_type(node) else []
        waiting.extend((each, line) for each in reversed(children))


def _is_about_time(node: ast.Compare) -> bool:
    """Whether there is a time, most likely: 0 stands for none, and no time of a store is 1."""
    sides = [node.left, *node.comparators]
    return any(getattr(each, "attr", getattr(each, "id", "")).endswith("_ms") for each in sides) and any(
        isinstance(each, ast.Constant) and each.value == 0 for each in sides
    )


def _is_type(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("list", "dict", "set", "tuple", "cast")


def _is_beside(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "strict":  # of `zip`: a check of the code itself
        return True
    if isinstance(node, (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.arguments)):
        return True
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    call = node.value.func if isinstance(node.value, ast.Call) else None
    if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name):
        return call.value.id in LOGS or (call.value.id, call.attr) == ("draft", "need")
    return isinstance(call, ast.Name) and call.id in READ_AHEAD


def _replacements(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for new in _new_nodes(node):
        yield new, f"`{_short(node)}` is `{_short(new)}`"


def _new_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            if type(operator) in COMPARISONS:
                operators = list(node.ops)
                operators[index] = COMPARISONS[type(operator)]()
                yield ast.Compare(node.left, operators, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp):
        if type(node.op) in ARITHMETIC and not _is_text(node):
            yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield ast.Constant(node.value + 1 if node.value < LARGE else node.value * 2)
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield ast.Name(NAMES[node.id], ast.Load())
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.stmt):
        yield from _new_statements(node)


def _new_statements(node: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.If):
        yield _if(node, ast.Constant(True))
        yield _if(node, ast.Constant(False))
        if node.orelse:
            yield ast.If(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Return):
        if node.value is not None and not _is_nothing(node.value):
            yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Expr):
        if not isinstance(node.value, (ast.Yield, ast.YieldFrom)):
            yield ast.Pass()
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete, ast.Raise)):
        yield ast.Pass()


def _if(node: ast.If, test: ast.expr) -> ast.If:
    return ast.If(ast.copy_location(test, node.test), node.body, node.orelse)


def _is_nothing(node: ast.expr) -> bool:
    """False, 0, None, (), [], {}: whoever asks whether there is something is answered as by None."""
    if isinstance(node, ast.Tuple | ast.List):
        return not node.elts
    return not node.keys if isinstance(node, ast.Dict) else isinstance(node, ast.Constant) and not node.value


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in ast.walk(node)
    )


def _short(node: ast.AST) -> str:
    if isinstance(node, (ast.If, ast.While)):
        node = copy.copy(node)
        node.body, node.orelse = [ast.Expr(ast.Constant(...))], [ast.Expr(ast.Constant(...))] if node.orelse else []
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
