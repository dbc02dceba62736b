"""docs/reference/metrics.md: its lists are made from the declared metrics. Pure."""

from __future__ import annotations

from dibs.engine.metrics import BATCH_SIZES, COMMIT_S, LEASE_S, REQUEST_S
from dibs.server.monitor.metric_table import METRICS, PROCESS

_BOUNDS = {
    "dibs_hold_seconds": LEASE_S,
    "dibs_wait_seconds": LEASE_S,
    "dibs_batch_commands": BATCH_SIZES,
    "dibs_commit_duration_seconds": COMMIT_S,
    "dibs_http_request_duration_seconds": REQUEST_S,
}
BEGIN, END = "<!-- made from the code: begin -->\n", "<!-- end -->\n"


def with_tables(page: str) -> str:
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{_tables()}\n{END}{tail}"


def _tables() -> str:
    lines = []
    for metric in METRICS:
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        kind = f"{metric.kind} of the store" if metric.of == "store" else metric.kind
        lines.append(f"- `{metric.name}{labels}` ({kind}): {metric.help}")
    usual = ", ".join(f"`{name}`" for name in PROCESS)
    lines += ["", f"As prometheus-client has them, on Linux: {usual}.", ""]
    lines += ["Upper bounds of the buckets of histograms:", ""]
    by_bounds: dict[str, list[str]] = {}
    for metric in METRICS:
        if metric.kind == "histogram":
            bounds = ", ".join(f"{bound:g}" for bound in _BOUNDS[metric.name])
            by_bounds.setdefault(bounds, []).append(f"`{metric.name}`")
    lines += [f"- {', '.join(names)}: {bounds}" for bounds, names in by_bounds.items()]
    return "\n".join(lines) + "\n"
