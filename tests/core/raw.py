"""Invariants of the records, independent of the rules: records are read raw and judged by the dumb model."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from dibs.core import events as kinds
from dibs.core.holds.outage_credit import credited_ms
from dibs.core.limits import TICKET_MS
from dibs.core.records import (
    META_KEY,
    SHARED,
    Holder,
    LockRecord,
    Meta,
    SessionRecord,
    Ticket,
    Tree,
    TreeClaim,
    lock_key,
    session_key,
)
from tests.models.history import overtaken
from tests.models.queue import Hold, Place, Run, Wish, World, overlap
from tests.models.replay import ReplayedHold, replay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.memory import MemoryStore

NS = "default"


class Raw(NamedTuple):
    """All records of a store by kind."""

    now_ms: int
    meta: Meta
    locks: dict[str, LockRecord]
    tickets: dict[tuple[str, int], Ticket]
    sessions: dict[str, SessionRecord]
    tree: Tree
    pages: dict[int, Tree]
    events: list[Event]

    def session_live(self, session_id: str | None) -> bool:
        session = self.sessions.get(session_id or "")
        if session is None or session.ended_ms:
            return False
        return self.now_ms < self.credited(session.expires_ms, session.renewed_ms, session.ttl_ms)

    def credited(self, expires_ms: int, renewed_ms: int, span_ms: int) -> int:
        return credited_ms(expires_ms, renewed_ms, span_ms, self.meta.outages)

    def hold_live(self, holder: Holder) -> bool:
        if 0 < holder.ends_ms <= self.now_ms:
            return False
        if holder.session is not None and holder.ephemeral and not self.session_live(holder.session):
            return False
        if holder.relied and self.session_live(holder.session):
            return True
        if not holder.ttl_ms:
            return holder.ephemeral or self.now_ms < holder.expires_ms
        return self.now_ms < self.credited(holder.expires_ms, holder.renewed_ms, holder.ttl_ms)

    def are_related(self, first: Holder, second: Holder) -> bool:
        """Whether the session of one owner is the parent of the other's."""
        pairs = ((first.session, second.session), (second.session, first.session))
        return any(
            old is not None and young in self.sessions and self.sessions[young].parent == old for old, young in pairs
        )

    def ticket_live(self, ticket: Ticket) -> bool:
        if ticket.session is not None and not self.session_live(ticket.session):
            return False
        return self.now_ms < self.credited(ticket.expires_ms, ticket.renewed_ms, TICKET_MS)

    def claims(self) -> list[TreeClaim]:
        return [claim for each in (self.tree, *self.pages.values()) for claim in each.claims]

    def live(self) -> list[tuple[LockRecord, Holder]]:
        return [(lock, each) for lock in self.locks.values() for each in lock.holders if self.hold_live(each)]


def raw_of(store: MemoryStore, now_ms: int) -> Raw:
    records: dict[str, Stored | None] = {key: found.record for key, found in store.scan("", limit=1_000_000)}
    return raw_of_records(records, store.events(0, 1_000_000), now_ms)


def raw_of_records(records: Mapping[str, Stored | None], events: list[Event], now_ms: int) -> Raw:
    meta, tree = records.get(META_KEY), records.get(f"tree/{NS}")
    kept = [record for record in records.values() if record is not None]
    return Raw(
        now_ms,
        meta if isinstance(meta, Meta) else Meta(),
        {each.name: each for each in kept if isinstance(each, LockRecord)},
        {(each.name, each.number): each for each in kept if isinstance(each, Ticket)},
        {each.id: each for each in kept if isinstance(each, SessionRecord)},
        tree if isinstance(tree, Tree) else Tree(ns=NS),
        {each.page: each for each in kept if isinstance(each, Tree) and each.page},
        events,
    )


def wish_of(of: Holder | Ticket, jobs: tuple[str, ...], slots: int, units: int) -> Wish:
    return Wish(
        jobs,
        of.owner,
        of.principal,
        of.lease_id,
        of.ttl_ms,
        shared=of.mode == SHARED,
        slots=slots,
        units=units,
        session=of.session,
        lasting=not of.ephemeral,
        key=of.request_key,
        delay_ms=of.delay_ms,
    )


def world_of(raw: Raw) -> World:
    """The dumb model in the state that these records say: for judging, not for going on."""
    world = World(raw.now_ms)
    for session in raw.sessions.values():
        how = "" if raw.session_live(session.id) else "over"
        run = Run(session.principal, session.owner, session.ttl_ms, raw.now_ms + 1, how, session.parent)
        if session.want is not None:
            want = session.want
            wanted = (want.name, *want.more)
            wish = Wish(wanted, session.owner, session.principal, "", shared=want.mode == SHARED)
            wish.slots, wish.units, wish.session = want.slots, want.units, session.id
            run.want = (wish, want.at_ms)
        world.runs[session.id] = run
    for lock, holder in raw.live():
        numbers = holder.slot_numbers
        wish = wish_of(holder, (lock.name,), lock.slots, len(numbers) or 1)
        world.holds.append(Hold(lock.name, wish, holder.token, raw.now_ms + 1, holder.since_ms, numbers))
        world.about(lock.name).rests_until_ms = lock.delay_until_ms
    came = {(e.job, e.ticket): e.seq for e in raw.events if e.kind == kinds.QUEUED}
    firsts = [t for t in raw.tickets.values() if not t.whole or t.whole[0].name == t.name]
    for ticket in sorted(firsts, key=lambda each: came[each.name, each.number]):
        if raw.ticket_live(ticket):
            jobs = tuple(part.name for part in ticket.whole) or (ticket.name,)
            number = came[ticket.name, ticket.number]
            wish = wish_of(ticket, jobs, ticket.slots, ticket.units)
            world.line.append(Place(wish, number, ticket.since_ms, raw.now_ms, raw.now_ms + 1))
    for lock in raw.locks.values():
        facts = world.about(lock.name)
        facts.rests_until_ms, facts.parked = lock.delay_until_ms, lock.parked
        facts.slots, facts.pool = lock.slots, lock.pooled
        facts.done_until_ms = lock.done.until_ms if lock.done else 0
    return world


def check(raw: Raw) -> None:
    """Everything of this file that must hold at every moment."""
    owners_are_compatible(raw)
    lines_and_tickets_agree(raw)
    sessions_miss_nothing(raw)
    the_tree_agrees(raw)
    tokens_rise(raw.events)
    history_is_what_is_stored(raw)
    nobody_waits_in_a_circle(raw)


def owners_are_compatible(raw: Raw) -> None:
    for lock in raw.locks.values():
        live = [holder for holder in lock.holders if raw.hold_live(holder)]
        for first, second in itertools.combinations(live, 2):
            mixed = first.mode != second.mode and not raw.are_related(first, second)
            assert not mixed, f"{lock.name} is shared and exclusive"
        numbers = [number for holder in lock.holders for number in holder.slot_numbers]
        assert len(numbers) == len(set(numbers)), f"two have one slot of {lock.name}"
        exclusive = [holder for holder in live if holder.mode != SHARED]
        if lock.pooled or (lock.slots == 1 and any(holder.slot_numbers for holder in exclusive)):
            continue  # it is, or was, a pool: `pools_grow_within_their_slots`
        for strangers in itertools.combinations(exclusive, lock.slots + 1):
            pairs = itertools.combinations(strangers, 2)
            related = any(raw.are_related(first, second) for first, second in pairs)
            assert related, f"{lock.name} has more owners than slots"
    for (one, first), (other, second) in itertools.combinations(raw.live(), 2):
        if one.name != other.name and overlap(one.name, other.name):
            same = first.lease_id == second.lease_id or (first.session is not None and first.session == second.session)
            both_shared = first.mode == second.mode == SHARED
            related = raw.are_related(first, second)
            assert same or both_shared or related, f"{one.name} and {other.name} overlap"


def pools_grow_within_their_slots(before: Raw, after: Raw) -> None:
    """The units of a pool's owners are more than its slots only if they were before it had fewer slots."""
    for lock in after.locks.values():
        was = before.locks.get(lock.name, LockRecord(ns=NS, name=lock.name))
        had, has = ({each.token: len(each.slot_numbers) for each in every.holders} for every in (was, lock))
        if lock.pooled and sum(has.values()) > lock.slots:
            assert sum(has.values()) <= sum(had.values()), f"{lock.name} has {has} of {lock.slots} slots"
        for holder in lock.holders:
            if lock.pooled and was.pooled and holder.token not in had and not set(holder.slot_numbers) <= _numbers(was):
                assert holder.slot_numbers, f"{lock.name} has an owner without a slot"
                assert max(holder.slot_numbers) < lock.slots, "a number that the pool does not have"


def _numbers(lock: LockRecord) -> set[int]:
    return {number for holder in lock.holders for number in holder.slot_numbers}


def lines_and_tickets_agree(raw: Raw) -> None:
    placed = [(lock.name, number) for lock in raw.locks.values() for number in lock.line]
    assert len(placed) == len(set(placed))
    assert set(placed) == set(raw.tickets)
    for lock in raw.locks.values():
        assert list(lock.line) == sorted(lock.line), "a line is in the order of its numbers"
        assert len(lock.marks) == 8 * len(lock.line), "a mark for every place"
    in_tree = {(place.name, place.number) for place in raw.tree.line}
    assert len(in_tree) == len(raw.tree.line)
    assert in_tree == {place for place in placed if place[0].startswith(("path:", "repo:"))}
    for ticket in raw.tickets.values():
        for part in ticket.whole:
            other = raw.tickets[part.name, part.number]
            assert (other.whole, other.lease_id) == (ticket.whole, ticket.lease_id), "a part without its whole"
    waits = {(s.id, wait.name, wait.number) for s in raw.sessions.values() for wait in s.waits}
    of_sessions = [t for t in raw.tickets.values() if t.session in raw.sessions]
    assert waits == {(t.session, t.name, t.number) for t in of_sessions}


def sessions_miss_nothing(raw: Raw) -> None:
    for lock, holder in raw.live():
        session = raw.sessions.get(holder.session or "")
        if session is not None and raw.session_live(session.id):
            assert lock_key(NS, lock.name) in session.holds, f"{session_key(session.id)} misses {lock.name}"


def the_tree_agrees(raw: Raw) -> None:
    stored = {
        (lock.name, holder.lease_id, holder.mode)
        for lock in raw.locks.values()
        for holder in lock.holders
        if lock.name.startswith(("path:", "repo:"))
    }
    claims = [(claim.name, claim.lease_id, claim.mode) for claim in raw.claims()]
    assert len(claims) == len(set(claims))
    assert set(claims) == stored
    tree = raw.tree
    assert sorted(tree.pages) == sorted(raw.pages)
    assert list(tree.firsts) == sorted(set(tree.firsts))
    assert len(tree.firsts) == len(tree.pages)
    assert tree.firsts[:1] in ((), ("",))
    assert not tree.pages or all(claim.name.startswith("repo:") for claim in tree.claims)
    for first, after, number in zip(tree.firsts, (*tree.firsts[1:], "\U0010ffff"), tree.pages, strict=False):
        assert raw.pages[number].claims
        assert all(first <= claim.name < after for claim in raw.pages[number].claims)


def tokens_rise(history: list[Event]) -> None:
    highest: dict[str, int] = {}
    for event in history:
        if event.kind == kinds.ACQUIRED:
            assert event.token > highest.get(event.job, 0), "the token did not rise"
            highest[event.job] = event.token


def history_is_what_is_stored(raw: Raw) -> None:
    stored = {
        (NS, lock.name): {
            each.token: ReplayedHold(
                owner=each.owner,
                principal=each.principal,
                token=each.token,
                mode=each.mode,
                attempt=each.attempt,
                metadata=each.metadata,
                checkpoint=each.checkpoint,
            )
            for each in lock.holders
        }
        for lock in raw.locks.values()
        if lock.holders
    }
    assert replay(raw.events) == stored


def nobody_waits_in_a_circle(raw: Raw) -> None:
    """Checks the waiters in lines only. A later grant may make a refused poll part of a circle; the poll is told when
    it asks again. A circle that the passing of time closed is found when that is noticed."""
    unnoticed = any(not raw.hold_live(each) for lock in raw.locks.values() for each in lock.holders)
    unnoticed = unnoticed or not all(raw.ticket_live(each) for each in raw.tickets.values())
    if not unnoticed:
        stuck = world_of(raw).stuck(wants=False)
        assert not stuck, f"{stuck} wait in a circle, and nobody was told"


def nobody_waits_for_nothing(raw: Raw) -> None:
    """Work conservation: after a sweep of what is due, no live place could be served."""
    world = world_of(raw)
    waiting = [place.number for place in world.line]
    world.serve()
    assert waiting == [place.number for place in world.line], "the job is free and its head waits"


def fifo(history: list[Event]) -> None:
    """Nobody is overtaken on the same job by a later place."""
    assert overtaken(history) == []
