"""One client for a whole program: its threads, its event loops, and the connections that this takes."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dibs import AsyncClient, Client
from tests.faults.standing import left_behind
from tests.programs import ServerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.proxy import Proxy

pytestmark = [pytest.mark.e2e, pytest.mark.promise("excl")]

THREADS = 16
CLAIMS = 200


class Inside:
    """Counts the owners inside, and detects two at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.times = 0

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.times += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


@pytest.fixture(params=["embedded", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None, str]]:
    url = f"sqlite://{tmp_path}/jobs.db"
    if request.param == "embedded":
        yield url, None, url
    else:
        with ServerProcess(tmp_path, store=url) as server:
            yield server.url, server.token, url


def test_many_threads_share_one_client_and_exclude_each_other(place: tuple[str, str | None, str]) -> None:
    url, token, store_url = place
    inside = Inside()
    with Client(url, token) as client:

        def work(number: int) -> None:
            with client.claim("job", wait=60, owner=f"thread-{number}") as claim, inside:
                claim.check()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(CLAIMS)))
        assert (inside.most, inside.times) == (1, CLAIMS)
        assert client.owner("job").fencing_token >= CLAIMS
    assert left_behind(store_url) == []


def test_connections_are_as_many_as_callers_at_once_and_no_more(proxy: Proxy, server: ServerProcess) -> None:
    with Client(proxy.url, server.token) as client:

        def work(number: int) -> None:
            for turn in range(5):
                with client.claim(f"{number}-{turn}"):
                    pass

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        assert proxy.open_connections_max <= THREADS
        assert proxy.connections < THREADS * 5, "connections are not kept"
    wait_until(lambda: proxy.open_connections == 0, "a closed client has no connections")


def test_event_loops_one_after_another_use_one_client_and_leave_no_connection(
    proxy: Proxy, server: ServerProcess
) -> None:
    client = AsyncClient(proxy.url, server.token)

    async def work() -> None:
        for _ in range(2):
            async with client.claim("job") as claim:
                claim.check()

    asyncio.run(work())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(work())
    gc.collect()
    wait_until(lambda: proxy.open_connections == 0, "a loop that ended has no connections")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2, "no file is left open")
    assert proxy.connections <= 22, "inside a loop connections are not kept"
    asyncio.run(client.close())


def test_event_loops_in_many_threads_use_one_client_at_once(place: tuple[str, str | None, str]) -> None:
    url, token, store_url = place
    client = AsyncClient(url, token)
    inside = Inside()

    async def one(number: int) -> None:
        async with client.claim("job", wait=60, owner=f"task-{number}") as claim:
            with inside:
                await asyncio.sleep(0)
                claim.check()

    async def several(loop: int) -> None:
        await asyncio.gather(*(one(10 * loop + number) for number in range(4)))

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda loop: asyncio.run(several(loop)), range(5)))
    asyncio.run(client.close())
    assert (inside.most, inside.times) == (1, 20)
    assert left_behind(store_url) == []
