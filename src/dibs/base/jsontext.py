"""JSON without `import json`: its C functions alone (`cheap.py`).

They are private to CPython, so they are tried out once; where they do not do as expected, `json` itself is taken.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable

Document = dict[str, Any]  # a JSON object
Pair = tuple[Callable[[Any], str], Callable[[str], Any]]

_BLANKS = " \t\r\n"


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _standard() -> Pair:
    from json import JSONDecoder, JSONEncoder

    decoder = JSONDecoder(parse_constant=_no_number)
    return JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode, decoder.decode


def _bare() -> Pair:
    from dibs.base.cheap import c_json

    class Settings:
        strict, object_hook, object_pairs_hook, array_hook = True, None, None, None
        parse_float, parse_int, parse_constant = float, int, staticmethod(_no_number)

    scan = c_json.make_scanner(Settings)  # type: ignore[arg-type]  # any object with these attributes will do
    write = c_json.make_encoder(None, repr, c_json.encode_basestring, None, ":", ",", False, False, True)

    def encode(value: Any) -> str:
        return "".join(write(value, 0))

    def decode(text: str) -> Any:
        text = text.strip(_BLANKS)
        try:
            value, end = scan(text, 0)
        except (StopIteration, SystemError):  # CPython 3.11 sets no exception unless json.decoder is imported
            raise ValueError("not JSON") from None
        if end != len(text):
            raise ValueError("more than one JSON value")
        return value

    probe: dict[str, Any] = {"text": 'a "\\\n\u00e9', "list": [1, -2, None, True, {}]}
    if decode(encode(probe)) != probe:
        raise ValueError("not as expected")
    return encode, decode


def _pick() -> Pair:
    try:
        return _bare()
    except Exception:  # another Python than those we know
        return _standard()


encode, decode = _pick()


def is_unicode(text: str) -> bool:
    """Tell whether text can be sent and kept: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_ascii(value: Any) -> str:
    """For terminals: what is not ASCII is an escape, so that nothing of it can act on one."""
    text = encode(value)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join([each if " " <= each <= "~" else _escape(ord(each)) for each in text])


def encode_shown(value: Any, encoding: str | None) -> str:
    """For terminals whose encoding has all letters: what is printable stays, everything else is an escape."""
    if (encoding or "").lower().replace("-", "") != "utf8":
        return encode_ascii(value)
    return "".join([each if each.isprintable() else _escape(ord(each)) for each in encode(value)])


def _escape(code: int) -> str:
    """JSON has escapes for UTF-16 units: two of them beyond 0xFFFF."""
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
