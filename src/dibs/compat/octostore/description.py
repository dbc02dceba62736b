"""The contents of `/openapi.json` and `/docs` under `--octostore`: the operations that OctoStore has, with its bodies.
Fields of requests are read from the tables by which the handlers read them. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.compat import schemas_of
from dibs.compat.octostore import bodies, locks, routes
from dibs.core.limits import PUBLIC_TTL_MS_MAX, PUBLIC_TTL_MS_MIN
from dibs.server.routes.operations import DOCUMENTS
from dibs.wire.answer_fields import ANSWERS
from dibs.wire.operations import ID_PATTERN, JOB, in_path
from dibs.wire.values import U32_MAX

if TYPE_CHECKING:
    from dibs.wire.operations import Operation, Schema

ABOUT = "In OctoStore's form: this server runs with `--octostore`."
_STATUSES = (400, 401, 403, 404, 409, 410, 413, 415, 422, 429, 500, 503)
# What the fields of answers mean, wherever they are, where it is not what they mean in dibs' own.
_schema = schemas_of(
    """
acl object: who may acquire the lock
active flag: whether it is in use
code text: what is the matter, for programs
details text: the same, for people
events texts: which events
expires_at text: when it ends without a renewal or a keepalive
fencing_token number: rises with every lease of the store; of a free lock, the next one
id text: the webhook
lock_count number: how many locks it holds
lock_delay_seconds number: the delay that its last holder asked for
lock_pattern text: of which locks; null: of all
locks list: the locks that are held, each as `GET /locks/{name}` shows it
metadata text: of the holder
name text: the lock
prefix text: with which their names begin
secret text: `****` if there is one
status text: `acquired`, `held`, `free`, `delayed` or `ok`
storage text: `wal`
total number: how many
url text: where to
user_id text: whose it is
""",
    {
        name: (kind.rstrip("?-"), said)
        for fields in reversed([*ANSWERS.values(), *DOCUMENTS.values()])
        for name, (kind, said) in fields.items()
    },
)
_REFUSED = _schema("error code details request_id- retry_after_ms-")
_TAKEN = _schema("status lease_id fencing_token expires_at renew_after_ms metadata?")
_HELD = _schema("status holder_id expires_at retry_after_ms metadata?")
_DELAYED = _schema("status available_at lock_delay_seconds retry_after_ms")
_WEBHOOK = _schema("id user_id url secret? events lock_pattern? created_at active")
# By the id of the operation, then by status. The others answer the same fields in both forms.
_ANSWERS: dict[str, dict[int, Any]] = {
    "acquire": {200: {"oneOf": [_TAKEN, _HELD]}, 409: {"oneOf": [_DELAYED, _REFUSED]}},
    "renew": {200: _schema("lease_id expires_at renew_after_ms")},
    "release": {200: {"type": "null"}},
    "inspect": {200: _schema("name status holder_id? fencing_token expires_at? metadata? acl-")},
    "list": {200: _schema("locks total prefix?")},
    "acl": {200: _schema("name acl")},
    "session-open": {201: _schema("session_id expires_at keepalive_interval_secs")},
    "session-keep": {200: _schema("session_id expires_at")},
    "session-show": {200: _schema("session_id user_id expires_at lock_count active")},
    "webhooks": {200: {"type": "array", "items": _WEBHOOK}},
    "webhook-create": {201: _WEBHOOK},
    "health": {200: _schema("status storage db_size_bytes")},
    "status": {200: _schema("status uptime_seconds active_locks total_users total_acquires total_releases")},
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
                "items": {"type": "string", "maxLength": bodies.ACL_ENTRY_BYTES_MAX},
                "minItems": 1,
                "maxItems": bodies.ACL_ENTRIES_MAX,
            }
        },
        "required": ["acquire"],
    },
}
_LOCK_TTL = {"minimum": 1, "maximum": bodies.TTL_S_MAX}
_TERM = {"minimum": PUBLIC_TTL_MS_MIN // 1000, "maximum": PUBLIC_TTL_MS_MAX // 1000}
_BOUNDS = {
    ("acquire", "ttl_seconds"): _LOCK_TTL,
    ("renew", "ttl_seconds"): _LOCK_TTL,
    ("campaign", "ttl_seconds"): _TERM,
    ("election-renew", "ttl_seconds"): _TERM,
    ("acquire", "metadata"): {"maxLength": bodies.METADATA_CHARS_MAX},
    ("campaign", "metadata"): {"maxLength": bodies.METADATA_CHARS_MAX},
    ("acquire", "lock_delay_seconds"): {"maximum": bodies.DELAY_S_MAX},
}
_NAME = in_path("name", "The lock, percent-encoded", "issue-42", minLength=1, maxLength=bodies.NAME_BYTES_MAX)
_QUERIES = ("prefix", "window")  # all that it reads


def described(operation: Operation) -> Operation:
    """An operation that OctoStore has, as it has it."""
    fields = _REQUESTS.get(operation.id, {})
    answers = {**dict.fromkeys(_STATUSES, _REFUSED), **_ANSWERS.get(operation.id, operation.answers)}
    example = {field: said for field, said in (operation.example or {}).items() if field in fields}
    is_open = operation.is_open or operation.section == "Elections"
    parameters = [each for each in operation.parameters if each.where == "path" or each.name in _QUERIES]
    return operation._replace(
        answers=answers,
        codes=(),
        parameters=tuple([_NAME if each is JOB else each for each in parameters]),
        request=_request(operation.id, fields) if fields else None,
        example=example or None,
        links=tuple(link for link in operation.links if link.to in _ANSWERS),
        is_open=is_open,
        who="" if is_open else operation.who,
        about=f"{operation.about} {ABOUT}".strip(),
        is_foreign=True,
    )


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
