"""A server under load is killed with SIGKILL, again and again, and loses nothing that it acknowledged.

DIBS_FAULTS_KILLS and DIBS_FAULTS_SEED change how often and how. They are read when the tests are collected.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dibs.client.transport import Ask
from tests.build import tries
from tests.faults.load import Client
from tests.faults.standing import events_of
from tests.models.history import broken_promises, overlaps
from tests.models.replay import replay
from tests.programs import WAIT_S_MAX, ServerProcess, pause, wait_until

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from dibs.client.transport import Transport
    from dibs.core.events import Event
    from tests.faults.load import Intent

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("DIBS_FAULTS_KILLS") or tries(5, 20))
SEED = int(os.environ.get("DIBS_FAULTS_SEED") or random.SystemRandom().randrange(10**9))
CLIENTS = 6
# Outage credit keeps abandoned jobs for as long as the server keeps crashing, so there must be jobs to spare.
JOBS = [f"job-{number}" for number in range(24)]


@pytest.mark.timeout(900)  # it takes some seconds; a busy machine may need longer
@pytest.mark.promise("durable")
@pytest.mark.promise("token:rises")
@pytest.mark.promise("excl")
@pytest.mark.promise("idem:acquire")
@pytest.mark.promise("idem:release")
@pytest.mark.promise("lease:never-early")
@pytest.mark.promise("audit")
def test_a_server_killed_under_load_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    print(f"DIBS_FAULTS_SEED={SEED}")  # pytest shows it when the test fails
    with ServerProcess(tmp_path) as server:
        clients = [Client(number, SEED, JOBS, lambda: server.url, server.token) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            kill_again_and_again(server, clients)
        finally:
            for client in clients:
                client.stop()
            for client in clients:
                client.join(3 * WAIT_S_MAX)
        assert not any(client.is_alive() for client in clients)
        assert [wrong for client in clients for wrong in client.wrong] == []
        live = what_is_claimed_once_events_agree(server)
        assert {f"last-{number}" for number in range(CLIENTS)} <= live.keys()
        server.kill()  # its last answers must hold as well

    events = events_of(server.store_url)
    intents = [intent for client in clients for intent in client.intents]
    assert broken_promises(events) == []
    assert overlaps([hold for client in clients for hold in client.holds()]) == []
    check_all_that_was_acknowledged(events, intents)
    assert ownership(events) == live
    check_that_it_was_a_test(events, intents)


def kill_again_and_again(server: ServerProcess, clients: list[Client]) -> None:
    """Kills it after a random number of answers and a random delay. Now and then also while it is still starting."""
    chance = random.Random(SEED)
    for number in range(KILLS):
        before = sum(client.acknowledged for client in clients)
        wanted = before + chance.randrange(1, 60)
        wait_until(
            lambda wanted=wanted: (  # type: ignore[misc]  # bound early on purpose
                sum(client.acknowledged for client in clients) >= wanted
                or any(not client.is_alive() for client in clients)
            ),
            f"the clients are served (kill {number})",
        )
        pause(chance.random() * 0.01)
        server.kill()
        if number % 4 == 3:
            server.spawn()
            pause(chance.random() * 0.3)
            server.kill()
        server.start()


def ownership(events: list[Event]) -> dict[str, tuple[str, int, str | None]]:
    """The owners of all jobs, by history alone."""
    return {
        job: (claim.owner, claim.token, claim.checkpoint)
        for (_, job), claims in replay(events).items()
        for claim in claims.values()
    }


def what_is_claimed(transport: Transport) -> dict[str, tuple[str, int, str | None]]:
    """The owners of all jobs, by asking."""
    body: dict[str, Any] = transport.ask(Ask("list", "", {"limit": 1000})).body or {}
    return {lock["name"]: (lock["owner"], lock["fencing_token"], lock["checkpoint"]) for lock in body["locks"]}


def what_is_claimed_once_events_agree(server: ServerProcess) -> dict[str, tuple[str, int, str | None]]:
    """All clients have ended. Abandoned leases run out, and the sweeper notes it. Then history and answers agree."""
    transport = server.transport()
    by_history = ownership(events_of(server.store_url))

    def only_the_last_are_left() -> bool:
        return all(job.startswith("last-") for job in what_is_claimed(transport))

    wait_until(only_the_last_are_left, f"what was left behind is over ({by_history})")
    live = what_is_claimed(transport)
    wait_until(lambda: ownership(events_of(server.store_url)) == live, f"history says the same as {live}")
    return live


def check_all_that_was_acknowledged(events: list[Event], intents: list[Intent]) -> None:
    claimed = [(event.job, event.owner, event.token) for event in events if event.kind == "acquired"]
    released = {(event.job, event.owner, event.token) for event in events if event.kind == "released"}
    progress = {(event.owner, event.checkpoint) for event in events if event.kind == "progress"}
    once, known = set(claimed), {intent.owner for intent in intents}
    assert len(once) == len(claimed)
    for intent in intents:
        what = (intent.job, intent.owner, intent.token)
        assert not intent.token or what in once, f"{intent} was acknowledged and is gone"
        assert not intent.released or what in released, f"the release of {intent} is gone"
        assert intent.checkpoint is None or (intent.owner, intent.checkpoint) in progress, intent
    owners = Counter(owner for _, owner, _ in claimed)
    assert owners.keys() <= known
    lasting = {intent.owner for intent in intents if not intent.left_behind}
    twice = {owner for owner in lasting if owners[owner] > 1}
    assert not twice, f"one request key, several leases: {twice}"
    assert {owner for _, owner, _ in released} <= {intent.owner for intent in intents if intent.let_go_ms}


def check_that_it_was_a_test(events: list[Event], intents: list[Intent]) -> None:
    """Enough was acknowledged, repeated after a lost reply, and left behind to mean something."""
    assert sum(intent.released for intent in intents) >= 5 * KILLS
    assert sum(intent.asked_again > 0 for intent in intents) >= KILLS // 2
    assert KILLS < 20 or any(event.kind == "expired" for event in events)
