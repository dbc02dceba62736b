"""The store's time. Clones' clocks differ, so each clone reads records in its own time.

The store's time is this machine's: steady time, tied to wall time once per boot by an anchor that all processes of the
clone share. A record carries its writer's clocks. When it is read, its times are shifted so that it was put `age` ago.
`age` is never more than the truth:

    put on this machine, this boot       exactly: steady time counted since
    put elsewhere                        the longest of: since this machine first saw it, and
                                         the remote's time now - the remote's time then - the margin

Two wall clocks are never compared with each other. Both sides read the remote's clock (`Reading`): the writer
notes what it was, at most, and the reader asks what it is, at least. A machine whose own clock is further from the
remote's than the margin does neither: one of the two clocks is wrong, and nobody knows which. In this case, and if a
remote tells no time, only the time that this machine has watched a record counts, unless an operator has stated
(`skew=`) how far the clocks are apart at most.

An age may be too small: a machine that sees a record for the first time gives it its whole TTL from then on. First
sights are kept in a file, so that many short processes watch as one. There is one for each ref of another machine's
record, until the ref has another record or is gone.

A closure and a done mark end at a date that people named, and no owner depends on it. So these dates are of the wall
clocks of whoever reads and writes: otherwise each machine that writes the record would move them later for everybody.
Only if a remote that tells the time shows that one of the two clocks is wrong, they are as old as the record.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dibs.base import clock
from dibs.base.http1 import http_date_ms
from dibs.base.ids import new_id
from dibs.base.record import Record
from dibs.stores.git.entries import Entry, tail_of
from dibs.stores.git.repository import file_lock, load_json, save_json

# The remote's clock, if it can be read: the `Date` of its HTTP answers, or the time its file system gives to a new
# file. ssh and git:// have no clock to read.
#
# A reading is kept as two bounds on the machine's steady clock, so it does not depend on a wall clock.

HTTP_GRAIN_MS = 1_000  # a Date has whole seconds, rounded down
FILE_GRAIN_MS = 2_000  # of the coarsest file systems
_TRACE_BYTES_MAX = 1024 * 1024


class Reading(Record):
    """The remote said `said_ms` at some moment between `began_ms` and `ended_ms` of this machine's steady clock."""

    said_ms: int
    began_ms: int
    ended_ms: int
    grain_ms: int

    def least_ms(self, steady_ms: int) -> int:
        return self.said_ms + steady_ms - self.ended_ms

    def most_ms(self, steady_ms: int) -> int:
        return self.said_ms + self.grain_ms + steady_ms - self.began_ms

    def ahead_ms(self, wall_ms: int, steady_ms: int) -> int:
        """Return how far a wall clock is at least ahead of the remote's; negative: behind. 0: none can be seen."""
        if wall_ms > self.most_ms(steady_ms):
            return wall_ms - self.most_ms(steady_ms)
        return min(0, wall_ms - self.least_ms(steady_ms))


def of_folder(folder: str, steady_ms: Callable[[], int]) -> Reading | None:
    """The clock of the file system of `folder`. None if it cannot be written."""
    # git deletes leftover files with this name.
    path = os.path.join(folder, f"tmp_obj_dibs_{new_id()}")
    began_ms = steady_ms()
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(number, b"\n")
            said_ms = os.fstat(number).st_mtime_ns // 1_000_000
        finally:
            os.close(number)
            os.unlink(path)
    except OSError:
        return None
    return Reading(said_ms=said_ms, began_ms=began_ms, ended_ms=steady_ms(), grain_ms=FILE_GRAIN_MS)


def of_trace(path: str, began_ms: int, ended_ms: int) -> Reading | None:
    """The last `Date` in the output of GIT_TRACE_CURL."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_TRACE_BYTES_MAX).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    said = [line.rpartition(": ")[2] for line in lines if "recv header: date:" in line.lower()]
    said_ms = http_date_ms(said[-1]) if said else None
    if said_ms is None:
        return None
    return Reading(said_ms=said_ms, began_ms=began_ms, ended_ms=ended_ms, grain_ms=HTTP_GRAIN_MS)


LOCK = "times.lock"
# Of wall and steady time since a record of this boot was put. With a larger difference the record counts as foreign.
STEP_MS_MAX = 2_000


class Clocks(Record):
    """A machine's clocks, as functions that tests can replace. `remote` reads the remote's clock without asking it."""

    steady_ms: Callable[[], int] = clock.steady_ms
    wall_ms: Callable[[], int] = clock.wall_ms
    boot_id: Callable[[], str] = clock.boot_id
    remote: Callable[[], Reading | None] | None = None


class StoreTime:
    """The store's time on this machine, and the age of records. `folder` holds the anchor and the first sights;
    `margin_ms` is how far clocks may be apart, and `stated` whether an operator set it; `remote` reads the remote's
    clock."""

    def __init__(
        self,
        folder: str,
        clocks: Clocks,
        margin_ms: int,
        *,
        stated: bool = False,
        remote: Callable[[], Reading | None] = lambda: None,
    ) -> None:
        self._path = os.path.join(folder, "times.json")
        self._clocks = clocks
        self._margin_ms = margin_ms
        self._stated = stated
        self._remote = clocks.remote or remote
        # A digest, because records are pushed, and the machine's own boot id is private.
        self._clock_id = hashlib.sha256(clocks.boot_id().encode()).hexdigest()[:16]
        self._last_ms = 0
        self._seen: dict[str, tuple[str, int]] = {}  # by ref: the record's nonce, and when it was first seen
        self._offset_ms = 0
        with file_lock(folder, LOCK):
            if not self._load():
                self._save()

    def now_ms(self) -> int:
        """Never less than it was."""
        self._last_ms = max(self._last_ms, self._offset_ms + self._clocks.steady_ms())
        return self._last_ms

    def wall_ms(self) -> int:
        return self._clocks.wall_ms()

    def stamp(self) -> dict[str, Any]:
        made = {
            "now_ms": self.now_ms(),
            "wall_ms": self._clocks.wall_ms(),
            "steady_ms": self._clocks.steady_ms(),
            "clock": self._clock_id,
        }
        reading = self._trusted()
        if reading is not None:
            made["remote_ms"] = reading.most_ms(self._clocks.steady_ms())
        return made

    def ahead_ms(self) -> int | None:
        """Return how far this machine's wall clock is ahead of the remote's; None: the remote tells no time."""
        reading = self._remote()
        return None if reading is None else reading.ahead_ms(self._clocks.wall_ms(), self._clocks.steady_ms())

    def is_off(self) -> bool:
        """Return whether this machine's clock and the remote's are further apart than the margin."""
        return abs(self.ahead_ms() or 0) > self._margin_ms

    def _trusted(self) -> Reading | None:
        """The remote's clock, if this machine's agrees with it."""
        reading = self._remote()
        return None if reading is None or self.is_off() else reading

    def notice(self, tails: Sequence[str], entries: Mapping[str, Entry]) -> None:
        """Remember when records of other machines, found of `tails`, were first seen, before they are shifted."""
        new = {
            tail: entry.nonce
            for tail, entry in entries.items()
            if not self._is_own(entry) and self._first_ms(tail, entry.nonce) is None
        }
        if not new:
            return
        exact, prefixes = set(tails), tuple([tail for tail in tails if not tail or tail.endswith("/")])
        with file_lock(os.path.dirname(self._path), LOCK):
            self._load()  # other processes may have seen them before
            steady_ms = self._clocks.steady_ms()
            for tail in [each for each in self._seen if each not in entries]:
                if tail in exact or tail.startswith(prefixes):
                    del self._seen[tail]
            for tail, nonce in new.items():
                if self._first_ms(tail, nonce) is None:
                    self._seen[tail] = (nonce, steady_ms)
            self._save()

    def _first_ms(self, tail: str, nonce: str) -> int | None:
        seen = self._seen.get(tail)
        return seen[1] if seen is not None and seen[0] == nonce else None

    def age_ms(self, entry: Entry) -> int:
        """Return how long ago it was at least put."""
        stamp, steady_ms = entry.stamp, self._clocks.steady_ms()
        if self._is_own(entry):
            return max(0, steady_ms - int(stamp["steady_ms"]))
        first_ms = self._first_ms(tail_of(entry.key), entry.nonce)
        seen_ms = 0 if first_ms is None else steady_ms - first_ms
        return max(seen_ms, self._by_remote_ms(stamp) - self._margin_ms, 0)

    def _by_remote_ms(self, stamp: dict[str, Any]) -> int:
        """Return how long ago another machine's record was put, by the remote's clock. 0: there is none."""
        if stamp["clock"] == self._clock_id:
            return 0  # this machine's clock was stepped, and with it the clock of its own file system
        reading = self._trusted()
        if reading is not None:
            then_ms = stamp.get("remote_ms")
            return 0 if then_ms is None else reading.least_ms(self._clocks.steady_ms()) - int(then_ms)
        if self._stated and self._remote() is None:
            return self._clocks.wall_ms() - int(stamp["wall_ms"])
        return 0

    def rough_age_ms(self, entry: Entry) -> int:
        """About how long ago it was put, by wall clocks. Only for tidying up, where no owner is affected."""
        return max(self.age_ms(entry), self._clocks.wall_ms() - int(entry.stamp["wall_ms"]) - self._margin_ms)

    def shift_ms(self, entry: Entry) -> int:
        """Return what to add to the record's times to get this machine's time."""
        return self._offset_ms + self._clocks.steady_ms() - self.age_ms(entry) - int(entry.stamp["now_ms"])

    def dates_shift_ms(self, entry: Entry) -> int:
        """The same for dates: by the wall clocks of its writer and of this machine."""
        stamp, reading = entry.stamp, self._remote()
        is_wrong = reading is not None and (self.is_off() or "remote_ms" not in stamp)
        if is_wrong or self._is_own(entry):
            return self.shift_ms(entry)
        ahead_ms = self._offset_ms + self._clocks.steady_ms() - self._clocks.wall_ms()
        return ahead_ms + int(stamp["wall_ms"]) - int(stamp["now_ms"])

    def _is_own(self, entry: Entry) -> bool:
        """Return whether it was put in this boot. Machines of one snapshot may share its id; their clocks differ."""
        stamp = entry.stamp
        if stamp["clock"] != self._clock_id:
            return False
        then_ms = int(stamp["wall_ms"]) - int(stamp["steady_ms"])
        apart_ms = self._clocks.wall_ms() - self._clocks.steady_ms() - then_ms
        return abs(apart_ms) <= STEP_MS_MAX and self._clocks.steady_ms() >= int(stamp["steady_ms"])

    def _load(self) -> bool:
        """Use the file if it is of this boot. Otherwise make a new anchor, not before the last time, and say False."""
        try:
            kept: dict[str, Any] = load_json(self._path)
            last_ms = int(kept["last_ms"])
            if kept["clock"] == self._clock_id:
                self._offset_ms = int(kept["offset_ms"])
                for tail, (nonce, steady_ms) in kept["seen"].items():
                    first_ms = self._first_ms(tail, nonce)
                    self._seen[tail] = (nonce, steady_ms if first_ms is None else min(steady_ms, first_ms))
                return True
        except (ValueError, LookupError, TypeError, AttributeError):
            last_ms = 0  # none yet, or of another boot: a new anchor only makes times later
        self._offset_ms = max(self._clocks.wall_ms(), last_ms) - self._clocks.steady_ms()
        return False

    def _save(self) -> None:
        kept = {"clock": self._clock_id, "offset_ms": self._offset_ms, "last_ms": self.now_ms(), "seen": self._seen}
        save_json(self._path, kept)
