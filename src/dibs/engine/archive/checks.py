"""Whether a record is one that dibs could have written. Anybody can make a file. Without this check a rule would meet a
field of the wrong type much later, in a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dibs.base.errors import DibsError
from dibs.base.record import Record
from dibs.core.events import Event
from dibs.core.keys import lock_key, session_key, ticket_key, tree_key
from dibs.core.names import check_name, check_namespace
from dibs.core.records import LockRecord, SessionRecord, Ticket, Tree, class_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.core.records import Stored

    Bad = Callable[[str], DibsError]

NUMBER_MAX = 2**53  # integers that every JSON reader and every database keep exactly


def checked_record(key: Any, values: Any, bad: Bad) -> tuple[str, Stored]:
    """The record under `key`; raises if it is invalid."""
    if not isinstance(key, str) or not isinstance(values, dict):
        raise bad("a record has a key and fields")
    try:
        made: Stored = class_of(key).load(values)
    except KeyError as error:
        raise bad(f"{error.args[0]!a} is missing, or only a newer dibs knows it") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise bad("its fields are not those of a record") from None
    wrong = wrong_field(made)
    if wrong:
        raise bad(f"the field {wrong} does not hold what it should")
    try:
        expected = _key_of(made)
    except DibsError as error:
        raise bad(f"it has an invalid name ({error.details})") from None
    if expected not in (None, key):
        raise bad("the record is not the one that its key names")
    return key, made


def checked_event(values: Any, bad: Bad) -> Event:
    try:
        made = Event.load(values)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise bad("its fields are not those of an event") from None
    wrong = wrong_field(made)
    if wrong:
        raise bad(f"the field {wrong} does not hold what it should")
    return made


def wrong_field(record: Record) -> str | None:
    """The first field with a value of the wrong type, or None."""
    defaults, types = record._defaults, record._types
    for field in record._fields:
        value = getattr(record, field)
        if field in defaults and value is defaults[field]:  # the file left it out, as most fields
            continue
        if not _fits(value, types[field], record._modules[field]):
            return field
        for each in value if isinstance(value, tuple) else (value,):
            inner = wrong_field(each) if isinstance(each, Record) else None
            if inner:
                return f"{field}.{inner}"
    return None


def _fits(value: Any, annotation: str, module: str) -> bool:
    if annotation.endswith(" | None"):
        return value is None or _fits(value, annotation.removesuffix(" | None"), module)
    if annotation.startswith("tuple["):
        inner = annotation.removeprefix("tuple[").removesuffix("]").removesuffix(", ...")
        return isinstance(value, tuple) and all(_fits(each, inner, module) for each in value)
    if annotation == "bool":
        return type(value) is bool
    if annotation == "int":
        return type(value) is int and -NUMBER_MAX < value < NUMBER_MAX
    if annotation == "str":
        return isinstance(value, str) and (value.isascii() or _is_unicode(value))
    known = getattr(sys.modules[module], annotation, None)
    return not isinstance(known, type) or isinstance(value, known)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _key_of(record: Stored) -> str | None:
    """The key that a record belongs under, after its names were checked. None: there is only one record of this kind,
    or others check it."""
    if isinstance(record, LockRecord):
        return lock_key(_named(record), record.name)
    if isinstance(record, Ticket):
        return ticket_key(_named(record), record.name, record.number)
    if isinstance(record, SessionRecord):
        return session_key(record.id)
    return tree_key(check_namespace(record.ns)) if isinstance(record, Tree) else None


def _named(record: LockRecord | Ticket) -> str:
    check_name(record.name)
    return check_namespace(record.ns)
