"""PostgreSQL under load, with two servers on it, is killed with SIGKILL and stopped with SIGSTOP, again and again.

DIBS_FAULTS_KILLS and DIBS_FAULTS_SEED change how often and how, as for the server that is killed.
"""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.faults.load import Client
from tests.faults.standing import events_of
from tests.faults.test_server_killed import (
    SEED,
    check_all_that_was_acknowledged,
    ownership,
    what_is_claimed_once_events_agree,
)
from tests.models.history import broken_promises, overlaps
from tests.programs import WAIT_S_MAX, ServerProcess, pause, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import PostgresServer

pytestmark = pytest.mark.e2e

ROUNDS = int(os.environ.get("DIBS_FAULTS_KILLS", "6"))
CLIENTS = 6
JOBS = [f"job-{number}" for number in range(24)]


@pytest.mark.timeout(400)
@pytest.mark.promise("durable")
@pytest.mark.promise("token:rises")
@pytest.mark.promise("excl")
@pytest.mark.promise("idem:acquire")
@pytest.mark.promise("lease:never-early")
@pytest.mark.promise("audit")
def test_two_servers_lose_nothing_they_acknowledged_when_postgresql_is_killed_and_stopped(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    print(f"DIBS_FAULTS_SEED={SEED}")  # pytest shows it when the test fails
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    url = postgres_server.url
    with ServerProcess(folders[0], store=url) as one, ServerProcess(folders[1], store=url) as two:
        servers = [one, two]
        clients = [client_of(servers[number % 2], number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            disturb(postgres_server, clients)
        finally:
            for client in clients:
                client.stop()
            for client in clients:
                client.join(3 * WAIT_S_MAX)
        assert not any(client.is_alive() for client in clients)
        assert [wrong for client in clients for wrong in client.wrong] == []
        live = what_is_claimed_once_events_agree(one)
        assert {f"last-{number}" for number in range(CLIENTS)} <= live.keys()

    events = events_of(url)
    intents = [intent for client in clients for intent in client.intents]
    print(f"{len(events)} events, {len(intents)} intents, {ROUNDS} rounds")
    assert broken_promises(events) == []
    assert overlaps([hold for client in clients for hold in client.holds()]) == []
    check_all_that_was_acknowledged(events, intents)
    assert ownership(events) == live
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


def client_of(server: ServerProcess, number: int) -> Client:
    return Client(number, SEED, JOBS, lambda: server.url, server.token)


def disturb(postgres: PostgresServer, clients: list[Client]) -> None:
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        wanted = sum(client.acknowledged for client in clients) + chance.randrange(1, 60)
        wait_until(
            lambda wanted=wanted: (  # type: ignore[misc]  # bound early on purpose
                sum(client.acknowledged for client in clients) >= wanted
                or any(not client.is_alive() for client in clients)
            ),
            f"the clients are served (round {number})",
            2 * WAIT_S_MAX,
        )
        pause(chance.random() * 0.02)
        if number % 2:
            postgres.signal(signal.SIGSTOP)
            pause(chance.random() * 1.5)
            postgres.signal(signal.SIGCONT)
        else:
            postgres.kill()
            pause(chance.random() * 0.3)
            postgres.start()
