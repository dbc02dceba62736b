"""docs/reference/python.md says what `import dibs` offers: every public name, every parameter, every member."""

from __future__ import annotations

import inspect
import os
import re

import pytest

import dibs
from dibs import testing
from dibs.sdk.methods import MEANINGS
from tests.docs.pages import REFERENCE, read, rows, section
from tests.docs.signatures import members, shown

FILE = REFERENCE / "python.md"
PAGE = read(FILE)
# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
CLASSES = {name: each for name in dibs.__all__ if inspect.isclass(each := getattr(dibs, name))}
ERRORS = {name: each for name, each in CLASSES.items() if issubclass(each, Exception)}
LISTS = {name: each for name, each in CLASSES.items() if name not in ERRORS and not name.startswith("Async")}
ASYNC = {name: each for name, each in CLASSES.items() if name.startswith("Async")}
# Made by calling them; the others come from a method.
MADE_BY_HAND = ("Client", "Lock", "Fence")
# As their counterparts of the standard library, these differ between threads and event loops.
DIFFERENT = {"Lock": "acquire"}


def listed(title: str) -> list[str]:
    """The names in the list below a heading. A line may explain several."""
    lines = re.findall(r"^- ((?:`[^`]+`(?:, )?)+): ", section(PAGE, title), re.MULTILINE)
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line)]


def test_every_public_function_is_listed_as_it_is_called() -> None:
    functions = [
        shown(name, getattr(dibs, name)) if callable(getattr(dibs, name)) else name
        for name in dibs.__all__
        if name not in CLASSES
    ]
    assert sorted(listed("Functions")) == sorted(functions)


def told_once(kind: type) -> set[str]:
    """The members of a class as its list has them: not those of a public class that it is based on, and `claim(…)` for
    a method that takes what the public function of its name takes."""
    inherited = {each for base in kind.__mro__[1:] if base in LISTS.values() for each in members(base)}
    functions = {shown(name, getattr(dibs, name)): f"{name}(…)" for name in dibs.__all__ if name in dir(kind)}
    return {functions.get(each, each) for each in members(kind) if each not in inherited}


@pytest.mark.parametrize("name", LISTS)
def test_every_member_of_a_class_is_listed_as_it_is_called(name: str) -> None:
    assert sorted(listed(name)) == sorted(told_once(LISTS[name]))


@pytest.mark.parametrize("name", MADE_BY_HAND)
def test_a_class_that_is_called_by_its_users_is_shown_with_what_it_takes(name: str) -> None:
    assert f"`{shown(name, LISTS[name])}`" in section(PAGE, name)


@pytest.mark.parametrize("name", ASYNC)
def test_the_face_for_event_loops_has_the_same_names_and_is_named_beside_the_other(name: str) -> None:
    twin = name.removeprefix("Async")
    assert f"**{name}**" in section(PAGE, twin)
    ours, theirs = set(members(ASYNC[name])), set(members(LISTS[twin]))
    assert {each.split("(")[0] for each in ours} == {each.split("(")[0] for each in theirs}
    assert {each.split("(")[0] for each in ours ^ theirs} <= {DIFFERENT.get(twin)}


def test_what_is_for_tests_is_listed_as_it_is_called() -> None:
    assert sorted(listed("Testing")) == sorted(shown(name, getattr(testing, name)) for name in testing.__all__)
    assert {*testing.__all__} <= {*dir(testing)}


def test_every_section_has_an_example_that_is_run() -> None:
    """A section of the second level, or one of those below it."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    assert [title for title, text in zip(parts[1::2], parts[2::2], strict=True) if "```python run" not in text] == []


def test_every_parameter_of_a_claim_is_explained_as_help_does() -> None:
    ways = (dibs.Client.claim, dibs.Client.claim_any, dibs.Client.claim_all)
    taken = dict.fromkeys(each for way in ways for each in inspect.signature(way).parameters if each != "self")
    lines = "".join(f"- `{each}`: {MEANINGS[each]}\n" for each in taken)
    head, title, rest = read(FILE).partition("## Parameters of a claim\n\n")
    found = re.match(r"(?:- .*\n)*", rest)
    assert found is not None
    if REWRITE:
        FILE.write_text(head + title + lines + rest[found.end() :], encoding="utf-8")
    else:
        assert found[0] == lines


def test_every_exception_is_listed_below_the_right_parent_with_what_it_carries() -> None:
    found = {row[0].strip("`"): row for row in rows(section(PAGE, "Exceptions"))}
    assert found.keys() == ERRORS.keys()
    for name, error in ERRORS.items():
        assert found[name][1] == error.__mro__[1].__name__
        own = {each for each, value in vars(error).items() if isinstance(value, property)}
        told = set(re.findall(r"`(\w+)`", found[name][3]))
        made = inspect.signature(error).parameters if "__init__" in vars(error) else {}
        assert own <= told <= own | set(made) | {"code", "details"}
