"""The description of the API, as OpenAPI. Nobody needs a token for it: it says what the server can do, and nothing
about what is in the store."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from functools import partial

from dibs._version import __version__
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.core.caller_rights import LEAST_ROLE
from dibs.server.handlers import Api
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import answer_document, answer_text
from dibs.server.routes.operations import routed
from dibs.server.routes.table import Table
from dibs.wire import operations
from dibs.wire.answer_fields import ANSWERS
from dibs.wire.codes import CODES
from dibs.wire.fields import REQUESTS
from dibs.wire.operations import Answer, Operation, Parameter, Schema, allowed, answer_schema, codes_of, request_schema

# The OpenAPI 3.1 document, made from the declared operations and fields. Pure.

_SCHEMAS = "#/components/schemas/"
_HEADERS = "#/components/headers/"
_ABOUT = (
    "One owner per job for distributed workers and agent swarms. A job is claimed by name for a limited time; the "
    "lease id proves the claim, and the fencing token rises with every owner. Unknown request fields are ignored, and "
    "`null` is the same as leaving a field out. Answers such as `held` are not errors: they have a `status` field. "
    "Every error is a document with a `code`. Newer servers may add fields to answers."
)
_REPLY_HEADERS: Schema = {
    "X-Request-Id": {"description": "Names the request in the server's log.", "schema": {"type": "string"}},
    "X-Dibs-Store": {"description": "The id of the store.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Where asking later helps: after how many seconds.",
        "schema": {"type": "integer", "minimum": 0},
    },
}
_EVERY_REPLY = ("X-Request-Id", "X-Dibs-Store")
_LATER = (429, 503)
_TITLES = {200: "Answered", 201: "Made", 202: "Taken", 204: "Done; no body", 409: "Not now"}


def openapi_document(declared: Iterable[Operation], version: str) -> Schema:
    listed = [operation for operation in declared if operation.is_listed]
    paths: Schema = {}
    for operation in listed:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    sections = dict.fromkeys(operation.section for operation in listed)
    requests = {
        f"{operation.id}-request": request_schema(operation.id)
        for operation in listed
        if operation.id in REQUESTS and operation.has_body and operation.request is None
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dibs",
            "version": version,
            "summary": "One owner per job",
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": section} for section in sections],
        "paths": paths,
        "components": {
            "schemas": {**requests, **{answer: answer_schema(answer) for answer in ANSWERS}},
            "headers": _REPLY_HEADERS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token."}},
        },
    }


def _operation(operation: Operation) -> Schema:
    found: Schema = {
        "operationId": operation.id,
        "summary": operation.summary[0].upper() + operation.summary[1:],
        "tags": [operation.section],
        "security": [] if operation.is_open else [{"token": []}],
    }
    about = " ".join(part for part in (operation.about, _who(operation)) if part)
    if about:
        found["description"] = about
    if operation.parameters:
        found["parameters"] = [_parameter(each) for each in operation.parameters]
    if operation.has_body:
        own = {"$ref": f"{_SCHEMAS}{operation.id}-request"}
        content: Schema = {"schema": own if operation.request is None else operation.request}
        if operation.example is not None:
            content["example"] = operation.example
        found["requestBody"] = {"required": not operation.body_optional, "content": {operations.JSON_TYPE: content}}
    found["responses"] = _responses(operation)
    return found


def _who(operation: Operation) -> str:
    if operation.is_open and not operation.who:
        return "No token is needed."
    who = operation.who or allowed(operation)
    if not who and operation.id in LEAST_ROLE:
        return f"For the role {LEAST_ROLE[operation.id]} and those above it."
    return f"Who may: {who}." if who else ""


def _parameter(parameter: Parameter) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": f"{parameter.meaning}.",
        "schema": parameter.schema,
        **({"example": parameter.example} if parameter.example else {}),
    }


def _responses(operation: Operation) -> Schema:
    codes = codes_of(operation)
    found: Schema = {}
    for status in sorted({*operation.answers, *codes}):
        choices = []
        if status in operation.answers:
            choices += _choices(operation.answers[status])
        if status in codes:
            named = {"properties": {"code": {"enum": list(codes[status])}}}
            choices.append({"allOf": [{"$ref": f"{_SCHEMAS}error"}], **named})
        found[str(status)] = _response(operation, status, choices, codes.get(status, ()))
    for link in operation.links:
        about = {"operationId": link.to, "description": f"{link.meaning}.", "parameters": link.parameters}
        shown = {key: value for key, value in {**about, "requestBody": link.body}.items() if value}
        found[str(link.status)].setdefault("links", {})[link.name] = shown
    return found


def _response(operation: Operation, status: int, choices: list[Schema], codes: tuple[str, ...]) -> Schema:
    later = ("Retry-After",) if status in _LATER and not operation.is_foreign else ()
    found: Schema = {
        "description": _described(status, codes),
        "headers": {name: {"$ref": _HEADERS + name} for name in (*_EVERY_REPLY, *later)},
    }
    if choices:
        schema = choices[0] if len(choices) == 1 else {"oneOf": choices}
        media = operation.media if status < 300 else (operations.JSON_TYPE,)
        # A stream has no end, so no schema.
        found["content"] = {kind: {} if kind == operations.STREAM_TYPE else {"schema": schema} for kind in media}
    return found


def _described(status: int, codes: tuple[str, ...]) -> str:
    titles = [_TITLES[status]] if status in _TITLES else []
    titles += [f"`{code}`: {CODES[code].title}" for code in codes]
    return (". ".join(titles) or "Refused") + "."


def _choices(answer: Answer) -> list[Schema]:
    if answer is None:
        return []
    if isinstance(answer, dict):
        return [answer]
    names = (answer,) if isinstance(answer, str) else answer
    return [{"type": "null"} if name == operations.NULL else {"$ref": _SCHEMAS + name} for name in names]


_NONE_OF_IT = (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
_FORMS: dict[str, Callable[[Document], Reply]] = {
    "openapi-json": answer_document,
    # JSON is YAML, for programs that look for that.
    "openapi-yaml": lambda document: answer_text(
        json.dumps(document, indent=2, ensure_ascii=False), "application/yaml"
    ),
}


def takes_gzip(accepted: bytes) -> bool:
    for each in accepted.lower().split(b","):
        name, _, weight = each.partition(b";")
        if name.strip() == b"gzip":
            return weight.strip() not in _NONE_OF_IT
    return False


def description_routes(api: Api) -> Table:
    made: dict[str, tuple[Reply, Reply]] = {}  # each when it is asked for the first time: as it is, and compressed

    def both(make: Callable[[Document], Reply]) -> tuple[Reply, Reply]:
        reply = make(openapi_document(api.operations, __version__))
        headers = {**reply.headers, "vary": "accept-encoding"}
        content = gzip.compress(reply.content, mtime=0)
        return (
            Reply(200, content=reply.content, headers=headers),
            Reply(200, content=content, headers={**headers, "content-encoding": "gzip"}),
        )

    async def answer(form: str, make: Callable[[Document], Reply], call: HttpRequest) -> Reply:
        if form not in made:  # making it takes so long that other requests should not wait for it
            made[form] = await api.in_reader(lambda: both(make))
        plain, compressed = made[form]
        return compressed if takes_gzip(call.headers.get(b"accept-encoding", b"")) else plain

    return routed({form: partial(answer, form, make) for form, make in _FORMS.items()})
