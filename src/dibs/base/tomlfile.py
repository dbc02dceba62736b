"""Reading a TOML file that somebody else may have written: bounded, and only a file."""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput
from dibs.core.limits import SETTINGS_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KIND, _REGULAR = 0o170000, 0o100000


def read_toml(path: str) -> dict[str, Any] | None:
    """What the file says; None where there is none. Raises InvalidInput, naming the file, for what cannot be read.

    A link to /dev/zero, a pipe or a huge file is refused and not read. `tomllib` is imported only for a file that is
    there: a claim without one must not pay for it."""
    content = _content(path)
    if content is None:
        return None
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}.") from None


def _content(path: str) -> bytes | None:
    try:
        # A pipe without a writer must not block the opening of it.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    try:
        if os.fstat(number).st_mode & _KIND != _REGULAR:
            raise InvalidInput(f"{path} is no ordinary file. Put the settings into one, or remove it.")
        content = os.read(number, SETTINGS_BYTES_MAX + 1)
    finally:
        os.close(number)
    if len(content) > SETTINGS_BYTES_MAX:
        raise InvalidInput(f"{path} has more than the {SETTINGS_BYTES_MAX} bytes that settings may have.")
    return content
