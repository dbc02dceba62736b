"""What becomes known about one request on the general way, for the counts, the log and the trace.

A note belongs to the task that answers the request, so what is called from there adds to it without being handed it.
On the fast lane there is none.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dibs.base.clock import stopwatch_s
from dibs.engine.metrics import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Protocol

    from starlette.types import Message, Scope, Send

    from dibs.engine.metrics import Metrics

    class RequestObserver(Protocol):
        """Is told of each request on the general way, in its task."""

        def begin(self, scope: Scope, request: RequestNote) -> None: ...

        def end(self, scope: Scope, request: RequestNote) -> None: ...


class RequestNote:
    __slots__ = (
        "_metrics",
        "began_s",
        "outcome",
        "principal",
        "request_id",
        "span",
        "status",
        "took_s",
        "trace",
        "verb",
    )

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.began_s = stopwatch_s()
        self.took_s = 0.0  # until the answer began
        self.verb = OTHER
        self.status = 0  # 0: the client was gone
        self.principal = ""
        self.outcome = ""
        self.request_id = ""
        self.trace: tuple[str, str, bool] | None = None
        self.span: Any = None

    def sends(self, send: Send) -> Send:
        """`send`, and what it says about the answer is noted."""

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.begun(message["status"])
                for name, value in message["headers"]:
                    if name == b"x-request-id":
                        self.request_id = value.decode("latin-1")
            await send(message)

        return noted

    def begun(self, status: int) -> None:
        self.status = status
        self.took_s = stopwatch_s() - self.began_s
        self._metrics.requests[self.verb].add(status, self.took_s)


current: ContextVar[RequestNote | None] = ContextVar("dibs-request", default=None)


@contextmanager
def noted(metrics: Metrics, scope: Scope, observers: Sequence[RequestObserver] = ()) -> Iterator[RequestNote]:
    """One request, from its head to the end of its answer."""
    request = RequestNote(metrics)
    token = current.set(request)
    for observer in observers:
        observer.begin(scope, request)
    try:
        yield request
    finally:
        if not request.status:
            request.begun(0)
        for observer in reversed(observers):
            observer.end(scope, request)
        current.reset(token)


def note(**what: str) -> None:
    """Add to the note of the request that is being answered, if there is one."""
    found = current.get()
    if found is not None:
        for name, value in what.items():
            setattr(found, name, value)
