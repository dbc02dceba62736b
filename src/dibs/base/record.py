"""Immutable records: the small subset of dataclasses that dibs needs, at a tenth of the import cost.

The embedded `dibs claim` is a whole Python process per call, so what its modules import is its speed. Importing
`dataclasses` costs about as much as starting Python twice and `msgspec` three times (docs/explanation/architecture.md
has the figures); this module imports nothing. A subclass lists its fields as annotations:

    class Holder(Record):
        owner: str
        ttl_ms: int
        checkpoint: str | None = None

and gets `__init__`, `==`, `hash`, `repr`, `replace(**changes)`, `dump()` (a plain dict without the fields that are at
their default) and `load(dict)`. Each method is compiled when it is first called, not when the class is defined: a
process pays only for the records it touches.

Field types that `dump` and `load` follow into are `X`, `X | None` and `tuple[X, ...]` where X is a record; every other
value is passed as it is and must be something JSON can hold. A record class that a field names is looked up in the
module that declares the field: it must be defined or imported there, not under TYPE_CHECKING. Immutability is held by
the type checker (frozen) and by every rule building new records with `replace`, not by a slow `__setattr__`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda cls: cls


_MISSING = object()
_LAZY: dict[str, Any] = {}
COMPILED_AT = 8  # from which call of a class's methods on they are compiled; a `dibs claim` makes most records once
_CALLS: dict[type[Record], int] = {}


class _RecordType(type):
    """Turns annotations into slots and keeps the defaults aside (a slot and a class attribute cannot share a name)."""

    def __new__(mcls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> _RecordType:
        if "__annotate_func__" in space:  # Python 3.14 would make them later: a record without fields
            raise TypeError(f"{name}: its module must begin with `from __future__ import annotations`")
        types = {f: kind for f, kind in space.get("__annotations__", {}).items() if f[0] != "_"}
        space["__slots__"] = tuple(types)
        modules = dict.fromkeys(types, space["__module__"])
        defaults = {field: space.pop(field) for field in types if field in space}
        if bases:
            (base,) = bases
            if base._fields:  # type: ignore[attr-defined]  # those of a base come first
                types = base._types | types  # type: ignore[attr-defined]
                modules = base._modules | modules  # type: ignore[attr-defined]
                defaults = base._defaults | defaults  # type: ignore[attr-defined]
            # Each class has its own lazy methods: those inherited may be compiled already, for the base's fields.
            space = _LAZY | space
        # A field without a default may not follow one that has it. Fields are given by keyword: their order is free.
        space["_fields"] = tuple(sorted(types, key=defaults.__contains__)) if defaults else tuple(types)
        space["_defaults"] = defaults
        space["_types"] = types
        space["_modules"] = modules
        return super().__new__(mcls, name, bases, space)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record(metaclass=_RecordType):
    _fields: tuple[str, ...] = ()
    _defaults: dict[str, Any] = {}  # noqa: RUF012 - set per class by the metaclass, never mutated
    _types: dict[str, str] = {}  # noqa: RUF012 - likewise
    _modules: dict[str, str] = {}  # noqa: RUF012 - likewise: which module declares a field

    if TYPE_CHECKING:

        def dump(self) -> dict[str, Any]:
            """A dict of plain values, without fields that hold their default."""

        @classmethod
        def load(cls, values: dict[str, Any]) -> Self:
            """The record that `dump` made this from. Unknown keys are ignored: a newer version may add fields."""

        def replace(self, **changes: Any) -> Self:
            """A copy with some fields changed."""

    def astuple(self) -> tuple[Any, ...]:
        return tuple([getattr(self, field) for field in self._fields])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.astuple() == other.astuple()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.astuple()))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return remade, (type(self), self.astuple())

    def __repr__(self) -> str:
        shown = [
            f"{field}={getattr(self, field)!r}"
            for field in self._fields
            if getattr(self, field) != self._defaults.get(field, _MISSING)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def remade(kind: type[Any], values: tuple[Any, ...]) -> Any:
    """The record that was pickled or copied. The same for a compiled record, which has no other way."""
    return kind(**dict(zip(kind._fields, values, strict=True)))


# The methods until they are compiled: the first calls go field by field, which is cheaper than compiling a method for
# them. A call that is wrong compiles the method, too: that one raises the error.


def _first_init(self: Record, **values: Any) -> None:
    cls = type(self)
    count = _CALLS[cls] = _CALLS.get(cls, 0) + 1
    if count < COMPILED_AT and values.keys() <= cls._types.keys():
        given = cls._defaults | values
        if len(given) == len(cls._fields):
            for field in given:
                setattr(self, field, given[field])
            return
    _compile(cls, "__init__")
    self.__init__(**values)  # type: ignore[misc]  # the compiled one


def _first_replace(self: Record, **values: Any) -> Record:
    cls = type(self)
    count = _CALLS[cls] = _CALLS.get(cls, 0) + 1
    if count < COMPILED_AT and values.keys() <= cls._types.keys():
        made = cls.__new__(cls)
        for field in cls._fields:
            setattr(made, field, values[field] if field in values else getattr(self, field))
        return made
    _compile(cls, "replace")
    return self.replace(**values)


def _first_dump(self: Record) -> dict[str, Any]:
    cls = type(self)
    count = _CALLS[cls] = _CALLS.get(cls, 0) + 1
    if count >= COMPILED_AT:
        _compile(cls, "dump")
        return self.dump()
    made = {}
    defaults = cls._defaults
    for field in cls._fields:
        value = getattr(self, field)
        if field in defaults and value == defaults[field]:
            continue
        if isinstance(value, Record):
            value = value.dump()
        elif isinstance(value, tuple) and value and isinstance(value[0], Record):
            value = [each.dump() for each in value]
        made[field] = value
    return made


def _first_load(cls: type[Record], values: dict[str, Any]) -> Record:
    count = _CALLS[cls] = _CALLS.get(cls, 0) + 1
    if count >= COMPILED_AT:
        _compile(cls, "load")
        return cls.load(values)
    made = cls.__new__(cls)
    for field in cls._fields:
        value = values.get(field, cls._defaults[field]) if field in cls._defaults else values[field]
        nested = _nested(cls, field)
        if nested is None:
            if value is not None and cls._types[field].startswith("tuple["):
                value = tuple(value)
        elif nested[0] == "many":
            value = tuple([nested[1].load(each) for each in value]) if value else ()
        elif isinstance(value, dict):
            value = nested[1].load(value)
        setattr(made, field, value)
    return made


_LAZY.update(
    {"__init__": _first_init, "replace": _first_replace, "dump": _first_dump, "load": classmethod(_first_load)}
)


def _compile(cls: type[Record], method: str) -> None:
    """Write one of a class's hot methods as straight code. A loop over fields would cost three times as much."""
    space: dict[str, Any] = {"_new": cls.__new__, "cls": cls, "names": frozenset(cls._fields)}
    space.update({f"d_{field}": value for field, value in cls._defaults.items()})
    # Our own field names, never a caller's text. `exec` gets code: if it gets text, Python takes an interrupt in it for
    # one that nobody handles, and kills itself with SIGINT at the program's end.
    exec(compile("\n".join(_WRITERS[method](cls, space)), "<record>", "exec"), space)
    made = space[method]
    setattr(cls, method, staticmethod(made) if method == "load" else made)


def _init_code(cls: type[Record], space: dict[str, Any]) -> list[str]:
    parameters = [f"{field}=d_{field}" if field in cls._defaults else field for field in cls._fields]
    star = "*, " if parameters else ""
    lines = [f"def __init__(self, {star}{', '.join(parameters)}):"]
    return lines + ([f"    self.{field} = {field}" for field in cls._fields] or ["    pass"])


def _replace_code(cls: type[Record], space: dict[str, Any]) -> list[str]:
    lines = ["def replace(self, **changes):", "    made = _new(cls)"]
    lines += [f"    made.{field} = self.{field}" for field in cls._fields]
    lines.append("    for name, value in changes.items():")
    lines.append("        if name not in names: raise TypeError(f'{cls.__name__} has no field {name}')")
    lines.append("        setattr(made, name, value)")
    return [*lines, "    return made"]


def _nested(cls: type[Record], field: str) -> tuple[str, type[Record]] | None:
    """`("many", Holder)` for `tuple[Holder, ...]`, `("one", Holder)` for `Holder` or `Holder | None`, else None."""
    annotation = cls._types[field]
    is_many = annotation.startswith("tuple[") and annotation.endswith(", ...]")
    name = annotation[6:-6] if is_many else annotation.removesuffix(" | None")
    inner = getattr(sys.modules[cls._modules[field]], name, None)
    return ("many" if is_many else "one", inner) if isinstance(inner, _RecordType) else None  # type: ignore[return-value]


def dump_lines(cls: type[Record], default: Callable[[str], str]) -> list[str]:
    """The body of `dump`. `default` says how the text names a field's default: the optional build writes the same
    methods into source files (native/expand.py), where names are others."""
    lines = ["made: dict[str, Any] = {}"]
    for field in cls._fields:
        one = value = f"self.{field}"
        nested = _nested(cls, field)
        if nested is not None:
            many = nested[0] == "many"
            one = f"[each.dump() for each in {value}]" if many else f"{value}.dump() if {value} is not None else None"
        if field not in cls._defaults:
            lines.append(f"made[{field!r}] = {one}")
        elif cls._defaults[field] is None:
            lines.append(f"if {value} is not None: made[{field!r}] = {one}")
        else:
            lines.append(f"if {value} != {default(field)}: made[{field!r}] = {one}")
    return [*lines, "return made"]


def load_lines(cls: type[Record], default: Callable[[str], str], kind: Callable[[str, type[Record]], str]) -> list[str]:
    """The first lines of `load`: the variable `f_name` for each field. `kind` names the class of a record in it."""
    lines = []
    for field in cls._fields:
        var = f"f_{field}"
        given = f"values.get({field!r}, {default(field)})" if field in cls._defaults else f"values[{field!r}]"
        lines.append(f"{var} = {given}")
        nested = _nested(cls, field)
        if nested is not None:
            inner = kind(field, nested[1])
            if nested[0] == "one":
                lines.append(f"if isinstance({var}, dict): {var} = {inner}.load({var})")
            else:
                lines.append(f"{var} = tuple([{inner}.load(each) for each in {var}]) if {var} else ()")
        elif cls._types[field].startswith("tuple["):
            lines.append(f"if {var} is not None: {var} = tuple({var})")
    return lines


def _dump_code(cls: type[Record], space: dict[str, Any]) -> list[str]:
    return ["def dump(self):", *[f"    {line}" for line in dump_lines(cls, "d_{}".format)]]


def _load_code(cls: type[Record], space: dict[str, Any]) -> list[str]:
    def kind(field: str, inner: type[Record]) -> str:
        space[f"t_{field}"] = inner
        return f"t_{field}"

    lines = [*load_lines(cls, "d_{}".format, kind), "made = _new(cls)"]
    lines += [f"made.{field} = f_{field}" for field in cls._fields]
    return ["def load(values):", *[f"    {line}" for line in lines], "    return made"]


_WRITERS: dict[str, Callable[[type[Record], dict[str, Any]], list[str]]] = {
    "__init__": _init_code,
    "replace": _replace_code,
    "dump": _dump_code,
    "load": _load_code,
}
