"""The fields of all requests, each declared once: name, kind, bounds, presence, meaning, and who sees it.

Everything else that is said about a field comes from here. `fields.py`, the small table that every command reads when
it starts, is written from it (`scripts/pages/fields.py`), and so are the tables of docs/reference/http.md. JSON schemas
and the OpenAPI document, the help of flags, the SDK's parameters and the arguments of MCP tools take their sentences
from here. No command imports this file unless it shows them. The fields of answers are in `answer_fields.py`.
"""

from __future__ import annotations

import re
from typing import Any

from dibs.base.record import Record
from dibs.base.tables import sections
from dibs.core import limits
from dibs.core.identity import AGENT, ROLES

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
ROLE_CHOICES = (AGENT, *[role for role in ROLES if role != AGENT])
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


# Of each request its fields: name, kind, bounds and meaning; below a field a default of several words, and the words of
# surfaces that need others. Bounds are numbers, or names of `core/limits.py`; of `seconds` they are in milliseconds.
# "= other" is a field of the section `_` that means something else here: it has the same bounds, and is seen by the
# same. Without a meaning it is that field as it is. "+" takes over another section.
_TABLE = """
_
    ttl whole seconds=TTL_MS_MIN..TTL_MS_MAX: how long the claim lasts without a heartbeat
        default: 60, or inside a session as long as that lives
        flag: {}: 90, 30s, 15m, 2h (default 60s; with --actor 15m; in a session, as long as the session)
        parameter: {}: seconds, text such as "2m" or a timedelta; 60 by default, from a second to a day
        tool: How long the job stays yours without a call that gives its lease_id.
    ttl_ms whole numbers=TTL_MS_MIN..TTL_MS_MAX: the same in milliseconds, instead of `ttl_seconds`
    owner text chars=OWNER_CHARS_MAX seen=EVERYBODY: who you are, as shown to others; it proves nothing
        default: the session's, else the token's name
        flag: the name that others see, if neither --actor's nor user@host will do; it proves nothing
    process text chars=OWNER_CHARS_MAX seen=NOBODY: identifies the session's process for others on the same machine; the
        command line fills it in
    metadata text chars=METADATA_CHARS_MAX plain seen=EVERYBODY: a short text shown to everybody, such as repo=acme/app
        tool: A short public note, at most {METADATA_CHARS_MAX} characters. Never a secret.
    checkpoint text bytes=CHECKPOINT_BYTES_MAX seen=EVERYBODY: how far the work has come, for the next owner
        flag: {}; - reads it from stdin
        tool: How far you got, for the next owner; at most {CHECKPOINT_BYTES_MAX} bytes. Never a secret.
    request_key text chars=REQUEST_KEY_CHARS_MAX not_empty seen=NOBODY: a value that is new for each claim: repeating
        the claim with it gives the same lease
        flag: repeating a claim with the same key gives the same lease (default: a new key every time)
    lease_id id seen=CALLER: the lease id that the claim gave: it proves that the job is yours
        flag: for a claim without --actor and --session: the lease id that it printed
    session_id id: the session that the claim belongs to
        seen: {CALLER}. Lists of sessions show the ids of others cut short
        flag: for a worker with a session of its own: its id, which `dibs session run` sets for the commands in it
    ticket text seen=CALLER: the place in line that an earlier `queued` gave
        flag: continue from the place in line that --keep-place printed
    wait_seconds seconds seconds=0..WAIT_MS_MAX default=0: wait in line for up to this long
        parameter: how long to wait in line: not at all by default, math.inf without end
    replaces text bytes=NAME_BYTES_MAX not_empty seen=NOBODY: only the newest of this group waits in line: an older
        place of the same group leaves it as `superseded`
        flag: with --wait: only the newest of this group waits; an older one leaves the line with exit code 5
        parameter: with `wait`: a group of which only the newest waits in line; older ones raise JobSuperseded
    reason text chars=REASON_CHARS_MAX seen=EVERYBODY
    names list!
    acl object
        seen: {EVERYBODY}; an entry `token:` as `token:[redacted]`
    fresh_id id seen=CALLER
    leader_token text! seen=CALLER: the proof
    expires_seconds whole seconds=1000..CREDENTIAL_LIFE_MS_MAX
_proof
    lease_id =
    session_id = session_id: or this: the session of the claim
_limits
    max_held whole numbers=0..PRINCIPAL_LIMIT_MAX: how many jobs its principal may hold, places in line counted; 0 is no
        limit
        default: 0 at first
    max_waiting whole numbers=0..PRINCIPAL_LIMIT_MAX: how many places in line
        default: 0 at first
    max_sessions whole numbers=0..PRINCIPAL_LIMIT_MAX: how many open sessions
        default: 0 at first
    rate_per_second whole numbers=0..PRINCIPAL_LIMIT_MAX: how many requests a second, at each server
        default: 0 at first
    max_hold_seconds whole seconds=0..HOLD_MS_MAX: how long each claim may last, whatever is renewed
        default: 0 at first
_claim
    ttl_seconds = ttl
    ttl_ms =
    owner =
    metadata =
    request_key =
    session_id =
    ephemeral flag: false: the lease outlives its session, by its own TTL. true needs a `session_id`
        default: true inside a session
    lock_delay_seconds whole seconds=0..LOCK_DELAY_MS_MAX default=0: if the claim is lost, not released, nobody gets the
        job for this long, a minute at most
    mode text choices=MODES seen=EVERYBODY: shared: coexists with other shared claims, excludes exclusive ones
    slots whole numbers=1..SLOTS_MAX seen=EVERYBODY: up to so many owners at once; all must give the same number, and
        none may be shared. Of a pool it may be left out
        default: the pool's, else 1
    units whole numbers=1..SLOTS_MAX plain seen=EVERYBODY default=1: how many of the slots to take
    max_attempts whole numbers=0..ATTEMPTS_MAX plain: after so many failures and losses in a row, park the job until
        somebody frees it
        default: 0 for no limit
    again flag plain default=false: claim the job even if it is marked as done
    max_hold_seconds whole seconds=0..HOLD_MS_MAX: the claim ends after this long, whatever is renewed
        default: the token's or the server's limit, which is also the most
acquire
    + _claim
    wait_seconds =
    ticket =
    replaces =
    lease_id = lease_id: proves that the caller already holds the job: gives the same lease, or `lease_not_current`
    acl = acl lengths=1..ACL_ENTRIES_MAX: who may claim the job, see [below](#put-locksnameacl)
acquire-any
    + _claim
    names = names lengths=1..NAMES_MAX: tried in this order
    count whole numbers=1..NAMES_MAX: claim so many of them or none; the answer has `leases`
        default: one, and the answer is that lease
        parameter: claim so many of them or none
    wait_seconds = wait_seconds numbers=0..0: only 0: claiming any of several does not wait
acquire-all
    + _claim
    wait_seconds = wait_seconds default=0: wait in all lines at once, holding nothing
    ticket = ticket: as with `acquire`
    replaces = replaces: as with `acquire`
    names = names lengths=1..ALL_NAMES_MAX: all of them or none
leave
    ticket = ticket kind=text!: the place to give up
withdraw
    request_key = request_key: the key of the claim: its late copies are refused from now on
    ticket = ticket: the place that the claim was given, if another claim's ticket was sent with it; alone, that place
        ends and nothing else
    names = names lengths=1..NAMES_MAX: the jobs of the claim, one or several, in any order
renew
    + _proof
    ttl_seconds = ttl: a new TTL, from now. It may be shorter
        default: the one it has
    ttl_ms =
    metadata = metadata: replaces what there is
    checkpoint =
    mode text choices=MODES: shared: share an exclusive claim from now on; who waits to share it gets it at once. A
        shared one never becomes exclusive
        default: the one it has
        flag: share the job from now on: who waits to share it gets it at once
release
    + _proof
    done flag default=false: the work is finished: later claims are told so for a day, or `done_seconds`
    done_seconds whole seconds=0..DONE_MS_MAX: how long the job is marked as done
        default: 0, with `done` 86,400
        flag: mark the job as done for this long (default 1d)
        parameter: {}; True is a day
        tool: With done=true: {}.
    result text bytes=RESULT_BYTES_MAX seen=EVERYBODY: a short text for later claims while the job is marked as done,
        such as a link to the pull request
        tool: With done=true: {}. {RESULT_BYTES_MAX} bytes.
    checkpoint =
    failed flag default=false: the work failed; this counts as an attempt
    reason = reason: with a failure: why; everybody who may see the job sees it
    retry_after_seconds whole seconds=0..RETRY_MS_MAX default=0: with a failure: nobody gets the job for this long, a
        week at most
    uncounted flag default=false: neither failed nor done, as after an interruption: the count of attempts stays
transfer
    + _proof
    to_owner text chars=OWNER_CHARS_MAX seen=EVERYBODY: who gets the job, as shown to others. Without `to_session` it
        stays under the same token
    to_session id seen=NOBODY: the open session that gets the job, of this namespace; may be of another token. It needs
        no lease id
    fresh_lease_id = fresh_id: a random UUID of yours, from which the server makes the new owner's lease id. After a
        lost reply, send the same: you get the same answer
        default: one that the server makes
    ttl_seconds = ttl: a new TTL
        default: the one it has
    ttl_ms =
    checkpoint = checkpoint: for the new owner
        default: the one it has
break
    reason = reason not_empty default=needed: the old owner is told, history keeps it
free
close
    until text: when it ends by the store's clock, such as 2026-11-17T18:00:00Z, in UTC unless it has an offset; or
    for_seconds whole seconds=1000..CLOSURE_MS_MAX: for how long; one of the two is needed
    reason = reason chars=CLOSURE_REASON_CHARS_MAX not_empty default=needed: everybody is told who asks for the job
open
acl
    acl = acl kind=object? lengths=0..ACL_ENTRIES_MAX: `user:NAME` for a token's name, `token:TOKEN` for a token itself,
        kept as its hash. Null, or no entries, removes the list
pool
    slots whole? numbers=0..SLOTS_MAX: how many slots the pool has; 0 pauses it. Null: the job is no pool any more
inspect
session-open
    ttl_seconds = ttl seconds=SESSION_TTL_MS_MIN..SESSION_TTL_MS_MAX clamped: how long the session lives without a
        keepalive
        default: 60. A value out of bounds is set to the nearest bound
    ttl_ms = ttl_ms numbers=SESSION_OWN_TTL_MS_MIN..SESSION_OWN_TTL_MS_MAX: the same, instead of `ttl_seconds`. A value
        out of bounds is refused (`invalid_ttl`)
        flag: how long the session lives without a renewal, 1s to 1d (default 60s)
    owner = owner: who
        default: the token's name
    metadata = metadata: shown to those who may see the session
    process =
    parent_id id seen=NOBODY: a session of yours whose part this one is, as a subagent's is of its agent's. Claims of a
        session and of its parent do not exclude each other; those of two with the same parent do
    fresh_session_id = fresh_id: as `fresh_lease_id` of a transfer
        default: one that the server makes
session-keep
    ttl_ms = ttl_ms numbers=SESSION_OWN_TTL_MS_MIN..SESSION_OWN_TTL_MS_MAX: from now on the session lives this long
        without a keepalive
        default: as it is
    process = process: the session's process from now on, as in `POST /sessions`; empty: none
        default: as it is
    active flag default=false: the worker itself asks, not a timer. Refusals show when that was, and the answer has
        `wanted`
session-end
session-show
session-break
    reason = reason not_empty default=needed: history keeps it, and the late worker is told
token-create
    name text! pattern=PRINCIPAL_PATTERN: the principal, in letters, digits and `. _ @ + -`. Several tokens may have one
        name
    role text choices=ROLE_CHOICES: what it may do
    namespace text pattern=NAMESPACE_PATTERN default=any: the only namespace that it may use
    expires_seconds = expires_seconds default=never: how long it is valid
    sha256 text pattern=DIGEST_PATTERN: 64 hexadecimal digits: the hash of an existing token. Then no token is made, and
        the reply has none
    + _limits
token-rotate
    grace_seconds whole seconds=0..ROTATION_GRACE_MS_MAX default=600: how long the old one stays valid; 0 ends it at
        once
    expires_seconds = expires_seconds: how long the new one is valid
        default: the lifetime of the old one
token-limit
    + _limits
webhook-create
    url text! chars=WEBHOOK_URL_CHARS_MAX: where deliveries go: https, without a user name
    secret text chars=WEBHOOK_SECRET_CHARS_MAX: signs each delivery. It is not shown again
        default: deliveries are not signed
    events list default=`*`: `*`, OctoStore's `acquired`, `renewed`, `released`, `expired`, or kinds of events as `GET
        /events` says them
    lock_pattern text default=`*`: a job's name, the beginning of names with `*` after it, or `*`
webhook-replay
    after number: the number of an event: all events after it are sent again
        default: only dead letters
campaign
    candidate_id text! chars=CANDIDATE_CHARS_MAX pattern=CANDIDATE_PATTERN seen=EVERYBODY: who, as shown to everybody:
        letters, digits and `- _ . : @`. Proves nothing
    ttl_seconds = ttl default=30: how long the term lasts without a heartbeat. Without a token 5 to 300
    metadata =
    request_key = request_key: a value that is new for each campaign: repeating it gives the same term
election-renew
    leader_token =
    ttl_seconds = ttl: a new TTL, from now. It may be shorter
        default: the one it has; without a token 30
resign
    leader_token =
login
    token text! chars=TOKEN_CHARS_MAX seen=NOBODY: a token that the server accepts
"""
_MARKS = {"plain": "is_plain", "clamped": "is_clamped", "not_empty": "not_empty"}
_WORDS = {"default": "default", "seen": "seen_by", "flag": "flag", "parameter": "parameter", "tool": "tool"}
_FIELD = re.compile(r"(?P<name>\S+)(?P<same> =)?(?P<terms>(?: [^\s:]+)*)(?:: (?P<meaning>.*))?")
_SAID_ELSEWHERE = {"default": "", "flag": "{}", "parameter": "{}", "tool": "{}."}


def _limit(text: str) -> int:
    return int(text) if text.isdecimal() else int(getattr(limits, text))


def _term(word: str) -> tuple[str, Any]:
    """A kind, bound or mark that stands before a meaning."""
    key, _, value = word.partition("=")
    if value and key in ("numbers", "lengths", "seconds"):
        least, most = (_limit(each) for each in value.split(".."))
        return ("numbers", (least // 1000, most // 1000)) if key == "seconds" else (key, (least, most))
    if key in ("chars", "bytes"):
        return key, _limit(value)
    if key in ("pattern", "choices", "seen"):
        return _WORDS.get(key, key), globals()[value]
    if key == "default":
        return key, value
    return (_MARKS[key], True) if key in _MARKS else ("kind", value or key)


def _requests() -> dict[str, dict[str, Field]]:
    found: dict[str, dict[str, Field]] = {}
    for section, lines in sections(_TABLE, _WORDS):
        fields = found[section] = {}
        for line, *below in lines:
            parts = _FIELD.fullmatch(line)
            assert parts is not None, line
            name, meaning, words = parts["name"], parts["meaning"], parts["terms"].split()
            if name == "+":
                fields.update(found[words[0]])
                continue
            field = found["_"][words.pop(0) if words else name] if parts["same"] else None
            given = {"meaning": meaning or "", **(_SAID_ELSEWHERE if field else {}), **dict(map(_term, words))}
            for each in below:
                word, _, text = each.partition(": ")
                given[_WORDS[word]] = text.format(**globals()) if word == "seen" else text
            if field is None:
                fields[name] = Field(**given)
            else:
                fields[name] = field if meaning is None else field.replace(**given)
    return found


_FOUND = _requests()
CLAIM = _FOUND["_claim"]  # what all claims have
REQUESTS = {verb: fields for verb, fields in _FOUND.items() if verb[0] != "_"}


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
    words: str = getattr(field, surface)
    return words.format(field.meaning, **vars(limits))
