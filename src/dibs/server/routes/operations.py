"""The operations of every server: what a request may have, its answers and its error codes.

Routes, the OpenAPI document and the list in docs/reference/http.md are made from them. The handlers are in the modules
beside this one, by the ids of the operations. Operations of plugins are declared there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dibs.core import limits
from dibs.core.records import ENDINGS, STATES
from dibs.server.http.parse import MARK_BYTES_MAX, SEQ_MAX
from dibs.server.monitor.exposition import OPEN_TYPE, PLAIN_TYPE
from dibs.server.routes.table import Handler, Table
from dibs.wire import operations as wire
from dibs.wire.answer_fields import Answer, flag, number, part, parts, text, texts
from dibs.wire.lease_documents import SESSION_SHOWN
from dibs.wire.operations import (
    Link,
    Operation,
    Parameter,
    by_id,
    document_schema,
    in_header,
    in_path,
    in_query,
    number_in_query,
    text_in_query,
)
from dibs.wire.request_fields import PRINCIPAL_PATTERN

# What several operations have.

SINCE_S_MAX = 100 * limits.EVENTS_AGE_MS_MAX // 1000
SESSION_BEGINNING = rf"[0-9a-f]{{{SESSION_SHOWN}}}[0-9a-f-]{{0,28}}"
_CLAIM = (
    *("conflict", "deadlock", "invalid_ttl", "lock_limit_exceeded", "not_found", "session_expired"),
    *("capacity_exceeded", "draining"),
)
_PROOF = ("lease_not_current", "session_expired", "not_found")
_LEASE = {"lease_id": wire.SOME_ID}
_SEVERAL = (*wire.NAMESPACE, wire.NAMES, wire.STORE, wire.KEY)
_STATUS = in_query(
    "status",
    f"`all`, or some of {', '.join(f'`{state}`' for state in STATES)} with commas between. Without it: `held`",
    pattern=f"^(all|({'|'.join(STATES)})(,({'|'.join(STATES)}))*)$",
)
_ENDED = in_query(
    "ended",
    f"Only jobs whose last hold ended in one of these ways: some of {', '.join(f'`{how}`' for how in ENDINGS)} "
    "with commas between",
    pattern=f"^({'|'.join(ENDINGS)})(,({'|'.join(ENDINGS)}))*$",
)
_POOLS = in_query("pools", "Only pools, whatever their `status`", enum=["true", "false"])
_FOLLOW = in_query("follow", "A stream, or a page. Without it, `Accept` decides", enum=["true", "false"])
_ENDED_TOO = in_query("ended", "Also those that have ended properly", enum=["true", "false"])
_NAME = in_query("name", "Only this job, instead of `prefix`", **wire.NAME_SCHEMA)
_LAST_EVENT_ID = Parameter(
    "Last-Event-ID", "The same as `after`, and wins", {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}, "header"
)
_BEGINNING = in_path(
    "id", f"The first {SESSION_SHOWN} characters of its id, or more", "3f2a9c1e", pattern=f"^{SESSION_BEGINNING}$"
)
_PRINCIPAL = in_path("name", "The principal", "ci", pattern=PRINCIPAL_PATTERN)
_TOKEN_ID = in_query("id", "One token: the beginning of its hash")
_WEBHOOK_ID = in_path("id", "The webhook", "6f0c6a3e-8d0d-4b0e-9a57-2f6f1a2b3c4d", format="uuid")
_MARK = in_header("X-Dibs-Request", "`1`: the request is of a page of this server", enum=["1"])
_PATH = in_query("path", "Only the operations at this path, or that begin so (`/sessions*`), in full")
_FILE = in_path("file", "A file of the dashboard", "app.js")
_TOKEN_KEY = in_query(
    "key", "Names the token: the keyed BLAKE2b digest (16 bytes) of `dibs key id`, under the SHA-256 of the token"
)
_NONCE = in_query("nonce", "A fresh UUID", format="uuid", pattern=wire.ID_PATTERN)._replace(
    required=True, example=wire.SOME_ID
)
_PROMETHEUS = (PLAIN_TYPE, OPEN_TYPE)
_SAME_JOB, _SAME_SESSION = {"name": "$request.path.name"}, {"id": "$response.body#/session_id"}
_PROVED = {"lease_id": "$response.body#/lease_id"}
_OF_A_LEASE = (
    Link("renew", "renew", "The heartbeat of the lease", 200, _SAME_JOB, _PROVED),
    Link("release", "release", "Let the job go", 200, _SAME_JOB, _PROVED),
    Link("transfer", "transfer", "Hand the job over", 200, _SAME_JOB, {**_PROVED, "to_owner": "somebody else"}),
    Link("leave", "leave", "Give up the place in line", 200, _SAME_JOB, {"ticket": "$response.body#/ticket"}),
    Link("inspect", "inspect", "How the job stands", 200, _SAME_JOB),
    Link("history", "history", "What happened to the job", 200, _SAME_JOB),
)
_OF_THE_SESSION = (
    Link("keepalive", "session-keep", "The session is alive", 201, _SAME_SESSION),
    Link("show", "session-show", "How it stands", 201, _SAME_SESSION),
    Link("end", "session-end", "Its end: all that it holds is let go", 201, _SAME_SESSION),
    Link("acquire", "acquire", "Claim a job in it", 201, {}, {"session_id": "$response.body#/session_id"}),
)
_OF_THE_TOKEN = (Link("revoke", "token-revoke", "Revoke it", 201, {"name": "$response.body#/name"}),)

# Answers that only HTTP has.
_WEBHOOK: Answer = {
    "id": text("its id"),
    "user_id": text("the name of its owner's token"),
    "url": text("where deliveries go"),
    "secret": text("`****` if it has one; it is never shown", null=True),
    "events": texts("what is sent, as given"),
    "lock_pattern": text("of which jobs, as given"),
    "namespace": text("the namespace of these jobs"),
    "created_at": text("when it was made"),
    "active": flag("whether it delivers"),
    "stopped": text("why it does not deliver", null=True),
}
DOCUMENTS: dict[str, Answer] = {
    "rights": {
        "events": parts("in order, as in `GET /events`, each also with `user_id`: whose it is"),
        "next": number("what to send as `after` for the following page, null on the last", null=True),
        "gap": part("null, or what was asked for and is no longer on record", null=True),
        "identity": parts("the rules for signed tokens of this server, for admins of all namespaces"),
    },
    "webhook": _WEBHOOK,
    "standing": {
        **_WEBHOOK,
        "delivered": number("how many deliveries succeeded"),
        "failed": number("how many tries failed"),
        "waiting": number("how many jobs have something to be sent"),
        "dead": number("how many dead letters are on record"),
        "dropped": number("how many dead letters are not on record any more, because there were too many"),
        "gaps": number("how often history was pruned before it was sent"),
        "after": number("the number of the last event that was looked at"),
        "behind": number("how many numbers follow it in the store"),
    },
    "deliveries": {
        "deliveries": parts(
            "the newest tries first: `id` (of the event), `at`, `name`, `event`, `try`, `status`, `error`, `took_ms`",
        ),
        "waiting": parts("jobs whose next event rests: `name`, `after`, `tries`, `next_try_at`, `error`"),
        "dead": parts("dead letters: `id` (of the event), `name`, `event`, `at`, `tries`, `error`, `again`"),
    },
    "tested": {
        "delivered": flag("whether the target answered with 2xx"),
        "status": number("the status of its answer", null=True),
        "error": text("why it counts as failed", null=True),
        "took_ms": number("how long it took"),
    },
    "proved": {
        "proof": text(
            "the keyed BLAKE2b digest (32 bytes) of `dibs proof`, a zero byte and `NONCE@HOST:PORT` under the "
            "same key; host and port are the server's end of the connection. null if the server does not have "
            "the token",
            null=True,
        ),
    },
    "healthy": {
        "status": text("`ok`; with status 503 `degraded`"),
        "dibs": text("the version of dibs that the server runs. A server that does not say is not dibs"),
        "storage": text("the store's name"),
        "schema": number("the version of its format; null if it has none", null=True),
        "db_size_bytes": number("how much room it takes"),
        "now": text("the time of the store's clock"),
        "damaged": number(
            "how many records and events cannot be read, if any: what needs such a record is refused, and history "
            "leaves such an event out. `dibs doctor` at the store names them",
            optional=True,
        ),
    },
    "alive": {
        "status": text("`ok`: the process answers"),
    },
    "ready": {
        "status": text("`ready`"),
    },
    "counts": {
        "status": text("`ok`"),
        "uptime_seconds": number("since the server started"),
        "active_locks": number("live leases in the store"),
        "waiting": number("waiters in the store"),
        "sessions": number("open sessions in the store"),
        "total_users": number("with a token: principals with a token that this server knows", optional=True),
        "total_acquires": number("since the server started"),
        "total_releases": number("since the server started"),
        "total_failures": number("holds released as failed since the server started"),
        "version": text("of dibs"),
    },
}
_SCHEMAS: dict[str, Any] = {
    **{name: document_schema(fields, name) for name, fields in DOCUMENTS.items()},
    "webhook-list": {"title": "webhook-list", "type": "array", "items": document_schema(DOCUMENTS["webhook"])},
    "string": {"type": "string"},
    "anything": {"type": "object"},
}

OPERATIONS = by_id(
    Operation(
        "POST",
        "/locks/{name}/acquire",
        "acquire",
        "claim a job",
        "Jobs",
        {200: ("acquired", "held", "queued", "done"), 409: ("delayed", "parked", "superseded", "closed")},
        codes=(*_CLAIM, "lease_not_current"),
        parameters=(*wire.OF_A_JOB, wire.KEY),
        example={"ttl_seconds": 60, "owner": "worker-1"},
        links=_OF_A_LEASE,
    ),
    Operation(
        "POST",
        "/locks/acquire-any",
        "acquire-any",
        "claim the first free one of several",
        "Jobs",
        {200: ("acquired", "refused")},
        codes=_CLAIM,
        parameters=_SEVERAL,
        example={"names": ["issue-1", "issue-2"], "owner": "worker-1"},
    ),
    Operation(
        "POST",
        "/locks/acquire-all",
        "acquire-all",
        "claim several, all or none",
        "Jobs",
        {200: ("acquired", "refused", "queued"), 409: "superseded"},
        codes=_CLAIM,
        parameters=_SEVERAL,
        example={"names": ["issue-1", "issue-2"], "owner": "worker-1"},
    ),
    Operation(
        "POST",
        "/locks/{name}/leave",
        "leave",
        "give up a place in line",
        "Jobs",
        {200: "leave"},
        parameters=wire.OF_A_JOB,
        example={"ticket": "the one of the answer queued"},
    ),
    Operation(
        "POST",
        "/locks/withdraw",
        "withdraw",
        "undo a claim that is not wanted any more",
        "Jobs",
        {200: "withdraw"},
        parameters=_SEVERAL,
        example={"request_key": "that of the claim", "names": ["issue-1842"]},
        about="Its place in line ends, or its leases do unless others rely on them, and late copies of it are refused.",
    ),
    Operation(
        "POST",
        "/locks/{name}/renew",
        "renew",
        "heartbeat",
        "Jobs",
        {200: "renew"},
        codes=(*_PROOF, "invalid_ttl", "conflict"),
        parameters=wire.OF_A_JOB,
        example=_LEASE,
    ),
    Operation(
        "POST",
        "/locks/{name}/release",
        "release",
        "let go",
        "Jobs",
        {200: ("failed", "null")},
        codes=_PROOF,
        parameters=wire.OF_A_JOB,
        example=_LEASE,
        about="The answer is `null`; of a failure it is a document.",
    ),
    Operation(
        "POST",
        "/locks/{name}/transfer",
        "transfer",
        "hand over to another owner",
        "Jobs",
        {200: ("transferred", "held")},
        codes=(*_PROOF, "invalid_ttl", "deadlock", "lock_limit_exceeded"),
        parameters=wire.OF_A_JOB,
        example={**_LEASE, "to_owner": "worker-2"},
    ),
    Operation(
        "POST",
        "/locks/{name}/break",
        "break",
        "take a job away from its owner",
        "Jobs",
        {200: "break"},
        parameters=wire.OF_A_JOB,
        example={"reason": "its machine is gone"},
    ),
    Operation(
        "POST",
        "/locks/{name}/free",
        "free",
        "let a parked job be claimed again",
        "Jobs",
        {200: "free"},
        parameters=wire.OF_A_JOB,
        body_optional=True,
    ),
    Operation(
        "POST",
        "/locks/{name}/close",
        "close",
        "let nobody be granted a job for a while",
        "Jobs",
        {200: "close"},
        parameters=wire.OF_A_JOB,
        example={"for_seconds": 7200, "reason": "migration"},
        about="Of a name that ends in `/`, all below it. Owners keep theirs, and lines keep their order.",
    ),
    Operation(
        "POST",
        "/locks/{name}/open",
        "open",
        "end that early",
        "Jobs",
        {200: "open"},
        parameters=wire.OF_A_JOB,
        body_optional=True,
    ),
    Operation(
        "PUT",
        "/locks/{name}/acl",
        "acl",
        "say who may claim a job",
        "Jobs",
        {200: "acl"},
        who="whoever holds it, admin",
        codes=("not_found",),
        parameters=wire.OF_A_JOB,
        example={"acl": {"acquire": ["user:ci"]}},
    ),
    Operation(
        "PUT",
        "/locks/{name}/pool",
        "pool",
        "say how many slots a job has",
        "Jobs",
        {200: "pool"},
        parameters=wire.OF_A_JOB,
        example={"slots": 4},
    ),
    Operation(
        "POST",
        "/locks/{name}/next",
        "next",
        "get a number that nobody else gets",
        "Jobs",
        {200: "next", 409: "closed"},
        codes=("number_taken",),
        parameters=wire.OF_A_JOB,
        example={"at_least": 436, "owner": "agent-7"},
    ),
    Operation(
        "POST",
        "/locks/{name}/give-back",
        "give-back",
        "give a number back",
        "Jobs",
        {200: "give-back"},
        parameters=wire.OF_A_JOB,
        example={"number": 436},
    ),
    Operation("GET", "/locks/{name}", "inspect", "how a job stands", "Jobs", {200: "job"}, parameters=wire.OF_A_JOB),
    Operation(
        "GET",
        "/locks",
        "list",
        "all claimed jobs",
        "Jobs",
        {200: "list"},
        parameters=(
            *wire.NAMESPACE,
            text_in_query("prefix", "Only names that begin with this", limits.NAME_BYTES_MAX),
            text_in_query("after", "Only names after this one", limits.NAME_BYTES_MAX),
            number_in_query("limit", "Jobs on one page", 1, limits.LIST_PAGE_MAX),
            _STATUS,
            _ENDED,
            _POOLS,
        ),
    ),
    Operation(
        "GET",
        "/locks/{name}/history",
        "history",
        "what happened to a job",
        "Jobs",
        {200: "history"},
        parameters=(
            wire.JOB,
            *wire.NAMESPACE,
            wire.NAMES,
            number_in_query("limit", "How many of the newest events", 1, limits.HISTORY_PAGE_MAX),
            number_in_query("after", "Instead: the first ones after this `seq`", 0, SEQ_MAX),
        ),
    ),
    Operation(
        "GET",
        "/locks/{name}/overdue",
        "overdue",
        "did it succeed in time",
        "Jobs",
        {200: "overdue", 409: "overdue"},
        parameters=(
            wire.JOB,
            *wire.NAMESPACE,
            wire.NAMES,
            number_in_query("within_seconds", "How long ago the last success may be", 1, limits.WITHIN_S_MAX),
        ),
    ),
    Operation(
        "GET",
        "/waiters",
        "waiters",
        "who waits in line, and for whom",
        "Jobs",
        {200: "waiters"},
        parameters=(
            *wire.NAMESPACE,
            text_in_query("prefix", "Only jobs whose name begins with this", limits.NAME_BYTES_MAX),
            text_in_query("after", "`next` of the page before", MARK_BYTES_MAX),
            number_in_query("limit", "Places on one page", 1, limits.LIST_PAGE_MAX),
        ),
    ),
    Operation(
        "GET",
        "/events",
        "events",
        "what happens to all jobs, as a page or a stream",
        "Events",
        {200: "events"},
        codes=("draining",),
        parameters=(
            *wire.NAMESPACE,
            wire.NAMES,
            text_in_query("prefix", "Only jobs whose name begins with this", limits.NAME_BYTES_MAX),
            _NAME,
            number_in_query("after", "Begin after the event with this number", 0, SEQ_MAX),
            number_in_query(
                "since_seconds", "Without `after`: begin with the events of this many last seconds", 0, SINCE_S_MAX
            ),
            _FOLLOW,
            number_in_query("limit", "Of a page: how many events at most", 1, limits.HISTORY_PAGE_MAX),
            _LAST_EVENT_ID,
        ),
        media=(wire.JSON_TYPE, wire.STREAM_TYPE),
    ),
    Operation(
        "GET",
        "/locks/{name}/watch",
        "watch",
        "the state of a job and its changes, as a stream",
        "Events",
        {200: _SCHEMAS["string"]},
        codes=("draining",),
        parameters=(wire.JOB, *wire.NAMESPACE, wire.NAMES),
        media=(wire.STREAM_TYPE,),
    ),
    Operation(
        "GET",
        "/activity",
        "activity",
        "the last hour, by the minute",
        "Events",
        {200: "activity"},
        parameters=wire.NAMESPACE,
    ),
    Operation(
        "POST",
        "/sessions",
        "session-open",
        "open a session",
        "Sessions",
        {201: "session"},
        codes=("invalid_ttl", "not_found", "session_expired", "capacity_exceeded", "draining"),
        parameters=(*wire.NAMESPACE, wire.STORE),
        example={"owner": "worker-1", "ttl_seconds": 60},
        links=_OF_THE_SESSION,
    ),
    Operation(
        "GET",
        "/sessions",
        "sessions",
        "open sessions: those of the token; for an operator or admin, all",
        "Sessions",
        {200: "sessions"},
    ),
    Operation(
        "GET",
        "/agents",
        "agents",
        "the agents among these sessions: where each works, on what, what it waits for",
        "Sessions",
        {200: "agents"},
        parameters=(
            text_in_query("after", "`next` of the page before", MARK_BYTES_MAX),
            number_in_query("limit", "Agents on one page", 1, limits.AGENTS_PAGE_MAX),
            _ENDED_TOO,
        ),
    ),
    Operation(
        "POST",
        "/sessions/{id}/keepalive",
        "session-keep",
        "the session is alive",
        "Sessions",
        {200: "session"},
        codes=("invalid_ttl", "not_found", "session_expired"),
        parameters=(wire.SESSION, *wire.NAMESPACE, wire.STORE),
        body_optional=True,
    ),
    Operation(
        "GET",
        "/sessions/{id}",
        "session-show",
        "how a session stands",
        "Sessions",
        {200: "session"},
        codes=("not_found",),
        parameters=(wire.SESSION, *wire.NAMESPACE, wire.STORE),
    ),
    Operation(
        "DELETE",
        "/sessions/{id}",
        "session-end",
        "end a session",
        "Sessions",
        {204: None},
        codes=("not_found", "session_expired"),
        parameters=(wire.SESSION, *wire.NAMESPACE, wire.STORE),
    ),
    Operation(
        "POST",
        "/sessions/{id}/break",
        "session-break",
        "end somebody's session",
        "Sessions",
        {200: "session"},
        codes=("not_found", "session_expired"),
        parameters=(_BEGINNING,),
        example={"reason": "its machine is gone"},
    ),
    Operation("GET", "/tokens", "tokens", "the tokens of the store", "Tokens", {200: "tokens"}),
    Operation(
        "POST",
        "/tokens",
        "token-create",
        "make one",
        "Tokens",
        {201: "token"},
        codes=("conflict", "invalid_lock_name"),
        example={"name": "ci", "role": "agent"},
        links=_OF_THE_TOKEN,
    ),
    Operation(
        "DELETE",
        "/tokens/{name}",
        "token-revoke",
        "revoke somebody's",
        "Tokens",
        {200: "token-revoke"},
        codes=("not_found",),
        parameters=(_PRINCIPAL, _TOKEN_ID),
    ),
    Operation(
        "POST",
        "/tokens/{name}/rotate",
        "token-rotate",
        "replace one by a new one",
        "Tokens",
        {200: "token-rotate"},
        codes=("not_found",),
        parameters=(_PRINCIPAL, _TOKEN_ID),
        example={"grace_seconds": 600},
    ),
    Operation(
        "POST",
        "/tokens/{name}/limits",
        "token-limit",
        "how much the holder of a token may have",
        "Tokens",
        {200: "token-limit"},
        codes=("not_found",),
        parameters=(_PRINCIPAL, _TOKEN_ID),
        example={"max_held": 10},
    ),
    Operation(
        "GET",
        "/rights",
        "rights",
        "changes of tokens, webhooks and access lists",
        "Tokens",
        {200: _SCHEMAS["rights"]},
        parameters=(
            number_in_query("after", "Begin after the event with this number", 0, SEQ_MAX),
            number_in_query("limit", "How many events at most", 1, limits.HISTORY_PAGE_MAX),
        ),
    ),
    Operation(
        "POST",
        "/login",
        "login",
        "put a token into a browser's cookie",
        "Login of a browser",
        {200: "whoami"},
        is_open=True,
        codes=("authentication_required", "authentication_failed", "forbidden", "rate_limited", "upstream_unavailable"),
        example={"token": "a token"},
    ),
    Operation(
        "POST",
        "/logout",
        "logout",
        "clear the cookie",
        "Login of a browser",
        {204: None},
        is_open=True,
        codes=("forbidden",),
        parameters=(_MARK,),
    ),
    Operation("GET", "/whoami", "whoami", "who the caller is", "Login of a browser", {200: "whoami"}),
    Operation(
        "GET",
        "/webhooks",
        "webhooks",
        "webhooks: those of the token; for an operator or admin, all",
        "Webhooks",
        {200: _SCHEMAS["webhook-list"]},
    ),
    Operation(
        "POST",
        "/webhooks",
        "webhook-create",
        "send events to a URL",
        "Webhooks",
        {201: _SCHEMAS["webhook"]},
        parameters=wire.NAMESPACE,
        example={"url": "https://hooks.example.com/dibs", "events": ["acquired", "released"]},
    ),
    Operation(
        "GET",
        "/webhooks/{id}",
        "webhook-show",
        "one webhook, and how its deliveries stand",
        "Webhooks",
        {200: _SCHEMAS["standing"]},
        codes=("not_found",),
        parameters=(_WEBHOOK_ID,),
    ),
    Operation(
        "DELETE",
        "/webhooks/{id}",
        "webhook-remove",
        "stop sending events to a URL",
        "Webhooks",
        {204: None},
        codes=("not_found",),
        parameters=(_WEBHOOK_ID,),
    ),
    Operation(
        "GET",
        "/webhooks/{id}/deliveries",
        "webhook-deliveries",
        "the delivery log, what waits, and the dead letters",
        "Webhooks",
        {200: _SCHEMAS["deliveries"]},
        codes=("not_found",),
        parameters=(_WEBHOOK_ID,),
    ),
    Operation(
        "POST",
        "/webhooks/{id}/replay",
        "webhook-replay",
        "send the dead letters again, or all events after one",
        "Webhooks",
        {200: _SCHEMAS["webhook"]},
        codes=("not_found",),
        parameters=(_WEBHOOK_ID,),
        body_optional=True,
    ),
    Operation(
        "POST",
        "/webhooks/{id}/test",
        "webhook-test",
        "send a test delivery now",
        "Webhooks",
        {200: _SCHEMAS["tested"]},
        codes=("not_found",),
        parameters=(_WEBHOOK_ID,),
    ),
    Operation(
        "GET",
        "/proof",
        "proof",
        "does the server have this token",
        "Health",
        {200: _SCHEMAS["proved"]},
        is_open=True,
        parameters=(_TOKEN_KEY, _NONCE),
    ),
    Operation(
        "GET",
        "/health",
        "health",
        "does the store answer",
        "Health",
        {200: _SCHEMAS["healthy"]},
        is_open=True,
        codes=("upstream_unavailable",),
    ),
    Operation(
        "GET",
        "/ready",
        "ready",
        "are new claims taken here",
        "Health",
        {200: _SCHEMAS["ready"]},
        is_open=True,
        codes=("upstream_unavailable", "draining"),
    ),
    Operation(
        "GET",
        "/readyz",
        "readyz",
        "the same",
        "Health",
        {200: _SCHEMAS["ready"]},
        is_open=True,
        codes=("upstream_unavailable", "draining"),
    ),
    Operation(
        "GET", "/healthz", "healthz", "does the process answer", "Health", {200: _SCHEMAS["alive"]}, is_open=True
    ),
    Operation("GET", "/status", "status", "counts", "Health", {200: _SCHEMAS["counts"]}, is_open=True),
    Operation(
        "GET",
        "/metrics",
        "metrics",
        "counts of this server: Prometheus' text if `Accept` asks for it, else OctoStore's JSON",
        "Health",
        {200: _SCHEMAS["anything"]},
        media=(wire.JSON_TYPE, *_PROMETHEUS),
    ),
    Operation(
        "GET",
        "/metrics/prometheus",
        "metrics-prometheus",
        "the same, always as Prometheus' text",
        "Health",
        {200: _SCHEMAS["string"]},
        media=_PROMETHEUS,
    ),
    Operation(
        "GET",
        "/openapi.json",
        "openapi-json",
        "this API as OpenAPI 3.1",
        "Description",
        {200: _SCHEMAS["anything"]},
        is_open=True,
        parameters=(_PATH,),
    ),
    Operation(
        "GET",
        "/openapi.yaml",
        "openapi-yaml",
        "the same as YAML",
        "Description",
        {200: _SCHEMAS["anything"]},
        is_open=True,
        parameters=(_PATH,),
        media=("application/yaml",),
    ),
    Operation(
        "GET",
        "/llms.txt",
        "llms-txt",
        "what this server is, for programs and agents",
        "Description",
        {200: _SCHEMAS["string"]},
        is_open=True,
        media=("text/plain",),
    ),
    Operation(
        "GET",
        "/SKILL.md",
        "skill",
        "the skill that teaches agents to use dibs",
        "Description",
        {200: _SCHEMAS["string"]},
        is_open=True,
        media=("text/markdown",),
    ),
    Operation(
        "GET",
        "/",
        "dashboard",
        "the dashboard, for browsers; for others, what `/llms.txt` says",
        "Dashboard",
        {200: _SCHEMAS["string"], 304: None},
        is_open=True,
        media=("text/html", "text/plain"),
    ),
    Operation(
        "GET",
        "/ui/{file}",
        "dashboard-file",
        "its scripts and styles",
        "Dashboard",
        {200: _SCHEMAS["string"], 304: None},
        is_open=True,
        codes=("not_found",),
        parameters=(_FILE,),
        media=("text/javascript", "text/css", "image/svg+xml"),
    ),
)


def routed(handlers: Mapping[str, Handler], operations: Mapping[str, Operation] = OPERATIONS) -> Table:
    return [(operations[verb], handler) for verb, handler in handlers.items()]
