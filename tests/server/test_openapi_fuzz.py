"""Schemathesis asks a server everything that its OpenAPI document says, and much that it forbids.

A finding is a fault of the document or of the server: an answer, a status, a header or a code that the document does
not have, an invalid request that is served, a valid one that is refused, a token that is not needed, a 500.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from dibs.base.errors import InvalidName
from dibs.core.limits import NAME_BYTES_MAX, WAIT_MS_MAX
from dibs.core.names import ELECTION_PREFIX, check_name
from dibs.wire.request_fields import NAME_FORMAT
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.harness import Server

pytestmark = pytest.mark.full

SEED = 20261116
# Other protocols: MCP has its own tests, and these are passed on to a gateway that is not here.
OTHERS = ("mcp", "gateway-signals-of", "gateway-calls", "gateway-calls-of", "gateway-shutdown")
# Made-up hosts must not be looked up, and nothing sent to them.
OUTSIDE = ("webhook-create", "webhook-test", "webhook-replay")
# The coverage phase asks each of hundreds of variants. By default it is for these, in `scripts/dev/soak` for all.
COVERED = ("leave", "session-end", "proof", "status")
# Valid requests may be refused for what no schema says: rules across fields, and what is on record.
STATED = (
    "ttl_ms or ttl_seconds, not both",
    "Give name or prefix, not both",
    "A result needs done",
    "done_seconds says that it counts as done",
    "A job that failed is not done",
    "uncounted is for a job that",
    "is for a failure: send failed true",
    "A shared claim has no slots",
    "ephemeral needs a session_id",
    "Say to whom: to_session",
    "two different namespaces",
    "Idempotency-Key and the field request_key differ",
    "overlap: nobody can claim both",
    "ticket is not one that dibs gave out",
    "This lease does not hold the job",
    "Invalid leader token",
    r"\w+ has \d+ tokens. Say which",
    r"This session ended \w+ ago",
    "printable characters|control characters|cannot be seen|begin or end with a blank",  # no pattern says it
    "of UTF-8|bytes at most",  # a schema counts characters
    "must be a whole number",  # for a schema 1.0 is one
)


def is_name(text: str) -> bool:
    try:
        check_name(text)
    except InvalidName:
        return False
    return len(text.encode()) <= NAME_BYTES_MAX - len(ELECTION_PREFIX)


def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Nobody waits in line: the clock stands still."""
    body = case.body
    waits: Any = body.get("wait_seconds") if isinstance(body, dict) else None
    if type(waits) in (int, float) and 0 < waits <= WAIT_MS_MAX / 1000:
        case.body = {**body, "wait_seconds": 0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    import schemathesis

    schemathesis.openapi.format(NAME_FORMAT, st.text(min_size=1, max_size=40).filter(is_name))
    schemathesis.hook(before_call)
    with running(tmp_path_factory.mktemp("fuzz"), gateway_ttl_ms=60_000) as server:
        yield server


def schema_of(server: Server, phase: str, count: int) -> Any:
    document = server.ask("GET", "/openapi.json?path=*").json
    return told_otherwise(server, document, phase, count).exclude(operation_id=[*OTHERS, *OUTSIDE])


def told_otherwise(server: Server, document: dict[str, Any], phase: str, count: int) -> Any:
    url = f"http://127.0.0.1:{server.port}"
    import schemathesis
    from schemathesis.config import SchemathesisConfig

    config = SchemathesisConfig.from_dict(
        {
            "seed": SEED,
            "base-url": url,
            "headers": {"Authorization": f"Bearer {TOKENS['admin']}"},
            "cache": {"enabled": False},
            "checks": {"enabled": True},
            "continue-on-failure": True,
            "generation": {"max-examples": count, "database": "none"},
            "max-stream-events": 1,
            "output": {"sanitization": {"enabled": False}},
            "parameters": {"header.X-Dibs-Store": server.engine.store_id},  # another one would be refused
            "phases": {"enabled": False, phase: {"enabled": True}},
            "request-timeout": 10.0,
        }
    )
    return schemathesis.openapi.from_dict(document, config=config)


def findings(schema: Any) -> tuple[int, list[str]]:
    """How many requests were sent, and what was wrong: one example of each."""
    from schemathesis.engine import events, from_schema

    sent, found = 0, dict[str, str]()
    for event in from_schema(schema).execute():
        if isinstance(event, events.FatalError):
            raise event.exception
        if isinstance(event, events.NonFatalError):
            found[event.label] = f"{event.label}: {event.info.title}: {event.value}"
        if isinstance(event, events.ScenarioFinished):
            sent += len(event.recorder.interactions)
            for case_id, checks in event.recorder.checks.items():
                exchange = event.recorder.interactions.get(case_id)
                for check in checks:
                    _note(check, exchange, found)
    return sent, [*found.values()]


def _note(check: Any, exchange: Any, found: dict[str, str]) -> None:
    if check.failure_info is None:
        return
    body = b"" if exchange is None or exchange.response is None else exchange.response.content
    if check.name == "positive_data_acceptance" and _is_stated(body, exchange.request):
        return
    failure = check.failure_info.failure
    said = f"{failure.operation}: {failure.title}"
    found[said] = f"{said}: {failure.message[:900]}\n{check.failure_info.code_sample[:1500]}\n{body[:300]!r}"


def _is_stated(body: bytes, request: Any) -> bool:
    """Whether a rule that no schema can say refused it. Python's `$` also matches before a line break at the end, so
    patterns let one through."""
    if b"\\n" in (request.body or b"") or "%0A" in request.uri:
        return True
    try:
        document = json.loads(body)
    except ValueError:
        return False
    details = str(document.get("details", document.get("reason")))
    return any(re.search(rule, details) for rule in STATED)


@pytest.mark.timeout(1800)  # ten seconds on a machine with nothing else to do
@pytest.mark.promise("openapi")
@pytest.mark.parametrize(("phase", "count"), [("examples", 1), ("coverage", 1), ("fuzzing", 2), ("stateful", 6)])
def test_the_server_does_what_its_document_says(served: Server, phase: str, count: int) -> None:
    schema = schema_of(served, phase, count)
    if phase == "coverage":
        schema = schema.include(operation_id=list(COVERED))
    sent, found = findings(schema)
    assert sent > 20
    assert not found, "\n\n".join([f"{len(found)} findings in {sent} requests", *found[:20]])


@pytest.mark.parametrize(
    ("part", "said", "found"),
    [
        ("security", [{"token": []}], "API accepts requests without authentication"),
        ("responses", {"404": {"description": "Never."}}, "Undocumented status code"),
        ("deprecated", True, ""),
    ],
)
def test_a_document_that_is_wrong_is_noticed(served: Server, part: str, said: object, found: str) -> None:
    document = served.ask("GET", "/openapi.json?path=*").json
    status = {**document["paths"]["/status"]["get"], part: said}
    document["paths"] = {"/status": {"get": status}}
    _, told = findings(told_otherwise(served, document, "fuzzing", 1))
    assert [each for each in told if found in each] if found else not told, told


@pytest.mark.slow
@pytest.mark.promise("openapi")
@pytest.mark.parametrize(("phase", "count"), [("coverage", 1), ("fuzzing", 40), ("stateful", 100)])
def test_the_server_does_what_its_document_says_in_full(tmp_path: Any, phase: str, count: int) -> None:
    with running(tmp_path, gateway_ttl_ms=60_000) as server:
        sent, found = findings(schema_of(server, phase, count))
    assert sent > 500
    assert not found, "\n\n".join([f"{len(found)} findings in {sent} requests", *found[:20]])
