"""Prints what every record of the package says of itself. Run on two builds, the lines must be equal.

With `loads`: what each says of values that are not of their field's type. Records that were written out and not
compiled do not check that (native/expand.py).
"""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.base.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[2] / "src"
PLAIN: dict[str, list[Any]] = {
    "str": ["", "text", "\u00e9\u2028\U0001f512"],
    "int": [0, -1, 2**31, 2**62, -(2**62), 2**63, 2**200],
    "bool": [False, True],
}
DECLARED = re.compile(r"^class (\w+)\((\w+)\):", re.MULTILINE)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function
WRONG: list[Any] = [None, True, 1, 1.5, "x", [], [1], ["x"], [None], [[]], [{}], {}, {"x": 1}]


class NoSampleError(Exception):
    """A field must have something that nothing here makes: a function, a lock."""


def modules() -> list[str]:
    """Those that declare a record, by the names of the classes: a record may be made from another module's."""
    declared = {path: DECLARED.findall(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    known = {"Record"}
    while more := {name for each in declared.values() for name, base in each if base in known} - known:
        known |= more
    paths = sorted([path for path, each in declared.items() if any(base in known for _, base in each)])
    return [".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def records() -> Iterator[type[Record]]:
    for name in modules():
        module = importlib.import_module(name)
        for kind in list(vars(module).values()):
            if isinstance(kind, type) and issubclass(kind, Record) and kind.__module__ == name:
                yield kind


def value_of(kind: type[Record], annotation: str, turn: int) -> Any:
    if annotation.endswith(" | None"):
        return value_of(kind, annotation.removesuffix(" | None"), turn) if turn % 2 else None
    if annotation in PLAIN:
        return PLAIN[annotation][turn % len(PLAIN[annotation])]
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        inner = annotation[6:-6]
        known = inner in PLAIN or record_named(kind, inner)
        return tuple([value_of(kind, inner, turn + at) for at in range(turn % 3)]) if known else ()
    for empty in (list, dict):
        if annotation.startswith(f"{empty.__name__}["):
            return empty()
    found = record_named(kind, annotation)
    if found is None:
        raise NoSampleError(annotation)
    return sample(found, turn + 1)


def record_named(kind: type[Record], name: str) -> type[Record] | None:
    """The class that a field names: in the module of the class that declares it, or of one made from that."""
    for base in kind.__mro__:
        found = getattr(importlib.import_module(base.__module__), name, None)
        if isinstance(found, type) and issubclass(found, Record):
            return found
    return None


def sample(kind: type[Record], turn: int) -> Record:
    values = {}
    for at, field in enumerate(kind._fields):
        if field not in kind._defaults or (turn + at) % 4:
            try:
                values[field] = value_of(kind, kind._types[field], turn + at)
            except NoSampleError:
                if field not in kind._defaults:
                    raise
    return kind(**values)


def lines_of(kind: type[Record]) -> list[str]:
    said = [repr((kind._fields, kind._defaults, sorted(kind._types.items())))]
    for turn in range(12):
        try:
            made = sample(kind, turn)
        except NoSampleError as error:
            return [*said, f"no sample: {error}"]
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made.replace() == made
        first = kind._fields[0] if kind._fields else None
        changed = made.replace(**{first: getattr(sample(kind, turn + 7), first)}) if first else made
        said.append(f"{type(changed).__name__} {type(made.replace()).__name__}")
        said += [repr(made), repr(changed), repr(made.astuple())]
        said.append(json.dumps(made.dump(), default=repr))
        # A list or a dict has no hash.
        if not any(annotation.startswith(("dict[", "list[")) for annotation in kind._types.values()):
            said.append(str(len({made, changed, made.replace()})))
    return said


def loads_of(kind: type[Record]) -> list[str]:
    """What becomes of each wrong value in each field whose type `load` knows, and of a field that is missing."""
    try:
        document = json.loads(json.dumps(sample(kind, 1).dump(), default=repr))
        assert kind.load(document) == sample(kind, 1)
    except (NoSampleError, AssertionError):
        return []  # it is never stored
    said = []
    for field, annotation in kind._types.items():
        name = annotation.removesuffix(" | None").removeprefix("tuple[").removesuffix(", ...]")
        if name in PLAIN or record_named(kind, name):
            said += [f"{field}={wrong!r} {loaded(kind, {**document, field: wrong})}" for wrong in WRONG]
            said.append(f"no {field} {loaded(kind, {key: document[key] for key in document if key != field})}")
    return said


def loaded(kind: type[Record], document: dict[str, Any]) -> str:
    try:
        return repr(kind.load(document))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return type(error).__name__


def main() -> None:
    say = loads_of if sys.argv[1:] == ["loads"] else lines_of
    for kind in records():
        for line in say(kind):
            print(f"{kind.__module__}.{kind.__qualname__}: {ADDRESS.sub('', line)}")


if __name__ == "__main__":
    main()
