"""Parts of Python's own library without the rest around them: what a start of `dibs` would otherwise wait for.

`dibs claim` takes about 110 million instructions in a Python that has imported nothing else, 38 of them Python's own
start. Importing these costs, in millions of instructions (valgrind, CPython 3.11):

    name       what is imported here    instead of     saves    needed by
    c_json     _json           0.4      json     30      30     every command
    sqlite3    _sqlite3        4.1      sqlite3  20      16     a claim in the user's own store
    signal     _signal         0.0      signal   20      20     a claim in the user's own store, `dibs run`
    socket     _socket         1.4      socket   33      32     a claim through a server
    ref        _weakref        0.0      weakref   4       4     a claim in the user's own store
    blake2b    _blake2         0.4      hashlib  11      11     hooks and sessions, which make ids from names

These C modules are private to CPython. Where one is missing or different, the public module is taken: a new Python is
slower at most. Each is imported when its name is first asked for. Nothing else in dibs imports a private module; a test
says so, and another hides them all and claims a job.

The names that annotations need come from here, too: `collections.abc` takes 8 and `typing` 40 million. Annotations are
not evaluated, so a name is nothing at run time. For the same reason a module that a command, a hook or the SDK imports
at its start writes `TYPE_CHECKING = False` in the place of `from typing import TYPE_CHECKING`: type checkers take any
variable of that name for true. All others import it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _json as c_json
    import signal
    import socket
    import sqlite3
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Container,
        Coroutine,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractContextManager
    from hashlib import blake2b
    from types import FrameType, ModuleType
    from typing import Any, BinaryIO, Generic, ParamSpec, Protocol, TextIO, TypeVar
    from weakref import ref
else:

    class _NameType(type):
        def __instancecheck__(cls, value: object) -> bool:
            raise TypeError("names of base/cheap.py are for annotations; import the real one")

    class _Name(metaclass=_NameType):
        """Stands for a name of annotations at run time. An alias may be made of it, `Ask = Callable[[str], int]`, and a
        type variable, `T = TypeVar("T")`."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __class_getitem__(cls, _: object) -> type[_Name]:
            return cls

    Any = Awaitable = Callable = Collection = Container = Coroutine = Generator = Iterable = Iterator = _Name
    AbstractContextManager = BinaryIO = FrameType = Mapping = ModuleType = Protocol = Sequence = TextIO = _Name
    ParamSpec = TypeVar = _Name

    class Generic:
        """The base of a generic class, which at run time is like any other."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls


__all__ = ["blake2b", "c_json", "ref", "signal", "socket", "sqlite3"]
__all__ += ["AbstractContextManager", "Any", "Awaitable", "BinaryIO", "Callable", "Collection", "Container"]
__all__ += ["Coroutine", "FrameType", "Generator", "Generic", "Iterable", "Iterator", "Mapping", "ParamSpec"]
__all__ += ["Protocol", "Sequence", "TextIO", "TypeVar"]


def _sqlite3() -> ModuleType:
    """Import the driver alone: the package around it imports datetime, which nothing in dibs needs.

    The driver imports functools for one function, the `lru_cache` of its prepared statements, and functools imports
    collections and five modules more: without what follows, an embedded `dibs claim` takes 7.8 % more instructions. So
    while the driver is imported, a module with an `lru_cache` on the same C class is in the place of functools, unless
    functools is there already, or there are threads: one of them could import it at that moment."""
    try:
        if "functools" not in sys.modules and "threading" not in sys.modules:
            try:
                sys.modules["functools"] = _lru_cache_alone()
                import _sqlite3

                return _sqlite3
            except (ImportError, AttributeError):
                pass  # another Python, whose driver needs more of functools: it is imported below
            finally:
                sys.modules.pop("functools", None)
        import _sqlite3

        return _sqlite3
    except ImportError:
        import sqlite3

        return sqlite3


def _lru_cache_alone() -> ModuleType:
    """Make a `functools` that has the one function."""
    from _functools import _lru_cache_wrapper  # type: ignore[import-not-found]  # typeshed does not list it

    def lru_cache(maxsize: int) -> Callable[[Any], Any]:
        return lambda function: _lru_cache_wrapper(function, maxsize, False, tuple)

    made = type(sys)("functools")
    made.lru_cache = lru_cache  # type: ignore[attr-defined]
    return made


# Of each name the private module, the public one, and what is taken of them. `jsontext.py` can do without `_json`.
_PARTS = {
    "blake2b": ("_blake2", "hashlib", "blake2b"),
    "c_json": ("_json", "_json", ""),
    "ref": ("_weakref", "weakref", "ref"),
    "signal": ("_signal", "signal", ""),
    "socket": ("_socket", "socket", ""),
}


def _part(name: str) -> object:
    private, public, inside = _PARTS[name]
    try:
        module = __import__(private)
    except ImportError:
        module = __import__(public)
    return getattr(module, inside) if inside else module


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(name)
        found = globals()[name] = _sqlite3() if name == "sqlite3" else _part(name)
        return found
