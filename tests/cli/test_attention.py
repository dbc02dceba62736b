"""In words: when an owner was last heard of, and that somebody waits for what one holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.wire.values import ticket_text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal


def stand_in_line(terminal: Terminal, job: str, owner: str) -> None:
    """Get in line, and stay there without asking again."""
    lost = ticket_text("default", job, 999_999, new_id())
    ran = terminal("claim", job, "--owner", owner, "--ticket", lost, "--wait", "0s", "--json")
    assert ran.exit == 1, ran


@pytest.fixture
def line(terminal: Terminal) -> Any:
    return lambda job, owner="w1": stand_in_line(terminal, job, owner)


def test_a_refusal_says_when_the_owner_was_heard_and_calls_a_long_silence_by_its_name(
    terminal: Terminal,
) -> None:
    terminal.claim("job", "--owner", "agent-7", "--ttl", "1h")
    terminal.wait(3)
    ran = terminal("claim", "job")
    assert "  heard          last heartbeat 3 seconds ago" in ran.out.splitlines()
    assert ran.out.splitlines()[0] == "Held: agent-7 has job for another 59m 57s."
    terminal.wait(14 * 60)
    ran = terminal("claim", "job")
    assert ran.out.splitlines()[0] == "Held: agent-7 has job for another 45m 57s. Silent for 14m 3s."
    assert "  heard          silent for 14m 3s" in ran.out.splitlines()
    held = terminal("claim", "job", "--json").everything
    assert held["silent_ms"] == 843_000


@pytest.mark.promise("queue:holder-told")
def test_a_heartbeat_says_once_that_somebody_waits(terminal: Terminal, line: Any) -> None:
    lease = terminal.claim("job", "--owner", "agent-7")
    line("job")
    words = ("heartbeat", "job", "--lease", lease)
    told = "Somebody waits for job: release it as soon as you are finished with it."
    assert terminal(*words).out.splitlines()[-1] == told
    assert told not in terminal(*words).out
    line("job", "w2")
    assert terminal(*words).out.splitlines()[-1].startswith("2 wait for job: ")
    assert terminal(*words, "--json").everything["new_waiters"] == 0


@pytest.mark.promise("queue:holder-told")
def test_an_actor_is_told_once_by_whatever_command_it_runs_next(terminal: Terminal, line: Any, tmp_path: Path) -> None:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path)
    terminal.env["DIBS_ACTOR"] = "agent-7"
    terminal("claim", "a")
    terminal("claim", "b")
    terminal.env["DIBS_ACTOR"] = ""
    line("a")
    line("b")
    terminal.env["DIBS_ACTOR"] = "agent-7"
    ran = terminal("heartbeat", "a")
    assert ran.out.splitlines()[-1].startswith("Somebody waits for a: ")
    assert ran.err == "dibs: Somebody waits for b: release it as soon as you are finished with it.\n"
    assert "waits for" not in terminal("heartbeat", "a").out
    assert terminal("claim", "c").err == ""


def test_a_release_does_not_ask_to_release_for_those_who_wait(terminal: Terminal, line: Any, tmp_path: Path) -> None:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path)
    terminal("claim", "a", "--actor", "agent-7")
    terminal("claim", "b", "--actor", "agent-7")
    line("a")
    line("b")
    ran = terminal("release", "a", "--actor", "agent-7")
    assert ran.err == "dibs: Somebody waits for b: release it as soon as you are finished with it.\n"


@pytest.mark.promise("queue:holder-told")
def test_session_keep_says_once_that_somebody_waits(terminal: Terminal, line: Any) -> None:
    session = terminal.session("--owner", "agent-7")
    terminal("claim", "job", "--session", session)
    line("job")
    assert terminal("session", "keep", session).out.splitlines()[-1].startswith("Somebody waits for job: ")
    assert "waits" not in terminal("session", "keep", session).out


def test_a_hostile_job_name_stays_on_the_line_that_says_who_waits(terminal: Terminal) -> None:
    from dibs.cli.text.claim import waited_for

    assert waited_for({"name": "a\x1b[2Jb\nc", "waiting": 1_000, "new_waiters": 1}) == [
        "1,000 wait for a\\u001b[2Jb\\nc: release it as soon as you are finished with it."
    ]
