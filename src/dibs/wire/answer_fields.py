"""The fields of all answers, each declared once: kind, presence and meaning.

JSON schemas, the tables of docs/reference/http.md and the kinds in `fields.py` are made from this, as from the fields
of requests in `request_fields.py`. A test compares every kind of answer with it, and the classes of the Python SDK,
which are written out because type checkers must see them.
"""

from __future__ import annotations

from dibs.base.tables import sections

Answer = dict[str, tuple[str, str]]  # of each field its kind and its meaning

# Of each answer its fields: name, kind and meaning. The kind is text, number, flag, object, list (of documents), or
# texts or numbers (a list of them). A "?" after the kind: it may be null. A "-": it may be left out. "+" takes over
# another section. What begins with _ is a part of answers: a lease as its owner sees it, a hold as everybody may.
_TABLE = """
_lease
    name text: the job
    lease_id text: the proof. Keep it to yourself
    fencing_token number: a number that rises with every lease on this job
    owner text: as given
    expires_at text: when the lease ends without a heartbeat
    remaining_ms number: the same, from now
    renew_after_ms number: half of it: heartbeat by then
    metadata text?: as given; null without, or if that of other owners leaves no room
    attempt number: 1, and 1 more for each owner that failed or lost the job since the last clean release
    ends_at text-: with a ceiling (`max_hold_seconds`): when the lease ends, whatever is renewed
    ends_in_ms number-: the same, from now
    slot number-: of a job with slots: the number of its slot, from 0. The lowest that was free
    slot_numbers numbers-: of a claim of several units: the numbers of all its slots
_hold
    holder_id text?-: a one-way name for credential and owner, shaped like a UUID
    owner text?-: who
    fencing_token number-: its token
    mode text-: `exclusive` or `shared`
    since text-: since when
    held_ms number-: how long already
    last_heartbeat text-: the owner's last sign of life: a heartbeat of the lease or of its session
    silent_ms number-: how long ago that was
    last_active text-: when the worker itself last did something, where its session says so (`active`)
    idle_ms number-: how long ago that was
    expires_at text?-: when it ends without a heartbeat
    remaining_ms number?-: when the hold ends, from now
    metadata text?-: its metadata
    checkpoint text?-: how far it got
    attempt number-: its attempt
    ends_at text-: with a ceiling: when it ends, whatever is renewed
    ends_in_ms number-: the same, from now
    slot number-: its slot, from 0
    slot_numbers numbers-: if it has several: all of them
_in_the_way
    conflict text-: in a tree, or of several jobs: the name of the claim in the way, if another
    holders list-: if several are in the way: of the 100 that end first each with `name`, `owner` and `fencing_token`
    holder_count number-: if more are in the way than `holders` names: how many
_token
    token text-: the token, shown only here
    id text: the beginning of its hash: identifies it, and proves nothing
    name text: its principal
    role text: what it may do
    namespace text?: the only namespace it may use; null: any
    created_at text: when it was made
    created_by text: the principal that made it
    last_used_at text?: when it was last used, to about two minutes; null: never, or just now
    expires_at text?: when it ends by itself; null: never
    revoked_at text?: when it was revoked; null: it was not
    valid flag: whether it is accepted now
    max_held number: its limits; 0 is none
    max_waiting number: the same
    max_sessions number: the same
    rate_per_second number: the same
    max_hold_seconds number: the same
acquired
    status text: `acquired`
    + _lease
    name text: the job; a claim-all names it in `leases`
    held_before flag-: true: an earlier claim got the lease, not this one or one that it repeats
    previous object-: the last owner, if there was one: see [previous](#previous)
    skipped list-: of a claim-any: the names before this one, each with `name`, `status` and the reason
    leases list-: of several jobs: one such document for each. `lease_id`, `owner`, `remaining_ms` and `renew_after_ms`
        beside it apply to all
held
    status text: `held`
    name text-: the job
    + _hold
    holder_id text?-: a one-way name for credential and owner, shaped like a UUID; of the first in line, if nobody
        holds it
    expires_at text?-: when it ends without a heartbeat; of the first in line: when it loses its place unless it asks
        again
    waiting number-: how many are in line
    retry_after_ms number: when asking again makes sense
    reserved_for object-: if nobody holds it: the first in line, with `owner` and `since`
    paused flag-: true: its pool has no slots until an operator gives it some
    + _in_the_way
refused
    status text: `done` if all are; `parked` if none comes free by itself, of claim-all if one is parked; else `held`:
        waiting may help
    refused list: an answer for each name. An error has its `code` as `status` there
    retry_after_ms number-: when asking again makes sense; not with `parked`
    free number-: of a claim-any with `count`: how many could be claimed: too few
    rest list-: of a repeat: what its request key still has. If no earlier answer told you of it, withdraw the claim
        and ask again with a new key
queued
    status text: `queued`
    name text: the job
    ticket text: the place. Ask again with the last one you were given, within 15 s
    position number: 1: next
    + _hold
    + _in_the_way
    paused flag-: true: its pool has no slots until an operator gives it some
    retry_after_ms number: when to ask again: 5 s at most
    closed object-: if the job is closed: see [closure](#closure). The place is kept
done
    status text: `done`
    name text: the job
    owner text: who did it
    done_at text: when
    done_ms_ago number: how long ago
    until text: until when it counts as done
    retry_after_ms number: the same, from now
    fencing_token number: the token it was done with
    result text?: its result, or null
    done object: the same, as `GET /locks/{name}` says it
delayed
    status text: `delayed`
    name text: the job
    available_at text: until when
    lock_delay_seconds number: the whole time of rest
    retry_after_ms number: the rest of that time
    previous object-: the hold that ended before the rest
closed
    status text: `closed`
    name text: the job
    closed object: see [closure](#closure)
    retry_after_ms number: the time until the end
closure
    name text: what is closed: a job; if it ends in `/`, also all below it
    reason text: why
    by text: who closed it
    since text: since when
    until text: until when
    remaining_ms number: the same, from now
parked
    status text: `parked`
    name text: the job
    failures number: how many owners failed at it or lost it
    previous object-: the last of them
superseded
    status text: `superseded`
    name text: the job
    group text: which group
    by text-: who waits instead, if it still waits
previous
    owner text: who had the job before
    how text: `released`, `failed`, `expired`, `broken` or `transferred`
    at text: when that was
    fencing_token number: its token
    checkpoint text?: how far it got, or null
    attempt number: which attempt that was
    by text-: who broke it, or to whom it was handed
    reason text-: why it failed or was broken
leave
    name text: the job
    left flag: whether the caller was in the line. Leaving twice is fine
withdraw
    status text: `withdrawn`
    left flag: whether a place in line was given up
    released texts: the jobs that the claim had, and has no more
    kept texts: those that stay, because others may rely on them: another claim of the session was told of them, or a
        key can ask for them
renew
    + _lease
    checkpoint text?: what there is now
    waiting number: how many wait for the job
    new_waiters number: how many of them no answer to a heartbeat told of before
failed
    status text: `failed`
    name text: the job
    failures number: how many owners in a row failed at it or lost it
    parked flag: whether that parked it
    retry_after_ms number: for how long nobody gets the job
    previous object: the hold that ended, see [previous](#previous)
transferred
    status text: `transferred`
    + _lease
    lease_id text: the new owner's
    checkpoint text?: what there is
break
    name text: the job
    broken list: what was taken away: `owner`, `fencing_token` and `checkpoint` of each. Empty if nobody held it
free
    name text: the job
    freed flag: whether it was parked or rested; its count of attempts is reset
close
    + closure
open
    name text: what was asked for
    opened flag: whether it was closed under this name
    closed object-: another closure that still closes it, see [closure](#closure)
acl
    name text: the job
    acl object: the list, as `acquire`; tokens are shown as `token:[redacted]`
pool
    name text: the job
    slots number?: how many slots the pool has; null: it is no pool
    was number?: how many it had before
    slots_taken number: how many are taken; perhaps more than there are
    waiting number: how many are in line
job
    name text: the job
    status text: `held`, `free`, `done`, `delayed` or `parked`
    + _hold
    fencing_token number: the token of the hold, else the last one; 0 if there was never one
    slots number-: while held, or of a pool: how many owners at once
    slots_taken number-: how many of them are taken
    pool flag-: true: an operator set its slots; 0 of them: it is paused
    holders list-: if there are several: for each `holder_id`, `owner` and the other fields above
    done object-: while done: `owner`, `at`, `until`, `result`, `fencing_token`
    available_at text-: while delayed, with `retry_after_ms`
    retry_after_ms number-: while delayed: the same, from now
    previous object-: see [previous](#previous)
    acl object-: if there is one
    closed object-: if it is closed for newcomers: see [closure](#closure)
    waiting number-: how many are in line
    overlapping list-: in a tree: other claims in the way, each with `name`, `owner`, `mode`
overdue
    status text: `in_time`, or `overdue`
    name text: the job
    within_seconds number: as asked
    last_success object?: `at`, `ms_ago`, `owner`, `fencing_token`, `done` and `result`; null: none is on record
    overdue_ms number?: by how much; 0: in time; null: no success is on record
    record_since text-: without a success: where the history begins, if it is not empty
    held_by text-: who has the job now
    held_ms number-: and for how long already
list
    locks list: as `GET /locks/{name}`, without `acl` and `overlapping`; in a tree also without `waiting`
    total number?: how many there are; null unless all are on this page
    prefix text: as asked
    closures list-: what is closed now below this prefix or above it, see [closure](#closure)
    next text?: what to send as `after` for the next page; null on the last
history
    name text: the job
    events list: in order, see below
events
    events list: in order, as in a job's history, each also with `name` and `namespace`
    next_after number: what to send as `after` to continue
    gap object?: null, or what was asked for and is no longer on record, as in a stream
event
    seq number: its number in the store, rising
    at text: when
    event text: what, see below
    owner text-: the owner of the hold or place
    fencing_token number-: with `owner`: the token of the hold
    attempt number-: with `owner`: the attempt
    slot number-: of a hold of a job with slots: its slot
    slot_numbers numbers-: if it has several: all of them
    ttl_seconds number-: the TTL of the claim; 0 for a claim that lives as long as its session
    metadata text-: what the owner noted
    checkpoint text-: how far the work has come
    result text-: the result of the job
    done_until text-: until when it counts as done
    by text-: who broke, freed or received it
    reason text-: why
    retry_after_seconds number-: of a failure or a loss: for how long nobody gets the job
    uncounted flag-: of a release: true: it says nothing about the work
    until text-: of `closed`: until when
    name text-: of `GET /events`: the job
    namespace text-: of `GET /events`: its namespace
session
    session_id text: the proof. Keep it to yourself
    user_id text: the token's name
    owner text: who
    metadata text?: as given, or null
    since text: when it was opened
    expires_at text: when it ends without a keepalive
    remaining_ms number: the same, from now
    ttl_seconds number: its TTL
    keepalive_interval_secs number: half of it: send a keepalive by then
    active flag: whether it is open
    lock_count number-: how many leases it holds
    holds list-: each with `name`, `namespace`, `fencing_token`, `mode`, `remaining_ms`, `waiting` (how many wait) and,
        with a ceiling, `ends_in_ms`; with slots, `slot`
    waits texts: names of the jobs that it waits for in line
    wanted list-: of a keepalive with `active`: its jobs with new waiters. Each with `name`, `namespace`, `waiting` and
        `new_waiters`
sessions
    sessions list: the open ones, as above
waiters
    waiters list: the places in line, see [waiter](#waiter)
    now text: the time of the store
    next text?: what to send as `after` for the next page; null on the last
waiter
    name text: the job
    owner text: who waits
    position number: 1: next
    since text: since when
    waiting_ms number: how long already
    mode text: `exclusive` or `shared`
    metadata text?: what it noted
    holders list: who is in the way: each with `name` (in a tree maybe another one), `owner`, `fencing_token`,
        `session`
    session text?: its session's id, cut short
    names texts-: of a claim-all: all the jobs it waits for at once
    closed object-: if the job is closed: see [closure](#closure)
activity
    now text: the time of the store
    since text: when the first of the 60 minutes began
    minutes object: by event, how many there were in each minute, the oldest first
    held number: how many claims there are now
    stuck object: how many jobs are `parked`, and `failed`: free, and the last hold failed or was lost
    whole flag: false: there are more events than were counted so far. Ask again
token
    + _token
token-rotate
    + _token
    token text: the new token, shown only here
    replaces object: the old one: `id`, and its `grace_seconds`
tokens
    tokens list: all, as above, without `token`. Revoked and expired ones are listed for 90 days
token-limit
    tokens list: those that were changed, as above
token-revoke
    revoked list: the tokens, as above
election-room
    election_id text: 32 characters that nobody can guess. Give all candidates the same one
    campaign_path text: where to campaign
    status_path text: where to look
    watch_path text: where to watch
election-leader
    status text: `leader`: you lead
    election_id text: the id
    leader object: you
    leader_token text: the proof, for renewing and resigning. Keep it to yourself
    renew_after_ms number: half of what is left of the term: renew by then
election-follower
    status text: `follower`: somebody else leads, or comes first
    election_id text: the id
    leader object?: who leads; null if somebody in line comes first
    retry_after_ms number: how long the term lasts if it is not renewed
election-resigned
    election_id text: the id
    status text: `vacant`
    previous_term number: the term that ended
election
    election_id text: the id
    status text: `leader`, or `vacant`: nobody leads
    leader object-: who leads
    retry_after_ms number: how long the term lasts if it is not renewed
election-state
    schema_version number: 1
    election_id text: the id
    status text: `leader` or `vacant`
    leader object?: who leads
    retry_after_ms number: how long the term lasts if it is not renewed
    observed_at text: when that was so
leader
    candidate_id text: who, as given
    metadata text-: as given
    term number: a number that rises with every leader of this election: the fencing token
    expires_at text?: when the term ends without a heartbeat; by a session, when that ends, as was known
whoami
    principal text: the token's name
    role text: what it may do
    namespace text?: the only namespace it may use; null: any
    expires_at text-: when the token ends by itself
error
    error text: a title
    code text: one of the codes below, for programs
    details text: a sentence for people
    request_id text-: the same as `X-Request-Id`
    retry_after_ms number-: only where asking later helps
    cycle texts-: only with `deadlock`: owners and jobs in turn, beginning with the asker
    ended text-: only with `lease_not_current`, where it is remembered: `released`, `failed`, `expired`, `broken` or
        `transferred`
"""


def answers_in(table: str) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    for section, lines in sections(table):
        fields = found[section] = {}
        for (line,) in lines:
            head, _, meaning = line.partition(": ")
            name, _, kind = head.partition(" ")
            fields.update(found[kind] if name == "+" else {name: (kind, meaning)})
    return {name: fields for name, fields in found.items() if name[0] != "_"}


ANSWERS = answers_in(_TABLE)
for _name in ("name", "fencing_token", "expires_at", "metadata", "attempt"):  # a claim-all has these in `leases`
    ANSWERS["acquired"][_name] = (f"{ANSWERS['acquired'][_name][0]}-", ANSWERS["acquired"][_name][1])
# Documents inside documents. Other lists and objects are described in their own field.
PARTS = {
    "previous": "previous",
    "leases": "acquired",
    "rest": "acquired",
    "locks": "job",
    "events": "event",
    "sessions": "session",
    "waiters": "waiter",
    "tokens": "token",
    "revoked": "token",
    "leader": "leader",
    "closed": "closure",
    "closures": "closure",
}
