"""Every metric of a server, declared once: name, kind, sentence, labels, and where the number is.

The page docs/reference/metrics.md is made from this table, and the dashboard and the alert rules in deploy/ may name
nothing else. Values of labels are words of ours: no job, owner, principal or namespace is ever one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dibs._version import __version__
from dibs.base import build_kind
from dibs.core import events
from dibs.server.monitor.exposition import COUNTER, GAUGE, HISTOGRAM, INFO, Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.engine.metrics import Histogram, Metrics
    from dibs.server.engine import Engine
    from dibs.server.event_stream import StreamRegistry
    from dibs.server.monitor.exposition import ProcessNumbers


class StoreLook(NamedTuple):
    """The result of a look at the store."""

    last_seq: int
    now_ms: int  # of its clock
    token_ends_ms: int | None  # on the wall clock: when the next token ends
    has_trouble: bool  # it knows a fault that may not be over, or is frozen


class Scrape(NamedTuple):
    """The sources of the numbers of one scrape."""

    engine: Engine
    process: ProcessNumbers
    look: StoreLook | None  # None: the store did not answer in time
    streams: StreamRegistry
    certificate_ends_ms: int | None = None  # on the wall clock; None without TLS

    @property
    def metrics(self) -> Metrics:
        return self.engine.metrics


_info, _counter, _gauge, _histogram = (partial(Metric, kind) for kind in (INFO, COUNTER, GAUGE, HISTOGRAM))

# Words that are there from the start, so that a first one is seen as a rise from 0.
_ANSWERS = ("acquired", "held", "queued", "done", "parked", "delayed", "deadlock", "abandoned")
_STATUS = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")


def _words(counts: Mapping[str, int], known: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    found = {**dict.fromkeys(known, 0), **counts}
    return {(word,): found[word] for word in sorted(found)}


def _requests(scrape: Scrape) -> dict[tuple[str, ...], int]:
    return {
        (verb, _STATUS[index]): count
        for verb, counts in sorted(scrape.metrics.requests.items())
        for index, count in enumerate(counts.classes)
        if count
    }


def _durations(scrape: Scrape) -> dict[tuple[str, ...], Histogram]:
    return {(verb,): counts.durations for verb, counts in sorted(scrape.metrics.requests.items())}


def _store_calls(scrape: Scrape) -> dict[tuple[str, ...], int]:
    found = scrape.metrics
    return {
        ("busy",): found.busy,
        ("conflict",): found.conflicts,
        ("read_error",): found.read_errors,
        ("write_error",): found.write_errors,
    }


def _build(scrape: Scrape) -> dict[tuple[str, ...], int]:
    return {(__version__, scrape.engine.store.capabilities.name, build_kind()): 1}


METRICS = (
    _info(
        "dibs_build_info",
        "Always 1. Which version this is, the kind of its store, and whether its rules are compiled or pure Python.",
        _build,
        ("version", "store", "build"),
    ),
    _counter(
        "dibs_claims_total",
        "Claims answered, by the status or error code of the answer. A claim that waits in line is counted when it is "
        "answered; abandoned: its caller hung up while it waited.",
        lambda scrape: _words(scrape.metrics.claims(), _ANSWERS),
        ("outcome",),
    ),
    _counter(
        "dibs_renewals_total",
        "Renewals of leases, by the status or error code of the answer.",
        lambda scrape: _words(scrape.metrics.renewals(), ("renewed", "lease_not_current")),
        ("outcome",),
    ),
    _counter(
        "dibs_releases_total",
        "Releases, by the status or error code of the answer.",
        lambda scrape: _words(scrape.metrics.releases(), ("released", "failed", "lease_not_current")),
        ("outcome",),
    ),
    _counter(
        "dibs_holds_ended_total",
        "Holds that ended by a commit of this server: released, failed, expired, broken or transferred.",
        lambda scrape: _words({kind: scrape.metrics.events[kind] for kind in events.OWNERSHIP_ENDS}),
        ("how",),
    ),
    _counter(
        "dibs_events_total",
        "Events written by this server, by kind. A commit whose answer was lost is not counted.",
        lambda scrape: _words(scrape.metrics.events.copy(), events.KINDS),
        ("kind",),
    ),
    _histogram(
        "dibs_hold_seconds",
        "For how long jobs were held, of the holds that ended by a commit of this server.",
        lambda scrape: scrape.metrics.holds,
    ),
    _histogram(
        "dibs_wait_seconds",
        "For how long owners waited in line, of the waiters that were given a job by a commit of this server.",
        lambda scrape: scrape.metrics.waits,
    ),
    _gauge(
        "dibs_held",
        "Live leases in the store, of all servers. Too small while dibs_counting is 1.",
        lambda scrape: scrape.engine.tally.live,
        of="store",
    ),
    _gauge(
        "dibs_waiting",
        "Places taken in lines in the store, of all servers.",
        lambda scrape: scrape.engine.tally.waiting,
        of="store",
    ),
    _gauge(
        "dibs_jobs",
        "Jobs in the store that may need a person. parked: until somebody frees them. failed: the last hold failed, "
        "expired or was broken, and nobody has claimed the job since. resting: nobody is granted the job yet; it may "
        "be a failed one. Unknown while the store does not answer, too small while dibs_counting is 1.",
        lambda scrape: None if scrape.look is None else _words(scrape.engine.tally.states(scrape.look.now_ms)),
        ("status",),
        of="store",
    ),
    _gauge(
        "dibs_sessions",
        "Open sessions in the store, of all servers.",
        lambda scrape: scrape.engine.tally.sessions,
        of="store",
    ),
    _gauge(
        "dibs_counting",
        "1 while this server, which has just started, still counts the leases that exist.",
        lambda scrape: int(scrape.engine.tally.is_counting),
    ),
    _gauge(
        "dibs_waiters", "Callers that wait for their turn at this server.", lambda scrape: len(scrape.engine.waiters)
    ),
    _histogram(
        "dibs_batch_commands",
        "How many commands were decided together, with one commit.",
        lambda scrape: scrape.metrics.batches,
    ),
    _histogram(
        "dibs_commit_duration_seconds",
        "How long commits took, also those that failed.",
        lambda scrape: scrape.metrics.commits,
    ),
    _counter(
        "dibs_store_faults_total",
        "Calls of the store that did not succeed. conflict: another process wrote the same records, and the commands "
        "were decided again. busy: the event loop did not wait, and a thread did. read_error, write_error: the store "
        "failed.",
        _store_calls,
        ("fault",),
    ),
    _gauge(
        "dibs_store_up", "Whether the store answered this scrape in time.", lambda scrape: int(scrape.look is not None)
    ),
    _gauge(
        "dibs_store_writable",
        "0 if writes are blocked: a commit of this server takes over 3 s, the last one failed within 5 minutes, the "
        "store knows a fault that is not over, or it is frozen. A server that writes nothing does not notice.",
        lambda scrape: int(not (scrape.metrics.is_write_blocked() or (scrape.look and scrape.look.has_trouble))),
    ),
    _counter(
        "dibs_stalls_total",
        "How often this process found that it had been stopped between two looks at the clock.",
        lambda scrape: scrape.metrics.stalls,
    ),
    _counter(
        "dibs_outage_seconds_total",
        "Time in which no server could serve, as recorded by this server. Live leases got credit for it.",
        lambda scrape: scrape.metrics.outages_ms / 1000,
    ),
    _gauge(
        "dibs_event_stored_position",
        "The number of the newest event in the store. Unknown while the store does not answer.",
        lambda scrape: None if scrape.look is None else scrape.look.last_seq,
        of="store",
    ),
    _gauge(
        "dibs_event_told_position",
        "The number of the newest event that this server has told to its streams and its counts.",
        lambda scrape: scrape.engine.told_seq,
    ),
    _gauge(
        "dibs_event_lag",
        "How far the told position is behind the stored one. On stores that number without gaps: how many events.",
        lambda scrape: None if scrape.look is None else max(scrape.look.last_seq - scrape.engine.told_seq, 0),
    ),
    _gauge("dibs_event_streams", "Open streams of events.", lambda scrape: len(scrape.streams)),
    _counter(
        "dibs_event_streams_dropped_total",
        "Streams that were ended because their reader did not read. It was told where to continue.",
        lambda scrape: scrape.streams.dropped,
    ),
    _counter(
        "dibs_webhook_deliveries_total",
        "Deliveries to webhooks. delivered, failed: tries, by how they ended. dead: given up after the last try. gaps: "
        "events were pruned before they were sent, and the target is told so.",
        lambda scrape: _words(scrape.metrics.deliveries),
        ("outcome",),
    ),
    _gauge(
        "dibs_webhook_jobs_waiting",
        "Jobs with deliveries that wait or are under way. One server delivers; 0 at the others.",
        lambda scrape: scrape.engine.dispatcher.rounds.jobs_waiting,
    ),
    _counter(
        "dibs_http_requests_total",
        "Requests answered, by verb and class of status. none: the client was gone.",
        _requests,
        ("verb", "status"),
    ),
    _histogram(
        "dibs_http_request_duration_seconds",
        "From the end of a request's head to the beginning of its answer. The verb of claims that may wait is `wait`.",
        _durations,
        ("verb",),
    ),
    _gauge("dibs_http_connections", "Open connections.", lambda scrape: scrape.metrics.connections_open),
    _counter(
        "dibs_http_connections_accepted_total", "Connections accepted.", lambda scrape: scrape.metrics.connections
    ),
    _counter(
        "dibs_http_connections_refused_total",
        "Connections turned away, because there were too many in all or from one client.",
        lambda scrape: scrape.metrics.turned_away,
    ),
    _counter(
        "dibs_http_refused_total",
        "Requests refused because their caller is not known (401), or may not do this (403).",
        lambda scrape: _words({str(status): count for status, count in scrape.metrics.refused.items()}),
        ("status",),
    ),
    _counter(
        "dibs_rate_limited_total",
        "Requests refused because their token may send only so many a second.",
        lambda scrape: scrape.metrics.rate_limited,
    ),
    _counter(
        "dibs_overloaded_total",
        "Commands refused because too many waited for the store.",
        lambda scrape: scrape.metrics.overloaded,
    ),
    _gauge(
        "dibs_token_next_expiry_timestamp_seconds",
        "When the next token of the store expires, in seconds since 1970. Not there if none does.",
        lambda scrape: (
            None if scrape.look is None or scrape.look.token_ends_ms is None else scrape.look.token_ends_ms / 1000
        ),
        of="store",
    ),
    _gauge(
        "dibs_tls_certificate_expiry_timestamp_seconds",
        "When the certificate of this server ends, in seconds since 1970. Not there without TLS.",
        lambda scrape: None if scrape.certificate_ends_ms is None else scrape.certificate_ends_ms / 1000,
    ),
    _counter(
        "process_cpu_seconds_total", "CPU time of this process, user and system.", lambda scrape: scrape.process.cpu_s
    ),
    _gauge(
        "process_resident_memory_bytes",
        "Memory of this process that is in RAM. Linux only.",
        lambda scrape: scrape.process.resident_bytes,
    ),
    _gauge("process_open_fds", "Open files and sockets. Linux only.", lambda scrape: scrape.process.open_files),
    _gauge("process_max_fds", "How many it may open.", lambda scrape: scrape.process.files_max),
    _gauge(
        "process_start_time_seconds",
        "When this server started, in seconds since 1970. All counters began at 0 then.",
        lambda scrape: scrape.metrics.started_ms / 1000,
    ),
)
