"""Records and events as JSON text that people can read.

Two encoders write the same text. A server has `msgspec` loaded anyway, which is several times as fast. The embedded
`dibs claim` uses `dibs/base/jsontext.py`, which costs almost nothing to import.
"""

from __future__ import annotations

import os
import sys

from dibs.base.cheap import Any, Callable
from dibs.base.errors import InvalidInput, StoreTooNew
from dibs.core import class_of
from dibs.core.events import Event
from dibs.core.records import Stored
from dibs.stores.port import EVENT_PREFIX, Page, RecordCorrupt, Versioned

# The number of the layout of everything that stores and copies keep. CONTRIBUTING.md says when to raise it; it is never
# lowered. Its rows are in `formats.py`.
FORMAT = 10

# Keys as text in the order of code points.


def end_of(prefix: str) -> str | None:
    """The first text after all texts that begin with `prefix`, in the order of code points; None if there is none."""
    for position in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[position])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1  # surrogates are not characters
            return prefix[:position] + chr(following)
    return None


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("A text has bytes that are not UTF-8. Write it in UTF-8.") from None


# The forms of a store's URL, and the error for an invalid one.

FORMS = (
    "memory://",
    "sqlite:///absolute/path.db",
    "sqlite:relative/path.db",
    "sqlite:~/path.db",
    "git:",
    "git:origin",
    "git+ssh://host/repo.git",
    "git+https://host/repo.git",
    "git+file:///path/repo.git",
    "postgresql://user@host/database",
    "etcd://host:2379,host:2379/prefix",
    "etcds://user:password@host:2379/prefix",
)


class NamesNoStore(InvalidInput):
    """A URL that has none of the forms."""


def names_no_store(url: str) -> InvalidInput:
    from dibs.base.redact import without_secrets  # only for the error
    from dibs.base.terminal import did_you_mean

    shown, (scheme, mark, _) = repr(without_secrets(url)), url.partition(":")
    if url.startswith(("/", "./", "../")):
        return InvalidInput(f"{shown} is a path. Did you mean sqlite://{os.path.abspath(url)}?")
    schemes = {"http", "https", "unix", *[form.partition(":")[0] for form in FORMS]}
    if mark and scheme not in schemes and (hint := did_you_mean(scheme, schemes)):
        return InvalidInput(
            f"{shown} names no store and no server.{hint[:-1]}:{without_secrets(url).partition(':')[2]}?"
        )
    return NamesNoStore(f"{shown} names no store. These forms do: {', '.join(FORMS)}.")


def _pick() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    if "msgspec" in sys.modules:
        from msgspec.json import Decoder, Encoder

        to_bytes = Encoder().encode
        return (lambda plain: to_bytes(plain).decode()), Decoder().decode
    from dibs.base import jsontext

    return jsontext.encode, jsontext.decode


_to_text, _from_text = _pick()


def pick_again() -> None:
    """Take the quick encoder if it was loaded since. A server loads it after its stores."""
    global _to_text, _from_text
    _to_text, _from_text = _pick()


def encode(record: Stored | Event) -> str:
    """The text of a record or an event. Fields at their default are left out."""
    try:
        return _to_text(record.dump())
    except UnicodeEncodeError:
        raise InvalidInput("A text has bytes that are not UTF-8. Write it in UTF-8.") from None


def decode(key: str, text: str) -> Stored:
    """The record under `key`. Raises RecordCorrupt for other text: dibs did not write it."""
    try:
        kind = class_of(key)
    except LookupError:
        raise StoreTooNew(
            f"The record under {key!r} is of a kind that this dibs does not know: a newer one wrote it. "
            "Upgrade dibs; nothing was changed."
        ) from None
    try:
        return kind.load(_from_text(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordCorrupt(
            f"The record under {key!r} cannot be read ({error!r}). What needs it is refused, all else goes on.\n"
            f"To set it aside, with its text in a file:  dibs doctor --set-aside {quoted(key)}",
            key,
        ) from None


def is_readable(key: str, text: str) -> bool:
    try:
        decode(key, text)
    except RecordCorrupt:
        return False
    return True


def text_of(body: bytes) -> str:
    """The text of a record. Bytes that are not UTF-8 give a text that no record has."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return "not UTF-8: " + body.decode(errors="backslashreplace")


def quoted(key: str) -> str:
    """A key as a shell takes it."""
    is_plain = all(each.isalnum() or each in "/-_.:@%+=," for each in key)
    return key if is_plain and key.isascii() else "'" + key.replace("'", "'\\''") + "'"


def page_of(
    rows: Callable[[str, int], list[tuple[str, int, str]]], after: str, limit: int, damaged: dict[str, RecordCorrupt]
) -> Page:
    """Up to `limit` records from `rows`, which gives key, version and text of the next so many after a key. Those that
    cannot be read are left out and noted in `damaged`, and others take their place: a short page is the last one."""
    found: Page = []
    while len(found) < limit:
        wanted = limit - len(found)
        some = rows(after, wanted)
        for key, version, text in some:
            try:
                found.append((key, Versioned(version=version, record=decode(key, text))))
            except RecordCorrupt as error:
                damaged[key] = error
        if len(some) < wanted:
            break
        after = some[-1][0]
    return found


def decode_event(seq: int, text: str) -> Event:
    """The event with the number `seq`, which is kept beside the text and not in it."""
    try:
        return Event.load(_from_text(text)).replace(seq=seq)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        key = f"{EVENT_PREFIX}{seq}"
        raise RecordCorrupt(
            f"Event {seq} cannot be read ({error!r}). It is left out.\n"
            f"To set it aside, with its text in a file:  dibs doctor --set-aside {key}",
            key,
        ) from None


def is_event_readable(seq: int, text: str) -> bool:
    try:
        decode_event(seq, text)
    except RecordCorrupt:
        return False
    return True


def events_of(
    rows: Callable[[int], list[tuple[int, str]]], limit: int, damaged: dict[str, RecordCorrupt], *, newest: bool = False
) -> list[Event]:
    """Up to `limit` events from `rows`, which gives number and text of so many, in order. Those that cannot be read are
    left out and noted in `damaged`, and others take their place."""
    count = limit
    while True:
        some, found = rows(count), []
        for seq, text in some:
            try:
                found.append(decode_event(seq, text))
            except RecordCorrupt as error:
                damaged[error.key] = error
        if len(found) >= limit or len(some) < count:
            return found[-limit:] if newest else found[:limit]
        count *= 2
