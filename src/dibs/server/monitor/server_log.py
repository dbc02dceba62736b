"""The log of a server on standard error, as lines for people or as one JSON object per line; and with `--traces`, spans
of OpenTelemetry.

Nothing waits for whoever reads the log. A thread writes it; if nobody reads the pipe behind standard error, lines are
kept up to LOG_BYTES_MAX, and later ones are dropped and counted. The number is logged as soon as there is room.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections import deque
from typing import Any, TextIO
from urllib.parse import unquote_plus

from dibs._version import __version__
from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput, MissingExtra
from dibs.base.logger import log
from dibs.base.terminal import log_lines
from dibs.base.traceparent import HEADER, trace_of
from dibs.core.limits import LOG_BYTES_MAX, LOG_FLUSH_MS_MAX
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import current
from dibs.server.settings import ServerSettings
from dibs.wire.parts import timestamp

# The access log has a line for every request, without anything that proves an identity.
#
# A secret may be in a query (the gateway's clients put it there) or in a path (a session's id proves the session).
# Names of query parameters are compared after percent-decoding, as the server reads them.

HIDDEN = frozenset(
    {"secret", "token", "lease", "lease_id", "session", "session_id", "ticket", "request_key", "access_token"}
)
# It looks at each letter once: strangers choose how long the text is.
_NAME = re.compile(r"(?<![a-z_])[a-z_]++(?=\s*=)")
_SESSION = re.compile(r"(?<=/sessions/)[^/?]{8,}")


def without_secrets_in_path(text: str) -> str:
    path, mark, query = text.partition("?")
    path = _SESSION.sub(lambda found: found.group()[:8] + "...", path)
    return path + mark + "&".join([_parameter(part) for part in query.split("&")])


def _parameter(part: str) -> str:
    """Also finds malformed ones: `a;secret=x`, `secret%3Dx`."""
    names = _NAME.findall(unquote_plus(part).lower())
    return part if HIDDEN.isdisjoint(names) else f"{part.partition('=')[0].partition('%3')[0].partition(';')[0]}=..."


LEVELS = ("debug", "info", "warning", "error")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_REQUEST = '%(client)s %(principal)s "%(method)s %(path)s" %(status)s %(outcome)s %(duration_ms)s ms %(request_id)s'


class JsonLines(logging.Formatter):
    """One object per line, in ASCII: text of strangers cannot end a line or reach a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": timestamp(wall_ms()),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        request: dict[str, Any] | None = getattr(record, "request", None)
        if request is not None:
            return json.dumps({**document, "event": "request", **request})
        document["message"] = record.getMessage()
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        note = current.get()
        if note is not None and note.trace is not None:
            document["trace_id"] = note.trace[0]
        return json.dumps(document)


class LogWriter(logging.Handler):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_writing = False
        self._thread = threading.Thread(target=self._work, name="dibs-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if self._bytes + len(line) > LOG_BYTES_MAX:
                self._dropped += 1
            else:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written, for LOG_FLUSH_MS_MAX at most."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._is_writing), LOG_FLUSH_MS_MAX / 1000)

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        super().close()

    def _work(self) -> None:
        while (lines := self._next()) is not None:
            try:
                self._stream.write(lines)
                self._stream.flush()
            except (OSError, ValueError):  # the reader is gone, so nobody would read an error
                pass

    def _next(self) -> str | None:
        """Wait for the next text to write; None at the end."""
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or self._dropped or self._is_closed)
            self._is_writing = bool(self._lines or self._dropped)
            lines, dropped = "".join(self._lines), self._dropped
            self._lines.clear()
            self._bytes = self._dropped = 0
        if dropped:
            text = "%d lines were dropped, because nobody read the log"
            lines += self.format(logging.LogRecord("dibs", logging.WARNING, "", 0, text, (dropped,), None)) + "\n"
        return lines or None


def level_of(name: str) -> int:
    if name.lower() not in LEVELS:
        raise InvalidInput(f"{name!r} is not a log level: {', '.join(LEVELS)}.")
    return logging.getLevelNamesMapping()[name.upper()]


def set_up_logging(settings: ServerSettings) -> None:
    level = level_of(settings.log_level)
    handler = LogWriter(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else log_lines(_LINE))
    logging.basicConfig(handlers=[handler])
    log.setLevel(level)


def change_level(steps: int) -> None:
    """A signal asks for more (-1) or fewer (1) lines."""
    numbers = [level_of(name) for name in LEVELS]
    at = numbers.index(log.level) if log.level in numbers else 2
    name = LEVELS[min(max(at + steps, 0), len(LEVELS) - 1)]
    log.setLevel(level_of(name))
    log.log(log.level, "the log level is now %s", name)


def flush_log() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


class RequestLog:
    """A line about each request, after its answer. It has no token and no lease id: those are proofs."""

    def begin(self, call: HttpRequest) -> None:
        call.trace = trace_in(call)

    def end(self, call: HttpRequest) -> None:
        document: dict[str, Any] = {
            "request_id": call.request_id.decode(),
            "principal": call.principal,
            "client": call.peer,
            "method": call.method,
            "path": without_secrets_in_path((call.path + (b"?" + call.query if call.query else b"")).decode("latin-1")),
            "verb": call.verb,
            "status": call.status,
            "outcome": call.outcome,
            "duration_ms": round(call.took_s * 1000, 3),
        }
        words = {name: value or "-" for name, value in document.items()}
        if call.trace is not None:
            document["trace_id"], document["parent_id"] = call.trace[:2]
        _requests.info(_REQUEST, words, extra={"request": document})


def trace_in(call: HttpRequest) -> tuple[str, str, bool] | None:
    """The trace that a request belongs to. If it names two, none."""
    found = [value for name, value in call.head.sent if name == HEADER.encode()]
    return trace_of(found[0].decode("latin-1")) if len(found) == 1 else None


_requests = logging.getLogger("dibs.request")
_requests.setLevel(logging.INFO)  # whoever asks for these lines gets them, whatever the level of the others
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
        call.trace = trace_in(call)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.head.sent}
        parent = self._propagator.extract(headers if call.trace is not None else {})
        call.span = self._tracer.start_span(
            "dibs", context=parent, kind=self._trace.SpanKind.SERVER, attributes={"http.request.method": call.method}
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
        """Sends the last spans. A collector that is away must not hold up the end: OTLP waits for 30 seconds."""
        if self._owned is not None:
            closing = threading.Thread(target=self._owned.shutdown, name="dibs-spans", daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS_MAX)


def open_spans() -> RequestSpans:
    """With the provider that this process has already, or one that exports by OTLP as the variables OTEL_* say."""
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
        raise MissingExtra(f"--traces needs {error.name}. Run: pip install 'dibs-lease[server,otel]'") from None
    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes.get("service.name")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "dibs"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # close() does
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return RequestSpans(provider, owned=True)
