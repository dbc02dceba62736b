"""Every metric of a server, declared once: kind, name, sentence, where the number is, labels.

The page docs/reference/metrics.md is made from this table, and the dashboard and the alert rules in deploy/ may name
nothing else. Values of labels are words of ours: no job, owner, principal or namespace is ever one, but for the jobs
that the operator names by --metric-jobs. The numbers of the process (process_*) are prometheus-client's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dibs._version import __version__
from dibs.base import build_kind
from dibs.core import events
from dibs.core.commands import Release, Renew
from dibs.engine.metrics import Histogram, Metrics
from dibs.server.engine import Engine
from dibs.server.event_stream import StreamRegistry


class StoreLook(NamedTuple):
    last_seq: int
    now_ms: int  # of its clock
    token_ends_ms: int | None  # on the wall clock: when the next token ends
    has_trouble: bool  # it knows a failure that may not be over, or is frozen


class Scrape(NamedTuple):
    engine: Engine
    look: StoreLook | None  # None: the store did not answer in time
    streams: StreamRegistry
    certificate_ends_ms: int | None = None  # on the wall clock; None without TLS

    @property
    def metrics(self) -> Metrics:
        return self.engine.metrics


COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"
SERVER, STORE = "server", "store"
Number = int | float
Values = Number | Histogram | Mapping[Any, Number] | Mapping[Any, Histogram] | None


class Metric(NamedTuple):
    """`read` gives one value, or one for each combination of labels. None: it has no value now."""

    kind: str
    name: str
    help: str
    read: Callable[[Scrape], Values]
    labels: tuple[str, ...] = ()
    of: str = SERVER  # what it describes: this server, or the store that all its servers share


# Words that are there from the start, so that a first one is seen as a rise from 0.
_ANSWERS = ("acquired", "held", "queued", "done", "parked", "delayed", "superseded", "deadlock", "abandoned")
_STATUS = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")


def _words(counts: Mapping[str, int], known: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    found = {**dict.fromkeys(known, 0), **counts}
    return {(word,): found[word] for word in sorted(found)}


METRICS = (
    Metric(
        INFO,
        "dibs_build_info",
        "Always 1. Which version this is, the kind of its store, and whether its rules are compiled or pure Python.",
        lambda scrape: {(__version__, scrape.engine.store.capabilities.name, build_kind()): 1},
        labels=("version", "store", "build"),
    ),
    Metric(
        COUNTER,
        "dibs_claims_total",
        "Claims answered, by the status or error code of the answer. A claim that waits in line is counted when it "
        "is answered; abandoned: its caller hung up while it waited.",
        lambda scrape: _words(scrape.metrics.claims(), _ANSWERS),
        labels=("outcome",),
    ),
    Metric(
        COUNTER,
        "dibs_renewals_total",
        "Renewals of leases, by the status or error code of the answer.",
        lambda scrape: _words(scrape.metrics.outcomes_of(Renew), ("renewed", "lease_not_current")),
        labels=("outcome",),
    ),
    Metric(
        COUNTER,
        "dibs_releases_total",
        "Releases, by the status or error code of the answer.",
        lambda scrape: _words(scrape.metrics.outcomes_of(Release), ("released", "failed", "lease_not_current")),
        labels=("outcome",),
    ),
    Metric(
        COUNTER,
        "dibs_holds_ended_total",
        "Holds that ended by a commit of this server: released, failed, expired, broken or transferred.",
        lambda scrape: _words({kind: scrape.metrics.events[kind] for kind in events.OWNERSHIP_ENDS}),
        labels=("how",),
    ),
    Metric(
        COUNTER,
        "dibs_events_total",
        "Events written by this server, by kind. A commit whose answer was lost is not counted.",
        lambda scrape: _words(scrape.metrics.events.copy(), events.KINDS),
        labels=("kind",),
    ),
    Metric(
        HISTOGRAM,
        "dibs_hold_seconds",
        "For how long jobs were held, of the holds that ended by a commit of this server.",
        lambda scrape: scrape.metrics.holds,
    ),
    Metric(
        HISTOGRAM,
        "dibs_wait_seconds",
        "For how long owners waited in line, of the waiters that were given a job by a commit of this server.",
        lambda scrape: scrape.metrics.waits,
    ),
    Metric(
        GAUGE,
        "dibs_held",
        "Live leases in the store, of all servers. Too small while dibs_counting is 1.",
        lambda scrape: scrape.engine.tally.live,
        of=STORE,
    ),
    Metric(
        GAUGE,
        "dibs_waiting",
        "Places taken in lines in the store, of all servers.",
        lambda scrape: scrape.engine.tally.waiting,
        of=STORE,
    ),
    Metric(
        GAUGE,
        "dibs_jobs",
        "Jobs in the store that may need a person. parked: until somebody frees them. failed: the last hold "
        "failed, expired or was broken, and nobody has claimed the job since. resting: nobody is granted the job "
        "yet; it may be a failed one. Unknown while the store does not answer, too small while dibs_counting is 1.",
        lambda scrape: None if scrape.look is None else _words(scrape.engine.tally.states(scrape.look.now_ms)),
        labels=("status",),
        of=STORE,
    ),
    Metric(
        GAUGE,
        "dibs_job_last_success_timestamp_seconds",
        "When a job that --metric-jobs names last succeeded, in seconds since 1970. 0: no success is on record.",
        lambda scrape: {job: at_ms / 1000 for job, at_ms in sorted(scrape.engine.successes.at_ms.items())},
        labels=("ns", "name"),
        of=STORE,
    ),
    Metric(
        GAUGE,
        "dibs_sessions",
        "Open sessions in the store, of all servers.",
        lambda scrape: scrape.engine.tally.sessions,
        of=STORE,
    ),
    Metric(
        GAUGE,
        "dibs_counting",
        "1 while this server, which has just started, still counts the leases that exist.",
        lambda scrape: int(scrape.engine.tally.is_counting),
    ),
    Metric(
        GAUGE,
        "dibs_waiters",
        "Callers that wait for their turn at this server.",
        lambda scrape: len(scrape.engine.waiters),
    ),
    Metric(
        HISTOGRAM,
        "dibs_batch_commands",
        "How many commands were decided together, with one commit.",
        lambda scrape: scrape.metrics.batches,
    ),
    Metric(
        HISTOGRAM,
        "dibs_commit_duration_seconds",
        "How long commits took, also those that failed.",
        lambda scrape: scrape.metrics.commits,
    ),
    Metric(
        COUNTER,
        "dibs_store_faults_total",
        "Calls of the store that did not succeed. conflict: another process wrote the same records, and the "
        "commands were decided again. busy: the event loop did not wait, and a thread did. read_error, "
        "write_error: the store failed.",
        lambda scrape: {
            ("busy",): scrape.metrics.busy,
            ("conflict",): scrape.metrics.conflicts,
            ("read_error",): scrape.metrics.read_errors,
            ("write_error",): scrape.metrics.write_errors,
        },
        labels=("fault",),
    ),
    Metric(
        GAUGE,
        "dibs_store_up",
        "Whether the store answered this scrape in time.",
        lambda scrape: int(scrape.look is not None),
    ),
    Metric(
        GAUGE,
        "dibs_store_writable",
        "0 if writes are blocked: a commit of this server takes over 3 s, the last one failed within 5 minutes, "
        "the store knows a failure that is not over, or it is frozen. A server that writes nothing does not notice.",
        lambda scrape: int(not (scrape.metrics.is_write_blocked() or (scrape.look and scrape.look.has_trouble))),
    ),
    Metric(
        COUNTER,
        "dibs_stalls_total",
        "How often this process found that it had been stopped between two looks at the clock.",
        lambda scrape: scrape.metrics.stalls,
    ),
    Metric(
        COUNTER,
        "dibs_outage_seconds_total",
        "Time in which no server could serve, as recorded by this server. Live leases got credit for it.",
        lambda scrape: scrape.metrics.outages_ms / 1000,
    ),
    Metric(
        GAUGE,
        "dibs_event_stored_position",
        "The number of the newest event in the store. Unknown while the store does not answer.",
        lambda scrape: None if scrape.look is None else scrape.look.last_seq,
        of=STORE,
    ),
    Metric(
        GAUGE,
        "dibs_event_told_position",
        "The number of the newest event that this server has passed on to its streams and counts.",
        lambda scrape: scrape.engine.reported_seq,
    ),
    Metric(
        GAUGE,
        "dibs_event_lag",
        "How far the position passed on is behind the stored one. On stores that number without gaps: how many events.",
        lambda scrape: None if scrape.look is None else max(scrape.look.last_seq - scrape.engine.reported_seq, 0),
    ),
    Metric(
        GAUGE,
        "dibs_event_streams",
        "Open streams of events.",
        lambda scrape: len(scrape.streams),
    ),
    Metric(
        COUNTER,
        "dibs_event_streams_dropped_total",
        "Streams that were ended because their reader did not read. The last thing sent says where to continue.",
        lambda scrape: scrape.streams.dropped,
    ),
    Metric(
        COUNTER,
        "dibs_webhook_deliveries_total",
        "Deliveries to webhooks. delivered, failed: tries, by how they ended. dead: given up after the last try. "
        "gaps: events were pruned before they were sent, and the target is told so.",
        lambda scrape: _words(scrape.metrics.deliveries),
        labels=("outcome",),
    ),
    Metric(
        GAUGE,
        "dibs_webhook_jobs_waiting",
        "Jobs with deliveries that wait or are under way. One server delivers; 0 at the others.",
        lambda scrape: scrape.engine.dispatcher.rounds.jobs_waiting,
    ),
    Metric(
        COUNTER,
        "dibs_http_requests_total",
        "Requests answered, by verb and class of status. none: the client was gone.",
        lambda scrape: {
            (verb, _STATUS[index]): count
            for verb, counts in sorted(scrape.metrics.requests.items())
            for index, count in enumerate(counts.counted().classes)
            if count
        },
        labels=("verb", "status"),
    ),
    Metric(
        HISTOGRAM,
        "dibs_http_request_duration_seconds",
        "From the end of a request's head to the beginning of its answer. The verb of claims that may wait is `wait`.",
        lambda scrape: {
            (verb,): counts.counted().durations for verb, counts in sorted(scrape.metrics.requests.items())
        },
        labels=("verb",),
    ),
    Metric(
        GAUGE,
        "dibs_http_connections",
        "Open connections.",
        lambda scrape: scrape.metrics.connections_open,
    ),
    Metric(
        COUNTER,
        "dibs_http_connections_accepted_total",
        "Connections accepted.",
        lambda scrape: scrape.metrics.connections,
    ),
    Metric(
        COUNTER,
        "dibs_http_connections_refused_total",
        "Connections turned away, because there were too many in all or from one client.",
        lambda scrape: scrape.metrics.turned_away,
    ),
    Metric(
        COUNTER,
        "dibs_http_refused_total",
        "Requests refused because their caller is not known (401), or may not do this (403).",
        lambda scrape: _words({str(status): count for status, count in scrape.metrics.refused.items()}),
        labels=("status",),
    ),
    Metric(
        COUNTER,
        "dibs_identity_checks_total",
        "Signed tokens that were checked, by result: accepted, or the reason of the refusal.",
        lambda scrape: _words(scrape.metrics.identities.copy()),
        labels=("result",),
    ),
    Metric(
        COUNTER,
        "dibs_rate_limited_total",
        "Requests refused because their token has a limit of requests a second.",
        lambda scrape: scrape.metrics.rate_limited,
    ),
    Metric(
        COUNTER,
        "dibs_overloaded_total",
        "Commands refused because too many waited for the store.",
        lambda scrape: scrape.metrics.overloaded,
    ),
    Metric(
        GAUGE,
        "dibs_token_next_expiry_timestamp_seconds",
        "When the next token of the store expires, in seconds since 1970. Not there if none does.",
        lambda scrape: (
            None if scrape.look is None or scrape.look.token_ends_ms is None else scrape.look.token_ends_ms / 1000
        ),
        of=STORE,
    ),
    Metric(
        GAUGE,
        "dibs_tls_certificate_expiry_timestamp_seconds",
        "When the certificate of this server ends, in seconds since 1970. Not there without TLS.",
        lambda scrape: None if scrape.certificate_ends_ms is None else scrape.certificate_ends_ms / 1000,
    ),
)
# What prometheus-client says of the process, on Linux.
PROCESS = (
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
)
