"""`dibs demo` as people run it: in a pipe, on a terminal, against a server, and stopped half-way."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from typing import TYPE_CHECKING, NamedTuple

import pytest

from dibs.cli.commands.demo import Play, answer, backlog_of
from dibs.cli.framework.context import Call
from dibs.cli.text.words import Paint
from dibs.client.transport import Ask
from tests.cli.conftest import Ran, Terminal
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, clean_env

if TYPE_CHECKING:
    from pathlib import Path

    from dibs.cli.framework.result import Answer

pytestmark = pytest.mark.full

SMALL = ("demo", "--workers", "3", "--jobs", "3")


class Shown(NamedTuple):
    exit: int
    out: str
    err: str = ""


def start(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    env = clean_env(folder, TMPDIR=str(folder), **more)
    pipe = subprocess.PIPE
    return subprocess.Popen([*DIBS, *words], env=env, stdout=pipe, stderr=pipe, text=True, process_group=0)


class Pty:
    """A demo on a terminal of its own, read by a thread."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = clean_env(folder, TMPDIR=str(folder), TERM="xterm")
        env.pop("NO_COLOR", None)
        self._process = subprocess.Popen([*DIBS, *SMALL], env=env, stdout=theirs, stdin=subprocess.DEVNULL)
        os.close(theirs)
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._reading, daemon=True)
        self._reader.start()

    def _reading(self) -> None:
        try:
            while content := os.read(self._ours, 65536):
                self._read.append(content)
        except OSError:  # how a terminal says that its other end is closed
            pass

    def finish(self) -> Shown:
        try:
            self._process.wait(WAIT_S_MAX)
        finally:
            self._process.kill()
        self._reader.join(WAIT_S_MAX)
        os.close(self._ours)
        return Shown(self._process.returncode, b"".join(self._read).decode())


class Runs(NamedTuple):
    """Three demos, and their leftovers in the temporary folder and on the server."""

    terminal: Shown
    pipe: Shown
    server: Shown
    files: list[str]
    claimed: list[object]
    status: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All three at once: they mostly wait."""
    folder = tmp_path_factory.mktemp("demo")
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        terminal = Pty(folder, 80, 24)
        # DIBS_URL names a place that is not there: the demo must not go to a store that it was not told to.
        piped = start(folder, *SMALL, "--seed", "3", DIBS_URL="http://127.0.0.1:1")
        asked = start(folder, *SMALL, "--json", "--url", server.url, DIBS_TOKEN=server.token)
        try:
            shown = terminal.finish(), finish(piped), finish(asked)
        finally:
            piped.kill()
            asked.kill()
        transport = server.transport()
        claimed = (transport.ask(Ask("list", "", {"limit": 10})).body or {})["locks"]
        name = Ran(0, shown[2].out, "").everything["jobs"][0]["name"]
        status = (transport.ask(Ask("inspect", name)).body or {})["status"]
        transport.close()
    return Runs(*shown, os.listdir(folder), claimed, status)


def finish(process: subprocess.Popen[str]) -> Shown:
    out, err = process.communicate(timeout=WAIT_S_MAX)
    return Shown(process.returncode, out, err)


@pytest.mark.e2e
def test_in_a_pipe_it_is_plain_lines_from_the_race_to_the_verdict(runs: Runs) -> None:
    shown = runs.pipe
    assert (shown.exit, shown.err) == (0, "")
    assert "\x1b" not in shown.out
    assert len(re.findall(r"s  agent-\d  claims ", shown.out)) == 3
    assert len(re.findall(r"s  agent-\d  did ", shown.out)) == 3
    assert re.search(r"(agent-\d)  KILLED .*kill -9", shown.out)
    takes = re.search(r'(agent-\d)  TAKES .*resumes (agent-\d)\'s work at "2/5 reproduced it"', shown.out)
    assert takes is not None
    assert takes[1] != takes[2]
    assert f"{takes[2]} → {takes[1]}" in shown.out
    assert "15 of 15, zero duplicates" in " ".join(shown.out.split())


@pytest.mark.e2e
def test_on_a_terminal_the_story_is_in_colour(runs: Runs) -> None:
    shown = runs.terminal
    assert shown.exit == 0, shown.out
    assert "\x1b[31mKILLED" in shown.out
    assert "zero" in shown.out


@pytest.mark.e2e
def test_against_a_server_it_uses_names_of_its_own_and_leaves_nothing_claimed(runs: Runs) -> None:
    shown = runs.server
    data = Ran(shown.exit, shown.out, shown.err).data
    assert data["side_effects"] == {"expected": 15, "done": 15, "duplicates": 0}
    assert len({job["name"].split("/")[0] for job in data["jobs"]}) == 1
    assert all(job["name"].startswith("dibs-demo-") for job in data["jobs"])
    assert data["takeover"]["worker"] != data["killed"]["worker"]
    assert runs.claimed == []
    assert runs.status == "free"


@pytest.mark.e2e
def test_its_store_and_its_ledger_are_gone_afterwards(runs: Runs) -> None:
    assert runs.files == []


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_stopped_ends_the_workers_and_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, *SMALL) as process:
        try:
            assert process.stdout is not None
            while "  claims  " not in process.stdout.readline():
                assert process.poll() is None, "it ended before the race began"
            workers = children_of(process.pid)
            assert workers, "the story has killed one of them if we were late, and not all"
            process.send_signal(number)
            finish(process)
            assert process.returncode == 128 + number
            assert os.listdir(tmp_path) == []
            assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]
        finally:
            process.kill()


def children_of(pid: int) -> list[int]:
    found = []
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        found += [int(process)] if parent == pid else []
    return found


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--workers", "1"), "2 or more"),
        (("--workers", "21"), "from 1 to 20"),
        (("--jobs", "0"), "from 1 to 50"),
        (("--seed", "x"), "whole number"),
        (("--url", "memory://"), "several processes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    terminal: Terminal, words: tuple[str, ...], hint: str
) -> None:
    ran = terminal("demo", *words)
    assert ran.exit == 64
    assert hint in ran.err
    assert ran.out == ""


def test_a_server_that_is_not_there_is_reported_before_anything_starts(terminal: Terminal) -> None:
    ran = terminal("demo", "--url", "http://127.0.0.1:1", "--json")
    assert ran.exit == 69
    assert ran.error["code"] == "upstream_unavailable"


class Stage:
    """A play that heard these events, one second apart, and what it printed."""

    def __init__(self, folder: Path, *events: dict[str, object]) -> None:
        self._stdout = io.StringIO()
        self._call = Call("demo", {}, {}, stdin=None, stdout=self._stdout, paint=Paint())
        self.play = Play(self._call, str(folder), backlog_of(2, workers=2, seed=1), 2)
        for second, event in enumerate(events):
            self.play.hear(event, 1000 * second)

    @property
    def printed(self) -> str:
        return self._stdout.getvalue()

    def answer(self) -> Answer:
        return answer(self._call, self.play.document(), "")


def test_the_same_seed_gives_the_same_backlog_and_another_one_another() -> None:
    assert backlog_of(8, 5, seed=7) == backlog_of(8, 5, seed=7) != backlog_of(8, 5, seed=8)
    assert [job["fatal"] for job in backlog_of(8, 2, seed=7)[:2]].count(True) == 1


def test_a_step_that_is_twice_in_the_ledger_is_counted_and_the_demo_has_failed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first, second = stage.play.rows
    steps = [(name, step) for name in (first, second) for step in range(1, 6)] + [(second, 3)]
    (tmp_path / "ledger").write_text("".join(f"{name}\t{step}\n" for name, step in steps))
    for row in stage.play.rows.values():
        row["done"] = True
    assert stage.play.document()["side_effects"] == {"expected": 10, "done": 10, "duplicates": 1}
    answered = stage.answer()
    assert (answered.exit, answered.code) == (1, "demo_failed")
    assert answered.message.endswith("10 of 10, 1 duplicates.")


def test_a_demo_that_did_not_finish_says_so_and_exits_with_1(tmp_path: Path) -> None:
    answered = Stage(tmp_path, {"worker": "agent-1", "event": "failed", "why": "no server"}).answer()
    assert answered.exit == 1
    assert answered.message.startswith("0 of 2 jobs done")
    assert answered.message.endswith("agent-1: no server")


def test_a_claim_says_which_job_was_skipped_and_who_has_it(tmp_path: Path) -> None:
    first, second = [job["name"] for job in backlog_of(2, workers=2, seed=1)]
    claim = {"worker": "agent-1", "event": "claimed", "job": second, "attempt": 1, "before": None, "checkpoint": None}
    one, two = [(first, "agent-2")], [(first, "agent-2"), (second, "agent-2")]
    stage = Stage(tmp_path, {**claim, "skipped": one}, {**claim, "skipped": two})
    assert [line.partition("skipped ")[2] for line in stage.printed.splitlines()] == [
        "#1842 (agent-2)",
        "#1842 (agent-2) and 1 more",
    ]


def test_the_help_says_that_only_the_flag_leads_elsewhere(terminal: Terminal) -> None:
    assert "DIBS_URL is ignored" in " ".join(terminal("demo", "--help").out.split())
