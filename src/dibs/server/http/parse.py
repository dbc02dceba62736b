"""Parses the untrusted parts of a request: body, name in the address, query, headers. Each error has its own message:
415 for a type that is not JSON, 413 for too much, 400 for invalid text. `wire/requests.py` checks the values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Required, TypedDict
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from dibs.base.errors import InvalidInput, InvalidName
from dibs.core.limits import BODY_BYTES_MAX, JSON_DEPTH_MAX, NAME_BYTES_MAX, QUERY_BYTES_MAX, QUERY_FIELDS_MAX
from dibs.core.records import ENDINGS
from dibs.server.http.response import JSON, HttpError
from dibs.wire import OWN_TYPE
from dibs.wire.fields import REQUESTS
from dibs.wire.issue_names import job_name
from dibs.wire.values import PROVEN, U32_MAX

Document = dict[str, Any]
Headers = Mapping[bytes, bytes]

STORE_HEADER = b"x-dibs-store"  # the store that a client of several servers expects, and that an answer is from
MOVED_HEADER = b"x-dibs-moved-from"  # in answers: the stores that this one goes on from
KEY_HEADER = b"idempotency-key"
NAMESPACE_HEADER = b"x-dibs-namespace"
NAMES_HEADER = b"x-dibs-names"
SEQ_MAX = 2**63 - 1
MARK_BYTES_MAX = len(f"{SEQ_MAX}/") + NAME_BYTES_MAX  # where a page goes on: a name, or a place in line and its name
_decode = msgspec.json.Decoder().decode
_OWN = OWN_TYPE.encode()
_JSON_TYPE = re.compile(rb"application/(?:(?:[!#$%&'*+.^_`|~0-9a-z-]+\+)?json|x\.dibs)\s*(?:;.*)?", re.IGNORECASE)
# A number, because CPython looks for a text of one byte by first raising and catching an exception.
_PERCENT = ord("%")
_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def check_head(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what can be refused before the body has come: a wrong type, a length that is too large."""
    kind = headers.get(b"content-type")
    if kind not in (JSON, _OWN) and (kind is None or not _JSON_TYPE.fullmatch(kind)):
        raise HttpError("Send JSON, with the header Content-Type: application/json.", 415)
    length = headers.get(b"content-length")
    if length is not None and (len(length) > 15 or int(length) > BODY_BYTES_MAX):
        raise too_large()


def is_acceptable(headers: Mapping[bytes, bytes]) -> bool:
    try:
        check_head(headers)
    except HttpError:
        return False
    return True


class FieldTwice(InvalidInput):
    """A field is given twice, so it is unclear which value was meant."""


def too_large(most: int = BODY_BYTES_MAX) -> HttpError:
    return HttpError(f"A request body may have {most} bytes at most.", 413)


def parse_json(body: bytes) -> Any:
    """The document in `body`. Raises FieldTwice if a field is given twice."""
    try:
        document = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise _too_deep() from None
        raise InvalidInput("The request body is not valid JSON.") from None
    # Two counts of bytes show whether the body is flat, as most are, or needs a closer look.
    if body.count(b"{") + body.count(b"[") > JSON_DEPTH_MAX and _depth(document) > JSON_DEPTH_MAX:
        raise _too_deep()
    if not isinstance(document, dict) or body.count(b":") != len(document):
        json.loads(body, object_pairs_hook=_no_repeats)
    return document


def _too_deep() -> InvalidInput:
    return InvalidInput(f"The request body is nested deeper than {JSON_DEPTH_MAX} levels.")


def _depth(document: object) -> int:
    depth, level = 0, [document]
    while level:
        depth += 1
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
    return depth - 1  # the innermost values do not count as a level


def _no_repeats(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise FieldTwice("The request body gives a field twice.")


def decode_name(raw: bytes) -> str:
    try:
        if _PERCENT not in raw:
            return raw.decode()
        if _BAD_PERCENT.search(raw):
            raise InvalidName("The name in the address has a % that is not followed by two hexadecimal digits.")
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidName("The name in the address is not UTF-8 once its percent signs are decoded.") from None


def parse_query(query: bytes) -> dict[str, str]:
    if not query:
        return {}
    if len(query) > QUERY_BYTES_MAX:
        raise InvalidInput(f"The query is longer than {QUERY_BYTES_MAX} bytes.")
    if _BAD_PERCENT.search(query):
        raise InvalidInput("The query has a % that is not followed by two hexadecimal digits.")
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:  # UnicodeDecodeError among them
        raise InvalidInput("The query is not UTF-8, or has too many parts.") from None
    if len(dict(pairs)) != len(pairs):
        raise InvalidInput("The query gives a parameter twice.")
    return dict(pairs)


_NONE_OF_IT = (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")


def takes(accepted: bytes, kind: bytes) -> bool:
    """Tell whether a header that lists what somebody takes names this kind, by itself."""
    for each in accepted.lower().split(b","):
        name, *parameters = [part.strip() for part in each.split(b";")]
        if name == kind:
            return not any(part in _NONE_OF_IT for part in parameters)
    return False


def whole_number(query: Mapping[str, str], field: str, default: int, least: int, most: int) -> int:
    text = query.get(field)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise InvalidInput(f"{field} is a whole number from {least} to {most}.")
    return int(text)


def truth(query: Mapping[str, str], field: str) -> bool | None:
    """Return what a yes-or-no parameter says; None if it is not given."""
    text = query.get(field)
    if text not in (None, "true", "false"):
        raise InvalidInput(f"{field} is true or false.")
    return None if text is None else text == "true"


def header_text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"The header {what} is not UTF-8.") from None


# Bodies of the usual requests are parsed and checked in one step, in C. This way only accepts: it never refuses.
#
# The fields and their types are those of `wire/fields.py`. The result is that of `shape(verb, parse_json(body))`. For
# everything else it is None, and the long way parses the body again and says what is wrong with it: a wrong type, a
# field that is unknown, null or given twice, an id in upper case, an object in the body.

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
    """Return how many colons the texts have. An escaped colon looks like a plain one, so there must be none."""
    found = 0
    for value in document.values():
        if isinstance(value, str):
            found += value.count(":")
        elif isinstance(value, list):
            found += sum([each.count(":") for each in value])
    return found


# What headers and query of a request mean for several routes: names, parts of names, states, the request key.


def add_key(document: dict[str, Any], header: bytes) -> None:
    """The Idempotency-Key header is the request key. It may come in quotes, with \\" and \\\\ inside."""
    key = header_text(header, "Idempotency-Key")
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = re.sub(r"\\(.)", r"\1", key[1:-1])
    if document.setdefault("request_key", key) != key:
        raise InvalidInput("The header Idempotency-Key and the field request_key differ.")


def one_name(name: str, headers: Headers) -> str:
    """The name; its one name if the header asks for that. A server knows no clone."""
    return job_name(name).name if wants_one_name(headers) else name


def wants_one_name(headers: Headers) -> bool:
    asked = headers.get(NAMES_HEADER)
    if asked not in (None, b"one"):
        raise InvalidInput("The header X-Dibs-Names is one: turn names into their one name. Or leave it out.")
    return asked is not None


def name_part(asked: Mapping[str, str], field: str) -> str:
    text, most = asked.get(field, ""), MARK_BYTES_MAX if field == "after" else NAME_BYTES_MAX
    if len(text.encode()) > most or any(character < " " for character in text):
        raise InvalidName(f"{field} may have {most} bytes at most, and no control characters.")
    return text


def endings_asked(asked: Mapping[str, str]) -> tuple[str, ...]:
    """Return which jobs a list shows: those whose last hold ended so. All, unless `ended` says otherwise."""
    if "ended" not in asked:
        return ()
    endings = tuple(asked["ended"].split(","))
    if not set(endings) <= set(ENDINGS):
        raise InvalidInput(f"ended is some of {', '.join(ENDINGS)} with commas between.")
    return endings
