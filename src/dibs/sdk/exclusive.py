"""A decorator: only one caller at a time runs the function, on all machines."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from dibs.base.errors import JobDone, JobHeld
from dibs.sdk.default import claim
from dibs.sdk.parameters import explained

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from dibs.core.durations import Duration
    from dibs.sdk.default import EitherClaim

    Begin = Callable[[tuple[Any, ...], dict[str, Any]], EitherClaim]

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
) -> Any:
    """`@dibs.exclusive("rebuild-cache")`: claims the job, runs the function, and releases the job. For `def` and
    `async def`.

    `name` may be a function of the arguments: `@dibs.exclusive(lambda shard: f"rebuild-{shard}")`. With `done`, the
    job is marked as done when the function has returned. A call that raises counts as failed, see `Client.claim`."""

    def decorate(function: F) -> F:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> EitherClaim:
            job = name(*args, **kwargs) if callable(name) else name
            return claim(job, ttl=ttl, wait=wait, max_attempts=max_attempts, fail_on_error=fail_on_error)

        claimed = _claimed_async if inspect.iscoroutinefunction(function) else _claimed
        return functools.wraps(function)(claimed(function, begin, done, skip=skip))  # type: ignore[return-value]

    return decorate


def _claimed(function: F, begin: Begin, done: Duration | bool | None, *, skip: bool) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        entered = False
        try:
            with begin(args, kwargs) as held:
                entered = True
                result = function(*args, **kwargs)
                if done is not None:
                    held.done(done=done)
                return result
        except (JobHeld, JobDone):
            if skip and not entered:
                return None
            raise

    return run


def _claimed_async(
    function: F, begin: Begin, done: Duration | bool | None, *, skip: bool
) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        entered = False
        try:
            async with begin(args, kwargs) as held:
                entered = True
                result = await function(*args, **kwargs)
                if done is not None:
                    await held.done(done=done)
                return result
        except (JobHeld, JobDone):
            if skip and not entered:
                return None
            raise

    return run
