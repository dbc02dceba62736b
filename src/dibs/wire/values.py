"""Checks the fields of a request: first their types (`shape`), then their values. Each error names the field."""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, TypeVar
from dibs.base.errors import InvalidInput, InvalidTtl, Unprocessable
from dibs.base.ids import is_id, new_id, token_key
from dibs.base.jsontext import Document, is_unicode
from dibs.core import limits
from dibs.core.caller_rights import Caller
from dibs.core.durations import check_ttl_ms
from dibs.core.records import EXCLUSIVE, SHARED
from dibs.wire.fields import BYTES, CHARACTERS, NUMBERS, REQUESTS

T = TypeVar("T")

U32_MAX = 2**32 - 1

# Their clients may send fields that dibs does not know, which are ignored. On routes of dibs' own such a field is a
# slip, and to ignore it would do something else than was meant.
OF_OCTOSTORE = frozenset(
    (
        *("acquire", "renew", "release", "acl", "session-open", "session-keep", "campaign", "election-renew", "resign"),
        "webhook-create",
    )
)
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
        if value is None:
            continue
        if kind is None:
            if verb in OF_OCTOSTORE:
                continue
            raise _unknown(field, list(fields))
        good, words = _KINDS[kind]
        if not good(value):
            raise Unprocessable(f"The field {field} must be {words}.")
        shaped[field] = value.lower() if kind in _IDS else value
    if verb in PROVEN and not ("lease_id" in shaped or "session_id" in shaped):
        raise Unprocessable("The field lease_id is required (or session_id, inside a session).")
    return shaped


def _unknown(field: str, fields: list[str]) -> Unprocessable:
    from dibs.base.terminal import QUOTED_CHARS_MAX, did_you_mean, quoted

    hint = did_you_mean(field[:QUOTED_CHARS_MAX], fields) or f" The fields are: {', '.join(fields) or 'none'}."
    return Unprocessable(f"There is no field {quoted(field)} here.{hint}")


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "whole": (lambda value: type(value) is int and 0 <= value <= U32_MAX, "a whole number from 0 up"),
    "number": (lambda value: type(value) is int and 0 <= value < 2**63, "a whole number from 0 up"),
    "seconds": (lambda value: type(value) in (int, float) and 0 <= value <= U32_MAX, "a number from 0 up"),
    "text": (lambda value: isinstance(value, str) and (value.isascii() or is_unicode(value)), "text"),
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


# The text form of a ticket: number, a checksum of the job, and the secret that proves it. The checksum distinguishes a
# ticket of another job (an error) from one that lost its place (which gets a new place).


def ticket_text(ns: str, name: str, number: int, ticket_id: str) -> str:
    return f"{number}.{_check(ns, name)}.{ticket_id}"


def parse_ticket(ns: str, name: str, text: str) -> tuple[int, str]:
    """Number and secret, or InvalidInput if it is not a ticket, or one of another job. A fourth part, which another
    version gave out, is passed over."""
    number, _, rest = text.partition(".")
    check, _, rest = rest.partition(".")
    ticket_id = rest.partition(".")[0]
    if not (number.isascii() and number.isdecimal() and len(number) < 16 and ticket_id):
        raise InvalidInput("ticket is not one that dibs gave out.")
    if check != _check(ns, name):
        raise InvalidInput(f"This ticket is for another job than {name}.")
    return int(number), ticket_id


def _check(ns: str, name: str) -> str:
    from binascii import crc32  # only lines need it

    return f"{crc32(f'{ns}/{name}'.encode()):08x}"


def mode_and_slots(document: Document) -> tuple[str, int]:
    mode = document.get("mode", EXCLUSIVE)
    if mode not in (EXCLUSIVE, SHARED):
        raise InvalidInput(f"mode is {EXCLUSIVE} or {SHARED}, not {mode!r}.")
    slots = number_of(document, "slots", 1) if "slots" in document else 0
    if mode == SHARED and (slots > 1 or document.get("units", 1) > 1):
        raise InvalidInput("A shared claim has no slots: give mode shared, or slots and units.")
    return mode, slots


def ticket_of(ns: str, name: str, document: Document) -> tuple[int, str | None]:
    """Number and secret of the caller's ticket, if it has one."""
    text = document.get("ticket")
    return (0, None) if text is None else parse_ticket(ns, name, text)


def fresh_id_of(document: Document, field: str, caller: Caller, *place: str) -> str:
    """A new id. If the caller sent a random one to be recognised by, the id is made from that and from who asks: nobody
    can choose an id, so nobody gets one that is or was another's."""
    sent = document.get(field)
    if sent is None:
        return new_id()
    from dibs.base.ids import digest_id  # no claim needs it

    return digest_id(field, sent, caller.principal, caller.namespace or "", *place)


def ttl_ms_of(document: Document, default: T) -> int | T:
    seconds = document.get("ttl_seconds")
    if "ttl_ms" in document:
        if seconds is not None:
            raise InvalidInput("ttl_ms or ttl_seconds, not both.")
        return check_ttl_ms(document["ttl_ms"])
    if seconds is None:
        return default
    if seconds == 0:
        raise InvalidTtl("A lease lasts at least one second.")
    return check_ttl_ms(seconds * 1000)


def done_ms_of(document: Document) -> int:
    """For how long the job counts as done: `done_seconds`, or with `done` alone a day."""
    done = document.get("done")
    seconds = number_of(document, "done_seconds", 0) if "done_seconds" in document else None
    if done is False and seconds:
        raise InvalidInput("done_seconds says that it counts as done, and done says that it does not.")
    return seconds * 1000 if seconds is not None else limits.DONE_MS_DEFAULT if done else 0


def plain_of(document: Document, field: str) -> Any:
    """A value that was sent, within the bounds that its field is declared with."""
    if field in NUMBERS:
        return number_of(document, field, 0)
    return text_of(document, field) if field in CHARACTERS or field in BYTES else document[field]


def number_of(document: Document, field: str, default: int) -> int:
    """A number within the bounds of its field."""
    value: int = document.get(field, default)
    least, most = NUMBERS[field]
    if not least <= value <= most:
        raise InvalidInput(f"{field} is a number from {least} to {most}; this one is {value}.")
    return value


def text_of(document: Document, field: str) -> str | None:
    """A text that is no longer than its field allows, in characters or in bytes."""
    value: str | None = document.get(field)
    if value is None:
        return None
    if field in BYTES:
        size, most, unit = len(value.encode()), BYTES[field], "bytes"
    else:
        size, most, unit = len(value), CHARACTERS[field], "characters"
    if size > most:
        raise InvalidInput(f"{field} may have {most} {unit} at most; this one has {size}.")
    return value


def check_texts(document: Document) -> None:
    """Raise InvalidInput for a field that must be text and is not, or is longer than it may be. For clients: what a
    server would refuse is refused before it is noted or sent."""
    for field, value in document.items():
        if field in BYTES or field in CHARACTERS:
            if not _KINDS["text"][0](value):
                found = "has half of a character" if isinstance(value, str) else f"is {type(value).__name__!r}"
                raise InvalidInput(f"{field} must be text; this {found}.")
            text_of(document, field)


def request_key_of(document: Document) -> str | None:
    key = text_of(document, "request_key")
    if key == "":
        raise InvalidInput("request_key may not be empty; leave it out or give a value that is new for each claim.")
    return key


def acl_of(document: Document, at_least: int = 1) -> tuple[str, ...]:
    """Entries are `user:NAME` or `token:SECRET`. A secret is kept as its hash, never as itself."""
    entries = document.get("acquire")
    if not isinstance(entries, list) or not at_least <= len(entries) <= limits.ACL_ENTRIES_MAX:
        raise InvalidInput(f"acl.acquire is a list of {at_least} to {limits.ACL_ENTRIES_MAX} entries.")
    return tuple(dict.fromkeys(_acl_entry(entry) for entry in entries))


def _acl_entry(entry: object) -> str:
    if isinstance(entry, str) and is_unicode(entry) and len(entry.encode()) <= limits.ACL_ENTRY_BYTES_MAX:
        kind, _, value = entry.partition(":")
        if kind == "user" and value:
            return entry
        if kind == "token" and value:
            return token_badge(value)
    raise InvalidInput(f"An access entry is user:NAME or token:TOKEN, of {limits.ACL_ENTRY_BYTES_MAX} bytes at most.")


def token_badge(token: str) -> str:
    """A name by which a bearer token is recognised without storing it."""
    return "token:sha256:" + token_key(token).hex()
