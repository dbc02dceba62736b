"""The operations on jobs and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.limits import HISTORY_PAGE_MAX, LIST_PAGE_MAX, NAME_BYTES_MAX
from dibs.core.records import ENDINGS, STATES
from dibs.server.http.parse import SEQ_MAX, check_head
from dibs.server.routes.table import section
from dibs.wire.operations import (
    JOB,
    KEY,
    NAMES,
    NAMESPACE,
    NULL,
    OF_A_JOB,
    SESSION,
    SOME_ID,
    STORE,
    Link,
    in_query,
    number_in_query,
)

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table
    from dibs.wire.operations import Operation


_job = section("Jobs", OF_A_JOB)
_CLAIM_CODES = (
    *("conflict", "deadlock", "invalid_ttl", "lock_limit_exceeded", "not_found", "session_expired"),
    *("capacity_exceeded", "draining"),
)
_PROOF_CODES = ("lease_not_current", "session_expired", "not_found")
_CLAIMED = ("acquired", "held", "queued", "done")
_SEVERAL = (*NAMESPACE, NAMES, STORE, KEY)
_BEGINS_WITH = in_query("prefix", "Only names that begin with this", maxLength=NAME_BYTES_MAX)

_PROVED = {"lease_id": "$response.body#/lease_id"}
_SAME_JOB = {"name": "$request.path.name"}


def _next(name: str, to: str, meaning: str, **more: str) -> Link:
    return Link(name, to, meaning, 200, _SAME_JOB, {**_PROVED, **more})


_OF_A_LEASE = (
    _next("renew", "renew", "The heartbeat of the lease"),
    _next("release", "release", "Let the job go"),
    _next("transfer", "transfer", "Hand the job over", to_owner="somebody else"),
    Link("leave", "leave", "Give up the place in line", 200, _SAME_JOB, {"ticket": "$response.body#/ticket"}),
    Link("inspect", "inspect", "How the job stands", 200, _SAME_JOB),
    Link("history", "history", "What happened to the job", 200, _SAME_JOB),
)
_LEASE_EXAMPLE = {"lease_id": SOME_ID}

ACQUIRE = _job(
    "POST /locks/{name}/acquire",
    "acquire",
    "claim a job",
    {200: _CLAIMED, 409: ("delayed", "parked")},
    (*_CLAIM_CODES, "lease_not_current"),
    (*OF_A_JOB, KEY),
    links=_OF_A_LEASE,
    example={"ttl_seconds": 60, "owner": "worker-1"},
)
ACQUIRE_ANY = _job(
    "POST /locks/acquire-any",
    "acquire-any",
    "claim the first free one of several",
    {200: ("acquired", "refused")},
    _CLAIM_CODES,
    _SEVERAL,
    example={"names": ["issue-1", "issue-2"], "owner": "worker-1"},
)
ACQUIRE_ALL = _job(
    "POST /locks/acquire-all",
    "acquire-all",
    "claim several, all or none",
    {200: ("acquired", "refused", "queued")},
    _CLAIM_CODES,
    _SEVERAL,
    example={"names": ["issue-1", "issue-2"], "owner": "worker-1"},
)
LEAVE = _job(
    "POST /locks/{name}/leave",
    "leave",
    "give up a place in line",
    {200: "leave"},
    example={"ticket": "the one of the answer queued"},
)
RENEW = _job(
    "POST /locks/{name}/renew",
    "renew",
    "heartbeat",
    {200: "renew"},
    (*_PROOF_CODES, "invalid_ttl"),
    example=_LEASE_EXAMPLE,
)
RELEASE = _job(
    "POST /locks/{name}/release",
    "release",
    "let go",
    {200: ("failed", NULL)},
    _PROOF_CODES,
    about="The answer is `null`; of a failure it is a document.",
    example=_LEASE_EXAMPLE,
)
TRANSFER = _job(
    "POST /locks/{name}/transfer",
    "transfer",
    "hand over to another owner",
    {200: ("transferred", "held")},
    (*_PROOF_CODES, "invalid_ttl", "deadlock", "lock_limit_exceeded"),
    example={**_LEASE_EXAMPLE, "to_owner": "worker-2"},
)
BREAK = _job(
    "POST /locks/{name}/break",
    "break",
    "take a job away from its owner",
    {200: "break"},
    example={"reason": "its machine is gone"},
)
FREE = _job("POST /locks/{name}/free", "free", "let a parked job be claimed again", {200: "free"}, body_optional=True)
ACL = _job(
    "PUT /locks/{name}/acl",
    "acl",
    "say who may claim a job",
    {200: "acl"},
    ("not_found",),
    who="whoever holds it, admin",
    example={"acl": {"acquire": ["user:ci"]}},
)
INSPECT = _job("GET /locks/{name}", "inspect", "how a job stands", {200: "job"})
LIST = _job(
    "GET /locks",
    "list",
    "all claimed jobs",
    {200: "list"},
    (),
    (
        *NAMESPACE,
        _BEGINS_WITH,
        in_query("after", "Only names after this one", maxLength=NAME_BYTES_MAX),
        number_in_query("limit", "Jobs on one page", 1, LIST_PAGE_MAX),
        in_query(
            "status",
            f"`all`, or some of {', '.join(f'`{state}`' for state in STATES)} with commas between. Without it: `held`",
            pattern=f"^(all|({'|'.join(STATES)})(,({'|'.join(STATES)}))*)$",
        ),
        in_query(
            "ended",
            f"Only jobs whose last hold ended in one of these ways: some of {', '.join(f'`{how}`' for how in ENDINGS)} "
            "with commas between",
            pattern=f"^({'|'.join(ENDINGS)})(,({'|'.join(ENDINGS)}))*$",
        ),
    ),
)
HISTORY = _job(
    "GET /locks/{name}/history",
    "history",
    "what happened to a job",
    {200: "history"},
    (),
    (
        JOB,
        *NAMESPACE,
        NAMES,
        number_in_query("limit", "The newest so many events", 1, HISTORY_PAGE_MAX),
        number_in_query("after", "Instead: the first so many after this `seq`", 0, SEQ_MAX),
    ),
)


def job_routes(api: Api) -> Table:
    asked = (ACQUIRE, ACQUIRE_ANY, ACQUIRE_ALL, LEAVE, RENEW, RELEASE, TRANSFER, BREAK, FREE, ACL, INSPECT)
    return [
        *[asks(api, each) for each in asked],
        (LIST, lambda call: api.list(call.query, call.headers)),
        (HISTORY, lambda call: api.history(call.raw_name, call.query, call.headers)),
    ]


def asks(api: Api, operation: Operation) -> tuple[Operation, Handler]:
    """The operation with a handler that has its command decided. The outcome is answered without a task."""
    verb = operation.id
    if operation.method in ("GET", "DELETE"):
        return operation, lambda call: api.ask(call, verb, b"")

    def handle(call: HttpRequest) -> None:
        if not (call.head.is_acceptable or operation.body_optional):
            check_head(call.headers)  # before the body has come
        call.read(api.caller_of, lambda body: api.ask(call, verb, body))

    return operation, handle


_session = section("Sessions", (SESSION, *NAMESPACE, STORE))

_ID = {"id": "$response.body#/session_id"}
_OF_THE_SESSION = (
    Link("keepalive", "session-keep", "The session is alive", 201, _ID),
    Link("show", "session-show", "How it stands", 201, _ID),
    Link("end", "session-end", "Its end: all that it holds is let go", 201, _ID),
    Link("acquire", "acquire", "Claim a job in it", 201, {}, {"session_id": "$response.body#/session_id"}),
)

OPEN = _session(
    "POST /sessions",
    "session-open",
    "open a session",
    {201: "session"},
    ("invalid_ttl", "not_found", "session_expired", "capacity_exceeded", "draining"),
    (*NAMESPACE, STORE),
    example={"owner": "worker-1", "ttl_seconds": 60},
    links=_OF_THE_SESSION,
)
SESSION_LIST = _session(
    "GET /sessions",
    "sessions",
    "open sessions: those of the token; for an operator or admin, all",
    {200: "sessions"},
    (),
    (),
)
KEEP = _session(
    "POST /sessions/{id}/keepalive",
    "session-keep",
    "the session is alive",
    {200: "session"},
    ("invalid_ttl", "not_found", "session_expired"),
    body_optional=True,
)
SHOW = _session("GET /sessions/{id}", "session-show", "how a session stands", {200: "session"}, ("not_found",))
END = _session("DELETE /sessions/{id}", "session-end", "end a session", {204: None}, ("not_found", "session_expired"))


def session_routes(api: Api) -> Table:
    return [
        asks(api, OPEN),
        (SESSION_LIST, lambda call: api.sessions(call.headers)),
        asks(api, KEEP),
        asks(api, SHOW),
        asks(api, END),
    ]
