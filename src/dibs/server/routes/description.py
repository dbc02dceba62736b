"""The description of the API: for programs as OpenAPI, for people as a page. Nobody needs a token for it: it says what
the server can do, and nothing about what is in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs._version import __version__
from dibs.base.ids import new_request_id
from dibs.server.http.response import answer_document, answer_text
from dibs.server.routes.api_page import PAGE_HEADERS, api_page
from dibs.wire.openapi import openapi_document
from dibs.wire.operations import Operation
from dibs.wire.yaml_text import yaml_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.http.response import HttpResponse
    from dibs.server.routes.table import Table

SECTION = "Description"
OPENAPI_JSON = Operation(
    "GET",
    "/openapi.json",
    "openapi-json",
    "this API as OpenAPI 3.1",
    SECTION,
    {200: {"type": "object"}},
    is_open=True,
)
OPENAPI_YAML = Operation(
    "GET",
    "/openapi.yaml",
    "openapi-yaml",
    "the same as YAML",
    SECTION,
    {200: {"type": "object"}},
    is_open=True,
    media=("application/yaml",),
)
DOCS = Operation(
    "GET",
    "/docs",
    "docs",
    "the same as a page",
    SECTION,
    {200: {"type": "string"}},
    is_open=True,
    media=("text/html",),
)


def description_routes(api: Api) -> Table:
    description = _Description(api)
    return [
        (OPENAPI_JSON, description.as_json),
        (OPENAPI_YAML, description.as_yaml),
        (DOCS, description.as_page),
    ]


class _Description:
    """Made when it is asked for the first time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made: dict[str, HttpResponse] = {}

    async def as_json(self, call: HttpRequest) -> HttpResponse:
        return await self._fresh("json", lambda: answer_document(self._document()))

    async def as_yaml(self, call: HttpRequest) -> HttpResponse:
        return await self._fresh(
            "yaml", lambda: answer_text(yaml_text(self._document()), b"application/yaml")
        )

    async def as_page(self, call: HttpRequest) -> HttpResponse:
        return await self._fresh(
            "page",
            lambda: answer_text(api_page(self._document()), b"text/html; charset=utf-8", PAGE_HEADERS),
        )

    async def _fresh(self, kind: str, make: Callable[[], HttpResponse]) -> HttpResponse:
        if kind not in self._made:
            self._made[kind] = await self._api.in_reader(make)  # it takes longer than others should wait
        return self._made[kind]._replace(request_id=new_request_id().encode())

    def _document(self) -> dict[str, Any]:
        return openapi_document(self._api.operations, __version__)
