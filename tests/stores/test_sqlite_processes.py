"""Several processes on one file: racing, killed, forked."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire
from dibs.core.outcomes import Granted, Held
from dibs.core.records import LockRecord, lock_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.sqlite import SqliteStore
from dibs.stores.sqlite import connection as link
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.core.outcomes import Outcome

pytestmark = pytest.mark.full

WORKER = Path(__file__).with_name("worker.py")
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts worker.py; none outlives its test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: object) -> subprocess.Popen[str]:
            worker = stack.enter_context(_popen(*arguments))
            stack.callback(worker.kill)  # before leaving its context, which waits for it
            return worker

        yield start


def _popen(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def acquire(store: SqliteStore, name: str, owner: str = "survivor") -> Outcome:
    command = Acquire(ns="default", name=name, principal="p", owner=owner, ttl_ms=3_600_000, fresh_lease_id=new_id())
    return Coordinator(store).one(command)


def is_sound(path: Path) -> bool:
    with sqlite3.connect(path) as db:
        answer: str = db.execute("PRAGMA integrity_check").fetchone()[0]
    db.close()
    return answer == "ok"


@pytest.mark.promise("excl")
def test_processes_that_make_the_file_at_once_all_succeed_and_every_job_has_one_winner(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    path, rounds = tmp_path / "new" / "dibs.db", 40
    workers = [start("claim", path, rounds) for _ in range(8)]
    for worker in workers:
        assert worker.stdout is not None
        assert json.loads(worker.stdout.readline()) == "ready"
    answers = []
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        out, err = worker.communicate(timeout=WAIT_S_MAX)
        assert worker.returncode == 0, err
        answers.append(json.loads(out))
    assert sorted(number for won in answers for number in won) == list(range(rounds))
    assert is_sound(path)


@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
def test_processes_that_remember_the_same_jobs_never_answer_by_what_was(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    workers = [start("contend", tmp_path / "dibs.db", 400) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert json.loads(worker.stdout.readline()) == "ready"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    given = []
    for worker in workers:
        out, err = worker.communicate(timeout=WAIT_S_MAX)
        assert worker.returncode == 0, err
        tokens, wrong = json.loads(out)
        assert not wrong
        given.append([(name, token) for name, token in tokens])
    assert all(given), "they did not contend"
    together = sorted(given[0] + given[1])
    assert together == sorted(set(together)), "a token was given twice"
    store = SqliteStore(str(tmp_path / "dibs.db"))
    told = [(each.job, each.token) for each in store.events(0, 10**6) if each.kind == "acquired"]
    store.close()
    assert sorted(told) == together


@pytest.mark.promise("durable")
@pytest.mark.promise("token:rises")
def test_processes_killed_under_load_lose_nothing_they_acknowledged(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    path = tmp_path / "dibs.db"
    store = SqliteStore(str(path))
    acknowledged: list[tuple[str, int]] = []
    for round_ in range(6):
        workers = [start("load", path, f"{round_}-{number}") for number in range(2)]
        lines = []
        for worker in workers:
            assert worker.stdout is not None
            lines += [worker.stdout.readline() for _ in range(10 + 7 * round_)]
        for worker in workers:
            assert worker.stdout is not None
            worker.kill()
            lines += worker.stdout.read().splitlines()
        whole = [line for line in lines if line.rstrip().endswith("]")]  # the last may be cut off
        acknowledged += [(name, token) for name, token in map(json.loads, whole)]

    assert len(acknowledged) > 300
    assert len(set(acknowledged)) == len(acknowledged), "a token was given twice"
    told = {(event.job, event.token) for event in store.events(0, 10**6) if event.kind == "acquired"}
    assert set(acknowledged) <= told
    for name in {name for name, _ in acknowledged}:
        record = store.read([lock_key("default", name)]).records[lock_key("default", name)].record
        assert isinstance(record, LockRecord)
        assert record.token >= max(token for each, token in acknowledged if each == name)
    store.close()
    assert is_sound(path)


def in_child(work: Callable[[], str]) -> str:
    """What `work` says in a forked child. A child that hangs is killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, work().encode())
        except BaseException as error:
            os.write(writes, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    ready, _, _ = select.select([reads], [], [], WAIT_S_MAX)
    if not ready:
        os.kill(child, signal.SIGKILL)
    answer = os.read(reads, 65536).decode()
    os.close(reads)
    os.waitpid(child, 0)
    return answer


def test_a_forked_child_opens_the_file_for_itself_and_its_parent_goes_on(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "dibs.db"))
    assert isinstance(acquire(store, "before"), Granted)
    assert in_child(lambda: type(acquire(store, "before")).__name__) == "Held"
    parents = store._link._db
    assert in_child(lambda: f"{acquire(store, 'x')} {store._link._db is parents}").endswith(" False")
    assert in_child(lambda: type(acquire(store, "of the child")).__name__) == "Granted"
    assert isinstance(acquire(store, "of the child"), Held)
    assert isinstance(acquire(store, "after"), Granted)
    assert in_child(lambda: str(store.close())) == "None"  # type: ignore[func-returns-value]
    assert isinstance(acquire(store, "after the child closed"), Granted)
    store.close()
    assert is_sound(tmp_path / "dibs.db")


def test_a_child_forked_while_a_thread_was_writing_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "FORK_WAIT_S", 0.1)  # it writes for longer than anybody should
    store = SqliteStore(str(tmp_path / "dibs.db"))
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store._link:
            inside.set()
            leave.wait(WAIT_S_MAX)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert inside.wait(WAIT_S_MAX)
    try:
        assert in_child(lambda: type(acquire(store, "x")).__name__) == "Granted"
    finally:
        leave.set()
        holder.join(WAIT_S_MAX)
    assert isinstance(acquire(store, "x"), Held)
    store.close()
