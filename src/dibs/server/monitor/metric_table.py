"""Every metric of a server, declared once: name, kind, sentence, labels, and where the number is.

The page docs/reference/metrics.md is made from this table, and the dashboard and the alert rules in deploy/ may name
nothing else. Values of labels are words of ours: no job, owner, principal or namespace is ever one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from dibs._version import __version__
from dibs.base import build_kind
from dibs.base.tables import sections
from dibs.core import events
from dibs.core.commands import Release, Renew
from dibs.engine.metrics import Metrics
from dibs.server.engine import Engine
from dibs.server.event_stream import StreamRegistry
from dibs.server.monitor.exposition import Metric, ProcessNumbers, Values


class StoreLook(NamedTuple):
    last_seq: int
    now_ms: int  # of its clock
    token_ends_ms: int | None  # on the wall clock: when the next token ends
    has_trouble: bool  # it knows a fault that may not be over, or is frozen


class Scrape(NamedTuple):
    engine: Engine
    process: ProcessNumbers
    look: StoreLook | None  # None: the store did not answer in time
    streams: StreamRegistry
    certificate_ends_ms: int | None = None  # on the wall clock; None without TLS

    @property
    def metrics(self) -> Metrics:
        return self.engine.metrics


# Words that are there from the start, so that a first one is seen as a rise from 0.
_ANSWERS = ("acquired", "held", "queued", "done", "parked", "delayed", "superseded", "deadlock", "abandoned")
_STATUS = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")


def _words(counts: Mapping[str, int], known: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    found = {**dict.fromkeys(known, 0), **counts}
    return {(word,): found[word] for word in sorted(found)}


# A metric: its kind, its name with its labels, where its number is (else in `_READ`); below it a sentence.
_TABLE = """
info dibs_build_info(version,store,build)
    Always 1. Which version this is, the kind of its store, and whether its rules are compiled or pure Python.
counter dibs_claims_total(outcome)
    Claims answered, by the status or error code of the answer. A claim that waits in line is counted when it is
        answered; abandoned: its caller hung up while it waited.
counter dibs_renewals_total(outcome)
    Renewals of leases, by the status or error code of the answer.
counter dibs_releases_total(outcome)
    Releases, by the status or error code of the answer.
counter dibs_holds_ended_total(how)
    Holds that ended by a commit of this server: released, failed, expired, broken or transferred.
counter dibs_events_total(kind)
    Events written by this server, by kind. A commit whose answer was lost is not counted.
histogram dibs_hold_seconds = metrics.holds
    For how long jobs were held, of the holds that ended by a commit of this server.
histogram dibs_wait_seconds = metrics.waits
    For how long owners waited in line, of the waiters that were given a job by a commit of this server.
gauge dibs_held of the store = engine.tally.live
    Live leases in the store, of all servers. Too small while dibs_counting is 1.
gauge dibs_waiting of the store = engine.tally.waiting
    Places taken in lines in the store, of all servers.
gauge dibs_jobs(status) of the store
    Jobs in the store that may need a person. parked: until somebody frees them. failed: the last hold failed, expired
        or was broken, and nobody has claimed the job since. resting: nobody is granted the job yet; it may be a failed
        one. Unknown while the store does not answer, too small while dibs_counting is 1.
gauge dibs_job_last_success_timestamp_seconds(ns,name) of the store
    When a job that --metric-jobs names last succeeded, in seconds since 1970. 0: no success is on record.
gauge dibs_sessions of the store = engine.tally.sessions
    Open sessions in the store, of all servers.
gauge dibs_counting
    1 while this server, which has just started, still counts the leases that exist.
gauge dibs_waiters
    Callers that wait for their turn at this server.
histogram dibs_batch_commands = metrics.batches
    How many commands were decided together, with one commit.
histogram dibs_commit_duration_seconds = metrics.commits
    How long commits took, also those that failed.
counter dibs_store_faults_total(fault)
    Calls of the store that did not succeed. conflict: another process wrote the same records, and the commands were
        decided again. busy: the event loop did not wait, and a thread did. read_error, write_error: the store failed.
gauge dibs_store_up
    Whether the store answered this scrape in time.
gauge dibs_store_writable
    0 if writes are blocked: a commit of this server takes over 3 s, the last one failed within 5 minutes, the store
        knows a fault that is not over, or it is frozen. A server that writes nothing does not notice.
counter dibs_stalls_total = metrics.stalls
    How often this process found that it had been stopped between two looks at the clock.
counter dibs_outage_seconds_total
    Time in which no server could serve, as recorded by this server. Live leases got credit for it.
gauge dibs_event_stored_position of the store
    The number of the newest event in the store. Unknown while the store does not answer.
gauge dibs_event_told_position = engine.told_seq
    The number of the newest event that this server has told to its streams and its counts.
gauge dibs_event_lag
    How far the told position is behind the stored one. On stores that number without gaps: how many events.
gauge dibs_event_streams
    Open streams of events.
counter dibs_event_streams_dropped_total = streams.dropped
    Streams that were ended because their reader did not read. It was told where to continue.
counter dibs_webhook_deliveries_total(outcome)
    Deliveries to webhooks. delivered, failed: tries, by how they ended. dead: given up after the last try. gaps: events
        were pruned before they were sent, and the target is told so.
gauge dibs_webhook_jobs_waiting = engine.dispatcher.rounds.jobs_waiting
    Jobs with deliveries that wait or are under way. One server delivers; 0 at the others.
counter dibs_http_requests_total(verb,status)
    Requests answered, by verb and class of status. none: the client was gone.
histogram dibs_http_request_duration_seconds(verb)
    From the end of a request's head to the beginning of its answer. The verb of claims that may wait is `wait`.
gauge dibs_http_connections = metrics.connections_open
    Open connections.
counter dibs_http_connections_accepted_total = metrics.connections
    Connections accepted.
counter dibs_http_connections_refused_total = metrics.turned_away
    Connections turned away, because there were too many in all or from one client.
counter dibs_http_refused_total(status)
    Requests refused because their caller is not known (401), or may not do this (403).
counter dibs_rate_limited_total = metrics.rate_limited
    Requests refused because their token may send only so many a second.
counter dibs_overloaded_total = metrics.overloaded
    Commands refused because too many waited for the store.
gauge dibs_token_next_expiry_timestamp_seconds of the store
    When the next token of the store expires, in seconds since 1970. Not there if none does.
gauge dibs_tls_certificate_expiry_timestamp_seconds
    When the certificate of this server ends, in seconds since 1970. Not there without TLS.
counter process_cpu_seconds_total = process.cpu_s
    CPU time of this process, user and system.
gauge process_resident_memory_bytes = process.resident_bytes
    Memory of this process that is in RAM. Linux only.
gauge process_open_fds = process.open_files
    Open files and sockets. Linux only.
gauge process_max_fds = process.files_max
    How many it may open.
gauge process_start_time_seconds
    When this server started, in seconds since 1970. All counters began at 0 then.
"""
_READ: dict[str, Callable[[Scrape], Values]] = {
    "dibs_build_info": lambda scrape: {(__version__, scrape.engine.store.capabilities.name, build_kind()): 1},
    "dibs_claims_total": lambda scrape: _words(scrape.metrics.claims(), _ANSWERS),
    "dibs_renewals_total": lambda scrape: _words(scrape.metrics.outcomes_of(Renew), ("renewed", "lease_not_current")),
    "dibs_releases_total": lambda scrape: _words(
        scrape.metrics.outcomes_of(Release), ("released", "failed", "lease_not_current")
    ),
    "dibs_holds_ended_total": lambda scrape: _words(
        {kind: scrape.metrics.events[kind] for kind in events.OWNERSHIP_ENDS}
    ),
    "dibs_events_total": lambda scrape: _words(scrape.metrics.events.copy(), events.KINDS),
    "dibs_jobs": lambda scrape: None if scrape.look is None else _words(scrape.engine.tally.states(scrape.look.now_ms)),
    "dibs_job_last_success_timestamp_seconds": lambda scrape: {
        job: at_ms / 1000 for job, at_ms in sorted(scrape.engine.successes.at_ms.items())
    },
    "dibs_counting": lambda scrape: int(scrape.engine.tally.is_counting),
    "dibs_waiters": lambda scrape: len(scrape.engine.waiters),
    "dibs_store_faults_total": lambda scrape: {
        ("busy",): scrape.metrics.busy,
        ("conflict",): scrape.metrics.conflicts,
        ("read_error",): scrape.metrics.read_errors,
        ("write_error",): scrape.metrics.write_errors,
    },
    "dibs_store_up": lambda scrape: int(scrape.look is not None),
    "dibs_store_writable": lambda scrape: int(
        not (scrape.metrics.is_write_blocked() or (scrape.look and scrape.look.has_trouble))
    ),
    "dibs_outage_seconds_total": lambda scrape: scrape.metrics.outages_ms / 1000,
    "dibs_event_stored_position": lambda scrape: None if scrape.look is None else scrape.look.last_seq,
    "dibs_event_lag": lambda scrape: (
        None if scrape.look is None else max(scrape.look.last_seq - scrape.engine.told_seq, 0)
    ),
    "dibs_event_streams": lambda scrape: len(scrape.streams),
    "dibs_webhook_deliveries_total": lambda scrape: _words(scrape.metrics.deliveries),
    "dibs_http_requests_total": lambda scrape: {
        (verb, _STATUS[index]): count
        for verb, counts in sorted(scrape.metrics.requests.items())
        for index, count in enumerate(counts.counted().classes)
        if count
    },
    "dibs_http_request_duration_seconds": lambda scrape: {
        (verb,): counts.counted().durations for verb, counts in sorted(scrape.metrics.requests.items())
    },
    "dibs_http_refused_total": lambda scrape: _words(
        {str(status): count for status, count in scrape.metrics.refused.items()}
    ),
    "dibs_token_next_expiry_timestamp_seconds": lambda scrape: (
        None if scrape.look is None or scrape.look.token_ends_ms is None else scrape.look.token_ends_ms / 1000
    ),
    "dibs_tls_certificate_expiry_timestamp_seconds": lambda scrape: (
        None if scrape.certificate_ends_ms is None else scrape.certificate_ends_ms / 1000
    ),
    "process_start_time_seconds": lambda scrape: scrape.metrics.started_ms / 1000,
}


def _metric(head: str, about: str) -> Metric:
    first, _, place = head.partition(" = ")
    kind, named, *of = first.split(" ", 2)
    name, _, labels = named.rstrip(")").partition("(")
    read: Any = attrgetter(place) if place else _READ[name]
    return Metric(kind, name, about, read, tuple(labels.split(",")) if labels else (), "store" if of else "server")


METRICS = tuple(_metric(head, about) for head, [[about]] in sections(_TABLE))
