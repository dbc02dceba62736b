"""A task that is cancelled at its first await, at its second, and so on: it always leaves nothing behind, and the
client stays usable. Each await is cancelled once while the answer is under way, and once when it has just arrived;
and each again with a second cancellation during the cleanup."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from dibs import AsyncClient, JobHeld, LeaseLost
from tests.faults.standing import check_nothing_left, left_behind

if TYPE_CHECKING:
    from tests.programs import ServerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.promise("queue:no-dead-grant")]

T = TypeVar("T")
AWAITS_MAX = 60
JOB = "job"


@dataclass
class Cancelling(Awaitable[Any]):
    """Runs a coroutine and cancels its task at some of its awaits. `late`: when the awaited result has just come."""

    inner: Coroutine[Any, Any, Any]
    at: set[int]
    late: bool
    awaits: int = field(default=0)

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: self.inner.send(None)  # noqa: E731
        while True:
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            self._count(awaited)
            try:
                yield awaited
                step = lambda: self.inner.send(None)  # noqa: E731
            except BaseException as error:
                step = lambda error=error: self.inner.throw(error)  # type: ignore[misc]  # noqa: E731

    def _count(self, awaited: asyncio.Future[Any] | None) -> None:
        self.awaits += 1
        if self.awaits not in self.at:
            return
        task = asyncio.current_task()
        assert task is not None
        if self.late and awaited is not None:
            awaited.add_done_callback(lambda _: task.cancel())  # before the task gets it
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


@dataclass
class Place:
    url: str
    token: str | None
    store_url: str

    def client(self, owner: str) -> AsyncClient:
        return AsyncClient(self.url, self.token, owner=owner, timeout=5)


@pytest.fixture(params=["embedded", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Any, server: ServerProcess) -> Place:
    if request.param == "embedded":
        url = f"sqlite://{tmp_path}/jobs.db"
        return Place(url, None, url)
    return Place(server.url, server.token, server.store_url)


async def claims(client: AsyncClient, other: AsyncClient) -> None:
    async with client.claim(JOB) as claim:
        claim.check()


async def works(client: AsyncClient, other: AsyncClient) -> None:
    async with client.claim(JOB) as claim:
        await claim.checkpoint("half")
        await asyncio.sleep(0)
        await claim.release()


async def finishes(client: AsyncClient, other: AsyncClient) -> None:
    async with client.claim("job-to-finish", again=True) as claim:
        await claim.done("all of it", done=1)


async def claims_all(client: AsyncClient, other: AsyncClient) -> None:
    async with client.claim_all([JOB, "job-2", "job-3"]) as claim:
        claim.check()


async def waits_in_vain(client: AsyncClient, other: AsyncClient) -> None:
    lease = await settled(other.acquire(JOB))
    try:
        with pytest.raises(JobHeld):
            async with client.claim(JOB, wait=1):
                pytest.fail("it is held")
    finally:
        await settled(other.release(JOB, lease.lease_id))


async def waits_and_gets_it(client: AsyncClient, other: AsyncClient) -> None:
    lease = await settled(other.acquire(JOB))
    releasing = asyncio.ensure_future(soon(other.release(JOB, lease.lease_id)))
    try:
        async with client.claim(JOB, wait=10) as claim:
            claim.check()
    finally:
        await settled(releasing)


async def opens_a_session(client: AsyncClient, other: AsyncClient) -> None:
    async with client.session() as session, session.claim(JOB) as claim:
        claim.check()


async def soon(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.sleep(0.05)
    await work


async def settled(work: Awaitable[T]) -> T:
    """An await of the test itself, which is not cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            pass
    return task.result()


# At least one cancellation. The number depends on the machine: an answer may be there before it is awaited.
REACHED = 2
SCENES = [claims, works, finishes, claims_all, waits_and_gets_it, opens_a_session]


async def cancel_everywhere(place: Place, scene: Any, *, late: bool, twice: bool) -> int:
    """How many awaits there were."""
    client, other = place.client("cancelled"), place.client("other")
    number = 0
    try:
        for number in range(1, AWAITS_MAX):
            at = {number, number + 1} if twice else {number}
            running = Cancelling(scene(client, other), at, late)

            async def go(running: Cancelling = running) -> None:
                await running

            task = asyncio.ensure_future(go())
            await asyncio.wait([task], timeout=60)
            assert task.done(), f"cancelled at await {number}, it never ended"
            what = f"by {scene.__name__}, cancelled at await {sorted(at)} of {running.awaits}"
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), asyncio.CancelledError), (what, task.exception())
            await asyncio.to_thread(check_nothing_left, place.store_url, what=what)
            if running.awaits < number:
                break
        else:
            pytest.fail("it has no end")
        async with client.claim(JOB, again=True) as claim:
            assert len(left_behind(place.store_url)) == 1
            claim.check()
    finally:
        await client.close()
        await other.close()
    return number


@pytest.mark.parametrize("late", [False, True], ids=["under way", "just arrived"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_task_cancelled_at_any_await_leaves_nothing_behind(place: Place, scene: Any, late: bool) -> None:
    assert (
        asyncio.run(cancel_everywhere(place, scene, late=late, twice=False)) >= 2
    )  # one at least: an answer may be there before it is awaited


def test_a_waiter_cancelled_at_any_await_leaves_the_line(place: Place) -> None:
    assert asyncio.run(cancel_everywhere(place, waits_in_vain, late=False, twice=False)) >= REACHED


@pytest.mark.parametrize("scene", [claims, works, waits_and_gets_it, opens_a_session])
def test_a_task_cancelled_twice_leaves_nothing_behind(place: Place, scene: Any) -> None:
    assert asyncio.run(cancel_everywhere(place, scene, late=False, twice=True)) >= REACHED


@pytest.mark.parametrize("scene", [claims, works])
def test_a_loop_that_ends_in_the_middle_leaves_nothing_behind(place: Place, scene: Any) -> None:
    """asyncio.run cancels every task, also those in the cleanup after a cancellation."""

    async def leave(turns: int) -> None:
        client = place.client("cancelled")
        task = asyncio.ensure_future(scene(client, client))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)

    for turns in range(0, 24, 2):
        asyncio.run(leave(turns))
        check_nothing_left(place.store_url, what=f"by a loop that ended after {turns} turns")


def test_a_cancellation_by_somebody_else_is_not_taken_for_the_loss(place: Place) -> None:
    async def work(client: AsyncClient, *, cancelled: bool) -> None:
        async with client.claim(JOB, ttl=1):
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if cancelled and task is not None:
                    task.cancel()
                raise

    async def go(*, cancelled: bool) -> asyncio.Task[None]:
        client = place.client("owner")
        task = asyncio.ensure_future(work(client, cancelled=cancelled))
        while not (await client.owner(JOB)).held:
            await asyncio.sleep(0.01)
        async with AsyncClient(place.store_url) as operator:
            await operator.break_claim(JOB, "a test")
        await asyncio.wait([task], timeout=60)
        await client.close()
        return task

    assert isinstance(asyncio.run(go(cancelled=False)).exception(), LeaseLost)
    assert asyncio.run(go(cancelled=True)).cancelled()
