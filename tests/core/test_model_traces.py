"""The model in `models/one_job.qnt` decides as the real rules do: its traces are replayed, write by write.

`scripts/dev/model` makes the traces. They are checked in, so this test needs no other program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dibs.core.limits import REMEMBERED_MAX
from tests.core.one_job import Life, random_life

TRACES: list[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "models" / "traces.json").read_text(encoding="utf-8")
)


def replay(trace: list[dict[str, Any]]) -> None:
    life = Life()
    for number, step in enumerate(trace):
        life.decide(step["did"])
        written, stored = step["store"], life.stored()
        if len(stored["ended"]) == REMEMBERED_MAX:  # the rules forget the oldest
            written = {**written, "ended": [each for each in written["ended"] if each in stored["ended"]]}
        assert stored == written, f"write {number}: {step['did']}"


@pytest.mark.promise("excl")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("number", range(len(TRACES)))
def test_the_rules_write_what_the_model_writes(number: int) -> None:
    replay(TRACES[number])


def test_the_traces_have_every_kind_of_step_and_what_is_hard() -> None:
    steps = [step for trace in TRACES for step in trace]
    assert {step["did"]["what"] for step in steps} == {
        "acquire",
        "renew",
        "release",
        "withdraw",
        "keep",
        "sweep",
        "outage",
    }
    turns = [turn for step in steps for turn in (step["store"]["owner"], *step["store"]["line"])]
    assert any(turn["used"] for turn in turns), "no turn without a key that several asks know of"
    assert any(step["store"]["withdrawn"] for step in steps), "no mark of a withdrawn claim"
    assert max(len(step["store"]["line"]) for step in steps) >= 2
    assert max(len(step["store"]["outages"]) for step in steps) >= 2


def test_a_trace_that_the_rules_did_not_write_is_refused() -> None:
    trace = json.loads(json.dumps(next(trace for trace in TRACES if trace[-1]["store"]["owner"]["lease"])))
    trace[-1]["store"]["owner"]["token"] += 1
    with pytest.raises(AssertionError, match=f"write {len(trace) - 1}"):
        replay(trace)


def test_random_lives_that_the_model_is_asked_about_have_every_kind_of_step() -> None:
    lives = [random_life(seed) for seed in range(20)]
    assert len({did["what"] for life in lives for did, _, _ in life}) == 7
    changed = sum(before != after for life in lives for _, before, after in life)
    assert changed > 200
