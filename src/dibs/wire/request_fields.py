"""The fields of all requests, each declared once: name, kind, bounds, presence, meaning, and who sees it.

Everything else that is said about a field comes from here. `fields.py`, the small table that every command reads when
it starts, is written from it (`scripts/dev/pages/fields.py`), and so are the tables of docs/reference/http.md. JSON
schemas and the OpenAPI document, the help of flags, the SDK's parameters and the arguments of MCP tools take their
sentences from here. No command imports this file unless it shows them. The fields of answers are in `answer_fields.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.core import limits
from dibs.core.caller_rights import AGENT, ROLES

# Who sees the fields of a request, as long as the job or session is on record.
EVERYBODY = "everybody who may look at the namespace"
CALLER = "only the caller that received it: it is a proof"
NOBODY = "nobody"

NEEDED = "needed"  # as a default: it must be given, although it may be empty for the check of types
NAMESPACE_PATTERN = rf"^[A-Za-z0-9._-]{{1,{limits.NAMESPACE_CHARS_MAX}}}$"
PRINCIPAL_PATTERN = rf"^[A-Za-z0-9._@+-]{{1,{limits.PRINCIPAL_CHARS_MAX}}}$"
CANDIDATE_PATTERN = rf"^[A-Za-z0-9_.:@-]{{1,{limits.CANDIDATE_CHARS_MAX}}}$"
DIGEST_PATTERN = "^[0-9a-f]{64}$"
ACL_PATTERN = "^(user|token):."
MODES = ("exclusive", "shared")
EFFECT_STATES = ("begun", "done", "failed", "in_doubt")
ROLE_CHOICES = (AGENT, *[role for role in ROLES if role != AGENT])
NAME_FORMAT = "dibs-job-name"  # a format of our own: no pattern says how a name must look


WHOLE, NUMBER, SECONDS, TEXT, FLAG = "whole", "number", "seconds", "text", "flag"
OBJECT, LIST, ID = "object", "list", "id"


class Field(NamedTuple):
    """A field of a request.

    `meaning` is the sentence for all surfaces. A surface that needs other words has them in `flag`, `parameter` or
    `tool`, where {} stands for the meaning.
    """

    kind: str
    meaning: str
    required: bool = False
    nullable: bool = False  # a required field that may be null
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
        return self.required or self.default == NEEDED

    def but(
        self,
        meaning: str,
        *,
        required: bool | None = None,
        nullable: bool | None = None,
        default: str = "",
        numbers: tuple[int, int] | None = None,
        chars: int | None = None,
        lengths: tuple[int, int] | None = None,
        not_empty: bool | None = None,
        is_clamped: bool | None = None,
        flag: str = "{}",
        parameter: str = "{}",
        tool: str = "{}.",
    ) -> Field:
        """The field as another request has it: it means something else there. Bounds that are not given stay, and so
        does who sees it; the default and the words of surfaces go with the meaning."""
        return self._replace(
            meaning=meaning,
            required=self.required if required is None else required,
            nullable=self.nullable if nullable is None else nullable,
            default=default,
            numbers=self.numbers if numbers is None else numbers,
            chars=self.chars if chars is None else chars,
            lengths=self.lengths if lengths is None else lengths,
            not_empty=self.not_empty if not_empty is None else not_empty,
            is_clamped=self.is_clamped if is_clamped is None else is_clamped,
            flag=flag,
            parameter=parameter,
            tool=tool,
        )


Fields = dict[str, Field]


def seconds(least_ms: int, most_ms: int) -> tuple[int, int]:
    """Bounds of a number of seconds."""
    return least_ms // 1000, most_ms // 1000


# Fields that several requests have.
TTL = Field(
    WHOLE,
    "how long the claim lasts without a heartbeat",
    numbers=seconds(limits.TTL_MS_MIN, limits.TTL_MS_MAX),
    default="60, or inside a session as long as that lives",
    flag="{}: 90, 30s, 15m, 2h (default 60s; with --actor 15m; in a session, as long as the session)",
    parameter='{}: seconds, text such as "2m" or a timedelta; 60 by default, from a second to a day',
    tool="How long the job stays yours without a call that gives its lease_id.",
)
TTL_MS = Field(
    WHOLE, "the same in milliseconds, instead of `ttl_seconds`", numbers=(limits.TTL_MS_MIN, limits.TTL_MS_MAX)
)
OWNER = Field(
    TEXT,
    "who you are, as shown to others; it proves nothing",
    chars=limits.OWNER_CHARS_MAX,
    seen_by=EVERYBODY,
    default="the session's, else the token's name",
    flag="the name that others see, if neither --actor's nor user@host will do; it proves nothing",
)
PROCESS = Field(
    TEXT,
    "identifies the session's process for others on the same machine; the command line fills it in",
    chars=limits.OWNER_CHARS_MAX,
    seen_by=NOBODY,
)
METADATA = Field(
    TEXT,
    "a short text shown to everybody, such as repo=acme/app",
    chars=limits.METADATA_CHARS_MAX,
    is_plain=True,
    seen_by=EVERYBODY,
    tool=f"A short public note, at most {limits.METADATA_CHARS_MAX} characters. Never a secret.",
)
CHECKPOINT = Field(
    TEXT,
    "how far the work has come, for the next owner",
    bytes=limits.CHECKPOINT_BYTES_MAX,
    seen_by=EVERYBODY,
    flag="{}; - reads it from stdin",
    tool=f"How far you got, for the next owner; at most {limits.CHECKPOINT_BYTES_MAX} bytes. Never a secret.",
)
REQUEST_KEY = Field(
    TEXT,
    "a value that is new for each claim: repeating the claim with it gives the same lease",
    chars=limits.REQUEST_KEY_CHARS_MAX,
    not_empty=True,
    seen_by=NOBODY,
    flag="repeating a claim with the same key gives the same lease (default: a new key every time)",
)
LEASE_ID = Field(
    ID,
    "the lease id that the claim gave: it proves that the job is yours",
    seen_by=CALLER,
    flag="for a claim without --actor and --session: the lease id that it printed",
)
SESSION = Field(
    ID,
    "the session that the claim belongs to",
    seen_by=f"{CALLER}. Lists of sessions show the ids of others cut short",
    flag="for a worker with a session of its own: its id, which `dibs session run` sets for the commands in it",
)
TICKET = Field(
    TEXT,
    "the place in line that an earlier `queued` gave",
    seen_by=CALLER,
    flag="continue from the place in line that --keep-place printed",
)
WAIT = Field(
    SECONDS,
    "wait in line for up to this long",
    numbers=seconds(0, limits.WAIT_MS_MAX),
    default="0",
    parameter="how long to wait in line: not at all by default, math.inf without end",
)
REPLACES = Field(
    TEXT,
    "only the newest of this group waits in line: an older place of the same group leaves it as `superseded`",
    bytes=limits.NAME_BYTES_MAX,
    not_empty=True,
    seen_by=NOBODY,
    flag="with --wait: only the newest of this group waits; an older one leaves the line with exit code 5",
    parameter="with `wait`: a group of which only the newest waits in line; older ones raise JobSuperseded",
)
REASON = Field(TEXT, "", chars=limits.REASON_CHARS_MAX, seen_by=EVERYBODY)
NAMES = Field(LIST, "", required=True)
ACL = Field(OBJECT, "", seen_by=f"{EVERYBODY}; an entry `token:` as `token:[redacted]`")
FRESH_ID = Field(ID, "", seen_by=CALLER)
LEADER_TOKEN = Field(TEXT, "the proof", required=True, seen_by=CALLER)
EXPIRES = Field(WHOLE, "", numbers=seconds(1_000, limits.CREDENTIAL_LIFE_MS_MAX))
PROOF: Fields = {
    "lease_id": LEASE_ID,
    "session_id": SESSION.but("or this: the session of the claim"),
}
LIMITS: Fields = {
    "max_held": Field(
        WHOLE,
        "how many jobs its principal may hold, places in line counted; 0 is no limit",
        numbers=(0, limits.PRINCIPAL_LIMIT_MAX),
        default="0 at first",
    ),
    "max_waiting": Field(
        WHOLE, "how many places in line", numbers=(0, limits.PRINCIPAL_LIMIT_MAX), default="0 at first"
    ),
    "max_sessions": Field(
        WHOLE, "how many open sessions", numbers=(0, limits.PRINCIPAL_LIMIT_MAX), default="0 at first"
    ),
    "rate_per_second": Field(
        WHOLE,
        "how many requests a second, at each server",
        numbers=(0, limits.PRINCIPAL_LIMIT_MAX),
        default="0 at first",
    ),
    "max_hold_seconds": Field(
        WHOLE,
        "how long each claim may last, whatever is renewed",
        numbers=seconds(0, limits.HOLD_MS_MAX),
        default="0 at first",
    ),
}

# What all claims have.
CLAIM: Fields = {
    "ttl_seconds": TTL,
    "ttl_ms": TTL_MS,
    "owner": OWNER,
    "metadata": METADATA,
    "request_key": REQUEST_KEY,
    "session_id": SESSION,
    "ephemeral": Field(
        FLAG,
        "false: the lease outlives its session, by its own TTL. true needs a `session_id`",
        default="true inside a session",
    ),
    "lock_delay_seconds": Field(
        WHOLE,
        "if the claim is lost, not released, nobody gets the job for this long, a minute at most",
        numbers=seconds(0, limits.LOCK_DELAY_MS_MAX),
        default="0",
    ),
    "mode": Field(
        TEXT,
        "shared: coexists with other shared claims, excludes exclusive ones",
        choices=MODES,
        seen_by=EVERYBODY,
    ),
    "slots": Field(
        WHOLE,
        "up to this many owners at once; all must give the same number, and none may be shared. Of a pool it may "
        "be left out",
        numbers=(1, limits.SLOTS_MAX),
        seen_by=EVERYBODY,
        default="the pool's, else 1",
    ),
    "units": Field(
        WHOLE,
        "how many of the slots to take",
        numbers=(1, limits.SLOTS_MAX),
        is_plain=True,
        seen_by=EVERYBODY,
        default="1",
    ),
    "max_attempts": Field(
        WHOLE,
        "after this many failures and losses in a row, park the job until somebody frees it",
        numbers=(0, limits.ATTEMPTS_MAX),
        is_plain=True,
        default="0 for no limit",
    ),
    "again": Field(FLAG, "claim the job even if it is marked as done", is_plain=True, default="false"),
    "max_hold_seconds": Field(
        WHOLE,
        "the claim ends after this long, whatever is renewed",
        numbers=seconds(0, limits.HOLD_MS_MAX),
        default="the token's or the server's limit, which is also the most",
    ),
}

# By verb.
REQUESTS: dict[str, Fields] = {
    "acquire": {
        **CLAIM,
        "wait_seconds": WAIT,
        "ticket": TICKET,
        "replaces": REPLACES,
        "lease_id": LEASE_ID.but(
            "proves that the caller already holds the job: gives the same lease, or `lease_not_current`"
        ),
        "acl": ACL.but("who may claim the job, see [below](#put-locksnameacl)", lengths=(1, limits.ACL_ENTRIES_MAX)),
    },
    "acquire-any": {
        **CLAIM,
        "names": NAMES.but("tried in this order", lengths=(1, limits.NAMES_MAX)),
        "count": Field(
            WHOLE,
            "claim this many of them or none; the answer has `leases`",
            numbers=(1, limits.NAMES_MAX),
            default="one, and the answer is that lease",
            parameter="claim this many of them or none",
        ),
        "wait_seconds": WAIT.but("only 0: claiming any of several does not wait", numbers=(0, 0)),
    },
    "acquire-all": {
        **CLAIM,
        "wait_seconds": WAIT.but("wait in all lines at once, holding nothing", default="0"),
        "ticket": TICKET.but("as with `acquire`"),
        "replaces": REPLACES.but("as with `acquire`"),
        "names": NAMES.but("all of them or none", lengths=(1, limits.ALL_NAMES_MAX)),
    },
    "leave": {
        "ticket": TICKET.but("the place to give up", required=True),
    },
    "withdraw": {
        "request_key": REQUEST_KEY.but("the key of the claim: its late copies are refused from now on"),
        "ticket": TICKET.but(
            "the place that the claim was given, if another claim's ticket was sent with it; alone, that place "
            "ends and nothing else",
        ),
        "names": NAMES.but("the jobs of the claim, one or several, in any order", lengths=(1, limits.NAMES_MAX)),
    },
    "renew": {
        **PROOF,
        "ttl_seconds": TTL.but("a new TTL, from now. It may be shorter", default="the one it has"),
        "ttl_ms": TTL_MS,
        "metadata": METADATA.but("replaces what there is"),
        "checkpoint": CHECKPOINT,
        "mode": Field(
            TEXT,
            "shared: share an exclusive claim from now on; who waits to share it gets it at once. A shared one "
            "never becomes exclusive",
            choices=MODES,
            default="the one it has",
            flag="share the job from now on: who waits to share it gets it at once",
        ),
        "effect_key": Field(
            TEXT,
            "names a step that changes something outside: notes that it begins, or how it ended",
            bytes=limits.EFFECT_KEY_BYTES_MAX,
            not_empty=True,
            seen_by=EVERYBODY,
            tool="Names a step.",
        ),
        "effect_status": Field(
            TEXT,
            "begun, before the step; then done, failed, or in_doubt if nobody can know",
            choices=EFFECT_STATES,
            tool="begun, done, failed or in_doubt.",
        ),
        "effect_id": Field(
            ID,
            "a random id of this try: the same when it begins and when it ends. An end without it is that of the try "
            "under this lease",
            seen_by=NOBODY,
        ),
        "effect_result": Field(
            TEXT,
            "with done: what the step gave, such as an address or an id",
            bytes=limits.EFFECT_RESULT_BYTES_MAX,
            seen_by=EVERYBODY,
            tool="With done: what it gave.",
        ),
        "effect_reason": REASON.but("with failed or in_doubt: why; everybody who may see the job sees it"),
    },
    "release": {
        **PROOF,
        "done": Field(
            FLAG, "the work is finished: later claims are told so for a day, or `done_seconds`", default="false"
        ),
        "done_seconds": Field(
            WHOLE,
            "how long the job is marked as done",
            numbers=seconds(0, limits.DONE_MS_MAX),
            default="0, with `done` 86,400",
            flag="mark the job as done for this long (default 1d)",
            parameter="{}; True is a day",
            tool="With done=true: {}.",
        ),
        "result": Field(
            TEXT,
            "a short text for later claims while the job is marked as done, such as a link to the pull request",
            bytes=limits.RESULT_BYTES_MAX,
            seen_by=EVERYBODY,
            tool=f"With done=true: {{}}. {limits.RESULT_BYTES_MAX} bytes.",
        ),
        "checkpoint": CHECKPOINT,
        "failed": Field(FLAG, "the work failed; this counts as an attempt", default="false"),
        "reason": REASON.but("with a failure: why; everybody who may see the job sees it"),
        "retry_after_seconds": Field(
            WHOLE,
            "with a failure: nobody gets the job for this long, a week at most",
            numbers=seconds(0, limits.RETRY_MS_MAX),
            default="0",
        ),
        "uncounted": Field(
            FLAG,
            "neither failed nor done, as after an interruption: the count of attempts stays",
            default="false",
        ),
    },
    "transfer": {
        **PROOF,
        "to_owner": Field(
            TEXT,
            "who gets the job, as shown to others. Without `to_session` it stays under the same token",
            chars=limits.OWNER_CHARS_MAX,
            seen_by=EVERYBODY,
        ),
        "to_session": Field(
            ID,
            "the open session that gets the job, of this namespace; may be of another token. It needs no lease id",
            seen_by=NOBODY,
        ),
        "fresh_lease_id": FRESH_ID.but(
            "a random UUID of yours, from which the server makes the new owner's lease id. After a lost reply, "
            "send the same: you get the same answer",
            default="one that the server makes",
        ),
        "ttl_seconds": TTL.but("a new TTL", default="the one it has"),
        "ttl_ms": TTL_MS,
        "checkpoint": CHECKPOINT.but("for the new owner", default="the one it has"),
    },
    "break": {
        "reason": REASON.but("the old owner is told, history keeps it", not_empty=True, default=NEEDED),
        "fencing_token": Field(
            NUMBER,
            "take it only from the owner with this fencing token, and from nobody if that hold has ended",
            numbers=(1, 2 * limits.TOKEN_FLOOR_MAX),
            default="all owners lose it",
            flag="{}; `dibs owner` shows the tokens of a job with several owners",
        ),
    },
    "free": {},
    "close": {
        "until": Field(
            TEXT,
            "when it ends by the store's clock, such as 2026-11-17T18:00:00Z, in UTC unless it has an offset; or",
        ),
        "for_seconds": Field(
            WHOLE, "for how long; one of the two is needed", numbers=seconds(1_000, limits.CLOSURE_MS_MAX)
        ),
        "reason": REASON.but(
            "shown to everybody who asks for the job",
            chars=limits.CLOSURE_REASON_CHARS_MAX,
            not_empty=True,
            default=NEEDED,
        ),
    },
    "open": {},
    "acl": {
        "acl": ACL.but(
            "`user:NAME` for a token's name, `token:TOKEN` for a token itself, kept as its hash. Null, or no "
            "entries, removes the list",
            required=True,
            nullable=True,
            lengths=(0, limits.ACL_ENTRIES_MAX),
        ),
    },
    "pool": {
        "slots": Field(
            WHOLE,
            "how many slots the pool has; 0 pauses it. Null: the job is no pool any more",
            required=True,
            nullable=True,
            numbers=(0, limits.SLOTS_MAX),
        ),
    },
    "next": {
        "at_least": Field(WHOLE, "the number is this one or a higher one", numbers=(0, limits.NUMBER_MAX), default="0"),
        "number": Field(
            WHOLE,
            "just this number; refused if somebody has it",
            numbers=(1, limits.NUMBER_MAX),
            default="the next one",
        ),
        "owner": OWNER.but("whose it is", default="the token's name"),
        "request_key": REQUEST_KEY.but("names the ask: a repeat with the same key gets the same number"),
    },
    "give-back": {
        "number": Field(WHOLE, "the number to free", required=True, numbers=(1, limits.NUMBER_MAX)),
        "request_key": REQUEST_KEY.but("names the give-back: a late copy with the same key frees nothing"),
    },
    "inspect": {},
    "session-open": {
        "ttl_seconds": TTL.but(
            "how long the session lives without a keepalive",
            numbers=seconds(limits.SESSION_TTL_MS_MIN, limits.SESSION_TTL_MS_MAX),
            is_clamped=True,
            default="60. A value out of bounds is set to the nearest bound",
        ),
        "ttl_ms": TTL_MS.but(
            "the same, instead of `ttl_seconds`. A value out of bounds is refused (`invalid_ttl`)",
            numbers=(limits.SESSION_OWN_TTL_MS_MIN, limits.SESSION_OWN_TTL_MS_MAX),
            flag="how long the session lives without a renewal, 1s to 1d (default 60s)",
        ),
        "owner": OWNER.but("who", default="the token's name"),
        "metadata": METADATA.but("shown to those who may see the session"),
        "process": PROCESS,
        "parent_id": Field(
            ID,
            "a session of yours whose part this one is, as a subagent's is of its agent's. Claims of a session "
            "and of its parent do not exclude each other; those of two with the same parent do",
            seen_by=NOBODY,
        ),
        "fresh_session_id": FRESH_ID.but("as `fresh_lease_id` of a transfer", default="one that the server makes"),
    },
    "session-keep": {
        "ttl_ms": TTL_MS.but(
            "from now on the session lives this long without a keepalive",
            numbers=(limits.SESSION_OWN_TTL_MS_MIN, limits.SESSION_OWN_TTL_MS_MAX),
            default="as it is",
        ),
        "process": PROCESS.but(
            "the session's process from now on, as in `POST /sessions`; empty: none", default="as it is"
        ),
        "metadata": METADATA.but("what is noted of the session from now on; empty: nothing", default="as it is"),
        "active": Field(
            FLAG,
            "the worker itself asks, not a timer. Refusals show when that was, and the answer has `wanted`",
            default="false",
        ),
    },
    "session-end": {},
    "session-show": {},
    "session-break": {
        "reason": REASON.but("history keeps it, and the late worker is told", not_empty=True, default=NEEDED),
    },
    "token-create": {
        "name": Field(
            TEXT,
            "the principal, in letters, digits and `. _ @ + -`. Several tokens may have one name",
            required=True,
            pattern=PRINCIPAL_PATTERN,
        ),
        "role": Field(TEXT, "what it may do", choices=ROLE_CHOICES),
        "namespace": Field(TEXT, "the only namespace that it may use", pattern=NAMESPACE_PATTERN, default="any"),
        "expires_seconds": EXPIRES.but("how long it is valid", default="never"),
        "sha256": Field(
            TEXT,
            "64 hexadecimal digits: the hash of an existing token. Then no token is made, and the reply has none",
            pattern=DIGEST_PATTERN,
        ),
        **LIMITS,
    },
    "token-rotate": {
        "grace_seconds": Field(
            WHOLE,
            "how long the old one stays valid; 0 ends it at once",
            numbers=seconds(0, limits.ROTATION_GRACE_MS_MAX),
            default="600",
        ),
        "expires_seconds": EXPIRES.but("how long the new one is valid", default="the lifetime of the old one"),
    },
    "token-limit": {
        **LIMITS,
    },
    "webhook-create": {
        "url": Field(
            TEXT,
            "where deliveries go: https, without a user name",
            required=True,
            chars=limits.WEBHOOK_URL_CHARS_MAX,
        ),
        "secret": Field(
            TEXT,
            "signs each delivery. It is not shown again",
            chars=limits.WEBHOOK_SECRET_CHARS_MAX,
            default="deliveries are not signed",
        ),
        "events": Field(
            LIST,
            "`*`, OctoStore's `acquired`, `renewed`, `released`, `expired`, or kinds of events as `GET /events` "
            "says them",
            default="`*`",
        ),
        "lock_pattern": Field(TEXT, "a job's name, the beginning of names with `*` after it, or `*`", default="`*`"),
    },
    "webhook-replay": {
        "after": Field(
            NUMBER, "the number of an event: all events after it are sent again", default="only dead letters"
        ),
    },
    "campaign": {
        "candidate_id": Field(
            TEXT,
            "who, as shown to everybody: letters, digits and `- _ . : @`. Proves nothing",
            required=True,
            chars=limits.CANDIDATE_CHARS_MAX,
            pattern=CANDIDATE_PATTERN,
            seen_by=EVERYBODY,
        ),
        "ttl_seconds": TTL.but("how long the term lasts without a heartbeat. Without a token 5 to 300", default="30"),
        "metadata": METADATA,
        "request_key": REQUEST_KEY.but("a value that is new for each campaign: repeating it gives the same term"),
    },
    "election-renew": {
        "leader_token": LEADER_TOKEN,
        "ttl_seconds": TTL.but("a new TTL, from now. It may be shorter", default="the one it has; without a token 30"),
    },
    "resign": {
        "leader_token": LEADER_TOKEN,
    },
    "login": {
        "token": Field(
            TEXT, "a token that the server accepts", required=True, chars=limits.TOKEN_CHARS_MAX, seen_by=NOBODY
        ),
    },
}


def flag_text(verb: str, name: str) -> str:
    """The help of the flag that gives a field."""
    return _said(REQUESTS[verb][name], "flag")


def parameter_texts(verb: str) -> dict[str, str]:
    """The SDK's parameters: durations have no unit in their name there, and `shared` is a mode."""
    found = {}
    for name, field in REQUESTS[verb].items():
        if f"{name}_seconds" not in REQUESTS[verb]:  # `done` takes a time there
            given = "shared" if name == "mode" else name.removesuffix("_seconds")
            found[given] = _said(field, "parameter")
    return found


def tool_text(verb: str, name: str) -> str:
    """The description of an argument of an MCP tool."""
    text = _said(REQUESTS[verb][name], "tool")
    return text[0].upper() + text[1:]


def _said(field: Field, surface: str) -> str:
    words = {"flag": field.flag, "parameter": field.parameter, "tool": field.tool}[surface]
    return words.format(field.meaning)
