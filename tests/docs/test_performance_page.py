"""The page about performance, its tables and its plots are computed from what the benchmark measured."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest

from scripts.dev.pages import plot
from scripts.dev.pages.performance import page
from scripts.dev.pages.performance.figures import Figures
from scripts.dev.pages.performance.plots import plots
from tests.docs.pages import ROOT, read

MEASURED = page.read(ROOT)
MADE, TABLES = plots(MEASURED), page.tables(MEASURED)
TEXTS = {each: read(ROOT / each) for each in page.PAGES}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tables_are_those_that_the_measured_figures_give(name: str) -> None:
    assert page.with_tables(TEXTS[name], TABLES) == TEXTS[name], "scripts/bench page"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_place(name: str) -> None:
    assert any(f"<!-- {name}: begin -->" in text for text in TEXTS.values())


@pytest.mark.parametrize("name", MADE)
def test_the_plots_are_those_that_the_measured_figures_give(name: str) -> None:
    assert read(ROOT / page.PLOTS / f"{name}.svg") == MADE[name], "scripts/bench page"
    assert any(f"performance/{name}.svg)" in text for text in TEXTS.values())


@pytest.mark.parametrize("text", MADE.values())
def test_a_plot_is_well_formed_and_has_colours_for_dark_pages(text: str) -> None:
    ElementTree.fromstring(text)
    assert "prefers-color-scheme:dark" in text


def test_no_answer_of_a_measured_run_was_a_wrong_one() -> None:
    assert not [row for row in MEASURED["load"] if row["bad"]]


def test_ratios_are_taken_within_a_round() -> None:
    rows = [
        {"round": number, "target": target, "rate": rate}
        for target, rates in (("ours", (10, 90)), ("theirs", (5, 30)))
        for number, rate in enumerate(rates)
    ]
    assert Figures(rows).ratio("rate", {"target": "ours"}, {"target": "theirs"}) == [2.0, 3.0]


def test_labels_of_lines_that_end_together_do_not_cover_each_other() -> None:
    placed = sorted(plot.spread_out([100.0, 101.0, 99.0, 249.0, 250.0], 16, 250.0))
    assert all(after - before >= 15.99 for before, after in itertools.pairwise(placed))
    assert placed[-1] <= 250.0


def test_text_from_outside_cannot_end_an_element() -> None:
    text = plot.bars("<b>", "a & b", [("<script>", 0, 1.0, "</svg>")])
    assert "<script>" not in text
    ElementTree.fromstring(text)
