"""The page about performance, its tables and its plots are computed from what the benchmark measured."""

from __future__ import annotations

import copy
import itertools
from typing import Any
from xml.etree import ElementTree

import pytest

from scripts.dev.pages import plot
from scripts.dev.pages.performance import page
from scripts.dev.pages.performance.figures import Figures
from scripts.dev.pages.performance.plots import plots
from scripts.dev.pages.performance.tables import machine_line
from tests.docs.pages import ROOT, read

MEASURED = page.read(ROOT)
MADE, TABLES = plots(MEASURED), page.tables(MEASURED)
TEXTS = {each: read(ROOT / each) for each in page.PAGES}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tables_are_those_that_the_measured_figures_give(name: str) -> None:
    assert page.with_tables(TEXTS[name], TABLES) == TEXTS[name], "scripts/bench tables"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_place(name: str) -> None:
    assert any(f"<!-- {name}: begin -->" in text for text in TEXTS.values())


@pytest.mark.parametrize("name", MADE)
def test_the_plots_are_those_that_the_measured_figures_give(name: str) -> None:
    assert read(ROOT / page.PLOTS / f"{name}.svg") == MADE[name], "scripts/bench tables"
    assert any(f"performance/{name}.svg)" in text for text in TEXTS.values())


@pytest.mark.parametrize("text", MADE.values())
def test_a_plot_is_well_formed_and_has_colours_for_dark_pages(text: str) -> None:
    ElementTree.fromstring(text)
    assert "prefers-color-scheme:dark" in text


def test_no_answer_of_a_measured_run_was_a_wrong_one() -> None:
    assert not [row for row in MEASURED["load"] if row["bad"]]


def measured_by_a_run_for_the_page() -> dict[str, Any]:
    """What is published, as a run that looks at the disk leaves it."""
    document = copy.deepcopy(MEASURED)
    commit = document["machine"]["commit"]
    for counted in document["instructions"].values():
        counted["commit"] = commit
    document["disk"] = {"appends": 100, "stall": 3.0, "calm_ms": 0.09, "taken": 200, "rejected": [{"what": "dibs"}]}
    document["machine"]["python_optimised"] = "no"
    document["load"] += [{**row, "target": "etcd-grpc"} for row in document["load"] if row["target"] == "etcd"]
    return document


def test_the_head_names_commit_python_and_how_many_measurements_were_rejected() -> None:
    text = machine_line(measured_by_a_run_for_the_page())
    assert f"at commit `{MEASURED['machine']['commit']}`; rounds" in text
    assert "of 200 measurements" in text
    assert "1 measurements were rejected" in text
    assert f"Python {MEASURED['machine']['python']} (configured without `--enable-optimizations`)" in text


def test_the_head_names_the_rows_of_another_commit() -> None:
    document = measured_by_a_run_for_the_page()
    document["stores"]["machine"]["commit"] = "0123abcd"
    assert "(stores at `0123abcd`)" in machine_line(document)


def test_the_five_rows_of_the_readme_are_those_of_the_page() -> None:
    document = measured_by_a_run_for_the_page()
    head, _, *rows = page.tables(document)["beside"]
    assert len(rows) == 5
    assert "| a second |" in head
    acquire = page.tables(document)["acquire"]
    for row in rows:
        name, *cells = row.strip("| ").split(" | ")
        (there,) = [line for line in acquire if line.startswith(f"| {name} |")]
        assert all(f"| {cells[which]} " in there for which in (0, 2, 3)), (row, there)


def test_the_readme_shows_no_figure_that_nobody_watched_the_disk_for() -> None:
    assert "disk" in MEASURED or TABLES["beside"] == []


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
