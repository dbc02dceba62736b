"""The log of a server: what its lines say, what they never say, and that nobody waits for its reader."""

from __future__ import annotations

import json
import logging
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.terminal import log_lines
from dibs.base.traceparent import inherited_traceparent, trace_of
from dibs.core.limits import LOG_BYTES_MAX
from dibs.server.monitor import server_log
from dibs.server.monitor.server_log import JsonLines, LogWriter, change_level, without_secrets_in_path
from tests.server.harness import TOKENS, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def last(self, count: int) -> dict[str, Any]:
        """The last of `count` lines, once they are there: a line comes after the answer."""
        wait_until(lambda: len(self.lines) >= count, "the line is written")
        document: dict[str, Any] = json.loads(self.lines[-1])
        return document


@pytest.fixture(scope="module")
def lines() -> Iterator[_Lines]:
    handler = _Lines()
    logger = logging.getLogger("dibs")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("log"), access_log=True) as server:
        yield server


def test_a_line_says_who_asked_what_and_how_it_ended(server: Server, lines: _Lines) -> None:
    lines.lines.clear()
    reply = server.acquire("logged", {"ttl_seconds": 60}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    line = lines.last(1)
    assert line.pop("time").endswith("Z")
    assert 0 < line.pop("duration_ms") < 10_000
    assert line == {
        "level": "info",
        "logger": "dibs.request",
        "event": "request",
        "request_id": reply.headers["x-request-id"],
        "principal": "agent",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/locks/logged/acquire",
        "verb": "acquire",
        "status": 200,
        "outcome": "acquired",
        "trace_id": TRACE,
        "parent_id": SPAN,
    }


def test_a_line_for_people_has_the_same_in_utc(server: Server, lines: _Lines) -> None:
    lines.setFormatter(log_lines(server_log._LINE))
    try:
        lines.lines.clear()
        id_ = server.acquire("logged", {"ttl_seconds": 60}).headers["x-request-id"]
        server.ask("GET", "/locks/%0Atwo", who=None)
        wait_until(lambda: len(lines.lines) >= 2, "the lines are written")
    finally:
        lines.setFormatter(JsonLines())
    time, said = lines.lines[0].split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    told = r'INFO dibs\.request: 127\.0\.0\.1 agent "POST /locks/logged/acquire" 200 \w+ [\d.]+ ms (\S+)'
    assert re.fullmatch(told, said)[1] == id_  # type: ignore[index]  # None fails, too
    assert ' - "GET /locks/%0Atwo" 401 authentication_required ' in lines.lines[1]


@pytest.mark.parametrize(
    ("method", "path", "who", "said"),
    [
        (
            "GET",
            "/locks/logged",
            None,
            {"status": 401, "outcome": "authentication_required", "principal": ""},
        ),
        ("GET", "/nothing", "agent", {"status": 404, "outcome": "not_found", "verb": "other"}),
        (
            "POST",
            "/locks/logged/break",
            "agent",
            {"status": 415, "outcome": "invalid_input", "verb": "break"},
        ),
        ("GET", "/health", None, {"status": 200, "verb": "health", "outcome": ""}),
    ],
)
def test_refusals_have_their_code(
    server: Server, lines: _Lines, method: str, path: str, who: str | None, said: dict[str, Any]
) -> None:
    lines.lines.clear()
    server.ask(method, path, who=who)
    assert said.items() <= lines.last(1).items()


@pytest.mark.promise("logs:no-secrets")
def test_no_secret_and_no_second_line(server: Server, lines: _Lines) -> None:
    lines.lines.clear()
    lease = server.lease("kept-secret")
    server.ask("POST", "/locks/kept-secret/renew", {"lease_id": lease})
    server.ask("POST", "/locks/kept-secret/release", {"lease_id": lease})
    session = server.ask("POST", "/sessions", {}).json["session_id"]
    server.ask("POST", f"/sessions/{session}/keepalive", {})
    server.ask("GET", f"/locks?token={TOKENS['agent']}&prefix=%1b%5b31m%0a%7d")
    server.ask("GET", "/locks/%E2%80%A8%0A%22%7D/history")
    lines.last(7)
    text = "\n".join(lines.lines)
    for secret in (lease, session, *TOKENS.values()):
        assert secret not in text
    assert text.isascii()
    assert all(json.loads(line)["event"] == "request" for line in text.split("\n"))


def test_the_time_that_a_line_takes_grows_only_with_its_length() -> None:
    """If each letter of a word were a beginning, these would take an hour."""
    for text in ("z" * 400_000, "z " * 200_000, "z" + " " * 400_000, "z" * 400_000 + "&token=t"):
        line = without_secrets_in_path(f"/locks?x={text}")
        assert line.endswith("&token=..." if "token" in text else text)


@pytest.mark.promise("logs:no-secrets")
def test_hostile_text_stays_in_its_line() -> None:
    record = logging.LogRecord("dibs", logging.ERROR, "", 0, "%s", ('a"b\n\x1b[31m\u2028\udcff',), None)
    line = JsonLines().format(record)
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["message"] == 'a"b\n\x1b[31m\u2028\udcff'


def test_nobody_waits_for_a_log_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "LOG_FLUSH_MS_MAX", 10)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as reader:
        writer = LogWriter(stream)
        writer.setFormatter(logging.Formatter("%(message)s"))
        record = logging.LogRecord("dibs", logging.ERROR, "", 0, "x" * 1000, (), None)
        count = 3 * LOG_BYTES_MAX // 1000
        for _ in range(count):
            writer.emit(record)  # would wait for ever at the size of a pipe
        writer.flush()
        told = dropped = 0
        while told + dropped < count:
            line = reader.readline()
            if line.endswith("nobody read the log\n"):  # twice, if the thread began late
                dropped += int(line.split()[0])
            else:
                assert line == "x" * 1000 + "\n"
                told += 1
        assert dropped
        assert told + dropped == count
        assert told <= 2 * LOG_BYTES_MAX // 1000
        writer.close()


def test_a_signal_changes_the_level_by_one_step() -> None:
    log = logging.getLogger("dibs")
    before = log.level
    try:
        log.setLevel(logging.WARNING)
        seen = []
        for step in (-1, -1, -1, 1, 1, 1, 1):
            change_level(step)
            seen.append(logging.getLevelName(log.level))
        assert seen == ["INFO", "DEBUG", "DEBUG", "INFO", "WARNING", "ERROR", "ERROR"]
    finally:
        log.setLevel(before)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"cc-{TRACE}-{SPAN}-01.more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE}-{SPAN}-1", False),
        (f"00-{TRACE}-{SPAN}", False),
        (f"00-{TRACE}-{SPAN}-01\n", False),
        (f"00-{TRACE}-{SPAN}-\u0660\u0661", False),
        (f"cc-{TRACE}-{SPAN}-01-" + "x" * 5000, False),
        ("", False),
    ],
)
def test_a_traceparent_is_taken_only_if_it_is_valid(text: str, is_valid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trace_of(text) == ((TRACE, SPAN, text.endswith("01") or "01-" in text) if is_valid else None)
    monkeypatch.setenv("TRACEPARENT", text)
    assert inherited_traceparent() == (text if is_valid else None)


def test_a_malformed_or_double_trace_is_ignored(server: Server, lines: _Lines) -> None:
    lines.lines.clear()
    assert server.ask("GET", "/status", headers={"traceparent": "00-zz"}).status == 200
    assert "trace_id" not in lines.last(1)
    with server.raw() as connection:
        line = f"traceparent: 00-{TRACE}-{SPAN}-01\r\n"
        connection.sendall(f"GET /status HTTP/1.1\r\nHost: x\r\n{line}{line}Connection: close\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert "trace_id" not in lines.last(2)


def test_without_a_log_of_requests_nobody_notes_their_callers(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert not server.api.notes_callers
