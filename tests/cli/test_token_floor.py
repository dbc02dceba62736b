"""Moving from another lock service: every fencing token is higher than all tokens seen there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import wall_ms
from dibs.client.transport import Ask
from tests.programs import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal


def token(terminal: Terminal, job: str) -> int:
    found: int = terminal("claim", job, "--json").data["fencing_token"]
    return found


def test_the_floor_is_raised_for_every_job_and_never_lowered(terminal: Terminal) -> None:
    assert token(terminal, "before") == 1
    assert terminal("token-floor", "5000", "--json").data == {"token_floor": 5000}
    assert token(terminal, "after") == 5001
    lower = terminal("token-floor", "10")
    assert lower.out == "All new fencing tokens are above 5000. It was that high before.\n"
    assert token(terminal, "last") == 5001
    terminal("break", "before", "--reason", "r")
    assert token(terminal, "before") == 5001


def test_numbers_of_events_go_on_from_the_clock(terminal: Terminal) -> None:
    """An old copy that was put back by other means would give out numbers again that others have seen."""
    token(terminal, "before")
    began_us = wall_ms() * 1_000
    terminal("token-floor", "10")
    token(terminal, "after")
    (event,) = terminal("history", "after", "--json").data["events"]
    assert event["seq"] > began_us


@pytest.mark.parametrize("number", ["0", "-1", "1e3", "ten", "9" * 30])
def test_a_floor_that_is_none_is_refused(terminal: Terminal, number: str) -> None:
    assert terminal("token-floor", "--", number).exit == 64


@pytest.mark.e2e
def test_a_server_takes_the_floor_when_it_starts_and_keeps_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, flags=["--token-floor", "7000"]) as server:
        reply = server.transport().ask(Ask("acquire", "a"))
        assert (reply.body or {})["fencing_token"] == 7001
        floor = server.store_url
    with ServerProcess(tmp_path, store=floor) as server:
        reply = server.transport().ask(Ask("acquire", "b"))
        assert (reply.body or {})["fencing_token"] == 7001
