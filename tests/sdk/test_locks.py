"""One lock object, shared by threads or tasks: what was acquired belongs to the acquirer, never to the object."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.sdk.default import EitherClaim
from tests.programs import WAIT_S_MAX
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs import AsyncClient, Client


class Other(threading.Thread):
    """Another thread that does things one after another, when told."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._steps = steps
        self._go = threading.Semaphore(0)
        self._came = threading.Semaphore(0)
        self.came: list[Any] = []
        self.start()

    def run(self) -> None:
        for step in self._steps:
            self._go.acquire()
            try:
                self.came.append(step())
            except Exception as error:
                self.came.append(error)
            self._came.release()

    def step(self) -> Any:
        self._go.release()
        assert self._came.acquire(timeout=WAIT_S_MAX)
        return self.came[-1]


@over()
@pytest.mark.promise("excl")
def test_who_lost_a_shared_lock_is_told_and_does_not_release_the_next_owners(client: Client) -> None:
    lock = dibs.Lock("job", client=client)
    other = Other(lock.acquire, lock.check, lock.release)
    with pytest.raises(dibs.LeaseLost), lock:
        client.break_claim("job", "it is stuck")
        assert other.step() is True
    assert client.owner("job").held, "the next owner keeps its job"
    assert client.owner("job").fencing_token == 2
    assert other.step() is None
    assert other.step() is None
    assert not client.owner("job").held


@over()
@pytest.mark.promise("excl")
def test_a_task_that_lost_a_shared_lock_does_not_release_the_next_owners(
    connect_async: Callable[..., AsyncClient],
) -> None:
    async def go() -> None:
        client = connect_async()
        lock = dibs.AsyncLock("job", client=client)
        has, enough = asyncio.Event(), asyncio.Event()

        async def next_owner() -> None:
            async with lock:
                has.set()
                await enough.wait()
                lock.check()

        async with client:
            with pytest.raises(dibs.LeaseLost):
                async with lock:
                    await client.break_claim("job", "it is stuck")
                    other = asyncio.create_task(next_owner())
                    try:
                        await asyncio.wait_for(has.wait(), WAIT_S_MAX)
                    except asyncio.CancelledError:  # the loss is told here at the latest
                        await asyncio.wait_for(has.wait(), WAIT_S_MAX)
                        raise
            status = await client.owner("job")
            assert (status.held, status.fencing_token) == (True, 2)
            enough.set()
            await other
            assert not (await client.owner("job")).held

    asyncio.run(go())


@over("memory")
def test_a_thread_that_does_not_hold_the_lock_cannot_release_it(client: Client) -> None:
    lock = dibs.Lock("job", client=client)
    other = Other(lock.release, lock.check, lambda: lock.claim)
    with lock:
        for _ in range(3):
            assert isinstance(other.step(), RuntimeError)
        lock.check()
    assert not client.owner("job").held


@over("memory")
def test_its_claim_can_be_passed_on_and_released_from_anywhere(client: Client) -> None:
    lock = dibs.Lock("job", client=client)
    lock.acquire()
    claim = lock.claim
    other = Other(claim.release)
    assert other.step() is None
    assert not client.owner("job").held


@over("memory")
def test_a_lock_acquired_by_a_thread_or_task_that_ended_can_be_released_by_another(
    client: Client, connect_async: Callable[..., AsyncClient]
) -> None:
    lock = dibs.Lock("job", client=client)
    other = Other(lock.acquire)
    assert other.step() is True
    other.join(WAIT_S_MAX)
    lock.release()
    assert not client.owner("job").held

    async def go() -> None:
        async with connect_async() as own:
            lock = dibs.AsyncLock("job", client=own)
            await asyncio.create_task(lock.acquire())  # as asyncio.wait_for does before Python 3.12
            lock.check()
            await lock.release()
            with pytest.raises(RuntimeError):
                lock.release()

    asyncio.run(go())


@over("memory")
def test_a_block_in_a_block_that_was_lost_has_its_own_lease(client: Client) -> None:
    lock = dibs.Lock("job", client=client)
    with pytest.raises(dibs.LeaseLost), lock:
        client.break_claim("job", "it is stuck")
        with lock:
            lock.check()
            assert lock.claim.fencing_token == 2
        assert not client.owner("job").held


@over("memory")
def test_a_lock_is_not_reentrant(client: Client) -> None:
    lock = dibs.Lock("job", client=client)
    with lock:
        assert lock.acquire(blocking=False) is False
        assert lock.acquire(timeout=0.05) is False
        lock.check()


def test_a_timeout_that_no_clock_can_count_is_refused_as_threading_does() -> None:
    for timeout in (1e100, math.inf):
        with pytest.raises(OverflowError):
            threading.Lock().acquire(timeout=timeout)
        with pytest.raises(OverflowError):
            dibs.Lock("job").acquire(timeout=timeout)


@over("memory", "server")
def test_closing_a_client_waits_for_a_release_that_was_not_awaited(
    connect_async: Callable[..., AsyncClient], client: Client, request: pytest.FixtureRequest
) -> None:
    memory = "memory" in request.node.callspec.id

    async def go() -> list[dibs.JobEvent]:
        async with connect_async() as own:
            lock = dibs.AsyncLock("job", client=own)
            await lock.acquire()
            released = lock.release()
            if memory:  # its store is gone once it is closed
                await own.close()
                assert released.done()  # type: ignore[attr-defined]  # it is a task
                assert released.exception() is None  # type: ignore[attr-defined]
        return []

    asyncio.run(go())
    if not memory:
        assert not client.owner("job").held


def test_one_claim_object_used_by_two_threads_is_two_claims(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", f"sqlite://{tmp_path}/jobs.db")
    claim: EitherClaim = dibs.claim("job")
    other = Other(claim.__enter__, lambda: claim.__exit__(None, None, None))
    with dibs.connect() as client:
        with pytest.raises(dibs.LeaseLost), claim:
            client.break_claim("job", "it is stuck")
            assert not isinstance(other.step(), Exception)
        assert client.owner("job").fencing_token == 2
        assert client.owner("job").held
        assert other.step() is None
        assert not client.owner("job").held


@over("memory")
def test_a_session_object_is_opened_once_however_many_threads_try(client: Client) -> None:
    session = client.session()
    others = [Other(session.__enter__) for _ in range(8)]
    came = [other.step() for other in others]
    assert sum(isinstance(each, dibs.InvalidInput) for each in came) == 7
    session.__exit__(None, None, None)
