"""The request that is being answered, for what is called on the way and is not handed it: the log, and whoever knows
the caller or the outcome. Known only where somebody observes requests (a log in JSON, `--traces`)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Protocol

    HttpRequest = Any  # dibs.server.http.request.HttpRequest, which knows these

    class RequestObserver(Protocol):
        """Is told of each request: when its turn begins, and when it is answered."""

        def begin(self, call: HttpRequest) -> None: ...

        def end(self, call: HttpRequest) -> None: ...


current: ContextVar[HttpRequest | None] = ContextVar("dibs-request", default=None)


def note(**what: str) -> None:
    """Add to what is known of the request that is being answered."""
    found = current.get()
    if found is not None:
        for name, value in what.items():
            setattr(found, name, value)
