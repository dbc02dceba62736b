"""`dibs next`: words and exit codes; the number alone on standard output."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dibs.sdk.client import Client
from tests.programs import clean_env, dibs_here

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal


@pytest.mark.promise("number")
def test_a_number_is_printed_and_given_back(terminal: Terminal) -> None:
    assert terminal("next", "migrations", "--at-least", "436").out == "436\n"
    assert terminal("next", "migrations", "--request-key", "k").out == "437\n"
    assert terminal("next", "migrations", "--request-key", "k", "-q").out == "437\n"
    refused = terminal("next", "migrations", "--number", "437", "--owner", "b")
    assert refused.exit == 1
    assert "Number 437 is taken." in refused.err
    assert "The next one that is free is 438." in refused.err
    assert terminal("next", "migrations", "--give-back", "437").out == "Given back: 437 of migrations.\n"
    assert terminal("next", "migrations", "--give-back", "437").out == "Nobody had it: 437 of migrations.\n"
    assert "got number 436" in terminal("history", "migrations").out


@pytest.mark.fault("F-771")
def test_a_closed_series_gives_no_number_and_says_why(terminal: Terminal) -> None:
    assert terminal("close", "migrations", "--for", "5m", "--reason", "they are renumbered").exit == 0
    refused = terminal("next", "migrations")
    assert (refused.exit, refused.out) == (75, "")
    assert "migrations is closed" in refused.err
    assert "they are renumbered" in refused.err
    error = terminal("next", "migrations", "--json").error
    assert (error["code"], error["details"]["closed"]["reason"]) == ("closed", "they are renumbered")


@pytest.mark.parametrize(
    "words",
    [
        ("--at-least", "0"),
        ("--number", "x"),
        ("--give-back", "1", "--number", "1"),
        ("--at-least", "1", "--number", "1"),
    ],
)
def test_words_that_make_no_sense_are_refused(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert terminal("next", "migrations", *words).exit == 64


def test_numbers_move_with_their_store(tmp_path: Path) -> None:
    env, copy, other = clean_env(tmp_path / "state"), str(tmp_path / "copy"), f"sqlite://{tmp_path}/other.db"

    def run(*words: str) -> int:
        return dibs_here(env, tmp_path, *words).returncode

    assert run("next", "migrations", "--at-least", "436", "--owner", "a") == 0
    assert run("export", "--to", copy) == 0
    assert run("import", other, "--from", copy) == 0
    assert run("next", "migrations", "--url", other, "--number", "436") == 1
    with Client(other) as client:
        assert client.next_number("migrations") == 437
        assert client.return_number("migrations", 437)
        assert client.next_number("migrations", request_key="k") == client.next_number("migrations", request_key="k")


@pytest.mark.promise("number")
def test_many_who_ask_at_once_get_one_each_without_a_gap(tmp_path: Path) -> None:
    def taken(_: int) -> list[int]:
        with Client(f"sqlite://{tmp_path}/dibs.db") as client:
            return [client.next_number("migrations") for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(taken, range(6)))
    assert sorted(number for each in found for number in each) == list(range(1, 61))
