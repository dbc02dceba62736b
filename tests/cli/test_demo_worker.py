"""One worker of the demo, in this process, on a store in memory. Its steps take no time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.cli.commands.demo import STEPS, Worker, backlog_of, checkpoint_of, tidied
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOBS = backlog_of(3, workers=3, seed=1)
FIRST = JOBS[0]["name"]


@pytest.fixture
def client() -> Iterator[dibs.Client]:
    with dibs.Client("memory://", owner="somebody") as client:
        yield client


class Hired:
    """A worker that runs in a thread, and what it told."""

    def __init__(self, client: dibs.Client, folder: Path) -> None:
        self.path = folder / "ledger"
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.waits = threading.Event()
        jobs = [job | {"paces_ms": [0] * len(STEPS), "fatal": False} for job in JOBS]
        worker = Worker(client, jobs, str(self.path), self._tell)
        self._thread = threading.Thread(target=worker.run, daemon=True)
        self._thread.start()

    def _tell(self, event: str, **fields: Any) -> None:
        self.told.append((event, fields))
        if event == "waits":
            self.waits.set()

    def finished(self) -> Hired:
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive(), self.told
        return self

    def steps(self, job: str) -> list[int]:
        lines = [line.split("\t") for line in self.path.read_text().splitlines()]
        return [int(step) for name, step in lines if name == job]

    def skipped(self) -> list[tuple[str, str]]:
        return [each for event, fields in self.told if event == "claimed" for each in fields["skipped"]]

    def count(self, event: str) -> int:
        return [kind for kind, _ in self.told].count(event)


def test_alone_it_does_every_step_of_every_job_once_and_marks_them_done(client: dibs.Client, tmp_path: Path) -> None:
    hired = Hired(client, tmp_path).finished()
    for job in JOBS:
        assert hired.steps(job["name"]) == [1, 2, 3, 4, 5]
        assert client.owner(job["name"]).status == "done"
    assert (hired.count("claimed"), hired.count("done"), hired.count("waits")) == (3, 3, 0)
    assert hired.skipped() == []


def test_it_goes_on_from_the_checkpoint_of_the_one_before_and_does_no_step_again(
    client: dibs.Client, tmp_path: Path
) -> None:
    with client.claim(FIRST, owner="agent-9") as claim:
        claim.release(checkpoint=checkpoint_of(2))
    hired = Hired(client, tmp_path).finished()
    assert hired.steps(FIRST) == [3, 4, 5]
    claimed = next(fields for event, fields in hired.told if event == "claimed")
    assert (claimed["before"], claimed["checkpoint"]) == ("agent-9", "2/5 reproduced it")
    notes = [event.checkpoint for event in client.history(FIRST) if event.event == "progress"]
    assert notes == [checkpoint_of(step) for step in (3, 4, 5)]


def test_what_somebody_has_is_skipped_by_each_claim_and_done_when_free(client: dibs.Client, tmp_path: Path) -> None:
    with client.claim(FIRST, owner="agent-9"):
        hired = Hired(client, tmp_path)
        assert hired.waits.wait(WAIT_S_MAX)
        assert hired.steps(FIRST) == []
        assert hired.count("done") == 2
    hired.finished()
    assert hired.steps(FIRST) == [1, 2, 3, 4, 5]
    assert hired.skipped() == [(FIRST, "agent-9")] * 2


def test_what_is_done_already_is_left_alone(client: dibs.Client, tmp_path: Path) -> None:
    with client.claim(FIRST) as claim:
        claim.done()
    assert Hired(client, tmp_path).finished().steps(FIRST) == []


def test_tidying_takes_the_done_marks_away_and_says_what_it_could_not(client: dibs.Client, tmp_path: Path) -> None:
    Hired(client, tmp_path).finished()
    with client.claim(FIRST, again=True):
        assert tidied(client, JOBS) is False
    assert tidied(client, JOBS) is True
    assert [client.owner(job["name"]).status for job in JOBS] == ["free"] * 3
