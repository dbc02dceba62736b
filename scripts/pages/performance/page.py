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
    growth_rows,
    handoff_rows,
    load_rows,
    machine_line,
    sdk_rows,
)
from scripts.pages.places import filled

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/explanation/performance.md"
PLOTS = "docs/explanation/performance"
FILE = "bench/measured/performance.json"
COUNTED = "bench/measured/instructions.json"


def tables(measured: Measured, counted: Measured) -> dict[str, list[str]]:
    load = Figures(measured["load"])
    return {
        "machine": [machine_line(measured)],
        "aims": list(aim_rows(measured)),
        "acquire": [
            *load_rows(load, "acquire", (1, 32, 128), "conn."),
            "",
            *detail_rows(load, "acquire", (1, 32, 128), "conn."),
        ],
        "cycle": list(load_rows(load, "cycle", (1,), "conn.")),
        "wave": list(load_rows(load, "wave", (1, 20, 100), "workers")),
        "sdk": list(sdk_rows(measured)),
        "handoff": list(handoff_rows(measured)),
        "cold": list(cold_rows(measured)),
        "growth": list(growth_rows(measured)),
        "budget": list(budget_rows(counted)),
    }


def with_tables(page: str, measured: Measured, counted: Measured) -> str:
    """The page with its tables made anew, between their markers."""
    return filled(page, tables(measured, counted))


def write(root: Path) -> None:
    measured, counted = (json.loads((root / each).read_text(encoding="utf-8")) for each in (FILE, COUNTED))
    page = root / PAGE
    page.write_text(with_tables(page.read_text(encoding="utf-8"), measured, counted), encoding="utf-8")
    (root / PLOTS).mkdir(exist_ok=True)
    for name, text in plots(measured, counted).items():
        (root / PLOTS / f"{name}.svg").write_text(text, encoding="utf-8")
