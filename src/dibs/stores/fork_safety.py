"""Keeps what a store holds open from crossing a fork.

A forked child has its parent's memory and none of its threads. A lock that a thread of the parent held is never freed
in the child, a connection would be used by two processes, and ids that are made once per process are there twice. So
stores are notified of forks:

    before_fork  For SQLite: its locks belong to the process that took them, and SQLite remembers in memory which locks
                 its process has. A child that inherits that memory believes that it has locks which it does not have,
                 even on its own connections. Then the next process that closes the file would believe that it is the
                 last one, and remove the log that the child writes to. So the connection is closed before the fork, and
                 opened again when it is next used.
    after_fork   On both sides. In the child, each listener makes its locks, connections and ids anew.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Protocol, ref


class ForkListener(Protocol):
    def before_fork(self) -> None: ...
    def after_fork(self, *, in_child: bool) -> None: ...


class Listening:
    """Stands for a listener: a compiled object cannot be referred to weakly."""

    __slots__ = ("__weakref__", "listener")

    def __init__(self, listener: ForkListener) -> None:
        self.listener = listener


_listeners: list[ref[Listening]] = []


class Forgetful:
    """An object that begins anew in a forked child, by its method `forget`."""

    def before_fork(self) -> None:
        """Nothing has to end before."""

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self.forget()

    def forget(self) -> None:
        raise NotImplementedError


def listen(listener: ForkListener) -> Listening:
    """Notify `listener` of every fork from now on, for as long as it keeps what this returns."""
    made = Listening(listener)
    _listeners.append(ref(made))
    return made


def before_fork() -> None:
    _listeners[:] = [each for each in _listeners if each() is not None]
    for each in _listeners:
        found = each()
        if found is not None:
            found.listener.before_fork()


def after_fork(*, in_child: bool = False) -> None:
    for each in _listeners:
        found = each()
        if found is not None:
            found.listener.after_fork(in_child=in_child)


os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=lambda: after_fork(in_child=True))
