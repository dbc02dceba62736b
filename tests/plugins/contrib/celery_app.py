"""A Celery application whose broker is a folder. Tests start workers of it:
`python -m celery -A tests.plugins.contrib.celery_app worker`. Its tasks write what they do into a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery

from dibs.base.errors import LeaseLost
from dibs.contrib.celery import OneOwnerTask
from tests.programs import pause, wait_until

FOLDER = Path(os.environ["CELERY_FOLDER"])
MESSAGES = FOLDER / "messages"
MESSAGES.mkdir(parents=True, exist_ok=True)

app = Celery("tests", broker="filesystem://", backend=f"file://{FOLDER}/results")
(FOLDER / "results").mkdir(exist_ok=True)
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(MESSAGES),
        "data_folder_out": str(MESSAGES),
        "control_folder": str(FOLDER / "control"),
        "polling_interval": 0.1,
    },
    worker_prefetch_multiplier=1,
    worker_lost_wait=0.2,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


def note(text: str) -> None:
    with open(FOLDER / "log", "a") as log:
        log.write(f"{text}\n")


class FastTask(OneOwnerTask):
    abstract = True
    ttl = 2
    held_delay = 0.3


@app.task(base=FastTask, bind=True, job_name="import {feed}")
def import_feed(self: Any, feed: str, *, pages: int = 3) -> str:
    """Waits at the page that the file `stop-at` names, until that file is gone."""
    first = int(self.previous_checkpoint or 0) + 1
    note(f"{feed} begins at {first}, attempt {self.claim.attempt}, token {self.claim.fencing_token}, pid {os.getpid()}")
    for page in range(first, pages + 1):
        while (FOLDER / "stop-at").exists() and (FOLDER / "stop-at").read_text() == str(page):
            try:
                self.claim.check()
            except LeaseLost:
                note(f"{feed} lost at {page}")
                raise
            pause(0.02)
        self.claim.checkpoint(str(page))
        note(f"{feed} page {page}")
    return f"{feed} imported"


@app.task(base=FastTask, bind=True, max_retries=2, done="1h")
def flaky(self: Any, name: str) -> int:
    """Fails twice."""
    note(f"{name} attempt {self.claim.attempt}, retries {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(exc=ValueError("a secret"), countdown=0.1)
    return int(self.request.retries)


@app.task(base=FastTask, if_held="skip")
def skipping(name: str) -> None:
    note(f"{name} ran")
    wait_until(lambda: not (FOLDER / "hold").exists(), "the test lets the task end")
