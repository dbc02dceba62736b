"""The description of the API."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from dibs.server.routes.operations import DOCUMENTS
from dibs.server.routes.yaml_text import yaml_text
from dibs.wire.answer_fields import ANSWERS
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.server.harness import Server

STREAMS = ("watch", "election-watch")  # would not end
LOOKS_UP = ("webhook-create",)  # the name of another host
EVERYWHERE = ("400", "401", "403", "429")  # which `default` has
REFUSAL = {"$ref": "#/components/responses/default"}  # which every operation of dibs has
PASSED_ON = "passed on"  # this server names no other gateway


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("description"), gateway_ttl_ms=60_000) as server:
        yield server


@pytest.fixture(scope="module")
def document(served: Server) -> dict[str, Any]:
    """All of it, in full."""
    found: dict[str, Any] = served.ask("GET", "/openapi.json?path=*", who=None).json
    return found


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """What a reference refers to."""
    found: Any = schema
    while "$ref" in found:
        path, found = found["$ref"].removeprefix("#/").split("/"), document
        for part in path:
            found = found[part]
    return dict(found)


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, each) for path, methods in document["paths"].items() for method, each in methods.items()]


@pytest.mark.promise("openapi")
@pytest.mark.parametrize(
    "query", ["", "?path=*", "?path=/locks/{name}/acquire", "?path=/sessions*", "?path=/webhooks/{id}", "?path=/"]
)
def test_the_document_and_its_parts_are_valid_openapi(served: Server, query: str) -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator  # slow, and every worker imports this file

    document = served.ask("GET", f"/openapi.json{query}", who=None).json
    assert document["openapi"].startswith("3.1.")
    assert [*OpenAPIV31SpecValidator(document).iter_errors()] == []


@pytest.mark.fault("F-693")
@pytest.mark.fault("F-781")
def test_the_contract_fits_into_a_prompt(served: Server) -> None:
    """Also that of a server with the gateway, which has the most operations."""
    whole = served.ask("GET", "/openapi.json", who=None).body
    part = served.ask("GET", "/openapi.json?path=/locks/{name}/renew", who=None).body
    assert len(whole) < 100_000
    assert len(part) < 12_000


@pytest.mark.fault("F-693")
@pytest.mark.fault("F-785")
def test_the_brief_document_has_the_same_operations_and_fields(served: Server, document: dict[str, Any]) -> None:
    brief = served.ask("GET", "/openapi.json", who=None).json
    assert [each[:2] for each in operations(brief)] == [each[:2] for each in operations(document)]
    for (_, _, short), (_, _, full) in zip(operations(brief), operations(document), strict=True):
        said_once = {"default"} if full["responses"].get("default") == REFUSAL else set()
        assert short["responses"].keys() == full["responses"].keys() - said_once
        assert short["responses"]
        assert short.get("requestBody") == full.get("requestBody")
    schemas, known = brief["components"]["schemas"], document["components"]["schemas"]
    shared = schemas.keys() - known.keys()  # fields of several requests
    assert known.keys() <= schemas.keys()
    assert {"owner", "request_key", "ttl_seconds"} <= shared
    # Generators make code that does not compile of a reference into another schema.
    assert not re.search(r'"#/components/\w+/[^"/]+/', json.dumps(brief))
    for name, schema in [each for each in schemas.items() if each[0] not in shared]:
        assert schema.get("required") == known[name].get("required")
        fields = known[name].get("properties", {})
        assert schema.get("properties", {}).keys() == fields.keys()
        for field, short in schema.get("properties", {}).items():
            assert resolved(brief, short).get("type") == resolved(document, fields[field]).get("type"), (name, field)
    assert all("description" in resolved(brief, field) for field in schemas["acquire-request"]["properties"].values())


@pytest.mark.fault("F-693")
@pytest.mark.parametrize(
    ("asked", "paths"),
    [
        ("/locks/{name}/acquire", ["/locks/{name}/acquire"]),
        ("/locks/issue-42/acquire", ["/locks/{name}/acquire"]),  # curl makes this of the braces
        ("/locks/acquire-any", ["/locks/acquire-any"]),
        ("/sessions/*", ["/sessions/{id}/keepalive", "/sessions/{id}", "/sessions/{id}/break"]),
        ("/", ["/"]),
    ],
)
def test_a_part_has_the_operations_at_its_path_and_nothing_else(served: Server, asked: str, paths: list[str]) -> None:
    part = served.ask("GET", f"/openapi.json?path={asked}", who=None).json
    assert sorted(part["paths"]) == sorted(paths)
    text = json.dumps(part)
    for kind in ("schemas", "responses", "parameters"):
        assert [name for name in part["components"][kind] if f'"#/components/{kind}/{name}"' not in text] == []
    same = served.ask("GET", f"/openapi.yaml?path={asked}", who=None)
    assert yaml.safe_load(same.body) == part


@pytest.mark.parametrize("asked", ["/nowhere", "", "locks", "/locks/{name}/acquire/", "/locks//acquire", "x*", "%00"])
def test_a_path_that_nothing_has_is_refused(served: Server, asked: str) -> None:
    refused = served.ask("GET", f"/openapi.json?path={asked}", who=None)
    assert (refused.status, refused.json["code"]) == (400, "invalid_input")
    assert "path" in refused.json["details"]


def test_no_title_of_a_schema_is_the_name_of_an_answer(document: dict[str, Any]) -> None:
    """Both are names of components."""
    assert not {*DOCUMENTS, "webhook-list", "octostore-refusal", "octostore-webhook", "gateway-refusal"} & {*ANSWERS}
    assert {"webhook", "standing", "gateway-refusal", "acquired"} <= document["components"]["schemas"].keys()


def test_what_every_operation_may_be_refused_for_is_one_answer(document: dict[str, Any]) -> None:
    own = [each["responses"]["default"] for _, _, each in operations(document) if "default" in each["responses"]]
    assert REFUSAL in own
    common = document["components"]["responses"]["default"]
    assert "401 `authentication_required`" in common["description"]
    codes = common["content"]["application/json"]["schema"]["properties"]["code"]["enum"]
    assert "internal_error" in codes
    assert "not_found" not in codes  # where that may be, it is said


def test_the_document_has_what_the_server_has_and_no_other_spelling(served: Server, document: dict[str, Any]) -> None:
    listed = {(each.method.lower(), each.path) for each in served.api.operations if each.is_listed}
    assert {(method, path) for path, method, _ in operations(document)} == listed
    assert ("post", "/mcp") in listed
    assert not [path for path in document["paths"] if "//" in path]


def test_links_lead_from_a_claim_to_its_heartbeat_and_its_end(document: dict[str, Any]) -> None:
    claimed = document["paths"]["/locks/{name}/acquire"]["post"]["responses"]["200"]["links"]
    for name in ("renew", "release"):
        assert claimed[name]["operationId"] == name
        assert claimed[name]["requestBody"]["lease_id"] == "$response.body#/lease_id"
    opened = document["paths"]["/sessions"]["post"]["responses"]["201"]["links"]
    assert {link["operationId"] for link in opened.values()} >= {"session-keep", "session-end"}
    known = {each["operationId"] for _, _, each in operations(document)}
    answers = [answer for _, _, each in operations(document) for answer in each["responses"].values()]
    assert {link["operationId"] for answer in answers for link in answer.get("links", {}).values()} <= known


@pytest.mark.promise("openapi")
@pytest.mark.parametrize(
    ("start", "links"),
    [
        ("acquire", ["inspect", "history", "renew", "transfer"]),
        ("acquire", ["renew", "release"]),
        ("session-open", ["show", "keepalive", "acquire", "end"]),
        ("token-create", ["revoke"]),
    ],
)
def test_each_link_leads_on(served: Server, document: dict[str, Any], start: str, links: list[str]) -> None:
    """What a client makes of an answer and its links is accepted."""
    known = {each["operationId"]: (path, method, each) for path, method, each in operations(document)}
    path, method, operation = known[start]
    name = f"linked-{start}-{links[0]}"
    body = operation["requestBody"]["content"]["application/json"]["example"]
    reply = served.ask(method.upper(), path.replace("{name}", name), body, who="admin")
    offered = operation["responses"][str(reply.status)]["links"]

    def value(expression: str) -> str:
        fact = expression.removeprefix("$response.body#/")
        return name if expression == "$request.path.name" else str(reply.json[fact]) if fact != expression else fact

    for link in (offered[each] for each in links):
        path, method, _ = known[link["operationId"]]
        told = {part: value(said) for part, said in link.get("parameters", {}).items()}
        path = re.sub(r"\{(\w+)\}", lambda found, told=told: told.get(found[1], "linked"), path)  # type: ignore[misc]
        sent = {field: value(said) for field, said in link.get("requestBody", {}).items()}
        answer = served.ask(method.upper(), path, sent or None, who="admin")
        assert answer.status in (200, 204), (link, answer.body)


def test_yaml_says_the_same(served: Server, document: dict[str, Any]) -> None:
    reply = served.ask("GET", "/openapi.yaml", who=None)
    assert reply.headers["content-type"] == "application/yaml"
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # that of Python takes seconds
    assert yaml.load(reply.body, fast) == served.ask("GET", "/openapi.json", who=None).json
    assert reply.body.startswith(b"openapi: ")


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "no", "Null", "y", "~", "1e3", "0x1", "1_0", "2026-11-18", "a: b", "a #b", "- x", "{a}", "/a/{b}/c"),
        *(
            "it's",
            'a "b"',
            "a\\b",
            "a\nb",
            "tab\t",
            "é",
            "\x7f\x85\u2028\ufeff",
            "😀",
            "a ",
            "<<",
            "=",
            "!x",
            "&a",
            "*a",
        ),
        *(None, True, 0, -1, 1.5, [], {}, [[]], [{}], {"a": []}, [[1, [2]], {"b": [{"c": 1, "d": [3]}]}]),
        *({"200": {"1.5": 1, "no": 2}}, [{"a": {"b": 1}}, "x"], {"a": [{"b": "c"}, ["d"]]}),
    ],
)
def test_a_document_as_yaml_is_read_as_the_same_document(value: object) -> None:
    assert yaml.safe_load(yaml_text(value)) == value
    assert yaml.safe_load(yaml_text({"deep": [{"in": value}, value]})) == {"deep": [{"in": value}, value]}


_PART = re.compile(r"\{(\w+)\}")


def curl_line(document: dict[str, Any], path: str, method: str) -> str:
    """A shell command for one operation. DIBS_URL and DIBS_TOKEN are the reader's."""
    operation = document["paths"][path][method]
    operation = {**operation, "parameters": [resolved(document, each) for each in operation.get("parameters", ())]}
    url, asked = _PART.sub(lambda found: _some(operation, found[1]), path), []
    for each in operation["parameters"]:
        if each.get("required") and each["in"] == "query":
            asked.append(f"{each['name']}={_some(operation, each['name'])}")
    parts = ["curl"] + (["-X", method.upper()] if method != "get" else [])
    parts.append(f'"$DIBS_URL{url}{"?" + "&".join(asked) if asked else ""}"')
    if operation.get("security", True):
        parts += ["-H", '"Authorization: Bearer $DIBS_TOKEN"']
    body = operation.get("requestBody")
    if body is not None and (body["required"] or "example" in body["content"]["application/json"]):
        example = body["content"]["application/json"].get("example", {})
        parts += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(json.dumps(example))]
    return " ".join(parts)


def _some(operation: dict[str, Any], name: str) -> str:
    [example] = [each["example"] for each in operation["parameters"] if each["name"] == name]
    return str(example)


def test_every_example_of_the_document_is_understood(
    served: Server, document: dict[str, Any], tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    """Typed into a shell, it is answered: with yes, or with what is not there."""
    need_program("curl")
    typed = [
        (each, curl_line(document, path, method))
        for path, method, each in operations(document)
        if each["operationId"] not in (*STREAMS, "mcp", "token-rotate-own", *LOOKS_UP)
        and PASSED_ON not in each["summary"].lower()
    ]
    script = "\n".join(f"{line} -s -o /dev/null -w '%{{http_code}}\\n'" for _, line in typed)
    run = subprocess.run(
        ["bash", "-c", script],
        check=False,
        env={
            "DIBS_URL": f"http://127.0.0.1:{served.port}",
            "DIBS_TOKEN": TOKENS["admin"],
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    statuses = run.stdout.split()
    assert len(statuses) == len(typed), run.stderr
    for (operation, line), status in zip(typed, statuses, strict=True):
        has_proof = re.search("lease_id|ticket|leader_token|a token", line)  # those of an example are nobody's
        assert re.fullmatch("2..|40[34]|409|410", status) or has_proof, (line, status)
        assert status not in ("413", "415", "422"), line
        assert status in operation["responses"] or status in EVERYWHERE, (line, status)
