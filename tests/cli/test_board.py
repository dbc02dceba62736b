"""The board as text and as a view, without a terminal: columns, bars, order, filter, keys."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dibs.cli.live import BoardView
from dibs.cli.live import screen as keys
from dibs.cli.live.screen import keys_of
from dibs.cli.main import run
from dibs.cli.text import listing as board
from dibs.cli.text.words import Paint, columns_of, padded, short
from tests.cli.conftest import Screen, Terminal

HOSTILE = "\x1b[2J\x1b]0;x\x07\r\u202e\nend"


def lock(name: str, **more: Any) -> dict[str, Any]:
    found = {"name": name, "status": "held", "owner": "bob", "remaining_ms": 60_000, "silent_ms": 60_000}
    return {**found, "held_ms": 90_000, "attempt": 1, "waiting": 0, "metadata": "m", **more}


def frame(locks: list[dict[str, Any]], width: int, rows: int = 10, paint: Paint | None = None) -> list[str]:
    about = board.summary(locks)
    paint = paint or Paint()
    lines = board.frame("a store", about, locks, paint, 0, (width, rows), footer="q quit" * 20)
    return [paint.shown(line) for line in lines]


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 120, 300])
def test_no_line_is_wider_than_the_terminal_and_no_frame_higher(width: int) -> None:
    locks = [lock(f"issue-{n}-" + "日本語é" * n, owner="o" * n * 9, checkpoint="c" * 200) for n in range(1, 9)]
    locks[2] |= {"status": "parked", "previous": {"owner": "x", "at": "2026-01-01T00:00:00.000Z"}}
    for rows in (1, 3, 10):
        lines = frame(locks[:6], width, rows)
        assert len(lines) == rows
        assert max(columns_of(line) for line in lines) <= width


def test_a_narrow_board_keeps_job_owner_and_time_left_and_a_wide_one_has_all() -> None:
    narrow = frame([lock("issue-1842-with-a-long-name", owner="agent-with-a-long-name")], 40)
    assert narrow[2].split()[:3] == ["JOB", "OWNER", "LEFT"]
    assert "1m" in narrow[3]
    wide = frame([lock("job", attempt=3, waiting=7)], 120)
    assert wide[2].split() == ["JOB", "OWNER", "LEFT", "AGE", "HEARD", "TRY", "WAIT", "NOTE"]
    assert wide[3].split() == ["job", "bob", "■■■■□□□□", "1m", "1m", "30s", "1m", "3", "7", "m"]


def test_a_snapshot_on_a_terminal_is_as_wide_as_the_terminal(terminal: Terminal) -> None:
    terminal.claim("x" * 300)
    screen = Screen()
    env = {**terminal.env, "COLUMNS": "60", "TERM": "dumb"}
    assert run(["top"], env, screen, io.StringIO(), None, terminal._open) == 0
    assert max(columns_of(line) for line in screen.getvalue().splitlines()) <= 60


def test_a_bar_drains_from_full_to_one_mark_and_is_empty_at_the_end() -> None:
    assert [board.bar(part, pretty=False) for part in (1.0, 0.5, 0.001, 0.0)] == [
        "########",
        "####....",
        "#.......",
        "........",
    ]
    later = board.aged(lock("job"), 30_000)
    assert (later["remaining_ms"], later["silent_ms"], later["held_ms"]) == (30_000, 90_000, 120_000)
    assert board.aged(lock("job"), 10**9)["remaining_ms"] == 0


@pytest.mark.promise("terminal:restored")
@pytest.mark.parametrize("paint", [Paint(on=False), Paint(on=True)])
def test_hostile_text_cannot_act_on_the_terminal(paint: Paint) -> None:
    bad = lock(f"a{HOSTILE}", owner=f"b{HOSTILE}", checkpoint=f"c{HOSTILE}", status="held", mode=HOSTILE)
    for line in frame([bad], 200, paint=paint):
        ours = line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
        assert ours.isprintable(), ascii(line)
    assert "\x1b" in "".join(frame([bad], 200, paint=paint)) or not paint.on


def test_names_of_two_columns_a_letter_are_cut_and_padded_by_columns() -> None:
    assert columns_of("日本") == 4
    assert columns_of("e\u0301") == 1
    assert short("日本語", 5) == "日本…"
    assert padded("日本", 6) == "日本  "
    assert short("e\u0301" * 6, 6) == "e\u0301" * 6  # it fits, although it has twelve characters
    assert columns_of(short("a" + "\u0301" * 5000, 10)) <= 10
    assert len(short("a" + "\u0301" * 5000 + "b" * 20, 10)) < 200


def test_keys_are_read_from_what_a_terminal_sends() -> None:
    assert keys_of(b"q\x1b[A\x1b[6~\x1bOH\x1b\x7f\r/") == [
        *("q", keys.UP, keys.PAGE_DOWN, keys.HOME),
        *(keys.ESCAPE, keys.ERASE, keys.ENTER, "/"),
    ]
    assert keys_of(b"\x1b[200~\x00\x01\xff\xc3") == []
    assert keys_of("é".encode()) == ["é"]


def test_keys_sort_filter_and_scroll() -> None:
    view = BoardView()
    locks = [lock(f"issue-{n}", remaining_ms=1000 * (50 - n), owner=f"agent-{n % 3}") for n in range(1, 41)]
    view.take(locks)
    assert [each["name"] for each in view.window(2)] == ["issue-1", "issue-2"]
    view.press("l", 10)
    assert view.window(1)[0]["name"] == "issue-40"
    view.press("r", 10)
    assert view.window(1)[0]["name"] == "issue-1"
    view.press(keys.END, 10)
    assert view.window(10)[-1]["name"] == "issue-40"
    for key in (keys.PAGE_DOWN, keys.DOWN, "G"):
        view.press(key, 10)
    assert len(view.window(10)) == 10
    for key in "/AGENT-2q":
        view.press(key, 10)
    assert not view.is_over
    assert view.window(10) == []
    view.press(keys.ERASE, 10)
    view.press(keys.ENTER, 10)
    assert {each["owner"] for each in view.locks} == {"agent-2"}
    view.take(locks[:2])
    assert [each["name"] for each in view.window(10)] == ["issue-2"]
    view.press(keys.ESCAPE, 10)
    assert len(view.locks) == 2
    view.press("q", 10)
    assert view.is_over
