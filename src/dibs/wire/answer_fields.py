"""The fields of all answers, each declared once: kind, presence and meaning.

JSON schemas, the tables of docs/reference/http.md and the kinds in `fields.py` are made from this, as from the fields
of requests in `request_fields.py`. A test compares every kind of answer with it, and the classes of the Python SDK,
which are written out because type checkers must see them.
"""

from __future__ import annotations

from typing import NamedTuple


class AnswerField(NamedTuple):
    kind: str
    meaning: str
    null: bool = False  # it may be null
    optional: bool = False  # it may be left out


Answer = dict[str, AnswerField]


def text(meaning: str, *, null: bool = False, optional: bool = False) -> AnswerField:
    return AnswerField("text", meaning, null, optional)


def number(meaning: str, *, null: bool = False, optional: bool = False) -> AnswerField:
    return AnswerField("number", meaning, null, optional)


def flag(meaning: str, *, null: bool = False, optional: bool = False) -> AnswerField:
    return AnswerField("flag", meaning, null, optional)


def part(meaning: str, *, null: bool = False, optional: bool = False) -> AnswerField:
    """A document inside the document."""
    return AnswerField("object", meaning, null, optional)


def parts(meaning: str, *, null: bool = False, optional: bool = False) -> AnswerField:
    """A list of documents."""
    return AnswerField("list", meaning, null, optional)


def texts(meaning: str, *, null: bool = False, optional: bool = False) -> AnswerField:
    return AnswerField("texts", meaning, null, optional)


def numbers(meaning: str, *, null: bool = False, optional: bool = False) -> AnswerField:
    return AnswerField("numbers", meaning, null, optional)


def with_optional(answer: Answer, *names: str) -> Answer:
    """The same fields; these may be left out."""
    return {name: field._replace(optional=True) if name in names else field for name, field in answer.items()}


# Parts of answers: a lease as its owner sees it, a hold as everybody may see it, and so on.
LEASE: Answer = {
    "name": text("the job"),
    "lease_id": text("the proof. Keep it to yourself"),
    "fencing_token": number("a number that rises with every lease on this job"),
    "owner": text("as given"),
    "expires_at": text("when the lease ends without a heartbeat"),
    "remaining_ms": number("the same, from now"),
    "renew_after_ms": number("half of it: heartbeat by then"),
    "metadata": text("as given; null without, or if that of other owners leaves no room", null=True),
    "attempt": number("1, and 1 more for each owner that failed or lost the job since the last clean release"),
    "ends_at": text("with a ceiling (`max_hold_seconds`): when the lease ends, whatever is renewed", optional=True),
    "ends_in_ms": number("the same, from now", optional=True),
    "slot": number("of a job with slots: the number of its slot, from 0. The lowest that was free", optional=True),
    "slot_numbers": numbers("the numbers of all its slots, one for each unit", optional=True),
}
HOLD: Answer = {
    "holder_id": text("a one-way name for credential and owner, shaped like a UUID", null=True, optional=True),
    "owner": text("who", null=True, optional=True),
    "fencing_token": number("its token", optional=True),
    "mode": text("`exclusive` or `shared`", optional=True),
    "since": text("since when", optional=True),
    "held_ms": number("how long already", optional=True),
    "last_heartbeat": text("the owner's last sign of life: a heartbeat of the lease or of its session", optional=True),
    "silent_ms": number("how long ago that was", optional=True),
    "last_active": text(
        "when the worker itself last did something, where its session says so (`active`)", optional=True
    ),
    "idle_ms": number("how long ago that was", optional=True),
    "expires_at": text("when it ends without a heartbeat", null=True, optional=True),
    "remaining_ms": number("when the hold ends, from now", null=True, optional=True),
    "metadata": text("its metadata", null=True, optional=True),
    "checkpoint": text("how far it got", null=True, optional=True),
    "attempt": number("its attempt", optional=True),
    "ends_at": text("with a ceiling: when it ends, whatever is renewed", optional=True),
    "ends_in_ms": number("the same, from now", optional=True),
    "slot": number("of a job with slots: its slot, from 0", optional=True),
    "slot_numbers": numbers("all of its slots, one for each unit", optional=True),
}
IN_THE_WAY: Answer = {
    "conflict": text("in a tree, or of several jobs: the name of the claim in the way, if another", optional=True),
    "holders": parts(
        "if several are in the way: of the 100 that end first each with `name`, `owner` and `fencing_token`",
        optional=True,
    ),
    "holder_count": number("if more are in the way than `holders` names: how many", optional=True),
}
TOKEN: Answer = {
    "token": text("the token, shown only here", optional=True),
    "id": text("the beginning of its hash: identifies it, and proves nothing"),
    "name": text("its principal"),
    "role": text("what it may do"),
    "namespace": text("the only namespace it may use; null: any", null=True),
    "created_at": text("when it was made"),
    "created_by": text("the principal that made it"),
    "last_used_at": text("when it was last used, to about two minutes; null: never, or just now", null=True),
    "expires_at": text("when it ends by itself; null: never", null=True),
    "revoked_at": text("when it was revoked; null: it was not", null=True),
    "valid": flag("whether it is accepted now"),
    "max_held": number("its limits; 0 is none"),
    "max_waiting": number("the same"),
    "max_sessions": number("the same"),
    "rate_per_second": number("the same"),
    "max_hold_seconds": number("the same"),
}
CLOSURE: Answer = {
    "name": text("what is closed: a job; if it ends in `/`, also all below it"),
    "reason": text("why"),
    "by": text("who closed it"),
    "since": text("since when"),
    "until": text("until when"),
    "remaining_ms": number("the same, from now"),
}

# By name.
ANSWERS: dict[str, Answer] = {
    "acquired": {
        "status": text("`acquired`"),
        # A claim-all has the others of each job in `leases`.
        **with_optional(LEASE, "fencing_token", "expires_at", "metadata", "attempt"),
        "name": text("the job; a claim-all names it in `leases`", optional=True),
        "held_before": flag("true: an earlier claim got the lease, not this one or one that it repeats", optional=True),
        "previous": part("the last owner, if there was one: see [previous](#previous)", optional=True),
        "skipped": parts(
            "of a claim-any: the names before this one, each with `name`, `status` and the reason", optional=True
        ),
        "leases": parts(
            "of several jobs: one such document for each. `lease_id`, `owner`, `remaining_ms` and "
            "`renew_after_ms` beside it apply to all",
            optional=True,
        ),
    },
    "held": {
        "status": text("`held`"),
        "name": text("the job", optional=True),
        **HOLD,
        "holder_id": text(
            "a one-way name for credential and owner, shaped like a UUID; of the first in line, if nobody holds it",
            null=True,
            optional=True,
        ),
        "expires_at": text(
            "when it ends without a heartbeat; of the first in line: when it loses its place unless it asks again",
            null=True,
            optional=True,
        ),
        "waiting": number("how many are in line", optional=True),
        "retry_after_ms": number("when asking again makes sense"),
        "reserved_for": part("if nobody holds it: the first in line, with `owner` and `since`", optional=True),
        "paused": flag("true: its pool has no slots until an operator gives it some", optional=True),
        **IN_THE_WAY,
    },
    "refused": {
        "status": text(
            "`done` if all are; `parked` if none comes free by itself, of claim-all if one is parked; else "
            "`held`: waiting may help",
        ),
        "refused": parts("an answer for each name. An error has its `code` as `status` there"),
        "retry_after_ms": number("when asking again makes sense; not with `parked`", optional=True),
        "free": number("of a claim-any with `count`: how many could be claimed: too few", optional=True),
        "rest": parts(
            "of a repeat: what its request key still has. If you have read no earlier answer about it, withdraw the "
            "claim and ask again with a new key",
            optional=True,
        ),
    },
    "queued": {
        "status": text("`queued`"),
        "name": text("the job"),
        "ticket": text("the place. Ask again with the last one you were given, within 15 s"),
        "position": number("1: next"),
        **HOLD,
        **IN_THE_WAY,
        "paused": flag("true: its pool has no slots until an operator gives it some", optional=True),
        "retry_after_ms": number("when to ask again: 5 s at most"),
        "closed": part("if the job is closed: see [closure](#closure). The place is kept", optional=True),
    },
    "done": {
        "status": text("`done`"),
        "name": text("the job"),
        "owner": text("who did it"),
        "done_at": text("when"),
        "done_ms_ago": number("how long ago"),
        "until": text("until when it counts as done"),
        "retry_after_ms": number("the same, from now"),
        "fencing_token": number("the token it was done with"),
        "result": text("its result, or null", null=True),
        "done": part("the same, as `GET /locks/{name}` says it"),
    },
    "delayed": {
        "status": text("`delayed`"),
        "name": text("the job"),
        "available_at": text("until when"),
        "lock_delay_seconds": number("the whole time of rest"),
        "retry_after_ms": number("the rest of that time"),
        "previous": part("the hold that ended before the rest", optional=True),
    },
    "closed": {
        "status": text("`closed`"),
        "name": text("the job"),
        "closed": part("see [closure](#closure)"),
        "retry_after_ms": number("the time until the end"),
    },
    "closure": CLOSURE,
    "parked": {
        "status": text("`parked`"),
        "name": text("the job"),
        "failures": number("how many owners failed at it or lost it"),
        "previous": part("the last of them", optional=True),
    },
    "superseded": {
        "status": text("`superseded`"),
        "name": text("the job"),
        "group": text("which group"),
        "by": text("who waits instead, if it still waits", optional=True),
    },
    "previous": {
        "owner": text("who had the job before"),
        "how": text("`released`, `failed`, `expired`, `broken` or `transferred`"),
        "at": text("when that was"),
        "fencing_token": number("its token"),
        "checkpoint": text("how far it got, or null", null=True),
        "attempt": number("which attempt that was"),
        "by": text("who broke it, or to whom it was handed", optional=True),
        "reason": text("why it failed or was broken", optional=True),
        "metadata": text("its metadata, if it had any", optional=True),
        "effects": parts(
            "in the answer to a claim: the steps that it and owners before it noted, see [effect](#effect)",
            optional=True,
        ),
    },
    "leave": {
        "name": text("the job"),
        "left": flag("whether the caller was in the line. Leaving twice is fine"),
    },
    "withdraw": {
        "status": text("`withdrawn`"),
        "left": flag("whether a place in line was given up"),
        "released": texts("the jobs that the claim had, and has no more"),
        "kept": texts(
            "those that stay, because others may rely on them: another claim of the session got them, too, "
            "or a key can ask for them",
        ),
    },
    "renew": {
        **LEASE,
        "checkpoint": text("what there is now", null=True),
        "waiting": number("how many wait for the job"),
        "new_waiters": number("how many of them no earlier answer to a heartbeat has reported"),
        "effect": part("with `effect_key`: what is known of that step, see [effect](#effect)", optional=True),
    },
    "effect": {
        "key": text("which step"),
        "status": text(
            "`new`: it was not begun before; `done`; `failed`; `in_doubt`: somebody began it and never said how it "
            "ended; `running`: its owner has begun it. The answer to `begun` says how the step stood before"
        ),
        "owner": text("whose try that was; in doubt, the first one that is", optional=True),
        "fencing_token": number("its token", optional=True),
        "at": text("when it ended, or began", optional=True),
        "result": text("of `done`: what it gave", optional=True),
        "reason": text("why the last try failed, or is in doubt", optional=True),
    },
    "failed": {
        "status": text("`failed`"),
        "name": text("the job"),
        "failures": number("how many owners in a row failed at it or lost it"),
        "parked": flag("whether that parked it"),
        "retry_after_ms": number("for how long nobody gets the job"),
        "previous": part("the hold that ended, see [previous](#previous)"),
    },
    "transferred": {
        "status": text("`transferred`"),
        **LEASE,
        "lease_id": text("the new owner's"),
        "checkpoint": text("what there is", null=True),
    },
    "break": {
        "name": text("the job"),
        "broken": parts(
            "what was taken away: `owner`, `fencing_token` and `checkpoint` of each. Empty if nobody held it"
        ),
    },
    "free": {
        "name": text("the job"),
        "freed": flag("whether it was parked or rested; its count of attempts is reset"),
    },
    "close": {
        **CLOSURE,
    },
    "open": {
        "name": text("what was asked for"),
        "opened": flag("whether it was closed under this name"),
        "closed": part("another closure that still closes it, see [closure](#closure)", optional=True),
    },
    "acl": {
        "name": text("the job"),
        "acl": part("the list, as `acquire`; tokens are shown as `token:[redacted]`"),
    },
    "pool": {
        "name": text("the job"),
        "slots": number("how many slots the pool has; null: it is no pool", null=True),
        "was": number("how many it had before", null=True),
        "slots_taken": number("how many are taken; perhaps more than there are"),
        "waiting": number("how many are in line"),
    },
    "next": {
        "name": text("the series"),
        "number": number("a number that nobody else has"),
        "owner": text("whose it is"),
        "again": flag("true: this ask got it before", optional=True),
    },
    "give-back": {
        "name": text("the series"),
        "number": number("the number"),
        "returned": flag("whether anybody had it; it is free now"),
        "last_number": number("the last number of the series; 0: none"),
    },
    "job": {
        "name": text("the job"),
        "status": text(
            "`held`; or of a job that nobody holds what a claim would be told: `parked`, `done`, `frozen` (the store "
            "is being moved), `closed`, `paused` (a pool of 0 slots), `delayed` (it rests); or `free`. Take a word "
            "that you do not know for one more reason why nobody can claim it now"
        ),
        **HOLD,
        "fencing_token": number("the token of the hold, else the last one; 0 if there was never one"),
        "slots": number("while held, or of a pool: how many owners at once", optional=True),
        "slots_taken": number("how many of them are taken", optional=True),
        "pool": flag("true: an operator set its slots; 0 of them: it is paused", optional=True),
        "holders": parts(
            "if there are several: for each `holder_id`, `owner` and the other fields above", optional=True
        ),
        "done": part("while done: `owner`, `at`, `until`, `result`, `fencing_token`", optional=True),
        "available_at": text("while it rests: when that is over", optional=True),
        "retry_after_ms": number("the same, from now", optional=True),
        "previous": part("see [previous](#previous)", optional=True),
        "effects": parts("the steps that its owners noted: see [effect](#effect)", optional=True),
        "acl": part("if there is one", optional=True),
        "last_number": number("of a series: its last number", optional=True),
        "closed": part("if it is closed for newcomers: see [closure](#closure)", optional=True),
        "waiting": number("how many are in line", optional=True),
        "overlapping": parts(
            "in a tree: other claims in the way, each with `name`, `owner`, `mode`; 100 at most, those that end first",
            optional=True,
        ),
        "overlapping_count": number("if more are in the way than `overlapping` names: how many", optional=True),
    },
    "overdue": {
        "status": text("`in_time`, or `overdue`"),
        "name": text("the job"),
        "within_seconds": number("as asked"),
        "last_success": part(
            "`at`, `ms_ago`, `owner`, `fencing_token`, `done` and `result`; null: none is on record", null=True
        ),
        "overdue_ms": number("by how much; 0: in time; null: no success is on record", null=True),
        "record_since": text("without a success: where the history begins, if it is not empty", optional=True),
        "held_by": text("who has the job now", optional=True),
        "held_ms": number("and for how long already", optional=True),
    },
    "list": {
        "locks": parts("as `GET /locks/{name}`, without `acl` and `overlapping`; in a tree also without `waiting`"),
        "total": number("how many there are; null unless all are on this page", null=True),
        "prefix": text("as asked"),
        "closures": parts("what is closed now below this prefix or above it, see [closure](#closure)", optional=True),
        "next": text("what to send as `after` for the next page; null on the last", null=True),
    },
    "history": {
        "name": text("the job"),
        "events": parts("in order, see below"),
    },
    "events": {
        "events": parts("in order, as in a job's history, each also with `name` and `namespace`"),
        "next_after": number("what to send as `after` to continue"),
        "gap": part("null, or what was asked for and is no longer on record, as in a stream", null=True),
    },
    "event": {
        "seq": number("its number in the store, rising"),
        "at": text("when"),
        "event": text("what, see below"),
        "owner": text("the owner of the hold or place", optional=True),
        "fencing_token": number("with `owner`: the token of the hold", optional=True),
        "attempt": number("with `owner`: the attempt", optional=True),
        "slot": number("of a hold of a job with slots: its slot", optional=True),
        "slot_numbers": numbers("all of them, one for each unit", optional=True),
        "ttl_seconds": number("the TTL of the claim; 0 for a claim that lives as long as its session", optional=True),
        "metadata": text("what the owner noted", optional=True),
        "checkpoint": text("how far the work has come", optional=True),
        "effect_key": text("which step", optional=True),
        "result": text("the result of the job, or of the step", optional=True),
        "done_until": text("until when it counts as done", optional=True),
        "by": text("who broke, freed or received it", optional=True),
        "reason": text("why", optional=True),
        "retry_after_seconds": number("of a failure or a loss: for how long nobody gets the job", optional=True),
        "uncounted": flag("of a release: true: it says nothing about the work", optional=True),
        "until": text("of `closed`: until when", optional=True),
        "name": text("of `GET /events`: the job", optional=True),
        "namespace": text("of `GET /events`: its namespace", optional=True),
    },
    "session": {
        "session_id": text("the proof. Keep it to yourself"),
        "user_id": text("the token's name"),
        "owner": text("who"),
        "metadata": text("as given, or null", null=True),
        "since": text("when it was opened"),
        "expires_at": text("when it ends without a keepalive"),
        "remaining_ms": number("the same, from now"),
        "ttl_seconds": number("its TTL"),
        "keepalive_interval_secs": number("half of it: send a keepalive by then"),
        "active": flag("whether it is open"),
        "lock_count": number("how many leases it holds", optional=True),
        "holds": parts(
            "each with `name`, `namespace`, `fencing_token`, `mode`, `remaining_ms`, `waiting` (how many "
            "wait) and, with a ceiling, `ends_in_ms`; with slots, `slot`",
            optional=True,
        ),
        "waits": texts("names of the jobs that it waits for in line"),
        "wanted": parts(
            "of a keepalive with `active`: its jobs with new waiters. Each with `name`, `namespace`, "
            "`waiting` and `new_waiters`",
            optional=True,
        ),
    },
    "sessions": {
        "sessions": parts("the open ones, as above"),
    },
    "agents": {
        "agents": parts("one for each, see [agent](#agent), by name: a subagent comes after its agent"),
        "now": text("the time of the store"),
        "next": text("what to send as `after` for the next page; null on the last", null=True),
    },
    "agent": {
        "name": text("as others see it, without its place"),
        "owner": text("the owner of its claims: the name and the place where its session began"),
        "client": text("`claude`, `codex`, ...; `actor` of one with a name of its own (`--actor`); `mcp`"),
        "state": text("`alive`; `gone`: its process ended, or it was not heard of in time; `ended`"),
        "session": text("the beginning of its session's id"),
        "parent": text("the agent whose subagent it is, or null", null=True),
        "user_id": text("the token's name"),
        "namespace": text("where its session was opened: the repository's, if a hook did that"),
        "host": text("its machine, or null", null=True),
        "work_tree": text("the work tree that it was last in, or null", null=True),
        "branch": text("what is checked out there, or null", null=True),
        "jobs": texts("the jobs that it has, such as an issue; at most 100"),
        "files": texts("the files that it has, from the top of the work tree; at most 100"),
        "holds": texts("what else it has: `branch:` and `repo:`"),
        "job_count": number("how many jobs it has"),
        "file_count": number("how many files it has"),
        "waits": texts("what it waits for in line, or was just refused"),
        "waiting": number("how many wait for what it has"),
        "action": text("what it did last, as its hook noted it, or null", null=True),
        "active_at": text("when that was"),
        "idle_ms": number("how long ago"),
        "since": text("when its session was opened"),
        "open_ms": number("how long ago"),
        "ended_at": text("if it is not alive: since when", optional=True),
    },
    "waiters": {
        "waiters": parts("the places in line, see [waiter](#waiter)"),
        "now": text("the time of the store"),
        "next": text("what to send as `after` for the next page; null on the last", null=True),
    },
    "waiter": {
        "name": text("the job"),
        "owner": text("who waits"),
        "position": number("1: next"),
        "since": text("since when"),
        "waiting_ms": number("how long already"),
        "mode": text("`exclusive` or `shared`"),
        "units": number("how many slots it wants"),
        "job_status": text("the `status` of the job, as `GET /locks/{name}` has it"),
        "metadata": text("what it noted", null=True),
        "holders": parts(
            "who is in the way, 100 at most: each with `name` (in a tree maybe another one), `owner`, `fencing_token`, "
            "`session`",
        ),
        "session": text("its session's id, cut short", null=True),
        "names": texts("of a claim-all: all the jobs it waits for at once", optional=True),
        "closed": part("if the job is closed: see [closure](#closure)", optional=True),
    },
    "activity": {
        "now": text("the time of the store"),
        "since": text("when the first of the 60 minutes began"),
        "minutes": part("by event, how many there were in each minute, the oldest first"),
        "held": number("how many claims there are now"),
        "stuck": part("how many jobs are `parked`, and `failed`: free, and the last hold failed or was lost"),
        "whole": flag("false: there are more events than were counted so far. Ask again"),
    },
    "token": {
        **TOKEN,
    },
    "token-rotate": {
        **TOKEN,
        "token": text("the new token, shown only here"),
        "replaces": part("the old one: `id`, and its `grace_seconds`"),
    },
    "tokens": {
        "tokens": parts("all, as above, without `token`. Revoked and expired ones are listed for 90 days"),
    },
    "token-limit": {
        "tokens": parts("those that were changed, as above"),
    },
    "token-revoke": {
        "revoked": parts("the tokens, as above"),
    },
    "election-room": {
        "election_id": text("32 characters that nobody can guess. Give all candidates the same one"),
        "campaign_path": text("where to campaign"),
        "status_path": text("where to look"),
        "watch_path": text("where to watch"),
    },
    "election-leader": {
        "status": text("`leader`: you lead"),
        "election_id": text("the id"),
        "leader": part("you"),
        "leader_token": text("the proof, for renewing and resigning. Keep it to yourself"),
        "renew_after_ms": number("half of what is left of the term: renew by then"),
    },
    "election-follower": {
        "status": text("`follower`: somebody else leads, or comes first"),
        "election_id": text("the id"),
        "leader": part("who leads; null if somebody in line comes first", null=True),
        "retry_after_ms": number("how long the term lasts if it is not renewed"),
    },
    "election-resigned": {
        "election_id": text("the id"),
        "status": text("`vacant`"),
        "previous_term": number("the term that ended"),
    },
    "election": {
        "election_id": text("the id"),
        "status": text("`leader`, or `vacant`: nobody leads"),
        "leader": part("who leads", optional=True),
        "retry_after_ms": number("how long the term lasts if it is not renewed"),
    },
    "election-state": {
        "schema_version": number("1"),
        "election_id": text("the id"),
        "status": text("`leader` or `vacant`"),
        "leader": part("who leads", null=True),
        "retry_after_ms": number("how long the term lasts if it is not renewed"),
        "observed_at": text("when that was so"),
    },
    "leader": {
        "candidate_id": text("who, as given"),
        "metadata": text("as given", optional=True),
        "term": number("a number that rises with every leader of this election: the fencing token"),
        "expires_at": text(
            "when the term ends without a heartbeat; by a session, when that ends, as was known", null=True
        ),
    },
    "whoami": {
        "principal": text("the token's name"),
        "role": text("what it may do"),
        "namespace": text("the only namespace it may use; null: any", null=True),
        "expires_at": text("when the token ends by itself", optional=True),
    },
    "error": {
        "error": text("a title"),
        "code": text("one of the codes below, for programs"),
        "details": text("a sentence for people"),
        "request_id": text("the same as `X-Request-Id`", optional=True),
        "retry_after_ms": number("only where asking later helps", optional=True),
        "help": text("only with status 401: where the server says what it is and how it is used", optional=True),
        "cycle": texts("only with `deadlock`: owners and jobs in turn, beginning with the asker", optional=True),
        "ended": text(
            "only with `lease_not_current`, where it is remembered: `released`, `failed`, `expired`, `broken` "
            "or `transferred`",
            optional=True,
        ),
        "number": number("only with `number_taken`: the number", optional=True),
        "next": number("only with `number_taken`: the next one that is free", optional=True),
        "owner": text("only with `number_taken`: whose it is, if that is known", optional=True),
    },
}
# Documents inside documents. Other lists and objects are described in their own field.
PARTS = {
    "effect": "effect",
    "effects": "effect",
    "previous": "previous",
    "leases": "acquired",
    "rest": "acquired",
    "locks": "job",
    "events": "event",
    "sessions": "session",
    "agents": "agent",
    "waiters": "waiter",
    "tokens": "token",
    "revoked": "token",
    "leader": "leader",
    "closed": "closure",
    "closures": "closure",
}
