"""The operations of every server, as one table: what a request may have, its answers and its error codes.

Routes, the OpenAPI document and the list in docs/reference/http.md are made from it. The handlers are in the modules
beside this one, by the ids of the operations. Operations of annexes are declared there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dibs.base.tables import sections
from dibs.core import limits
from dibs.core.records import ENDINGS, STATES
from dibs.server.http.parse import SEQ_MAX
from dibs.server.monitor.exposition import OPEN_TYPE, PLAIN_TYPE
from dibs.server.routes.table import Handler, Table
from dibs.wire import operations as wire
from dibs.wire.answer_fields import answers_in
from dibs.wire.lease_documents import SESSION_SHOWN
from dibs.wire.operations import Link, Operation, Parameter, document_schema, in_header, in_path, in_query
from dibs.wire.request_fields import PRINCIPAL_PATTERN

Names = Mapping[str, Any]
Shared = tuple[str, dict[str, Any]]


# What an answer, a code, a parameter or a link of the table may stand for, besides what `wire/operations.py` has.

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
DOCUMENTS = answers_in("""
rights
    events list: in order, as in `GET /events`, each also with `user_id`: whose it is
    next number?: what to send as `after` for the following page, null on the last
    gap object?: null, or what was asked for and is no longer on record
webhook
    id text: its id
    user_id text: the name of its owner's token
    url text: where deliveries go
    secret text?: `****` if it has one; it is never shown
    events texts: what is sent, as given
    lock_pattern text: of which jobs, as given
    namespace text: the namespace of these jobs
    created_at text: since when
    active flag: whether it delivers
    stopped text?: why it does not
standing
    + webhook
    delivered number: how many deliveries succeeded
    failed number: how many tries failed
    waiting number: how many jobs have something to be sent
    dead number: how many dead letters are on record
    dropped number: how many dead letters are not on record any more, because there were too many
    gaps number: how often history was pruned before it was sent
    after number: the number of the last event that was looked at
    behind number: how many numbers follow it in the store
deliveries
    deliveries list: the newest tries first: `id` (of the event), `at`, `name`, `event`, `try`, `status`, `error`,
        `took_ms`
    waiting list: jobs whose next event rests: `name`, `after`, `tries`, `next_try_at`, `error`
    dead list: dead letters: `id` (of the event), `name`, `event`, `at`, `tries`, `error`, `again`
tested
    delivered flag: whether the target answered with 2xx
    status number?: the status of its answer
    error text?: why it counts as failed
    took_ms number: how long it took
proved
    proof text?: the keyed BLAKE2b digest (32 bytes) of `dibs proof`, a zero byte and `NONCE@HOST:PORT` under the same
        key; host and port are the server's end of the connection. null if the server does not have the token
healthy
    status text: `ok`; with status 503 `degraded`
    dibs text: the version of dibs that the server runs. A server that does not say is not dibs
    storage text: the store's name
    schema number?: the version of its format; null if it has none
    db_size_bytes number: how much room it takes
    now text: the time of the store's clock
    damaged number-: how many records cannot be read, if any: what needs one is refused. `dibs doctor` at the store
        names them
alive
    status text: `ok`: the process answers
ready
    status text: `ready`
counts
    status text: `ok`
    uptime_seconds number: since the server started
    active_locks number: live leases in the store
    waiting number: waiters in the store
    sessions number: open sessions in the store
    total_users number-: with a token: principals with a token that this server knows
    total_acquires number: since the server started
    total_releases number: since the server started
    total_failures number: the same, of holds released as failed
    version text: of dibs
""")
_SCHEMAS: dict[str, Any] = {
    **{name: document_schema(fields) for name, fields in DOCUMENTS.items()},
    "webhook-list": {"type": "array", "items": document_schema(DOCUMENTS["webhook"])},
    "string": {"type": "string"},
    "anything": {"type": "object"},
}

# The parameters of a section, unless an operation has its own (`with`), and what else its operations have in common.
_SHARED: dict[str, Shared] = {
    "Jobs": ("OF_A_JOB", {}),
    "Sessions": ("SESSION NAMESPACE STORE", {}),
    "Events": ("", {}),
    "Tokens": ("_PRINCIPAL _TOKEN_ID", {}),
    "Login of a browser": ("", {}),
    "Webhooks": ("_WEBHOOK_ID", {}),
    "Health": ("", {"is_open": True}),
    "Description": ("", {"is_open": True}),
    "Dashboard": ("", {"is_open": True}),
}
# An operation: method, path, id and summary; its answers by status, its errors, its parameters. A parameter of its own
# begins with "?": a number from one bound to another, or a text of so many bytes.
_TABLE = """
Jobs
    POST /locks/{name}/acquire acquire: claim a job
        200 acquired held queued done; 409 delayed parked superseded closed; errors _CLAIM lease_not_current
        with OF_A_JOB KEY; links _OF_A_LEASE; example {"ttl_seconds": 60, "owner": "worker-1"}
    POST /locks/acquire-any acquire-any: claim the first free one of several
        200 acquired refused; errors _CLAIM; with _SEVERAL
        example {"names": ["issue-1", "issue-2"], "owner": "worker-1"}
    POST /locks/acquire-all acquire-all: claim several, all or none
        200 acquired refused queued; 409 superseded; errors _CLAIM; with _SEVERAL
        example {"names": ["issue-1", "issue-2"], "owner": "worker-1"}
    POST /locks/{name}/leave leave: give up a place in line
        200 leave; example {"ticket": "the one of the answer queued"}
    POST /locks/withdraw withdraw: undo a claim that is not wanted any more
        200 withdraw; with _SEVERAL
        example {"request_key": "that of the claim", "names": ["issue-1842"]}
        about Its place in line ends, or its leases do unless others rely on them, and late copies of it are refused.
    POST /locks/{name}/renew renew: heartbeat
        200 renew; errors _PROOF invalid_ttl conflict; example _LEASE
    POST /locks/{name}/release release: let go
        200 failed null; errors _PROOF; example _LEASE
        about The answer is `null`; of a failure it is a document.
    POST /locks/{name}/transfer transfer: hand over to another owner
        200 transferred held; errors _PROOF invalid_ttl deadlock lock_limit_exceeded
        example _LEASE {"to_owner": "worker-2"}
    POST /locks/{name}/break break: take a job away from its owner
        200 break; example {"reason": "its machine is gone"}
    POST /locks/{name}/free free: let a parked job be claimed again
        200 free; body_optional
    POST /locks/{name}/close close: let nobody be granted a job for a while
        200 close; example {"for_seconds": 7200, "reason": "migration"}
        about Of a name that ends in `/`, all below it. Owners keep theirs, and lines keep their order.
    POST /locks/{name}/open open: end that early
        200 open; body_optional
    PUT /locks/{name}/acl acl: say who may claim a job
        200 acl; errors not_found; who whoever holds it, admin; example {"acl": {"acquire": ["user:ci"]}}
    PUT /locks/{name}/pool pool: say how many slots a job has
        200 pool; example {"slots": 4}
    GET /locks/{name} inspect: how a job stands
        200 job
    GET /locks list: all claimed jobs
        200 list; with NAMESPACE
        ?prefix NAME_BYTES_MAX Only names that begin with this
        ?after NAME_BYTES_MAX Only names after this one
        ?limit 1..LIST_PAGE_MAX Jobs on one page
        with _STATUS _ENDED _POOLS
    GET /locks/{name}/history history: what happened to a job
        200 history; with JOB NAMESPACE NAMES
        ?limit 1..HISTORY_PAGE_MAX The newest so many events
        ?after 0..SEQ_MAX Instead: the first so many after this `seq`
    GET /locks/{name}/overdue overdue: did it succeed in time
        200 overdue; 409 overdue; with JOB NAMESPACE NAMES
        ?within_seconds 1..WITHIN_S_MAX How long ago the last success may be
    GET /waiters waiters: who waits in line, and for whom
        200 waiters; with NAMESPACE
        ?prefix NAME_BYTES_MAX Only jobs whose name begins with this
        ?after NAME_BYTES_MAX `next` of the page before
        ?limit 1..LIST_PAGE_MAX Places on one page
Events
    GET /events events: what happens to all jobs, as a page or a stream
        200 events; errors draining; media JSON_TYPE STREAM_TYPE; with NAMESPACE NAMES
        ?prefix NAME_BYTES_MAX Only jobs whose name begins with this
        with _NAME
        ?after 0..SEQ_MAX Begin after the event with this number
        ?since_seconds 0..SINCE_S_MAX Without `after`: begin with the events of the last so many seconds
        with _FOLLOW
        ?limit 1..HISTORY_PAGE_MAX Of a page: at most so many events
        with _LAST_EVENT_ID
    GET /locks/{name}/watch watch: the state of a job and its changes, as a stream
        200 string; errors draining; with JOB NAMESPACE NAMES; media STREAM_TYPE
    GET /activity activity: the last hour, by the minute
        200 activity; with NAMESPACE
Sessions
    POST /sessions session-open: open a session
        201 session; errors invalid_ttl not_found session_expired capacity_exceeded draining; with NAMESPACE STORE
        links _OF_THE_SESSION; example {"owner": "worker-1", "ttl_seconds": 60}
    GET /sessions sessions: open sessions: those of the token; for an operator or admin, all
        200 sessions; with
    POST /sessions/{id}/keepalive session-keep: the session is alive
        200 session; errors invalid_ttl not_found session_expired; body_optional
    GET /sessions/{id} session-show: how a session stands
        200 session; errors not_found
    DELETE /sessions/{id} session-end: end a session
        204; errors not_found session_expired
    POST /sessions/{id}/break session-break: end somebody's session
        200 session; errors not_found session_expired; with _BEGINNING; example {"reason": "its machine is gone"}
Tokens
    GET /tokens tokens: the tokens of the store
        200 tokens; with
    POST /tokens token-create: make one
        201 token; errors conflict invalid_lock_name; with; links _OF_THE_TOKEN
        example {"name": "ci", "role": "agent"}
    DELETE /tokens/{name} token-revoke: revoke somebody's
        200 token-revoke; errors not_found
    POST /tokens/{name}/rotate token-rotate: put a new one in the place of one
        200 token-rotate; errors not_found; example {"grace_seconds": 600}
    POST /tokens/{name}/limits token-limit: how much the holder of a token may have
        200 token-limit; errors not_found; example {"max_held": 10}
    GET /rights rights: changes of tokens, webhooks and access lists
        200 rights; with
        ?after 0..SEQ_MAX Begin after the event with this number
        ?limit 1..HISTORY_PAGE_MAX At most so many events
Login of a browser
    POST /login login: put a token into a browser's cookie
        200 whoami; open; example {"token": "a token"}
        errors authentication_required authentication_failed forbidden rate_limited upstream_unavailable
    POST /logout logout: clear the cookie
        204; errors forbidden; with _MARK; open
    GET /whoami whoami: who the caller is
        200 whoami
Webhooks
    GET /webhooks webhooks: webhooks: those of the token; for an operator or admin, all
        200 webhook-list; with
    POST /webhooks webhook-create: send events to a URL
        201 webhook; with NAMESPACE
        example {"url": "https://hooks.example.com/dibs", "events": ["acquired", "released"]}
    GET /webhooks/{id} webhook-show: one, and how its deliveries stand
        200 standing; errors not_found
    DELETE /webhooks/{id} webhook-remove: send no more
        204; errors not_found
    GET /webhooks/{id}/deliveries webhook-deliveries: the delivery log, what waits, and the dead letters
        200 deliveries; errors not_found
    POST /webhooks/{id}/replay webhook-replay: send the dead letters again, or all events after one
        200 webhook; errors not_found; body_optional
    POST /webhooks/{id}/test webhook-test: send a delivery that is about nothing, now
        200 tested; errors not_found
Health
    GET /proof proof: does the server have this token
        200 proved; with _TOKEN_KEY _NONCE
    GET /health health: does the store answer
        200 healthy; errors upstream_unavailable
    GET /ready ready: are new claims taken here
        200 ready; errors upstream_unavailable draining
    GET /readyz readyz: the same
        200 ready; errors upstream_unavailable draining
    GET /healthz healthz: does the process answer
        200 alive
    GET /status status: counts
        200 counts
    GET /metrics metrics: counts of this server: Prometheus' text if `Accept` asks for it, else OctoStore's JSON
        200 anything; closed; media JSON_TYPE _PROMETHEUS
    GET /metrics/prometheus metrics-prometheus: the same, always as Prometheus' text
        200 string; closed; media _PROMETHEUS
Description
    GET /openapi.json openapi-json: this API as OpenAPI 3.1
        200 anything
    GET /openapi.yaml openapi-yaml: the same as YAML
        200 anything; media application/yaml
    GET /docs docs: the same as a page
        200 string; media text/html
Dashboard
    GET / dashboard: the dashboard, for browsers
        200 string; 304; media text/html
    GET /ui/{file} dashboard-file: its scripts and styles
        200 string; 304; errors not_found; with _FILE; media text/javascript text/css image/svg+xml
"""
_WORDS = (
    *("200", "201", "204", "304", "409", "errors", "with", "links", "example", "media", "who", "about", "request"),
    *("open", "closed", "body_optional", "?prefix", "?after", "?limit", "?since_seconds", "?within_seconds"),
)


def _named(word: str, names: Names) -> Any:
    """What a word of a table stands for; the word itself, if for nothing."""
    return names.get(word, getattr(wire, word, getattr(limits, word, word)))


def _all_named(words: str, names: Names) -> tuple[Any, ...]:
    found = [_named(word, names) for word in words.split()]
    return tuple(
        inner
        for each in found
        for inner in (each if isinstance(each, tuple) and not isinstance(each, Parameter) else (each,))
    )


def _query(name: str, words: str, names: Names) -> Parameter:
    bound, _, meaning = words.partition(" ")
    least, dots, most = bound.partition("..")
    if dots:
        return in_query(name, meaning, type="integer", minimum=int(least), maximum=_named(most, names))
    return in_query(name, meaning, maxLength=_named(bound, names))


def _operation(head: str, terms: list[str], title: str, shared: Shared, names: Names) -> Operation:
    address, _, summary = head.partition(": ")
    method, path, verb = address.split(" ")
    answers: dict[int, Any] = {}
    given: dict[str, Any] = {**shared[1]}
    parameters: tuple[Parameter, ...] | None = None
    for term in [term for line in terms for term in ([line] if line[0] in "?a" else line.split("; "))]:
        word, _, rest = term.partition(" ")
        if word.isdecimal():
            found = [names.get(name, _SCHEMAS.get(name, name)) for name in rest.split()]
            answers[int(word)] = tuple(found) if len(found) > 1 else found[0] if found else None
        elif word == "with":
            parameters = (*(parameters or ()), *_all_named(rest, names))
        elif word.startswith("?"):
            parameters = (*(parameters or ()), _query(word[1:], rest, names))
        elif word == "example":
            named, _, text = rest.partition("{")
            given[word] = {**(names[named.strip()] if named else {}), **(json.loads("{" + text) if text else {})}
        elif word in ("errors", "links", "media"):
            given["codes" if word == "errors" else word] = _all_named(rest, names)
        elif word in ("open", "closed"):
            given["is_open"] = word == "open"
        else:
            given[word] = _named(rest, names) if rest else True
    if parameters is None:
        parameters = _all_named(shared[0], names)
    return Operation(method, path, verb, summary, title, answers, parameters=parameters, **given)


def operations_in(table: str, shared: Mapping[str, Shared], names: Names) -> dict[str, Operation]:
    """The operations that a table declares, by their ids. `names`: what its words stand for."""
    return {
        operation.id: operation
        for title, lines in sections(table, _WORDS)
        for head, *terms in lines
        for operation in (_operation(head, terms, title, shared[title], names),)
    }


OPERATIONS = operations_in(_TABLE, _SHARED, globals())


def routed(handlers: Mapping[str, Handler], operations: Mapping[str, Operation] = OPERATIONS) -> Table:
    return [(operations[verb], handler) for verb, handler in handlers.items()]
