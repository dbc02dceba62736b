"""Tasks with one owner, in real Celery workers. The broker is a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from tests.programs import ROOT, WAIT_S_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.full]
# Each line is a call that sends a task.
SENDER = """
import sys
from tests.plugins.contrib import celery_app as app
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Farm:
    """Workers of one application, its log, and a way to send tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "CELERY_FOLDER": str(folder), "DIBS_URL": f"sqlite://{folder}/jobs.db"}
        self._sender: subprocess.Popen[str] | None = None

    @contextmanager
    def worker(self, *, processes: int = 1) -> Iterator[subprocess.Popen[bytes]]:
        words = ["-A", "tests.plugins.contrib.celery_app", "worker", "-c", str(processes), "-l", "INFO"]
        words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        with open(self.folder / "worker.log", "ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "celery", *words],
                cwd=ROOT,
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGCONT)
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """The id of the task. One process sends all: it takes long to import Celery."""
        if self._sender is None:
            self._sender = subprocess.Popen(
                [sys.executable, "-c", SENDER],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        sends, says = self._sender.stdin, self._sender.stdout
        assert sends is not None
        assert says is not None
        print(f"app.{task}.apply_async({args!r}, **{options!r}).id", file=sends, flush=True)
        return says.readline().strip()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.communicate(timeout=WAIT_S_MAX)

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def await_line(self, start: str) -> str:
        def found() -> str | None:
            return next((line for line in self.log if line.startswith(start)), None)

        try:
            return wait_until(found, f"the log says {start!r}", seconds=40)
        except AssertionError:
            print((self.folder / "worker.log").read_text())
            raise

    def stop_at(self, page: int | None) -> None:
        (self.folder / "stop-at").write_text(str(page))


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    made = Farm(tmp_path)
    yield made
    made.close()


def pid_in(line: str) -> int:
    return int(line.rpartition("pid ")[2])


def test_a_killed_process_is_followed_by_one_that_goes_on_at_its_checkpoint(farm: Farm) -> None:
    farm.stop_at(2)
    with farm.worker():
        farm.send("import_feed", "news")
        farm.await_line("news page 1")
        os.kill(pid_in(farm.await_line("news begins at 1, attempt 1, token 1")), signal.SIGKILL)
        farm.await_line("news begins at 2, attempt 2, token 2")
        farm.stop_at(None)
        farm.await_line("news page 3")
    assert [line for line in farm.log if "page" in line] == ["news page 1", "news page 2", "news page 3"]


def test_a_paused_task_learns_that_it_lost_its_job_and_the_other_one_finishes_it(farm: Farm) -> None:
    """Also: a killed worker whose message the broker delivers again. A folder cannot do that, so it is sent again."""
    farm.stop_at(2)
    with farm.worker() as first, farm.worker() as second:
        one = farm.send("import_feed", "news")
        begun = pid_in(farm.await_line("news begins at 1, attempt 1"))
        farm.await_line("news page 1")
        os.kill(begun, signal.SIGSTOP)
        farm.send("import_feed", "news", task_id=one)
        farm.await_line("news begins at 2, attempt 2")
        os.kill(begun, signal.SIGCONT)
        farm.await_line("news lost at 2")
        farm.stop_at(None)
        farm.await_line("news page 3")
        assert first.poll() is None
        assert second.poll() is None
    assert farm.log.count("news page 2") == 1


def test_two_tasks_of_one_name_run_one_after_the_other_and_other_names_beside_them(farm: Farm) -> None:
    farm.stop_at(1)
    with farm.worker(processes=3):
        farm.send("import_feed", "news")
        farm.await_line("news begins")
        farm.send("import_feed", "news")
        farm.send("import_feed", "sport / 100%\n")
        farm.await_line("sport")
        assert len([line for line in farm.log if line.startswith("news begins")]) == 1
        farm.stop_at(None)
        wait_until(lambda: len([line for line in farm.log if line.startswith("news begins")]) == 2, "both ran")
    with dibs.connect(farm.env["DIBS_URL"]) as client:
        assert client.owner("import news").fencing_token == 2
        assert client.owner("import sport%20/%20100%25%0A").fencing_token == 1


def test_retries_of_a_task_count_as_attempts_and_waiting_does_not_count_as_a_retry(farm: Farm) -> None:
    name = "celery tests.plugins.contrib.celery_app.flaky(name='x')"
    with dibs.connect(farm.env["DIBS_URL"]) as client, farm.worker():
        with client.claim(name):
            farm.send("flaky", "x")
            log = farm.folder / "worker.log"
            wait_until(lambda: log.read_text().count("Retry in 0.3s") > 3, "the task waits for the job", 40)
        farm.await_line("x attempt 3, retries 2")
        wait_until(lambda: client.owner(name).status == "done", "the job is done")
        assert farm.log == ["x attempt 1, retries 0", "x attempt 2, retries 1", "x attempt 3, retries 2"]
        assert "secret" not in str(client.history(name))
        farm.send("flaky", "x")  # done already: forgotten
        wait_until(lambda: log.read_text().count("flaky") > 7, "the task was received again")
        assert len(farm.log) == 3


def test_a_task_that_should_skip_is_forgotten_while_another_one_runs(farm: Farm) -> None:
    (farm.folder / "hold").touch()
    with farm.worker(processes=2):
        farm.send("skipping", "x")
        farm.await_line("x ran")
        second = farm.send("skipping", "x")
        log = farm.folder / "worker.log"
        wait_until(lambda: f"{second}] ignored" in log.read_text(), "the task was ignored")
        (farm.folder / "hold").unlink()
    assert farm.log == ["x ran"]
