"""Every limit of dibs, by name. Nothing else in the code says how long, how many or how large.

Units come last in the names. What an operator may change at run time is a default here and a setting of the server.
"""

# Names and texts
NAME_BYTES_MAX = 512
NAMESPACE_CHARS_MAX = 64
PRINCIPAL_CHARS_MAX = 64
OWNER_CHARS_MAX = 256
METADATA_CHARS_MAX = 1024
# Of all owners of one job together: they are in one record, which every claim and heartbeat writes.
METADATA_BYTES_MAX = 128 * 1024
CHECKPOINT_BYTES_MAX = 4 * 1024
CHECKPOINTS_BYTES_MAX = 512 * 1024
RESULT_BYTES_MAX = 4 * 1024
REASON_CHARS_MAX = 1024
# Notes of steps that change something outside. They are in the job's record, which every heartbeat writes.
EFFECTS_MAX = 32
EFFECT_TRIES_MAX = 4  # of one owner, remembered besides the last
EFFECT_KEY_BYTES_MAX = 200
EFFECT_RESULT_BYTES_MAX = 1024
REQUEST_KEY_CHARS_MAX = 256
BODY_BYTES_MAX = 2 * 1024 * 1024
STRANGERS_BODY_BYTES_MAX = 64 * 1024  # what a server keeps of the body of somebody it does not know
JSON_DEPTH_MAX = 64
ACL_ENTRIES_MAX = 100
ACL_ENTRY_BYTES_MAX = 256

# Times of a lease. There is one default for each idea of an owner. Who sends heartbeats itself, by hand or by program,
# has a minute: three may fail, and a crash costs no more. A leader has ELECTION_TTL_MS_DEFAULT, half of that, because
# everybody waits for the next one. An actor has ACTOR_TTL_MS, and so has who types at a terminal, because only its
# commands are signs of life.
TTL_MS_MIN = 1_000
TTL_MS_MAX = 24 * 3600 * 1000
TTL_MS_DEFAULT = 60_000
LOCK_TTL_MS_DEFAULT = 300_000
LOCK_DELAY_MS_MAX = 60_000
RETRY_MS_MAX = 7 * 24 * 3600 * 1000
DONE_MS_MAX = 365 * 24 * 3600 * 1000
DONE_MS_DEFAULT = 24 * 3600 * 1000
ATTEMPTS_MAX = 1_000_000
HOLD_MS_MAX = 365 * 24 * 3600 * 1000  # of a ceiling

# Maintenance stops. All are in one record, which every decision reads.
CLOSURES_MAX = 50
CLOSURE_MS_MAX = 30 * 24 * 3600 * 1000
CLOSURE_REASON_CHARS_MAX = 200

# Sessions. A session that ended is remembered for a while, so that a late call is answered "it ended" and not
# "unknown". `ttl_seconds` is clamped to the first two, as OctoStore's contract has it; `ttl_ms` is refused outside the
# others.
SESSION_TTL_MS_MIN = 10_000
SESSION_TTL_MS_MAX = 300_000
SESSION_OWN_TTL_MS_MIN = 1_000
SESSION_OWN_TTL_MS_MAX = 24 * 3600 * 1000
SESSION_TTL_MS_DEFAULT = 60_000
SESSION_TOMBSTONE_MS = 3600 * 1000
ACTOR_TTL_MS = 15 * 60 * 1000  # of a session behind --actor: as long as a model may think between two commands
# Of a coding agent's session whose process this machine watches: people leave agents open over lunch.
AGENT_TTL_MS = 8 * 3600 * 1000

# Runs: sessions behind the secrets of the gateway. Only their own calls keep them alive, so they live longer than any
# lock that they may take. A call starts their time anew, if the last call that did is RUN_KEEP_MS old.
RUN_TTL_MS = 48 * 3600 * 1000
RUN_KEEP_MS = 60_000
RUN_SECRET_CHARS_MIN = 16
RUN_SECRET_CHARS_MAX = 256
RLOCK_TTL_MS_DEFAULT = 30 * 60 * 1000
UPSTREAM_MS_MAX = 10_000  # their scripts give up after ten seconds, too
UPSTREAM_REQUESTS_MAX = 8

# Waiting. A waiter that is silent for TICKET_MS loses its place; a server asks every TICKET_KEEP_MS on behalf of the
# callers that wait at it. A refused poll counts as waiting, for deadlock detection, for WANT_MS: agents think between
# two asks.
TICKET_MS = 15_000
TICKET_KEEP_MS = 5_000
REGRANT_MS = 1_000  # for how long a lease is as good as new, if its TTL is at least twelve times as long
WAIT_MS_MAX = 3600 * 1000
EMBEDDED_POLL_MS = 1_000  # without a server: how long a waiter sleeps at most before it looks, news or not
WANT_MS = 5 * 60 * 1000
# Of a job with groups of which only the newest waits: how many groups without a place in the queue it remembers, and
# how many asks that were replaced, in all its groups, and of each at least REPLACED_LEAST. A repeat of one of them is
# recognised. After REPLACED_MS without a newcomer most of them have come, and REPLACED_KEPT are enough.
GROUPS_KEPT = 8
REPLACED_KEPT = 32
REPLACED_LEAST = 4
REPLACED_MAX = 1_024
REPLACED_MS = 60_000

# Numbers of a series: the highest, and of how many of the newest it is known whose they are, and of how many free ones.
NUMBER_MAX = 10**9
NUMBERS_KEPT = 64

# Several at once
NAMES_MAX = 1_000
FREED_MAX = 500  # jobs of a session that has ended which one decision frees; sweeps free the rest
ALL_NAMES_MAX = 100
SLOTS_MAX = 10_000

# Far from what JSON readers take for a whole number (2**53), with room for all that is to come.
TOKEN_FLOOR_MAX = 10**15

# Memory of asks that are over, so that late copies and repeats are recognised: how long a job remembers an ending or a
# withdrawn ask, and how many of each at most (`core/claims/withdraw.py`).
REMEMBERED_MS = 10 * 60 * 1000
REMEMBERED_MAX = 32
# How long an idle job's record is kept before its fencing number moves into the store's floor.
IDLE_RECORD_MS = 24 * 3600 * 1000
# Jobs with a limit of attempts are remembered for longer while they fail: a nightly job must be able to reach it.
FAILING_RECORD_MS = 30 * 24 * 3600 * 1000

# How long after its lease should be over `dibs lock` still knows whose it was.
LOCK_MEMORY_MS = 7 * 24 * 3600 * 1000

# The settings of a repository: `.dibs.toml`, and `dibs/config.toml` in its git folder.
SETTINGS_BYTES_MAX = 64 * 1024
CONTEXT_NAME_CHARACTERS_MAX = 100

# Outages: a server that is up notes so this often, while there are leases. If no server did for PULSE_LATE_MS before
# one started, that was an outage, and so is a silence of a running server, or of its store, that is longer than
# OUTAGE_MS_MIN. A lease that was live when it began has one chance to renew after it: min(its ttl,
# OUTAGE_CREDIT_MS_MAX). In all, since its last renewal, a lease lasts for at most its ttl, that one chance, the longest
# outage, and OUTAGE_CREDIT_MS_MAX for all other outages together. After a shorter silence than OUTAGE_MS_MIN, which
# is no outage, the server gives as much time again, and GRACE_MS_MAX in all.
PULSE_MS = 300
PULSE_LATE_MS = 900  # less than TTL_MS_MIN: no lease can run out in a silence that is not noticed
OUTAGE_MS_MIN = 2_500
GRACE_MS_MAX = 2 * OUTAGE_MS_MIN
TICK_MS = 250  # how often a server looks whether it was stopped
PULSE_KEPT_MS = 10 * 60 * 1000  # the pulse of a server that is gone
OUTAGE_CREDIT_MS_MAX = 10 * 60 * 1000
OUTAGES_KEPT = 16
MOVES_KEPT = 16  # names of stores that one goes on from

# Work at a time
SWEEP_INTERVAL_MS = 50
SWEEP_LATE_MS_MAX = 250
SWEEP_BATCH_MIN = 64
SWEEP_BATCH_MAX = 512
TALLY_INTERVAL_MS = 500
TALLY_PAGE = 200  # how many leases a server counts at a time after its start
SWEEP_RETRY_MS = 60_000  # when a record that could not be swept is tried again
SWEEP_GRACE_MS = 250  # how long what is due is left to the server whose part it is
SERVERS_INTERVAL_MS = 1_000
WATCH_MS = 1_000
PRUNE_INTERVAL_MS = 60_000
COMMIT_BATCH_MAX = 512
CHECKPOINT_PAGES = 4_000  # of a server: how long its log may grow before it is moved into the file
KEEP_BATCH_MAX = 256
COMMIT_QUEUE_MAX = 20_000
# Claims are refused while one waits for longer to be decided: callers do not wait much longer.
QUEUE_MS_MAX = 3_000
CONFLICT_RETRIES_MAX = 200
CONFLICT_PAUSE_MS_MAX = 10
LEAVE_AT_ONCE_MAX = 500  # places that are served or dropped in one decision; a sweep goes on with the rest
TREE_PAGE_CLAIMS = 64  # `path:` claims that are kept in one record
OWNERS_NAMED_MAX = 100  # of those in the way of a claim, in its answer
WANTED_MAX = 16  # how many of its jobs for which somebody waits are reported to a session at once
REREAD_KEYS_MAX = 64  # a decision that needs more records reads all of them anew, up to this many
RECALL_PAUSE = 8  # batches that trust no remembered record, after one that was old
UNKNOWN_RETRIES_MAX = 3
LIST_PAGE_DEFAULT = 1_000
AGENTS_PAGE_DEFAULT = 500
AGENTS_PAGE_MAX = 5_000
LIST_PAGE_MAX = 10_000
# Texts of callers on one page, in characters: in JSON one may have six bytes, and a client reads REPLY_BYTES_MAX.
PAGE_CHARS_MAX = 4 * 1024 * 1024
LIST_LOOKS_MAX = 20_000  # how many jobs a page of the list looks at to find the ones that were asked for
HISTORY_PAGE_DEFAULT = 100
HISTORY_PAGE_MAX = 10_000

# How long ago the last success of a job may be, unless the question says it; and of how many jobs metrics show it.
WITHIN_S_DEFAULT = 24 * 3600
WITHIN_S_MAX = DONE_MS_MAX // 1000
METRIC_JOBS_MAX = 100

# Per principal; a server setting may change it. Soft by the size of one batch: it guards an operator, not an owner.
LOCKS_PER_PRINCIPAL_MAX = 100_000

# How long and how much history is kept when nobody says otherwise.
EVENTS_KEPT_MAX = 1_000_000
EVENTS_AGE_MS_MAX = 30 * 24 * 3600 * 1000

# A server and its clients. A client has REQUEST_MS_MAX to send a request it has begun; a silent connection is closed.
# A page of the list with a checkpoint on every job is the largest thing a server sends.
HEAD_BYTES_MAX = 64 * 1024
REPLY_BYTES_MAX = 64 * 1024 * 1024
HEADERS_MAX = 100
QUERY_BYTES_MAX = 8 * 1024
QUERY_FIELDS_MAX = 32
PARSE_BYTES_MAX = 4 * 1024  # how much of what was read is taken apart at a time, for requests that wait their turn
REQUEST_MS_MAX = 30_000
# A longer answer is written in parts, each when the one before has left. A client that does not take one in
# REQUEST_MS_MAX is cut off.
WRITE_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 10_000
CONNECTIONS_PER_CLIENT_MAX = 2_000
# A connection that has not shown a valid token is a stranger's. Strangers leave one of CONNECTIONS_KEPT_PART
# connections to the others. Beyond STRANGERS_PER_CLIENT_MAX of one client the oldest goes, once it had STRANGER_MS_MIN
# to show one.
CONNECTIONS_KEPT_PART = 5
STRANGERS_PER_CLIENT_MAX = 200
STRANGER_MS_MIN = 1_000
CONNECTIONS_TURNED_AWAY_MAX = 100
KEEP_ALIVE_MS = 75_000
HANDSHAKE_MS_MAX = 10_000  # how long a client may take for a TLS handshake
TLS_CLOSE_MS_MAX = 5_000  # how long its answer to the end of a TLS connection is waited for
CLIENT_IDLE_MS_MAX = 30_000  # less than a server keeps a silent connection
OVERLOAD_RETRY_MS = 1_000
HEALTH_MS_MAX = 2_000
SCRAPE_MS_MAX = 500
# A store counts as not writable while a commit takes longer than WRITE_SLOW_MS, and for WRITE_FAILED_MS after one that
# failed, unless another succeeds.
WRITE_SLOW_MS = 3_000
WRITE_FAILED_MS = 300_000
LOG_BYTES_MAX = 4 * 1024 * 1024  # of lines that nobody has read yet
LOG_FLUSH_MS_MAX = 1_000
SHUTDOWN_MS_MAX = 5_000
# A server that is asked to end serves on for those who hold something, until nobody asks any more.
DRAIN_MS_DEFAULT = 10_000
DRAIN_MS_MAX = 600_000
DRAIN_QUIET_MS = 1_000
DRAIN_LOOK_MS = 50
READERS_MAX = 4

# Logins of browsers.
TOKEN_CHARS_MAX = 1024
LOGIN_FAILURES_MAX = 10  # of one client in PUBLIC_REQUESTS_MS

# Streams of events. A stream that has more than STREAM_BYTES_MAX to send is read from the store again, at the pace of
# its reader. A reader that takes nothing for STREAM_STALL_MS gets a last event that says so, and is cut off.
FEED_PAGE_MAX = 100
STREAMS_MAX = 2_000
STREAMS_PER_CLIENT_MAX = 256
STREAM_BYTES_MAX = 256 * 1024
STREAM_KEEPALIVE_MS = 15_000
STREAM_STALL_MS = 20_000
STREAM_RETRY_MS = 1_000
STREAM_SILENCE_MS = 40_000  # a client takes a stream that is silent for longer for broken

# Elections. Without a ttl a term lasts ELECTION_TTL_MS_DEFAULT. Public ones, for callers without a token, have
# OctoStore's bounds: rooms with a leader, requests of a client in a minute, streams, and how long a stream lasts.
ELECTION_TTL_MS_DEFAULT = 30_000
PUBLIC_TTL_MS_MIN = 5_000
PUBLIC_TTL_MS_MAX = 300_000
CANDIDATE_CHARS_MAX = 64
ROOM_CHARS_MIN = 8
ROOM_CHARS_MAX = 64
PUBLIC_ROOMS_MAX = 10_000
PUBLIC_REQUESTS_MAX = 600
PUBLIC_REQUESTS_MS = 60_000
PUBLIC_CLIENTS_MAX = 10_000  # how many are counted apart; the others share one count
PUBLIC_STREAMS_MAX = 1_024
PUBLIC_STREAMS_PER_CLIENT_MAX = 8
PUBLIC_STREAM_MS_MAX = 900_000
PUBLIC_FULL_RETRY_MS = 30_000
REGISTRATIONS_MAX = 60  # of one client in PUBLIC_REQUESTS_MS
ADMIN_GUESSES_MAX = 10  # wrong keys, the same
MINUTES_KEPT = 7 * 24 * 60

# Webhooks. A target has WEBHOOK_CONNECT_MS to be found and connected to, and WEBHOOK_ANSWER_MS for all of a delivery. A
# failed delivery is tried again after WEBHOOK_PAUSE_MS_MIN, then after twice as long each time, up to
# WEBHOOK_PAUSE_MS_MAX; after WEBHOOK_TRIES_MAX tries, about three hours, it is a dead letter. A target may ask for a
# rest of up to WEBHOOK_REST_MS_MAX. One server has the duty to deliver, for WEBHOOK_DUTY_MS at a time, and gives it up
# after WEBHOOK_IDLE_MS without work. Every WEBHOOK_SAVE_MS it writes how far it is: a crash sends as much twice.
WEBHOOKS_MAX = 500
WEBHOOKS_PER_PRINCIPAL_MAX = 10
WEBHOOK_URL_CHARS_MAX = 2_048
WEBHOOK_SECRET_CHARS_MAX = 256
WEBHOOK_LANES_MAX = 32  # jobs of one webhook with something to send; no more events are read meanwhile
WEBHOOK_LANE_EVENTS_MAX = 4  # of one job in memory; the others are read from the store
WEBHOOK_IN_FLIGHT_MAX = 8
WEBHOOK_ALL_IN_FLIGHT_MAX = 128
WEBHOOK_DOUBTED_IN_FLIGHT_MAX = 64  # of them, to targets that have not answered yet, or failed
WEBHOOK_FAILURES_MAX = 3  # in a row: then one delivery at a time, with pauses, until one succeeds
WEBHOOK_CONNECT_MS = 5_000
WEBHOOK_ANSWER_MS = 10_000
WEBHOOK_HEAD_BYTES_MAX = 16 * 1024
WEBHOOK_BODY_BYTES_MAX = 64 * 1024  # of an answer; the connection is closed instead of reading more
WEBHOOK_KEPT_MS = 5_000  # how long an idle connection to a target is kept
WEBHOOK_LOOKUPS_MAX = 16
WEBHOOK_PAUSE_MS_MIN = 1_000
WEBHOOK_PAUSE_MS_MAX = 15 * 60 * 1000
WEBHOOK_REST_MS_MAX = 60 * 60 * 1000
WEBHOOK_TRIES_MAX = 25
WEBHOOK_DEAD_MAX = 500
WEBHOOK_NOTES_MAX = 50
WEBHOOK_ERROR_CHARS_MAX = 200
WEBHOOK_DUTY_MS = 6_000
WEBHOOK_IDLE_MS = 10_000
WEBHOOK_LOOK_MS = 2_000
WEBHOOK_SAVE_MS = 500

TOKENS_FILE_BYTES_MAX = 4 * 1024 * 1024

# Tokens in the store. A server looks for changes every CREDENTIAL_LOOK_MS, and reads all tokens again every
# CREDENTIAL_RELOAD_MS. One that could not look for CREDENTIAL_STALE_MS_MAX lets nobody in by them. A token that is over
# stays on record for CREDENTIAL_TOMBSTONE_MS.
CREDENTIAL_LOOK_MS = 200
CREDENTIAL_STALE_MS_MAX = 2_000
CREDENTIAL_RELOAD_MS = 60_000
CREDENTIAL_TOMBSTONE_MS = 90 * 24 * 3600 * 1000
CREDENTIAL_CHANGES_KEPT = 64
USE_NOTED_MS = 60_000  # how often the use of a token is written down
USES_AT_ONCE_MAX = 32  # in one commit
CREDENTIAL_LIFE_MS_MAX = 10 * 365 * 24 * 3600 * 1000
PRINCIPAL_LIMIT_MAX = 1_000_000
ROTATION_GRACE_MS_DEFAULT = 10 * 60 * 1000
ROTATION_GRACE_MS_MAX = 30 * 24 * 3600 * 1000

# Signed tokens (`service/signed_identity.py`). A token is remembered for IDENTITY_REMEMBERED_MS at most, then
# checked again. The keys of an issuer are asked for again after IDENTITY_KEYS_FRESH_MS, and for a key that is not among
# them at most every IDENTITY_ASK_AGAIN_MS. While the issuer does not answer, they are used for IDENTITY_KEYS_KEPT_MS.
IDENTITY_FILE_BYTES_MAX = 1024 * 1024
IDENTITY_RULES_MAX = 1_000
IDENTITY_TOKEN_BYTES_MAX = 8 * 1024
IDENTITY_VALUE_CHARS_MAX = 1_024
IDENTITY_LEEWAY_S = 30
IDENTITY_REMEMBERED_MAX = 10_000
IDENTITY_REMEMBERED_MS = 5 * 60 * 1000
IDENTITY_NOTED_MS = 60 * 60 * 1000  # how often the history notes the same identity
IDENTITY_KEYS_FRESH_MS = 60 * 60 * 1000
IDENTITY_KEYS_KEPT_MS = 24 * 60 * 60 * 1000
IDENTITY_ASK_AGAIN_MS = 30_000
IDENTITY_ASK_MS_MAX = 5_000
IDENTITY_ANSWER_BYTES_MAX = 256 * 1024
IDENTITY_KEYS_MAX = 64
IDENTITY_WAITING_MAX = 1_000  # requests that wait for the keys of one issuer

# Git. A record of another machine counts as put when this one first saw it, or by the remote's clock less GIT_SKEW_MS,
# whichever is the longer ago; a machine whose clock is further than that from the remote's goes by what it saw alone.
# A chain is begun anew after GIT_CHAIN_MAX commits and then carries its newest GIT_PAST_MAX events along; what was
# deleted keeps its version for GIT_TOMBSTONE_MS. A record that is larger than GIT_RECORD_BYTES_MAX, or lists more than
# GIT_ITEMS_MAX of anything, is not read: anybody may push one.
GIT_SKEW_MS = 15 * 60 * 1000
GIT_MS_MAX = 30_000
GIT_POLL_MS = 5_000
GIT_FILE_POLL_MS = 1_000
GIT_LOCAL_POLL_MS = 200
GIT_TRIES_MAX = 30
GIT_TORN_TRIES_MAX = 8
GIT_CHAIN_MAX = 100
GIT_PAST_MAX = 50
GIT_TOMBSTONE_MS = 7 * 24 * 3600 * 1000
GIT_TIDY_BATCH_MAX = 200
GIT_RECORD_BYTES_MAX = 4 * 1024 * 1024
GIT_ITEMS_MAX = 10_000
GIT_TOKENS_KEPT = 10_000

# etcd. ETCD_BATCH_MAX commands compare fewer records than one transaction can, so that large commits, which are slower,
# stay rare. A call has ETCD_MS_MAX, a try at one member ETCD_TRY_MS_MAX. A clock that is ETCD_CLOCK_MS_MAX off, beyond
# what whole seconds can show, is refused. Who waits looks every ETCD_POLL_MS, or every ETCD_HEARD_POLL_MS while a
# stream would say; a stream that is silent for ETCD_SILENCE_MS is begun anew.
ETCD_BATCH_MAX = 48
ETCD_READ_KEYS_MAX = 1_000
ETCD_REQUEST_BYTES_MAX = 1_500_000
ETCD_MS_MAX = 6_000
ETCD_TRY_MS_MAX = 2_000
ETCD_CLOCK_MS_MAX = 500
ETCD_POLL_MS = 100
ETCD_HEARD_POLL_MS = 2_000
ETCD_SILENCE_MS = 30_000

# Trackers. All that one claim asks of a tracker has TRACKER_MS_MAX, a listing TRACKER_LIST_MS_MAX; a claim with a short
# TTL has a third of it. A question is about TRACKER_ISSUES_AT_ONCE issues at most. `dibs gh next` looks at
# TRACKER_ISSUES_MAX open issues. The comment of an owner is looked for among the last TRACKER_COMMENTS_MAX.
TRACKER_MS_MAX = 10_000
TRACKER_LIST_MS_MAX = 60_000
TRACKER_ISSUES_AT_ONCE = 50
TRACKER_ISSUES_MAX = 10_000
TRACKER_COMMENTS_MAX = 1_000
