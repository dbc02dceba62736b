"""The page about how far dibs goes is computed from what the benchmark measured."""

from __future__ import annotations

import json
import os

import pytest

from scripts.dev.pages.scale import BUSY, agent, cost, with_tables
from tests.docs.pages import ROOT, read

PATH = ROOT / "docs" / "explanation" / "scale.md"
PAGE = read(PATH)
MEASURED = json.loads(read(ROOT / "bench" / "measured" / "stores.json"))
# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"


def test_the_tables_are_those_that_the_measured_figures_give() -> None:
    if REWRITE:
        PATH.write_text(with_tables(PAGE, MEASURED), encoding="utf-8")
    assert read(PATH) == with_tables(PAGE, MEASURED)


@pytest.mark.parametrize("kind", ["postgres", "etcd"])
def test_an_agent_costs_its_heartbeats_and_its_claims(kind: str) -> None:
    renew, acquire, release = (cost(MEASURED, kind, each) for each in ("renew", "acquire", "release"))
    one = agent(MEASURED, kind, 10, 100)
    expected = renew["server_cpu_us"] / 10 + (acquire["server_cpu_us"] + release["server_cpu_us"]) / 100
    assert one["server_cpu_us"] == pytest.approx(expected)
    assert one["requests"] == pytest.approx(0.12)


def test_the_page_says_how_busy_a_core_may_be() -> None:
    assert f"{BUSY:.0%}" in PAGE


def test_no_answer_of_a_measured_run_was_a_wrong_one() -> None:
    assert not [turn for turn in MEASURED["turns"] if turn["measured"]["sample"]["bad"]]
