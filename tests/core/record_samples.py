"""Prints what every record of the package says of itself. Run on two builds, the lines must be equal."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
from typing import Any

from dibs.base.record import Record

MODULES = (
    *("core.records", "core.events", "core.commands", "core.service.credentials", "core.caller_rights"),
    *("core.outcomes", "core.lease_outcomes"),
    *(
        "wire.credentials",
        "engine.archive",
        "stores.etcd.clock",
        "stores.etcd",
    ),
    "compat.action_llama.runs",
)
PLAIN: dict[str, list[Any]] = {
    "str": ["", "text", "\u00e9\u2028\U0001f512"],
    "int": [0, -1, 2**31, 2**62, -(2**62), 2**63, 2**200],
    "bool": [False, True],
}


def value_of(kind: type[Record], annotation: str, turn: int) -> Any:
    if annotation.endswith(" | None"):
        return value_of(kind, annotation.removesuffix(" | None"), turn) if turn % 2 else None
    if annotation in PLAIN:
        return PLAIN[annotation][turn % len(PLAIN[annotation])]
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        inner = annotation[6:-6]
        known = inner in PLAIN or record_named(kind, inner)
        return tuple([value_of(kind, inner, turn + at) for at in range(turn % 3)]) if known else ()
    found = record_named(kind, annotation)
    return sample(found, turn + 1) if found else None


def record_named(kind: type[Record], name: str) -> type[Record] | None:
    """The class that a field names: in the module of the class that declares it, or of one made from that."""
    for base in kind.__mro__:
        found = getattr(importlib.import_module(base.__module__), name, None)
        if isinstance(found, type) and issubclass(found, Record):
            return found
    return None


def sample(kind: type[Record], turn: int) -> Record:
    values = {
        field: value_of(kind, kind._types[field], turn + at)
        for at, field in enumerate(kind._fields)
        if field not in kind._defaults or (turn + at) % 4
    }
    return kind(**values)


def lines_of(kind: type[Record]) -> list[str]:
    said = [repr((kind._fields, kind._defaults, sorted(kind._types.items())))]
    for turn in range(12):
        made = sample(kind, turn)
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made.replace() == made
        first = kind._fields[0] if kind._fields else None
        changed = made.replace(**{first: getattr(sample(kind, turn + 7), first)}) if first else made
        said += [repr(made), repr(changed), repr(made.astuple())]
        said.append(json.dumps(made.dump(), default=repr))
        if not any("dict[" in annotation for annotation in kind._types.values()):  # a dict has no hash
            said.append(str(len({made, changed, made.replace()})))
    return said


def main() -> None:
    for name in MODULES:
        module = importlib.import_module(f"dibs.{name}")
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Record) and kind.__module__ == module.__name__:
                for line in lines_of(kind):
                    print(f"{kind.__name__}: {line}")


if __name__ == "__main__":
    main()
