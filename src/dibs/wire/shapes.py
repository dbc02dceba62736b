"""Checks the fields of a request and their types. `requests.py` checks the values."""

from __future__ import annotations

from dibs.base.errors import Unprocessable
from dibs.wire.fields import REQUESTS

# The content type of dibs' own clients. It is JSON, under a name that other servers refuse (415) before they do
# anything: OctoStore has the same routes, but gives two workers with one token the same lock.
OWN_TYPE = "application/x.dibs"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.base.jsontext import Document

U32_MAX = 2**32 - 1

PROVEN = ("renew", "release", "transfer")  # these need a proof of the lease


def shape(verb: str, document: object) -> Document:
    """`document` with every known field of the right type, ids in lower case, nulls gone."""
    if not isinstance(document, dict):
        raise Unprocessable("The request body must be a JSON object.")
    fields = REQUESTS[verb]
    for field in _REQUIRED[verb]:
        if document.get(field) is None and (field not in document or not fields[field].endswith("?")):
            raise Unprocessable(f"The field {field} is required.")
    shaped: Document = {}
    for field, value in document.items():  # few are sent, many are known
        kind = fields.get(field)
        if kind is None or value is None:
            continue
        good, words = _KINDS[kind]
        if not good(value):
            raise Unprocessable(f"The field {field} must be {words}.")
        shaped[field] = value.lower() if kind in _IDS else value
    if verb in PROVEN and not ("lease_id" in shaped or "session_id" in shaped):
        raise Unprocessable("The field lease_id is required (or session_id, inside a session).")
    return shaped


def is_unicode(text: str) -> bool:
    """Tell whether text can be sent: half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(text: str) -> bool:
    """Tell whether text is shaped like the ids that dibs gives out (a UUID)."""
    return (
        len(text) == 36
        and text[8] == text[13] == text[18] == text[23] == "-"
        and text.count("-") == 4
        and not text.replace("-", "").strip("0123456789abcdefABCDEF")  # nothing but these
    )


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "whole": (lambda value: type(value) is int and 0 <= value <= U32_MAX, "a whole number from 0 up"),
    "number": (lambda value: type(value) is int and 0 <= value < 2**63, "a whole number from 0 up"),
    "seconds": (lambda value: type(value) in (int, float) and 0 <= value <= U32_MAX, "a number from 0 up"),
    "text": (lambda value: isinstance(value, str) and is_unicode(value), "text"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "list": (lambda value: isinstance(value, list), "a list"),
    "id": (lambda value: isinstance(value, str) and is_id(value), "an id as dibs gave it (a UUID)"),
}
_KINDS |= {kind + mark: rule for kind, rule in _KINDS.items() for mark in "!?"}
_IDS = ("id", "id!")
_REQUIRED = {
    verb: [field for field, kind in fields.items() if kind.endswith(("!", "?"))] for verb, fields in REQUESTS.items()
}
