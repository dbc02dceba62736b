"""Every block of the SDK with every way to end it, alone and inside each other, beside a small table of what the job's
history must say afterwards. Features meet here, so that no pair of them has a rule of its own."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from tests.build import tries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = [pytest.mark.promise("attempts"), pytest.mark.fault("F-342"), pytest.mark.fault("F-343")]

# Blocks. Each takes a client and a name, and gives what has the job. A decorator is no block: its body is `Raised`.


@contextmanager
def inner_of_two(client: Any, name: str) -> Iterator[Any]:
    with client.claim(name), client.claim(name, nested=True) as inner:
        yield inner


@contextmanager
def inner_that_is_left(client: Any, name: str) -> Iterator[Any]:
    with ExitStack() as stack:
        with client.claim_all([f"{name} beside", name]):
            inner = stack.enter_context(client.claim(name, nested=True))
        yield inner


@contextmanager
def in_session(client: Any, name: str) -> Iterator[Any]:
    with client.session() as session, session.claim(name) as claim:
        yield claim


@contextmanager
def locked(kind: Any, client: Any, name: str) -> Iterator[Any]:
    lock = kind(name, client=client)
    with lock:
        yield lock.claim


@asynccontextmanager
async def async_inner_of_two(client: Any, name: str) -> AsyncIterator[Any]:
    async with client.claim(name), client.claim(name, nested=True) as inner:
        yield inner


@asynccontextmanager
async def async_inner_that_is_left(client: Any, name: str) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        async with client.claim_all([f"{name} beside", name]):
            inner = await stack.enter_async_context(client.claim(name, nested=True))
        yield inner


@asynccontextmanager
async def async_in_session(client: Any, name: str) -> AsyncIterator[Any]:
    async with client.session() as session, session.claim(name) as claim:
        yield claim


@asynccontextmanager
async def async_locked(client: Any, name: str) -> AsyncIterator[Any]:
    lock = dibs.AsyncLock(name, client=client)
    async with lock:
        yield lock.claim


SAME: dict[str, Callable[[Any, str], Any]] = {
    "claim": lambda client, name: client.claim(name),
    "claim that never fails": lambda client, name: client.claim(name, fail_on_error=False),
    "claim_all": lambda client, name: client.claim_all([name, f"{name} beside"]),
    "claim_any": lambda client, name: client.claim_any([name, f"{name} beside"]),
    "leader": lambda client, name: client.leader(name.removeprefix("election:")),
}
BLOCKS: dict[str, Callable[[Any, str], Any]] = {
    **SAME,
    "nested": inner_of_two,
    "nested, outer block over": inner_that_is_left,
    "session": in_session,
    "Lock": lambda client, name: locked(dibs.Lock, client, name),
    "RLock": lambda client, name: locked(dibs.RLock, client, name),
}
ASYNC_BLOCKS: dict[str, Callable[[Any, str], Any]] = {
    **SAME,
    "nested": async_inner_of_two,
    "nested, outer block over": async_inner_that_is_left,
    "session": async_in_session,
    "AsyncLock": async_locked,
}
NEVER_FAILS = {"claim that never fails", "leader", "Lock", "RLock", "AsyncLock"}
TWO_BLOCKS = {"nested"}  # have the job, so that none may end it

# Ways to end: what the body raises, and whether it says that the work failed.

HELD, LOST = dibs.JobHeld("bob has it"), dibs.LeaseLost("another", 1, "it was broken.")
RAISED: dict[str, tuple[BaseException, str | None]] = {
    "ValueError": (ValueError("x"), "raised ValueError"),
    "JobHeld": (HELD, None),
    "LeaseLost of another": (LOST, None),
    "group of ValueError": (ExceptionGroup("g", [ValueError("x")]), "raised ExceptionGroup of ValueError"),
    "group of JobHeld": (ExceptionGroup("g", [HELD]), None),
    "group of LeaseLost": (ExceptionGroup("g", [LOST, ExceptionGroup("g", [HELD])]), None),
    "group of both": (ExceptionGroup("g", [HELD, KeyError("x")]), "raised ExceptionGroup of KeyError"),
    "cancelled": (asyncio.CancelledError(), None),
    "interrupt": (KeyboardInterrupt(), None),
    "group of interrupts": (BaseExceptionGroup("g", [KeyboardInterrupt(), asyncio.CancelledError()]), None),
}
# What the body calls: how, the last event, its reason, and the attempt of who claims the job next.
CALLED: dict[str, tuple[Callable[[Any], Any], str, str | None, int]] = {
    "nothing": (lambda claim: None, "released", None, 1),
    "release": (lambda claim: claim.release(), "released", None, 1),
    "done": (lambda claim: claim.done("ready"), "done", None, 1),
    "fail": (lambda claim: claim.fail("why"), "failed", "why", 3),
    "transfer": (lambda claim: claim.transfer(to_owner="zed"), "transferred", None, 2),
}


def expected(block: str, end: str) -> tuple[str, str | None, int]:
    """The last event of the job, or that it counts as done; its reason; and the attempt of the next owner, where the
    owner was the second to try."""
    if end in CALLED:
        return CALLED[end][1:]
    error, reason = RAISED[end]
    if block in NEVER_FAILS:
        return "released", None, 1 if isinstance(error, Exception) else 2
    return ("failed", reason, 3) if reason is not None else ("released", None, 2)


def seen(client: dibs.Client, name: str) -> tuple[str, str | None, int]:
    last, found = client.history(name)[-1], client.owner(name)
    if found.owner == "zed":
        client.break_claim(name, "tidy up")
        return "transferred", None, 2
    lease = client.acquire(name, again=True)
    client.release(name, lease.lease_id)
    return "done" if found.status == "done" else last.event, last.document.get("reason"), lease.attempt


def named(block: str, number: int) -> str:
    return f"election:{number}" if block == "leader" else f"job {number}"


def tried_once(client: dibs.Client, name: str) -> str:
    lease = client.acquire(name)
    client.fail(name, lease.lease_id, "the first attempt")
    return name


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[dibs.Client]:
    monkeypatch.setenv("DIBS_URL", f"sqlite://{tmp_path}/dibs.db")
    with dibs.connect(owner="alice") as client:
        yield client


def ends_of(block: str) -> list[str]:
    refused = set(CALLED) - {"nothing"} if block in TWO_BLOCKS else {"transfer"} if block == "claim_all" else set()
    return [end for end in (*RAISED, *CALLED) if end not in refused]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_threads_ends_as_the_table_says(client: dibs.Client, block: str) -> None:
    for number, end in enumerate(ends_of(block)):
        name = tried_once(client, named(block, number))
        try:
            with BLOCKS[block](client, name) as claim:
                if end in RAISED:
                    raise RAISED[end][0]
                CALLED[end][0](claim)
        except BaseException as error:
            assert error is RAISED[end][0], end  # noqa: PT017 - of any kind
        assert seen(client, name) == expected(block, end), end


@pytest.mark.parametrize("block", ASYNC_BLOCKS)
def test_a_block_of_a_loop_ends_as_the_table_says(client: dibs.Client, block: str) -> None:
    async def run(end: str, name: str, own: Any) -> None:
        async with ASYNC_BLOCKS[block](own, name) as claim:
            if end == "cancelled":
                asyncio.current_task().cancel()  # type: ignore[union-attr]  # there is one
                await asyncio.sleep(60)
            if end in RAISED:
                raise RAISED[end][0]
            await (CALLED[end][0](claim) or asyncio.sleep(0))

    async def main() -> None:
        async with dibs.AsyncClient(owner="alice") as own:
            for number, end in enumerate(ends_of(block)):
                name = tried_once(client, named(block, number))
                try:
                    await run(end, name, own)
                except BaseException as error:
                    assert type(error) is type(RAISED[end][0]), end  # noqa: PT017 - of any kind
                    if end == "cancelled":
                        asyncio.current_task().uncancel()  # type: ignore[union-attr]  # there is one
                assert seen(client, name) == expected(block, end), end

    asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exclusive_function_ends_as_a_claim_does(client: dibs.Client, is_async: bool) -> None:
    for number, end in enumerate([*RAISED, "nothing", "done"]):
        name = tried_once(client, f"job {number}")

        def body(end: str = end) -> None:
            if end in RAISED:
                raise RAISED[end][0]

        async def async_body(end: str = end) -> None:
            body(end)

        function: Any = dibs.exclusive(name, done=True if end == "done" else None)(async_body if is_async else body)

        async def caught(function: Any = function) -> None:
            try:
                await function()
            except BaseException as error:
                assert error is RAISED[end][0], end  # noqa: B023, PT017 - it is run at once

        try:
            asyncio.run(caught()) if is_async else function()
        except BaseException as error:
            assert error is RAISED[end][0], end  # noqa: PT017 - of any kind
        assert seen(client, name) == expected("claim", end), end


def test_a_loss_is_reported_by_every_block_and_is_no_failure_of_the_one_around_it(client: dibs.Client) -> None:
    for number, (block, around) in enumerate((block, around) for block in BLOCKS for around in ("claim", "RLock")):
        name, outer = tried_once(client, named(block, number)), tried_once(client, f"outer {number}")
        with pytest.raises(dibs.LeaseLost), BLOCKS[around](client, outer), BLOCKS[block](client, name) as claim:
            client.break_claim(name, "an outage")
            claim.checkpoint("half")
        assert client.history(name)[-1].event == "broken", block
        assert seen(client, outer) == expected(around, "LeaseLost of another"), block


def test_blocks_inside_each_other_end_each_as_the_table_says(client: dibs.Client) -> None:
    """What is raised reaches all of them; what is called ends the innermost."""
    for seed in range(tries(60, 1_000)):
        chance = random.Random(seed)
        blocks = [chance.choice(list(BLOCKS)) for _ in range(chance.randint(2, 4))]
        names = [tried_once(client, named(block, 10 * seed + level)) for level, block in enumerate(blocks)]
        end = chance.choice(ends_of(blocks[-1]))
        claim: Any = None
        try:
            with ExitStack() as stack:
                for block, name in zip(blocks, names, strict=True):
                    claim = stack.enter_context(BLOCKS[block](client, name))
                if end in RAISED:
                    raise RAISED[end][0]
                CALLED[end][0](claim)
        except BaseException as error:
            assert error is RAISED[end][0], (seed, blocks, end)  # noqa: PT017 - of any kind
        for block, name in zip(blocks, names, strict=True):
            is_last = name == names[-1]
            wanted = expected(block, end if is_last or end in RAISED else "nothing")
            assert seen(client, name) == wanted, (seed, blocks, end, block)
