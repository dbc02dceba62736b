"""serve --token-floor: every fencing token is higher than all tokens seen elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.client.transport import Ask
from tests.programs import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal

FLOOR = 2_000_000_000_000  # as of a store that was moved before: its tokens began at the time in milliseconds


@pytest.mark.parametrize("number", ["-1", "1e3", "ten", "9" * 16])
def test_a_floor_that_is_none_is_refused(terminal: Terminal, number: str) -> None:
    ran = terminal("serve", f"--token-floor={number}")
    assert ran.exit == 64
    assert "takes a whole number from 0 to 1000000000000000" in ran.err


def claimed(server: ServerProcess, job: str) -> tuple[int, int]:
    """The fencing token of a new claim, and the number of its event."""
    transport = server.transport()
    lease: Any = transport.ask(Ask("acquire", job)).body
    (event,) = (transport.ask(Ask("history", job)).body or {})["events"]
    return lease["fencing_token"], event["seq"]


@pytest.mark.e2e
@pytest.mark.fault("F-675")
def test_a_server_takes_the_floor_at_its_first_start_and_numbers_of_events_go_on_from_the_clock(tmp_path: Path) -> None:
    began_us = wall_ms() * 1_000
    with ServerProcess(tmp_path, flags=[f"--token-floor={FLOOR}"]) as server:
        token, first = claimed(server, "a")
        assert token == FLOOR + 1
        assert first > began_us
        server.stop()
        server.start()  # with the same flag: the floor is as high already, so followers get no second gap
        token, second = claimed(server, "b")
        assert token == FLOOR + 1
        assert first < second < first + 1_000
