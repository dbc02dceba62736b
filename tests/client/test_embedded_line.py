"""Waiting in line without a server: each hand-over, by any process, wakes one waiter."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.client.embedded import claim
from dibs.client.pending import PendingClaim
from dibs.client.transport import Ask
from dibs.core.commands import Acquire, Release
from dibs.core.outcomes import Granted, Queued
from dibs.core.records import ticket_key
from dibs.engine.coordinator import Coordinator
from dibs.stores import waiters
from dibs.stores.sqlite import SqliteStore, queries
from dibs.testing.contract_base import WAIT_S_MAX
from dibs.wire.documents import Reply
from tests.programs import pause

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAITERS = 30


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dibs.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def ask(owner: str, *, wait: bool = True) -> Acquire:
    return Acquire(ns="d", name="job", owner=owner, principal="p", fresh_lease_id=new_id(), ttl_ms=60_000, wait=wait)


def let_go(store: SqliteStore, lease_id: str) -> None:
    Coordinator(store).one(Release(ns="d", name="job", principal="p", lease_id=lease_id))


class Counting(SqliteStore):
    """Counts how often somebody who waits came back to ask."""

    asked = 0

    def read(self, keys: Any) -> Any:
        if threading.current_thread().name.startswith("waiter"):
            Counting.asked += 1
        return super().read(keys)


@pytest.mark.promise("queue:one-wake")
def test_a_hand_over_wakes_the_one_it_is_for_and_nobody_else(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody looks by itself while this test lasts: whoever comes back was woken.
    for limit in ("POLL_MS_MIN", "POLL_MS_MAX"):
        monkeypatch.setattr(waiters, limit, 600_000)
    monkeypatch.setattr(queries, "HEARD_POLL_MS_MAX", 600_000)
    monkeypatch.setattr("dibs.client.embedded.EMBEDDED_POLL_MS", 600_000)
    monkeypatch.setattr("dibs.client.embedded.TICKET_KEEP_MS", 600_000)
    store = Counting(path)
    first = Coordinator(store).one(ask("first"))
    assert isinstance(first, Granted)
    served: list[str] = []

    def wait(number: int) -> None:
        outcome = claim(Coordinator(store), ask(f"w{number}"), 60_000)
        assert isinstance(outcome, Granted)
        served.append(outcome.lease.owner)
        let_go(store, outcome.lease.lease_id)

    threads = []
    for number in range(WAITERS):
        threads.append(threading.Thread(target=wait, args=(number,), name=f"waiter-{number}", daemon=True))
        threads[-1].start()
        _until_in_line(store, number + 1)
    Counting.asked = 0
    let_go(store, first.lease.lease_id)
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert served == [f"w{number}" for number in range(WAITERS)]
    # Each asks again for its lease and lets it go: a few reads each, however many there are.
    assert Counting.asked <= 12 * WAITERS
    store.close()


def _until_in_line(store: SqliteStore, count: int) -> None:
    deadline = threading.Event()
    for _ in range(int(WAIT_S_MAX * 100)):
        if len(store.scan("ticket/")) == count:
            return
        deadline.wait(0.01)
    raise AssertionError("nobody came")


WAIT_IN_A_PROCESS = """
import sys
from dibs.client.embedded import claim
from dibs.engine.coordinator import Coordinator
from dibs.stores import waiters
from dibs.stores.sqlite import SqliteStore, queries
from dibs.core.commands import Acquire
import dibs.client.embedded as claiming
waiters.POLL_MS_MIN = queries.HEARD_POLL_MS_MAX = 600_000
claiming.EMBEDDED_POLL_MS = claiming.TICKET_KEEP_MS = 600_000
store = SqliteStore(sys.argv[1])
command = Acquire(ns="d", name="job", owner="far", principal="p", fresh_lease_id="far", ttl_ms=60_000, wait=True)
print(type(claim(Coordinator(store), command, 60_000)).__name__)
store.close()
"""


@pytest.mark.linux("sockets with abstract names")
@pytest.mark.promise("queue:one-wake")
@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: abstract socket names are Linux's")
def test_a_hand_over_wakes_a_waiter_of_another_process(path: str, store: SqliteStore) -> None:
    first = Coordinator(store).one(ask("first"))
    assert isinstance(first, Granted)
    with subprocess.Popen([sys.executable, "-c", WAIT_IN_A_PROCESS, path], stdout=subprocess.PIPE, text=True) as far:
        _until_in_line(store, 1)
        let_go(store, first.lease.lease_id)
        said, _ = far.communicate(timeout=WAIT_S_MAX)
    assert said == "Granted\n"


def test_who_cannot_be_woken_looks_by_itself(store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.base.platforms.IS_LINUX", False)
    first = Coordinator(store).one(ask("first"))
    assert isinstance(first, Granted)
    outcomes: list[object] = []
    waiting = threading.Thread(
        target=lambda: outcomes.append(claim(Coordinator(store), ask("second"), 60_000)), daemon=True
    )
    waiting.start()
    _until_in_line(store, 1)
    other = SqliteStore(path)
    let_go(other, first.lease.lease_id)
    waiting.join(WAIT_S_MAX)
    other.close()
    assert isinstance(outcomes[0], Granted)


def test_two_who_wait_for_one_record_both_hear_of_it(store: SqliteStore) -> None:
    assert isinstance(Coordinator(store).one(ask("first")), Granted)
    queued = Coordinator(store).one(ask("second"))
    assert isinstance(queued, Queued)
    key = ticket_key("d", "job", queued.ticket)
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda: answers.append(store.until_gone(key, 60_000)), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert store.until_gone(key, 1) is False
    record = store.read([key]).records[key]
    store.commit({key: record.version}, {key: None}, ())
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert answers == [True, True]


SPENT = {"code": "conflict", "details": "This request key's lease was expired 2s ago. Repeating it cannot."}
QUEUED = {"status": "queued", "name": "job", "ticket": "1.x.y"}


def asked_in(place: PendingClaim, replies: list[Reply]) -> list[dict[str, Any]]:
    """What a wait asks, given these replies one after another."""
    place.wait_ms = 60_000
    flow, asked, answer = place.wait(), [], None
    with contextlib.suppress(StopIteration):
        while True:
            step = flow.send(answer)
            answer = None
            if isinstance(step, Ask):
                asked.append(step.document)
                answer = replies.pop(0)
    return asked


@pytest.mark.parametrize("told_first", [[Reply(status=200, body=QUEUED)], []])
def test_a_turn_that_came_and_went_unseen_is_waited_for_again_under_a_new_key(
    told_first: list[Reply],
) -> None:
    """Also when it came and went within the first question: the caller was told nothing before."""
    replies = [*told_first, Reply(status=409, body=SPENT), Reply(status=200, body={"status": "held"})]
    asked = asked_in(PendingClaim("acquire", "job", {"request_key": "k"}, own_key=True), replies)
    *before, after = asked
    assert [each["request_key"] for each in before] == ["k"] * (len(told_first) + 1)
    assert after["request_key"] != "k"
    assert ["ticket" in each for each in before] == [False, True][: len(before)]
    assert "ticket" not in after


def test_a_turn_for_several_jobs_that_came_and_went_unseen_is_waited_for_again_under_a_new_key() -> None:
    spent = {"status": "held", "refused": [{"name": each, "status": "conflict", **SPENT} for each in "ab"]}
    replies = [
        Reply(status=200, body=QUEUED),
        Reply(status=200, body=spent),
        Reply(status=200, body={"status": "done"}),
    ]
    terms = {"names": ["a", "b"], "request_key": "k"}
    *before, after = asked_in(PendingClaim("acquire-all", "", terms, own_key=True), replies)
    assert [each["request_key"] for each in before] == ["k", "k"]
    assert after["request_key"] != "k"
    assert "ticket" not in after


@pytest.mark.fault("F-263")
@pytest.mark.parametrize("final", [SPENT, {"status": "done"}], ids=["a user's key is spent", "one is done"])
def test_several_jobs_of_which_one_will_never_come_are_not_waited_for(final: dict[str, str]) -> None:
    refused = {"status": "held", "refused": [{"name": "a", "status": "held"}, {"name": "b", **final}]}
    replies = [Reply(status=200, body=QUEUED), Reply(status=200, body=refused)]
    asked = asked_in(PendingClaim("acquire-all", "", {"names": ["a", "b"], "request_key": "k"}), replies)
    assert len(asked) == 2


@pytest.mark.fault("F-011")
@pytest.mark.promise("queue:fifo")
def test_who_has_a_ticket_and_time_left_does_not_give_up_because_its_place_is_gone() -> None:
    held, got = Reply(status=200, body={"status": "held"}), Reply(status=200, body={"status": "acquired"})
    place = PendingClaim("acquire", "job", {"request_key": "k"})
    asked = asked_in(place, [Reply(status=200, body=QUEUED), held, got])
    assert [each.get("ticket") for each in asked] == [None, "1.x.y", "1.x.y"]


@pytest.mark.fault("F-010")
@pytest.mark.parametrize("verb", ["acquire", "acquire-any"])
def test_who_waits_comes_back_when_a_server_with_too_much_to_do_says_so(verb: str) -> None:
    body = {"code": "capacity_exceeded", "details": "", "retry_after_ms": 1_000}
    full, got = Reply(status=503, body=body), Reply(status=200, body={"status": "acquired"})
    assert len(asked_in(PendingClaim(verb, "job", {"request_key": "k"}), [full, full, got])) == 3


def test_a_key_that_others_may_know_is_not_exchanged() -> None:
    replies = [Reply(status=200, body=QUEUED), Reply(status=409, body=SPENT)]
    asked = asked_in(PendingClaim("acquire", "job", {"request_key": "k"}, own_key=False), replies)
    assert [each["request_key"] for each in asked] == ["k", "k"]


def test_one_whose_turn_came_and_went_when_its_time_was_over_is_told_how_the_job_stands() -> None:
    """A refused request key says nothing to somebody who gave none."""
    flow = PendingClaim("acquire", "job", {"request_key": "k"}, own_key=True, wait_ms=1).claim()
    held = Reply(status=200, body={"status": "held"})
    first = next(flow)
    assert isinstance(first, Ask)
    pause(0.002)
    again = flow.send(Reply(status=409, body=SPENT))
    assert isinstance(again, Ask)
    assert again.document["request_key"] != "k"
    assert "wait_seconds" not in again.document
    with pytest.raises(StopIteration) as end:
        flow.send(held)
    assert end.value.value is held
