"""What holds at one server holds across three on one store, asked one after the other."""

from __future__ import annotations

import math
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dibs import Client, WouldDeadlock
from dibs.base.ids import new_token
from dibs.client.transport import Ask
from tests.faults.cluster import TOKEN, Cluster
from tests.programs import pause, slowness, wait_until
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs import Lease

pytestmark = pytest.mark.e2e
SERVERS = 3


@pytest.fixture(params=["sqlite", "postgresql", "etcd"], scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("across")
    if request.param == "sqlite":
        url = f"sqlite://{folder}/dibs.db"
    elif request.param == "postgresql":
        url = f"{request.getfixturevalue('postgres_url')}?schema=t_{new_token()}"
    else:
        url = request.getfixturevalue("etcd_cluster").url(f"across/{new_token()}")
    with ExitStack() as stack:
        cluster = Cluster(folder, url, stack)
        cluster.start(SERVERS)
        yield cluster


@pytest.fixture
def clients(cluster: Cluster) -> list[Client]:
    """One client for each server, which uses only that server."""
    return [cluster.client(server.url) for server in cluster.servers]


@pytest.mark.promise("idem:acquire")
def test_a_request_key_is_known_at_all_servers(clients: list[Client]) -> None:
    leases = [client.acquire("keyed", request_key="key") for client in clients]
    assert len({(lease.lease_id, lease.fencing_token) for lease in leases}) == 1
    clients[1].release("keyed", leases[0].lease_id)
    clients[2].release("keyed", leases[0].lease_id)
    assert [event.event for event in clients[0].history("keyed")] == ["acquired", "released"]


@pytest.mark.promise("deadlock")
def test_a_circle_over_three_servers_is_seen(clients: list[Client]) -> None:
    refused: list[WouldDeadlock] = []
    with ExitStack() as stack:
        sessions = [stack.enter_context(client.session(owner=f"s{n}")) for n, client in enumerate(clients)]
        held = [session.claim(f"fork-{n}") for n, session in enumerate(sessions)]
        for claim in held:
            claim.__enter__()

        def want(number: int) -> None:
            try:
                with sessions[number].claim(f"fork-{(number + 1) % SERVERS}", wait=math.inf):
                    pass
            except WouldDeadlock as circle:
                refused.append(circle)
            held[number].__exit__(None, None, None)

        threads = [threading.Thread(target=want, args=(number,)) for number in range(SERVERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(refused) == 1, "one of the three, and not more"
    assert {f"s{number}" for number in range(SERVERS)} <= set(refused[0].cycle)


@pytest.mark.promise("session")
def test_what_a_silent_session_held_goes_to_who_waits_at_another_server(
    cluster: Cluster, clients: list[Client]
) -> None:
    transport = connect(cluster.servers[0].url, namespace=None, token=TOKEN, timeout_ms=5_000)
    session = (transport.ask(Ask("session-open", "", {"owner": "silent", "ttl_ms": 1_000})).body or {})["session_id"]
    assert transport.ask(Ask("acquire", "left", {"owner": "silent", "session_id": session})).status == 200
    lease = clients[1].acquire("left", wait=10)
    assert [event.event for event in clients[2].history("left")][-2:] == ["expired", "acquired"]
    clients[2].release("left", lease.lease_id)


@pytest.mark.promise("audit")
def test_all_servers_show_one_history(clients: list[Client]) -> None:
    def work(client: Client) -> None:
        for _ in range(5):
            with client.claim("busy", wait=20):
                pass

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    told = [[(event.seq, event.event, event.fencing_token) for event in client.history("busy")] for client in clients]
    assert told[0] == told[1] == told[2]
    assert [seq for seq, _, _ in told[0]] == sorted({seq for seq, _, _ in told[0]})
    assert len([kind for _, kind, _ in told[0] if kind == "acquired"]) == 5 * SERVERS


@pytest.mark.promise("lease:outage-credit")
def test_a_lease_outlives_the_time_in_which_no_server_was_up(cluster: Cluster, clients: list[Client]) -> None:
    ttl_s = 2 * slowness()
    lease: Lease = clients[0].acquire("kept", ttl=ttl_s)
    pause(0.7)  # the servers' pulses show that somebody has something
    for server in cluster.servers:
        server.kill()
    pause(ttl_s + 1)
    first, *others = cluster.servers
    first.start()
    # The owner has one TTL from when the first of them is back, so it does not wait for the others.
    with Client(first.url, TOKEN) as client:
        client.renew("kept", lease.lease_id)
        client.release("kept", lease.lease_id)
    for server in others:
        server.start()
    with Client(cluster.url, TOKEN) as client:
        wait_until(lambda: client.owner("kept").status == "free", "it was let go")
