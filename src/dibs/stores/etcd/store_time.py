"""Reads for the clock what etcd holds: the time of the last commit, the stopwatch, the note of this boot."""

from __future__ import annotations

import time
from _thread import allocate_lock

from dibs.base.clock import boot_id as machine_boot_id
from dibs.base.clock import steady_ms as machine_steady_ms
from dibs.base.clock import wall_ms as machine_wall_ms
from dibs.base.errors import DibsError, StoreUnavailable
from dibs.base.jsontext import decode, encode
from dibs.stores.etcd.clock import BootNote, EtcdClock, StopwatchReading
from dibs.stores.etcd.errors import Refusal
from dibs.stores.etcd.gateway import unb64
from dibs.stores.etcd.transaction import (
    OPS_MAX,
    compare_revision,
    compare_value,
    delete_op,
    end_of,
    inner,
    put_if,
    put_op,
    range_op,
    read_range,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.etcd.gateway import Document, EtcdGateway
    from dibs.stores.etcd.log import Layout


STOPWATCH_S = 10 * 365 * 24 * 3600
BOOT_KEPT_MS = 30 * 24 * 3600 * 1000
COUNT_PAUSE_S = 0.01
COUNT_LOOKS = 150  # for a second and some more
BEHIND_MS = 5_000  # a stopwatch that is so far behind the time of the last commit is restarted


class ClockOff(StoreUnavailable):
    """This machine's clock and etcd's run at different speeds. Nothing was decided."""


class Stopwatch:
    """A lease of etcd that nobody renews."""

    def __init__(self, gateway: EtcdGateway) -> None:
        self._gateway = gateway

    def start(self) -> str:
        return str(self._gateway.read("/v3/lease/grant", {"TTL": str(STOPWATCH_S)})["ID"])

    def read(self, lease: str) -> tuple[int, str] | None:
        """Whole seconds since its start, with the leader and its term; None if it is gone."""
        found = self._gateway.read("/v3/lease/timetolive", {"ID": lease})
        left_s = int(found.get("TTL", 0))
        if left_s < 0:
            return None
        return int(found.get("grantedTTL", 0)) - left_s, str(found["header"].get("raft_term", ""))

    def stop(self, lease: str) -> None:
        """End a stopwatch that nobody will read again. A failure does no harm."""
        try:
            self._gateway.read("/v3/lease/revoke", {"ID": lease}, refusals=True)
        except (Refusal, DibsError):
            pass


class EtcdTime:
    """For any thread. `raising` goes into every commit, `looking` into every read."""

    def __init__(
        self,
        gateway: EtcdGateway,
        layout: Layout,
        *,
        stopwatch: Stopwatch | None = None,
        steady_ms: Callable[[], int] = machine_steady_ms,
        wall_ms: Callable[[], int] = machine_wall_ms,
        boot_id: Callable[[], str] = machine_boot_id,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gateway = gateway
        self._layout = layout
        self._stopwatch = stopwatch or Stopwatch(gateway)
        self._wall_ms = wall_ms
        self._boot_id = boot_id
        self._pause = pause
        self._clock = EtcdClock(steady_ms)
        self._lock = allocate_lock()
        self.trouble: DibsError | None = None

    def ready(self) -> None:
        """Before a read or a commit: make sure that the clock is set and was compared lately. Raises ClockOff if it is
        off."""
        if self._clock.is_set and self.trouble is None and not self._clock.check_is_due():
            return
        with self._lock:
            if not self._clock.is_set:
                self._begin()
            elif self._clock.check_is_due():
                self._check()
        if self.trouble is not None:
            raise ClockOff(self.trouble.details)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def looking(self) -> Document:
        """Reads the time, and the key `wide` beside it."""
        return range_op(self._layout.time, end=self._layout.wide + b"\0")

    def saw(self, answer: Document) -> None:
        """Take the answer to `looking`."""
        kvs = answer["response_range"].get("kvs")
        if kvs:
            self._clock.saw(int(unb64(kvs[0]["value"])))

    def raising(self) -> Document:
        """The operation that raises the key `time`; it never lowers it."""
        value = b"%016d" % self._clock.now_ms()
        return inner([put_op(self._layout.time, value)], [compare_value(self._layout.time, "LESS", value)])

    def forget_old_boots(self) -> int:
        """Delete notes of boots that nobody has used for BOOT_KEPT_MS. Returns how many were deleted."""
        self.ready()
        boots = self._layout.boot("")
        old = []
        for kv in read_range(self._gateway, boots, end_of(boots)):
            note = BootNote.load(decode(unb64(kv["value"]).decode()))
            if note.offset_ms + note.reading.after_ms < self.now_ms() - BOOT_KEPT_MS:
                old.append(unb64(kv["key"]))
        for at in range(0, len(old), OPS_MAX):
            ops = [delete_op(key) for key in old[at : at + OPS_MAX]]
            self._gateway.read("/v3/kv/txn", {"success": ops})
        return len(old)

    def _begin(self) -> None:
        state = self._state()
        is_mine = state is None and self._make()
        if state is None:
            state = self._state()
            if state is None:
                raise StoreUnavailable("The store's keys in etcd were deleted while it was opened. Try again.")
        mark_ms, (revision, started_ms, lease), (note_revision, note) = state
        reading = self._reading(lease)
        if reading is not None and not is_mine and not (note is not None and note.agrees_with(reading)):
            before_ms = reading.after_ms
            reading = self._when_it_counts_up(reading, started_ms, mark_ms)
            mark_ms += 0 if reading is None else reading.after_ms - before_ms
        if not self._clock.begin(mark_ms, started_ms, reading, note) and not self._write_note(note_revision):
            # Another process of this boot was first: use its note.
            self._clock = EtcdClock(self._clock.steady_ms)
            self._begin()
            return
        self._restart_if_behind(reading, started_ms, mark_ms, revision, lease)

    def _check(self) -> None:
        state = self._state()
        if state is None:
            raise StoreUnavailable("The store's keys in etcd were deleted while it was open. Start this process again.")
        mark_ms, (revision, started_ms, lease), (note_revision, note) = state
        reading = self._reading(lease)
        off_ms = self._clock.check(mark_ms, started_ms, reading)
        if off_ms:
            self.trouble = _off(off_ms)
            self._write_note(note_revision)
            return
        if self._clock.is_trusted():
            self.trouble = None
        if reading is not None and (note is None or note.reading.term != reading.term):
            self._write_note(note_revision)  # the leader has changed: an older note is useless to new processes
        self._restart_if_behind(reading, started_ms, mark_ms, revision, lease)

    def _state(self) -> tuple[int, tuple[int, int, str], tuple[int, BootNote | None]] | None:
        """`time`, and the stopwatch and this boot's note with their revisions; None: the prefix is not in use."""
        keys = (self._layout.time, self._layout.stopwatch, self._layout.boot(self._boot_id()))
        answer = self._gateway.read("/v3/kv/txn", {"success": [range_op(key) for key in keys]})
        time, watch, note = [(each["response_range"].get("kvs") or [None])[0] for each in answer["responses"]]
        if time is None or watch is None:
            return None
        started = decode(unb64(watch["value"]).decode())
        stopwatch = (int(watch["mod_revision"]), int(started["at_ms"]), str(started["lease"]))
        if note is None:
            return int(unb64(time["value"])), stopwatch, (0, None)
        found = BootNote.load(decode(unb64(note["value"]).decode()))
        return int(unb64(time["value"])), stopwatch, (int(note["mod_revision"]), found)

    def _make(self) -> bool:
        """Begin to use a new prefix. The wall clock is read only here. False: somebody else was first."""
        lease, now_ms = self._stopwatch.start(), self._wall_ms()
        keys = self._layout
        request = {
            "compare": [compare_revision(keys.time, 0), compare_revision(keys.stopwatch, 0)],
            "success": [put_op(keys.time, b"%016d" % now_ms), put_op(keys.stopwatch, _started(now_ms, lease))],
        }
        made = self._gateway.read("/v3/kv/txn", request)
        if not made.get("succeeded"):
            self._stopwatch.stop(lease)
            return False
        return True

    def _when_it_counts_up(self, reading: StopwatchReading, started_ms: int, mark_ms: int) -> StopwatchReading | None:
        """The first reading after the stopwatch counted up, which tells the time exactly. Not if it is behind the last
        commit anyway, because another leader counts now."""
        found: StopwatchReading | None = reading
        for _ in range(COUNT_LOOKS if started_ms + reading.elapsed_s * 1_000 >= mark_ms else 0):
            self._pause(COUNT_PAUSE_S)
            found = self._reading(reading.lease)
            if found is None or found.elapsed_s != reading.elapsed_s:
                break
        return found

    def _reading(self, lease: str) -> StopwatchReading | None:
        before_ms = self._clock.steady_ms()
        found = self._stopwatch.read(lease)
        if found is None:
            return None
        return StopwatchReading(
            before_ms=before_ms,
            after_ms=self._clock.steady_ms(),
            elapsed_s=found[0],
            lease=lease,
            term=found[1],
        )

    def _restart_if_behind(
        self, reading: StopwatchReading | None, started_ms: int, mark_ms: int, revision: int, lease: str
    ) -> None:
        """After a change of leader the stopwatch shows less time than has passed; after a restored backup it is
        gone."""
        if reading is not None and started_ms + reading.elapsed_s * 1_000 > mark_ms - BEHIND_MS:
            return
        now_ms = self._clock.now_ms()
        fresh = self._stopwatch.start()
        swap = put_if(self._layout.stopwatch, revision, _started(now_ms, fresh))
        made = self._gateway.read("/v3/kv/txn", swap)
        self._stopwatch.stop(lease if made.get("succeeded") else fresh)

    def _write_note(self, revision: int) -> bool:
        """The first process that writes it wins: all processes of a boot then agree to the millisecond. False: another
        was first."""
        note = self._clock.note()
        if note is None:
            return True
        key = self._layout.boot(self._boot_id())
        made = self._gateway.read("/v3/kv/txn", put_if(key, revision, encode(note.dump()).encode()))
        return bool(made.get("succeeded"))


def _started(at_ms: int, lease: str) -> bytes:
    return encode({"at_ms": at_ms, "lease": lease}).encode()


def _off(off_ms: int) -> ClockOff:
    where = "ahead of" if off_ms > 0 else "behind"
    return ClockOff(
        f"This machine's steady clock came {abs(off_ms) / 1000:.1f} s {where} what etcd's leader counted.\n"
        "Nothing is decided here until they run alike for a while: look at the clock source of this machine, and of "
        "etcd's leader."
    )
