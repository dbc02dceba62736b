"""Exclusive use of a shared resource for tests, across xdist workers and machines.

Turn it on in the conftest.py at the root: `pytest_plugins = ["dibs.contrib.pytest"]`, or with `-p dibs.contrib.pytest`.
It has no entry point of its own, because pytest would load that in every project that has dibs installed.

    def test_migration(one_owner):
        one_owner("staging-database")          # until the test ends

`pytest --dibs-claim staging-database` claims it for the whole run, once for all its xdist workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dibs.base.errors import DibsError, LeaseLost
from dibs.core.durations import Duration
from dibs.sdk.claim import Claim
from dibs.sdk.default import default_client

WAIT_DEFAULT = "10m"
_RUN = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dibs", "exclusive use of shared resources")
    group.addoption("--dibs-claim", action="append", default=[], metavar="NAME", help="claim NAME for the whole run")
    group.addoption(
        "--dibs-wait",
        default=WAIT_DEFAULT,
        metavar="TIME",
        help=f"how long to wait for what others use (default {WAIT_DEFAULT})",
    )


@pytest.fixture
def one_owner(request: pytest.FixtureRequest) -> Iterator[Callable[..., Claim]]:
    """`one_owner("staging-database")` waits in line for the resource and holds it until the test ends."""
    with ExitStack() as stack:

        def claim(name: str, *, wait: Duration | None = None, shared: bool = False) -> Claim:
            longest = request.config.getoption("--dibs-wait") if wait is None else wait
            # A failed test says nothing about the resource, so the claim is released, not failed.
            wanted = default_client().claim(
                name, wait=longest, shared=shared, metadata=request.node.nodeid[:1000], fail_on_error=False
            )
            return stack.enter_context(wanted)

        yield claim


def pytest_sessionstart(session: pytest.Session) -> None:
    """The controller claims; xdist's workers are part of its run."""
    names = session.config.getoption("--dibs-claim")
    if not names or hasattr(session.config, "workerinput"):
        return

    def lost(loss: LeaseLost) -> None:
        session.shouldstop = loss.details

    wait = session.config.getoption("--dibs-wait")
    stack = session.config.stash[_RUN] = ExitStack()
    try:
        stack.enter_context(default_client().claim_all(names, wait=wait, on_lost=lost, fail_on_error=False))
    except DibsError as refusal:
        pytest.exit(refusal.details, returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_sessionfinish(session: pytest.Session) -> None:
    held = session.config.stash.get(_RUN, None)
    if held is None:
        return
    try:
        held.close()
    except DibsError as lost:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(lost.details, red=True)
