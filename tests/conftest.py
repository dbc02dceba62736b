"""Fixtures for every test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from dibs.base import platforms
from dibs.core.decide import CHECKS
from dibs.testing.decisions import check
from tests import stalls
from tests.build import tries

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tests.etcd import Cluster
    from tests.postgres import PostgresServer, Schema

# On a busy machine an example may take any time: a deadline would fail a property that holds.
settings.register_profile("dibs", deadline=None, max_examples=tries(100))
settings.load_profile("dibs")

CHECKS.append(check)  # every decision of every test, in this process

FAULTS = Path(__file__).with_name("faults")

# These steer the test run itself.
KEPT = {"DIBS_PORTABLE", "DIBS_REQUIRE_ALL", "DIBS_SOAK", "DIBS_TEST_COMPILED"}

# How long the machine stood still while a test ran that failed, in ms. `scripts/dev/stood-still` reads it in the cache.
STALLS = "dibs/stalls"
_stalls: dict[str, int] = {}
_began_s = [0.0]

# The token of a server that was started in the state folder which all tests of a worker share.
_never_there: list[Path] = []


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the look at decisions: the records of a torn step do not agree, so neither do the answers."""
    looks = CHECKS.copy()
    CHECKS.clear()
    yield
    CHECKS.extend(looks)


def pytest_configure() -> None:
    """A shell starts what it runs in the background with interrupts ignored, and `nohup` with hang-ups. Children
    inherit that, and a shell cannot trap what was ignored when it began: tests of signals would wait for nothing."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Every worker collects all tests. Looking for garbage among them takes a quarter of that time and finds none, and
    they would be looked through again at every collection of garbage until the end."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Kills and pauses in real time run in `scripts/test --all`. With DIBS_PORTABLE=1, skip what only Linux's own ways
    can do. A test in quarantine may fail until its day."""
    folders = {item.path.parent for item in items}  # of thousands of tests a few: paths are slow
    of_faults = {folder for folder in folders if FAULTS in (folder, *folder.parents)}
    for item in items:
        if item.path.parent in of_faults:
            item.add_marker(pytest.mark.full)
    for item in items if platforms.IS_PORTABLE else ():
        for mark in item.iter_markers("linux"):
            item.add_marker(pytest.mark.skip(reason=f"Linux only: {mark.args[0]}"))
    for item in items:
        for mark in item.iter_markers("quarantine"):
            item.add_marker(quarantined(*mark.args, **mark.kwargs, today=date.today()))


def quarantined(reason: str, *, until: str, today: date) -> pytest.MarkDecorator:
    """What becomes of a test in quarantine: it may fail until that day, and then it does."""
    if today <= date.fromisoformat(until):
        return pytest.mark.xfail(reason=f"in quarantine until {until}: {reason}", strict=False)
    return pytest.mark.usefixtures("quarantine_is_over")


@pytest.fixture
def quarantine_is_over() -> None:
    pytest.fail("the quarantine of this test is over: mend the test or dibs, and take the mark away")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A token in the folder that all tests share would let a later test in where it must be refused: the test that
    leaves one fails."""
    yield
    for left in [path for path in _never_there if path.exists()]:
        left.unlink()
        pytest.fail("this test, or a server that it shares, left a token in the state folder of all tests")


def pytest_runtest_logstart() -> None:
    _began_s[0] = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a failure says how long the machine stood still since the test began."""
    report = yield
    if report.failed and (stalled_ms := stalls.stood_still_ms(_began_s[0])):
        report.sections.append(("machine", f"It stood still for {stalled_ms} ms while this test ran."))
        report.user_properties.append((STALLS, stalled_ms))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Here, too, are reports of other workers."""
    if report.failed:
        _stalls[report.nodeid] = sum(int(str(value)) for name, value in report.user_properties if name == STALLS)


def pytest_sessionfinish(session: pytest.Session) -> None:
    cache = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set(STALLS, _stalls)


@pytest.fixture(scope="session", autouse=True)
def _watched_for_stalls() -> Iterator[None]:
    with stalls.watched():
        yield


@pytest.fixture(scope="session", autouse=True)
def _apart_from_your_own_dibs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tests and their processes away from the store, server and tokens of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - KEPT:
            if name.startswith(("DIBS_", "CLAUDE", "CODEX_", "GEMINI_")):
                patch.delenv(name)
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        _never_there.append(Path(os.environ["XDG_STATE_HOME"], "dibs", "token"))
        yield


@pytest.fixture(scope="session")
def need_program() -> Callable[[str], str]:
    """`need_program("git")` is its path. Without it the test skips, or fails under DIBS_REQUIRE_ALL=1 (CI)."""

    def need(name: str) -> str:
        path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")  # where Debian puts servers
        if path is None:
            _missing(name)
        return path  # type: ignore[return-value]  # what is missing has raised

    return need


@pytest.fixture(scope="session")
def need_root() -> None:
    """For tests that make namespaces or become another user. Without root they skip, or fail in CI."""
    if os.geteuid() != 0:
        missing = pytest.fail if os.environ.get("DIBS_REQUIRE_ALL") == "1" else pytest.skip
        missing("this test needs root")


def _missing(name: str) -> None:
    missing = pytest.fail if os.environ.get("DIBS_REQUIRE_ALL") == "1" else pytest.skip
    missing(f"{name} is not installed")


@pytest.fixture(scope="session")
def postgres_programs() -> tuple[str, str]:
    """initdb and postgres. Without them the test skips, or fails in CI."""
    from tests import postgres

    initdb, server = postgres.program("initdb"), postgres.program("postgres")
    if initdb is None or server is None:
        _missing("POSTGRESQL NOT TESTED: it (on Debian: apt-get install postgresql)")
    return initdb, server  # type: ignore[return-value]  # what is missing has raised


@pytest.fixture(scope="session")
def postgres_url(postgres_programs: tuple[str, str]) -> Iterator[str]:
    """A real PostgreSQL for the whole run."""
    from tests import postgres

    with postgres.running(*postgres_programs) as url:
        yield url


@pytest.fixture
def postgres_server(postgres_programs: tuple[str, str]) -> Iterator[PostgresServer]:
    """A PostgreSQL of the test's own, to be stopped and killed."""
    from tests import postgres

    with postgres.server(*postgres_programs) as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer_url(postgres_url: str) -> Iterator[str]:
    """A pgbouncer in transaction mode, in front of the PostgreSQL of the run."""
    from tests import postgres

    program = postgres.program("pgbouncer")
    if program is None:
        _missing("PGBOUNCER NOT TESTED: it (on Debian: apt-get install pgbouncer)")
        return
    with postgres.bouncer(program, postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def etcd_program() -> str:
    """Without it the test skips, or fails in CI."""
    from tests import etcd

    program = etcd.program()
    if program is None:
        _missing("ETCD NOT TESTED: etcd (on Debian: apt-get install etcd-server)")
    return program  # type: ignore[return-value]  # what is missing has raised


@pytest.fixture(scope="session")
def etcd_cluster(etcd_program: str) -> Iterator[Cluster]:
    """A real etcd of one member for the whole run. Tests take a prefix of their own."""
    from tests import etcd

    with etcd.running(etcd_program) as cluster:
        yield cluster


@pytest.fixture
def postgres_schema(postgres_url: str) -> Iterator[Callable[[], Schema]]:
    """Makes schemas of the test's own in the PostgreSQL of the run; they are dropped afterwards."""
    from dibs.base.ids import new_id
    from tests.postgres import Schema

    made: list[Schema] = []

    def make() -> Schema:
        made.append(Schema(postgres_url, f"t_{new_id()}"))
        return made[-1]

    yield make
    for each in made:
        each.drop()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of one megabyte. Only root may have one."""
    folder = Path(tempfile.mkdtemp(prefix="dibs-small-"))
    made = os.geteuid() == 0 and shutil.which("mount") is not None
    if made:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        made = subprocess.run(mount, check=False, capture_output=True, timeout=60).returncode == 0
    try:
        if not made:
            pytest.skip("FULL DISK NOT TESTED: cannot mount a small file system here, that takes root")
        yield folder
    finally:
        if made:
            subprocess.run(["umount", str(folder)], check=True, timeout=60)
        folder.rmdir()
