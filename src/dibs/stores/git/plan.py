"""Turns a commit of the port into commits of git: which refs change, to what, and on which condition.

Every key that was looked at takes part. In a clone git also compares the refs that do not change. A remote compares
only refs that change, so a record that was only read is touched there: it gets a new commit with the same version and
record, which makes the server compare it. The exception is `meta`, which every command reads and few write. It is
compared when the push begins, not in the server's transaction. In between, only the number of another job can move into
the floor, which this job does not look at; its own number moves only with a change of its own ref.
"""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.core.keys import LOCK_PREFIX, META_KEY, lock_key
from dibs.core.limits import GIT_CHAIN_MAX, GIT_PAST_MAX
from dibs.stores.git.entries import FORMAT, Entry, commit_text, dumped, oid_of, tail_of
from dibs.stores.git.refs import Swap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.git.refs import Refs
    from dibs.stores.git.times import StoreTime

SEQS_A_MS = 1_000
NAMED_MAX = 16


class CommitPlan:
    """What one commit needs. `made` are the new entries, by tail. `past` returns the events to keep when a chain is
    restarted; without it no chain is, and `anew` says whether one was."""

    def __init__(
        self,
        refs: Refs,
        time: StoreTime,
        tips: Mapping[str, Entry | None],
        past: Callable[[Entry], list[Event]] | None,
    ) -> None:
        self._refs = refs
        self._tips = tips
        self._past = past
        self._stamp = time.stamp()
        self._seconds = max(0, time.wall_ms() // 1000)
        self.swaps: list[Swap] = []
        self.commits: list[bytes] = []
        self.made: dict[str, Entry] = {}
        self.last_seq = 0
        self.anew = False

    def build(
        self,
        expect: Mapping[str, int],
        puts: Mapping[str, Stored | None],
        events: Sequence[Event],
        after_seq: int,
    ) -> None:
        changes = {
            key: record for key, record in puts.items() if record is not None or self._stored(key) is not None
        }
        told = self._number(events, changes, after_seq)
        version = 1 + max([self._base(key) for key in changes], default=0)
        # Records that concern several jobs come first: `meta`, sessions, trees. A large step names only some.
        named = sorted(changes, key=lambda key: (key != META_KEY, key.startswith(LOCK_PREFIX)))[:NAMED_MAX]
        together = {tail_of(key): version for key in named}
        for key, record in changes.items():
            body = {
                "dibs": FORMAT,
                "key": key,
                "version": version,
                "record": None if record is None else record.dump(),
                "nonce": new_id(),
                "stamp": self._stamp,
            }
            if len(changes) > 1:
                body["with"] = {tail: at for tail, at in together.items() if tail != tail_of(key)}
            self._add(key, body, told.get(key, []))
        for key in [*expect, *[key for key in told if key not in expect]]:
            if key not in changes:
                self._look_at(key, told.get(key, []))

    def _number(
        self, events: Sequence[Event], changes: Mapping[str, Stored | None], after_seq: int
    ) -> dict[str, list[Event]]:
        """Events with their numbers, by the key whose commit holds them: their job's, if they have one."""
        homes = [home_of(event, changes) for event in events]
        seqs = [tip.seq for tip in [self._tips.get(tail_of(key)) for key in homes] if tip is not None]
        # Two clones that do not know of each other may give the same number to events of different jobs.
        seq = max([after_seq, int(self._stamp["wall_ms"]) * SEQS_A_MS, *seqs])
        told: dict[str, list[Event]] = {}
        for key, event in zip(homes, events, strict=True):
            seq += 1
            told.setdefault(key, []).append(event.replace(seq=seq))
        self.last_seq = seq if events else 0
        return told

    def _stored(self, key: str) -> Stored | None:
        tip = self._tips.get(tail_of(key))
        return tip.stored if tip is not None else None

    def _base(self, key: str) -> int:
        """The version before. For a key without a ref, a version from the clock: it is above the versions of a ref that
        was deleted long ago."""
        tip = self._tips.get(tail_of(key))
        return tip.version if tip is not None else self._seconds

    def _look_at(self, key: str, events: list[Event]) -> None:
        tail = tail_of(key)
        tip = self._tips.get(tail)
        if not events and (self._refs.verifies or key == META_KEY):
            if tip is not None or self._refs.verifies:
                oid = tip.oid if tip is not None else ""
                self.swaps.append(Swap(tail, oid, oid))
            return
        if tip is not None:
            body = {name: value for name, value in tip.body.items() if name not in ("events", "past", "was")}
        else:
            body = {"dibs": FORMAT, "key": key, "version": 0, "record": None, "nonce": new_id()}
            body["stamp"] = self._stamp
        body["touch"] = new_id()
        self._add(key, body, events)

    def _add(self, key: str, body: dict[str, Any], events: list[Event]) -> None:
        tip = self._tips.get(tail_of(key))
        if events:
            body["events"] = dumped(events)
        seq = events[-1].seq if events else tip.seq if tip is not None else 0
        body["seq"] = seq
        parent = tip.oid if tip is not None else ""
        body["depth"] = 1 if tip is None else tip.depth + 1
        # A remote may refuse a restarted chain; it is tried again after the same number of changes.
        if tip is not None and self._past is not None and tip.depth and tip.depth % GIT_CHAIN_MAX == 0:
            self.anew = True
            self.begin_anew(tip, body, self._past(tip)[-GIT_PAST_MAX:])
            parent = ""
        self.put(tip, parent, body)

    @staticmethod
    def begin_anew(tip: Entry, body: dict[str, Any], past: list[Event]) -> None:
        """Make `body` the root of a new chain, which carries the kept history."""
        body["depth"], body["was"] = 1, tip.oid
        if past:
            body["past"] = dumped(past)

    def put(self, tip: Entry | None, parent: str, body: dict[str, Any]) -> None:
        """Replace `tip` with a commit with this body."""
        text = commit_text(body, parent, self._refs.tree(), self._seconds)
        oid = oid_of("commit", text, self._refs.algorithm)
        tail = tail_of(body["key"])
        self.commits.append(text)
        self.swaps.append(Swap(tail, tip.oid if tip is not None else "", oid))
        self.made[tail] = Entry(oid, parent, body)


def home_of(event: Event, changes: Mapping[str, Stored | None]) -> str:
    """The key whose history holds an event."""
    if event.job:
        return lock_key(event.ns, event.job)
    return next(iter(changes), META_KEY)
