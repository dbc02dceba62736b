"""Runs a generator: each value that it yields is answered, and the answer is sent back to it. `in_parts` is one for
what is too much at once.

Flows and protocols are written as such generators, so that they do no I/O of their own. What answers them is the
caller's: a transport, a connection, an event loop.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Awaitable, Callable, Generator, Iterable, Iterator, TypeVar

Asked = TypeVar("Asked")
T = TypeVar("T")


def run_generator(generator: Generator[Asked, Any, T], answer: Callable[[Asked], Any]) -> T:
    """Run it to its end, in this thread. What it returned."""
    given: Any = None
    while True:
        try:
            asked = generator.send(given)
        except StopIteration as end:
            result: T = end.value
            return result
        given = answer(asked)


async def run_generator_async(generator: Generator[Asked, Any, T], answer: Callable[[Asked], Awaitable[Any]]) -> T:
    """The same on an event loop."""
    given: Any = None
    while True:
        try:
            asked = generator.send(given)
        except StopIteration as end:
            result: T = end.value
            return result
        given = await answer(asked)


def in_parts(items: Iterable[T], most: int, weight: Callable[[T], int], heaviest: int) -> Iterator[list[T]]:
    """The items in parts of up to `most`, which weigh up to `heaviest` together. One that weighs more is alone."""
    part: list[T] = []
    total = 0
    for item in items:
        weighs = weight(item)
        if part and (len(part) == most or total + weighs > heaviest):
            yield part
            part, total = [], 0
        part.append(item)
        total += weighs
    if part:
        yield part
