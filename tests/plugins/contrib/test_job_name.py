"""Job names from arguments: different arguments, different names, whatever the arguments hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base.errors import InvalidInput
from dibs.contrib.one_owner import arguments_of, filled, name_of_call
from dibs.core.names import check_name

ANYTHING = st.text(max_size=300)


@pytest.mark.parametrize("template", ["import {a} {b}", "{a}-{b}", "x({a!r}, {b!r})", "{a}ab{b}"])
@given(first=st.tuples(ANYTHING, ANYTHING), second=st.tuples(ANYTHING, ANYTHING))
def test_different_values_give_different_names_that_the_store_takes(
    template: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    names = [filled(template, {"a": a, "b": b}) for a, b in (first, second)]
    assert (names[0] == names[1]) is (first == second)
    for name in names:
        check_name(name)


@given(a=ANYTHING.filter(lambda text: text.isascii()), b=ANYTHING)
def test_a_value_cannot_pass_for_a_value_and_a_separator(a: str, b: str) -> None:
    assert filled("{a}-{b}", {"a": f"{a}-{b}", "b": ""}) != filled("{a}-{b}", {"a": a, "b": f"{b}-"})


def test_plain_values_stay_as_they_are() -> None:
    assert filled("import {feed} of {day:%Y}", {"feed": "acme/app#42", "day": _day()}) == "import acme/app#42 of 2026"


def _day() -> Any:
    from datetime import date

    return date(2026, 1, 2)


def test_a_name_that_is_too_long_keeps_its_beginning_and_stays_distinct() -> None:
    long, other = (filled("import {feed}", {"feed": "é" * 600 + end}) for end in "ab")
    assert long != other
    assert long.startswith("import éé")
    assert check_name(long)


@pytest.mark.parametrize("template", ["{a}{b}", "{c}", "{a.x}", "{a", "{0}"])
def test_a_template_that_cannot_be_filled_in_is_refused(template: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be filled in"):
        filled(template, {"a": 1, "b": 2})


def test_a_call_has_one_name_however_it_is_written() -> None:
    def work(feed: str, full: bool = False, **more: int) -> None: ...

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("news",), {}),
        ((), {"feed": "news"}),
        (("news", False), {}),
    ]
    assert {name_of_call("{feed} {full}", work, *call) for call in calls} == {"news False"}
    assert arguments_of(work, ("x",), {"b": 1, "a": 2})["more"] == {"a": 2, "b": 1}
    assert list(arguments_of(work, ("x",), {"b": 1, "a": 2})["more"]) == ["a", "b"]
    assert name_of_call(lambda feed: f"of {feed}", work, ("news",), {}) == "of news"
