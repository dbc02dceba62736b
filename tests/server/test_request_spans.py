"""Spans of OpenTelemetry: a server's have the caller's as parent, the SDK's are about claims and holds."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dibs.base.errors import JobHeld
from dibs.sdk.async_client import AsyncClient
from dibs.sdk.client import Client
from dibs.server.monitor import server_log
from dibs.server.monitor.server_log import RequestSpans
from tests.server.harness import TOKENS, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.server.harness import Server


@pytest.fixture(scope="module")
def exported() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture(scope="module")
def server(exported: InMemorySpanExporter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    spans = RequestSpans(trace.get_tracer_provider())
    with running(tmp_path_factory.mktemp("traces"), observers=[spans]) as server:
        yield server


def spans_of(exported: InMemorySpanExporter, *names: str) -> list[ReadableSpan]:
    """The one span of each name, once they have ended."""

    def found() -> dict[str, ReadableSpan]:
        return {span.name: span for span in exported.get_finished_spans()}

    wait_until(lambda: found().keys() >= set(names), f"spans {names}, not {list(found())}")
    return [found()[name] for name in names]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_request_is_a_child_of_its_callers_span(server: Server, exported: InMemorySpanExporter) -> None:
    exported.clear()
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    reply = server.acquire("traced", headers={"traceparent": f"00-{trace_id}-{span_id}-01"})
    (span,) = spans_of(exported, "POST acquire")
    assert span.context is not None
    assert (f"{span.context.trace_id:032x}", parent_of(span)) == (trace_id, int(span_id, 16))
    assert span.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "dibs.verb": "acquire",
        "dibs.outcome": "acquired",
        "dibs.principal": "agent",
        "dibs.request_id": reply.headers["x-request-id"],
    }
    assert reply.json["lease_id"] not in span.to_json()


def test_a_malformed_parent_is_none(server: Server, exported: InMemorySpanExporter) -> None:
    exported.clear()
    assert server.ask("GET", "/status", headers={"traceparent": "00-nonsense"}).status == 200
    (span,) = spans_of(exported, "GET status")
    assert span.parent is None


def test_a_claim_of_the_sdk_is_one_trace_with_the_servers_part(server: Server, exported: InMemorySpanExporter) -> None:
    exported.clear()
    url = f"http://127.0.0.1:{server.port}"
    with Client(url, token=TOKENS["agent"]) as client, client.claim("sdk-traced") as claim:
        lease_id = claim.lease_id
        with (
            Client(url, token=TOKENS["other"]) as other,
            pytest.raises(JobHeld),
            other.claim("sdk-traced"),
        ):
            pass
    claimed, held, asked = spans_of(exported, "dibs claim", "dibs hold", "POST acquire")
    assert held.attributes == {
        "dibs.job": "sdk-traced",
        "dibs.fencing_token": claim.fencing_token,
        "dibs.lost": False,
    }
    assert asked.context is not None
    assert claimed.context is not None
    claims = [span for span in exported.get_finished_spans() if span.name == "dibs claim"]
    assert [(span.attributes or {})["dibs.outcome"] for span in claims] == ["acquired", "held"]
    ids = {span.context.span_id for span in claims if span.context is not None}
    acquires = [span for span in exported.get_finished_spans() if span.name == "POST acquire"]
    assert {parent_of(span) for span in acquires} <= ids
    assert not any(lease_id in span.to_json() for span in exported.get_finished_spans())
    assert not trace.get_current_span().get_span_context().is_valid  # nothing is left behind


async def _claim(url: str) -> None:
    async with AsyncClient(url, token=TOKENS["agent"]) as client, client.claim("async-traced"):
        pass


def test_an_async_claim_has_the_same_spans(server: Server, exported: InMemorySpanExporter) -> None:
    import asyncio

    exported.clear()
    asyncio.run(_claim(f"http://127.0.0.1:{server.port}"))
    claimed, _, asked = spans_of(exported, "dibs claim", "dibs hold", "POST acquire")
    assert claimed.context is not None
    assert parent_of(asked) == claimed.context.span_id


def test_a_fault_of_the_tracer_does_not_cost_a_lease(server: Server, monkeypatch: Any) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(trace, "get_tracer", fail)
    with (
        Client(f"http://127.0.0.1:{server.port}", token=TOKENS["agent"]) as client,
        client.claim("faulty-tracer") as claim,
    ):
        assert claim.fencing_token


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "CLOSE_SECONDS_MAX", 0.05)
    answered, ended = threading.Event(), threading.Event()

    class Hanging(TracerProvider):
        def shutdown(self) -> None:
            answered.wait(60)
            ended.set()

    RequestSpans(Hanging(shutdown_on_exit=False), owned=True).close()
    assert not ended.is_set()
    answered.set()
    assert ended.wait(60)


def test_the_sdk_does_not_load_opentelemetry() -> None:
    code = "import sys, dibs; dibs.Client('memory://').claim('x').__enter__(); print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
