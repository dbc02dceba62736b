"""The tooz driver: tooz's own tests, and what they do not try."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tooz import ToozError, coordination

import dibs
from dibs.base.clock import steady_ms
from dibs.contrib.tooz import DibsLock
from tests.programs import ROOT, WAIT_S_MAX, ServerProcess, clean_env, start_program, wait_until, wait_until_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Coordinators = Callable[..., coordination.CoordinationDriver]

pytestmark = pytest.mark.full

# It asks for one of four drivers of tooz by class, because it calls a private method of theirs.
NOT_FOR_US = {"test_watch_join_group_disappear"}
COORDINATION, PARTITIONER = "tooz.tests.test_coordination", "tooz.tests.test_partitioner"


def own_tests(folder: Path, url: str, *modules: str, **env: str) -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugins.contrib.tooz_suite", url, *modules],
        cwd=ROOT,
        env=clean_env(folder, **env),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_all_passed(results: list[dict[str, str]], at_least: int) -> None:
    assert not [each for each in results if each["how"] == "failed"]
    assert {each["test"] for each in results if each["how"] == "skipped"} == NOT_FOR_US
    assert len(results) >= at_least


def test_tooz_own_tests_pass_on_a_file(tmp_path: Path) -> None:
    assert_all_passed(own_tests(tmp_path, f"dibs://{tmp_path}/tooz.db", COORDINATION), 80)


@pytest.mark.slow
def test_tooz_own_tests_pass_at_a_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        url = server.url.replace("http://", "dibs://")
        results = own_tests(tmp_path, url, COORDINATION, PARTITIONER, DIBS_TOKEN=server.token)
    assert_all_passed(results, 90)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinators]:
    started: list[coordination.CoordinationDriver] = []

    def start(member: bytes, **options: Any) -> coordination.CoordinationDriver:
        found = coordination.get_coordinator(f"dibs://{tmp_path}/tooz.db", member, **options)
        found.start()
        started.append(found)
        return found

    yield start
    for each in started:
        if each.is_started:
            each.stop()


def test_a_lock_that_was_not_renewed_in_time_is_not_said_to_be_held(coordinator: Coordinators) -> None:
    lock = coordinator(b"one", lock_timeout=4).get_lock(b"job")
    assert isinstance(lock, DibsLock)
    assert lock.acquire()
    assert lock.acquired
    wait_until(lambda: not lock.acquired, "the lock's time is over, by this machine's clock")
    other = coordinator(b"two", lock_timeout=60).get_lock(b"job")
    assert other.acquire(timeout=int(WAIT_S_MAX))
    assert not lock.is_still_owner()
    assert not lock.release()
    assert other.is_still_owner()


def test_ids_of_any_bytes_come_back_as_they_were(coordinator: Coordinators) -> None:
    group, member = b"a b/\x00\xff%20 c", b"\n\xf0\x9f\x90\x99 tooz member x"
    one = coordinator(member)
    one.create_group(group).get()
    one.join_group(group, {"bytes": b"\x00\xff"}).get()
    assert one.get_groups().get() == [group]
    assert one.get_members_with_capabilities(group).get() == {member: {"bytes": b"\x00\xff"}}


def test_an_id_that_is_too_long_is_an_error_of_tooz(coordinator: Coordinators) -> None:
    one = coordinator(b"one")
    with pytest.raises(ToozError, match="512 bytes"):
        one.create_group(b"g" * 600).get()
    with pytest.raises(ToozError, match="512 bytes"):
        one.get_lock(b"l" * 600).acquire()


def test_a_store_that_is_away_is_a_connection_error_and_the_leases_are_tried_again(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        url = server.url.replace("http://", "dibs://")
        one = coordination.get_coordinator(url, b"one", token=server.token)
        one.start()
        lock = one.get_lock(b"job")
        assert lock.acquire()
        assert one.heartbeat()
        server.kill()
        with pytest.raises(coordination.ToozConnectionError):
            one.heartbeat()
        with pytest.raises(coordination.ToozConnectionError):
            lock.is_still_owner()
        one.stop()


@pytest.mark.fault("F-756")
@pytest.mark.parametrize("error", [dibs.Unavailable("gone"), KeyboardInterrupt()], ids=repr)
def test_a_lock_whose_acquire_raises_is_not_held(
    coordinator: Coordinators, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    lock = coordinator(b"one").get_lock(b"job")
    assert isinstance(lock, DibsLock)

    def renew(*_: object, **__: object) -> dibs.Lease:
        raise error

    later_ms = itertools.count(steady_ms(), 60_000)
    with monkeypatch.context() as patch:
        patch.setattr("dibs.contrib.tooz.steady_ms", lambda: next(later_ms))  # as if it had been waited for
        patch.setattr(dibs.Client, "renew", renew)
        with pytest.raises((coordination.ToozConnectionError, KeyboardInterrupt)):
            lock.acquire()
    assert coordinator(b"two").get_lock(b"job").acquire(blocking=False)


def hold(folder: Path, what: str, *, timeout: int) -> subprocess.Popen[str]:
    """Another process that has joined a group, leads it, and holds a lock."""
    url = f"dibs://{folder}/tooz.db"
    program = start_program(
        "tests.plugins.contrib.tooz_member", url, what, str(timeout), stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def test_a_killed_member_leaves_its_group_its_lead_and_its_lock(tmp_path: Path, coordinator: Coordinators) -> None:
    one = coordinator(b"one", timeout=10)
    with hold(tmp_path, "two", timeout=3) as other:
        assert one.get_members(b"group").get() == {b"two"}
        assert one.get_leader(b"group").get() == b"two"
        assert not one.get_lock(b"lock").acquire(blocking=False)
        os.kill(other.pid, signal.SIGKILL)
    wait_until(lambda: one.get_members(b"group").get() == set(), "the member is gone")
    elected: list[Any] = []

    def note(event: coordination.LeaderElected) -> None:
        elected.append(event)

    one.watch_elected_as_leader(b"group", note)
    wait_until(lambda: one.run_watchers() or elected, "one leads")
    assert one.get_leader(b"group").get() == b"one"
    assert one.get_lock(b"lock").acquire(timeout=10)


def test_a_paused_member_learns_from_its_next_heartbeat_that_it_is_out(
    tmp_path: Path, coordinator: Coordinators
) -> None:
    one = coordinator(b"one")
    with hold(tmp_path, "two", timeout=3) as other:
        os.kill(other.pid, signal.SIGSTOP)
        wait_until_stopped(other.pid)
        wait_until(lambda: one.get_members(b"group").get() == set(), "the member is gone")
        lock = one.get_lock(b"lock")
        assert lock.acquire(timeout=10)
        os.kill(other.pid, signal.SIGCONT)
        assert other.stdout is not None
        assert other.stdout.readline() == "lost the lock\n"
        assert lock.is_still_owner()
