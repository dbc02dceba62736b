"""What a failover to a standby keeps: everything if commits wait for it, else what it had received by then."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dibs import Client, DibsError
from tests import postgres_pair
from tests.faults.cluster import TOKEN, Cluster
from tests.faults.several.stores import ReplicatedPostgres
from tests.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.e2e
@pytest.mark.fault("F-061")
@pytest.mark.promise("durable")
@pytest.mark.promise("token:rises")
@pytest.mark.parametrize("synchronous", [True, False])
def test_what_a_promoted_standby_knows(
    synchronous: bool, tmp_path: Path, stack: ExitStack, postgres_programs: tuple[str, str]
) -> None:
    pair = stack.enter_context(postgres_pair.pair(*postgres_programs, synchronous=synchronous))
    cluster = Cluster(tmp_path, ReplicatedPostgres(pair).url, stack)
    cluster.start(1)
    with Client(cluster.url, TOKEN, timeout=4) as client:
        client.acquire("before", ttl=600)
        if not synchronous:
            wait_until(pair.has_all, "the standby has it, too")
        pair.standby.kill()  # a server that is only stopped would later read the bytes in its socket
        given = None
        try:
            given = client.acquire("after", ttl=600)
        except DibsError:
            pass
        assert (given is None) is synchronous
        pair.primary.kill()
        pair.standby.start()
        pair.promote()
        wait_until(lambda: _owners(client), "the server has found the new primary")
        assert client.owner("before").status == "held"
        if given is not None:
            assert client.owner("after").status == "free", "without synchronous replication it is lost"
            assert client.acquire("after").fencing_token > given.fencing_token


def _owners(client: Client) -> bool:
    try:
        return bool(client.list())
    except DibsError:
        return False
