"""A process with one scheduler and one job: `python -m tests.plugins.contrib.scheduler LOG WHO TIME HANG [WAIT]`.

The job writes who runs it, and then waits for ever if HANG is `yes`."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from apscheduler.schedulers.blocking import BlockingScheduler

from dibs.contrib.apscheduler import OneOwnerExecutor
from dibs.contrib.one_owner import current_claim
from tests.programs import pause


def main() -> None:
    log, who, time, hang, *wait = sys.argv[1:]

    def job() -> None:
        claim = current_claim()
        before = claim.previous.checkpoint if claim.previous else None
        claim.checkpoint(who)
        with open(log, "a") as file:
            file.write(f"{who} runs after {before}\n")
        while hang == "yes":
            pause(1)

    executor = OneOwnerExecutor(ttl=3, wait=wait[0] if wait else None)
    scheduler = BlockingScheduler(executors={"default": executor})
    at = datetime.fromisoformat(time)
    scheduler.add_job(job, "date", run_date=at, id="report", misfire_grace_time=None)
    Path(f"{log}-{who}").touch()
    scheduler.start()


if __name__ == "__main__":
    main()
