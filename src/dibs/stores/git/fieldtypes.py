"""Checks the field types of a record that came from outside. Anybody who may push may write a ref by hand. The rules
trust the types and sizes of the records from a store, so this check finds records that would break them. A bad record
makes only its own job unusable.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.limits import GIT_ITEMS_MAX

NUMBER_MAX = 2**62
_PLAIN = {"str": str, "int": int, "bool": bool}


def check_fields(record: Record) -> None:
    """Raise ValueError, naming the field, for a value that is not of its field's type."""
    for field in record._fields:
        if not _fits(getattr(record, field), record._types[field]):
            raise ValueError(f"{type(record).__name__}.{field} is not {record._types[field]}")


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
