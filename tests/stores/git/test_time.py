"""Clones whose clocks differ: no live owner loses its lease, and dead owners are noticed in the end."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

import pytest

from dibs.base import jsontext
from dibs.base.clock import wall_ms
from dibs.base.errors import StoreUnavailable
from dibs.core.commands import Close, Release
from dibs.core.lease_outcomes import ClosureSet, Released, Renewed
from dibs.core.limits import GIT_SKEW_MS
from dibs.core.outcomes import AlreadyDone, Closed, Granted, Held
from dibs.core.records import META_KEY, Meta
from dibs.engine.coordinator import Coordinator
from dibs.stores.git import repository
from dibs.stores.git.entries import Entry, tail_of
from dibs.stores.git.repository import file_lock
from dibs.stores.git.times import Clocks, StoreTime
from tests.stores.git.harness import TTL_MS, Machine, acquire, granted, pass_time, release, renew, store_at

if TYPE_CHECKING:
    from pathlib import Path

    from dibs.stores.git.store import GitStore
    from tests.stores.git.harness import GitHttp, Remote

pytestmark = pytest.mark.full

TEN_MINUTES_MS = 600_000


@pytest.fixture(params=[-TEN_MINUTES_MS, TEN_MINUTES_MS], ids=["behind", "ahead"])
def machines(request: pytest.FixtureRequest) -> tuple[Machine, Machine]:
    """Two machines; the second's wall clock is ten minutes off."""
    return Machine(1), Machine(2, ahead_ms=request.param)


@pytest.mark.promise("lease:never-early")
def test_a_lease_is_not_taken_early_by_a_clone_whose_clock_is_ten_minutes_off(
    remote: Remote, machines: tuple[Machine, Machine]
) -> None:
    one, two = machines
    first, second = store_at(remote.clone("one"), machine=one), store_at(remote.clone("two"), machine=two)
    granted(first, "job", "one")
    for _ in range(5):
        held = acquire(second, "job", "two")
        assert isinstance(held, Held)
        assert held.blockers[0].holder.owner == "one"
        pass_time(machines, TTL_MS // 5)
    # It was seen as soon as it was there: its time is over for everybody at the same moment.
    taken = acquire(second, "job", "two")
    assert isinstance(taken, Granted)
    assert taken.previous is not None
    assert (taken.previous.owner, taken.previous.how) == ("one", "expired")
    assert isinstance(acquire(first, "job", "one"), Held)


def test_a_lease_that_is_renewed_is_never_taken(remote: Remote, machines: tuple[Machine, Machine]) -> None:
    one, two = machines
    first, second = store_at(remote.clone("one"), machine=one), store_at(remote.clone("two"), machine=two)
    lease = granted(first, "job", "one").lease
    for _ in range(8):
        pass_time(machines, TTL_MS // 2)
        assert isinstance(renew(first, "job", lease.lease_id), Renewed)
        assert isinstance(acquire(second, "job", "two"), Held)
    assert isinstance(release(first, "job", lease.lease_id), Released)
    assert isinstance(acquire(second, "job", "two"), Granted)


def test_a_newcomer_waits_for_one_whole_time_from_when_it_first_looked(
    remote: Remote, machines: tuple[Machine, Machine]
) -> None:
    one, two = machines
    granted(store_at(remote.clone("one"), machine=one), "job", "one")
    pass_time(machines, TTL_MS - 1_000)
    clone = remote.clone("two")
    assert isinstance(acquire(store_at(clone, machine=two), "job", "two"), Held)
    pass_time(machines, TTL_MS - 1_000)
    # A process of its own each time: when the record was first seen is kept between them.
    assert isinstance(acquire(store_at(clone, machine=two), "job", "two"), Held)
    pass_time(machines, 1_000)
    assert isinstance(acquire(store_at(clone, machine=two), "job", "two"), Granted)


def test_what_is_dead_for_longer_than_clocks_may_differ_is_taken_at_once(
    remote: Remote, machines: tuple[Machine, Machine]
) -> None:
    one, two = machines
    granted(store_at(remote.clone("one"), machine=one), "job", "one")
    pass_time(machines, TTL_MS + GIT_SKEW_MS + TEN_MINUTES_MS)
    assert isinstance(acquire(store_at(remote.clone("two"), machine=two), "job", "two"), Granted)


def test_the_skew_that_is_allowed_for_can_be_set(remote: Remote) -> None:
    one, two = Machine(1), Machine(2)
    granted(store_at(remote.clone("one"), machine=one), "job", "one")
    pass_time((one, two), TTL_MS + 30_000)
    clone = remote.clone("two")
    assert isinstance(acquire(store_at(clone, "git:origin?skew=1m", two), "job", "two"), Held)
    assert isinstance(acquire(store_at(clone, "git:origin?skew=20s", two), "job", "two"), Granted)


def test_clones_on_one_machine_agree_to_the_millisecond_though_the_wall_clock_is_stepped_between(
    remote: Remote,
) -> None:
    machine = Machine()
    first = store_at(remote.clone("one"), machine=machine)
    machine.clock.step_wall(1_500)  # little enough to be told from another machine's clock
    second = store_at(remote.clone("two"), machine=machine)
    granted(first, "job", "one")
    pass_time([machine], TTL_MS - 1)
    assert isinstance(acquire(second, "job", "two"), Held)
    pass_time([machine], 1)
    assert isinstance(acquire(second, "job", "two"), Granted)


@pytest.mark.promise("lease:never-early")
def test_machines_woken_from_one_snapshot_are_told_apart(remote: Remote) -> None:
    """The same name of the boot, and steady clocks that have nothing to do with each other."""
    one, two = Machine(1), Machine(1)
    two.clock.advance(3_600_000)
    two.clock.step_wall(-3_600_000)
    granted(store_at(remote.clone("one"), machine=one), "job", "one")
    clone = remote.clone("two")
    assert isinstance(acquire(store_at(clone, machine=two), "job", "two"), Held)
    pass_time((one, two), TTL_MS)
    assert isinstance(acquire(store_at(clone, machine=two), "job", "two"), Granted)


def test_after_a_reboot_with_the_clock_set_back_nobody_is_robbed(remote: Remote) -> None:
    machine, clone = Machine(), remote.clone("one")
    lease = granted(store_at(clone, machine=machine), "job", "one").lease
    before_ms = store_at(clone, machine=machine).read(()).now_ms
    machine.clock.reboot()
    machine.clock.step_wall(-86_400_000)
    store = store_at(clone, machine=machine)
    assert store.read(()).now_ms >= before_ms
    assert isinstance(acquire(store, "job", "two"), Held)
    assert isinstance(renew(store, "job", lease.lease_id), Renewed)


HOUR_MS = 3_600_000


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("told", [True, False], ids=["the remote tells the time", "it does not"])
@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS], ids=["behind", "ahead"])
@pytest.mark.parametrize("who", ["reader", "writer"])
def test_a_clone_whose_clock_is_an_hour_off_goes_by_what_it_watched(
    remote: Remote, who: str, ahead_ms: int, told: bool
) -> None:
    one = Machine(1, ahead_ms=ahead_ms if who == "writer" else 0, told=told)
    two = Machine(2, ahead_ms=ahead_ms if who == "reader" else 0, told=told)
    granted(store_at(remote.clone("one"), machine=one), "job", "one")
    pass_time((one, two), 1_000)
    second = store_at(remote.clone("two"), machine=two)
    assert isinstance(acquire(second, "job", "two"), Held)
    pass_time((one, two), TTL_MS - 1)
    assert isinstance(acquire(second, "job", "two"), Held)
    pass_time((one, two), 1)
    assert isinstance(acquire(second, "job", "two"), Granted)


def test_where_the_remote_gives_no_time_the_operator_may_state_how_far_clocks_are_apart(
    remote: Remote,
) -> None:
    one, two = Machine(1, told=False), Machine(2, told=False)
    granted(store_at(remote.clone("one"), machine=one), "job", "one")
    pass_time((one, two), TTL_MS + 60_000)
    clone = remote.clone("two")
    assert isinstance(acquire(store_at(clone, machine=two), "job", "two"), Held)
    assert isinstance(acquire(store_at(clone, "git:origin?skew=1m", two), "job", "two"), Granted)


def test_a_wall_clock_set_forward_on_the_same_machine_ends_no_lease(remote: Remote) -> None:
    machine = Machine()
    granted(store_at(remote.clone("one"), machine=machine), "job", "one")
    machine.clock.step_wall(HOUR_MS)
    machine.remote_ms += HOUR_MS  # a remote on this machine's own file system
    assert isinstance(acquire(store_at(remote.clone("two"), machine=machine), "job", "two"), Held)


def _real(ahead_ms: int, name: str) -> Machine:
    """This machine's clocks, off by so much, and the remote's own clock."""
    machine = Machine()
    machine.clocks = lambda: Clocks(wall_ms=lambda: wall_ms() + ahead_ms, boot_id=lambda: name)  # type: ignore[method-assign]
    return machine


@pytest.mark.promise("lease:never-early")
@pytest.mark.parametrize("by", ["http", "file"])
def test_the_remotes_own_clock_shows_whose_is_wrong(remote: Remote, request: pytest.FixtureRequest, by: str) -> None:
    """The time of day in the server's answers, or of its file system."""
    if by == "http":
        request.getfixturevalue("http")
    granted(store_at(remote.clone("one"), machine=_real(0, "one")), "job", "one")
    ahead = store_at(remote.clone("two"), machine=_real(HOUR_MS, "two"))
    assert isinstance(acquire(ahead, "job", "two"), Held)
    checks = {each["check"]: each for each in ahead.probe()}
    assert not checks["clocks"]["ok"]
    assert "ahead of the remote's" in checks["clocks"]["says"]
    good = store_at(remote.clone("three"), machine=_real(0, "three"))
    assert isinstance(acquire(good, "job", "three"), Held)
    assert {each["check"]: each["ok"] for each in good.probe()}["clocks"]


def test_a_lease_long_dead_by_the_servers_clock_is_taken_at_once(remote: Remote, http: GitHttp) -> None:
    granted(store_at(remote.clone("one"), machine=_real(0, "one")), "job", "one")
    later_ms = TTL_MS + GIT_SKEW_MS + 10_000
    http.ahead_ms = later_ms
    assert isinstance(acquire(store_at(remote.clone("two"), machine=_real(later_ms, "two")), "job", "two"), Granted)


def foreign(key: str, nonce: str) -> Entry:
    """A record that another machine put."""
    stamp = {"now_ms": 1, "wall_ms": 1, "steady_ms": 1, "clock": "another machine's"}
    return Entry("", "", {"key": key, "version": 1, "record": None, "nonce": nonce, "stamp": stamp})


@pytest.mark.promise("session")
@pytest.mark.fault("F-080")
def test_what_was_watched_is_not_forgotten_when_very_many_other_records_are_seen(tmp_path: Path) -> None:
    machine = Machine(told=False)
    watched = foreign("lock/default/watched", "one")
    tail = tail_of(watched.key)
    StoreTime(str(tmp_path), machine.clocks(), GIT_SKEW_MS).notice([tail], {tail: watched})
    machine.advance(240_000)
    others = {tail_of(each.key): each for each in (foreign(f"lock/default/{n}", str(n)) for n in range(9_000))}
    watch = StoreTime(str(tmp_path), machine.clocks(), GIT_SKEW_MS)
    began_s = time.process_time()
    watch.notice(["lock/"], {**others, tail: watched})
    assert time.process_time() - began_s < 2.0
    assert watch.age_ms(watched) == 240_000
    assert watch.age_ms(next(iter(others.values()))) == 0
    # One sight for each ref: what is gone or was replaced is not kept.
    left = dict(list(others.items())[:10])
    later = {tail: foreign(watched.key, "two")}
    watch.notice([""], {**left, **later})
    kept = jsontext.decode((tmp_path / "times.json").read_text())["seen"]
    assert {name: nonce for name, (nonce, _) in kept.items()} == {
        name: each.nonce for name, each in {**left, **later}.items()
    }


@pytest.mark.fault("F-083")
def test_a_process_that_is_stopped_in_its_lock_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "LOCKED_MS_MAX", 100)
    first, second = file_lock(str(tmp_path), "times.lock"), file_lock(str(tmp_path), "times.lock")
    with first, pytest.raises(StoreUnavailable, match="Another process has"), second:
        pass
    with file_lock(str(tmp_path), "times.lock"):
        pass

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with (
        pytest.raises(StoreUnavailable, match="cannot be locked: No locks available"),
        file_lock(str(tmp_path), "times.lock"),
    ):
        pass


HOUR_MS = 3_600_000


def close(store: GitStore, name: str) -> None:
    command = Close(ns="default", name=name, principal="ops", length_ms=HOUR_MS, reason="why")
    assert isinstance(Coordinator(store).one(command), ClosureSet)


def ends_in_ms(store: GitStore, name: str) -> int:
    seen = store.read((META_KEY,))
    meta = seen.records[META_KEY].record
    assert isinstance(meta, Meta)
    (closure,) = [each for each in meta.closures if each.name == name]
    return closure.until_ms - seen.now_ms


@pytest.mark.promise("closed")
@pytest.mark.fault("F-423")
@pytest.mark.parametrize("told", [False, True])
def test_a_closure_ends_when_it_was_to_end_however_many_machines_look_and_write(remote: Remote, told: bool) -> None:
    machines = [Machine(number, told=told) for number in range(1, 4)]
    stores = [store_at(remote.clone(f"clone-{at}"), machine=machine) for at, machine in enumerate(machines)]
    close(stores[0], "deploy/")
    left_ms = HOUR_MS
    for number, store in enumerate(stores):
        pass_time(machines, 15 * 60_000)
        left_ms -= 15 * 60_000
        assert abs(ends_in_ms(store, "deploy/") - left_ms) <= 2_000
        close(store, f"other-{number}")
        for reader in stores:
            assert abs(ends_in_ms(reader, "deploy/") - left_ms) <= 2_000
    assert isinstance(acquire(stores[2], "deploy/web", "two"), Closed)
    pass_time(machines, left_ms + 2_000)
    for store in stores:
        assert isinstance(acquire(store, f"deploy/{id(store)}", "two"), Granted)


@pytest.mark.fault("F-423")
def test_a_done_mark_lasts_as_long_as_was_said_for_a_machine_that_looks_late(remote: Remote) -> None:
    one, two = Machine(1, told=False), Machine(2, told=False)
    first, second = store_at(remote.clone("one"), machine=one), store_at(remote.clone("two"), machine=two)
    lease = granted(first, "job", "one").lease
    done = Release(ns="default", name="job", principal="p", lease_id=lease.lease_id, done_ms=HOUR_MS)
    assert isinstance(Coordinator(first).one(done), Released)
    pass_time((one, two), HOUR_MS - 60_000)
    assert isinstance(acquire(second, "job", "two"), AlreadyDone)
    pass_time((one, two), 60_000)
    assert isinstance(acquire(second, "job", "two"), Granted)
