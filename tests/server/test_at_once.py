"""A server that decides on its event loop stays awake when its file is in use by others."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from dibs.service.pace import Pace
from dibs.stores.sqlite import SqliteStore
from tests.server.harness import Poll, running

if TYPE_CHECKING:
    from pathlib import Path


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
