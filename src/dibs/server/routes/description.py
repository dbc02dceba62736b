"""The description of the API, as OpenAPI. Nobody needs a token for it: it says what the server can do, and nothing
about what is in the store."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

from dibs._version import __version__
from dibs.base.errors import InvalidInput
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.server.handlers import Api
from dibs.server.http.parse import parse_query, takes
from dibs.server.http.request import HttpRequest
from dibs.server.http.response import answer_document, answer_text
from dibs.server.routes.operations import routed
from dibs.server.routes.table import Table
from dibs.server.routes.yaml_text import yaml_text
from dibs.wire import operations
from dibs.wire.codes import CODES
from dibs.wire.operations import Answer, Operation, Parameter, Schema, allowed, answer_schema, codes_of, request_schema

# The OpenAPI 3.1 document, made from the declared operations and fields. Pure.
#
# Whoever reads it may pay for each word. So what several operations have is in `components`, once; what every operation
# may be refused for is one answer, `default`. The brief form, which is that of the whole document, also leaves out what
# the fields of answers mean, who sees what, links, the titles of codes, and headers that say what a parameter says or
# that only dibs' own clients send. It says a field of several requests once, and that of `default` every operation has.
# A part of the document (`?path=`) has all of it.

_COMPONENTS = "#/components/"
_ABOUT = (
    "One owner per job for distributed workers and agent swarms. A job is claimed by name for a limited time; the "
    "lease id proves the claim, and the fencing token rises with every owner. `null` is the same as leaving a field "
    "out. Answers such as `held` are not errors: they have a `status` field. Every error is a document with a `code`; "
    "`default` has those of every operation. Newer servers may add fields to answers. Every answer has the header "
    "X-Request-Id, which names it in the server's log, and X-Dibs-Store, the id of the store; where asking later "
    "helps, Retry-After, in seconds."
)
_IN_PARTS = (
    " Every operation may also be refused as `components/responses/default` says. This is the brief form. "
    "`?path=/locks/{name}/acquire` gives one operation, `?path=/sessions*` those that begin "
    "so, `?path=*` all; each with what the fields of answers mean."
)
_TITLES = {200: "Answered", 201: "Made", 202: "Taken", 204: "Done; no body", 409: "Not now"}
_DEFAULT = "default"
_REQUEST = "-request"
_LEFT_OUT = ("description", "minimum")  # of the fields of answers, in the brief form
# Headers that say what something else says (the query parameter `namespace`, the field `request_key`, `after`), and
# those that dibs' own clients send.
_SPARED = ("X-Dibs-Namespace", "Idempotency-Key", "Last-Event-ID", "X-Dibs-Names", "X-Dibs-Store")


def openapi_document(declared: Iterable[Operation], version: str, *, brief: bool = False) -> Schema:
    listed = [operation for operation in declared if operation.is_listed]
    known = {operation.id for operation in listed}
    shared = Components(brief=brief)
    paths: Schema = {}
    for operation in listed:
        operation = operation._replace(links=tuple([link for link in operation.links if link.to in known]))
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, shared)
    if brief:
        shared.share_fields()
    sections = dict.fromkeys(operation.section for operation in listed if not brief)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dibs",
            "version": version,
            "summary": "One owner per job",
            "description": _ABOUT + _IN_PARTS if brief else _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": section} for section in sections],
        "paths": paths,
        "components": {
            "schemas": shared.schemas,
            "responses": shared.responses,
            "parameters": shared.parameters,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token."}},
        },
    }


class Components:
    """The parts that operations of a document share: those that were referred to, and nothing else."""

    def __init__(self, *, brief: bool) -> None:
        self.brief = brief
        self.schemas: Schema = {}
        self.responses: Schema = {}
        self.parameters: Schema = {}

    def schema(self, name: str) -> Schema:
        """A request or an answer, by its name."""
        if name not in self.schemas:
            verb = name.removesuffix(_REQUEST)
            made = self._shown(answer_schema(name)) if verb == name else request_schema(verb, brief=self.brief)
            self.schemas[name] = made
            for part in re.findall(rf"{_COMPONENTS}schemas/([^/\"]+)", json.dumps(made)):
                self.schema(part)
        return _ref("schemas", name)

    def share_fields(self) -> None:
        """Say a field that several requests have once. Each is a schema of its own: generators make nothing good of a
        reference into the fields of another one."""
        requests = [schema["properties"] for name, schema in self.schemas.items() if name.endswith(_REQUEST)]
        times = Counter(json.dumps(each) for fields in requests for each in fields.items())
        for fields in requests:
            for field, schema in fields.items():
                is_long = len(json.dumps(schema)) > len(json.dumps(_ref("schemas", field)))
                if is_long and times[json.dumps([field, schema])] > 1:
                    fields[field] = _ref("schemas", _put_as(self.schemas, field, schema))

    def own(self, schema: Schema) -> Schema:
        """An answer of one operation or protocol. One with a title is here once, by that name."""
        shown = self._shown(schema)
        return _ref("schemas", _put_as(self.schemas, shown.pop("title"), shown)) if "title" in shown else shown

    def _shown(self, answer: Schema) -> Schema:
        return _without_meanings(answer) if self.brief else dict(answer)

    def parameter(self, parameter: Parameter) -> Schema:
        made = {
            "name": parameter.name,
            "in": parameter.where,
            "description": f"{parameter.meaning}.",
            "schema": parameter.schema,
            **({"required": True} if parameter.required else {}),
            **({"example": parameter.example} if parameter.example else {}),
        }
        return _ref("parameters", _put_as(self.parameters, parameter.name, made))

    def error(self, codes: Iterable[str]) -> Schema:
        return {"allOf": [self.schema("error")], "properties": {"code": {"enum": list(codes)}}}

    def refusal(self, status: str, codes: Iterable[str]) -> Schema:
        """The answer with an error document. `status` may be that of every other answer."""
        content = {operations.JSON_TYPE: {"schema": self.error(codes)}}
        made = {"description": "Refused." if self.brief else _described(status, codes), "content": content}
        return _ref("responses", _put_as(self.responses, status, made))


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"{_COMPONENTS}{kind}/{name}"}


def _put_as(found: Schema, name: str, made: Schema) -> str:
    """Put `made` into `found`, and return its name there: `name`, with a number if another schema has that."""
    names = (name if nth == 1 else f"{name}-{nth}" for nth in count(1))
    chosen = next(each for each in names if found.get(each, made) == made)
    found[chosen] = made
    return chosen


def _without_meanings(schema: Any) -> Any:
    """The same schema. Its fields do not say what they mean."""
    if isinstance(schema, list):
        return [_without_meanings(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {word: _without_meanings(said) for word, said in schema.items() if word != "properties"}
    if "properties" in schema:
        fields = {name: _without_meanings(field) for name, field in schema["properties"].items()}
        found["properties"] = {
            name: {word: said for word, said in field.items() if word not in _LEFT_OUT}
            for name, field in fields.items()
        }
    return found


def _operation(operation: Operation, shared: Components) -> Schema:
    found: Schema = {
        "operationId": operation.id,
        "summary": operation.summary[0].upper() + operation.summary[1:],
    }
    if not shared.brief:
        found["tags"] = [operation.section]
    if operation.is_open:
        found["security"] = []
    about = " ".join(part for part in (operation.about, _who(operation)) if part)
    if about:
        found["description"] = about
    parameters = [each for each in operation.parameters if not shared.brief or each.name not in _SPARED]
    if parameters:
        found["parameters"] = [shared.parameter(each) for each in parameters]
    if operation.has_body:
        own = operation.request
        content: Schema = {"schema": shared.schema(operation.id + _REQUEST) if own is None else own}
        if operation.example is not None:
            content["example"] = operation.example
        found["requestBody"] = {"required": not operation.body_optional, "content": {operations.JSON_TYPE: content}}
    found["responses"] = _responses(operation, shared)
    return found


def _who(operation: Operation) -> str:
    """A sentence about who may ask, unless that is everybody with a token, or everybody."""
    who = operation.who or allowed(operation)
    return f"Who may: {who}." if who and who != operations.NO_TOKEN else ""


def _responses(operation: Operation, shared: Components) -> Schema:
    codes = {
        status: found for status, found in codes_of(operation).items() if not operations.EVERYWHERE.issuperset(found)
    }
    found: Schema = {}
    for status in sorted({*operation.answers, *codes} - {operations.OTHERWISE}):
        if status not in operation.answers:
            found[str(status)] = shared.refusal(str(status), codes[status])
            continue
        choices = _choices(operation.answers[status], shared)
        if status in codes:
            choices.append(shared.error(codes[status]))
        said = () if shared.brief else codes.get(status, ())
        found[str(status)] = _response(operation, str(status), choices, said)
    for link in () if shared.brief else operation.links:
        about = {"operationId": link.to, "description": f"{link.meaning}.", "parameters": link.parameters}
        shown = {key: value for key, value in {**about, "requestBody": link.body}.items() if value}
        found[str(link.status)].setdefault("links", {})[link.name] = shown
    if operations.OTHERWISE in operation.answers:
        refused = _choices(operation.answers[operations.OTHERWISE], shared)
        found[_DEFAULT] = _response(operation, _DEFAULT, refused, ())
    elif not operation.is_foreign:
        refusal = shared.refusal(_DEFAULT, sorted(operations.EVERYWHERE))
        if not shared.brief:
            found[_DEFAULT] = refusal
    return found


def _response(operation: Operation, status: str, choices: list[Schema], codes: Iterable[str]) -> Schema:
    found: Schema = {"description": _described(status, codes)}
    if choices:
        schema = choices[0] if len(choices) == 1 else {"oneOf": choices}
        media = operation.media if status.startswith("2") else (operations.JSON_TYPE,)
        # A stream has no end, so no schema.
        found["content"] = {kind: {} if kind == operations.STREAM_TYPE else {"schema": schema} for kind in media}
    return found


def _described(status: str, codes: Iterable[str]) -> str:
    """In words. The answer of every other status has those of its codes with it."""
    if status == _DEFAULT:
        titles = [f"{CODES[code].http} `{code}`: {CODES[code].title}" for code in codes]
    else:
        titles = [_TITLES[int(status)]] if int(status) in _TITLES else []
        titles += [f"`{code}`: {CODES[code].title}" for code in codes]
    return (". ".join(titles) or "Refused") + "."


def _choices(answer: Answer, shared: Components) -> list[Schema]:
    if answer is None:
        return []
    if isinstance(answer, dict):
        return [shared.own(answer)]
    names = (answer,) if isinstance(answer, str) else answer
    return [{"type": "null"} if name == operations.NULL else shared.schema(name) for name in names]


def asked_operations(declared: Iterable[Operation], path: str) -> list[Operation]:
    """The operations at a path, as declared or as requests have it. A `*` at its end: all that begin so."""
    listed = [each for each in declared if each.is_listed]
    if path.endswith("*"):
        return [each for each in listed if each.path.startswith(path[:-1])]
    return [each for each in listed if each.path == path] or [each for each in listed if _is_at(each.path, path)]


def _is_at(declared: str, path: str) -> bool:
    parts, asked = declared.split("/"), path.split("/")
    return len(parts) == len(asked) and all(
        part == said or (part.startswith("{") and said != "") for part, said in zip(parts, asked, strict=True)
    )


_FORMS: dict[str, Callable[[Document], Reply]] = {
    "openapi-json": answer_document,
    "openapi-yaml": lambda document: answer_text(yaml_text(document), "application/yaml"),
}


def description_routes(api: Api) -> Table:
    # Each when it is asked for the first time: as it is, and compressed. There are as many as there are ways to begin
    # the path of an operation, at most.
    made: dict[tuple[str, ...], tuple[Reply, Reply]] = {}

    def both(make: Callable[[Document], Reply], document: Document) -> tuple[Reply, Reply]:
        reply = make(document)
        headers = {**reply.headers, "vary": "accept-encoding"}
        content = gzip.compress(reply.content, mtime=0)
        return (
            Reply(200, content=reply.content, headers=headers),
            Reply(200, content=content, headers={**headers, "content-encoding": "gzip"}),
        )

    async def answer(form: str, make: Callable[[Document], Reply], call: HttpRequest) -> Reply:
        path = parse_query(call.query).get("path")
        asked = api.operations if path is None else asked_operations(api.operations, path)
        if not asked:
            raise InvalidInput("No operation has this path. Without `path`, the document has all of them.")
        key = (form, *([] if path is None else [each.id for each in asked]))
        if key not in made:  # making it takes so long that other requests should not wait for it
            made[key] = await api.in_reader(
                lambda: both(make, openapi_document(asked, __version__, brief=path is None))
            )
        plain, compressed = made[key]
        return compressed if takes(call.headers.get(b"accept-encoding", b""), b"gzip") else plain

    return routed({form: partial(answer, form, make) for form, make in _FORMS.items()})
