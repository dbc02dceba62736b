"""Locks shaped like those of `threading` and `asyncio`, for code that was written for them.

But for RLock they are not reentrant. Between acquire and release a heartbeat runs. Unlike those, they can be lost:
`check()`, `release()` and the end of the block report it. A lock is not a job that can fail: a block that raises
releases it like any other (`fail_on_error`).

A lock may be shared. A claim belongs to the thread or task that acquired it: if that one loses its lease and another
acquires the lock, each releases its own claim, and the loss is reported to the first. To release from somewhere else,
pass `lock.claim` on: its `release()` may be called from anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from dibs.base.errors import InvalidInput, JobDone, JobHeld, NotClaimed
from dibs.core.durations import Duration
from dibs.sdk import operations
from dibs.sdk.async_claim import AsyncClaim
from dibs.sdk.async_client import AsyncClient
from dibs.sdk.claim import Claim
from dibs.sdk.claims import TTL_SECONDS, OnLost
from dibs.sdk.client import Client
from dibs.sdk.default import Acquired, EitherClaim, claim, default_async_client, default_client
from dibs.sdk.methods import Handle, explained

# A decorator: only one caller at a time runs the function, on all machines.

F = TypeVar("F", bound="Callable[..., Any]")
P = ParamSpec("P")
R = TypeVar("R")


class SkippingDecorator(Protocol):
    """A decorator whose function may return None instead of what it returns."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


@overload
def exclusive(
    name: str | Callable[..., str],
    *,
    ttl: Duration | None = None,
    wait: Duration | None = None,
    done: Duration | bool | None = None,
    skip: Literal[False] = False,
    max_attempts: int | None = None,
    fail_on_error: bool = True,
) -> Callable[[F], F]: ...


@overload
def exclusive(
    name: str | Callable[..., str],
    *,
    ttl: Duration | None = None,
    wait: Duration | None = None,
    done: Duration | bool | None = None,
    skip: bool,
    max_attempts: int | None = None,
    fail_on_error: bool = True,
) -> SkippingDecorator: ...


@explained
def exclusive(
    name: str | Callable[..., str],
    *,
    ttl: Duration | None = None,
    wait: Duration | None = None,
    done: Duration | bool | None = None,
    skip: bool = False,
    max_attempts: int | None = None,
    fail_on_error: bool = True,
) -> Callable[[F], F] | SkippingDecorator:
    """`@dibs.exclusive("rebuild-cache")`: claims the job, runs the function, and releases the job. For whatever is
    called and has then ended, or is awaited: `def`, `async def`, methods, partials, callable objects. Raises
    InvalidInput for what runs later: a generator, a context manager; and for a call that returns such work.

    `name` may be a function of the arguments: `@dibs.exclusive(lambda shard: f"rebuild-{shard}")`. With `done`, the
    job is marked as done when the function has returned. A call that raises counts as failed, see `Client.claim`."""

    def decorate(function: F) -> F:
        if isinstance(function, staticmethod | classmethod):
            return type(function)(decorate(function.__func__))
        called = _called(function)
        _check_ends_with_call(function, called)

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> EitherClaim:
            job = name(*args, **kwargs) if callable(name) else name
            return claim(job, ttl=ttl, wait=wait, max_attempts=max_attempts, fail_on_error=fail_on_error)

        def run(*args: Any, **kwargs: Any) -> Any:
            entered = False
            try:
                with begin(args, kwargs) as held:
                    entered = True
                    operations.check_done(held.name, done)
                    result = function(*args, **kwargs)
                    _check_ended(result)
                    if done is not None:
                        held.done(done=done)
                    return result
            except (JobHeld, JobDone):
                if skip and not entered:
                    return None
                raise

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            entered = False
            try:
                async with begin(args, kwargs) as held:
                    entered = True
                    operations.check_done(held.name, done)
                    result = await function(*args, **kwargs)
                    _check_ended(result)
                    if done is not None:
                        await held.done(done=done)
                    return result
            except (JobHeld, JobDone):
                if skip and not entered:
                    return None
                raise

        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        claimed = run_async if is_async else run
        return functools.wraps(function)(claimed)  # type: ignore[return-value]

    return decorate


_CLAIM_INSIDE = "`@dibs.exclusive` holds its job during one call. Claim it where the work is: `with dibs.claim(…):`."
# What is work that runs later.
_LATER: tuple[type, ...] = (GeneratorType, AsyncGeneratorType)
_LATER += (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)


def _called(function: Any) -> Any:
    """The function that a call runs: of a partial, of a method, of an object with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    is_object = callable(function) and not inspect.isroutine(function) and not isinstance(function, type)
    return type(function).__call__ if is_object else function


def _check_ends_with_call(function: object, called: Any) -> None:
    """Raise InvalidInput for what cannot be decorated: its body would run after the call, without the claim."""
    if not callable(called) or isinstance(called, type):
        raise InvalidInput(f"`@dibs.exclusive(name)` is for functions and methods; this is {function!r:.80}.")
    # contextlib's own functions make a context manager of the generator that they wrap.
    is_contextlibs = getattr(called, "__globals__", None) is vars(contextlib)
    made = getattr(called, "__wrapped__", called) if is_contextlibs else called
    if inspect.isgeneratorfunction(made) or inspect.isasyncgenfunction(made):
        what = "generator" if made is called else "context manager"
        raise InvalidInput(f"{made.__qualname__:.80} is a {what}, which runs after it was called. {_CLAIM_INSIDE}")


def _check_ended(result: object) -> None:
    """Raise InvalidInput for a result that is work which has not ended, and end it: it would go on without the claim.
    Whether a plain function returns such a thing is known only now."""
    if isinstance(result, Future | asyncio.Future):
        if result.done():
            return
        result.cancel()
    elif inspect.iscoroutine(result):
        result.close()
    elif not (inspect.isawaitable(result) or isinstance(result, _LATER)):
        return
    raise InvalidInput(f"The call returned work that is not done yet, a {type(result).__name__}. {_CLAIM_INSIDE}")


K = TypeVar("K")
C = TypeVar("C", bound=Claim | AsyncClaim)


class _Named(Handle, Generic[K, C]):
    """The common part of both locks, with a client `K` and its claims `C`. A job that counts as done does not block a
    lock."""

    _default: Callable[[], K]
    _nested = False

    @explained
    def __init__(
        self,
        name: str,
        *,
        client: K | None = None,
        ttl: Duration = TTL_SECONDS,
        on_lost: OnLost | None = None,
        metadata: str | None = None,
    ) -> None:
        self.name = name
        self._client = client
        self._request: dict[str, Any] = {"ttl": ttl, "on_lost": on_lost, "metadata": metadata, "again": True}
        self._request |= {"nested": self._nested, "fail_on_error": False}
        self._acquired: Acquired[C] = Acquired()

    def __repr__(self) -> str:
        claim = self._acquired.mine()
        return f"<{type(self).__name__} {self.name}: {'not held here' if claim is None else repr(claim)}>"

    def _clients(self) -> K:
        return self._default() if self._client is None else self._client

    @property
    def claim(self) -> C:
        """Return what this thread or task holds between acquire and release: its fencing token, its deadline,
        `lost`."""
        claim = self._acquired.mine()
        if claim is None:
            raise RuntimeError("the lock is not held here: this thread or task has not acquired it")
        return claim

    def check(self) -> None:
        """Raise LeaseLost unless it is surely still this thread's or task's."""
        self.claim.check()


class Lock(_Named[Client, Claim]):
    """`threading.Lock`, across processes and machines. Unlike that one, the thread that acquired it releases it."""

    _default = staticmethod(default_client)

    @explained
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """True if the lock was acquired. Waits in line: for ever by default, for `timeout` seconds if given."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if math.isnan(timeout):
            raise ValueError("timeout value must be a number, not NaN")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        wait = (math.inf if timeout == -1 else timeout) if blocking else None
        claim = self._clients().claim(self.name, wait=wait, **self._request)
        try:
            claim.__enter__()
        except NotClaimed as refusal:
            if refusal.code != "held":
                raise
            return False
        try:
            self._acquired.add(claim)
        except BaseException:  # after an interrupt nobody would release it
            claim.__exit__(None, None, None)
            raise
        return True

    def release(self) -> None:
        """Raises RuntimeError when this thread has not acquired it, LeaseLost when it was lost meanwhile."""
        self._leave(None)

    def locked(self) -> bool:
        """Tell whether anybody has it, here or elsewhere."""
        return self._clients().owner(self.name).held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        claim = self._acquired.take()
        if claim is None:
            raise RuntimeError("release unlocked lock")
        claim.__exit__(type(error), error, None)


class RLock(Lock):
    """`threading.RLock`, across processes and machines: the thread that has it may acquire it again, through any lock
    of that name and client, and releases it as often."""

    _nested = True


class AsyncLock(_Named[AsyncClient, AsyncClaim]):
    """`asyncio.Lock`, across processes and machines. As with that one, `release()` is not a coroutine; it returns an
    awaitable for callers that want to wait until it is done."""

    _default = staticmethod(default_async_client)

    @explained
    async def acquire(self) -> bool:
        """Returns True. Waits in line without end; to give up sooner, use `asyncio.timeout`."""
        claim = self._clients().claim(self.name, wait=math.inf, **self._request)
        await claim.__aenter__()
        self._acquired.add(claim)
        return True

    def release(self) -> Awaitable[None]:
        """Raises RuntimeError if this task has not acquired it. If the result is not awaited, closing the client awaits
        it."""
        claim = self._acquired.take()
        if claim is None:
            raise RuntimeError("Lock is not acquired.")
        return self._clients()._finish(claim.__aexit__(None, None, None))

    def locked(self) -> bool:
        """Tell whether it is held through this object. `await client.owner(name)` says who has it elsewhere."""
        return len(self._acquired) > 0

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        claim = self._acquired.take()
        if claim is None:
            raise RuntimeError("Lock is not acquired.")
        await claim.__aexit__(kind, error, trace)
