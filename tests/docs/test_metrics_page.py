"""The page about metrics is made from their declaration; the dashboard and the alert rules name no other, and their
queries can be parsed."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are another package

from dibs.server.monitor.metric_table import METRICS, PROCESS
from scripts.dev.pages.metrics import with_tables
from tests.docs.pages import REFERENCE, ROOT, read

if TYPE_CHECKING:
    from collections.abc import Iterator

REWRITE = os.environ.get("DIBS_REWRITE") == "1"
PAGE = REFERENCE / "metrics.md"
DASHBOARD = json.loads(read(ROOT / "deploy/grafana/dibs.json"))
RULES = [
    rule for group in yaml.safe_load(read(ROOT / "deploy/prometheus/alerts.yml"))["groups"] for rule in group["rules"]
]
DECLARED = {metric.name: metric for metric in METRICS}
SERIES = {
    name
    for metric in METRICS
    for name in (
        [f"{metric.name}{end}" for end in ("_bucket", "_sum", "_count")]
        if metric.kind == "histogram"
        else [metric.name]
    )
} | {"up", *PROCESS}


def queries() -> list[str]:
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [query.replace("$__rate_interval", "5m") for query in shown] + [rule["expr"] for rule in RULES]


def selectors(node: Any) -> Iterator[Any]:
    """All selectors of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    for name in ("expr", "lhs", "rhs", "param"):
        inner = getattr(node, name, None)
        if inner is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


def test_the_page_is_made_from_the_declaration() -> None:
    made = with_tables(read(PAGE))
    if REWRITE:
        PAGE.write_text(made, encoding="utf-8")
    assert read(PAGE) == made


@pytest.mark.parametrize("query", queries())
def test_a_query_is_valid_and_names_declared_metrics_and_labels(query: str) -> None:
    found = list(selectors(promql_parser.parse(query)))
    assert {selector.name for selector in found} == set(re.findall(r"\b(?:dibs|process)_\w+|\bup\b", query))
    for selector in found:
        assert selector.name in SERIES
        metric = DECLARED.get(re.sub(r"_(bucket|sum|count)$", "", selector.name), DECLARED.get(selector.name))
        known = {"job", "instance", "le", *(metric.labels if metric is not None else ())}
        assert {matcher.name for matcher in selector.matchers.matchers} <= known


def test_rates_are_of_counters_and_buckets_only() -> None:
    for query in queries():
        for name in re.findall(r"(?:rate|increase)\((\w+)", query):
            assert name.endswith(("_total", "_bucket", "_sum", "_count")), query


def test_every_alert_says_what_happened() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 12
    for rule in RULES:
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_panels_have_their_place() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
