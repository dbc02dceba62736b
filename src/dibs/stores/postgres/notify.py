"""A waiter is woken by the commit that concerns it: LISTEN, with a connection and a thread of its own.

A commit notifies with the number of the last event and a mark for each record it deleted. Whoever waits for events has
the number with the note, and does not ask for it again, nor when it begins to wait: that would be a round trip for each
commit while somebody waits.
Where notes do not come, because pgbouncer stands in between or the connection is away, waiters look more often.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from collections.abc import Collection
from contextlib import closing

from dibs.base.clock import steady_ms
from dibs.stores.fork_safety import Forgetful, listen
from dibs.stores.postgres.connection import LinkLost, PostgresConnection, QueryRefused
from dibs.stores.postgres.errors import quoted
from dibs.stores.postgres.location import PostgresLocation
from dibs.stores.postgres.pool import Pool, connected
from dibs.stores.waiters import POLL_MS_MAX, StoreWaiters, mark_of, pauses

MARKS_MAX = 800  # in one note, which may have 8,000 bytes
EVERYBODY = "*"
SEQ_DIGITS_MAX = 20
HEARD_POLL_MS_MAX = 1_000  # while notes come; this is for those that are lost
_POLLING = pauses(POLL_MS_MAX)
_AGAIN_S = 0.5
_AGAIN_S_MAX = 10.0
_POOLED_S = 60.0
_SILENCE_MS = 30_000


def hint_of(keys: Collection[str]) -> str:
    return EVERYBODY if len(keys) > MARKS_MAX else " ".join(map(mark_of, keys))


class Listener(StoreWaiters, Forgetful):
    """Receives the notes of one store, from the first wait on. Waiters have the key None, or the mark of a record."""

    def __init__(self, location: PostgresLocation, pool: Pool) -> None:
        self._location = location
        self._pool = pool
        self.forget()
        self._listening = listen(self)

    def forget(self) -> None:
        """Start again: nobody waits, nobody listens."""
        super().__init__()
        self._starting = allocate_lock()
        self._stop: int | None = None  # closed at the end
        self.hears = False
        self.times = 0  # how often it began to hear
        self._looked = 0  # as of which time somebody has looked at the store since
        self._heard = 0  # the newest event, by the notes since, which anybody may send
        self._own = 0  # the newest event of this process's own commits

    def listen(self) -> None:
        if not self._location.listens_at:
            return
        with self._starting:
            if self._stop is None:
                woken_by, self._stop = os.pipe()
                threading.Thread(target=self._listen, args=(woken_by,), name="dibs-listen", daemon=True).start()

    def pause_ms(self, last_ms: int) -> int:
        return HEARD_POLL_MS_MAX if self.hears else _POLLING(last_ms)

    def looked(self, times: int) -> None:
        """Note that somebody has asked the store for its newest event, when it had begun to hear so often."""
        self._looked = times

    def is_up_to_date(self, after: int) -> bool:
        """Return whether a look would find no newer event: somebody has looked since it hears, and neither a note nor a
        commit of ours told of one."""
        return self.hears and self._looked == self.times and max(self._heard, self._own) <= after

    def committed(self, hint: str, *, events: bool, seq: int) -> None:
        """Wake the waiters that a commit of this process concerns. `seq` is the last event after it."""
        if events:
            self._own = max(self._own, seq)
        self._wake(hint, seq, events=events)

    def _noted(self, hint: str, seq: int) -> None:
        """Wake them for any commit. Who waits for events was woken for our own, and for those before them."""
        self._heard = max(self._heard, seq)
        self._wake(hint, seq, events=not 0 < seq <= self._own)

    def _wake(self, hint: str, seq: int, *, events: bool) -> None:
        if hint == EVERYBODY:
            self.wake_all()
        else:
            self.wake({*hint.split(), None} if events else set(hint.split()), seq)

    def close(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            os.close(stop)

    def _listen(self, woken_by: int) -> None:
        pause_s = _AGAIN_S
        while self._stop is not None:
            try:
                until_ms = steady_ms() + self._location.timeout_ms
                with closing(connected(self._location.listens_at, 0, self._pool.admit, until_ms)[1]) as link:
                    if link.is_pooled:
                        pause_s = _POOLED_S  # a LISTEN would stay in a backend that others get later
                    else:
                        pause_s = _AGAIN_S
                        self._hear(link, woken_by)
            except (LinkLost, QueryRefused):
                pause_s = min(_AGAIN_S_MAX, pause_s * 2)
            self.hears = False
            self.wake_all()  # they poll from now on
            if self._stop is not None:
                _pause(woken_by, pause_s)
        os.close(woken_by)

    def _hear(self, link: PostgresConnection, woken_by: int) -> None:
        link.script(f"LISTEN {quoted(self._location.channel)}", steady_ms() + self._location.timeout_ms)
        self._heard = self._own = 0
        self.times += 1
        self.hears = True
        self.wake_all()  # earlier notes were missed
        while self._stop is not None:
            for note in link.notes(woken_by, _SILENCE_MS):
                seq, _, hint = note.partition(" ")
                # Anybody who may connect may notify: what is no number only wakes.
                is_number = seq.isdecimal() and len(seq) < SEQ_DIGITS_MAX
                self.on_gone(hint.split())  # first: somebody waits for the answer to that
                self._noted(hint, int(seq) if is_number else 0)


def _pause(woken_by: int, seconds: float) -> None:
    import select

    poll = select.poll()
    poll.register(woken_by, select.POLLIN)
    poll.poll(seconds * 1000)
