"""The driver of SQLite: the C part of Python's own `sqlite3`. The package around it imports datetime, which nothing in
dibs needs.

The C part imports `functools` for one function, the `lru_cache` of its prepared statements. functools imports
collections and five modules more: a tenth of what `dibs claim` does after Python's own start. So a process that has not
imported functools gives the driver an `lru_cache` on the same C class. It is in the place of functools only while the
driver is imported. That is done in no process with threads: one of them could import functools at that moment.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


# How the file says whose it is, and which version of the format it has.

VERSION = 1  # of the file's format: how many steps schema.py has
APPLICATION_ID = 0x64696273  # "dibs": how the file says whose it is
BLOCK = 256  # how many events a row of event_blocks is about


__all__ = ["sqlite3"]


def _imported() -> ModuleType:
    if "functools" not in sys.modules and "threading" not in sys.modules:
        try:
            sys.modules["functools"] = _stand_in()
            import _sqlite3 as driver
        except (ImportError, AttributeError):
            pass  # another Python, whose driver needs more of functools: it is imported below
        else:
            return driver
        finally:
            sys.modules.pop("functools", None)
    import _sqlite3 as driver

    return driver


def _stand_in() -> ModuleType:
    """A `functools` that has the one function."""
    from _functools import _lru_cache_wrapper  # type: ignore[import-not-found]  # typeshed does not list it

    def lru_cache(maxsize: int) -> Callable[[Any], Any]:
        return lambda function: _lru_cache_wrapper(function, maxsize, False, tuple)

    made = type(sys)("functools")
    made.lru_cache = lru_cache  # type: ignore[attr-defined]
    return made


if not TYPE_CHECKING:
    sqlite3 = _imported()
