"""`dibs serve --octostore` answers as OctoStore 0.14.4 does: compared with answers that were recorded from it, and, where
its own programs are given by OCTOSTORE_BINARY, by running them.

    OCTOSTORE_BINARY=/path/to/octostore DIBS_REWRITE=1 scripts/test tests/server/test_octostore.py

records the answers anew.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.compat.octostore.callers import fixed_callers
from dibs.compat.octostore.environment import ORIGINS
from dibs.server.settings import OctoStoreSettings, PublicElections, ServerSettings
from tests.server.harness import WAIT_S, running, wait_until
from tests.server.octostore_steps import ADMIN_KEY, STATIC_TOKENS, STEPS, TOKENS, Player

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.harness import Server

ANSWERS = Path(__file__).with_name("octostore_answers.json")
# Read when the tests are collected: while they run, no such variable is set.
BINARY = os.environ.get("OCTOSTORE_BINARY")
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
OCTOSTORE = OctoStoreSettings(users=tuple(TOKENS.items()), admin_key=ADMIN_KEY)
SETTINGS = ServerSettings(octostore=OCTOSTORE, public_elections=PublicElections(), cors_origins=ORIGINS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("octostore"), settings=SETTINGS) as server:
        server.guard.fixed = fixed_callers(OCTOSTORE)
        yield server


@pytest.fixture(scope="module")
def played(served: Server) -> list[dict[str, Any]]:
    if BINARY and REWRITE:
        record(BINARY)
    return Player(served.port, served.pass_time).play()


def record(binary: str) -> None:
    """Play the steps against the real server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        "BIND_ADDR": f"127.0.0.1:{port}",
        "DATABASE_URL": ":memory:",
        "STATIC_TOKENS": STATIC_TOKENS,
        "ADMIN_KEY": ADMIN_KEY,
        "RUST_LOG": "error",
    }
    server = subprocess.Popen([binary, "serve"], env=environ)
    try:
        wait_until(lambda: _listens(port), "the server does not listen")
        answers = Player(port, lambda ms: time.sleep(ms / 1000)).play()
    finally:
        server.terminate()
        server.wait(WAIT_S)
    ANSWERS.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_an_answer_is_the_one_that_octostore_gives(played: list[dict[str, Any]], number: int) -> None:
    recorded = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert played[number] == recorded[number]
