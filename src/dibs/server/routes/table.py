"""Routes from declared operations. A part of the API is a table of operations with their handlers.

Routes match the path as it was sent, still percent-encoded: a `%2F` is part of a name, a `/` is not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Route

from dibs.server.event_stream import EventStream
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import ClientGone, HttpResponse, answer_for_error
from dibs.server.monitor.request_note import note

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.types import Receive, Scope, Send

    from dibs.wire.operations import Operation

    Handler = Callable[[HttpRequest], Awaitable[HttpResponse | EventStream]]
    Table = list[tuple[Operation, Handler]]


class _Segment(Convertor[str]):
    """One segment. It may be empty, so that the error for an empty name can say what is wrong."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("segment", _Segment())
_PART = re.compile(r"\{(\w+)\}")


def routes_of(table: Iterable[tuple[Operation, Handler]]) -> list[Route]:
    return [
        Route(
            _PART.sub(r"{\1:segment}", operation.path),
            Endpoint(handler, operation.id),
            methods=[operation.method],
        )
        for operation, handler in table
    ]


class Endpoint:
    """An ASGI app around one handler. It sends nothing before the whole answer is ready, unless that is a stream."""

    def __init__(self, handler: Handler, verb: str) -> None:
        self._handler = handler
        self._verb = verb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note(verb=self._verb)
        call = HttpRequest(scope, receive)
        try:
            answer = await self._handler(call)
        except ClientGone:
            return
        except Exception as error:
            answer = answer_for_error(error)
        if isinstance(answer, EventStream):
            if scope["method"] == "HEAD":
                answer.hurry()
            await answer.run(call.connection, send, receive)
        else:
            await send_answer(answer, send)


async def send_answer(answer: HttpResponse, send: Send) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers()})
    await send({"type": "http.response.body", "body": answer.body})
