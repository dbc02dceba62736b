"""What tests of the git store share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.stores.git.harness import GitHttp, Remote, git

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _git_of_nobody(monkeypatch: pytest.MonkeyPatch, need_program: Callable[[str], str]) -> None:
    """Git as on a fresh machine: no name, no configuration, nothing inherited."""
    need_program("git")
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


@pytest.fixture
def http(remote: Remote) -> Iterator[GitHttp]:
    """The remote over HTTP, pushing allowed."""
    git(remote.path, "config", "http.receivepack", "true")
    server = GitHttp(remote.folder)
    remote.address = server.address(remote)
    yield server
    server.close()
