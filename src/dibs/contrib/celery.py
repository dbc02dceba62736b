"""A Celery task with one owner: of two tasks with the same job name, one runs at a time, on all workers.

    @app.task(base=OneOwnerTask, bind=True, job_name="import {feed}")
    def import_feed(self, feed):
        for page in pages(feed, start=self.previous_checkpoint):
            self.claim.check()                 # LeaseLost: the job is somebody else's, stop
            store(page, self.claim.fencing_token)
            self.claim.checkpoint(page.id)     # where the next owner goes on

A worker that is killed stops its heartbeats. The claim ends with its TTL, and the redelivered task takes the job over.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject

from dibs.base.errors import InvalidInput, JobDone, JobHeld, JobResting, NotClaimed, Unavailable
from dibs.contrib.one_owner import OneOwner, Template, arguments_of, entered, filled, name_of_call

POLICIES = ("retry", "skip", "reject")


class OneOwnerTask(OneOwner, Task):
    """The settings, here and in OneOwner, are options of `@app.task`."""

    abstract = True
    # The broker delivers a task again if its worker dies. The claim keeps the two from running at once.
    acks_late = True
    reject_on_worker_lost = True

    job_name: Template | None = None  # a template or a function of the arguments; None: the task and all arguments
    if_held = "retry"  # or "skip" (forget the task), "reject" (the broker's dead letters)
    held_delay = 10.0  # seconds before a task that found the job held is tried again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # In a worker, Task.__call__ would push a second, empty request.
        run = super().__call__ if self.request.called_directly else self.run
        if self.if_held not in POLICIES:
            raise InvalidInput(f"if_held is one of {', '.join(POLICIES)}; this is {self.if_held!r}.")
        with ExitStack() as stack:
            try:
                about = f"celery task {self.request.id}" if self.request.id else None
                claim = stack.enter_context(entered(self._claim_on(self._name_for(args, kwargs), metadata=about)))
            except (NotClaimed, Unavailable) as refusal:
                raise self._refused(refusal) from None
            try:
                result = run(*args, **kwargs)
            except (Ignore, Reject):  # the task's own decision, no failure of the work
                claim.release()
                raise
            self._succeeded(claim)
            return result

    def _name_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if self.job_name is not None:
            return name_of_call(self.job_name, self.run, args, kwargs)
        values = arguments_of(self.run, args, kwargs)
        shown = ", ".join(f"{name}={{{name}!r}}" for name in values)
        return filled(f"celery {self.name}({shown})", values)

    def _refused(self, refusal: NotClaimed | Unavailable) -> Exception:
        """Return what to raise. A job that is done is not done again; a parked one fails, so that somebody sees it."""
        if self.request.called_directly:
            return refusal
        forgotten: Exception = Ignore(refusal.details)
        if isinstance(refusal, JobDone):
            return forgotten
        if not isinstance(refusal, JobHeld | JobResting | Unavailable):
            return refusal
        if self.if_held == "retry":
            rest = refusal.retry_after if isinstance(refusal, JobResting) else None
            # The task has not begun: this is not one of the retries that `max_retries` counts.
            self.request.retries -= 1
            later: Exception = self.retry(exc=refusal, countdown=rest or self.held_delay, throw=False)
            return later
        if isinstance(refusal, Unavailable):
            return refusal
        rejected: Exception = Reject(refusal.details, requeue=False)
        return forgotten if self.if_held == "skip" else rejected
