"""Records and events as readable JSON text: what a store writes is what a person can look at.

Three writers of the same text, each where it is the cheapest. A server has `msgspec` loaded anyway, and it is several
times as fast as the standard library. The embedded `dibs claim` has not, and cannot afford `import json` either: that
imports `re`, which takes as long as everything else of dibs together. The C functions that json is made of take none.
"""

from __future__ import annotations

import sys

from dibs.core.events import Event
from dibs.core.records import class_of
from dibs.errors import InvalidInput, StoreCorrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.core.records import Stored


def _pick() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    if "msgspec" in sys.modules:
        from msgspec.json import Decoder, Encoder

        to_bytes = Encoder().encode
        return (lambda plain: to_bytes(plain).decode()), Decoder().decode
    try:
        return _bare()
    except Exception:  # another Python than those we know: then the public way, which every Python has
        return _standard()


def _standard() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    from json import JSONDecoder, JSONEncoder

    return JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode, JSONDecoder().decode


def _bare() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """What json.encoder and json.decoder build on, without their regular expressions. Tried out before it is used."""
    import _json

    class Settings:
        strict, object_hook, object_pairs_hook, array_hook = True, None, None, None
        parse_float, parse_int, parse_constant = float, int, float

    # json.decoder passes itself where these settings go, and json.encoder a function that is never called here.
    scan = _json.make_scanner(Settings)  # type: ignore[arg-type]
    write = _json.make_encoder(None, repr, _json.encode_basestring, None, ":", ",", False, False, True)

    def to_text(plain: Any) -> str:
        return "".join(write(plain, 0))

    def from_text(text: str) -> Any:
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("not JSON") from None
        if end != len(text):
            raise ValueError("more than one JSON value")
        return value

    tried: dict[str, Any] = {"text": 'a "\\\n\u00e9', "list": [1, -2, 0.5, None, True, {}]}
    if from_text(to_text(tried)) != tried:
        raise ValueError
    return to_text, from_text


_to_text, _from_text = _pick()


def encode(record: Stored | Event) -> str:
    """The text of a record or an event. Fields at their default are left out."""
    try:
        return _to_text(record.dump())
    except UnicodeEncodeError:
        raise InvalidInput("Text must be valid Unicode; this holds half of a surrogate pair.") from None


def decode(key: str, text: str) -> Stored:
    """The record that is kept under `key`. Text that is not one is StoreCorrupt: somebody else wrote it."""
    try:
        return class_of(key).load(_from_text(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StoreCorrupt(
            f"The record under {key!r} cannot be read ({error!r}). Restore the store from a backup."
        ) from None


def decode_event(seq: int, text: str) -> Event:
    """The event with the number `seq`, which is kept beside the text and not in it."""
    try:
        return Event.load(_from_text(text)).replace(seq=seq)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StoreCorrupt(
            f"Event {seq} cannot be read ({error!r}). Restore the store from a backup."
        ) from None
