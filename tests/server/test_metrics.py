"""Metrics: the counts are true, the text can be parsed, and a scrape waits for nobody."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from dibs.base.errors import StoreUnavailable
from dibs.core.limits import WRITE_FAILED_MS
from dibs.engine import metrics as metrics_module
from dibs.engine.metrics import REQUEST_S, UNCOUNTED_MAX, Histogram, Metrics, RequestCounts
from dibs.server.monitor.exposition import OPEN_TYPE, PLAIN_TYPE, exposition, format_for
from dibs.server.monitor.metric_table import METRICS, PROCESS, Metric
from dibs.server.routes import health as metrics_routes
from dibs.server.settings import ServerSettings
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.server.harness import Poll, WaitedForStore, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Response, Server

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
    "version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

LABELS = {metric.name: metric.labels for metric in METRICS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("metrics")) as server:
        yield server


def parsed(reply: Response) -> list[Any]:
    parse: Any = parse_open if "openmetrics" in reply.headers["content-type"] else parse_plain
    return list(parse(reply.body.decode()))


def families(reply: Response) -> dict[str, str]:
    """The kind of each metric, by name."""
    return {family.name: family.type for family in parsed(reply)}


def scrape(server: Server, accept: str = "text/plain") -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, then by values of labels, in the order in which they are declared."""
    reply = server.ask("GET", "/metrics", who="viewer", headers={"Accept": accept})
    assert reply.status == 200, reply.body
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parsed(reply):
        for sample in family.samples:
            names = LABELS.get(sample.name, tuple(sample.labels))
            found.setdefault(sample.name, {})[tuple([sample.labels[name] for name in names])] = sample.value
    return found


def rise(
    after: dict[str, dict[tuple[str, ...], float]], before: dict[str, dict[tuple[str, ...], float]], name: str
) -> dict[str, float]:
    """By the value of the one label: how far a counter rose, if it did."""
    new, old = after[name], before.get(name, {})
    return {key[0]: value - old.get(key, 0) for key, value in new.items() if value != old.get(key, 0)}


def test_every_answer_of_a_claim_is_counted_once(server: Server) -> None:
    before = scrape(server)
    lease = server.lease("counted", ttl_seconds=60)
    server.acquire("counted")
    server.acquire("counted", {"wait_seconds": 0})
    server.ask("POST", "/locks/counted/renew", {"lease_id": lease})
    server.ask("POST", "/locks/counted/release", {"lease_id": lease, "done": True, "done_seconds": 60})
    server.acquire("counted")
    server.ask("POST", "/locks/acquire-any", {"names": ["counted", "counted-2"]})
    after = scrape(server)

    assert rise(after, before, "dibs_claims_total") == {"acquired": 2, "held": 2, "done": 1}
    assert rise(after, before, "dibs_renewals_total") == {"renewed": 1}
    assert rise(after, before, "dibs_releases_total") == {"released": 1}
    assert rise(after, before, "dibs_holds_ended_total") == {"released": 1}
    assert after["dibs_hold_seconds_count"][()] - before["dibs_hold_seconds_count"][()] == 1


def test_a_claim_that_waits_is_counted_when_it_is_answered(server: Server) -> None:
    before = scrape(server)
    lease = server.lease("line", ttl_seconds=60)
    first = Poll(server, "/locks/line/acquire", {"wait_seconds": 30}, who="other")
    wait_until(lambda: server.waiting() == 1, "the first waits")
    second = Poll(server, "/locks/line/acquire", {"wait_seconds": 30}, who="operator")
    wait_until(lambda: server.waiting() == 2, "the second waits")
    waiting = scrape(server)
    assert waiting["dibs_waiting"][()] == 2
    assert waiting["dibs_waiters"][()] == 2
    assert rise(waiting, before, "dibs_claims_total") == {"acquired": 1}

    second.hang_up()
    wait_until(lambda: server.waiting() == 1, "the second is gone")
    server.clock.advance(400)
    server.ask("POST", "/locks/line/release", {"lease_id": lease})
    assert first.answer()["status"] == "acquired"
    after = scrape(server)

    assert rise(after, before, "dibs_claims_total") == {"acquired": 2, "abandoned": 1}
    assert after["dibs_wait_seconds_count"][()] - before["dibs_wait_seconds_count"][()] == 1
    assert after["dibs_wait_seconds_sum"][()] - before["dibs_wait_seconds_sum"][()] == pytest.approx(0.4)


def test_requests_are_counted_by_verb_and_status_on_both_ways(server: Server) -> None:
    before = scrape(server).get("dibs_http_requests_total", {})
    server.ask("GET", "/locks/some")
    server.ask("GET", "/locks/some?namespace=default")
    server.ask("GET", "/locks/some", who=None)
    server.ask("GET", "/nothing/here")
    server.ask("GET", "/locks")
    after = scrape(server)["dibs_http_requests_total"]

    rose = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    rose.pop(("metrics", "2xx"))
    assert rose == {
        ("inspect", "2xx"): 2,
        ("inspect", "4xx"): 1,
        ("other", "4xx"): 1,
        ("list", "2xx"): 1,
    }


def test_durations_that_are_counted_together_are_counted_as_one_by_one() -> None:
    together, alone = RequestCounts(), Histogram(REQUEST_S)
    values = [*REQUEST_S, 0.0, 99.0, *[0.0003 * number for number in range(2 * UNCOUNTED_MAX)]]
    for value in values:
        together.add(404 if value > 0.1 else 200, value)
        alone.observe(value)
    assert together.counted().durations.counts == alone.counts
    assert together.durations.total == pytest.approx(alone.total)
    assert together.classes[2] + together.classes[4] == len(values)
    assert together.classes[4] == len([value for value in values if value > 0.1])
    assert (together.min_s, together.max_s) == (0.0, 99.0)


def test_expiries_are_holds_that_ended(server: Server) -> None:
    before = scrape(server)
    server.lease("gone", ttl_seconds=1)
    server.pass_time(2_000)
    wait_until(lambda: scrape(server)["dibs_holds_ended_total"]["expired",] == 1, "the expiry is counted")
    assert rise(scrape(server), before, "dibs_events_total")["expired"] == 1


@pytest.mark.promise("metrics:no-names")
def test_no_free_text_is_in_the_metrics(server: Server) -> None:
    server.lease("secret-name", owner="secret-owner", metadata="secret-metadata")
    server.ask("GET", "/secret-path?secret=query")
    for path in ("/metrics/prometheus", "/metrics"):
        assert b"secret" not in server.ask("GET", path, who="viewer").body
    text = server.ask("GET", "/metrics/prometheus", who="viewer").body.decode()
    assert set(re.findall(r'(\w+)="', text)) <= {label for metric in METRICS for label in metric.labels} | {"le"}


def test_every_declared_metric_is_there_in_both_formats_and_no_other(server: Server) -> None:
    plain = server.ask("GET", "/metrics/prometheus", who="viewer")
    assert plain.headers["content-type"] == PLAIN_TYPE
    found = families(plain)
    optional = {
        "dibs_token_next_expiry_timestamp_seconds",
        "dibs_tls_certificate_expiry_timestamp_seconds",
    }
    names = {name.removesuffix("_total") for name in (*[metric.name for metric in METRICS], *PROCESS)}
    assert names - optional <= found.keys() <= names

    opened = server.ask("GET", "/metrics", who="viewer", headers={"Accept": PROMETHEUS})
    assert opened.headers["content-type"] == OPEN_TYPE
    kinds = families(opened)
    declared = {metric.name.removesuffix("_total").removesuffix("_info"): metric.kind for metric in METRICS}
    assert {name: kind for name, kind in kinds.items() if not name.startswith("process_")}.items() <= declared.items()


def test_names_and_units_follow_the_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"dibs_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert "\n" not in metric.help
        assert metric.help.endswith(".")
    # In OpenMetrics a counter and a gauge whose names differ by the suffix alone are one family.
    assert len({metric.name.removesuffix("_total").removesuffix("_info") for metric in METRICS}) == len(METRICS)


def test_octostores_json_is_the_answer_for_everybody_else(server: Server) -> None:
    server.ask("GET", "/locks", who="viewer")  # a request counts when it was answered
    for accept in ("", "*/*", "application/json", "application/json, text/plain, */*", "text/html"):
        reply = server.ask("GET", "/metrics", who="viewer", headers={"Accept": accept})
        assert reply.headers["content-type"] == "application/json"
        assert reply.json["total_requests"] > 0


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (b"text/plain", PLAIN_TYPE),
        (b"TEXT/Plain ; Q=0.5", PLAIN_TYPE),
        (PROMETHEUS.encode(), OPEN_TYPE),
        (b"text/plain;version=x", PLAIN_TYPE),
        (b"application/openmetrics-text;version=9.9.9", OPEN_TYPE),
        (b"text/plain;q=0", None),
        (b"text/plain;q=nan", None),
        (b"text/plain;q=1e9", None),
        (b"text/plain;q=-1", None),
        (b"text/plain;q=0.5, application/json;q=0.4", PLAIN_TYPE),
        (b"text/plain;q=0.4, application/json;q=0.5", None),
        (b"text/plain\xff", None),
        (b",;=,;q=," * 500, None),
        (b"text/plain;" * 500, PLAIN_TYPE),
        (b"", None),
    ],
)
def test_an_accept_header_never_breaks_a_scrape(accept: bytes, media: str | None) -> None:
    assert format_for(accept) == media


def test_a_viewers_token_is_needed(server: Server) -> None:
    for path in ("/metrics", "/metrics/prometheus"):
        assert server.ask("GET", path, who=None).status == 401
        assert server.ask("GET", path, who="scoped").status == 200
    server.api.metrics_are_open = True
    try:
        assert server.ask("GET", "/metrics/prometheus", who=None).status == 200
    finally:
        server.api.metrics_are_open = False


class _HungStore(MemoryStore):
    """Its events cannot be read while `hangs`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.goes_on = threading.Event()
        self.goes_on.set()

    def newest_seq(self) -> int:
        assert self.goes_on.wait(60)
        return super().newest_seq()


def test_a_scrape_does_not_wait_for_a_store_that_hangs(tmp_path: Path, monkeypatch: Any) -> None:
    clock = ManualClock()
    store = _HungStore(clock)
    with running(tmp_path, store=store, clock=clock) as server:
        assert scrape(server)["dibs_store_up"][()] == 1
        monkeypatch.setattr(metrics_routes, "SCRAPE_MS_MAX", 20)
        store.goes_on.clear()
        hung = scrape(server)
        store.goes_on.set()
    assert hung["dibs_store_up"][()] == 0
    assert "dibs_event_lag" not in hung
    assert hung["dibs_claims_total"]["acquired",] == 0


class _StubbornStore(WaitedForStore):
    """Its commits raise `error`, if there is one, and hang unless `goes_on`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.error: StoreUnavailable | None = None
        self.has_begun = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def commit(self, *args: Any) -> int:
        if self.error is not None:
            raise self.error
        if not self.goes_on.is_set():
            self.has_begun.set()
        assert self.goes_on.wait(60)
        return super().commit(*args)


def test_writes_that_fail_or_hang_show_until_one_succeeds(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics_module, "WRITE_SLOW_MS", 0)
    clock = ManualClock()
    store = _StubbornStore(clock)
    with running(tmp_path, store=store, clock=clock) as server:

        def is_writable() -> float:
            return scrape(server)["dibs_store_writable"][()]

        server.lease("kept", ttl_seconds=60)
        assert is_writable() == 1
        store.error = StoreUnavailable("The PostgreSQL is read-only: a standby.")
        assert server.acquire("new").status == 503
        assert (is_writable(), scrape(server)["dibs_store_up"][()]) == (0, 1)
        store.error = None
        assert server.acquire("new").status == 200
        assert is_writable() == 1
        store.goes_on.clear()
        hung = Poll(server, "/locks/newer/acquire", {})
        assert store.has_begun.wait(60)
        try:
            assert is_writable() == 0
        finally:
            store.goes_on.set()
        assert hung.answer()["status"] == "acquired"
        assert is_writable() == 1


def test_a_failed_write_counts_as_blocked_for_a_while_if_nothing_is_written() -> None:
    metrics = Metrics()
    assert not metrics.is_write_blocked()
    metrics.write_failed()
    assert metrics.is_write_blocked()
    metrics.write_failed_us -= WRITE_FAILED_MS * 1000
    assert not metrics.is_write_blocked()


def test_counters_begin_at_0_with_the_server(tmp_path: Path) -> None:
    store = MemoryStore(clock := ManualClock())
    with running(tmp_path, store=store, clock=clock) as server:
        server.lease("kept", ttl_seconds=60)
        started_s = scrape(server)["process_start_time_seconds"][()]
    with running(tmp_path, store=store, clock=clock) as server:
        again = scrape(server)
    assert again["dibs_claims_total"]["acquired",] == 0
    assert again["dibs_held"][()] == 1
    assert again["process_start_time_seconds"][()] >= started_s


def test_labels_are_escaped() -> None:
    hostile = 'a"b\\c\nd'
    values: dict[tuple[str, ...], float] = {(hostile,): 1}
    metric = Metric("gauge", "dibs_x", "X.", lambda source: values, ("label",))
    parse: Any = parse_plain
    source: Any = None
    family, *_ = parse(exposition(source, PLAIN_TYPE, [metric]).decode())
    assert family.samples[0].labels == {"label": hostile}


@pytest.mark.promise("overdue")
def test_the_last_success_of_the_jobs_that_the_operator_names_is_reported(tmp_path: Path) -> None:
    key = ("default", 'nightly "report"')
    with running(tmp_path, settings=ServerSettings(metric_jobs=(key, ("default", "never")))) as server:
        server.lease("secret-name")
        lease = server.lease("nightly%20%22report%22")
        assert scrape(server)["dibs_job_last_success_timestamp_seconds"] == {key: 0, ("default", "never"): 0}
        server.ask("POST", "/locks/nightly%20%22report%22/release", {"lease_id": lease})
        told = scrape(server)["dibs_job_last_success_timestamp_seconds"]
        assert told == {key: server.clock() / 1000, ("default", "never"): 0}
