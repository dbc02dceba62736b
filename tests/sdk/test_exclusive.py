"""What `@dibs.exclusive` holds: the claim is there while the body runs, whatever the function is, or it is refused."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import types
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

import dibs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

pytestmark = pytest.mark.fault("F-341")
exclusive: Any = dibs.exclusive("job", done=True)


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("DIBS_URL", f"sqlite://{tmp_path}/dibs.db")


def is_held() -> bool:
    return dibs.get_job_owner("job") is not None


def status() -> str:
    return dibs.connect().owner("job").status


async def coroutine_function() -> bool:
    await asyncio.sleep(0)
    return is_held()


def function() -> bool:
    return is_held()


class Callables:
    def __call__(self) -> bool:
        return is_held()

    def method(self) -> bool:
        return is_held()

    async def method_of_loops(self) -> bool:
        return is_held()


class AsyncCallable:
    async def __call__(self) -> bool:
        return is_held()


def passed_on(inner: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(inner)
    def outer() -> Any:
        return inner()

    return outer


def awaited(inner: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(inner)
    async def outer() -> Any:
        return await inner()

    return outer


def run_to_its_end(inner: Callable[[], Any]) -> Callable[[], Any]:
    """A decorator that makes a plain function of something else: what it wraps says nothing."""

    @functools.wraps(inner)
    def outer() -> Any:
        made = inner()
        return asyncio.run(made) if inspect.iscoroutine(made) else next(iter(made))

    return outer


def generator() -> Iterator[bool]:
    yield is_held()


@contextlib.contextmanager
def around() -> Iterator[None]:
    yield


HELD: dict[str, Callable[[], Any]] = {
    "function": function,
    "partial": functools.partial(function),
    "callable object": Callables(),
    "method": Callables().method,
    "wrapped function": passed_on(function),
    "cached function": functools.cache(is_held),
    "function whose decorator runs a coroutine": run_to_its_end(coroutine_function),
    "function whose decorator runs a generator": run_to_its_end(generator),
    "function in a context manager": around()(function),
    "coroutine function": coroutine_function,
    "partial of a coroutine function": functools.partial(coroutine_function),
    "partial of a partial of one": functools.partial(functools.partial(coroutine_function)),
    "method of loops": Callables().method_of_loops,
    "async callable": AsyncCallable(),
    "partial of an async callable": functools.partial(AsyncCallable()),
    "bound __call__ of one": AsyncCallable().__call__,
    "coroutine function, wrapped": awaited(coroutine_function),
    "method of contextlib": functools.partial(contextlib.ExitStack().enter_context, contextlib.nullcontext(True)),
    "mock of a coroutine function": AsyncMock(side_effect=coroutine_function),
}


@pytest.mark.parametrize("kind", HELD)
def test_the_job_is_held_while_the_body_runs(kind: str) -> None:
    result = exclusive(HELD[kind])()
    assert (asyncio.run(result) if inspect.iscoroutine(result) else result) is True
    assert status() == "done"


def test_two_of_them_hold_both_in_either_order() -> None:
    def both() -> tuple[bool, bool]:
        return is_held(), dibs.get_job_owner("outer") is not None

    async def both_of_loops() -> tuple[bool, bool]:
        return both()

    outer: Any = dibs.exclusive("outer")
    inner: Any = dibs.exclusive("job")
    assert outer(inner(both))() == inner(outer(both))() == (True, True)
    assert asyncio.run(outer(inner(both_of_loops))()) == (True, True)
    assert asyncio.run(inner(outer(both_of_loops))()) == (True, True)


def test_static_and_class_methods_are_held_with_the_decorators_in_either_order() -> None:
    class Worker:
        @staticmethod
        @dibs.exclusive("job")
        def below_static(shard: int) -> tuple[int, bool]:
            return shard, is_held()

        @dibs.exclusive("job")
        @staticmethod
        def above_static(shard: int) -> tuple[int, bool]:
            return shard, is_held()

        @classmethod
        @dibs.exclusive("job")
        def below_class(cls, shard: int) -> tuple[int, bool]:
            return shard, is_held()

        @dibs.exclusive(lambda cls, shard: "job")
        @classmethod
        def above_class(cls, shard: int) -> tuple[int, bool]:
            return shard, is_held()

        @dibs.exclusive(lambda self, shard: "job")
        async def method(self, shard: int) -> tuple[int, bool]:
            return shard, is_held()

    for call in (Worker.below_static, Worker.above_static, Worker.below_class, Worker.above_class):
        assert call(4) == (4, True)
    assert asyncio.run(Worker().method(4)) == (4, True)


async def generator_of_loops() -> AsyncIterator[bool]:
    yield is_held()


class Generators:
    def __call__(self) -> Iterator[bool]:
        yield is_held()

    async def of_loops(self) -> AsyncIterator[bool]:
        yield is_held()


REFUSED: dict[str, Any] = {
    "generator function": generator,
    "async generator function": generator_of_loops,
    "partial of a generator function": functools.partial(generator),
    "object that generates": Generators(),
    "method that generates": Generators().of_loops,
    "context manager": contextlib.contextmanager(generator),
    "async context manager": contextlib.asynccontextmanager(generator_of_loops),
    "partial of a context manager": functools.partial(contextlib.contextmanager(generator)),
    "static method that generates": staticmethod(generator),
    "class": Callables,
    "partial of a class": functools.partial(Callables),
    "property": property(lambda self: is_held()),
    "number": 3,
    "nothing": None,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_runs_after_the_call_is_refused_when_it_is_decorated(kind: str) -> None:
    with pytest.raises(dibs.InvalidInput, match=r"dibs\.exclusive") as refused:
        exclusive(REFUSED[kind])
    assert len(refused.value.details) < 300
    assert dibs.connect().history("job") == []


class Later:
    def __await__(self) -> Any:
        yield from ()
        return is_held()


LATER: dict[str, Callable[[], Any]] = {
    "coroutine": coroutine_function,
    "coroutine of a wrapper": passed_on(coroutine_function),
    "coroutine of a cache": functools.cache(coroutine_function),
    "awaitable": Later,
    "generator": lambda: (is_held() for _ in range(3)),
    "generator of a wrapper": passed_on(generator),
    "async generator": generator_of_loops,
    "context manager of a wrapper": passed_on(contextlib.contextmanager(generator)),
    "future": Future,
    "old coroutine": types.coroutine(generator),
}


@pytest.mark.parametrize("kind", LATER)
@pytest.mark.filterwarnings("error")
def test_a_call_that_returns_work_is_refused_then_and_nothing_is_done(kind: str) -> None:
    made: list[Any] = []

    def function() -> Any:
        made.append(LATER[kind]())
        return made[-1]

    with pytest.raises(dibs.InvalidInput, match=r"dibs\.exclusive"):
        exclusive(function)()
    assert status() == "free"
    assert dibs.connect().history("job")[-1].event == "failed"
    if isinstance(made[0], Future):
        assert made[0].cancelled()
    if inspect.iscoroutine(made[0]):
        assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_a_coroutine_function_that_returns_work_is_refused_as_well() -> None:
    ran = []

    async def work() -> None:
        ran.append(is_held())

    async def starts() -> Awaitable[None]:
        return asyncio.ensure_future(work())

    async def main() -> None:
        with pytest.raises(dibs.InvalidInput, match="Task"):
            await exclusive(starts)()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert (ran, status()) == ([], "free")


def test_what_is_over_or_only_looks_like_work_is_returned() -> None:
    over: Future[int] = Future()
    over.set_result(3)

    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise LookupError(name)

    for value in (over, Odd(), iter([1]), contextlib.nullcontext(), io.StringIO(), dibs.claim("x")):
        assert dibs.exclusive("job")(lambda value=value: value)() is value
    assert status() == "free"


def test_it_stays_what_it_was_for_who_asks() -> None:
    wrapped = exclusive(coroutine_function)
    assert inspect.iscoroutinefunction(wrapped)
    assert wrapped.__wrapped__ is coroutine_function
    assert inspect.iscoroutinefunction(exclusive(AsyncCallable()))
    assert not inspect.iscoroutinefunction(exclusive(function))


def typed() -> Coroutine[Any, Any, bool]:
    """The types of what is decorated stay."""
    return dibs.exclusive("job")(coroutine_function)()
