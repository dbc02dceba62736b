"""The ledger decides: a demo that did something twice has failed, whatever its workers reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dibs.demo import ledger
from dibs.demo.ledger import Effect, Ledger
from dibs.demo.outcome import outcome_of
from dibs.demo.plan import STEPS
from tests.demo.scenes import Telling, whole_story

if TYPE_CHECKING:
    from dibs.demo.story import Story


def everything(story: Story) -> list[Effect]:
    steps = range(1, len(STEPS) + 1)
    return [Effect(name, step, "agent-1", 1) for name in story.jobs for step in steps]


def test_every_step_once_is_good() -> None:
    story = whole_story().story
    outcome = outcome_of(story, everything(story), 1000, [])
    assert outcome.good
    assert outcome.duplicates == 0
    assert outcome.document()["side_effects"] == {"expected": 15, "done": 15, "duplicates": 0}


def test_one_step_twice_is_not_good_whoever_did_it() -> None:
    story = whole_story().story
    effects = everything(story)
    outcome = outcome_of(story, [*effects, effects[3]._replace(worker="agent-2")], 1000, [])
    assert outcome.duplicates == 1
    assert not outcome.good


def test_a_step_that_is_missing_is_not_good() -> None:
    story = whole_story().story
    assert not outcome_of(story, everything(story)[1:], 1000, []).good


def test_a_job_that_nobody_finished_is_not_good() -> None:
    telling = Telling()
    assert not outcome_of(telling.story, everything(telling.story), 1000, []).good


def test_two_that_write_at_once_share_the_ledger_line_by_line(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    assert ledger.read(path) == []
    one, two = Ledger(path), Ledger(path)
    written = [Effect(f"job-{each}", each, "agent-1", 7) for each in range(1, 5)]
    for index, effect in enumerate(written):
        (one, two)[index % 2].write(effect)
    one.close()
    two.close()
    assert ledger.read(path) == written
    assert ledger.counted([*written, written[0]], [each.job for each in written])["job-1"] == (1, 1)
