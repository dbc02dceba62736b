"""Management commands with one owner, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import dibs
from tests.programs import ROOT, WAIT_S_MAX, clean_env, wait_until, wait_until_stopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.full]


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite://{folder}/jobs.db"
        self.env = clean_env(folder, DIBS_URL=self.url, DIBS_OWNER="machine-1")

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.plugins.contrib.django_site", *words],
            cwd=ROOT,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **env: str) -> tuple[int, str, str]:
        with self.start(*words, **env) as process:
            out, err = process.communicate(timeout=WAIT_S_MAX)
        return process.returncode, out.strip(), err.strip()

    @contextmanager
    def hung(self) -> Iterator[subprocess.Popen[str]]:
        """A command that has begun and does not end."""
        begun = self.folder / "begun"
        with self.start("import_feed", "news", "--hang", str(begun)) as process:
            try:
                wait_until(begun.exists, "the command has begun")
                yield process
            finally:
                process.kill()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_second_command_ends_with_exit_code_1_and_says_who_runs_the_first(site: Site) -> None:
    with site.hung():
        code, out, err = site.run("import_feed", "news")
        assert (code, out) == (1, "")
        assert err.startswith("CommandError: machine-1 has import news")
        assert site.run("skipping", "news") == (0, "", "")
        assert site.run("import_feed", "sport")[0] == 0


def test_a_killed_command_is_followed_by_one_that_goes_on_at_its_checkpoint(site: Site) -> None:
    with site.hung() as first, site.start("waiting", "news") as second:
        os.kill(first.pid, signal.SIGKILL)
        out, _ = second.communicate(timeout=WAIT_S_MAX)
        assert out == "begins at page 7, attempt 2\n"


def test_a_paused_command_that_lost_its_job_ends_with_exit_code_20(site: Site) -> None:
    with site.hung() as first:
        first.send_signal(signal.SIGSTOP)
        wait_until_stopped(first.pid)
        assert site.run("waiting", "news")[:2] == (0, "begins at page 7, attempt 2")
        first.send_signal(signal.SIGCONT)
        _, err = first.communicate(timeout=WAIT_S_MAX)
        assert first.returncode == 20
        assert "import news is not ours any more" in err


def test_a_command_that_raises_counts_as_an_attempt_and_its_text_is_not_stored(site: Site) -> None:
    code, _, err = site.run("import_feed", "news", "--error")
    assert code == 1
    assert "ValueError: a secret" in err
    assert site.run("import_feed", "news")[1] == "begins at page 7, attempt 2"
    with dibs.connect(site.url) as client:
        assert "secret" not in str([event.document for event in client.history("import news")])


def test_a_command_that_is_done_ends_with_exit_code_4_and_one_without_a_store_with_69(site: Site) -> None:
    assert site.run("done_once", "news")[0] == 0
    assert site.run("done_once", "news")[0] == 4
    assert site.run("named", "news", DIBS_URL="http://127.0.0.1:1")[0] == 69
    assert site.run("named", "news")[0] == 0
    with dibs.connect(site.url) as client:
        assert client.owner("manage.py rebuild_index").fencing_token == 1
