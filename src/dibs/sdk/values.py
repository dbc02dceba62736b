"""Values: what the answers of dibs are as Python objects. Frozen dataclasses to whoever uses them.

`dataclasses` takes longer to import than a claim takes, and nothing in a `with` block needs it. So a value is made,
compared, shown and pickled without it. What only `dataclasses` and `inspect` know of a class (its fields, its
signature) is made when they ask for it, from a dataclass with the same fields.

    class Previous(Value):
        owner: str
        checkpoint: str | None = None
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import Field
    from typing import ClassVar, NoReturn, Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda cls: cls


class _Hidden:
    def __init__(self, default_factory: Callable[[], object] | None, *, compare: bool) -> None:
        self.default_factory = default_factory
        self.compare = compare


def hidden(*, compare: bool = True, default_factory: Callable[[], object] | None = None) -> Any:
    """A field that the repr of a value leaves out; with `compare=False`, also `==` and `hash`."""
    return _Hidden(default_factory, compare=compare)


class _OfDataclass:
    """An attribute that a class takes from the dataclass with the same fields, when somebody asks for it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, value: object, kind: type[Value]) -> Any:
        if kind is Value:
            raise AttributeError(self._name)
        return getattr(_dataclass_of(kind), self._name)


@dataclass_transform(frozen_default=True, field_specifiers=(hidden,))
class Value:
    """A subclass lists its fields as annotations. A field may be given by its name or its place."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:
        __dataclass_fields__ = _OfDataclass()
        __dataclass_params__ = _OfDataclass()
        __signature__ = _OfDataclass()

    _types: ClassVar[dict[str, str]] = {}
    _hidden: ClassVar[dict[str, _Hidden]] = {}
    _compared: ClassVar[tuple[str, ...]] = ()
    _needed: ClassVar[frozenset[str]] = frozenset()  # those without a default

    def __init_subclass__(cls) -> None:
        found: dict[str, Any] = dict(vars(cls))
        if "__annotate_func__" in found:  # Python 3.14 would make them later: a value without fields
            raise TypeError(f"{cls.__name__}: its module must begin with `from __future__ import annotations`")
        types: dict[str, str] = found.get("__annotations__", {})
        hides = {name: found[name] for name in types if isinstance(found.get(name), _Hidden)}
        for name in hides:
            delattr(cls, name)
        cls._types = {**cls._types, **types}
        cls._hidden = {**cls._hidden, **hides}
        made = [name for name, each in cls._hidden.items() if each.default_factory is not None]
        cls._needed = frozenset([each for each in cls._types if not hasattr(cls, each) and each not in made])
        cls._compared = tuple([each for each in cls._types if each not in cls._hidden or cls._hidden[each].compare])
        setattr(cls, "__match_args__", tuple(cls._types))  # noqa: B010 - mypy does not know that it is not made yet

    if not TYPE_CHECKING:  # a type checker makes it from the fields

        def __init__(self, *args: Any, **fields: Any) -> None:
            given = dict(zip(self._types, args, strict=False)) if args else {}
            given.update(fields)
            is_called_well = len(given) == len(args) + len(fields)  # no field twice, and none too many
            if not is_called_well or not self._needed <= given.keys() <= self._types.keys():
                _dataclass_of(type(self))(*args, **fields)  # raises what Python says about such a call
            for name, each in self._hidden.items():
                if each.default_factory is not None and name not in given:
                    given[name] = each.default_factory()
            self.__dict__.update(given)  # a field at its default is the class's

    def __setattr__(self, name: str, value: object) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._compared)

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in self._compared]))

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self._types if name not in self._hidden]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __replace__(self, /, **changes: Any) -> Self:
        """For `copy.replace`, of Python 3.13."""
        return type(self)(**{name: getattr(self, name) for name in self._types} | changes)


def _dataclass_of(kind: type[Value]) -> type[Any]:
    """The dataclass with the same fields."""
    made: type[Any] | None = vars(kind).get("_dataclass")
    if made is None:
        from dataclasses import MISSING, field, make_dataclass

        fields = []
        for name, annotation in kind._types.items():
            hid = kind._hidden.get(name)
            factory: Any = MISSING if hid is None or hid.default_factory is None else hid.default_factory
            about: Any = field(
                default=getattr(kind, name, MISSING),
                default_factory=factory,
                repr=hid is None,
                compare=hid is None or hid.compare,
            )
            fields.append((name, annotation, about))
        made = make_dataclass(kind.__name__, fields, frozen=True)
        made.__signature__ = _signature_of(made)
        kind._dataclass = made  # type: ignore[attr-defined]
    return made


def _signature_of(made: type[Any]) -> Any:
    from inspect import signature

    return signature(made)
