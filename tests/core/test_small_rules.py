"""Rules that are one expression: their tables, with the values on both sides of every bound."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.core.claims.inspect import state_of
from dibs.core.claims.several import overlapping_pair
from dibs.core.draft import Draft, View
from dibs.core.events import Event
from dibs.core.holds.capacity import Owners, is_paused, misfit, slots_of, units_of
from dibs.core.holds.closures import longest
from dibs.core.holds.endings import end_hold
from dibs.core.holds.expiry import deadline_ms, live_now, may_go_on
from dibs.core.holds.grants import check_room
from dibs.core.limits import (
    CHECKPOINTS_BYTES_MAX,
    METADATA_BYTES_MAX,
    OUTAGES_KEPT,
    PULSE_KEPT_MS,
    PULSE_LATE_MS,
)
from dibs.core.outcomes import refused_status
from dibs.core.records import (
    EXCLUSIVE,
    META_KEY,
    SHARED,
    Closure,
    Done,
    Outage,
    Pulse,
    SessionRecord,
    Want,
    session_key,
)
from dibs.core.service.credentials import Credential
from dibs.core.successes import LastRun, Success, success_in, success_of
from dibs.core.upkeep.outages import gone_servers, live_servers, remember
from tests.core.make import KEY, acquire, draft, ending, holder, lock, outage

NOW_MS = 100_000


def done(until_ms: int) -> Done:
    return Done(owner="a1", token=1, at_ms=0, until_ms=until_ms)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"holders": (holder(),), "parked": True}, "held"),
        ({"parked": True, "done": done(NOW_MS + 1)}, "parked"),
        ({"done": done(NOW_MS + 1), "delay_until_ms": NOW_MS + 1}, "done"),
        ({"done": done(NOW_MS)}, "free"),
        ({"delay_until_ms": NOW_MS + 1}, "delayed"),
        ({"delay_until_ms": NOW_MS}, "free"),
        ({}, "free"),
    ],
)
def test_the_state_of_a_job_is_one_word(changes: dict[str, Any], state: str) -> None:
    assert state_of(lock(**changes), NOW_MS) == state


def test_an_owner_of_an_older_version_takes_one_slot_though_it_has_no_number() -> None:
    old, two = holder(), holder(slot_numbers=(0, 3))
    assert [units_of(each) for each in ((), (old,), (two,), (old, two))] == [0, 1, 2, 3]
    assert Owners((old, two), ()).free_numbers(3) == (1, 2, 4)
    assert Owners((), ()).free_numbers(0) == ()


@pytest.mark.parametrize(
    ("pooled", "slots", "live", "mode", "asked", "units", "allowed"),
    [
        (True, 3, [(0, 1)], EXCLUSIVE, 0, 1, True),
        (True, 3, [(0, 1)], EXCLUSIVE, 0, 2, False),
        (True, 3, [()], EXCLUSIVE, 0, 1, False),  # an owner from before the pool has the job alone
        (False, 1, [], EXCLUSIVE, 1, 1, True),
        (False, 1, [()], EXCLUSIVE, 1, 1, False),
        (False, 1, [()], SHARED, 1, 1, False),
        (False, 2, [(0,)], EXCLUSIVE, 2, 1, True),
        (False, 2, [(0,)], EXCLUSIVE, 2, 2, False),
        (False, 3, [(0,)], EXCLUSIVE, 2, 1, False),
        (False, 2, [(0,), (1,)], EXCLUSIVE, 2, 1, False),
    ],
)
def test_one_more_owner_fits_or_not(
    pooled: bool, slots: int, live: list[tuple[int, ...]], mode: str, asked: int, units: int, allowed: bool
) -> None:
    owners = tuple(holder(slot_numbers=each) for each in live)
    assert Owners(owners, owners).fits(lock(slots=slots, pooled=pooled), mode, asked, units) == allowed


@pytest.mark.parametrize(
    ("modes", "mode", "slots", "allowed"),
    [
        ([SHARED, SHARED], SHARED, 0, True),
        ([SHARED, EXCLUSIVE], SHARED, 0, False),
        ([SHARED], EXCLUSIVE, 2, False),
        ([EXCLUSIVE], EXCLUSIVE, 2, True),
    ],
)
def test_shared_and_exclusive_owners_do_not_mix(modes: list[str], mode: str, slots: int, allowed: bool) -> None:
    owners = tuple(holder(mode=each) for each in modes)
    assert Owners(owners, owners).fits(lock(slots=2), mode, slots, 1) == allowed


@pytest.mark.parametrize(
    ("pooled", "slots", "asked", "of"), [(True, 4, 2, 4), (True, 0, 2, 0), (False, 4, 2, 2), (False, 4, 0, 1)]
)
def test_a_claim_is_of_as_many_slots_as_its_pool_has_or_it_names(pooled: bool, slots: int, asked: int, of: int) -> None:
    assert slots_of(lock(pooled=pooled, slots=slots), asked) == of
    assert is_paused(lock(pooled=pooled, slots=slots)) == (pooled and slots == 0)


@pytest.mark.parametrize(
    ("pooled", "slots", "ask", "what"),
    [
        (True, 3, {"units": 3}, None),
        (True, 3, {"units": 4}, "units"),
        (True, 0, {"units": 4}, None),  # a pause is no reason
        (True, 3, {"slots": 3}, None),
        (True, 3, {"slots": 2}, "slots"),
        (True, 0, {"slots": 2}, None),
        (True, 3, {"mode": SHARED}, "mode"),
        (False, 3, {"mode": SHARED}, None),
        (False, 1, {"slots": 2, "units": 2}, None),
        (False, 1, {"slots": 2, "units": 3}, "units"),
        (False, 3, {"units": 2}, "units"),
    ],
)
def test_what_never_fits_is_refused_with_the_reason(pooled: bool, slots: int, ask: dict[str, Any], what: str) -> None:
    found = misfit(lock(pooled=pooled, slots=slots), acquire(**ask), NOW_MS)
    assert (None if found is None else found.what) == what


def closure(name: str, until_ms: int, ns: str = "default") -> Closure:
    return Closure(ns=ns, name=name, at_ms=0, until_ms=until_ms, by="op", reason="r")


@pytest.mark.parametrize(
    ("name", "until_ms"),
    [
        ("deploy/", 300),
        ("deploy/web", 300),
        ("deploy", None),
        ("deploys", None),
        ("other", 200),
        ("path:src/a", 400),
        ("path:lib", None),
        ("late", None),
    ],
)
def test_the_closure_that_ends_last_counts(name: str, until_ms: int | None) -> None:
    closures = [
        closure("deploy/", 300),
        closure("deploy/web", 250),
        closure("other", 200),
        closure("other", 900, ns="elsewhere"),
        closure("path:src", 400),
        closure("late", 100),
    ]
    found = longest(closures, "default", name, 100)
    assert (None if found is None else found.until_ms) == until_ms


# Ends of holds.


def session(expires_ms: int, **more: Any) -> SessionRecord:
    made = SessionRecord(
        id="s", principal="p", owner="o", ttl_ms=10, since_ms=0, renewed_ms=0, expires_ms=0, ns="default"
    )
    return made.replace(renewed_ms=expires_ms - 10, expires_ms=expires_ms, **more)


@pytest.mark.parametrize(
    ("hold", "of", "ends_ms"),
    [
        (holder(ttl_ms=50), None, 50),
        (holder(ttl_ms=50, session="s"), session(40), 40),
        (holder(ttl_ms=50, session="s"), session(60), 50),
        (holder(ttl_ms=50, session="s", ephemeral=False), session(40), 50),
        (holder(ttl_ms=50, session="s"), None, 0),
        (holder(ttl_ms=0, session="s"), session(40), 40),
        (holder(ttl_ms=0, session="s"), session(40, ended_ms=30), 30),
        (holder(ttl_ms=0, session="s", ephemeral=False, expires_ms=70), session(40), 70),
        (holder(ttl_ms=50, ends_ms=45), None, 45),
        (holder(ttl_ms=50, ends_ms=55), None, 50),
    ],
)
def test_a_hold_ends_with_its_time_its_session_or_its_ceiling(
    hold: Any, of: SessionRecord | None, ends_ms: int
) -> None:
    made = Draft(View(20, {session_key("s"): of, META_KEY: None}))
    assert deadline_ms(made, hold) == ends_ms


@pytest.mark.parametrize(("ends_ms", "is_over"), [(0, False), (NOW_MS - 1, True), (NOW_MS, True), (NOW_MS + 1, False)])
def test_a_ceiling_is_reached_at_its_very_moment(ends_ms: int, is_over: bool) -> None:
    made = draft(NOW_MS)
    assert (not live_now(made, lock(holder(expires_ms=10**9, ends_ms=ends_ms)))) == is_over
    assert may_go_on(made, holder(ttl_ms=10**9))


@pytest.mark.parametrize(
    ("of", "ephemeral", "goes_on"),
    [
        (None, True, False),
        (None, False, True),
        (session(40), True, True),
        (session(40, ended_ms=30), True, False),
        (session(40, ended_ms=30), False, True),
    ],
)
def test_a_hold_goes_on_with_its_session_unless_it_outlives_it(
    of: SessionRecord | None, ephemeral: bool, goes_on: bool
) -> None:
    made = Draft(View(20, {session_key("s"): of, META_KEY: None}))
    assert may_go_on(made, holder(session="s", ephemeral=ephemeral)) is goes_on


def test_a_session_that_lets_one_of_two_holds_on_a_job_go_is_not_stuck() -> None:
    mine, other = holder(session="s"), holder(session="s", lease_id="lease-2", token=2)
    of = session(40, holds=(KEY,), want=Want(ns="default", name="b", until_ms=90))
    made = Draft(View(20, {session_key("s"): of, META_KEY: None}))
    end_hold(made, lock(mine, other), mine, how="released", at_ms=20)
    kept = made.session("s")
    assert kept is not None
    assert (kept.want, kept.holds) == (None, (KEY,))


# Notes of several owners.


@pytest.mark.parametrize(
    ("what", "old", "new", "others", "room"),
    [
        ("checkpoint", 0, 5, CHECKPOINTS_BYTES_MAX - 5, None),
        ("checkpoint", 0, 6, CHECKPOINTS_BYTES_MAX - 5, 5),
        ("checkpoint", 9, 9, CHECKPOINTS_BYTES_MAX, None),
        ("checkpoint", 9, 10, CHECKPOINTS_BYTES_MAX, 9),
        ("metadata", 0, 5, METADATA_BYTES_MAX - 5, None),
        ("metadata", 0, 6, METADATA_BYTES_MAX - 5, 5),
        ("metadata", 9, 10, METADATA_BYTES_MAX, 9),
    ],
)
def test_what_owners_note_together_has_a_bound_and_what_is_stored_stays(
    what: str, old: int, new: int, others: int, room: int | None
) -> None:
    mine = holder(**{what: "x" * old or None})
    other = holder(lease_id="lease-2", **{what: "y" * others})
    found = check_room(draft(0), lock(mine, other), mine, None, None)
    assert found is None
    texts = {"checkpoint": None, "metadata": None, what: "x" * new}
    found = check_room(draft(0), lock(mine, other), mine, **texts)
    assert (None if found is None else found.room) == room
    assert check_room(draft(0), lock(mine), mine, **texts) is None, "alone it may note what it likes"


# Servers and outages.


def test_a_server_counts_as_up_and_its_pulse_is_kept_up_to_a_bound() -> None:
    pulses = [Pulse(server=f"{ago}", at_ms=NOW_MS - ago) for ago in (PULSE_LATE_MS + 1, PULSE_LATE_MS, 0)]
    assert live_servers(pulses, NOW_MS) == sorted(["0", str(PULSE_LATE_MS)])
    old = [Pulse(server=f"{ago}", at_ms=-ago) for ago in (PULSE_KEPT_MS - 1, PULSE_KEPT_MS)]
    assert gone_servers(old, 0) == (str(PULSE_KEPT_MS),)


def test_too_many_outages_are_kept_as_one_that_says_what_they_lasted() -> None:
    known: tuple[Outage, ...] = ()
    for at in range(OUTAGES_KEPT):
        known = remember(known, outage(100 * at, 100 * at + 10 + at))
    assert len(known) == OUTAGES_KEPT
    more = remember(known, outage(10_000, 10_007))
    assert more[1:] == (*known[2:], outage(10_000, 10_007))
    assert more[0] == Outage(began_ms=0, ended_ms=111, lost_ms=21, longest_ms=11)
    again = remember(more, outage(20_000, 20_001))
    assert (again[0].lost_ms, again[0].longest_ms, again[0].ended_ms) == (33, 12, 212)


@pytest.mark.parametrize(
    ("names", "mode", "pair"),
    [
        (("a", "b"), EXCLUSIVE, None),
        (("path:a", "path:a/b"), EXCLUSIVE, ("path:a", "path:a/b")),
        (("path:a", "path:a/b"), SHARED, None),
        (("path:a", "path:b", "path:b/c"), EXCLUSIVE, ("path:b", "path:b/c")),
        (("a", "path:a", "path:b", "repo:x"), EXCLUSIVE, ("path:a", "repo:x")),
    ],
)
def test_names_that_exclude_each_other_are_reported(
    names: tuple[str, ...], mode: str, pair: tuple[str, str] | None
) -> None:
    assert overlapping_pair(names, mode) == pair


# Words about several jobs, successes, and tokens.


@pytest.mark.parametrize(
    ("statuses", "all_of", "status"),
    [
        (["done", "done"], 0, "done"),
        (["done", "done"], 2, "done"),
        (["done"], 2, "held"),
        (["done", "held"], 0, "held"),
        (["parked"], 0, "parked"),
        (["parked", "done"], 0, "parked"),
        (["parked", "held"], 0, "held"),
        (["parked", "held"], 2, "parked"),
        (["held"], 1, "held"),
    ],
)
def test_the_status_of_several_says_whether_waiting_may_help(statuses: list[str], all_of: int, status: str) -> None:
    assert refused_status(statuses, all_of) == status


MARK = Done(owner="m", token=2, at_ms=20, until_ms=99, result="r")


@pytest.mark.parametrize(
    ("changes", "success"),
    [
        ({}, None),
        ({"done": MARK}, Success(at_ms=20, owner="m", token=2, done=True, result="r")),
        ({"endings": (ending(),)}, Success(at_ms=0, owner="a1", token=1)),
        ({"endings": (ending(uncounted=True), ending(token=5))}, Success(at_ms=0, owner="a1", token=5)),
        ({"endings": (ending(how="failed"),)}, None),
        (
            {"endings": (ending(token=2, done=True),), "done": MARK},
            Success(at_ms=0, owner="a1", token=2, done=True, result="r"),
        ),
        ({"endings": (ending(token=3),), "done": MARK}, Success(at_ms=0, owner="a1", token=3)),
    ],
)
def test_the_last_success_of_a_job_is_in_its_record(changes: dict[str, Any], success: Success | None) -> None:
    assert success_in(lock(**changes)) == success


@pytest.mark.parametrize(("at_ms", "late_ms"), [(None, None), (60, 0), (50, 0), (49, 1)])
def test_a_job_is_overdue_by_the_time_since_its_last_success(at_ms: int | None, late_ms: int | None) -> None:
    success = None if at_ms is None else Success(at_ms=at_ms, owner="o", token=1)
    assert LastRun(now_ms=100, name="a", success=success).late_ms(50) == late_ms


@pytest.mark.parametrize(
    ("ended_ms", "expires_ms", "is_over", "is_live"),
    [(0, 0, False, True), (0, 10, True, True), (0, 11, False, True), (5, 0, True, False)],
)
def test_a_token_is_over_at_its_very_end_and_listed_until_it_is_ended(
    ended_ms: int, expires_ms: int, is_over: bool, is_live: bool
) -> None:
    made = Credential(digest="d", name="n", since_ms=0, by="op", ended_ms=ended_ms, expires_ms=expires_ms)
    assert (made.is_over(10), made.is_live()) == (is_over, is_live)


@pytest.mark.parametrize(
    ("changes", "success"),
    [
        ({}, Success(at_ms=5, owner="o", token=3)),
        ({"done_until_ms": 9, "result": "r"}, Success(at_ms=5, owner="o", token=3, done=True, result="r")),
        ({"uncounted": True}, None),
        ({"kind": "failed"}, None),
    ],
)
def test_a_release_that_counts_is_a_success(changes: dict[str, Any], success: Success | None) -> None:
    event = Event(at_ms=5, kind="released", owner="o", token=3)
    assert success_of(event.replace(**changes)) == success
