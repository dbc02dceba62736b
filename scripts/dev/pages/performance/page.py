"""The tables of docs/explanation/performance.md and bench/README.md, made from what the benchmark measured
(bench/measured/). Pure, but for `write`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scripts.dev.pages.performance.aims import aim_rows
from scripts.dev.pages.performance.figures import Figures, Measured
from scripts.dev.pages.performance.plots import plots
from scripts.dev.pages.performance.store_tables import store_rows
from scripts.dev.pages.performance.tables import (
    beside_rows,
    budget_rows,
    cold_rows,
    detail_rows,
    expiry_rows,
    growth_rows,
    handoff_rows,
    load_rows,
    machine_line,
    sdk_rows,
)
from scripts.dev.pages.places import filled

if TYPE_CHECKING:
    from pathlib import Path

PAGES = ("docs/explanation/performance.md", "bench/README.md", "README.md")
PLOTS = "docs/explanation/performance"
FILE = "bench/measured/performance.json"
PARTS = {"instructions": "bench/measured/instructions.json", "stores": "bench/measured/stores.json"}


def read(root: Path) -> Measured:
    """All that was measured: the load, and beside it the counts and the servers on databases."""
    measured: Measured = json.loads((root / FILE).read_text(encoding="utf-8"))
    for part, file in PARTS.items():
        measured[part] = json.loads((root / file).read_text(encoding="utf-8"))
    return measured


def tables(measured: Measured) -> dict[str, list[str]]:
    load = Figures(measured["load"])
    return {
        "machine": [machine_line(measured)],
        "beside": list(beside_rows(measured)),
        "aims": list(aim_rows(measured)),
        "acquire": list(load_rows(load, "acquire", (1, 32, 128), "conn.")),
        "latency": list(detail_rows(load, "acquire", (1, 32, 128), "conn.")),
        "cycle": list(load_rows(load, "cycle", (1,), "conn.")),
        "wave": list(load_rows(load, "wave", (1, 20, 100), "workers")),
        "sdk": list(sdk_rows(measured)),
        "handoff": list(handoff_rows(measured)),
        "cold": list(cold_rows(measured)),
        "expiry": list(expiry_rows(measured)),
        "growth": list(growth_rows(measured)),
        "budget": list(budget_rows(measured["instructions"])),
        "stores": list(store_rows(measured["stores"])),
    }


def with_tables(page: str, made: dict[str, list[str]]) -> str:
    """The page with its tables made anew, between their markers."""
    return filled(page, {name: lines for name, lines in made.items() if f"<!-- {name}: begin -->" in page})


def write(root: Path) -> None:
    measured = read(root)
    for each in PAGES:
        page = root / each
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables(measured)), encoding="utf-8")
    (root / PLOTS).mkdir(exist_ok=True)
    for name, text in plots(measured).items():
        (root / PLOTS / f"{name}.svg").write_text(text, encoding="utf-8")
