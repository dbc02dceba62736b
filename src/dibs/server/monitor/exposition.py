"""The page that Prometheus reads: the declared metrics, written by prometheus-client in its two formats.

The choice of the format is ours. prometheus-client (0.26) ignores the weights of an Accept header, raises at
`version=x`, and claims any version that is asked for. And whoever does not ask for either gets OctoStore's JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import exposition as plain_format
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as open_format
from prometheus_client.process_collector import PROCESS_COLLECTOR
from prometheus_client.registry import Collector

from dibs.engine.metrics import Histogram
from dibs.server.monitor.metric_table import COUNTER, HISTOGRAM, INFO, METRICS, Metric, Scrape

PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_WRITERS: dict[str, Callable[[Collector], bytes]] = {
    PLAIN_TYPE: plain_format.generate_latest,
    OPEN_TYPE: open_format.generate_latest,
}


def exposition(scrape: Scrape, media: str, metrics: Iterable[Metric] = METRICS) -> bytes:
    """All samples as text of the content type `media`."""
    return _WRITERS[media](_Page(scrape, metrics))


class _Page(Collector):
    def __init__(self, scrape: Scrape, metrics: Iterable[Metric]) -> None:
        self._scrape = scrape
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        for metric in self._metrics:
            values = metric.read(self._scrape)
            if values is not None:
                several = {(): values} if isinstance(values, int | float | Histogram) else values
                yield _family(metric, several.items())
        yield from PROCESS_COLLECTOR.collect()


def _family(metric: Metric, values: Iterable[tuple[tuple[str, ...], float | Histogram]]) -> Family:
    name, about, labels = metric.name, metric.help, metric.labels
    if metric.kind == HISTOGRAM:
        family = HistogramMetricFamily(name, about, labels=labels)
        for words, value in values:
            assert isinstance(value, Histogram)
            family.add_metric(words, _buckets(value), value.total)
        return family
    if metric.kind == INFO:
        info = InfoMetricFamily(name.removesuffix("_info"), about, labels=())
        for words, _ in values:
            info.add_metric((), dict(zip(labels, words, strict=True)))
        return info
    numbers = (CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily)(name, about, labels=labels)
    for words, value in values:
        assert not isinstance(value, Histogram)
        numbers.add_metric(words, value)
    return numbers


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """For each bound, the number of values that are at most as large."""
    reached, found = 0, []
    for bound, count in zip([*map(repr, histogram.bounds), "+Inf"], histogram.counts.copy(), strict=True):
        reached += count
        found.append((bound, float(reached)))
    return found


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
