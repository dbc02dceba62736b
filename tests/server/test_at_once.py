"""A server that decides on its event loop stays awake when others use its file, and hands a job over in one batch."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from dibs.core.commands import Release
from dibs.engine.pace import Pace
from dibs.stores.sqlite import SqliteStore
from tests.server.harness import Poll, running
from tests.server.test_waiting import release, wait_for_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dibs.core.commands import Command
    from dibs.engine.batcher import Result


def test_a_server_whose_file_another_process_writes_answers_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "is_quick", True)  # however slow this disk is
    store = SqliteStore(str(tmp_path / "dibs.db"))
    writer = sqlite3.connect(store.path, isolation_level=None)
    with running(tmp_path, store=store, real_time=True) as server:
        assert server.acquire("before").json["status"] == "acquired"
        writer.execute("BEGIN IMMEDIATE")
        poll = Poll(server, "/locks/job/acquire", {})
        for _ in range(5):
            assert server.ask("GET", "/healthz", who=None).status == 200
        assert not poll.is_answered()
        writer.execute("ROLLBACK")
        assert poll.answer()["status"] == "acquired"
        assert server.acquire("after").json["status"] == "acquired"
    writer.close()
    store.close()


@pytest.mark.parametrize("at_once", [True, False], ids=["on the loop", "on the thread"])
def test_a_release_and_the_waiter_that_gets_the_job_are_answered_by_one_batch(tmp_path: Path, at_once: bool) -> None:
    with running(tmp_path, at_once=at_once) as server:
        lease = server.lease("job")
        (poll,) = wait_for_job(server, "job")
        batches: list[Sequence[Command]] = []
        batcher = server.engine.batcher

        def noted(
            run: Callable[[Sequence[Command]], list[Result]],
        ) -> Callable[[Sequence[Command]], list[Result]]:
            def run_and_note(commands: Sequence[Command]) -> list[Result]:
                batches.append(commands)
                return run(commands)

            return run_and_note

        assert batcher._run_at_once is not None
        batcher._run, batcher._run_at_once = noted(batcher._run), noted(batcher._run_at_once)
        release(server, "job", lease)
        assert poll.answer()["status"] == "acquired"
        assert [[type(command) for command in batch] for batch in batches] == [[Release]]
