"""grite's commands and the hooks against a server: the same answers as on a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.programs import ServerProcess, clean_env, dibs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.promise("same-answer")]


def test_locks_through_a_server(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with ServerProcess(tmp_path / "server") as server:
        env = clean_env(tmp_path / "user", DIBS_URL=server.url, DIBS_TOKEN=server.token, DIBS_ACTOR="one")
        other = env | {"DIBS_ACTOR": "two"}
        assert dibs(env, "lock", "acquire", "path:src", "--json").data["owner"] == "one"
        conflict = dibs(other, "lock", "acquire", "path:src/a", "--json")
        assert (conflict.exit, conflict.error["code"]) == (4, "conflict")
        assert conflict.error["details"]["conflict"] == "path:src"
        assert dibs(other, "lock", "release", "path:src").exit == 4
        assert dibs(env, "lock", "renew", "path:src", "--ttl", "1h", "--json").data["ttl_seconds"] == 3600
        assert dibs(env, "lock", "gc", "--json").data == {"removed": 0, "kept": 1, "expired_pruned": 0}
        assert "a server removes expired locks by itself" in dibs(env, "lock", "gc").out
        assert dibs(env, "lock", "release", "path:src").exit == 0
        refused = dibs(env | {"DIBS_TOKEN": "wrong"}, "lock", "acquire", "a", "--json")
        assert (refused.exit, refused.error["code"]) == (5, "authentication_failed")
