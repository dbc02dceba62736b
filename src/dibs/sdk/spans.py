"""Spans of OpenTelemetry about a claim: `dibs claim` while it is asked for, `dibs hold` while it is held.

There are some only in a program that uses OpenTelemetry itself; else every function here returns at once. A span has
the job's name and its fencing token, and never the lease id. Nothing is raised here: a trace must not cost a lease.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from dibs.base.errors import NotClaimed
from dibs.base.traceparent import tracing

if TYPE_CHECKING:
    from typing import Any

    from dibs.sdk.hold import LeaseHold

log = logging.getLogger("dibs")


class ClaimSpan(NamedTuple):
    span: Any
    token: Any  # what undoes that it is the current span


def begin_claim() -> ClaimSpan | None:
    """From here on, requests belong to this span."""
    trace = tracing()
    if trace is None:
        return None
    try:
        from opentelemetry import context

        span = _tracer(trace).start_span("dibs claim", kind=trace.SpanKind.CLIENT)
        return ClaimSpan(span, context.attach(trace.set_span_in_context(span)))
    except Exception as error:
        log.debug("no span: %s", error)
        return None


def end_claim(begun: ClaimSpan | None, hold: LeaseHold | None, error: BaseException | None = None) -> None:
    if begun is None:
        return
    try:
        from opentelemetry import context

        if hold is not None:
            begun.span.set_attributes(_attributes(hold))
        if isinstance(error, NotClaimed):  # an answer, and no fault
            begun.span.set_attribute("dibs.outcome", error.code)
        elif error is not None:
            begun.span.set_status(tracing().StatusCode.ERROR, type(error).__name__)
        else:
            begun.span.set_attribute("dibs.outcome", "acquired")
        begun.span.end()
        context.detach(begun.token)
    except Exception as trouble:
        log.debug("no span: %s", trouble)


def begin_hold(hold: LeaseHold) -> Any:
    """A span from the claim to its end. It is not the current one: the block may be left in another context."""
    trace = tracing()
    if trace is None:
        return None
    try:
        return _tracer(trace).start_span("dibs hold", attributes=_attributes(hold))
    except Exception as error:
        log.debug("no span: %s", error)
        return None


def end_hold(span: Any, hold: LeaseHold, error: BaseException | None) -> None:
    if span is None:
        return
    try:
        span.set_attribute("dibs.lost", hold.was_lost)
        if error is not None or hold.was_lost:
            span.set_status(tracing().StatusCode.ERROR, type(error).__name__ if error is not None else "lost")
        span.end()
    except Exception as trouble:
        log.debug("no span: %s", trouble)


def _tracer(trace: Any) -> Any:
    return trace.get_tracer("dibs")


def _attributes(hold: LeaseHold) -> dict[str, Any]:
    return {"dibs.job": hold.name, "dibs.fencing_token": hold.leases[0].fencing_token}
