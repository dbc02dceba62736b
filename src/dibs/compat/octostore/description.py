"""The contents of `/openapi.json` and `/docs` under `--octostore`: the operations that OctoStore has, with its bodies.
Fields of requests are read from the tables by which the handlers read them. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.compat.octostore import locks, routes
from dibs.compat.octostore.bodies import (
    ACL_ENTRIES_MAX,
    ACL_ENTRY_BYTES_MAX,
    DELAY_S_MAX,
    METADATA_CHARS_MAX,
    NAME_BYTES_MAX,
    TTL_S_MAX,
)
from dibs.core.limits import PUBLIC_TTL_MS_MAX, PUBLIC_TTL_MS_MIN
from dibs.server.routes.elections import ELECTIONS
from dibs.wire.operations import ID_PATTERN, JOB, document_schema, in_path
from dibs.wire.values import U32_MAX

if TYPE_CHECKING:
    from typing import Any

    from dibs.wire.operations import Operation, Parameter, Schema

ABOUT = "In OctoStore's form: this server runs with `--octostore`."
_STATUSES = (400, 401, 403, 404, 409, 410, 413, 415, 422, 429, 500, 503)
_REFUSED = document_schema(
    {
        "error": ("text", "a title"),
        "code": ("text", "what is the matter, for programs"),
        "details": ("text", "the same, for people"),
        "request_id": ("text-", "names the request in the server's log"),
        "retry_after_ms": ("number-", "where asking later helps: when"),
    }
)
_LOCK = {
    "name": ("text", "the lock"),
    "status": ("text", "`held` or `free`"),
    "holder_id": ("text?", "a one-way name for the holder"),
    "fencing_token": (
        "number",
        "of the holder; of a free lock, the one that the next lease of the store gets",
    ),
    "expires_at": ("text?", "when the lease ends without a renewal"),
    "metadata": ("text?", "of the holder"),
}
_TAKEN = {
    "status": ("text", "`acquired`"),
    "lease_id": ("text", "the proof, for renewing and releasing"),
    "fencing_token": ("number", "a number that rises with every lease of the store"),
    "expires_at": ("text", "when the lease ends without a renewal"),
    "renew_after_ms": ("number", "half of what is left: renew by then"),
    "metadata": ("text?", "as given"),
}
_HELD = {
    "status": ("text", "`held`"),
    "holder_id": ("text", "a one-way name for the holder"),
    "expires_at": ("text", "when its lease ends without a renewal"),
    "retry_after_ms": ("number", "what is left of it"),
    "metadata": ("text?", "of the holder"),
}
_DELAYED = {
    "status": ("text", "`delayed`"),
    "available_at": ("text", "when the lock can be had"),
    "lock_delay_seconds": ("number", "the delay that its last holder asked for"),
    "retry_after_ms": ("number", "what is left of it"),
}
_RENEWED = {
    "lease_id": ("text", "the lease"),
    "expires_at": ("text", "when it ends now without a renewal"),
    "renew_after_ms": ("number", "half of that: renew by then"),
}
_LISTED = {
    "locks": ("list", "the locks that are held, each as `GET /locks/{name}` shows it"),
    "total": ("number", "how many"),
    "prefix": ("text?", "with which their names begin"),
}
_OPENED = {
    "session_id": ("text", "the session"),
    "expires_at": ("text", "when it ends without a keepalive"),
    "keepalive_interval_secs": ("number", "send a keepalive this often"),
}
_SESSION = {
    "session_id": ("text", "the session"),
    "user_id": ("text", "whose it is"),
    "expires_at": ("text", "when it ends without a keepalive"),
    "lock_count": ("number", "how many locks it holds"),
    "active": ("flag", "whether it has not ended"),
}
_WEBHOOK = {
    "id": ("text", "the webhook"),
    "user_id": ("text", "whose it is"),
    "url": ("text", "where to"),
    "secret": ("text?", "`****` if there is one"),
    "events": ("texts", "which events"),
    "lock_pattern": ("text?", "of which locks; null: of all"),
    "created_at": ("text", "when it was made"),
    "active": ("flag", "whether it is sent anything"),
}
_HEALTHY = {
    "status": ("text", "`ok`"),
    "storage": ("text", "`wal`"),
    "db_size_bytes": ("number", "how much room the store takes"),
}
_COUNTS = {
    "status": ("text", "`ok`"),
    "uptime_seconds": ("number", "since the server started"),
    "active_locks": ("number", "live leases in the store"),
    "total_users": ("number", "those with a token"),
    "total_acquires": ("number", "since the server started"),
    "total_releases": ("number", "since the server started"),
}
_WITH_ACL = {**_LOCK, "acl": ("object-", "who may acquire it; left out if everybody may")}
# By the id of the operation, then by status. The others answer the same fields in both forms.
_ANSWERS: dict[str, dict[int, Any]] = {
    "acquire": {
        200: {"oneOf": [document_schema(_TAKEN), document_schema(_HELD)]},
        409: {"oneOf": [document_schema(_DELAYED), _REFUSED]},
    },
    "renew": {200: document_schema(_RENEWED)},
    "release": {200: {"type": "null"}},
    "inspect": {200: document_schema(_WITH_ACL)},
    "list": {200: document_schema(_LISTED)},
    "acl": {200: document_schema({"name": ("text", "the lock"), "acl": ("object", "who may acquire it")})},
    "session-open": {201: document_schema(_OPENED)},
    "session-keep": {200: document_schema({each: _OPENED[each] for each in ("session_id", "expires_at")})},
    "session-show": {200: document_schema(_SESSION)},
    "webhooks": {200: {"type": "array", "items": document_schema(_WEBHOOK)}},
    "webhook-create": {201: document_schema(_WEBHOOK)},
    "health": {200: document_schema(_HEALTHY)},
    "status": {200: document_schema(_COUNTS)},
}
_REQUESTS = {**locks.FIELDS, **routes.FIELDS}
_KINDS: dict[str, Schema] = {
    "number": {"type": "integer", "minimum": 0, "maximum": U32_MAX},
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "flag": {"type": "boolean"},
    "id": {"type": "string", "format": "uuid", "pattern": ID_PATTERN},
    "acl": {
        "type": "object",
        "properties": {
            "acquire": {
                "type": "array",
                "items": {"type": "string", "maxLength": ACL_ENTRY_BYTES_MAX},
                "minItems": 1,
                "maxItems": ACL_ENTRIES_MAX,
            }
        },
        "required": ["acquire"],
    },
}
_LOCK_TTL = {"minimum": 1, "maximum": TTL_S_MAX}
_TERM = {"minimum": PUBLIC_TTL_MS_MIN // 1000, "maximum": PUBLIC_TTL_MS_MAX // 1000}
_BOUNDS = {
    ("acquire", "ttl_seconds"): _LOCK_TTL,
    ("renew", "ttl_seconds"): _LOCK_TTL,
    ("campaign", "ttl_seconds"): _TERM,
    ("election-renew", "ttl_seconds"): _TERM,
    ("acquire", "metadata"): {"maxLength": METADATA_CHARS_MAX},
    ("campaign", "metadata"): {"maxLength": METADATA_CHARS_MAX},
    ("acquire", "lock_delay_seconds"): {"maximum": DELAY_S_MAX},
}
_NAME = in_path("name", "The lock, percent-encoded", "issue-42", minLength=1, maxLength=NAME_BYTES_MAX)
_QUERIES = ("prefix", "window")  # all that it reads


def described(operation: Operation) -> Operation:
    """An operation that OctoStore has, as it has it."""
    fields = _REQUESTS.get(operation.id, {})
    answers = {**dict.fromkeys(_STATUSES, _REFUSED), **_ANSWERS.get(operation.id, operation.answers)}
    example = {field: said for field, said in (operation.example or {}).items() if field in fields}
    is_open = operation.is_open or operation.section == ELECTIONS
    return operation._replace(
        answers=answers,
        codes=(),
        parameters=tuple(_parameters(operation)),
        request=_request(operation.id, fields) if fields else None,
        example=example or None,
        links=tuple(link for link in operation.links if link.to in _ANSWERS),
        is_open=is_open,
        who="" if is_open else operation.who,
        about=f"{operation.about} {ABOUT}".strip(),
        is_foreign=True,
    )


def _parameters(operation: Operation) -> list[Parameter]:
    found = [each for each in operation.parameters if each.where == "path" or each.name in _QUERIES]
    return [_NAME if each is JOB else each for each in found]


def _request(verb: str, fields: dict[str, str]) -> Schema:
    """A field that may be left out may be null."""
    properties = {}
    for field, kind in fields.items():
        schema = {**_KINDS[kind.rstrip("!")], **_BOUNDS.get((verb, field), {})}
        if not kind.endswith("!"):
            schema["type"] = [schema["type"], "null"]
        properties[field] = schema
    found: Schema = {"type": "object", "properties": properties}
    required = [field for field, kind in fields.items() if kind.endswith("!")]
    return {**found, "required": required} if required else found
