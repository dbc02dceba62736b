"""Conditions that only the place of the refs can hold: what was read must not change before what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.events import Event
from dibs.core.outcomes import Granted, Held
from dibs.core.records import META_KEY, Meta
from dibs.stores.port import Conflict
from dibs.testing.contract_base import event, key_of, lock, put, versions
from tests.stores.git.harness import TTL_MS, Machine, Remote, acquire, granted, pass_time, store_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.stores.git.store import GitStore


def overtaken(store: GitStore, first: Callable[[], object]) -> None:
    """Let something happen right before the next push of `store`, when all is checked and ready."""
    send = store.refs.swap
    waiting = [first]

    def swap(swaps: Any, branch_update: Any = None) -> bool:
        if waiting:
            waiting.pop()()
        return send(swaps, branch_update)

    store.refs.swap = swap  # type: ignore[method-assign]


@pytest.fixture(params=["git:", "git:origin"])
def pair(request: pytest.FixtureRequest, remote: Remote) -> tuple[GitStore, GitStore]:
    """Two connections to one place."""
    folders = [remote.clone("one")] * 2 if request.param == "git:" else [remote.clone("one"), remote.clone("two")]
    machine = Machine()
    return store_at(folders[0], request.param, machine), store_at(folders[1], request.param, machine)


@pytest.mark.promise("same-answer")
@pytest.mark.parametrize("there", [True, False], ids=["there", "absent"])
def test_what_was_only_read_is_compared_when_the_rest_is_written(pair: tuple[GitStore, GitStore], there: bool) -> None:
    one, two = pair
    if there:
        put(one, lock("read"))
    expect = versions(one, key_of("read"), key_of("written"))
    overtaken(one, lambda: put(two, lock("read", token=2)))
    with pytest.raises(Conflict):
        one.commit(expect, {key_of("written"): lock("written")}, [event("written")])
    assert two.read([key_of("written")]).records[key_of("written")].version == 0


def test_two_that_each_read_what_the_other_writes_do_not_both_go_through(
    pair: tuple[GitStore, GitStore],
) -> None:
    one, two = pair
    expect = versions(one, key_of("a"), key_of("b"))
    overtaken(one, lambda: two.commit(versions(two, *expect), {key_of("b"): lock("b")}, ()))
    with pytest.raises(Conflict):
        one.commit(expect, {key_of("a"): lock("a")}, ())


def test_claims_of_different_jobs_are_not_in_each_others_way(remote: Remote) -> None:
    """Everybody reads `meta`; nobody has to push twice for it."""
    machine = Machine()
    one, two = (store_at(remote.clone(name), machine=machine) for name in ("one", "two"))
    put(one, lock("x"))
    one.commit(versions(one, META_KEY), {META_KEY: Meta(token_floor=3)}, ())
    pushed: list[bool] = []
    send = one.refs.swap

    def swap(swaps: Any, branch_update: Any = None) -> bool:
        if not pushed:
            granted(two, "theirs", "two")
        pushed.append(send(swaps, branch_update))
        return pushed[-1]

    one.refs.swap = swap  # type: ignore[method-assign]
    assert granted(one, "mine", "one").lease.token == 4
    assert pushed == [True]


@pytest.mark.promise("token:rises")
def test_a_job_put_away_meanwhile_is_noticed_though_meta_is_not_locked(remote: Remote) -> None:
    """Its number moved into the floor in one step with its record: who saw only half of that decides again."""
    machine = Machine()
    one, two = (store_at(remote.clone(name), machine=machine) for name in ("one", "two"))
    put(two, lock("job", token=7))
    stale = one.read([META_KEY]).records[META_KEY].version
    found = versions(two, META_KEY, key_of("job"))
    two.commit(found, {META_KEY: Meta(token_floor=7), key_of("job"): None}, ())
    gone = one.read([key_of("job")]).records[key_of("job")].version  # the new one, and `meta` is still the old
    with pytest.raises(Conflict):
        one.commit({META_KEY: stale, key_of("job"): gone}, {key_of("job"): lock("job", token=1)}, ())


def test_who_only_looks_does_not_make_a_lease_younger(remote: Remote) -> None:
    machines = [Machine(number) for number in range(3)]
    owner, looker, next_ = (store_at(remote.clone(f"m{m}"), machine=machines[m]) for m in range(3))
    granted(owner, "job", "owner")
    assert isinstance(acquire(next_, "job", "next"), Held)
    before = remote.refs()
    for _ in range(4):
        pass_time(machines, TTL_MS // 4)
        expect = versions(looker, key_of("job"), key_of("other"))
        looker.commit(expect, {key_of("other"): lock("other")}, ())
        assert isinstance(owner.read([key_of("job")]).records[key_of("job")].version, int)
    assert all(remote.refs()[name] != oid for name, oid in before.items())  # it was touched
    assert isinstance(acquire(next_, "job", "next"), Granted)


def test_news_of_a_clone_whose_clock_is_behind_is_news(remote: Remote) -> None:
    ahead, behind = Machine(1, ahead_ms=600_000), Machine(2)
    one, two = store_at(remote.clone("one"), machine=ahead), store_at(remote.clone("two"), machine=behind)
    put(one, lock("a"), events=(event("a"),))
    seen = one.events(0, 1, newest=True)[-1].seq
    put(two, lock("b"), events=(event("b"),))
    assert two.events(0, 10, ("default", "b"))[-1].seq < seen
    assert one.watch(seen, 20_000)


def test_an_event_that_is_about_no_job_is_kept_as_well(pair: tuple[GitStore, GitStore]) -> None:
    one, two = pair
    for store in (one, two, one):
        store.commit({}, {}, [Event(at_ms=1, kind="outage", began_ms=1)])
    found = two.events(0, 10)
    assert [each.kind for each in found] == ["outage"] * 3
    assert len({each.seq for each in found}) == 3
