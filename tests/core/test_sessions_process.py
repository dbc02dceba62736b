"""The process of a session: it may become known later, change, or be forgotten. Only its present one ends it."""

from __future__ import annotations

import pytest

from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.core.commands import EndSession
from dibs.core.records import SessionRecord, session_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock


class Worker:
    """A worker with one job, in a session that says nothing of its process."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(MemoryStore(ManualClock(1_763_000_000_000)))
        self.transport = EmbeddedTransport(lambda: self.coordinator)
        opened = self.transport.ask(Ask("session-open", "", {"owner": "me", "ttl_ms": 60_000})).body or {}
        self.session = str(opened["session_id"])
        self.transport.ask(Ask("acquire", "issue-7", {"session_id": self.session}))

    def keep(self, **asked: str) -> None:
        assert self.transport.ask(Ask("session-keep", self.session, {**asked})).status == 200

    def found_dead(self, process: str) -> None:
        self.coordinator.one(EndSession(session=self.session, principal=None, dead=True, process=process))

    def process(self) -> str | None:
        key = session_key(self.session)
        found = self.coordinator.store.read([key]).records[key].record
        assert isinstance(found, SessionRecord)
        return found.process

    def holds_its_job(self) -> bool:
        return bool((self.transport.ask(Ask("inspect", "issue-7", {})).body or {})["status"] == "held")


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_process_is_kept_until_another_one_is_named_or_none(worker: Worker) -> None:
    assert worker.process() is None
    worker.keep(process="boot:1:2:3")
    worker.keep()
    assert worker.process() == "boot:1:2:3"
    worker.keep(process="boot:1:4:5")
    assert worker.process() == "boot:1:4:5"
    worker.keep(process="")
    assert worker.process() is None


def test_a_worker_that_went_on_in_another_process_is_not_ended_with_the_first(worker: Worker) -> None:
    worker.keep(process="boot:1:2:3")
    worker.keep(process="boot:1:4:5")
    worker.found_dead("boot:1:2:3")
    assert worker.holds_its_job()
    worker.found_dead("boot:1:4:5")
    assert not worker.holds_its_job()
