"""The gateway's operations, as declared for the router and the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.limits import (
    OWNER_CHARS_MAX,
    RUN_SECRET_CHARS_MAX,
    RUN_SECRET_CHARS_MIN,
    TTL_MS_MAX,
    TTL_MS_MIN,
)
from dibs.wire.operations import NAMESPACE, Operation, in_path, in_query
from dibs.wire.schemas import document_schema

if TYPE_CHECKING:
    from dibs.wire.operations import Answer, Schema

PLACE = "/gateway"
SECTION = "Gateway"
_TEXT: Schema = {"type": "string"}
_TTL: Schema = {"type": "integer", "minimum": TTL_MS_MIN // 1000, "maximum": TTL_MS_MAX // 1000}
_ASKED: Schema = {
    "type": "object",
    "properties": {
        "secret": {**_TEXT, "minLength": 1, "description": "The secret of a run."},
        "resourceKey": {**_TEXT, "format": "uri", "minLength": 1, "description": "A URI."},
        "ttl": {**_TTL, "type": ["integer", "null"], "description": "In seconds."},
    },
    "required": ["secret", "resourceKey"],
    "additionalProperties": False,
}
_REFUSED = document_schema(
    {"ok": ("flag", "false"), "error": ("text-", "their word for it"), "reason": ("text", "why")}
)
_KEY = ("text", "the key")
_ACQUIRED = document_schema({"ok": ("flag", "true"), "resourceKey": _KEY})
_KEPT = document_schema({"ok": ("flag", "true"), "expiresAt": ("number", "in milliseconds since 1970")})
_LET_GO = document_schema({"ok": ("flag", "true")})
_LOCK = {
    "resourceKey": _KEY,
    "holder": ("text", "who"),
    "heldSince": ("number", "in milliseconds since 1970"),
}
_OWN_LOCK = document_schema({**_LOCK, "expiresAt": ("number", "in milliseconds since 1970")})
_STATUS_LOCK = document_schema({**_LOCK, "agentName": ("text", "the agent of the run")})
_ALL_LOCKS: Schema = {
    "type": "object",
    "properties": {"locks": {"type": "array", "items": _STATUS_LOCK}},
    "required": ["locks"],
}
_RUN = {
    "holder": ("text", "its name"),
    "namespace": ("text", "its namespace"),
    "since": ("text", "when it began"),
    "expires_at": ("text", "when it ends without a call"),
    "locks": ("texts", "the names of the jobs that it holds"),
}
_RUN_ASKED: Schema = {
    "type": "object",
    "properties": {
        "holder": {**_TEXT, "minLength": 1, "maxLength": OWNER_CHARS_MAX, "description": "Its name."},
        "secret": {
            "type": ["string", "null"],
            "minLength": RUN_SECRET_CHARS_MIN,
            "maxLength": RUN_SECRET_CHARS_MAX,
            "pattern": "^[!-~]+$",
            "description": "Printable ASCII. Without it, a new one is made.",
        },
    },
    "required": ["holder"],
}
_SECRET = "the-secret-of-a-run"
_EXAMPLE = {"secret": _SECRET, "resourceKey": "github://acme/app/issues/42"}
_STATUSES = (400, 403, 404, 409, 413, 429, 500, 503)


def _theirs(
    method: str, path: str, name: str, summary: str, answer: Answer, request: Schema | None = None
) -> Operation:
    """An operation of Action Llama's protocol: the secret of a run takes the place of a token."""
    return Operation(
        method,
        PLACE + path,
        f"gateway-{name}",
        summary,
        SECTION,
        {200: answer, **dict.fromkeys(_STATUSES, _REFUSED)},
        request=request,
        example=None if request is None else _EXAMPLE,
        is_open=True,
        is_foreign=True,
        who="a run",
    )


ACQUIRE = _theirs("POST", "/locks/acquire", "acquire", "acquire a lock", _ACQUIRED, _ASKED)
RELEASE = _theirs("POST", "/locks/release", "release", "release a lock", _LET_GO, _ASKED)
HEARTBEAT = _theirs("POST", "/locks/heartbeat", "heartbeat", "keep a lock", _KEPT, _ASKED)
OWN_LOCKS = _theirs(
    "GET", "/locks/list", "list", "the locks of a run", {"type": "array", "items": _OWN_LOCK}
)._replace(
    parameters=(
        in_query("secret", "The secret of the run", minLength=1)._replace(required=True, example=_SECRET),
    )
)
ALL_LOCKS = _theirs("GET", "/locks/status", "status", "all locks", _ALL_LOCKS)._replace(
    id="locks-of-all",
    parameters=NAMESPACE,
    is_open=False,
    who="",
    answers={200: _ALL_LOCKS, **dict.fromkeys((401, *_STATUSES), _REFUSED)},
)
HEALTH = _theirs(
    "GET", "/health", "health", "can locks be taken", document_schema({"status": ("text", "`ok`")})
)._replace(who="no token")

OPEN_RUN = Operation(
    "POST",
    f"{PLACE}/runs",
    "run-open",
    "begin a run",
    SECTION,
    {201: document_schema({"secret": ("text", "the proof. Keep it to yourself"), **_RUN})},
    ("capacity_exceeded",),
    NAMESPACE,
    request=_RUN_ASKED,
    example={"holder": "agent-1"},
)
RUNS = Operation(
    "GET",
    f"{PLACE}/runs",
    "runs",
    "open runs",
    SECTION,
    {
        200: {
            "type": "object",
            "properties": {"runs": {"type": "array", "items": document_schema(_RUN)}},
            "required": ["runs"],
        }
    },
    (),
    NAMESPACE,
)
END_RUNS = Operation(
    "DELETE",
    f"{PLACE}/runs/{{name}}",
    "run-end",
    "end all runs of a holder",
    SECTION,
    {
        200: document_schema(
            {
                "holder": ("text", "whose"),
                "ended": ("number", "how many runs"),
                "released": ("texts", "the jobs that they held"),
            }
        )
    },
    ("not_found",),
    (in_path("name", "The holder", "agent-1", minLength=1), *NAMESPACE),
)


def passed_on(method: str, path: str, what: str) -> Operation:
    """An operation that their own gateway answers."""
    name = path.strip("/").replace("/{name}", "-of")
    return Operation(
        method,
        PLACE + path,
        f"gateway-{name}",
        f"passed on to Action Llama's own gateway: {what}",
        SECTION,
        {200: {}},
        parameters=(in_path("name", "As their command sends it", "rerun"),) if "{name}" in path else (),
        request={} if method == "POST" else None,
        is_open=True,
        is_foreign=True,
        who="a run",
    )


def with_two_slashes(operation: Operation) -> Operation:
    """The same, for a GATEWAY_URL that ends in a slash."""
    return operation._replace(path=operation.path.replace(PLACE, f"{PLACE}/", 1), is_listed=False)
