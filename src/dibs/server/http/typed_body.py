"""Bodies of the usual requests, parsed and checked in one step, in C. This way only accepts: it never refuses.

The fields and their types are those of `wire/fields.py`. The result is exactly that of `shape(verb, parse_json(body))`.
For everything else it is None, and the long way parses the body again and says what is wrong with it: a wrong type, a
field that is unknown, null or given twice, an id in upper case, an object in the body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Required, TypedDict

import msgspec

from dibs.wire.fields import REQUESTS
from dibs.wire.shapes import PROVEN, U32_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Document = dict[str, Any]

VERBS = ("acquire", "acquire-any", "acquire-all", "renew", "release")
_NUMBER = msgspec.Meta(ge=0, le=U32_MAX)
_ID = msgspec.Meta(pattern=r"\A[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_TYPES: dict[str, object] = {
    "whole": Annotated[int, _NUMBER],
    "seconds": Annotated[int, _NUMBER] | Annotated[float, _NUMBER],
    "text": str,
    "flag": bool,
    "id": Annotated[str, _ID],
    "list!": Required[list[str]],
}


def _decoder(verb: str) -> Callable[[bytes], Document]:
    types = {field: _TYPES[kind] for field, kind in REQUESTS[verb].items() if kind in _TYPES}
    make: Any = TypedDict
    decode: Callable[[bytes], Document] = msgspec.json.Decoder(make(verb, types, total=False)).decode
    return decode


_DECODERS = {verb: _decoder(verb) for verb in VERBS}


def typed_document(verb: str, body: bytes) -> Document | None:
    """The checked fields in `body`. None if that needs a closer look."""
    decode = _DECODERS.get(verb)
    if decode is None:
        return None
    try:
        document = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # Each field has one colon. One more is in a text, or belongs to a field that is unknown or given twice.
    more = body.count(b":") - len(document)
    if more and (b"\\" in body or more != _colons(document)):
        return None
    if verb in PROVEN and "lease_id" not in document and "session_id" not in document:
        return None
    return document


def _colons(document: Document) -> int:
    """Return how many colons the texts have. An escaped colon cannot be told from a plain one, so there must be
    none."""
    found = 0
    for value in document.values():
        if isinstance(value, str):
            found += value.count(":")
        elif isinstance(value, list):
            found += sum([each.count(":") for each in value])
    return found
