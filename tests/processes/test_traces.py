"""`dibs serve --traces` before a collector that reads what it is sent: whole traces, and no secrets in them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dibs.client.transport import Ask
from tests.programs import WAIT_S_MAX, ServerProcess
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

pytestmark = pytest.mark.full

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
UNSET, ERROR = 0, 2  # codes of a span's status


class Collector:
    """Takes spans by OTLP over HTTP, as protobuf."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.paths.add(self.path)
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def resources(self) -> list[dict[str, Any]]:
        return [attributes_of(each.resource) for each in self._parts()]

    def spans(self) -> dict[str, Span]:
        """By outcome; every request of the test has one of its own."""
        spans = [span for each in self._parts() for scope in each.scope_spans for span in scope.spans]
        return {attributes_of(span)["dibs.outcome"]: span for span in spans}

    def _parts(self) -> list[Any]:
        return [part for body in self.bodies for part in ExportTraceServiceRequest.FromString(body).resource_spans]


def attributes_of(thing: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    thread.join(WAIT_S_MAX)


@pytest.mark.e2e
def test_a_collector_is_sent_the_callers_trace_and_no_secrets(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE_ID}-{SPAN_ID}-01")
    server = ServerProcess(tmp_path, flags=("--traces",))
    server.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_RESOURCE_ATTRIBUTES": "rack=7"}
    secret = {"metadata": "hidden-metadata", "checkpoint": "hidden-checkpoint", "request_key": "hidden-key"}
    with server:
        transport = server.transport()
        lease = (transport.ask(Ask("acquire", "hidden-job", {"owner": "a1", **secret})).body or {})["lease_id"]
        assert transport.ask(Ask("acquire", "hidden-job", {"owner": "a2"})).body["status"] == "held"  # type: ignore[index]
        transport.close()
        stranger = connect(server.url, namespace=None, token="hidden-token", timeout_ms=10_000)
        assert stranger.ask(Ask("acquire", "hidden-job")).status == 401
        stranger.close()
        assert server.stop() == 0  # which sends what was not sent yet
        token = server.token

    assert collector.paths == {"/v1/traces"}
    resource = collector.resources()[0]
    assert (resource["service.name"], resource["rack"]) == ("dibs", "7")
    spans = collector.spans()
    assert spans.keys() == {"acquired", "held", "authentication_failed"}
    for outcome, status, principal in (
        ("acquired", 200, True),
        ("held", 200, True),
        ("authentication_failed", 401, False),
    ):
        span, found = spans[outcome], attributes_of(spans[outcome])
        assert (span.name, span.kind) == ("POST acquire", span.SPAN_KIND_SERVER)
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
        assert (found["http.response.status_code"], bool(found["dibs.principal"])) == (status, principal)
        assert span.status.code == UNSET  # a refusal is an answer, and no fault of the server
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    sent = b"".join(collector.bodies)
    assert not [each for each in (b"hidden", lease.encode(), token.encode()) if each in sent]
