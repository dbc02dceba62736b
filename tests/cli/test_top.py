"""dibs top and list --watch on a real terminal: drawn, followed, resized, stopped, and given back as it was."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import steady_ms
from tests.cli.test_watch import Watch
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, clean_env, dibs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Terminal

TAKEN, GIVEN = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"


class Board:
    """A command on a terminal of its own. `lines` is what the terminal shows."""

    def __init__(self, env: dict[str, str], *words: str, columns: int = 100, rows: int = 12) -> None:
        self.end, inside = pty.openpty()
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(inside)
        self.process = subprocess.Popen(
            [*DIBS, *words],
            env={**env, "TERM": "xterm"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            process_group=0,  # in a session of its own it could not be stopped
        )
        self._inside = inside
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._begun = ""  # a line that was not read to its end
        self.text = ""
        self.lines: dict[int, str] = {}

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float = 0.05) -> None:
        while select.select([self.end], [], [], seconds)[0]:
            part = self._decoder.decode(os.read(self.end, 65536))
            self.text += part
            self._begun += part
            seconds = 0
            for found in list(re.finditer(r"\x1b\[(\d+);1H(.*?)\x1b\[K", self._begun)):
                self.lines[int(found[1])] = re.sub(r"\x1b\[[0-9;]*m", "", found[2])
                self._begun = found.string[found.end() :]

    def shows(self, pattern: str) -> bool:
        self.read()
        return re.search(pattern, "\n".join(self.lines.values())) is not None

    def await_text(self, pattern: str) -> None:
        wait_until(lambda: self.shows(pattern) or None, f"{pattern!r} is shown")

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def wait(self) -> int:
        until_ms = steady_ms() + WAIT_S_MAX * 1000
        while self.process.poll() is None:
            assert steady_ms() < until_ms, "it does not end"
            self.read()
        self.read()
        return self.process.returncode

    def check_given_back(self) -> None:
        assert self.text.count(TAKEN) == self.text.count(GIVEN)
        assert self.text.rindex(GIVEN) > self.text.rindex(TAKEN)
        assert termios.tcgetattr(self._inside) == self.modes

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S_MAX)
        os.close(self.end)
        os.close(self._inside)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return clean_env(tmp_path, DIBS_URL=f"sqlite://{tmp_path}/it.db")


@pytest.fixture
def show(env: dict[str, str]) -> Iterator[Any]:
    boards: list[Board] = []

    def show(*words: str, **how: Any) -> Board:
        boards.append(Board({**env, **how.pop("more", {})}, *words, **how))
        return boards[-1]

    yield show
    for each in boards:
        each.close()


def test_the_board_shows_what_changes_follows_keys_and_a_new_size_and_ends_with_q(
    env: dict[str, str], show: Any
) -> None:
    dibs(env, "claim", "issue-1", "--owner", "ann", "--ttl", "5m", "--metadata", "runner=1")
    board = show("top", "--interval", "200ms")
    board.await_text(r"issue-1 +ann +■■■■■■■■ [45]m")
    assert board.lines[1].startswith("dibs top  sqlite://")
    dibs(env, "claim", "other", "--owner", "bob")
    board.await_text(r"other +bob")
    board.await_text("2 held, 0 waiting, by name")
    board.type("/OTHER")
    board.await_text("filter: OTHER_")
    wait_until(lambda: not re.search("issue-1", str(board.lines[4])) or board.read(), "it is filtered")
    board.type("\x1b")
    board.await_text("issue-1")
    board.resize(40, 8)
    os.kill(board.process.pid, signal.SIGWINCH)

    def fits() -> bool:
        """A frame of the old size may still be on its way, and half of a new one."""
        board.lines.clear()
        board.await_text("JOB +OWNER +LEFT")
        return max(len(line) for line in board.lines.values()) <= 40 and max(board.lines) == 8

    wait_until(fits, "it has the new size")
    board.type("q")
    assert board.wait() == 0
    board.check_given_back()


@pytest.mark.promise("terminal:restored")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131), (signal.SIGINT, 0)],
)
def test_the_terminal_is_given_back_whatever_ends_it(env: dict[str, str], show: Any, number: int, code: int) -> None:
    dibs(env, "claim", "job", "--owner", "ann")
    board = show("top")
    board.await_text("job +ann")
    os.kill(board.process.pid, number)
    assert board.wait() in (code, -number)
    board.check_given_back()


@pytest.mark.promise("terminal:restored")
def test_a_stopped_board_gives_the_terminal_back_and_takes_it_again(env: dict[str, str], show: Any) -> None:
    dibs(env, "claim", "job", "--owner", "ann")
    board = show("list", "--watch")
    board.await_text("job +ann")
    os.kill(board.process.pid, signal.SIGTSTP)
    wait_until(lambda: (board.read() or GIVEN in board.text) or None, "it is given back")
    assert os.waitid(os.P_PID, board.process.pid, os.WSTOPPED) is not None
    assert termios.tcgetattr(board._inside) == board.modes
    board.lines.clear()
    os.kill(board.process.pid, signal.SIGCONT)
    board.await_text("job +ann")
    board.type("q")
    assert board.wait() == 0
    board.check_given_back()


def test_a_server_that_ends_is_reported_and_q_still_ends_the_board(tmp_path: Path, show: Any) -> None:
    with ServerProcess(tmp_path) as server:
        more = {"DIBS_URL": server.url, "DIBS_TOKEN": server.token, "NO_COLOR": "1"}
        dibs({**server.env, **more}, "claim", "job", "--owner", "ann", "--ttl", "1h")
        board = show("top", "--interval", "200ms", more=more)
        board.await_text("job +ann")
        server.pause()
        board.type("w")
        board.await_text("by wait")
        server.resume()
        server.kill()
        board.await_text("s old.*No server answers")
        assert not board.shows("Do not begin the work")  # nobody works here
        assert board.shows("job +ann")
        board.type("q")
        assert board.wait() == 0
        board.check_given_back()
        assert "\x1b[2m" not in board.text
        gone = dibs({**server.env, **more}, "top")
        assert (gone.exit, gone.out) == (69, "")


def test_without_a_terminal_it_is_one_snapshot(terminal: Terminal) -> None:
    terminal.claim("issue-10", "--owner", "ann", "--ttl", "1h")
    terminal.claim("issue-2", "--owner", "bob", "--ttl", "10s")
    assert terminal("top").out == terminal("list").out
    ages = terminal("top", "--sort", "left", "--json").data
    assert [lock["name"] for lock in ages["locks"]] == ["issue-2", "issue-10"]
    assert [lock["name"] for lock in terminal("top", "--owner", "ann", "--json").data["locks"]] == ["issue-10"]
    assert terminal("top", "-q").out == "issue-2\nissue-10\n"
    for wrong in (("--sort", "x"), ("--interval", "1ms"), ("--interval", "x")):
        assert terminal("top", *wrong).exit == 64


@pytest.mark.fault("F-692")
def test_list_watch_in_a_pipe_prints_a_line_for_each_change(env: dict[str, str]) -> None:
    lease = dibs(env, "claim", "a", "--owner", "ann", "--json").data["lease_id"]
    watch = Watch(env, command=("list", "--watch"))
    try:
        wait_until(lambda: len(watch.lines) == 1, "the list is printed")
        dibs(env, "heartbeat", "a", "--lease", lease)
        dibs(env, "claim", "b", "--owner", "bob")
        wait_until(lambda: len(watch.lines) == 2, "a claim is printed, and a heartbeat is not")
        dibs(env, "release", "a", "--lease", lease)
        wait_until(lambda: len(watch.lines) == 3, "a release is printed")
        told = [(line["name"], line["status"], line.get("owner")) for line in watch.lines]
        assert told == [("a", "held", "ann"), ("b", "held", "bob"), ("a", "free", None)]
        lease = dibs(env, "claim", "a", "--owner", "ann", "--json").data["lease_id"]
        wait_until(lambda: len(watch.lines) == 4, "a claim is printed")
        dibs(env, "release", "a", "--lease", lease, "--done")
        wait_until(lambda: len(watch.lines) == 5, "a release is printed")
        assert (watch.lines[4]["status"], watch.lines[4]["done"]["owner"]) == ("done", "ann")
    finally:
        watch.close()
    text = dibs(env, "list", "--watch", "--for", "0s")
    assert [line.split()[:3] for line in text.out.splitlines()] == [["b", "held", "bob"]]


def test_history_of_all_jobs(terminal: Terminal) -> None:
    for name in ("issue-1", "issue-2", "other"):
        terminal("release", name, "--lease", terminal.claim(name, "--owner", "ann"))
    assert terminal("history").out.count("\n") == 6
    assert terminal("history", "--prefix", "issue-", "--since", "1h").out.count("\n") == 4
    newest = terminal("history", "--since", "1h", "--limit", "1", "--json").data["events"]
    assert [(event["name"], event["event"]) for event in newest] == [("other", "released")]
    followed = terminal("history", "--prefix", "issue-", "--follow", "--since", "1h", "--for", "0s", "--json").out
    assert [json.loads(line)["name"] for line in followed.splitlines()] == ["issue-1"] * 2 + ["issue-2"] * 2
    assert terminal("history", "--prefix", "nothing").out == "Nothing is on record.\n"
    assert terminal("history", "job", "--prefix", "x").exit == 64
