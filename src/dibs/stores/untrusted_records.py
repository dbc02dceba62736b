"""Records that come from outside: from a file that anybody can make, from a ref that whoever may push can write. The
rules trust the types and sizes of a store's records, and would meet a wrong field much later, in a server."""

from __future__ import annotations

from dibs.base.jsontext import is_unicode
from dibs.base.record import Record
from dibs.core import records
from dibs.core.names import check_name, check_namespace
from dibs.core.records import LockRecord, SessionRecord, Ticket, Tree, lock_key, session_key, ticket_key, tree_key


def wrong_field(record: Record, number_max: int, items_max: int) -> str | None:
    """The first field whose value is not of its type, or too large; None if all are right."""
    for field, kind in record._types.items():
        value = getattr(record, field)
        if field in record._defaults and value is record._defaults[field]:  # it was left out, as most fields
            continue
        if value is None and kind.endswith(" | None"):
            continue
        kind, values = kind.removesuffix(" | None"), [value]
        if kind.startswith("tuple["):
            if not isinstance(value, tuple) or len(value) > items_max:
                return field
            kind, values = kind.removeprefix("tuple[").removesuffix(", ...]"), list(value)
        for each in values:
            if type(each).__name__ != kind or (isinstance(each, int) and abs(each) >= number_max):
                return field
            if isinstance(each, str) and not (each.isascii() or is_unicode(each)):
                return field
            inner = wrong_field(each, number_max, items_max) if isinstance(each, Record) else None
            if inner:
                return f"{field}.{inner}"
    return None


def key_of(record: records.Stored) -> str | None:
    """The key that a record itself names, by names that are checked; None if it names none. Raises DibsError."""
    if isinstance(record, LockRecord | Ticket):
        ns, name = check_namespace(record.ns), check_name(record.name)
        return lock_key(ns, name) if isinstance(record, LockRecord) else ticket_key(ns, name, record.number)
    if isinstance(record, SessionRecord):
        return session_key(record.id)
    return tree_key(check_namespace(record.namespace()), record.page) if isinstance(record, Tree) else None
