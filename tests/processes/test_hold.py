"""dibs hold: a line per event, and an end when it is told to."""

from __future__ import annotations

import json
import signal
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import steady_ms
from dibs.cli.commands.hold import said
from dibs.cli.supervise.process_session import claim
from dibs.client.transport import Ask
from dibs.wire.parts import instant_ms
from tests.processes.machine import Machine, finished, first_line
from tests.programs import ServerProcess, wait_until_stopped

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.cli.framework.result import Answer
    from dibs.cli.supervise.process_session import ProcessSession
    from tests.cli.conftest import Terminal

pytestmark = pytest.mark.e2e


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def event(child: subprocess.Popen[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(first_line(child))
    return document


def certain_until(said: dict[str, Any]) -> float:
    return datetime.fromisoformat(said["at"]).timestamp() + int(said["remaining_ms"]) / 1000


def session_of_ttl(machine: Machine, seconds: int) -> dict[str, Any]:
    body = machine.transport.ask(Ask("sessions")).body or {}
    (found,) = [each for each in body["sessions"] if each["ttl_seconds"] == seconds]
    document: dict[str, Any] = found
    return document


def hold(machine: Machine, *flags: str) -> subprocess.Popen[str]:
    return machine.start("hold", "job", "--json", "--ttl", "10s", *flags, stdin=-1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_holds_until_it_is_told_to_stop(machine: Machine, number: int) -> None:
    child = hold(machine, "--owner", "sidecar")
    acquired = event(child)
    assert (acquired["event"], acquired["name"], acquired["fencing_token"]) == ("acquired", "job", 1)
    assert 0 < acquired["remaining_ms"] <= 8_000
    assert machine.look("job")["owner"] == "sidecar"
    child.send_signal(number)
    released = event(child)
    assert (released["event"], released["fencing_token"]) == ("released", 1)
    assert finished(child) == (0, "")
    assert machine.look("job")["status"] == "free"


@pytest.mark.fault("F-333")
def test_it_says_which_slots_it_has(machine: Machine) -> None:
    child = hold(machine, "--slots", "3", "--units", "2")
    acquired = event(child)
    assert (acquired["slot"], acquired["slot_numbers"]) == (0, [0, 1])
    other = hold(machine, "--slots", "3", "--for", "1ms")
    assert event(other)["slot"] == 2
    child.terminate()


def test_it_renews_and_says_so(machine: Machine) -> None:
    child = hold(machine, "--for", "4s")
    acquired = event(child)
    assert acquired["event"] == "acquired"
    renewed = event(child)
    assert renewed["event"] == "renewed"
    assert certain_until(renewed) > certain_until(acquired)
    assert event(child)["why"] == "its time was over"
    assert finished(child)[0] == 0


def test_lines_of_its_input_are_orders_and_its_end_lets_go(machine: Machine) -> None:
    child = hold(machine, "--until-eof")
    assert event(child)["event"] == "acquired"
    assert child.stdin is not None
    child.stdin.write("checkpoint half way\nfly\n")
    child.stdin.flush()
    assert "is not an order" in event(child)["message"]
    assert machine.look("job")["checkpoint"] == "half way"
    out, _ = child.communicate(timeout=50)  # which closes its input
    assert json.loads(out)["why"] == "its input ended"
    assert child.returncode == 0


def test_when_nobody_reads_what_it_says_it_lets_go(machine: Machine) -> None:
    child = hold(machine)
    assert event(child)["event"] == "acquired"
    assert child.stdout is not None
    child.stdout.close()
    machine.until(lambda: machine.look("job")["status"] == "free")
    assert child.wait(50) == 0
    child.stdout = None


@pytest.mark.parametrize(
    ("order", "for_seconds", "result"),
    [
        ("done=1h PR 77", 3_600, "PR 77"),
        ("done=1h", 3_600, None),
        ("done", 86_400, None),
        ("done PR 77 merged", 86_400, "PR 77 merged"),
    ],
)
def test_done_marks_the_job_for_a_day_or_as_long_as_said(
    machine: Machine, order: str, for_seconds: int, result: str | None
) -> None:
    child = hold(machine, "--until-eof")
    out, _ = child.communicate(f"{order}\n", timeout=50)
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["acquired", "released"]
    done = machine.look("job")["done"]
    lasts_ms = instant_ms(done["until"]) - instant_ms(done["at"])
    assert (lasts_ms, done.get("result")) == (for_seconds * 1000, result)


def test_who_waits_says_for_whom_and_gets_it(machine: Machine) -> None:
    lease = machine.run("claim", "job", "-q", "--owner", "first")[1].strip()
    child = hold(machine, "--wait", "1m")
    waiting = event(child)
    assert (waiting["event"], waiting["owner"], waiting["position"]) == ("waiting", "first", 1)
    machine.run("release", "job", "--lease", lease)
    assert event(child)["event"] == "acquired"


def test_who_gets_nothing_says_why_in_one_event(machine: Machine) -> None:
    machine.run("claim", "job", "--owner", "first")
    child = hold(machine)
    out, err = child.communicate(timeout=50)
    assert (child.returncode, err) == (1, "")
    (line,) = out.splitlines()
    error = json.loads(line)
    assert (error["event"], error["code"], error["details"]["owner"]) == ("error", "held", "first")


@pytest.mark.promise("loss:told")
def test_a_server_that_is_gone_is_uncertain_first_and_lost_before_the_claim_is_over(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    with ServerProcess(folder) as server:
        machine.env |= {"DIBS_URL": server.url, "DIBS_TOKEN": server.token}
        began_ms = steady_ms()
        child = hold(machine, "--notice", "5s")
        assert event(child)["event"] == "acquired"
        server.kill()
        events = [event(child)]
        while events[-1]["event"] != "lost":
            events.append(event(child))
        assert steady_ms() - began_ms < 10_000
        assert {each["event"] for each in events[:-1]} == {"uncertain"}
        assert events[-1]["remaining_ms"] == 0
        assert child.wait(50) == 20


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--for", "0"), "--for 0 would release the job at once"),
        (("--notice", "8s", "--ttl", "10s"), "Use --ttl 14s or more"),
    ],
)
def test_what_cannot_be_is_refused(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    ran = terminal("hold", "job", *words)
    assert ran.exit == 64
    assert says in ran.err


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"event": "waiting", "position": 2, "owner": "a"},
            "waiting    job: a has it, you are number 2 in line",
        ),
        (
            {"event": "waiting", "position": 1, "owner": None},
            "waiting    job: others come first, you are number 1 in line",
        ),
        ({"event": "acquired", "fencing_token": 7}, "acquired   job is yours, fencing token 7"),
        ({"event": "renewed", "remaining_ms": 8_000}, "renewed    job, certain for 8s"),
        (
            {"event": "uncertain", "remaining_ms": 8_000, "why": "no\nserver"},
            "uncertain  job, certain only for 8s: no\\nserver",
        ),
        ({"event": "lost", "why": "it ran out"}, "lost       job: it ran out"),
        ({"event": "error", "message": "oh"}, "error      oh"),
    ],
)
def test_events_in_words(event: dict[str, Any], line: str) -> None:
    assert said({"name": "job", "at": "2025-11-15T02:14:05.123Z", **event}) == f"02:14:05Z  {line}"


@pytest.mark.fault("F-331")
@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("done 1h PR 77", "done takes a time with = only: done=1h"),
        ("done 3 of 4 tests pass", "done=3"),
        ("done=1w", "'1w' is no time"),
        ("done=", "'' is no time"),
        ("done=999999d", "'999999d' is no time"),
    ],
)
def test_a_time_of_done_that_is_none_ends_nothing(machine: Machine, order: str, says: str) -> None:
    child = hold(machine, "--until-eof")
    out, _ = child.communicate(f"{order}\nrelease\n", timeout=50)
    events = [json.loads(line) for line in out.splitlines()]
    assert [each["event"] for each in events] == ["acquired", "error", "released"]
    assert says in events[1]["message"]
    assert not events[2]["done"]


@pytest.mark.promise("loss:told")
@pytest.mark.parametrize("order", ["release", "done=1h", "fail it broke"])
def test_told_to_let_go_of_what_it_has_lost_it_says_lost(machine: Machine, order: str) -> None:
    child = machine.start("hold", "job", "--json", "--ttl", "2s", "--until-eof", stdin=-1)
    assert event(child)["event"] == "acquired"
    child.send_signal(signal.SIGSTOP)
    wait_until_stopped(child.pid)
    assert child.stdin is not None
    child.stdin.write(f"{order}\n")
    child.stdin.flush()
    assert machine.run("claim", "job", "--wait", "20s")[0] == 0
    child.send_signal(signal.SIGCONT)
    out, _ = child.communicate(timeout=50)
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert events[-1] == "lost"
    assert "released" not in events
    assert child.returncode == 20


def test_one_that_waits_for_longer_than_its_session_goes_without_a_keepalive_goes_on_waiting(
    machine: Machine,
) -> None:
    owner = machine.start("hold", "job", "--json", "--ttl", "60s", stdin=-1)
    assert event(owner)["event"] == "acquired"
    child = machine.start("hold", "job", "--json", "--ttl", "6s", "--wait", "50s", stdin=-1)
    assert event(child)["event"] == "waiting"
    expires = session_of_ttl(machine, 6)["expires_at"]
    machine.until(lambda: session_of_ttl(machine, 6)["expires_at"] != expires)
    owner.send_signal(signal.SIGTERM)
    said = event(child)
    while said["event"] == "waiting":
        said = event(child)
    assert said["event"] == "acquired"


@pytest.mark.promise("loss:told")
def test_one_that_was_paused_from_the_grant_until_its_time_was_over_never_says_acquired(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def paused(session: ProcessSession, job: str, **more: Any) -> Answer | None:
        answer = claim(session, job, **more)
        session.plan.lost_ms = 0
        return answer

    monkeypatch.setattr("dibs.cli.commands.hold.claim", paused)
    ran = terminal("hold", "job", "--json", "--for", "1s")
    assert [json.loads(line)["event"] for line in ran.out.splitlines()] == ["lost"]
    assert ran.exit == 20
