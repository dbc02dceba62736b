"""The description of the API: for programs as OpenAPI, for people as a page. Nobody needs a token for it: it says what
the server can do, and nothing about what is in the store."""

from __future__ import annotations

import base64
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
from dibs.server.handlers import Api
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import answer_document, answer_text
from dibs.server.routes.operations import routed
from dibs.server.routes.table import Table
from dibs.wire.openapi import openapi_document

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


_FORMS: dict[str, Callable[[Document], Reply]] = {
    "openapi-json": answer_document,
    # JSON is YAML, for programs that look for that.
    "openapi-yaml": lambda document: answer_text(
        json.dumps(document, indent=2, ensure_ascii=False), "application/yaml"
    ),
    "docs": lambda document: answer_text(api_page(document), "text/html; charset=utf-8", PAGE_HEADERS),
}


def description_routes(api: Api) -> Table:
    made: dict[str, Reply] = {}  # each when it is asked for the first time

    async def answer(form: str, make: Callable[[Document], Reply], call: HttpRequest) -> Reply:
        if form not in made:  # it takes longer than others should wait
            made[form] = await api.in_reader(lambda: make(openapi_document(api.operations, __version__)))
        return made[form]

    return routed({form: partial(answer, form, make) for form, make in _FORMS.items()})
