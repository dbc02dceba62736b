"""The fields of all requests, each declared once: name, kind, bounds, presence, meaning, and who sees it.

Everything else that is said about a field comes from here. `fields.py`, the small table that every command reads when
it starts, is written from it (`scripts/pages/fields.py`), and so are the tables of docs/reference/http.md. JSON schemas
and the OpenAPI document, the help of flags, the SDK's parameters and the arguments of MCP tools take their sentences
from here. No command imports this file unless it shows them. The fields of answers are in `answer_fields.py`.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core import limits
from dibs.core.identity import AGENT, ROLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Who sees the fields of a request, as long as the job or session is on record.
EVERYBODY = "everybody who may look at the namespace"
CALLER = "only the caller that received it: it is a proof"
NOBODY = "nobody"

NEEDED = "needed"  # as a default: it must be given, although it may be empty for the check of types
NAMESPACE_PATTERN = rf"^[A-Za-z0-9._-]{{1,{limits.NAMESPACE_CHARS_MAX}}}$"
PRINCIPAL_PATTERN = rf"^[A-Za-z0-9._@+-]{{1,{limits.PRINCIPAL_CHARS_MAX}}}$"
ACL_PATTERN = "^(user|token):."
NAME_FORMAT = "dibs-job-name"  # a format of our own: no pattern says how a name must look


class Field(Record):
    """A field of a request.

    `meaning` is the sentence for all surfaces. A surface that needs other words has them in `flag`, `parameter` or
    `tool`, where {} stands for the meaning.
    """

    # whole, number, seconds, text, flag, object, list or id. "!" after it: required. "?": required, may be null.
    kind: str
    meaning: str
    default: str = ""  # a sentence
    numbers: tuple[int, int] | None = None  # the bounds of a number, both included
    chars: int = 0  # how many characters a text may have
    bytes: int = 0  # or how many bytes
    lengths: tuple[int, int] = (0, 0)  # how many entries a list may have
    choices: tuple[str, ...] = ()  # the first is the default
    pattern: str = ""
    not_empty: bool = False
    is_clamped: bool = False  # out of bounds is not refused, so a schema has no bounds
    is_plain: bool = False  # of a claim: it goes into the command unchanged, under its own name
    seen_by: str = ""
    flag: str = "{}"
    parameter: str = "{}"
    tool: str = "{}."

    @property
    def is_required(self) -> bool:
        return self.kind.endswith(("!", "?")) or self.default == NEEDED


def _field(kind: str, meaning: str, default: str = "", **more: Any) -> Field:
    return Field(kind=kind, meaning=meaning, default=default, **more)


def _but(field: Field, meaning: str, default: str = "", **more: Any) -> Field:
    """The same field where it means something else: it has the same bounds, and is seen by the same."""
    return field.replace(meaning=meaning, default=default, **{"flag": "{}", "parameter": "{}", "tool": "{}.", **more})


def _seconds(least_ms: int, most_ms: int) -> tuple[int, int]:
    return least_ms // 1000, most_ms // 1000


_TTL = _field(
    "whole",
    "how long the claim lasts without a heartbeat",
    "60, or inside a session as long as that lives",
    numbers=_seconds(limits.TTL_MS_MIN, limits.TTL_MS_MAX),
    flag="{}: 90, 30s, 15m, 2h (default 60s; with --actor 15m; in a session, as long as the session)",
    parameter='{}: seconds, text such as "2m" or a timedelta; 60 by default, from a second to a day',
    tool="How long the job stays yours without a call that gives its lease_id.",
)
_TTL_MS = _field(
    "whole", "the same in milliseconds, instead of `ttl_seconds`", numbers=(limits.TTL_MS_MIN, limits.TTL_MS_MAX)
)
_OWNER = _field(
    "text",
    "who you are, as shown to others; it proves nothing",
    "the session's, else the token's name",
    chars=limits.OWNER_CHARS_MAX,
    seen_by=EVERYBODY,
    flag="the name that others see, if neither --actor's nor user@host will do; it proves nothing",
)
_PROCESS = _field(
    "text",
    "identifies the session's process for others on the same machine; the command line fills it in",
    chars=limits.OWNER_CHARS_MAX,
    seen_by=NOBODY,
)
_METADATA = _field(
    "text",
    "a short text shown to everybody, such as repo=acme/app",
    chars=limits.METADATA_CHARS_MAX,
    is_plain=True,
    seen_by=EVERYBODY,
    tool=f"A short public note, at most {limits.METADATA_CHARS_MAX} characters. Never a secret.",
)
_CHECKPOINT = _field(
    "text",
    "how far the work has come, for the next owner",
    bytes=limits.CHECKPOINT_BYTES_MAX,
    seen_by=EVERYBODY,
    flag="{}; - reads it from stdin",
    tool=f"How far you got, for the next owner; at most {limits.CHECKPOINT_BYTES_MAX} bytes. Never a secret.",
)
_REQUEST_KEY = _field(
    "text",
    "a value that is new for each claim: repeating the claim with it gives the same lease",
    chars=limits.REQUEST_KEY_CHARS_MAX,
    not_empty=True,
    seen_by=NOBODY,
    flag="repeating a claim with the same key gives the same lease (default: a new key every time)",
)
_LEASE = _field(
    "id",
    "the lease id that the claim gave: it proves that the job is yours",
    seen_by=CALLER,
    flag="for a claim without --actor and --session: the lease id that it printed",
)
_SESSION = _field(
    "id",
    "the session that the claim belongs to",
    seen_by=f"{CALLER}. Lists of sessions show the ids of others cut short",
    flag="for a worker with a session of its own: its id, which `dibs session run` sets for the commands in it",
)
_PROOF = {"lease_id": _LEASE, "session_id": _but(_SESSION, "or this: the session of the claim")}
_TICKET = _field(
    "text",
    "the place in line that an earlier `queued` gave",
    seen_by=CALLER,
    flag="continue from the place in line that --keep-place printed",
)
_WAIT = _field(
    "seconds",
    "wait in line for up to this long",
    "0",
    numbers=_seconds(0, limits.WAIT_MS_MAX),
    parameter="how long to wait in line: not at all by default, math.inf without end",
)
_REASON = _field("text", "", chars=limits.REASON_CHARS_MAX, seen_by=EVERYBODY)
_NAMES = _field("list!", "")
_ACL = _field("object", "", seen_by=f"{EVERYBODY}; an entry `token:` as `token:[redacted]`")
_FRESH_ID = _field("id", "", seen_by=CALLER)
_CANDIDATE = rf"^[A-Za-z0-9_.:@-]{{1,{limits.CANDIDATE_CHARS_MAX}}}$"
_LEADER_TOKEN = _field("text!", "the proof", seen_by=CALLER)
_SESSION_MS = (limits.SESSION_OWN_TTL_MS_MIN, limits.SESSION_OWN_TTL_MS_MAX)
_EXPIRES = _field("whole", "", numbers=_seconds(1000, limits.CREDENTIAL_LIFE_MS_MAX))


def _limit(meaning: str) -> Field:
    return _field("whole", meaning, "0", numbers=(0, limits.PRINCIPAL_LIMIT_MAX))


_LIMITS = {
    "max_held": _limit("how many jobs its principal may hold, places in line counted; 0 is no limit"),
    "max_waiting": _limit("how many places in line"),
    "max_sessions": _limit("how many open sessions"),
    "rate_per_second": _limit("how many requests a second, at each server"),
}
# What all claims have.
CLAIM = {
    "ttl_seconds": _TTL,
    "ttl_ms": _TTL_MS,
    "owner": _OWNER,
    "metadata": _METADATA,
    "request_key": _REQUEST_KEY,
    "session_id": _SESSION,
    "ephemeral": _field(
        "flag",
        "false: the lease outlives its session, by its own TTL. true needs a `session_id`",
        "true inside a session",
    ),
    "lock_delay_seconds": _field(
        "whole",
        "if the claim is lost, not released, nobody gets the job for this long, a minute at most",
        "0",
        numbers=_seconds(0, limits.LOCK_DELAY_MS_MAX),
    ),
    "mode": _field(
        "text",
        "shared: coexists with other shared claims, excludes exclusive ones",
        choices=("exclusive", "shared"),
        seen_by=EVERYBODY,
    ),
    "slots": _field(
        "whole",
        "up to so many owners at once; all must give the same number, and none may be shared",
        "1",
        numbers=(1, limits.SLOTS_MAX),
        seen_by=EVERYBODY,
    ),
    "max_attempts": _field(
        "whole",
        "after so many failures and losses in a row, park the job until somebody frees it",
        "0 for no limit",
        numbers=(0, limits.ATTEMPTS_MAX),
        is_plain=True,
    ),
    "again": _field("flag", "claim the job even if it is marked as done", "false", is_plain=True),
}

REQUESTS: dict[str, dict[str, Field]] = {
    "acquire": {
        **CLAIM,
        "wait_seconds": _WAIT,
        "ticket": _TICKET,
        "lease_id": _but(
            _LEASE, "proves that the caller already holds the job: gives the same lease, or `lease_not_current`"
        ),
        "acl": _but(_ACL, "who may claim the job, see [below](#put-locksnameacl)", lengths=(1, limits.ACL_ENTRIES_MAX)),
    },
    "acquire-any": {
        **CLAIM,
        "names": _but(_NAMES, "tried in this order", lengths=(1, limits.NAMES_MAX)),
        "wait_seconds": _but(_WAIT, "only 0: claiming any of several does not wait", numbers=(0, 0)),
    },
    "acquire-all": {
        **CLAIM,
        "wait_seconds": _but(_WAIT, "wait in all lines at once, holding nothing", "0"),
        "ticket": _but(_TICKET, "as with `acquire`"),
        "names": _but(_NAMES, "all of them or none", lengths=(1, limits.ALL_NAMES_MAX)),
    },
    "leave": {"ticket": _but(_TICKET, "the place to give up", kind="text!")},
    "renew": {
        **_PROOF,
        "ttl_seconds": _but(_TTL, "a new TTL, from now. It may be shorter", "the one it has"),
        "ttl_ms": _TTL_MS,
        "metadata": _but(_METADATA, "replaces what there is"),
        "checkpoint": _CHECKPOINT,
    },
    "release": {
        **_PROOF,
        "done": _field("flag", "the work is finished: later claims are told so for a day, or `done_seconds`", "false"),
        "done_seconds": _field(
            "whole",
            "how long the job is marked as done",
            "0, with `done` 86,400",
            numbers=_seconds(0, limits.DONE_MS_MAX),
            flag="mark the job as done for this long (default 1d)",
            parameter="{}; True is a day",
            tool="With done=true: {}.",
        ),
        "result": _field(
            "text",
            "a short text for later claims while the job is marked as done, such as a link to the pull request",
            bytes=limits.RESULT_BYTES_MAX,
            seen_by=EVERYBODY,
            tool=f"With done=true: {{}}. {limits.RESULT_BYTES_MAX} bytes.",
        ),
        "checkpoint": _CHECKPOINT,
        "failed": _field("flag", "the work failed; this counts as an attempt", "false"),
        "reason": _but(_REASON, "with a failure: why; everybody who may see the job sees it"),
        "retry_after_seconds": _field(
            "whole",
            "with a failure: nobody gets the job for this long, a week at most",
            "0",
            numbers=_seconds(0, limits.RETRY_MS_MAX),
        ),
        "uncounted": _field(
            "flag",
            "neither failed nor done, for instance because the worker was interrupted: the count of attempts does not "
            "change",
            "false",
        ),
    },
    "transfer": {
        **_PROOF,
        "to_owner": _field(
            "text",
            "who gets the job, as shown to others. Without `to_session` it stays under the same token",
            chars=limits.OWNER_CHARS_MAX,
            seen_by=EVERYBODY,
        ),
        "to_session": _field(
            "id",
            "the open session that gets the job, of this namespace; may be of another token. It needs no lease id",
            seen_by=NOBODY,
        ),
        "fresh_lease_id": _but(
            _FRESH_ID,
            "a random UUID that you made for this, from which the server makes the new owner's lease id. After a lost "
            "reply, send the same: you get the same answer",
            "one that the server makes",
        ),
        "ttl_seconds": _but(_TTL, "a new TTL", "the one it has"),
        "ttl_ms": _TTL_MS,
        "checkpoint": _but(_CHECKPOINT, "for the new owner", "the one it has"),
    },
    "break": {"reason": _but(_REASON, "the old owner is told, history keeps it", NEEDED, not_empty=True)},
    "free": {},
    "acl": {
        "acl": _but(
            _ACL,
            "`user:NAME` for a token's name, `token:TOKEN` for a token itself, kept as its hash. Null, or no entries, "
            "removes the list",
            kind="object?",
            lengths=(0, limits.ACL_ENTRIES_MAX),
        )
    },
    "inspect": {},
    "session-open": {
        "ttl_seconds": _but(
            _TTL,
            "how long the session lives without a keepalive",
            "60. A value out of bounds is set to the nearest bound",
            numbers=_seconds(limits.SESSION_TTL_MS_MIN, limits.SESSION_TTL_MS_MAX),
            is_clamped=True,
        ),
        "ttl_ms": _but(
            _TTL_MS,
            "the same, instead of `ttl_seconds`. A value out of bounds is refused (`invalid_ttl`)",
            numbers=_SESSION_MS,
            flag="how long the session lives without a renewal, 1s to 1d (default 60s)",
        ),
        "owner": _but(_OWNER, "who", "the token's name"),
        "metadata": _but(_METADATA, "shown to those who may see the session"),
        "process": _PROCESS,
        "parent_id": _field(
            "id",
            "a session of yours whose part this one is, such as an agent's whose subagent opens this one. Claims of a "
            "session and of its parent do not exclude each other. Two with the same parent exclude each other",
            seen_by=NOBODY,
        ),
        "fresh_session_id": _but(
            _FRESH_ID,
            "a random UUID that you made for this, from which the server makes the session's id. After a lost reply, "
            "send the same: you get the same session",
            "one that the server makes",
        ),
    },
    "session-keep": {
        "ttl_ms": _but(
            _TTL_MS, "from now on the session lives this long without a keepalive", "as it is", numbers=_SESSION_MS
        ),
        "process": _but(_PROCESS, "the session's process from now on, as in `POST /sessions`; empty: none", "as it is"),
        "active": _field(
            "flag",
            "the worker itself asks, not a timer. Refusals show when that was, and the answer says who began to wait "
            "for a job of the session",
            "false",
        ),
    },
    "session-end": {},
    "session-show": {},
    "session-break": {"reason": _but(_REASON, "history keeps it, and the late worker is told", NEEDED, not_empty=True)},
    "token-create": {
        "name": _field(
            "text!",
            "the principal, in letters, digits and `. _ @ + -`. Several tokens may have one name",
            pattern=PRINCIPAL_PATTERN,
        ),
        "role": _field("text", "what it may do", choices=(AGENT, *[role for role in ROLES if role != AGENT])),
        "namespace": _field("text", "the only namespace that it may use", "any", pattern=NAMESPACE_PATTERN),
        "expires_seconds": _but(_EXPIRES, "how long it is valid", "never"),
        "sha256": _field(
            "text",
            "64 hexadecimal digits: the hash of an existing token. Then no token is made, and the reply has none",
            pattern="^[0-9a-f]{64}$",
        ),
        **_LIMITS,
    },
    "token-rotate": {
        "grace_seconds": _field(
            "whole",
            "how long the old one stays valid; 0 ends it at once",
            "600",
            numbers=_seconds(0, limits.ROTATION_GRACE_MS_MAX),
        ),
        "expires_seconds": _but(_EXPIRES, "how long the new one is valid", "the lifetime of the old one"),
    },
    "token-limit": {name: _but(field, field.meaning, "as it is") for name, field in _LIMITS.items()},
    "webhook-create": {
        "url": _field("text!", "where deliveries go: https, without a user name", chars=limits.WEBHOOK_URL_CHARS_MAX),
        "secret": _field(
            "text",
            "signs each delivery. It is not shown again",
            "deliveries are not signed",
            chars=limits.WEBHOOK_SECRET_CHARS_MAX,
        ),
        "events": _field(
            "list",
            "`*`, OctoStore's `acquired`, `renewed`, `released`, `expired`, or kinds of events as `GET /events` says "
            "them",
            "`*`",
        ),
        "lock_pattern": _field("text", "a job's name, the beginning of names with `*` after it, or `*`", "`*`"),
    },
    "webhook-replay": {
        "after": _field("number", "the number of an event: all events after it are sent again", "only dead letters")
    },
    "campaign": {
        "candidate_id": _field(
            "text!",
            "who, as shown to everybody: letters, digits and `- _ . : @`. Proves nothing",
            chars=limits.CANDIDATE_CHARS_MAX,
            pattern=_CANDIDATE,
            seen_by=EVERYBODY,
        ),
        "ttl_seconds": _but(_TTL, "how long the term lasts without a heartbeat. Without a token 5 to 300", "30"),
        "metadata": _METADATA,
        "request_key": _but(
            _REQUEST_KEY,
            "a value that is new for each campaign. Repeating the request with it gives the same term, so a lost reply "
            "can be asked for again",
            not_empty=True,
        ),
    },
    "election-renew": {
        "leader_token": _LEADER_TOKEN,
        "ttl_seconds": _but(_TTL, "a new TTL, from now. It may be shorter", "the one it has; without a token 30"),
    },
    "resign": {"leader_token": _LEADER_TOKEN},
    "login": {
        "token": _field("text!", "a token that the server accepts", chars=limits.TOKEN_CHARS_MAX, seen_by=NOBODY)
    },
}


def flag_text(verb: str, name: str) -> str:
    """The help of the flag that gives a field."""
    field = REQUESTS[verb][name]
    return field.flag.format(field.meaning)


def parameter_texts(verb: str) -> dict[str, str]:
    """The SDK's parameters: durations have no unit in their name there, and `shared` is a mode."""
    found = {}
    for name, field in REQUESTS[verb].items():
        if f"{name}_seconds" not in REQUESTS[verb]:  # `done` takes a time there
            given = "shared" if name == "mode" else name.removesuffix("_seconds")
            found[given] = field.parameter.format(field.meaning)
    return found


def tool_text(verb: str, name: str) -> str:
    """The description of an argument of an MCP tool."""
    field = REQUESTS[verb][name]
    text = field.tool.format(field.meaning)
    return text[0].upper() + text[1:]
