"""Generators that ask, and whoever answers them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dibs.base.generators import run_generator, run_generator_async

if TYPE_CHECKING:
    from collections.abc import Generator


def summing() -> Generator[str, int, int]:
    return (yield "a") + (yield "b")


def test_each_question_is_answered_and_the_end_is_returned() -> None:
    assert run_generator(summing(), {"a": 1, "b": 2}.__getitem__) == 3


def test_on_an_event_loop_it_is_the_same() -> None:
    async def answer(asked: str) -> int:
        return {"a": 1, "b": 2}[asked]

    assert asyncio.run(run_generator_async(summing(), answer)) == 3


def test_a_failed_answer_leaves_as_it_is() -> None:
    with pytest.raises(KeyError):
        run_generator(summing(), {"a": 1}.__getitem__)
