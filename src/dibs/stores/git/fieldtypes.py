"""Whether a record that came from outside holds what its class says.

Whoever may push may write a ref by hand. The rules trust the types and the sizes of what a store gives them, so this is
where a record that would break them is found: it stops its own job and no other.
"""

from __future__ import annotations

from dibs.core.limits import GIT_ITEMS_MAX
from dibs.core.record import Record

NUMBER_MAX = 2**62
_PLAIN = {"str": str, "int": int, "bool": bool}


def check_fields(record: Record) -> None:
    """Raise ValueError, naming the field, for a value that is not of its field's type."""
    for field in record._fields:
        if not _fits(getattr(record, field), record._types[field]):
            raise ValueError(f"{type(record).__name__}.{field} is no {record._types[field]}")


def _fits(value: object, annotation: str) -> bool:
    if annotation.endswith(" | None"):
        if value is None:
            return True
        annotation = annotation.removesuffix(" | None")
    if annotation.startswith("tuple["):
        inner = annotation.removeprefix("tuple[").removesuffix(", ...]").strip()
        return (
            isinstance(value, tuple)
            and len(value) <= GIT_ITEMS_MAX
            and all(_fits(each, inner) for each in value)
        )
    plain = _PLAIN.get(annotation)
    if plain is None:
        if not isinstance(value, Record) or type(value).__name__ != annotation:
            return False
        check_fields(value)
        return True
    if type(value) is int and abs(value) > NUMBER_MAX:
        return False
    return type(value) is plain
