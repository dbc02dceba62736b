"""A waiter is woken by the commit that concerns it: LISTEN, with a connection and a thread of its own.

A commit notifies with the number of the last event and a mark for each record it deleted. Whoever waits for events has
the number with the note, and does not ask for it again: that would be a round trip in every hand-off between servers.
Everybody looks now and then without a note. So where notes do not come, because pgbouncer stands in between or the
connection is away, nothing is missed, only later.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from binascii import crc32
from contextlib import closing

from dibs.base.clock import steady_ms
from dibs.stores.forks import forget_after_fork
from dibs.stores.postgres.connection import LinkLost, QueryRefused
from dibs.stores.postgres.errors import quoted
from dibs.stores.postgres.pool import connected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Collection, Iterable
    from types import TracebackType

    from dibs.stores.postgres import PostgresLocation
    from dibs.stores.postgres.connection import PostgresConnection
    from dibs.stores.postgres.pool import Pool

MARKS_MAX = 800  # in one note, which may have 8,000 bytes
EVERYBODY = "*"
SEQ_DIGITS_MAX = 20
_AGAIN_S = 0.5
_AGAIN_S_MAX = 10.0
_POOLED_S = 60.0
_SILENCE_MS = 30_000


def mark_of(key: str) -> str:
    """Two keys may share a mark: then a waiter looks in vain."""
    return f"{crc32(key.encode()):08x}"


def hint_of(keys: Collection[str]) -> str:
    """The hint of a commit that deletes these keys."""
    return EVERYBODY if len(keys) > MARKS_MAX else " ".join(map(mark_of, keys))


class NoteWait:
    """One waiter: for any event, or with `mark` for the deletion of one record. A context manager."""

    def __init__(self, listener: Listener, mark: str | None) -> None:
        self.mark = mark
        self.heard_seq = 0  # the last event, as notes have told since this wait began
        self._listener = listener
        self._woken: LockType = allocate_lock()
        self._woken.acquire()

    def wake(self, seq: int = 0) -> None:
        self.heard_seq = max(self.heard_seq, seq)
        if self._woken.locked():
            try:
                self._woken.release()
            except RuntimeError:
                pass  # another thread did it

    def wait(self, timeout_ms: int) -> None:
        self._woken.acquire(timeout=max(0, timeout_ms) / 1000)

    def __enter__(self) -> NoteWait:
        self._listener.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.remove(self)


class Listener:
    """Receives the notes of one store, from the first wait on."""

    def __init__(self, location: PostgresLocation, pool: Pool) -> None:
        self._location = location
        self._pool = pool
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        """Start again: nobody waits, nobody listens."""
        self._waits: list[NoteWait] = []
        self._starting = allocate_lock()
        self._stop: int | None = None  # closed at the end
        self.hears = False

    def add(self, wait: NoteWait) -> None:
        self._waits.append(wait)
        if not self._location.listens_at:
            return
        with self._starting:
            if self._stop is None:
                woken_by, self._stop = os.pipe()
                listening = threading.Thread(target=self._listen, args=(woken_by,), name="dibs-listen", daemon=True)
                listening.start()

    def remove(self, wait: NoteWait) -> None:
        try:
            self._waits.remove(wait)
        except ValueError:
            pass

    def told(self, marks: Iterable[str], *, events: bool, seq: int = 0) -> None:
        """Wake the waiters that a commit concerns. `seq` is the last event after it, 0 if that is not known."""
        found = set(marks)
        for each in tuple(self._waits):
            if EVERYBODY in found or (events if each.mark is None else each.mark in found):
                each.wake(seq)

    def close(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            os.close(stop)

    def _listen(self, woken_by: int) -> None:
        pause_s = _AGAIN_S
        while self._stop is not None:
            try:
                with self._connected() as link:
                    if link.is_pooled:
                        pause_s = _POOLED_S  # a LISTEN would stay in a backend that others get later
                    else:
                        pause_s = _AGAIN_S
                        self._hear(link, woken_by)
            except (LinkLost, QueryRefused):
                pause_s = min(_AGAIN_S_MAX, pause_s * 2)
            self.hears = False
            self.told((EVERYBODY,), events=True)  # they poll from now on
            if self._stop is not None:
                _pause(woken_by, pause_s)
        os.close(woken_by)

    def _connected(self) -> closing[PostgresConnection]:
        """A connection of the listener's own."""
        until_ms = steady_ms() + self._location.timeout_ms
        return closing(connected(self._location.listens_at, 0, self._pool.admit, until_ms)[1])

    def _hear(self, link: PostgresConnection, woken_by: int) -> None:
        link.script(f"LISTEN {quoted(self._location.channel)}", steady_ms() + self._location.timeout_ms)
        self.hears = True
        self.told((EVERYBODY,), events=True)  # earlier notes were missed
        while self._stop is not None:
            for note in link.notes(woken_by, _SILENCE_MS):
                seq, *marks = note.split() or [""]
                # Anybody who may connect may notify: what is no number only wakes.
                self.told(marks, events=True, seq=int(seq) if seq.isdecimal() and len(seq) < SEQ_DIGITS_MAX else 0)


def _pause(woken_by: int, seconds: float) -> None:
    import select

    poll = select.poll()
    poll.register(woken_by, select.POLLIN)
    poll.poll(seconds * 1000)
