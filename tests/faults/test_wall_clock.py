"""The wall clock is set by hours, forwards and back, between two commands and under a running server. No lease ends
earlier or later because of it."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.stores.registry import open_store
from tests.models.history import all_events, broken_promises
from tests.programs import WAIT_S_MAX, Ran, ServerProcess, clean_env, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

pytestmark = [pytest.mark.e2e, pytest.mark.promise("lease:never-early")]

STEPPED = Path(__file__).with_name("stepped.py")
HOURS_5_MS = 5 * 3600 * 1000
STEPS_MS = (HOURS_5_MS, -HOURS_5_MS)


class Machine:
    """Runs commands under a wall clock that is `offset_ms` off, with or without a server."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.url: str | None = None
        self._offset = folder / "offset"
        self.set(0)

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(STEPPED), str(self._offset)]

    def set(self, offset_ms: int) -> None:
        draft = self._offset.with_suffix(".new")
        draft.write_text(str(offset_ms))
        draft.replace(self._offset)  # a server may be reading it

    def __call__(self, *words: str) -> Ran:
        more = {"DIBS_URL": self.url} if self.url else {}
        done = subprocess.run(
            [*self.command, *words, "--json"],
            env=clean_env(self.folder, **more),
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
            check=False,
        )
        return Ran(words, done)

    def broken_promises(self) -> list[str]:
        store = open_store(f"sqlite://{self.folder}/dibs/dibs.db")
        try:
            return broken_promises(all_events(store))
        finally:
            store.close()


@pytest.fixture(params=["no server", "a server"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    if request.param == "no server":
        yield machine
    else:
        with ServerProcess(tmp_path, command=machine.command) as server:
            machine.url = server.url
            yield machine


def held(ran: Ran) -> dict[str, Any]:
    assert ran.exit == 1, ran
    details: dict[str, Any] = ran.error["details"]
    return details


def test_the_wall_clock_of_these_tests_really_is_stepped(tmp_path: Path) -> None:
    at = []
    for number, offset_ms in enumerate((-HOURS_5_MS, 0, HOURS_5_MS)):
        machine = Machine(tmp_path / str(number))
        machine.set(offset_ms)
        # A new file is anchored to the wall clock at its creation.
        at.append(datetime.fromisoformat(machine("claim", "a").data["expires_at"]))
    for earlier, later in pairwise(at):
        assert timedelta(hours=4.9) < later - earlier < timedelta(hours=5.1)


@pytest.mark.parametrize("step_ms", STEPS_MS, ids=["5 h forwards", "5 h back"])
def test_a_stepped_wall_clock_ends_no_lease_early(machine: Machine, step_ms: int) -> None:
    first = machine("claim", "job", "--owner", "owner", "--ttl", "10m").data
    machine.set(step_ms)
    told = held(machine("claim", "job", "--owner", "rival"))
    assert told["owner"] == "owner"
    assert told["expires_at"] == first["expires_at"]
    assert 9 * 60_000 < told["remaining_ms"] <= 10 * 60_000
    renewed = machine("heartbeat", "job", "--lease", first["lease_id"]).data
    assert 9 * 60_000 < renewed["remaining_ms"] <= 10 * 60_000
    machine.set(-step_ms)
    assert held(machine("claim", "job", "--owner", "rival"))["owner"] == "owner"
    assert machine("release", "job", "--lease", first["lease_id"], "--done=1h").exit == 0
    machine.set(step_ms)
    assert machine("claim", "job", "--owner", "rival").exit == 4, "the mark lasts an hour, whatever the clock says"
    assert machine.broken_promises() == []


@pytest.mark.parametrize("step_ms", STEPS_MS, ids=["5 h forwards", "5 h back"])
def test_a_stepped_wall_clock_makes_no_lease_last_longer(machine: Machine, step_ms: int) -> None:
    first = machine("claim", "job", "--owner", "owner", "--ttl", "1s").data
    machine.set(step_ms)

    def taken() -> dict[str, Any] | None:
        ran = machine("claim", "job", "--owner", "rival")
        assert ran.exit in (0, 1), ran
        found: dict[str, Any] | None = ran.data if ran.exit == 0 else None
        return found

    successor = wait_until(taken, "the lease of one second is over")
    assert successor["fencing_token"] > first["fencing_token"]
    assert successor["previous"]["how"] == "expired"
    assert machine.broken_promises() == []


def test_a_store_made_under_a_wrong_wall_clock_keeps_its_time_when_the_clock_is_set_right(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    machine.set(HOURS_5_MS)
    first = machine("claim", "job", "--owner", "owner", "--ttl", "10m").data
    machine.set(0)
    told = held(machine("claim", "job", "--owner", "rival"))
    assert (told["owner"], told["expires_at"]) == ("owner", first["expires_at"])
    assert 9 * 60_000 < told["remaining_ms"] <= 10 * 60_000
