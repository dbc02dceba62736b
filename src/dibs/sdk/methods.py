"""Methods of both faces, whose parameters are written once: where the question is asked (`operations.py`), or where
what they ask for is made (`claims.py`, `claim_state.py`). Type checkers follow them through
`ParamSpec`; `help()` and `inspect.signature` are told them here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from dibs.client.queueing import Work, name_in_use
from dibs.core.references import is_plain
from dibs.sdk.async_guard import shielded
from dibs.sdk.parameters import explained, name_given

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from dibs.client.queueing import Flow

F = TypeVar("F", bound="Callable[..., Any]")
G = TypeVar("G")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _named(flow: Callable[..., Flow[T]]) -> Callable[..., Flow[T]]:
    """The flow of a client, with the job under its one name, or as it was written if it is in use so."""
    is_of_job = next(iter(inspect.signature(flow).parameters)) == "name"

    def named_flow(client: Any, *args: Any, **named: Any) -> Flow[T]:
        written = args[0] if args else named.get("name")
        if is_of_job and (args or "name" in named):
            name_given(written)
        if not is_of_job or is_plain(written):
            return flow(*args, **named)
        rest = {key: value for key, value in named.items() if key != "name"}

        def spelled() -> Flow[T]:
            one = yield Work(lambda: client._one_name(written))
            name = yield from name_in_use(one, written)
            return (yield from flow(name, *args[1:], **rest))

        return spelled()

    return named_flow


def asks(name: str, flow: Callable[P, Flow[T]]) -> Callable[Concatenate[Any, P], T]:
    """A method of `Client`."""
    named_flow = _named(flow)

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._run(named_flow(self, *args, **kwargs))
        return answer

    return _described(method, name, flow)


def awaits(name: str, flow: Callable[P, Flow[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of `AsyncClient`."""
    named_flow = _named(flow)

    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = await self._run(named_flow(self, *args, **kwargs))
        return answer

    return _described(method, name, flow)


def awaits_end(name: str, flow: Callable[P, Flow[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of `AsyncClient` that is carried out although its caller is cancelled."""
    named_flow = _named(flow)

    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await shielded(lambda: self._run(named_flow(self, *args, **kwargs)))

    return _described(method, name, flow)


def given(
    made: Callable[Concatenate[Any, P], G],
) -> Callable[[Callable[[Any, G], R]], Callable[Concatenate[Any, P], R]]:
    """A decorator: the method takes what `made` takes, and is given what that returns."""

    def described(method: Callable[[Any, G], R]) -> Callable[Concatenate[Any, P], R]:
        def bound(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(self, made(self, *args, **kwargs))

        return _told(bound, method.__name__, inspect.signature(made), made.__doc__ or "")

    return described


def takes_like(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A decorator: the function takes what `method` takes, and is given it by name."""
    signature = inspect.Signature(list(inspect.signature(method).parameters.values())[1:])

    def described(function: Callable[..., R]) -> Callable[P, R]:
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(**signature.bind(*args, **kwargs).arguments)

        bound.__module__ = function.__module__
        return _told(bound, function.__name__, signature, function.__doc__ or "")

    return described


def _described(method: F, name: str, flow: Callable[..., Any]) -> F:
    parameters = [_SELF, *inspect.signature(flow).parameters.values()]
    return _told(method, name, inspect.Signature(parameters), flow.__doc__ or "")


def _told(function: F, name: str, signature: inspect.Signature, about: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    function.__signature__ = signature  # type: ignore[attr-defined]  # what inspect looks for
    return explained(function)
