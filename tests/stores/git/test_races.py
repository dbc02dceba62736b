"""Clones after one job, over a file, over HTTP, and as worktrees of one clone: one winner every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.build import tries
from tests.stores.git.harness import Machine, Race, git, pass_time, store_at

if TYPE_CHECKING:
    from tests.stores.git.harness import GitHttp, Remote

pytestmark = pytest.mark.full

CLONES = 6
ROUNDS = 2  # of three races each; the soak has more
SOAK_ROUNDS = tries(20, 200)


def race_of_clones(remote: Remote, rounds: int, machines: list[Machine] | None = None) -> None:
    machines = machines or [Machine()]
    stores = [
        store_at(remote.clone(f"clone-{number}"), machine=machines[number % len(machines)]) for number in range(CLONES)
    ]
    race = Race(list(stores), lambda ms: pass_time(machines, ms))
    for number in range(rounds):
        race.round(f"job-{number}")


def race_of_worktrees(remote: Remote, rounds: int) -> None:
    machine = Machine()
    clone = remote.clone("clone")
    git(clone, *"-c user.name=n -c user.email=e commit -q --allow-empty -m begin".split())
    for number in range(CLONES - 1):
        git(clone, "worktree", "add", "-q", "--detach", f"../tree-{number}")
    folders = [clone, *[remote.folder / f"tree-{number}" for number in range(CLONES - 1)]]
    stores = [store_at(folder, "git:", machine) for folder in folders]
    race = Race(list(stores), lambda ms: pass_time([machine], ms))
    for number in range(rounds):
        race.round(f"job-{number}")
    assert len(git(clone, "for-each-ref", "refs/dibs/lock").splitlines()) == rounds


@pytest.mark.promise("excl")
def test_of_six_clones_of_a_file_remote_exactly_one_wins_each_race(remote: Remote) -> None:
    race_of_clones(remote, ROUNDS)


@pytest.mark.promise("excl")
def test_of_six_clones_over_http_exactly_one_wins_each_race(remote: Remote, http: GitHttp) -> None:
    race_of_clones(remote, ROUNDS - 1)


@pytest.mark.promise("excl")
def test_of_six_worktrees_of_one_clone_exactly_one_wins_each_race(remote: Remote) -> None:
    race_of_worktrees(remote, ROUNDS)


@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
def test_of_six_machines_whose_clocks_are_minutes_apart_exactly_one_wins_each_race(remote: Remote) -> None:
    machines = [Machine(number, ahead_ms=(number - 3) * 120_000) for number in range(CLONES)]
    race_of_clones(remote, 1, machines)


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestManyRounds:
    def test_file(self, remote: Remote) -> None:
        race_of_clones(remote, SOAK_ROUNDS)

    def test_machines_whose_clocks_differ(self, remote: Remote) -> None:
        machines = [Machine(number, ahead_ms=(number - 3) * 120_000) for number in range(CLONES)]
        race_of_clones(remote, SOAK_ROUNDS // 4, machines)

    def test_http(self, remote: Remote, http: GitHttp) -> None:
        race_of_clones(remote, SOAK_ROUNDS)

    def test_worktrees(self, remote: Remote) -> None:
        race_of_worktrees(remote, SOAK_ROUNDS)
