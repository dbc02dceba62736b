"""No connection crosses a fork.

SQLite's locks belong to the process that took them, and SQLite remembers in memory which locks its process has. A
forked child inherits that memory and believes to have locks that it does not have, even on its own connections. Then
the next process that closes the file would believe to be the last one, and remove the log that the child writes to. So
every `SqliteConnection` closes its connection before a fork, and opens another when it is next used.
"""

from __future__ import annotations

import os
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class ForkListener(Protocol):
        def before_fork(self) -> None: ...
        def after_fork(self, *, in_child: bool) -> None: ...


_listeners: list[ref[ForkListener]] = []


def listen(listener: ForkListener) -> None:
    """Tell `listener` of every fork from now on, for as long as it exists."""
    _listeners.append(ref(listener))


def before_fork() -> None:
    _listeners[:] = [each for each in _listeners if each() is not None]
    for each in _listeners:
        listener = each()
        if listener is not None:
            listener.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for each in _listeners:
        listener = each()
        if listener is not None:
            listener.after_fork(in_child=in_child)


def after_fork_in_parent() -> None:
    _after_fork(in_child=False)


def _after_fork_in_child() -> None:
    _after_fork(in_child=True)


os.register_at_fork(
    before=before_fork, after_in_parent=after_fork_in_parent, after_in_child=_after_fork_in_child
)
