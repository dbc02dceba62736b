"""The dashboard: a page at /, and its parts at /ui/. The files are in `dashboard/`; all data comes from the API.

The page holds nothing secret, so no token is needed for it. The browser may run and load only these files.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from dibs.server.http.request import decode_name
from dibs.server.http.response import HttpError, HttpResponse, answer_text
from dibs.wire.operations import Operation, in_path

if TYPE_CHECKING:
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import Header
    from dibs.server.routes.table import Table

PAGE = "index.html"
_NOT_MODIFIED = 304
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "dashboard")
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # ask each time; the tag makes that cheap
)

_BOARD = Operation(
    "GET",
    "/",
    "dashboard",
    "the dashboard, for browsers",
    "Dashboard",
    {200: {"type": "string"}, 304: None},
    ("not_found",),
    is_open=True,
    media=("text/html",),
)
_PART = Operation(
    "GET",
    "/ui/{file}",
    "dashboard-file",
    "its scripts and styles",
    "Dashboard",
    {200: {"type": "string"}, 304: None},
    ("not_found",),
    (in_path("file", "A file of the dashboard", "app.js"),),
    is_open=True,
    media=("text/javascript", "text/css", "image/svg+xml"),
)


class _File(NamedTuple):
    text: str
    kind: bytes
    tag: bytes


def dashboard_routes() -> Table:
    return [(_BOARD, _board), (_PART, _part)]


async def _board(call: HttpRequest) -> HttpResponse:
    """The page, for those who can show it. Programs that ask for / are told that nothing is there."""
    if b"text/html" not in call.headers.get(b"accept", b"").lower():
        raise HttpError("There is nothing at this address but a page for browsers.", 404, code="not_found")
    return _answer(call, _files()[PAGE])


async def _part(call: HttpRequest) -> HttpResponse:
    file = _files().get(decode_name(call.raw_name))
    if file is None:
        raise HttpError("The dashboard has no such file.", 404, code="not_found")
    return _answer(call, file)


def _answer(call: HttpRequest, file: _File) -> HttpResponse:
    more = (*_HEADERS, (b"etag", file.tag), (b"vary", b"Accept"))
    answer = answer_text(file.text, file.kind, more)
    known = [tag.strip().removeprefix(b"W/") for tag in call.headers.get(b"if-none-match", b"").split(b",")]
    return answer._replace(status=_NOT_MODIFIED, body=b"") if file.tag in known else answer


@cache
def _files() -> dict[str, _File]:
    """All files, read once. Only what is in the folder can be asked for, by its whole name."""
    found = {}
    for name in os.listdir(_FOLDER):
        kind = _TYPES.get(os.path.splitext(name)[1])
        if kind is not None:
            with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
                text = file.read()
            tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
            found[name] = _File(text, f"{kind}; charset=utf-8".encode(), tag.encode())
    return found
