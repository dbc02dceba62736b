"""Every scenario of the rules goes the same on git: in a clone, and at a remote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.stores.git import location_of
from dibs.stores.git.store import GitStore
from dibs.stores.git.times import Clocks
from tests.core.test_scenarios import SCRIPTS, check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stores.git.harness import Remote

pytestmark = pytest.mark.full


def opener(url: str, folder: Path) -> Callable[[Callable[[], int]], GitStore]:
    return lambda now_ms: GitStore(
        location_of(url, str(folder)), Clocks(steady_ms=now_ms, wall_ms=now_ms, boot_id=lambda: "boot")
    )


@pytest.mark.promise("same-answer")
@pytest.mark.parametrize("script", SCRIPTS[::5], ids=lambda path: path.stem)
def test_some_scenarios_go_as_written_in_a_clone(remote: Remote, script: Path) -> None:
    check(script, opener("git:", remote.clone("one")))


@pytest.mark.slow
@pytest.mark.promise("same-answer")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_goes_as_written_in_a_clone(remote: Remote, script: Path) -> None:
    check(script, opener("git:", remote.clone("one")))


@pytest.mark.slow
@pytest.mark.promise("same-answer")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_goes_as_written_at_a_remote(remote: Remote, script: Path) -> None:
    check(script, opener("git:origin", remote.clone("one")))
