"""The git store keeps the contract: in one clone, and on a remote that several clones share."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from dibs.stores.git import location_of
from dibs.stores.git.store import GitStore
from dibs.stores.git.times import Clocks
from dibs.testing.clock import ManualClock
from dibs.testing.contract import StoreContract
from tests.build import tries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs.stores.port import Store


class Machine:
    """A repository and the clocks of the machine it is on."""

    def __init__(self, repository: Path, *, is_remote: bool) -> None:
        self.clock = ManualClock()
        self._repository = repository
        self._is_remote = is_remote
        self._clones = 0
        bare = ["--bare"] if is_remote else []
        self._init(*bare, str(repository))

    def _init(self, *words: str) -> None:
        subprocess.run(["git", "init", "-q", "--template=", *words], check=True)

    def open(self) -> Store:
        """One more connection; to a remote, through a clone of its own."""
        self._clones += 1
        url, folder = "git:", self._repository
        if self._is_remote:
            url, folder = "git:origin", self._repository.parent / f"clone-{self._clones}"
            self._init(str(folder))
            with open(folder / ".git/config", "a") as config:
                config.write(f'[remote "origin"]\n\turl = file://{self._repository}\n')
        place = location_of(url, str(folder))
        place.poll_ms = 50
        clock = self.clock
        return GitStore(place, Clocks(steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id))


class GitContract(StoreContract):
    # Each commit is several processes: in the default run few rounds of each race and few records.
    rounds = tries(2, 15)
    many = tries(50, 1_000)
    is_remote = False

    @pytest.fixture
    def place(self, tmp_path: Path, need_program: Callable[[str], str]) -> Machine:
        need_program("git")
        return Machine(tmp_path / "it.git", is_remote=self.is_remote)

    def open_store(self, place: Machine) -> Store:
        return place.open()

    def advance(self, place: Machine, store: Store, ms: int) -> None:
        place.clock.advance(ms)


class TestGitStoreInOneClone(GitContract):
    pass


@pytest.mark.full  # each write is several processes of git
class TestGitStoreOnARemote(GitContract):
    is_remote = True
