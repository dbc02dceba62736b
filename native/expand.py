"""Writes each record class out as a plain typed class, so that a compiler can make it machine code.

`class Holder(Record)` lists fields, and the methods of `dibs/base/record.py` look them up when the program runs. A
compiler makes fast code of methods that name the fields. So the build copies the package and writes them in: a class
body keeps its fields, comments and own methods, and gets `__init__`, `replace`, `astuple`, `dump` and `load`. They say
the same as those of `record.py`, which tests/core/test_written_records.py compares. The facts about a class (fields,
defaults, types) are read from the class as Python made it. Nothing here knows a record by name.

It cannot go without something in its place: a class that mypyc makes has no annotations, and its defaults are gone from
the class. Of a class that stays Python's, mypyc keeps `type` for `str | None` and `tuple` for `tuple[Holder, ...]`
(mypy 2.4). So `Record` would find neither fields nor types when the program runs. And it pays: with the facts and
`__init__` written in and the other methods as loops over the fields, a compiled acquire takes 327,700 instructions
instead of 266,700, 23 % more (bench/budget_parts.py): deciding 71,000 instead of 41,700, the commit 194,900 instead of
163,000.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TypeGuard

from classes import bases_of, made_from, mark_classes, module_of, python_classes
from constants import write_constants

from dibs.base.record import Record, kinds_of

BASE = "dibs.base.record"
_FUTURE = "from __future__ import annotations\n"
# Type checkers take MYPY for true. At run time nothing is imported.
_TYPING = """
MYPY = False
if MYPY:
    from typing import Any, ClassVar, Final

    from mypy_extensions import mypyc_attr
"""
# What a compiled record has of `record.py` as it is.
_SHARED = ("__eq__", "__hash__", "__reduce__", "__repr__", "remade", "tuple_of")
_IMPORT_KEEP = "\nfrom dibs.base.record import KEEP, tuple_of\n"
_BASE_HEAD = '''"""The base of every record. The build wrote the methods of each record into its class."""

from __future__ import annotations

MYPY = False
if MYPY:
    from collections.abc import Callable
    from typing import Any, ClassVar, Final

    from mypy_extensions import mypyc_attr

KEEP: Final = object()  # the default of each argument of `replace`
_MISSING: Final = object()


@mypyc_attr(allow_interpreted_subclasses=True, acyclic=True)
class Record:
    """Base of every record."""

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}
    _types: ClassVar[dict[str, str]] = {}

    def astuple(self) -> tuple[Any, ...]:
        return ()

'''


def expand(module: str, source: str, records: set[str], *, compiled: bool = False) -> str:
    """The source of a module with its records, which are named, written out. Records hold only what was there before
    them, so they are in no cycle: the collector need not look at compiled ones."""
    if module == BASE:
        return _base(source)
    if not records:
        return source
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found = importlib.import_module(module)
    lines = source.splitlines(keepends=True)
    for node in reversed([each for each in classes if each.name in records]):
        made = _methods(getattr(found, node.name), node, _defaults_of(classes, node))
        lines[node.end_lineno : node.end_lineno] = [f"    {line}\n" if line else "\n" for line in made]
        for field in reversed(_fields_of(node)):
            _without_default(lines, field)
        if compiled:
            lines.insert(node.lineno - 1, "@mypyc_attr(acyclic=True)\n")
    return "".join(lines).replace(_FUTURE, _FUTURE + _IMPORT_KEEP, 1)


def with_typing(source: str) -> str:
    """The source with the names of types that were written into it. They are imported for type checkers only."""
    if _FUTURE not in source:
        head = ast.parse(source).body[0].end_lineno or 0  # the module's text
        lines = source.splitlines(keepends=True)
        source = "".join([*lines[:head], "\n", _FUTURE, *lines[head:]])
    return source.replace(_FUTURE, _FUTURE + _TYPING, 1)


def _is_record(kind: object) -> TypeGuard[type[Record]]:
    return isinstance(kind, type) and issubclass(kind, Record)


def _base(source: str) -> str:
    """`Record` with the methods that are the same for all records, as they are."""
    tree = ast.parse(source)
    (record,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Record"]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _SHARED]
    shared = [node for node in record.body if isinstance(node, ast.FunctionDef) and node.name in _SHARED]
    texts = [ast.get_source_segment(source, node, padded=True) or "" for node in (*shared, *functions)]
    return _BASE_HEAD + "\n\n".join(texts) + "\n"


def _fields_of(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [each for each in node.body if isinstance(each, ast.AnnAssign)]


def _defaults_of(classes: list[ast.ClassDef], node: ast.ClassDef) -> dict[str, str]:
    """The defaults of a class as they are written, its bases' first. Only of bases in the same file."""
    found: dict[str, str] = {}
    for base in node.bases:
        for each in classes:
            if isinstance(base, ast.Name) and each.name == base.id:
                found |= _defaults_of(classes, each)
    own = {_name(field): ast.unparse(field.value) for field in _fields_of(node) if field.value is not None}
    return found | own


def _name(field: ast.AnnAssign) -> str:
    assert isinstance(field.target, ast.Name)
    return field.target.id


def _without_default(lines: list[str], field: ast.AnnAssign) -> None:
    """`mode: str = EXCLUSIVE  # why` becomes `mode: str  # why`. Lines stay where they were."""
    if field.value is None:
        return
    first, last = field.lineno - 1, (field.end_lineno or field.lineno) - 1
    lines[first] = f"    {_name(field)}: {ast.unparse(field.annotation)}\n"
    lines[first + 1 : last + 1] = ["\n"] * (last - first)


def _methods(kind: type[Record], node: ast.ClassDef, written: dict[str, str]) -> list[str]:
    # Those of a base in another file are written as values.
    written = {field: written.get(field, repr(value)) for field, value in kind._defaults.items()}
    return [
        *_facts(kind, node, written),
        *_init(kind, written),
        *_replace(kind),
        *_astuple(kind),
        *_dump(kind, written),
        *_load(kind, written),
    ]


def _function(head: str, body: list[str]) -> list[str]:
    return ["", head, *[f"    {line}" for line in body]]


def _facts(kind: type[Record], node: ast.ClassDef, written: dict[str, str]) -> list[str]:
    defaults = ", ".join([f"{field!r}: {text}" for field, text in written.items()])
    lines = [
        f"_fields: ClassVar[tuple[str, ...]] = {kind._fields!r}",
        f"_defaults: ClassVar[dict[str, Any]] = {{{defaults}}}",
        f"_types: ClassVar[dict[str, str]] = {kind._types!r}",
    ]
    own = tuple([_name(field) for field in _fields_of(node)])
    return ["", f"__slots__ = {own!r}", *lines]


def _init(kind: type[Record], written: dict[str, str]) -> list[str]:
    parameters = [
        f"{field}: {kind._types[field]}" + (f" = {written[field]}" if field in written else "")
        for field in kind._fields
    ]
    star = ["*"] if parameters else []
    head = f"def __init__({', '.join(['self', *star, *parameters])}) -> None:"
    return _function(head, [f"self.{field} = {field}" for field in kind._fields] or ["pass"])


def _replace(kind: type[Record]) -> list[str]:
    star = ["*"] if kind._fields else []
    parameters = ", ".join(["self", *star, *[f"{field}: Any = KEEP" for field in kind._fields]])
    body = [f"made = {kind.__name__}({', '.join([f'{field}=self.{field}' for field in kind._fields])})"]
    body += [f"if {field} is not KEEP: made.{field} = {field}" for field in kind._fields]
    return _function(f"def replace({parameters}) -> {kind.__name__}:", [*body, "return made"])


def _astuple(kind: type[Record]) -> list[str]:
    values = "".join([f"self.{field}, " for field in kind._fields])
    return _function("def astuple(self) -> tuple[Any, ...]:", [f"return ({values})"])


def _dump(kind: type[Record], written: dict[str, str]) -> list[str]:
    kinds = kinds_of(kind)
    body = ["made: dict[str, Any] = {}"]
    for field in kind._fields:
        value = text = f"self.{field}"
        type_, item = kinds[field]
        if _is_record(item):
            text = f"[each.dump() for each in {value}]"
        elif _is_record(type_):
            text = f"{value}.dump() if {value} is not None else None"
        kept = f"made[{field!r}] = {text}"
        if field in written:
            is_none = kind._defaults[field] is None
            kept = f"if {value} is not None: {kept}" if is_none else f"if {value} != {written[field]}: {kept}"
        body.append(kept)
    return _function("def dump(self) -> dict[str, Any]:", [*body, "return made"])


def _load(kind: type[Record], written: dict[str, str]) -> list[str]:
    """A value of another type is refused by `__init__`, because a compiled attribute has a type."""
    kinds = kinds_of(kind)
    body = []
    for field in kind._fields:
        value = f"f_{field}"
        type_, item = kinds[field]
        given = f".get({field!r}, {written[field]})" if field in written else f"[{field!r}]"
        body.append(f"{value} = values{given}")
        if type_ is tuple:
            made = f"tuple({value})" if item is None else f"tuple_of({value}, {item.__name__})"
            made = f"tuple([{item.__name__}.load(each) for each in {value}])" if _is_record(item) else made
            body.append(f"if isinstance({value}, list): {value} = {made}")
        elif _is_record(type_):
            body.append(f"if isinstance({value}, dict): {value} = {type_.__name__}.load({value})")
        elif type_ is int:  # a compiled one would take true for 1
            body.append(f"if isinstance({value}, bool): raise TypeError({field!r})")
    body.append(f"return {kind.__name__}({', '.join([f'{field}=f_{field}' for field in kind._fields])})")
    head = f"def load(values: dict[str, Any]) -> {kind.__name__}:"
    return ["", "@staticmethod", *_function(head, body)[1:]]


def expand_tree(folder: Path, compiled: set[str]) -> None:
    """Write out the records of all modules of the package in `folder`, and the constants of those in `compiled`."""
    paths = sorted(folder.rglob("*.py"))
    python = python_classes(folder, compiled)
    records = made_from((BASE, "Record"), bases_of(folder, paths))
    for path in paths:
        module = module_of(folder, path)
        source = path.read_text(encoding="utf-8")
        is_compiled = path.as_posix() in compiled
        own = {name for declared, name in records if declared == module}
        text = expand(module, source, own, compiled=is_compiled)
        if is_compiled and module != BASE:
            text = mark_classes(module, write_constants(text), python)
        if text != source:
            path.write_text(text if module == BASE else with_typing(text), encoding="utf-8")
