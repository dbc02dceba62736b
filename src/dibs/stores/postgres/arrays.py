"""Values as PostgreSQL reads them in text: parameters and arrays of them."""

from __future__ import annotations

from dibs.base.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def text(value: str) -> bytes:
    """A parameter. PostgreSQL has no NUL in text, and its library would silently cut the value off there."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise InvalidInput("Text must be valid Unicode; this holds half of a surrogate pair.") from None
    if b"\0" in encoded:
        raise InvalidInput("Text may not hold a NUL character.")
    return encoded


def texts(values: Iterable[str]) -> bytes:
    """A `text[]`."""
    quoted = ['"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in values]
    return text("{" + ",".join(quoted) + "}")


def numbers(values: Iterable[int | None]) -> bytes:
    """A `bigint[]`."""
    return ("{" + ",".join("NULL" if each is None else str(each) for each in values) + "}").encode()


def truths(values: Iterable[bool]) -> bytes:
    """A `boolean[]`."""
    return ("{" + ",".join("t" if each else "f" for each in values) + "}").encode()


def number(value: int) -> bytes:
    return b"%d" % value
