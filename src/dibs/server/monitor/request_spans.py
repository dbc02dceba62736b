"""Spans of OpenTelemetry for the requests of a server, with the caller's span as parent. Only with `--traces`, which
needs the extra `otel`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dibs._version import __version__
from dibs.base.errors import MissingExtra

if TYPE_CHECKING:
    from typing import Any

    from dibs.server.http.request import HttpRequest


CLOSE_SECONDS_MAX = 2.0


class RequestSpans:
    """`provider`: an OpenTelemetry TracerProvider. `owned`: it ends with the server."""

    def __init__(self, provider: Any, *, owned: bool = False) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._owned = provider if owned else None
        self._tracer = provider.get_tracer("dibs", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, call: HttpRequest) -> None:
        from dibs.server.monitor.server_log import trace_in

        call.trace = trace_in(call)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.head.sent}
        parent = self._propagator.extract(headers if call.trace is not None else {})
        call.span = self._tracer.start_span(
            "dibs",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": call.method},
        )

    def end(self, call: HttpRequest) -> None:
        span = call.span
        span.update_name(f"{call.method} {call.verb}")
        span.set_attributes(
            {
                "http.response.status_code": call.status,
                "dibs.verb": call.verb,
                "dibs.outcome": call.outcome,
                "dibs.principal": call.principal,
                "dibs.request_id": call.request_id.decode(),
            }
        )
        if call.status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Sends the last spans. A collector that does not answer must not hold up the end of the server: the provider
        itself would wait for it for 30 seconds."""
        if self._owned is not None:
            closing = threading.Thread(target=self._owned.shutdown, name="dibs-spans", daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS_MAX)


def open_spans() -> RequestSpans:
    """With the provider that this process has already (`opentelemetry-instrument`), or one that exports by OTLP, as
    the variables OTEL_* say."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        found = trace.get_tracer_provider()
        if isinstance(found, TracerProvider):
            return RequestSpans(found)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtra(
            f"--traces needs {error.name}. In a clone of dibs, run: pip install '.[server,otel]'"
        ) from None
    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes.get("service.name")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "dibs"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # close() does
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return RequestSpans(provider, owned=True)
