"""The store's time, without anybody's wall clock.

etcd has no clock that can be read, but it counts: a lease of etcd (nothing to do with leases of dibs) says how much of
its time is left, in whole seconds of the leader's steady clock. One such lease, made once and practically endless, is
the **stopwatch**. Three keys:

    time        the time of the latest decision. Every commit raises it, every read reads it.
    stopwatch.10   the lease's id, the term of the leader that counts, and what the store's time was when it was started
    boot/ID     for one boot of one machine: the offset of its steady clock to the store's time

A process computes its first time from these, and continues by its own steady clock. Its time is the highest of these:
`time`; the stopwatch (its start plus the seconds that surely passed); the note of its boot. None of them can be ahead
of the time that really passed, as long as steady clocks are steady. The first process of a boot has no note. It waits
for the moment in which the stopwatch counts up, up to a second, and so knows the time to a few milliseconds: a process
that is behind the others gives leases that are over early for them. A wall clock is read once, when the prefix is first
used; a wrong or changed wall clock moves no lease.

**The guard.** Every CHECK_MS the process compares how far its own clock and the stopwatch came since the last check,
and over the last minutes. If they differ by more than the tolerance, one of the two is wrong: the process refuses to
decide anything, says so, and afterwards uses the stopwatch alone. A note of a boot is trusted only if it passes the
same check.

**A new count.** A new leader counts from nothing, and only the clocks of processes know how long there was none. So one
of them says it, with a new stopwatch, and all others take its time, as if they had just begun. Otherwise a lease that
one of them gives would be over early for another, which lost less of that time. A process whose clock was compared
lately says it at once. Any other waits until nobody decides by the old count any more, so that who knows better is
first.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from dibs.base import clock as machine
from dibs.base.errors import DibsError, StoreUnavailable
from dibs.base.jsontext import decode, encode
from dibs.core.limits import ETCD_CLOCK_MS_MAX
from dibs.stores import formats
from dibs.stores.codec import FORMAT
from dibs.stores.etcd import messages
from dibs.stores.etcd.client import LEASE_GRANT, LEASE_LEFT, LEASE_REVOKE, EtcdClient
from dibs.stores.etcd.errors import Refusal
from dibs.stores.etcd.location import Layout
from dibs.stores.etcd.messages import KeyValue, LeaseAnswer, message
from dibs.stores.etcd.stopwatch import SECOND_MS, BootNote, StopwatchReading, difference_ms
from dibs.stores.etcd.transaction import OPS_MAX, end_of

CHECK_MS = 2_000
RECOVER_MS = 30_000  # how long a clock that ran too fast is watched before it is trusted again
UNCOUNTED_MS = 10_000  # for how long our own clock alone is trusted, while etcd changes its leader
AGREE_MS = CHECK_MS + 1_000  # nobody decides for longer by what it saw of the old count; an answer may take a second
BASE_MS = 600_000  # over how long small differences add up before the comparison starts again


class EtcdClock:
    """One per connection. It does no I/O: `EtcdTime` gives it what it reads from etcd."""

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self.steady_ms = steady_ms
        self._lock = allocate_lock()
        self._offset_ms: int | None = None
        self._last_ms = 0
        self._base: StopwatchReading | None = None
        self._newest: StopwatchReading | None = None
        self._distrusted_until_ms = 0

    @property
    def is_set(self) -> bool:
        return self._offset_ms is not None

    def is_trusted(self) -> bool:
        """Return whether it has run well for long enough since it last ran too fast."""
        return self.steady_ms() >= self._distrusted_until_ms

    def begin(self, mark_ms: int, started_ms: int, reading: StopwatchReading, note: BootNote | None) -> bool:
        """Set the clock from the data in etcd. False if the boot's note is unusable and must be written again."""
        at_ms = reading.after_ms
        self._base = self._newest = reading
        self._last_ms = 0
        if note is not None and note.agrees_with(reading):
            self._set(max(mark_ms, note.offset_ms + at_ms), at_ms)
            self._follow_stopwatch(started_ms, reading)
            return True
        self._set(max(mark_ms, _surely_passed(started_ms, reading)), at_ms)
        return False

    def note(self, reading: StopwatchReading) -> bytes:
        """The note for other processes of this boot."""
        assert self._offset_ms is not None, "the clock was not set"
        return encode(BootNote(offset_ms=self._offset_ms, reading=reading).dump()).encode()

    def knows(self, reading: StopwatchReading) -> bool:
        """Return whether it is of the same count as the newest reading, so that the two can be compared."""
        return self._newest is not None and difference_ms(self._newest, reading) is not None

    def carry(self, mark_ms: int, lease: str, term: str | None) -> bool:
        """Go on without a count, after the one of that lease and leader. False: it was not compared with that for too
        long, and the time that is not sure is lost."""
        newest, at_ms = self._newest, self.steady_ms()
        if newest is None or newest.lease != lease or term not in (None, newest.term) or not self.is_trusted():
            sure_ms = 0
        elif at_ms - newest.after_ms <= UNCOUNTED_MS:
            self.saw(mark_ms)
            return True
        else:
            assert self._offset_ms is not None, "the clock was not set"
            sure_ms = self._offset_ms + newest.after_ms + UNCOUNTED_MS
        self._base = self._newest = None
        self._last_ms = 0
        self._set(max(mark_ms, sure_ms), at_ms)
        return False

    def count_from(self, reading: StopwatchReading) -> None:
        """The first reading of a new count: the time goes on."""
        self._base = self._newest = reading

    def check_is_due(self) -> bool:
        return self._newest is None or not 0 <= self.steady_ms() - self._newest.after_ms < CHECK_MS

    def check(self, mark_ms: int, started_ms: int, reading: StopwatchReading) -> int:
        """Compare with the stopwatch. Returns by how much our clock is too fast; below 0: too slow; 0: neither. A clock
        that was too fast uses only etcd's data afterwards, and is not trusted for RECOVER_MS."""
        base, newest, self._newest = self._base or reading, self._newest or reading, reading
        off_ms = difference_ms(newest, reading) or difference_ms(base, reading) or 0
        if off_ms > 0:
            # Times returned since the last good check may have been too high. They are not returned again.
            self._last_ms = 0
            self._base = reading
            self._distrusted_until_ms = reading.after_ms + RECOVER_MS
            self._set(max(mark_ms, _surely_passed(started_ms, reading)), reading.after_ms)
            return off_ms
        if off_ms < 0:
            self._base, self._distrusted_until_ms = reading, reading.after_ms
        elif reading.after_ms - base.after_ms > BASE_MS:
            self._base = reading
        self._follow_stopwatch(started_ms, reading)
        return off_ms

    def saw(self, mark_ms: int) -> None:
        """Another process decided at this time."""
        with self._lock:
            if mark_ms > self._now_ms():
                self._set(mark_ms, self.steady_ms())

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms()

    def _now_ms(self) -> int:
        assert self._offset_ms is not None, "the clock was not set"
        self._last_ms = max(self._last_ms, self._offset_ms + self.steady_ms())
        return self._last_ms

    def _set(self, now_ms: int, at_ms: int) -> None:
        self._offset_ms = now_ms - at_ms

    def _follow_stopwatch(self, started_ms: int, reading: StopwatchReading) -> None:
        counted_ms = _surely_passed(started_ms, reading)
        if self._offset_ms is not None and counted_ms > self._offset_ms + reading.after_ms:
            self._set(counted_ms, reading.after_ms)


def _surely_passed(started_ms: int, reading: StopwatchReading) -> int:
    """The lower bound of the store's time by the stopwatch. etcd counts a second that has begun. So the bound is the
    time itself in the moment in which the count goes up."""
    return started_ms + max(0, reading.elapsed_s - 1) * SECOND_MS


# What etcd holds for the clock: the time of the last commit, the stopwatch, the note of this boot.

STOPWATCH_S = 10 * 365 * 24 * 3600
BOOT_KEPT_MS = 30 * 24 * 3600 * 1000
COUNT_PAUSE_S = 0.01
COUNT_LOOKS = 150  # for a second and some more
BEHIND_MS = 5_000  # a stopwatch that is so far behind the time of the last commit counts no more


class Started(NamedTuple):
    """The stopwatch, as its key says."""

    revision: int
    at_ms: int  # the store's time
    lease: str
    term: str | None  # None: by dibs up to 0.3

    def is_counting(self, reading: StopwatchReading | None, mark_ms: int) -> bool:
        """Return whether it still counts. It does not after a change of leader, nor when its lease is gone, as in a
        backup that was put back."""
        if reading is None or self.term not in (None, reading.term):
            return False
        return self.at_ms + reading.elapsed_s * SECOND_MS > mark_ms - BEHIND_MS

    def dump(self) -> bytes:
        return encode({"at_ms": self.at_ms, "lease": self.lease, "term": self.term}).encode()


# `time`; the stopwatch; of the note and the format their revisions; the old stopwatch.
ClockState = tuple[int, Started, tuple[int, BootNote | None], tuple[int, int, KeyValue | None]]


class ClockOff(StoreUnavailable):
    """This machine's clock and etcd's run at different speeds. Nothing was decided."""


class Stopwatch:
    """A lease of etcd that nobody renews."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    def start(self) -> str:
        return str(self._client.read(LEASE_GRANT, message(STOPWATCH_S), LeaseAnswer).id)

    def read(self, lease: str) -> tuple[int, str] | None:
        """Whole seconds since its start, with the leader and its term; None if it is gone."""
        found = self._client.read(LEASE_LEFT, message(int(lease)), LeaseAnswer)
        return None if found.left_s is None else (found.granted_s - found.left_s, str(found.term))

    def stop(self, lease: str) -> None:
        """End a stopwatch that nobody will read again. A failure does no harm."""
        with suppress(Refusal, DibsError):
            self._client.read(LEASE_REVOKE, message(int(lease)), bytes, refusals=True)


class EtcdTime:
    """For any thread. `raising` goes into every commit, `looking` into every read."""

    def __init__(
        self,
        client: EtcdClient,
        layout: Layout,
        *,
        stopwatch: Stopwatch | None = None,
        steady_ms: Callable[[], int] = machine.steady_ms,
        wall_ms: Callable[[], int] = machine.wall_ms,
        boot_id: Callable[[], str] = machine.boot_id,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._layout = layout
        self._stopwatch = stopwatch or Stopwatch(client)
        self._wall_ms = wall_ms
        self._boot_id = boot_id
        self._pause = pause
        self._clock = EtcdClock(steady_ms)
        self._lock = allocate_lock()
        self.looking = messages.range_op(
            layout.time, layout.wide + b"\0"
        )  # the time, and beside it the last commit's name and `wide`
        self.trouble: DibsError | None = None
        self._failed = (-1, "")  # when etcd last did not answer `ready`, and what was said
        self.format_before: int | None = None  # when it was opened, 0: there was no store; None: it was not opened

    def ready(self) -> None:
        """Before a read or a commit: see that the clock is set and compared. Raises ClockOff if it is off."""
        if self._clock.is_set and self.trouble is None and not self._clock.check_is_due():
            return
        came_ms = machine.steady_ms()
        with self._lock:
            failed_ms, why = self._failed
            if failed_ms >= came_ms:  # for who came before: its patience was ours
                raise StoreUnavailable(why)
            try:
                if not self._clock.is_set:
                    self._begin()
                elif self._clock.check_is_due():
                    self._check()
            except StoreUnavailable as error:
                self._failed = machine.steady_ms(), error.details
                raise
        if self.trouble is not None:
            raise ClockOff(self.trouble.details)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def saw(self, kvs: list[KeyValue]) -> None:
        """Take the answer to `looking`."""
        if kvs:
            self._clock.saw(int(kvs[0].value))

    def raising(self) -> bytes:
        """The operation that raises the key `time`; it never lowers it."""
        value = b"%016d" % self._clock.now_ms()
        key = self._layout.time
        return messages.inner([messages.put_op(key, value)], [messages.compare_value(key, messages.LESS, value)])

    def forget_old_boots(self) -> int:
        """Delete notes of boots that nobody has used for BOOT_KEPT_MS. Returns how many were deleted."""
        self.ready()
        boots = self._layout.boot("")
        old = []
        for kv in self._client.range(boots, end_of(boots)):
            note = _note(kv)
            if note is None or note.offset_ms + note.reading.after_ms < self.now_ms() - BOOT_KEPT_MS:
                old.append(kv.key)
        for at in range(0, len(old), OPS_MAX):
            self._client.txn([messages.delete_op(key) for key in old[at : at + OPS_MAX]])
        return len(old)

    def _begin(self) -> None:
        state = self._state()
        is_mine = state is None and self._make()
        state = state or self._state()
        if state is None:
            raise StoreUnavailable("The store's keys in etcd were deleted while it was opened. Try again.")
        mark_ms, watch, (note_revision, note), found = state
        if self.format_before is None:
            self.format_before = 0 if is_mine else found[1]
        if not self._keep_format(*found):
            self._begin()
            return
        reading: StopwatchReading | None = self._reading(watch.lease)
        if reading is not None and watch.is_counting(reading, mark_ms):
            if not is_mine and not (note is not None and note.agrees_with(reading)):
                before_ms = reading.after_ms
                reading = self._when_it_counts_up(reading)
                mark_ms += reading.after_ms - before_ms
            is_known = self._clock.begin(mark_ms, watch.at_ms, reading, note)
            if is_known or self._write_note(reading, note_revision):
                return
        else:
            self._count_anew(mark_ms, watch)
        self._begin()  # or another process was first: use its note, or its stopwatch

    def _keep_format(self, revision: int, number: int, old: KeyValue | None) -> bool:
        """Refuse a prefix of a format that this dibs does not read, before anything is written there. One of an older
        format is brought up to this one: programs of older versions are refused from then on, when they start. 0.1.0
        and 0.2.0 look at no number, and would drop what they do not know. They need the stopwatch at its old key, and
        refuse a prefix without it within CHECK_MS. False: the state has changed."""
        keys = self._layout
        formats.refuse_unread(formats.ETCD, number, f"The store below {keys.root.decode()} in etcd")
        if number == FORMAT and old is None:
            return True
        ops = [messages.put_op(keys.format, b"%d" % FORMAT)]
        compares = [messages.compare_revision(keys.format, revision)]
        if old is not None:
            ops += [messages.put_op(keys.stopwatch, old.value), messages.delete_op(keys.old_stopwatch)]
            compares.append(messages.compare_revision(keys.old_stopwatch, old.mod_revision))
        self._client.txn(ops, compares)
        return False

    def _check(self) -> None:
        mark_ms, watch, (note_revision, note), _ = self._known_state()
        reading = self._reading(watch.lease)
        if reading is None or not watch.is_counting(reading, mark_ms):
            if not self._count_anew(mark_ms, watch):
                self._begin()
            return
        if not self._clock.knows(reading):
            self._begin()  # another process has said what the time is
            return
        off_ms = self._clock.check(mark_ms, watch.at_ms, reading)
        if off_ms:
            where = "ahead of" if off_ms > 0 else "behind"
            self.trouble = ClockOff(
                f"This machine's steady clock came {abs(off_ms) / 1000:.1f} s {where} what etcd's leader counted.\n"
                "Nothing is decided here until they run alike for a while: look at the clock source of this machine, "
                "and of etcd's leader."
            )
            self._write_note(reading, note_revision)
            return
        if self._clock.is_trusted():
            self.trouble = None
        is_useless = note is None or difference_ms(note.reading, reading) is None
        if is_useless and not self._write_note(reading, note_revision):
            self._begin()  # another process was first: take its time

    def _state(self) -> ClockState | None:
        """`time`, and the stopwatch, this boot's note and the format with their revisions, the last one with the
        stopwatch at its old key; None: the prefix is not in use."""
        keys = self._layout
        asked = (keys.time, keys.stopwatch, keys.old_stopwatch, keys.boot(self._boot_id()), keys.format)
        answer = self._client.txn([messages.range_op(key) for key in asked])
        time, watch, old, note, number = [each.first for each in answer.ranges]
        watch = watch or old
        if time is None or watch is None:
            return None
        started = decode(watch.value.decode())
        stopwatch = Started(watch.mod_revision, int(started["at_ms"]), str(started["lease"]), started.get("term"))
        noted = (0, None) if note is None else (note.mod_revision, _note(note))
        found = (0, 1, old) if number is None else (number.mod_revision, int(number.value), old)
        return int(time.value), stopwatch, noted, found

    def _known_state(self) -> ClockState:
        state = self._state()
        if state is None:
            raise StoreUnavailable("The store's keys in etcd were deleted while it was open. Start this process again.")
        return state

    def _make(self) -> bool:
        """Begin to use a new prefix. The wall clock is read only here. False: somebody else was first."""
        lease, now_ms = self._stopwatch.start(), self._wall_ms()
        keys, watch = self._layout, Started(0, now_ms, lease, self._read_fresh(lease).term)
        puts = {keys.time: b"%016d" % now_ms, keys.stopwatch: watch.dump(), keys.format: b"%d" % FORMAT}
        made = self._client.txn(
            [messages.put_op(key, value) for key, value in puts.items()],
            [messages.compare_revision(key, 0) for key in puts],
        )
        if not made.succeeded:
            self._stopwatch.stop(lease)
        return made.succeeded

    def _when_it_counts_up(self, reading: StopwatchReading) -> StopwatchReading:
        """The first reading after the stopwatch counted up, which tells the time exactly."""
        for _ in range(COUNT_LOOKS):
            self._pause(COUNT_PAUSE_S)
            found = self._reading(reading.lease)
            if found is None:
                break
            if difference_ms(reading, found) is None or found.elapsed_s != reading.elapsed_s:
                return found
        return reading

    def _reading(self, lease: str) -> StopwatchReading | None:
        before_ms = self._clock.steady_ms()
        found = self._stopwatch.read(lease)
        if found is None:
            return None
        return StopwatchReading(
            before_ms=before_ms, after_ms=self._clock.steady_ms(), elapsed_s=found[0], lease=lease, term=found[1]
        )

    def _read_fresh(self, lease: str) -> StopwatchReading:
        reading = self._reading(lease)
        if reading is None:
            raise StoreUnavailable("A lease that etcd had just granted was gone. Try again.")
        return reading

    def _count_anew(self, mark_ms: int, old: Started) -> bool:
        """Start another stopwatch, which says what the time is. False: another process did so."""
        keys = self._layout
        compares = [messages.compare_revision(keys.stopwatch, old.revision)]
        if not self._clock.carry(max(mark_ms, old.at_ms), old.lease, old.term):
            self._pause(AGREE_MS / 1000)
            mark_ms, found, _, _ = self._known_state()
            if found.revision != old.revision:
                return False
            self._clock.saw(mark_ms)
            compares.append(messages.compare_value(keys.time, messages.EQUAL, b"%016d" % mark_ms))
        now_ms = self._clock.now_ms()
        fresh = self._stopwatch.start()
        reading = self._read_fresh(fresh)
        if self._clock.now_ms() - now_ms > ETCD_CLOCK_MS_MAX:  # nobody could say when it began to count
            self._stopwatch.stop(fresh)
            raise StoreUnavailable("etcd takes long to answer after a change of its leader. Try again.")
        watch = Started(0, now_ms, fresh, reading.term)
        note = messages.put_op(keys.boot(self._boot_id()), self._clock.note(reading))
        is_first = self._client.txn([messages.put_op(keys.stopwatch, watch.dump()), note], compares).succeeded
        if is_first:
            self._clock.count_from(reading)
        self._stopwatch.stop(old.lease if is_first else fresh)
        return is_first

    def _write_note(self, reading: StopwatchReading, revision: int) -> bool:
        """The first process that writes it wins: all of a boot agree to the millisecond. False: another was first."""
        key = self._layout.boot(self._boot_id())
        note, compare = messages.put_op(key, self._clock.note(reading)), messages.compare_revision(key, revision)
        return self._client.txn([note], [compare]).succeeded


def _note(kv: KeyValue) -> BootNote | None:
    """None: another version wrote it, and it is made anew, as one that disagrees."""
    try:
        return BootNote.load(decode(kv.value.decode()))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
