"""The last successes of jobs: read from the store, and kept up to date for a few that metrics name."""

from __future__ import annotations

from dibs.core.limits import HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX
from dibs.core.records import LockRecord, lock_key
from dibs.core.successes import LastRun, Success, success_in, success_of
from dibs.engine.queries import with_live_owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dibs.core.events import Event
    from dibs.stores.port import Store


def last_run(store: Store, ns: str, name: str) -> LastRun:
    """The last success of a job: in its record, which is dropped after a day idle and remembers a few holds, else in
    its newest HISTORY_PAGE_MAX events."""
    key = lock_key(ns, name)
    read = store.read((key,))
    found, now_ms = read.records[key].record, read.now_ms
    run = LastRun(now_ms=now_ms, name=name)
    if isinstance(found, LockRecord):
        at_ms, (lock,) = with_live_owners(store, [found]) if found.holders else (now_ms, [found])
        run = run.replace(now_ms=max(now_ms, at_ms), success=success_in(lock))
        if lock.holders:
            run = run.replace(owner=lock.holders[0].owner, held_since_ms=lock.holders[0].since_ms)
    known = run.success
    if known is None or (known.done and known.result is None):  # the mark with its result may be gone
        older = _in_history(store, ns, name)
        if older is not None and (known is None or older.at_ms >= known.at_ms):
            run = run.replace(success=older)
    if run.success is None:
        first = store.events(0, 1)
        run = run.replace(since_ms=first[0].at_ms if first else None)
    return run


def _in_history(store: Store, ns: str, name: str) -> Success | None:
    for most in (HISTORY_PAGE_DEFAULT, HISTORY_PAGE_MAX):
        events = store.events(0, most, (ns, name), newest=True)
        for event in reversed(events):
            success = success_of(event)
            if success is not None:
                return success
        if len(events) < most:
            return None
    return None


class Successes:
    """The time of the last success of each of these jobs (namespace, name); 0: none is on record."""

    def __init__(self, jobs: Iterable[tuple[str, str]]) -> None:
        self.at_ms = dict.fromkeys(jobs, 0)

    def begin(self, store: Store) -> None:
        for job in self.at_ms:
            success = last_run(store, *job).success
            if success is not None:
                self._note(job, success.at_ms)

    def heard(self, events: Sequence[Event]) -> None:
        """Take note of what a commit wrote, here or elsewhere. Hearing of it twice does no harm."""
        for event in events:
            if (event.ns, event.job) in self.at_ms and success_of(event) is not None:
                self._note((event.ns, event.job), event.at_ms)

    def _note(self, job: tuple[str, str], at_ms: int) -> None:
        self.at_ms[job] = max(self.at_ms[job], at_ms)
