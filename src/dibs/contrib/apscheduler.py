"""An executor for APScheduler 3: of several schedulers with the same jobs, one runs a job at each scheduled time.

    scheduler = BackgroundScheduler(executors={"default": OneOwnerExecutor()})
    scheduler.add_job(report, "cron", hour=3, id="nightly-report")

What is claimed is the job's id with the scheduled time. After the run it counts as done, so a scheduler that is late
does not run it again. All schedulers must use the same ids and compute the same times: cron triggers do; an interval
needs a `start_date`, and a jitter makes other times everywhere. APScheduler 4 has other executors and is not covered.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.executors.base import run_job
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.job import Job

from dibs.base.errors import DibsError, JobDone, JobHeld, JobResting
from dibs.base.logger import log
from dibs.contrib.one_owner import entered, filled
from dibs.core.durations import Duration
from dibs.sdk.claim import Claim
from dibs.sdk.claim_state import reason_of
from dibs.sdk.claims import TTL_SECONDS
from dibs.sdk.client import Client
from dibs.sdk.default import default_client

Events = list[JobExecutionEvent]


class OneOwnerExecutor(ThreadPoolExecutor):
    """A thread pool that claims each run. `wait`: how long schedulers stay in line for a run that another one has, to
    take it over if that one dies. A waiting run keeps one thread of the pool busy."""

    def __init__(
        self,
        max_workers: int = 10,
        pool_kwargs: dict[str, Any] | None = None,
        *,
        client: Client | None = None,
        ttl: Duration = TTL_SECONDS,
        wait: Duration | None = None,
        done: Duration | bool = True,
    ) -> None:
        super().__init__(max_workers, pool_kwargs)
        self._client = client
        self._ttl = ttl
        self._wait = wait
        self._done = done

    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        def ended(future: Future[Events]) -> None:
            error = future.exception()
            if error is None:
                self._run_job_success(job.id, future.result())
            else:
                self._run_job_error(job.id, error, error.__traceback__)

        def run() -> Events:
            return [event for at in run_times for event in self._run_owned(job, at)]

        self._pool.submit(run).add_done_callback(ended)

    def _run_owned(self, job: Job, at: datetime) -> Events:
        """The scheduler's events for one run; none if another scheduler has it or did it."""
        events: Events = []
        name = filled("apscheduler {id} {at}", {"id": job.id, "at": at.astimezone(UTC).isoformat()})
        client = self._client or default_client()
        try:
            with ExitStack() as stack:
                try:
                    claim = stack.enter_context(entered(client.claim(name, ttl=self._ttl, wait=self._wait)))
                except (JobHeld, JobDone, JobResting) as refusal:
                    log.debug("Not run here: %s", refusal.details)
                    return []
                events = run_job(job, job._jobstore_alias, [at], self._logger.name)
                self._finish(claim, events)
            return events
        except DibsError as error:  # no store, or the claim was lost while the job ran
            log.error("%s: %s", name, error.details)
            return [JobExecutionEvent(EVENT_JOB_ERROR, job.id, job._jobstore_alias, at, exception=error)]

    def _finish(self, claim: Claim, events: Events) -> None:
        """A run that failed is over, too: APScheduler does not run it again. One that came too late was not run."""
        if any(event.code == EVENT_JOB_MISSED for event in events):
            claim.release()
            return
        failed = [event for event in events if event.code == EVENT_JOB_ERROR]
        reason = reason_of(failed[0].exception) if failed else None
        if failed and self._done is False:  # nobody will be shown a result
            claim.fail(reason)
        else:
            claim.done(reason, done=self._done)
