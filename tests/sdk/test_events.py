"""Loops and exceptions of client.events: each event once and in order, over every transport, in threads and loops."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.client.urls import ServerAddress
from dibs.sdk.async_client import AsyncClient
from dibs.sdk.async_transport import AsyncServerConnection
from dibs.sdk.client import Client
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.programs import WAIT_S_MAX
from tests.sdk.conftest import over
from tests.server.harness import TOKENS, Server, running, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from dibs.sdk.answers import JobEvent


def happen(client: Client, *names: str) -> None:
    for name in names:
        client.release(name, client.acquire(name).lease_id)


def told(events: Iterator[JobEvent], count: int) -> list[tuple[str | None, str]]:
    return [(event.name, event.event) for event in itertools.islice(events, count)]


async def told_async(events: AsyncIterator[JobEvent], count: int) -> list[tuple[str | None, str]]:
    async with asyncio.timeout(WAIT_S_MAX):
        return [(event.name, event.event) for event in [await anext(events) for _ in range(count)]]


@over()
@pytest.mark.promise("events:ordered")
def test_events_are_reported_in_order_from_the_past_on_and_as_they_happen(client: Client) -> None:
    happen(client, "a", "b")
    with client.events(since=3600) as events:
        assert told(events, 4) == [("a", "acquired"), ("a", "released"), ("b", "acquired"), ("b", "released")]
        later = threading.Timer(0.05, happen, (client, "c"))
        later.start()
        assert told(events, 2) == [("c", "acquired"), ("c", "released")]
        later.join(WAIT_S_MAX)
        position = events.position
    assert position is not None
    happen(client, "d")
    assert told(client.events(after=position), 2) == [("d", "acquired"), ("d", "released")]
    assert told(client.events("b", after=0), 2) == [("b", "acquired"), ("b", "released")]
    assert told(client.events(name="c", after=0), 1) == [("c", "acquired")]


@over()
def test_without_a_beginning_only_what_is_new_is_reported(client: Client) -> None:
    happen(client, "old")
    events = client.events()

    def go_on() -> None:
        wait_until(lambda: events.position is not None, "it knows where it begins")
        happen(client, "new")

    later = threading.Thread(target=go_on)
    later.start()
    assert told(events, 1)[0][0] == "new"
    later.join(WAIT_S_MAX)
    events.close()
    assert list(events) == []


@over()
@pytest.mark.promise("events:ordered")
def test_an_event_loop_is_told_the_same(connect_async: Callable[..., AsyncClient]) -> None:
    async def main() -> None:
        async with connect_async() as client:
            for name in ("a", "b"):
                await client.release(name, (await client.acquire(name)).lease_id)
            async with client.events(after=0) as events:
                assert [name for name, _ in await told_async(events, 4)] == ["a", "a", "b", "b"]
                waiting = asyncio.create_task(told_async(events, 1))
                await asyncio.sleep(0.05)
                with pytest.raises(RuntimeError, match="Another task"):
                    await anext(events)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                lease = await client.acquire("c")
                await client.release("c", lease.lease_id)
                assert await told_async(events, 2) == [("c", "acquired"), ("c", "released")]
            assert [event async for event in events] == []

    asyncio.run(main())


def test_wrong_arguments_are_refused_before_anything_is_asked() -> None:
    client = Client("memory://")
    wrong: list[dict[str, Any]] = [
        {"prefix": "a", "name": "b"},
        {"after": 1, "since": 1},
        {"after": -1},
        {"after": "1"},
        {"after": True},
        {"since": "soon"},
    ]
    for each in wrong:
        with pytest.raises(dibs.InvalidInput):
            client.events(**each)


@over("memory")
@pytest.mark.promise("events:told")
def test_a_gap_is_an_exception_and_not_the_end(client: Client) -> None:
    happen(client, "a", "b", "c")
    store = client._transports.store.coordinator().store
    store.prune(keep=2, before_ms=0)
    events = client.events(after=1)
    with pytest.raises(dibs.EventsGone) as gone:
        next(events)
    assert (gone.value.after, gone.value.oldest) == (1, 5)
    assert told(events, 2) == [("c", "acquired"), ("c", "released")]


def pair(folder: Path) -> tuple[Any, Any]:
    """Two servers on one store."""
    store = MemoryStore(clock := ManualClock())
    homes = [folder / name for name in "ab"]
    for home in homes:
        home.mkdir()
    first, second = (running(home, store=store, clock=clock) for home in homes)
    return first, second


def url_of(*servers: Server) -> str:
    return ",".join(f"http://127.0.0.1:{server.port}" for server in servers)


@pytest.mark.promise("events:ordered")
def test_a_reader_goes_on_at_another_server_and_misses_nothing(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    with second as b:
        with first as a:
            client = Client(url_of(a, b), TOKENS["agent"])
            loop_client = AsyncClient(url_of(a, b), TOKENS["agent"])
            feeder = Client(url_of(b), TOKENS["agent"])
            seen: list[int] = []
            stop = threading.Event()

            def read() -> None:
                for event in client.events(after=0):
                    seen.append(event.seq)
                    if stop.is_set():
                        return

            async def read_async() -> list[int]:
                async with loop_client as one:
                    return [(await anext(events)).seq for events in [one.events(after=0)] for _ in range(42)]

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            found: list[int] = []
            other = threading.Thread(target=lambda: found.extend(asyncio.run(read_async())), daemon=True)
            other.start()
            happen(feeder, *[f"before-{number}" for number in range(10)])
            wait_until(lambda: len(seen) == 20, "it reads at the first")
        happen(feeder, *[f"after-{number}" for number in range(10)])
        wait_until(lambda: len(seen) == 40, "it goes on at the second")
        stop.set()
        happen(feeder, "last")
        reader.join(WAIT_S_MAX)
        other.join(WAIT_S_MAX)
        assert seen == found[: len(seen)]
        assert found == list(range(1, 43))
        client.close()
        feeder.close()


def test_patience_ends_when_no_server_answers(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        client = Client(url_of(server), TOKENS["agent"], timeout=1)
        happen(client, "a")
        events = client.events(after=0, patience=0)
        told(events, 2)
    with pytest.raises(dibs.Unavailable):
        next(events)
    with pytest.raises(dibs.Unavailable):
        next(client.events())
    client.close()


def test_a_client_that_is_dropped_hangs_up_without_a_word(tmp_path: Path) -> None:
    with running(tmp_path) as server, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        happen(Client(url_of(server), TOKENS["agent"]), "a")
        gc.collect()
    assert [each for each in said if issubclass(each.category, ResourceWarning)] == []


@pytest.mark.fault("F-454")
def test_a_connection_of_an_event_loop_that_is_dropped_in_a_circle_hangs_up_without_a_word() -> None:
    ours, theirs = socket.socketpair()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        circle: list[object] = [AsyncServerConnection(ours, ServerAddress("http://here", "http", "here", 80, ""))]
        circle.append(circle)
        del ours, circle
        gc.collect()
    assert theirs.recv(1) == b""
    theirs.close()
    assert [str(each.message) for each in said] == []


def test_who_stops_reading_leaves_nothing_at_the_server(tmp_path: Path) -> None:
    def streams() -> int:
        return len(server.api.streams)

    def happen_in_a_stream() -> None:
        wait_until(lambda: streams() > 0, "a stream")
        happen(client, "b")

    async def read_one(client: AsyncClient) -> None:
        events = client.events(after=0)
        await told_async(events, 6)
        waiting = asyncio.create_task(told_async(events, 1))
        while not streams():
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])

    with running(tmp_path) as server:
        client = Client(url_of(server), TOKENS["agent"])
        happen(client, "a")
        for close in (True, False):
            events = client.events(after=0)
            later = threading.Thread(target=happen_in_a_stream)
            later.start()
            for event in events:
                if event.seq > 2 and streams():
                    break
            later.join(WAIT_S_MAX)
            if close:
                events.close()
            del events
            gc.collect()
            wait_until(lambda: not streams(), "the stream has ended")
        asyncio.run(read_one(AsyncClient(url_of(server), TOKENS["agent"])))
        wait_until(lambda: not streams(), "the cancelled one has ended")
        client.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_on_by_itself_and_does_not_disturb_its_parent(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        client = Client(url_of(server), TOKENS["agent"])
        happen(client, "a")
        events = client.events(after=0)
        assert told(events, 1) == [("a", "acquired")]
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if told(events, 1) == [("a", "released")] else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        happen(client, "b")
        assert told(events, 3) == [("a", "released"), ("b", "acquired"), ("b", "released")]
        events.close()
        client.close()
