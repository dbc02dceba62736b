"""The routes about tokens: for admins. What they do is `service/credentials.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.server.request import check_head, decode_name, parse_json, parse_query
from dibs.server.response import HttpResponse, answer_document
from dibs.service.credentials import CredentialAdmin
from dibs.wire.permissions import require
from dibs.wire.requests import shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dibs.server.handlers import Api
    from dibs.server.request import HttpRequest

    Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]

_BODILESS = ("tokens", "token-revoke")


def token_routes(api: Api) -> list[tuple[str, str, Handler]]:
    """Method, path and handler of each."""

    def asks(verb: str) -> Handler:
        async def handle(call: HttpRequest) -> HttpResponse:
            return await _answer(api, verb, call)

        return handle

    one = "/tokens/{name:segment}"
    return [
        ("GET", "/tokens", asks("tokens")),
        ("POST", "/tokens", asks("token-create")),
        ("DELETE", one, asks("token-revoke")),
        ("POST", f"{one}/rotate", asks("token-rotate")),
        ("POST", f"{one}/limits", asks("token-limit")),
    ]


async def _answer(api: Api, verb: str, call: HttpRequest) -> HttpResponse:
    document: object = {}
    if verb not in _BODILESS:
        check_head(call.headers)
        document = shape(verb, parse_json(await call.rest(api.caller_of)))
    caller = api.caller_for(verb, call.headers)
    require(caller, verb)
    name, wanted_id = decode_name(call.raw_name), parse_query(call.query).get("id", "")
    reply = await api.in_reader(
        lambda: CredentialAdmin(api.engine.store, caller).ask(verb, name, wanted_id, document)
    )
    if verb != "tokens":
        await api.in_reader(api.look_for_tokens)
    return answer_document(reply.body or {}, reply.status)
