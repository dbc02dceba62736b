"""A forked child must not use its parent's connections and threads. Their owners are told to forget them."""

from __future__ import annotations

import os
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Forgetful(Protocol):
        def forget(self) -> None: ...


_known: list[ref[Forgetful]] = []


def forget_after_fork(it: Forgetful) -> None:
    """Call `it.forget()` in every forked child from now on, while the object exists."""
    _known[:] = [each for each in _known if each() is not None]
    _known.append(ref(it))


def _after_fork_in_child() -> None:
    for each in _known:
        it = each()
        if it is not None:
            it.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
