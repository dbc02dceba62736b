"""The port's methods on git.

A read always looks at the refs. A commit begins with what was last seen (`tips`), and looks again when git says that a
ref has moved. If the versions are as expected (the ref was only touched), it tries again, else it raises Conflict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dibs.base import clock
from dibs.base.errors import DibsError, NotAllowed, StoreUnavailable
from dibs.base.ids import new_fraction
from dibs.core.events import Event
from dibs.core.limits import GIT_TIDY_BATCH_MAX, GIT_TOMBSTONE_MS, GIT_TRIES_MAX
from dibs.core.records import META_KEY
from dibs.stores.codec import text_of
from dibs.stores.git import plan as history
from dibs.stores.git.branch_push import BranchUpdate
from dibs.stores.git.entries import Entry, tail_of
from dibs.stores.git.location import LOCAL, REMOTE, GitLocation
from dibs.stores.git.plan import CommitPlan, home_of
from dibs.stores.git.refs import LocalRefs, Refs, RemoteRefs, Swap
from dibs.stores.git.times import Clocks
from dibs.stores.git.tips import Tips
from dibs.stores.port import ABSENT, Conflict, Due, Job, Maintenance, Page, Puts, Snapshot, Store
from dibs.stores.waiters import wait_until


class GitStore(Store, Maintenance):
    def __init__(self, location: GitLocation, clocks: Clocks | None = None) -> None:
        self.location = location
        self.capabilities = (LOCAL if location.is_local else REMOTE).replace(poll_ms=location.poll_ms)
        self.refs: Refs = LocalRefs(location) if location.is_local else RemoteRefs(location)
        self.tips = Tips(location, self.refs, clocks)
        self.time = self.tips.time
        if new_fraction() < 1 / 256:  # only few runs check the size of the cache, because it grows slowly
            self.refs.shrink()
        self._riding: tuple[BranchUpdate, Callable[[Puts], bool]] | None = None
        # The newest event of each ref at the last `events` call for all jobs.
        self._listed: dict[str, int] | None = None

    def read(self, keys: Iterable[str]) -> Snapshot:
        wanted = list(keys)
        with self.tips.lock:
            self.tips.look_whole([tail_of(key) for key in wanted])
            found = {key: self.tips.entry(key) for key in wanted}
            records = {key: ABSENT if each is None else self.tips.shown(each) for key, each in found.items()}
            if META_KEY in records and self.tips.tokens.raised:
                records[META_KEY] = self.tips.with_floor(records[META_KEY])
            return Snapshot(now_ms=self.time.now_ms(), records=records)

    def commit(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        with self.tips.lock:
            tails = [tail_of(key) for key in dict.fromkeys([*expect, *[home_of(e, {}) for e in events]])]
            if not (puts or events) or not self.tips.is_whole(tails) or not self.tips.is_as(expect):
                self.tips.look_whole(tails)
            for attempt in range(GIT_TRIES_MAX):
                if attempt:
                    time.sleep(0.005 * attempt * new_fraction())
                    self.tips.look_whole(tails)
                if not self.tips.is_as(expect) or not self.tips.is_above(puts):
                    raise Conflict
                if self._try(expect, puts, events):
                    return self.tips.last_seq
            raise StoreUnavailable(
                f"Other pushes were in the way at {self.location.shown}, although nobody changed these records. Try "
                "again. If this continues, look for lock files of a killed git there."
            )

    def _try(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> bool:
        plan = CommitPlan(self.tips, restarts=True)
        plan.build(expect, puts, events)
        if not plan.made:
            return True
        self.refs.keep(plan.commits)
        if plan.first and not self.refs.swap(plan.first):
            return False
        try:
            return self._swap(plan, puts)
        except NotAllowed:
            if not plan.anew:
                raise
        # The remote accepts only fast-forward changes: then its chain keeps growing.
        plan = CommitPlan(self.tips)
        plan.build(expect, puts, events)
        self.refs.keep(plan.commits)
        return self._swap(plan, puts)

    def _swap(self, plan: CommitPlan, puts: Puts) -> bool:
        rides = self._riding is not None and self._riding[1](puts)
        if not self.refs.swap(plan.swaps, self._riding[0] if rides and self._riding else None):
            return False
        self._riding = None
        self.tips.made(plan.made, plan.last_seq)
        if plan.last:
            with suppress(DibsError):  # pages that no tree names do no harm
                self.refs.swap(plan.last)
        return True

    def _all(self, prefix: str = "") -> list[Entry]:
        kind, slash, _ = prefix.partition("/")
        return list(self.tips.look_whole([f"{kind}/"] if slash else [""]).values())

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Page:
        with self.tips.lock:
            found = [
                each
                for each in self._all(prefix)
                if each.stored is not None
                and each.key.startswith(prefix)
                and each.key > after
                and (not live or each.stored.is_live())
            ]
            found.sort(key=lambda each: each.key)
            return [(each.key, self.tips.shown(each)) for each in found[: max(0, limit)]]

    def due(self, limit: int) -> Due:
        with self.tips.lock:
            shown = [(each.key, self.tips.shown(each).record) for each in self._all()]
            every = [(record.due_ms(), key) for key, record in shown if record is not None]
            dues = sorted((due_ms, key) for due_ms, key in every if due_ms is not None)
            now_ms = self.time.now_ms()
            keys = [key for due_ms, key in dues if due_ms <= now_ms][: max(0, limit)]
            return Due(keys=keys, next_ms=dues[0][0] if dues else None)

    def events(self, after: int, limit: int, job: Job | None = None, *, newest: bool = False) -> list[Event]:
        with self.tips.lock:
            if job is not None:
                return history.of_job(self.tips, after, limit, job, newest=newest)
            entries = self.tips.look([""])
            self._listed = {tail: entry.seq for tail, entry in entries.items()}
            return history.of_all(self.tips, entries.values(), after, limit, newest=newest)

    def watch(self, after: int, timeout_ms: int) -> bool:
        """Looks every `poll_ms`. Numbers follow their writers' clocks: more events of a ref are news, too."""

        def has_news() -> bool:
            entries, listed = self.tips.look([""]), self._listed
            return any(
                entry.seq > after or (listed is not None and entry.seq > listed.get(tail, 0))
                for tail, entry in entries.items()
            )

        def pause_ms(_: int) -> int:
            return int(self.location.poll_ms * (0.75 + new_fraction() / 2))

        return wait_until(has_news, lambda ms: time.sleep(ms / 1000), pause_ms, timeout_ms)

    def prune(self, *, keep: int, before_ms: int) -> int:
        with self.tips.lock:
            return history.prune(self.tips, keep=keep, before_ms=before_ms)

    def size_bytes(self) -> int:
        found = self.refs.objects(set(self.refs.look([""]).values()))
        return sum(len(content) for _, content in found.values())

    def tidy(self) -> dict[str, Any]:
        """Delete old refs: those of deleted records, and of keys that were only looked at. They keep versions and
        history for a week. A ref is deleted only if it did not change since it was checked. Fencing numbers do not
        depend on these refs: those of forgotten jobs are in the store's floor. Returns how many were deleted, and which
        could not be read."""
        removed, refs = 0, self.refs
        with self.tips.lock:
            gone = [(tail, entry) for tail, entry in self.tips.look([""]).items() if entry.stored is None]
            aged = [(self.time.rough_age_ms(entry), tail, entry) for tail, entry in gone]
            oldest = sorted([each for each in aged if each[0] >= GIT_TOMBSTONE_MS], key=lambda each: -each[0])
            old = [Swap(tail, entry.oid, "") for _, tail, entry in oldest]
            while old:
                batch, old = old[:GIT_TIDY_BATCH_MAX], old[GIT_TIDY_BATCH_MAX:]
                if refs.swap(batch):
                    removed += len(batch)
                else:  # somebody changed one of them: delete those that are still old, one by one
                    removed += sum([refs.swap([each]) for each in batch])
            broken = {refs.name(tail): why for tail, why in sorted(self.tips.broken.items())}
            refs.shrink()
        return {"removed": removed, "broken": broken}

    def damaged(self) -> list[str]:
        """The names of refs, as last seen: what they hold says no key that can be relied on. What another version wrote
        is whole."""
        return sorted(map(self.refs.name, self.tips.broken.keys() - self.tips.foreign))

    def set_aside(self, key: str, keep: Callable[[str], None]) -> bool:
        """`key` may be the name of a ref."""
        with self.tips.lock:
            tail = next((tail for tail in self.tips.broken if key in (tail, self.refs.name(tail))), tail_of(key))
            self.tips.look([tail])
            oid = self.refs.look([tail]).get(tail)
            if oid is None or tail not in self.tips.broken or tail in self.tips.foreign:
                return False
            keep(text_of(self.refs.objects({oid})[oid][1]))
            is_gone = self.refs.swap([Swap(tail, oid, "")])
            self.tips.look([tail])
            return is_gone

    def notices(self) -> list[str]:
        return self.tips.notices()

    def probe(self) -> list[dict[str, Any]]:
        from dibs.stores.git.probe import Probe

        with self.tips.lock:
            return Probe(self.tips, clock.steady_ms).run()

    def carry(self, branch: str | None, folder: str, when: Callable[[Puts], bool]) -> dict[str, Any]:
        """Push a branch of the clone at `folder` together with the first commit whose puts satisfy `when`: both or
        neither. Returns what will be pushed."""
        from dibs.stores.git.branch_push import branch_update_for

        self.refs.make()  # this may be the first that the clone hears of dibs
        branch_update = branch_update_for(self.location, branch, folder)
        self._riding = (branch_update, when)
        return {
            "branch": branch_update.name.removeprefix("refs/heads/"),
            "before": branch_update.old or None,
            "after": branch_update.new,
        }

    def close(self) -> None:
        """There is nothing to close."""
