"""W3C trace context: the header `traceparent`, which says which trace a request belongs to.

https://www.w3.org/TR/trace-context/: a version, 16 bytes of trace id, 8 bytes of the caller's span, flags. Whatever is
not exactly that is ignored, as the recommendation asks: a trace is a convenience, and no reason to refuse a request.
"""

from __future__ import annotations

import os
import sys

from dibs.base.cheap import Any

VARIABLE = "TRACEPARENT"
HEADER = "traceparent"
_HEX = frozenset("0123456789abcdef")
_TEXT_MAX = 256


def trace_of(text: str) -> tuple[str, str, bool] | None:
    """Trace id, span id of the caller, and whether it is sampled. None if the text is not a valid traceparent."""
    if len(text) > _TEXT_MAX:
        return None
    version, *parts = text.split("-", 4)
    if len(parts) < 3 or (len(parts) > 3 and version == "00") or version == "ff":
        return None
    trace_id, span_id, flags = parts[:3]
    sizes = ((version, 2), (trace_id, 32), (span_id, 16), (flags, 2))
    if not all(len(part) == size and _HEX.issuperset(part) for part, size in sizes):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return trace_id, span_id, bool(int(flags, 16) & 1)


def tracing() -> Any:
    """OpenTelemetry's module `trace`, if this program uses it. dibs never loads it by itself."""
    return sys.modules.get("opentelemetry.trace")


def span_traceparent() -> str | None:
    """The program's current span."""
    found = tracing()
    if found is None:
        return None
    span = found.get_current_span().get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}" if span.is_valid else None


def inherited_traceparent() -> str | None:
    """Return what the environment hands on to a command, in the variable that other tools use for it, too."""
    text = os.environ.get(VARIABLE)
    return text if text is not None and trace_of(text) is not None else None
