"""The description of the API: for programs as OpenAPI, for people as a page. Nobody needs a token for it: it says what
the server can do, and nothing about what is in the store."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from html import escape
from itertools import groupby

from dibs._version import __version__
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.core.identity import LEAST_ROLE
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


# The OpenAPI document as one HTML page. Pure. No script, nothing from outside: the page works offline.

_CSS = """
:root { color-scheme: light dark; --line: #8884; --quiet: #8882; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h2 { border-top: 1px solid var(--line); margin-top: 3rem; padding-top: 1rem; }
h3 { margin-top: 2.5rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .875rem; }
h2 code { font-size: 1.1rem; }
pre { background: var(--quiet); overflow-wrap: anywhere; padding: .75rem; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; }
caption { font-weight: bold; padding: .5rem 0; text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .75rem .25rem 0; }
th, td { overflow-wrap: anywhere; text-align: left; vertical-align: top; }
td:last-child { min-width: 8rem; }
"""
_HASH = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
PAGE_HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
_CODE = re.compile(r"`([^`]+)`")
_PART = re.compile(r"\{(\w+)\}")


def api_page(document: Document) -> str:
    info = document["info"]
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escape(info['title'])} API</title>\n<style>{_CSS}</style>\n</head>\n<body>\n",
            f"<main>\n<h1>{escape(info['title'])} API {escape(info['version'])}</h1>\n",
            f"<p>{_said(info['description'])}</p>\n",
            '<p>For programs: <a href="openapi.json">openapi.json</a>, <a href="openapi.yaml">openapi.yaml</a>.</p>\n',
            *_contents(document),
            *_operations(document),
            *_documents(document),
            "</main>\n</body>\n</html>\n",
        ]
    )


def curl_line(document: Document, path: str, method: str) -> str:
    """A shell command for one operation. DIBS_URL and DIBS_TOKEN are the reader's."""
    operation = document["paths"][path][method]
    url, asked = _PART.sub(lambda found: _some(operation, found[1]), path), []
    for each in operation.get("parameters", ()):
        if each["required"] and each["in"] == "query":
            asked.append(f"{each['name']}={_some(operation, each['name'])}")
    parts = ["curl"] + (["-X", method.upper()] if method != "get" else [])
    parts.append(f'"$DIBS_URL{url}{"?" + "&".join(asked) if asked else ""}"')
    if operation["security"]:
        parts += ["-H", '"Authorization: Bearer $DIBS_TOKEN"']
    body = operation.get("requestBody")
    if body is not None and (body["required"] or "example" in body["content"]["application/json"]):
        example = body["content"]["application/json"].get("example", {})
        parts += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(json.dumps(example))]
    return " ".join(parts)


def _some(operation: Document, name: str) -> str:
    [example] = [each["example"] for each in operation["parameters"] if each["name"] == name]
    return str(example)


def _each(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Path, method and operation, by section."""
    for tag in document["tags"]:
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag["name"]]:
                    yield path, method, operation


def _contents(document: Document) -> Iterator[str]:
    yield "<nav aria-label='Operations'>\n"
    for title, lines in groupby(_each(document), key=lambda each: str(each[2]["tags"][0])):
        yield f"<h2>{escape(title)}</h2>\n<ul>\n"
        for path, method, operation in lines:
            yield (
                f'<li><a href="#{escape(operation["operationId"])}"><code>{method.upper()} {escape(path)}</code></a> '
                f"{_said(operation['summary'])}</li>\n"
            )
        yield "</ul>\n"
    yield "</nav>\n"


def _operations(document: Document) -> Iterator[str]:
    for path, method, operation in _each(document):
        name = escape(operation["operationId"])
        yield f'<section aria-labelledby="{name}">\n'
        yield f'<h2 id="{name}"><code>{method.upper()} {escape(path)}</code></h2>\n'
        yield f"<p>{_said(operation['summary'])}. {_said(operation.get('description', ''))}</p>\n"
        yield f"<pre><code>{escape(curl_line(document, path, method))}</code></pre>\n"
        rows = [
            (_code(each["name"]), each["in"], _limits(each["schema"]), _said(each["description"]))
            for each in operation.get("parameters", ())
        ]
        yield from _table("Parameters", ("name", "in", "type and limits", "meaning"), rows)
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            if "$ref" in schema:
                schema = document["components"]["schemas"][_name(schema)]
            optional = "" if operation["requestBody"]["required"] else " (may be left out)"
            yield from _fields(f"Body{optional}", schema)
        rows = [
            (status, _said(each["description"]), ", ".join(_shown(each)), ", ".join(_links(each)))
            for status, each in operation["responses"].items()
        ]
        yield from _table("Answers", ("status", "meaning", "document", "leads to"), rows)
        yield "</section>\n"


def _documents(document: Document) -> Iterator[str]:
    yield "<h2 id='documents'>Documents</h2>\n"
    for name, schema in document["components"]["schemas"].items():
        if not name.endswith("-request"):
            yield f'<h3 id="document-{escape(name)}">{escape(name)}</h3>\n'
            yield from _fields("Fields", schema)


def _fields(caption: str, schema: Document) -> Iterator[str]:
    required = schema.get("required", ())
    rows = [
        (_code(field), _limits(each) + (", always" if field in required else ""), _said(each.get("description", "")))
        for field, each in schema.get("properties", {}).items()
    ]
    yield from _table(caption, ("field", "type and limits", "meaning"), rows)


def _name(schema: Document) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _shown(response: Document) -> Iterator[str]:
    for kind, content in response.get("content", {}).items():
        if kind != "application/json":
            yield _code(kind)
            continue
        schema = content["schema"]
        for each in schema.get("oneOf", [schema]):
            for part in each.get("allOf", [each]):
                yield _reference(part) if "$ref" in part else escape(str(part.get("type", "any")))


def _reference(schema: Document) -> str:
    return f'<a href="#document-{escape(_name(schema))}">{escape(_name(schema))}</a>'


def _links(response: Document) -> Iterator[str]:
    for link in response.get("links", {}).values():
        yield f'<a href="#{escape(link["operationId"])}">{escape(link["operationId"])}</a>'


def _limits(schema: Document) -> str:
    if "anyOf" in schema:
        return " or ".join(_limits(each) for each in schema["anyOf"])
    if "$ref" in schema:
        return _reference(schema)
    if "const" in schema:
        return _code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(_code(json.dumps(each)) for each in schema["enum"])
    kinds = schema.get("type", "any")
    said = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if "items" in schema:
        return f"{escape(said)} of {_limits(schema['items'])}"
    bounds = _range(schema, "minimum", "maximum") or _range(schema, "minLength", "maxLength", " characters")
    kind = [schema["format"]] if "format" in schema else []
    return escape(", ".join([said, *kind, *([bounds] if bounds else [])]))


def _range(schema: Document, least: str, most: str, unit: str = "") -> str:
    if most in schema:
        return f"{schema.get(least, 0):,} to {schema[most]:,}{unit}"
    return f"at least {schema[least]:,}{unit}" if least in schema else ""


def _table(caption: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Cells are HTML already."""
    found = list(rows)
    if found:
        yield f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>"
        yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads) + "</tr></thead>\n<tbody>\n"
        for row in found:
            yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n"
        yield "</tbody>\n</table>\n"


def _said(text: str) -> str:
    """Text with `code`, as HTML. Links lead to another page, so only their words stay."""
    return _CODE.sub(r"<code>\1</code>", escape(_LINK.sub(r"\1", text)))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


_NONE_OF_IT = (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
_FORMS: dict[str, Callable[[Document], Reply]] = {
    "openapi-json": answer_document,
    # JSON is YAML, for programs that look for that.
    "openapi-yaml": lambda document: answer_text(
        json.dumps(document, indent=2, ensure_ascii=False), "application/yaml"
    ),
    "docs": lambda document: answer_text(api_page(document), "text/html; charset=utf-8", PAGE_HEADERS),
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
