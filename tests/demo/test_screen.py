"""What the demo shows, without running it."""

from __future__ import annotations

import io
import re

import pytest

from dibs.cli.text.colour import Paint
from dibs.demo.ledger import Effect
from dibs.demo.outcome import DemoResult, outcome_of
from dibs.demo.plan import STEPS, plan_of
from dibs.demo.screen import ASCII, PRETTY, Screen
from dibs.demo.show import Show
from tests.demo.scenes import Telling, whole_story

ESCAPE = re.compile(r"\x1b[0-9a-f-]*\[[0-9;]*m")  # with the mark of `Paint`


def screen_of(telling: Telling, width: int = 80, colour: bool = False) -> Screen:
    return Screen(telling.story, Paint(colour), width=width)


def log_of(telling: Telling, width: int = 80, colour: bool = False) -> list[str]:
    screen = screen_of(telling, width, colour)
    return [line for entry in telling.log for line in screen.entry(entry)]


def outcome(telling: Telling) -> DemoResult:
    steps = range(1, len(STEPS) + 1)
    effects = [Effect(name, step, "w", 1) for name in telling.story.jobs for step in steps]
    return outcome_of(telling.story, effects, 7_700, [])


def test_the_log_says_who_skipped_what_for_whom() -> None:
    telling = whole_story()
    fatal = telling.plan.jobs[telling.plan.fatal].label
    claims = [line for line in log_of(telling, width=120) if " claims " in line]
    assert len(claims) == 3
    assert "skipped" not in claims[0]
    assert f"skipped {fatal} (agent-1)" in claims[1]
    assert re.search(rf"agent-3 .*skipped {fatal} \(agent-1\), #\d+ \(agent-2\)", claims[2])


def test_the_log_tells_of_the_kill_the_wait_and_the_checkpoint_of_the_takeover() -> None:
    told = "\n".join(log_of(whole_story()))
    assert re.search(r"agent-1  KILLED .* kill -9 4711, in the middle of step 3 of 5", told)
    assert len(re.findall(r"agent-2  waits for .* agent-1 is silent: its lease lasts 0\.9s", told)) == 1
    assert re.search(r'agent-2  TAKES .* resumes agent-1\'s work at "2/5 reproduced it"', told)


def test_waiting_for_the_living_is_not_worth_a_line() -> None:
    telling = Telling()
    telling.claims("agent-1", telling.plan.jobs[0].name)
    before = len(telling.log)
    telling.tell("agent-2", "waits", job=telling.plan.jobs[0].name, owner="agent-1", left_ms=3000)
    assert len(telling.log) == before
    assert "waits for agent-1's lease on #1842 to end, 2.9s at most" in "\n".join(
        screen_of(telling).board(telling.now_ms + 100)
    )


def test_the_board_shows_owner_and_progress_of_each_job_and_what_each_worker_does() -> None:
    telling = Telling()
    first, second, _ = (job.name for job in telling.plan.jobs)
    telling.tell("agent-3", "ready")
    telling.claims("agent-1", first)
    telling.works("agent-1", first, until=2)
    telling.claims("agent-2", second)
    telling.works("agent-2", second)
    board = screen_of(telling).board(telling.now_ms)
    assert re.search(r"#1842 .* agent-1  ■■□□□  reproduced it", board[1])
    assert re.search(r"✓ #\d+ .* agent-2  ■■■■■  opened a pull request", board[2])
    assert board[-3:] == [
        "    agent-1  works on #1842",
        "    agent-2  looks for work"
        if telling.story.workers["agent-2"].ready
        else "    agent-2  gets ready",
        "    agent-3  looks for work",
    ]


def test_a_dead_owner_is_marked_on_the_board_until_somebody_takes_over() -> None:
    telling = Telling()
    fatal = telling.plan.jobs[telling.plan.fatal].name
    telling.claims("agent-1", fatal)
    telling.works("agent-1", fatal, until=2)
    telling.kill("agent-1")
    row = 1 + telling.plan.fatal
    assert "✗" in screen_of(telling).board(0)[row]
    telling.claims("agent-2", fatal, attempt=2, before="agent-1", at=2)
    board = screen_of(telling).board(0)
    assert "✗" not in board[row]
    assert "agent-2  ■■□□□" in board[row]
    assert board[-3].strip() == "agent-1  killed"


def test_the_report_has_a_row_for_each_job_and_says_zero_duplicates() -> None:
    telling = whole_story()
    report = "\n".join(screen_of(telling).report(outcome(telling), "Gone."))
    assert "3 of 3 jobs done in 7.7s." in report
    assert "zero duplicates" in " ".join(report.split())
    assert re.search(r"✓ #\d+ .*agent-1 → agent-2 +2 +5/5 +0", report)
    assert 'went on from "2/5 reproduced it"' in " ".join(report.split())
    assert report.endswith("Gone.")


def test_what_goes_wrong_for_several_is_told_once_with_their_names() -> None:
    telling = Telling()
    for worker in ("agent-1", "agent-2"):
        telling.tell(worker, "failed", why="No server answers.")
        telling.tell(worker, "gone", why="a line of a traceback")
    telling.tell("agent-3", "gone", why="Traceback\nOSError: no room")
    assert telling.story.over
    found = outcome_of(telling.story, [], 10, [])
    assert found.troubles == ("agent-1, agent-2: No server answers.", "agent-3: it ended: OSError: no room")
    assert "agent-1, agent-2: No server answers." in screen_of(telling).report(found, "")
    assert screen_of(telling).board(0)[-1] == "    agent-3  failed"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, colour: bool) -> None:
    telling = whole_story()
    screen = screen_of(telling, width, colour)
    report = screen.report(outcome(telling), "The store was somewhere with a name, and is removed again.")
    lines = [*screen.head("x" * 200), *log_of(telling, width, colour), *screen.board(0), *report]
    assert any(ESCAPE.search(line) for line in lines) is colour
    assert [line for line in lines if len(ESCAPE.sub("", line)) >= width] == []


def test_a_narrow_table_leaves_out_titles_rather_than_numbers() -> None:
    telling = whole_story()
    report = screen_of(telling, width=60).report(outcome(telling), "")
    assert report[1].split() == ["JOB", "OWNER", "ATTEMPTS", "STEPS", "TWICE"]
    assert all(line.endswith("5/5      0") for line in report[2:5])


def test_a_job_and_its_owner_stay_on_one_line() -> None:
    told = [line for line in log_of(whole_story(), width=60) if "agent-2)" in line]
    assert told
    assert all(re.search(r"#\d+ \(agent-2\)", line) for line in told)


def test_colour_changes_no_word() -> None:
    telling = whole_story()
    painted = [ESCAPE.sub("", line) for line in log_of(telling, colour=True)]
    assert [line.rstrip() for line in painted] == log_of(telling)


def test_a_terminal_without_unicode_gets_the_same_in_ascii() -> None:
    telling = whole_story()
    screen = Screen(telling.story, Paint(), width=80, glyphs=ASCII)
    text = "\n".join([*screen.board(0), *screen.report(outcome(telling), "")])
    assert text.isascii()
    assert len(ASCII) == len(PRETTY)


def test_every_worker_has_a_colour_of_its_own() -> None:
    telling = Telling(plan_of(jobs=5, workers=5, seed=1))
    for worker, job in zip(telling.plan.workers, telling.plan.jobs, strict=True):
        telling.claims(worker, job.name)
    board = screen_of(telling, colour=True).board(0)[1:6]
    assert len({re.search(r"\x1b[0-9a-f-]*\[([0-9;]+)magent", row)[1] for row in board}) == 5  # type: ignore[index]


def test_in_a_pipe_lines_are_added_and_nothing_is_drawn() -> None:
    stream = io.StringIO()
    with Show(stream, live=False) as show:
        show.put(["one"], ["board"])
        show.put([], ["board"])
        show.put(["two"], ["board"])
    assert stream.getvalue() == "one\ntwo\n"


def test_on_a_terminal_the_board_is_replaced_and_gone_at_the_end_and_the_cursor_is_back() -> None:
    stream = io.StringIO()
    with Show(stream, live=True) as show:
        show.put(["one"], ["a", "b"])
        show.put(["two"], ["c"])
    wipe_two, wipe_one = "\r\x1b[2A\x1b[J", "\r\x1b[1A\x1b[J"
    assert stream.getvalue() == f"\x1b[?25lone\na\nb\n{wipe_two}two\nc\n{wipe_one}\x1b[?25h"


def test_a_reader_that_went_away_does_not_stop_the_demo() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with Show(Closed(), live=False) as show:
        show.put(["one"])
        show.put(["two"])
