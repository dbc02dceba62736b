"""Immutable records: the small subset of dataclasses that dibs needs, at a tenth of the import cost.

The embedded `dibs claim` is a whole Python process per call, so what its modules import is its speed. Importing
`dataclasses` costs about as much as starting Python twice and `msgspec` three times (docs/explanation/architecture.md
has the figures); this module imports nothing. A subclass lists its fields as annotations:

    class Holder(Record):
        owner: str
        ttl_ms: int
        checkpoint: str | None = None

and has `__init__` with these keywords, `==`, `hash`, `repr`, `replace(**changes)`, `dump()` and `load(dict)`. These are
the methods below, the same for every class: nothing is generated. A record keeps its values in its `__dict__`, all of
them, in the order of `_fields`. So most methods are one operation on a dict. The compiled build has the same methods
written out for each class (native/expand.py).

Field types that `dump` and `load` follow into are `X`, `X | None` and `tuple[X, ...]` where X is a record. A record
class that a field names is looked up in the module that declares the field: it must be defined or imported there, not
under TYPE_CHECKING. Every other value is passed as it is and must be something JSON can hold.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self, TypeVar, dataclass_transform

    R = TypeVar("R", bound="Record")
    Kind = tuple[type | None, type | None]
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda cls: cls


_MISSING = object()  # stands for the default of a field that has none
_PLAIN = {"str": str, "int": int, "bool": bool}
_PLAIN_TYPES = frozenset(_PLAIN.values())


class _Fact:
    """Stands in a class for a fact about it, until somebody asks for one: a process that claims makes ninety classes,
    and uses a dozen. To find the facts about a class takes half as long as to make it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: object, cls: type[Record]) -> Any:
        _find_facts(cls)
        return cls.__dict__[self.name]


_FACTS = tuple([_Fact(name) for name in ("_fields", "_types", "_defaults", "_needed", "_blank", "_kinds")])


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    # Facts about a class, set by `_find_facts`, never mutated.
    _fields: tuple[str, ...] = ()  # those without a default first; fields are given by keyword, so order is free
    _types: dict[str, str] = {}  # noqa: RUF012 - as they are written
    _defaults: dict[str, Any] = {}  # noqa: RUF012
    _needed: frozenset[str] = frozenset()  # fields without a default
    _blank: dict[str, Any] = {}  # noqa: RUF012 - by field, in order: its default, or _MISSING
    _kinds: dict[str, Kind] = {}  # noqa: RUF012 - what `kinds_of` found, when it is needed

    def __init_subclass__(cls) -> None:
        own = cls.__dict__
        if "__annotate_func__" in own:  # Python 3.14 would make them later: a record without fields
            raise TypeError(f"{cls.__name__}: its module must begin with `from __future__ import annotations`")
        for fact in _FACTS:  # not those of a base
            setattr(cls, fact.name, fact)

    # `self` is positional only: otherwise CPython compares the name of every field that is given with it.
    def __init__(self, /, **values: Any) -> None:
        made = self._blank | values
        if len(made) != len(self._blank) or not self._needed <= values.keys():
            raise _wrong(type(self), values)
        _set_values(self, made)

    def replace(self, /, **changes: Any) -> Self:
        """A copy with some fields changed."""
        made = self.__dict__ | changes
        if len(made) != len(self._blank):
            raise _wrong(type(self), made)
        return _made(type(self), made)

    def dump(self) -> dict[str, Any]:
        """A dict of plain values, without fields that hold their default."""
        made, blank = {}, self._blank
        for field, value in self.__dict__.items():
            default = blank[field]
            if value is default or (default is not _MISSING and value == default):
                continue
            kind = type(value)
            if kind is tuple and value and isinstance(value[0], Record):
                value = [each.dump() for each in value]
            elif kind not in _PLAIN_TYPES and isinstance(value, Record):
                value = value.dump()
            made[field] = value
        return made

    @classmethod
    def load(cls, values: dict[str, Any]) -> Self:
        """The record that `dump` made this from. Unknown keys are ignored: a newer version may add fields. Raises
        KeyError for a field that is missing, TypeError for a value that is not of its field's type."""
        kinds = cls._kinds or kinds_of(cls)
        made = cls._blank.copy()
        for field, value in values.items():
            if field in kinds:
                kind, item = kinds[field]
                if type(value) is not kind and kind is not None:
                    value = _converted(value, cls._types[field], kind, item)
                made[field] = value
        if not values.keys() >= cls._needed:
            raise KeyError(min(cls._needed - values.keys()))
        return _made(cls, made)

    if not TYPE_CHECKING:  # a type checker would take it that any name may be set

        def __setattr__(self, field: str, _: object) -> None:
            raise AttributeError(f"{type(self).__name__}.{field} cannot be set: records are immutable")

    def astuple(self) -> tuple[Any, ...]:
        return tuple(self.__dict__.values())

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


def _find_facts(cls: type[Record]) -> None:
    types: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):  # its fields come first
        own = base.__dict__
        written = {field: kind for field, kind in own.get("__annotations__", {}).items() if field[0] != "_"}
        types |= written
        defaults |= {field: own[field] for field in written if field in own}
    cls._types, cls._defaults, cls._kinds = types, defaults, {}
    cls._fields = tuple(sorted(types, key=defaults.__contains__))
    cls._blank = dict.fromkeys(cls._fields, _MISSING) | defaults
    cls._needed = frozenset(types.keys() - defaults.keys())


_set_values = vars(Record)["__dict__"].__set__  # object.__setattr__ would look for `__dict__` first


def remade(kind: type[Any], values: tuple[Any, ...]) -> Any:
    """The record that was pickled or copied. The same for a compiled record, which has no other way."""
    return kind(**dict(zip(kind._fields, values, strict=True)))


def _made(cls: type[R], values: dict[str, Any]) -> R:
    record = object.__new__(cls)
    _set_values(record, values)
    return record


def _wrong(cls: type[Record], values: dict[str, Any]) -> TypeError:
    unknown = [field for field in values if field not in cls._types]
    if unknown:
        return TypeError(f"{cls.__name__} has no field {', '.join(unknown)}")
    return TypeError(f"{cls.__name__} needs {', '.join(sorted(cls._needed - values.keys()))}")


def kinds_of(cls: type[Record]) -> dict[str, Kind]:
    """Find the type that a value of each field has, and that of the items of a tuple. None: any. Once for a class."""
    for base in reversed(cls.__mro__):
        for field, written in vars(base).get("__annotations__", {}).items():
            if field in cls._types:
                name = written.removesuffix(" | None")
                is_many = name.startswith("tuple[")
                name = name.removeprefix("tuple[").removesuffix(", ...]")
                kind = _PLAIN.get(name) or getattr(sys.modules[base.__module__], name, None)
                if kind not in _PLAIN_TYPES and not (isinstance(kind, type) and issubclass(kind, Record)):
                    kind = None
                cls._kinds[field] = (tuple, kind) if is_many else (kind, None)
    return cls._kinds


def _converted(value: Any, written: str, kind: type, item: type | None) -> Any:
    """A value of JSON as a field has it whose type is `written`."""
    if value is None and written.endswith(" | None"):
        return None
    if kind is tuple and isinstance(value, list):
        if item is not None and issubclass(item, Record):
            return tuple([item.load(each) for each in tuple_of(value, dict)])
        return tuple(value) if item is None else tuple_of(value, item)
    if isinstance(value, dict) and issubclass(kind, Record):
        return kind.load(value)
    raise TypeError(f"{value!r:.80} is not {written}")


def tuple_of(values: list[Any], item: type) -> tuple[Any, ...]:
    """The items of a JSON array, which are of one type. The same for a compiled record."""
    for each in values:
        if type(each) is not item:
            raise TypeError(f"{each!r:.80} is not {item.__name__}")
    return tuple(values)
