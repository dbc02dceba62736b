"""The record of faults, docs/explanation/faults.md, as data: a row for each, below the idea that was missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.put_back.workshop import FINDERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "faults.md"
SLIP = "No idea was missing: a slip"
WHO = ("reader", "attacker", "simulation", "test", "client", "user")
# Why a fault is not put back. The last one says that nobody has looked yet.
PAGE_ONLY, GONE, DESIGN, NOT_JUDGED = WHY_NOT = ("page", "mechanism gone", "design", "not judged")
NOT_RUN = "not run yet"
_HEAD = re.compile(r"\| (?P<id>F-\d{3}) \| (?P<what>\S.*\.) \| (?P<promises>[^|]*) \| (?P<who>\w+) \| ")
_TAIL = re.compile(r"(?P<when>\d{4}-\d\d-\d\d) \| (?P<fixed>[^|]+) \| (?P<found>[^|]+) \|")
_LINE = re.compile(_HEAD.pattern + _TAIL.pattern)


class Row(NamedTuple):
    id: str
    idea: str
    what: str
    promises: list[str]
    who: str
    when: str
    fixed: list[str]
    found: list[str]
    """What finds it once it is put back, as measured; or one of WHY_NOT; or that it has not been run yet."""

    @property
    def is_put_back(self) -> bool:
        return not set(self.found) & set(WHY_NOT)


def rows() -> list[Row]:
    found: list[Row] = []
    idea = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            idea = line.removeprefix("## ")
        elif line.startswith("| F-"):
            cells = _LINE.fullmatch(line)
            assert cells is not None, f"no row of the record: {line}"
            promises, fixed = (re.findall(r"`([^`]+)`", cells[name]) for name in ("promises", "fixed"))
            last = cells["found"].split(", ")
            found.append(Row(cells["id"], idea, cells["what"], promises, cells["who"], cells["when"], fixed, last))
    return found


def ideas() -> list[str]:
    return [
        line.removeprefix("## ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    ]


def note(id: str, found: list[str]) -> None:
    """Write what finds a fault into its row."""
    assert found
    assert set(found) <= set(FINDERS)
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith(f"| {id} |")]
    lines[at] = f"{lines[at].removesuffix(' |').rpartition(' | ')[0]} | {', '.join(found)} |"
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
