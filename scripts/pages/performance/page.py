"""docs/explanation/performance.md, made from what the benchmark measured (bench/measured/). Pure, but for `write`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scripts.pages.performance.aims import aim_rows
from scripts.pages.performance.figures import Figures, Measured
from scripts.pages.performance.plots import plots
from scripts.pages.performance.tables import (
    budget_rows,
    cold_rows,
    detail_rows,
    generator_line,
    growth_rows,
    handoff_rows,
    load_rows,
    machine_line,
    sdk_rows,
    trace_rows,
)
from scripts.pages.places import filled

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/explanation/performance.md"
PLOTS = "docs/explanation/performance"
FILE = "bench/measured/performance.json"


def tables(measured: Measured) -> dict[str, list[str]]:
    load = Figures(measured["load"])
    made = {
        "machine": [machine_line(measured)],
        "generator": [generator_line(load)],
        "aims": list(aim_rows(measured)),
        "acquire": [
            *load_rows(load, "acquire", (1, 8, 32, 128), "conn."),
            "",
            *detail_rows(load, "acquire", (1, 8, 32, 128), "conn."),
        ],
        "cycle": [*load_rows(load, "cycle", (1,), "conn."), "", *detail_rows(load, "cycle", (1,), "conn.")],
        "wave": [
            *load_rows(load, "wave", (1, 20, 100), "workers"),
            "",
            *detail_rows(load, "wave", (1, 20, 100), "workers"),
        ],
        "sdk": list(sdk_rows(measured)),
        "handoff": list(handoff_rows(measured)),
        "cold": list(cold_rows(measured)),
    }
    none = ["Not measured in this run."]
    made["growth"] = list(growth_rows(measured)) if measured.get("growth") else none
    made["budget"] = list(budget_rows(measured)) if measured.get("budget") else none
    made["trace"] = list(trace_rows(measured)) if measured.get("budget") else none
    return made


def with_tables(page: str, measured: Measured) -> str:
    """The page with its tables made anew, between their markers."""
    return filled(page, tables(measured))


def write(root: Path) -> None:
    measured = json.loads((root / FILE).read_text(encoding="utf-8"))
    page = root / PAGE
    page.write_text(with_tables(page.read_text(encoding="utf-8"), measured), encoding="utf-8")
    (root / PLOTS).mkdir(exist_ok=True)
    for name, text in plots(measured).items():
        (root / PLOTS / f"{name}.svg").write_text(text, encoding="utf-8")
