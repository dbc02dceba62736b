"""A function that only one caller runs at a time, wherever they are."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.errors import JobDone, JobHeld
from dibs.sdk.default import claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.default import EitherClaim

F = TypeVar("F", bound="Callable[..., Any]")


def exclusive(
    name: str | Callable[..., str],
    *,
    ttl: float | None = None,
    wait: float | None = None,
    done: float | None = None,
    skip: bool = False,
) -> Callable[[F], F]:
    """`@dibs.exclusive("rebuild-cache")`: claim the job, run the function, let go. For `def` and `async def`.

    `name` may be a function of the arguments: `@dibs.exclusive(lambda shard: f"rebuild-{shard}")`. `done`: when it
    returns, the job counts as done for that many seconds. `skip`: return None instead of raising JobHeld or JobDone."""

    def decorate(function: F) -> F:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> EitherClaim:
            job = name(*args, **kwargs) if callable(name) else name
            return claim(job, ttl=ttl, wait=wait)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            entered = False
            try:
                with begin(args, kwargs) as held:
                    entered = True
                    result = function(*args, **kwargs)
                    if done is not None:
                        held.done(keep=done)
                    return result
            except (JobHeld, JobDone):
                if skip and not entered:
                    return None
                raise

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            entered = False
            try:
                async with begin(args, kwargs) as held:
                    entered = True
                    result = await function(*args, **kwargs)
                    if done is not None:
                        await held.done(keep=done)
                    return result
            except (JobHeld, JobDone):
                if skip and not entered:
                    return None
                raise

        return run_async if inspect.iscoroutinefunction(function) else run  # type: ignore[return-value]

    return decorate
