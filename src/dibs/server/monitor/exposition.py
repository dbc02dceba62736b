"""The text that Prometheus reads: samples of declared metrics, in its own format and in OpenMetrics 1.0. Pure."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dibs.base.files import content
from dibs.engine.metrics import Histogram

Number = int | float
Values = Number | Histogram | Mapping[Any, Number] | Mapping[Any, Histogram] | None

# What the operating system says about this process. A number that it does not say is None.


class ProcessNumbers(NamedTuple):
    cpu_s: float
    resident_bytes: int | None
    open_files: int | None
    files_max: int | None


def process_numbers() -> ProcessNumbers:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    pages = (content("/proc/self/statm") or b"").split()
    return ProcessNumbers(
        cpu_s=usage.ru_utime + usage.ru_stime,
        resident_bytes=int(pages[1]) * resource.getpagesize() if len(pages) > 1 else None,
        open_files=_open_files(),
        files_max=None if files_max == resource.RLIM_INFINITY else files_max,
    )


def _open_files() -> int | None:
    """Linux 6.2 and later give the number as the size of the folder. Reading that takes as long as it has files."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None


COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"
INFO = "info"
PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOTAL, _INFO = "_total", "_info"


class Metric(NamedTuple):
    """One metric: its kind, its name, a sentence about it, the names of its labels, and where its values come from."""

    kind: str
    name: str
    help: str
    read: Callable[[Any], Values]
    labels: tuple[str, ...] = ()
    of: str = "server"  # what it describes: this server, or the store that all its servers share


def exposition(metrics: Iterable[Metric], source: object, *, is_open: bool) -> bytes:
    """All samples as text. `is_open`: in OpenMetrics."""
    lines: list[str] = []
    for metric in metrics:
        values = metric.read(source)
        if values is None:
            continue
        lines += _head(metric, is_open)
        several = {(): values} if isinstance(values, int | float | Histogram) else values
        for words, value in several.items():
            pairs = list(zip(metric.labels, words, strict=True))
            if isinstance(value, Histogram):
                lines += _buckets(metric.name, pairs, value)
            else:
                lines.append(f"{metric.name}{_labels(pairs)} {value!r}")
    if is_open:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def _head(metric: Metric, is_open: bool) -> Iterator[str]:
    """In OpenMetrics a family has the name without the suffix of its kind. The older format has no kind `info`."""
    name, kind = metric.name, metric.kind
    if is_open and kind in (COUNTER, INFO):
        name = name.removesuffix(_TOTAL).removesuffix(_INFO)
    elif kind == INFO:
        kind = GAUGE
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {kind}"


def _buckets(name: str, pairs: list[tuple[str, str]], histogram: Histogram) -> Iterator[str]:
    reached = 0
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts.copy(), strict=True):
        reached += count
        yield f"{name}_bucket{_labels([*pairs, ('le', bound)])} {reached}"
    yield f"{name}_sum{_labels(pairs)} {histogram.total!r}"
    yield f"{name}_count{_labels(pairs)} {reached}"


def _labels(pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return "{" + ",".join([f'{name}="{value.translate(escapes)}"' for name, value in pairs]) + "}"


def format_for(accept: bytes) -> str | None:
    """The content type that an Accept header asks for: OpenMetrics or Prometheus' own text. None if it does not prefer
    either to JSON. A wildcard is no preference: then OctoStore's clients get what they know."""
    wanted = {b"application/openmetrics-text": 0.0, b"text/plain": 0.0, b"application/json": 0.0}
    for part in accept.lower().split(b","):
        kind, *parameters = [each.strip() for each in part.split(b";")]
        if kind in wanted:
            wanted[kind] = max(wanted[kind], _quality(parameters))
    openmetrics, plain, document = wanted.values()
    if max(openmetrics, plain) <= document:
        return None
    return OPEN_TYPE if openmetrics >= plain else PLAIN_TYPE


def _quality(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            text = value.strip()
            is_number = len(text) <= 5 and text[:1] in (b"0", b"1") and text.replace(b".", b"", 1).isdigit()
            return min(float(text), 1.0) if is_number else 0.0
    return 1.0
