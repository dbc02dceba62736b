"""Turns a commit of the port into commits of git: which refs change, to what, and on which condition.

Every key that was looked at takes part. In a clone git also compares the refs that do not change. A remote compares
only refs that change, so a record that was only read is touched there: it gets a new commit with the same version and
record, which makes the server compare it. The exception is `meta`, which every command reads and few write. It is
compared when the push begins, not in the server's transaction. In between, only the number of another job can move into
the floor, which this job does not look at; its own number moves only with a change of its own ref.

git moves the refs of one step one after the other, those that exist in the order of their names, so one that is killed
leaves half of it: a lock without its claim in the tree, or a claim without an owner in its lock. The rules make both
whole. What they could not see is done in steps of its own: the pages of a tree are made before the tree names them, and
dropped after it has forgotten them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dibs.base.errors import NotAllowed
from dibs.base.ids import new_id
from dibs.core.events import Event
from dibs.core.limits import GIT_CHAIN_MAX, GIT_PAST_MAX, GIT_TRIES_MAX
from dibs.core.records import LOCK_PREFIX, META_KEY, Stored, Tree, lock_key
from dibs.stores.git.entries import BadEntry, Entry, commit_text, new_body, oid_of, parse, tail_of
from dibs.stores.git.refs import Swap
from dibs.stores.git.tips import Tips
from dibs.stores.port import Job, Puts

SEQS_A_MS = 1_000
NAMED_MAX = 16
FIRST, TOGETHER, LAST = range(3)


def part_of(before: Stored | None, after: Stored | None) -> int:
    """The moment of a change: with the others, or before or after them, for the reasons at the top of this file."""
    record = before if after is None else after
    if not isinstance(record, Tree) or not record.page:
        return TOGETHER
    return FIRST if before is None else LAST if after is None else TOGETHER


class CommitPlan:
    """Holds what one commit needs: `swaps`, and what comes `first` and `last`. `made` are the new entries, by tail.
    Without `restarts` no chain is restarted; `anew` says whether one was."""

    def __init__(self, tips: Tips, *, restarts: bool = False) -> None:
        self._tips = tips
        self._refs = tips.refs
        self._restarts = restarts
        self._stamp = tips.time.stamp()
        self._seconds = max(0, tips.time.wall_ms() // 1000)
        self.first: list[Swap] = []
        self.swaps: list[Swap] = []
        self.last: list[Swap] = []
        self.commits: list[bytes] = []
        self.made: dict[str, Entry] = {}
        self.last_seq = 0
        self.anew = False

    def build(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> None:
        tips = {key: self._tips.known.get(tail_of(key)) for key in puts}
        before = {key: tip.stored for key, tip in tips.items() if tip is not None}
        changes = {key: record for key, record in puts.items() if record is not None or before.get(key) is not None}
        numbered = self._number(events, changes)
        # Without a ref the version is from the clock: above those of a ref that was deleted long ago.
        bases = [self._seconds if tip is None else tip.version for key, tip in tips.items() if key in changes]
        version = 1 + max(bases, default=0)
        parts = {key: part_of(before.get(key), record) for key, record in changes.items()}
        # Records that concern several jobs come first: `meta`, sessions, trees. A large step names only some.
        named = sorted(
            [key for key in changes if parts[key] != LAST],
            key=lambda key: (key != META_KEY, key.startswith(LOCK_PREFIX)),
        )[:NAMED_MAX]
        together = {tail_of(key): version for key in named}
        for key, record in changes.items():
            body = new_body(key, self._stamp, version, record)
            if len(changes) > 1 and parts[key] != FIRST:
                body["with"] = {tail: at for tail, at in together.items() if tail != tail_of(key)}
            self._add(key, body, numbered.get(key, []), parts[key])
        for key in [*expect, *[key for key in numbered if key not in expect]]:
            if key not in changes:
                self._compare(key, numbered.get(key, []))
        self.swaps.sort(key=lambda each: each.tail)

    def _number(self, events: Sequence[Event], changes: Puts) -> dict[str, list[Event]]:
        """Events with their numbers, by the key whose commit holds them: their job's, if they have one."""
        homes = [home_of(event, changes) for event in events]
        seqs = [tip.seq for tip in [self._tips.known.get(tail_of(key)) for key in homes] if tip is not None]
        # Two clones that do not know of each other may give the same number to events of different jobs.
        seq = max([self._tips.last_seq, int(self._stamp["wall_ms"]) * SEQS_A_MS, *seqs])
        numbered: dict[str, list[Event]] = {}
        for key, event in zip(homes, events, strict=True):
            seq += 1
            numbered.setdefault(key, []).append(event.replace(seq=seq))
        self.last_seq = seq if events else 0
        return numbered

    def _compare(self, key: str, events: list[Event]) -> None:
        """Let git compare a ref whose record does not change."""
        tail = tail_of(key)
        tip = self._tips.known.get(tail)
        if not events and (self._refs.verifies or key == META_KEY):
            if tip is not None or self._refs.verifies:
                oid = tip.oid if tip is not None else ""
                self.swaps.append(Swap(tail, oid, oid))
            return
        if tip is not None:
            body = {name: value for name, value in tip.body.items() if name not in ("events", "past", "was")}
        else:
            body = new_body(key, self._stamp)
        body["touch"] = new_id()
        self._add(key, body, events)

    def _add(self, key: str, body: dict[str, Any], events: list[Event], part: int = TOGETHER) -> None:
        tip = self._tips.known.get(tail_of(key))
        if events:
            body["events"] = [event.dump() for event in events]
        body["seq"] = events[-1].seq if events else tip.seq if tip is not None else 0
        parent = tip.oid if tip is not None else ""
        body["depth"] = 1 if tip is None else tip.depth + 1
        # A remote may refuse a restarted chain; it is tried again after the same number of changes.
        if tip is not None and self._restarts and tip.depth and tip.depth % GIT_CHAIN_MAX == 0:
            self.anew = True
            self.begin_anew(tip, body, events_of(self._tips, [tip])[-GIT_PAST_MAX:])
            parent = ""
        self.put(tip, parent, body, part)

    @staticmethod
    def begin_anew(tip: Entry, body: dict[str, Any], past: list[Event]) -> None:
        """Make `body` the root of a new chain, which carries the kept history."""
        body["depth"], body["was"] = 1, tip.oid
        if past:
            body["past"] = [event.dump() for event in past]

    def put(self, tip: Entry | None, parent: str, body: dict[str, Any], part: int = TOGETHER) -> None:
        text = commit_text(body, parent, self._refs.tree(), self._seconds)
        oid = oid_of("commit", text, self._refs.algorithm)
        tail = tail_of(body["key"])
        self.commits.append(text)
        old = tip.oid if tip is not None else ""
        (self.first, self.swaps, self.last)[part].append(Swap(tail, old, oid))
        if part == LAST:
            self.swaps.append(Swap(tail, old, old))  # nobody has changed it when the tree forgets it
        self.made[tail] = Entry(oid, parent, body)


def home_of(event: Event, changes: Puts) -> str:
    """The key whose history holds an event."""
    return lock_key(event.ns, event.job) if event.job else next(iter(changes), META_KEY)


# The history of refs: the events in each commit, back to the start of its chain.


def of_job(tips: Tips, after: int, limit: int, job: Job, *, newest: bool) -> list[Event]:
    key = lock_key(*job)
    tips.look([tail_of(key)])
    tip = tips.entry(key)
    found = events_of(tips, [tip]) if tip is not None and tip.seq > after else []
    return _page([event for event in found if (event.ns, event.job) == job], after, limit, newest=newest)


def of_all(tips: Tips, entries: Iterable[Entry], after: int, limit: int, *, newest: bool) -> list[Event]:
    moved = [entry for entry in entries if entry.seq > after]
    if newest:  # each of the newest refs has at least one event
        moved = sorted(moved, key=lambda tip: tip.seq)[-limit:] if limit > 0 else []
    return _page(events_of(tips, moved), after, limit, newest=newest)


def _page(events: list[Event], after: int, limit: int, *, newest: bool) -> list[Event]:
    found = [event for event in events if event.seq > after]
    return found[max(0, len(found) - max(0, limit)) :] if newest else found[: max(0, limit)]


def events_of(tips: Tips, entries: list[Entry]) -> list[Event]:
    oids = tips.refs.chain([entry.oid for entry in entries])
    found: list[Event] = []
    for oid, (kind, raw) in tips.refs.objects(oids).items():
        try:
            entry = parse(oid, None, kind, raw)
        except BadEntry:
            continue  # somebody changed the chain by hand; the commits of dibs still count
        found += [*entry.past, *entry.events]
    return sorted(found, key=_order)


def _order(event: Event) -> tuple[int, str, str]:
    """Sort by number. Events of different jobs may share a number, and all clones must see the same order."""
    return event.seq, event.ns, event.job


def prune(tips: Tips, *, keep: int, before_ms: int) -> int:
    """Restart the chains that hold events to be dropped; the new chains keep the others. See the port."""
    for _ in range(GIT_TRIES_MAX):
        entries = tips.look([""])
        logs = {tail: events_of(tips, [entry]) for tail, entry in entries.items() if entry.seq}
        every = sorted([event for events in logs.values() for event in events], key=_order)
        young = [event for event in every if event.at_ms >= before_ms]
        kept = set(young[max(0, len(young) - keep) :])
        if len(kept) == len(every):
            return 0
        plan = CommitPlan(tips)
        for tail, events in logs.items():
            staying = [event for event in events if event in kept]
            if len(staying) != len(events):
                tip = entries[tail]
                body = {name: value for name, value in tip.body.items() if name not in ("events", "past")}
                plan.begin_anew(tip, body, staying)
                plan.put(tip, "", body)
        tips.refs.keep(plan.commits)
        try:
            if tips.refs.swap(plan.swaps):
                return len(every) - len(kept)
        except NotAllowed:
            return 0  # the remote accepts only fast-forward changes, so history stays
    return 0
