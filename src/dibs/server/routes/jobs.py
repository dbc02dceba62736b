"""The operations on jobs and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.limits import (
    HISTORY_PAGE_MAX,
    LIST_PAGE_MAX,
    NAME_BYTES_MAX,
)
from dibs.core.records import ENDINGS, STATES
from dibs.server.http.parse import SEQ_MAX, check_head
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
    Operation,
    in_query,
    number_in_query,
)

if TYPE_CHECKING:
    from dibs.server.handlers import Api
    from dibs.server.http.request import HttpRequest
    from dibs.server.routes.table import Handler, Table


JOBS = "Jobs"
_CLAIM_CODES = (
    "conflict",
    "deadlock",
    "invalid_ttl",
    "lock_limit_exceeded",
    "not_found",
    "session_expired",
    "capacity_exceeded",
    "draining",
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

ACQUIRE = Operation(
    "POST",
    "/locks/{name}/acquire",
    "acquire",
    "claim a job",
    JOBS,
    {200: _CLAIMED, 409: ("delayed", "parked")},
    (*_CLAIM_CODES, "lease_not_current"),
    (*OF_A_JOB, KEY),
    links=_OF_A_LEASE,
    example={"ttl_seconds": 60, "owner": "worker-1"},
)
ACQUIRE_ANY = Operation(
    "POST",
    "/locks/acquire-any",
    "acquire-any",
    "claim the first free one of several",
    JOBS,
    {200: ("acquired", "refused")},
    _CLAIM_CODES,
    _SEVERAL,
    example={"names": ["issue-1", "issue-2"], "owner": "worker-1"},
)
ACQUIRE_ALL = Operation(
    "POST",
    "/locks/acquire-all",
    "acquire-all",
    "claim several, all or none",
    JOBS,
    {200: ("acquired", "refused", "queued")},
    _CLAIM_CODES,
    _SEVERAL,
    example={"names": ["issue-1", "issue-2"], "owner": "worker-1"},
)
LEAVE = Operation(
    "POST",
    "/locks/{name}/leave",
    "leave",
    "give up a place in line",
    JOBS,
    {200: "leave"},
    (),
    OF_A_JOB,
    example={"ticket": "the one of the answer queued"},
)
RENEW = Operation(
    "POST",
    "/locks/{name}/renew",
    "renew",
    "heartbeat",
    JOBS,
    {200: "renew"},
    (*_PROOF_CODES, "invalid_ttl"),
    OF_A_JOB,
    example=_LEASE_EXAMPLE,
)
RELEASE = Operation(
    "POST",
    "/locks/{name}/release",
    "release",
    "let go",
    JOBS,
    {200: ("failed", NULL)},
    _PROOF_CODES,
    OF_A_JOB,
    about="The answer is `null`; of a failure it is a document.",
    example=_LEASE_EXAMPLE,
)
TRANSFER = Operation(
    "POST",
    "/locks/{name}/transfer",
    "transfer",
    "hand over to another owner",
    JOBS,
    {200: ("transferred", "held")},
    (*_PROOF_CODES, "invalid_ttl", "deadlock", "lock_limit_exceeded"),
    OF_A_JOB,
    example={**_LEASE_EXAMPLE, "to_owner": "worker-2"},
)
BREAK = Operation(
    "POST",
    "/locks/{name}/break",
    "break",
    "take a job away from its owner",
    JOBS,
    {200: "break"},
    (),
    OF_A_JOB,
    example={"reason": "its machine is gone"},
)
FREE = Operation(
    "POST",
    "/locks/{name}/free",
    "free",
    "let a parked job be claimed again",
    JOBS,
    {200: "free"},
    (),
    OF_A_JOB,
    body_optional=True,
)
ACL = Operation(
    "PUT",
    "/locks/{name}/acl",
    "acl",
    "say who may claim a job",
    JOBS,
    {200: "acl"},
    ("not_found",),
    OF_A_JOB,
    who="whoever holds it, admin",
    example={"acl": {"acquire": ["user:ci"]}},
)
INSPECT = Operation(
    "GET",
    "/locks/{name}",
    "inspect",
    "how a job stands",
    JOBS,
    {200: "job"},
    (),
    OF_A_JOB,
)
LIST = Operation(
    "GET",
    "/locks",
    "list",
    "all claimed jobs",
    JOBS,
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
HISTORY = Operation(
    "GET",
    "/locks/{name}/history",
    "history",
    "what happened to a job",
    JOBS,
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
    return [
        asks(api, ACQUIRE),
        asks(api, ACQUIRE_ANY),
        asks(api, ACQUIRE_ALL),
        asks(api, LEAVE),
        asks(api, RENEW),
        asks(api, RELEASE),
        asks(api, TRANSFER),
        asks(api, BREAK),
        asks(api, FREE),
        asks(api, ACL),
        asks(api, INSPECT),
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


SESSIONS = "Sessions"
_OF_A_SESSION = (SESSION, *NAMESPACE, STORE)

_ID = {"id": "$response.body#/session_id"}
_OF_THE_SESSION = (
    Link("keepalive", "session-keep", "The session is alive", 201, _ID),
    Link("show", "session-show", "How it stands", 201, _ID),
    Link("end", "session-end", "Its end: all that it holds is let go", 201, _ID),
    Link("acquire", "acquire", "Claim a job in it", 201, {}, {"session_id": "$response.body#/session_id"}),
)

OPEN = Operation(
    "POST",
    "/sessions",
    "session-open",
    "open a session",
    SESSIONS,
    {201: "session"},
    ("invalid_ttl", "not_found", "session_expired", "capacity_exceeded", "draining"),
    (*NAMESPACE, STORE),
    example={"owner": "worker-1", "ttl_seconds": 60},
    links=_OF_THE_SESSION,
)
SESSION_LIST = Operation(
    "GET",
    "/sessions",
    "sessions",
    "open sessions: those of the token; for an operator or admin, all",
    SESSIONS,
    {200: "sessions"},
)
KEEP = Operation(
    "POST",
    "/sessions/{id}/keepalive",
    "session-keep",
    "the session is alive",
    SESSIONS,
    {200: "session"},
    ("invalid_ttl", "not_found", "session_expired"),
    _OF_A_SESSION,
    body_optional=True,
)
SHOW = Operation(
    "GET",
    "/sessions/{id}",
    "session-show",
    "how a session stands",
    SESSIONS,
    {200: "session"},
    ("not_found",),
    _OF_A_SESSION,
)
END = Operation(
    "DELETE",
    "/sessions/{id}",
    "session-end",
    "end a session",
    SESSIONS,
    {204: None},
    ("not_found", "session_expired"),
    _OF_A_SESSION,
)


def session_routes(api: Api) -> Table:
    return [
        asks(api, OPEN),
        (SESSION_LIST, lambda call: api.sessions(call.headers)),
        asks(api, KEEP),
        asks(api, SHOW),
        asks(api, END),
    ]
