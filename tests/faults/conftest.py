"""A server for all tests of a file, and a faulty way to it for each test."""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.proxy import Proxy
from tests.programs import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOOL = Path(__file__).parents[2] / "tools" / "porcupine"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(lambda: server.url) as proxy:
        yield proxy


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"{zlib.crc32(request.node.nodeid.encode()):08x}"


@pytest.fixture(scope="module")
def porcupine(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> str:
    """The tool, built. It needs Go and a module from a proxy: without, it skips at home and fails in CI."""
    built = tmp_path_factory.mktemp("porcupine") / "porcupine"
    words = [need_program("go"), "build", "-o", str(built), "."]
    made = subprocess.run(words, cwd=TOOL, capture_output=True, text=True, timeout=300, check=False)
    is_away = "dial tcp" in made.stderr or "proxy" in made.stderr
    if made.returncode and is_away and os.environ.get("DIBS_REQUIRE_ALL") != "1":
        pytest.skip("the module of Porcupine cannot be fetched")
    assert made.returncode == 0, made.stderr
    return str(built)
