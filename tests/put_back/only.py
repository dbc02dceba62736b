"""A plugin of pytest: only the tests that carry the mark of the fault DIBS_PUT_BACK, and a report of how they ended."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.put_back.workshop import REPORT

if TYPE_CHECKING:
    import pytest

_ended: dict[str, list[str]] = defaultdict(list)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [
        item for item in items if any(os.environ["DIBS_PUT_BACK"] in mark.args for mark in item.iter_markers("fault"))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome == "skipped":
        _ended[report.outcome].append(report.nodeid)
    elif report.failed:
        _ended["error"].append(report.nodeid)


def pytest_sessionfinish() -> None:
    report = {
        "failed": _ended["failed"],
        "passed": _ended["passed"],
        "skipped": _ended["skipped"],
        "error": _ended["error"],
    }
    Path(os.environ[REPORT]).write_text(json.dumps(report), encoding="utf-8")
