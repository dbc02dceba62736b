"""Several schedulers with the same jobs, and one run of each job at each time."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler

import dibs
from dibs.contrib.apscheduler import OneOwnerExecutor
from tests.programs import clean_env, start_program, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., BackgroundScheduler]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/jobs.db"


@pytest.fixture
def scheduler(url: str) -> Iterator[Start]:
    """Starts schedulers, each with a client of its own, as on another machine."""
    started: list[BackgroundScheduler] = []

    def start(events: list[Any] | None = None, **options: Any) -> BackgroundScheduler:
        executor = OneOwnerExecutor(client=dibs.connect(options.pop("url", url)), **options)
        found = BackgroundScheduler(executors={"default": executor}, timezone=UTC)
        if events is not None:
            found.add_listener(events.append, EVENT_JOB_ERROR | EVENT_JOB_EXECUTED)
        found.start()
        started.append(found)
        return found

    yield start
    for each in started:
        each.shutdown()


def test_three_schedulers_run_a_job_once_at_each_time_and_a_late_one_does_not_run_it_again(
    scheduler: Start,
) -> None:
    ran: list[datetime] = []
    events: list[Any] = []
    begin = datetime.now(UTC) + timedelta(seconds=0.3)
    ticks = {
        "trigger": "interval",
        "seconds": 0.4,
        "start_date": begin,
        "end_date": begin + timedelta(seconds=1),
    }
    started = [scheduler(events) for _ in range(3)]
    # However slow this machine is, each of them comes to all three times.
    always = {"misfire_grace_time": None, "next_run_time": begin, "coalesce": False, "max_instances": 9}
    for each in started:
        each.add_job(lambda: ran.append(datetime.now(UTC)), id="report / ü\n", **always, **ticks)
    wait_until(lambda: not any(each.get_jobs() for each in started), "all times are over")
    wait_until(lambda: len(events) == 3, "three runs")
    late = scheduler(events)
    late.add_job(lambda: ran.append(begin), "date", run_date=begin, id="report / ü\n", misfire_grace_time=None)
    wait_until(lambda: not late.get_jobs(), "the late one is through")
    late.shutdown()
    late.start()
    assert len(ran) == 3
    assert [event.code for event in events] == [EVENT_JOB_EXECUTED] * 3


def test_a_run_that_fails_is_over_too_and_its_error_reaches_the_scheduler(scheduler: Start, url: str) -> None:
    def fail() -> None:
        raise ValueError("a secret")

    events: list[Any] = []
    at = datetime.now(UTC)
    for each in (scheduler(events), scheduler(events)):
        each.add_job(fail, "date", run_date=at, id="report", misfire_grace_time=None)
    wait_until(lambda: events, "the run has failed")
    with dibs.connect(url) as client:
        name = f"apscheduler report {at.isoformat()}"
        wait_until(lambda: client.owner(name).status == "done", "the run counts as done")
        with pytest.raises(dibs.JobDone) as refusal, client.claim(name):
            pass
    assert refusal.value.result == "raised ValueError"
    assert [type(event.exception) for event in events] == [ValueError]


@pytest.mark.fault("F-757")
def test_a_run_that_fails_and_is_never_done_is_a_failure_and_its_error_reaches_the_scheduler(
    scheduler: Start, url: str
) -> None:
    def fail() -> None:
        raise ValueError("a secret")

    events: list[Any] = []
    at = datetime.now(UTC)
    scheduler(events, done=False).add_job(fail, "date", run_date=at, id="report", misfire_grace_time=None)
    wait_until(lambda: events, "the run has failed")
    assert [type(event.exception) for event in events] == [ValueError]
    with dibs.connect(url) as client:
        status = client.owner(f"apscheduler report {at.isoformat()}")
    assert status.status == "free"
    assert status.previous is not None
    assert (status.previous.how, status.previous.reason) == ("failed", "raised ValueError")


def test_without_a_store_nothing_runs_and_the_scheduler_says_so(scheduler: Start) -> None:
    ran: list[int] = []
    events: list[Any] = []
    away = scheduler(events, url="http://127.0.0.1:1")
    away.add_job(lambda: ran.append(1), "date", run_date=datetime.now(UTC), id="x", misfire_grace_time=None)
    wait_until(lambda: events, "the scheduler has an event")
    assert isinstance(events[0].exception, dibs.Unavailable)
    assert ran == []


def test_a_job_that_lost_its_claim_ends_as_an_error(scheduler: Start, url: str) -> None:
    events: list[Any] = []
    at = datetime.now(UTC)
    begun, broken = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        assert broken.wait(60)

    scheduler(events).add_job(job, "date", run_date=at, id="report", misfire_grace_time=None)
    assert begun.wait(60)
    with dibs.connect(url) as client:
        client.break_claim(f"apscheduler report {at.isoformat()}", "a test")
    broken.set()
    wait_until(lambda: events, "the run has ended")
    assert isinstance(events[0].exception, dibs.LeaseLost)


def test_a_scheduler_that_waits_in_line_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    at = datetime.now(UTC).isoformat()
    env = clean_env(tmp_path)
    with start_program("tests.plugins.contrib.scheduler", str(log), "one", at, "yes", env=env) as one:
        try:
            wait_until(log.exists, "the first one runs")
            words = (str(log), "two", at, "no", "20s")
            with start_program("tests.plugins.contrib.scheduler", *words, env=env) as two:
                try:
                    wait_until((tmp_path / "log-two").exists, "the second one is up")
                    os.kill(one.pid, signal.SIGKILL)
                    wait_until(lambda: "two" in log.read_text(), "the second one runs")
                finally:
                    two.kill()
        finally:
            one.kill()
    assert log.read_text().splitlines() == ["one runs after None", "two runs after one"]
