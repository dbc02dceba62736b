"""Every script in scenarios/ gets the answers that are written in it, from every kind of store tried here.

DIBS_REWRITE_SCENARIOS=1 writes the answers into the scripts instead; read the difference before you keep it.
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.core import class_of
from dibs.stores.memory import MemoryStore
from dibs.wire.codes import OUTCOMES
from tests.scenarios.runner import ANSWERS, ScenarioError, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.port import Store

FOLDER = Path(__file__).parent / "scenarios"
SCRIPTS = sorted(FOLDER.glob("*.txt"))
# For stores on servers: they compare and write, and never decide, so before a commit a few scripts are enough.
SOME_QUICK = [pytest.param(script, marks=() if at % 10 == 0 else pytest.mark.full) for at, script in enumerate(SCRIPTS)]
REWRITE = os.environ.get("DIBS_REWRITE_SCENARIOS") == "1"  # here, before the run is set apart from the environment


class TextStore(MemoryStore):
    """Keeps what a store on disk would give back: every record and event as text, read again."""

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        read_again = {key: _read_again(key, record) for key, record in puts.items()}
        return super().commit(
            expect, read_again, [type(event).load(json.loads(json.dumps(event.dump()))) for event in events]
        )


def _read_again(key: str, record: Stored | None) -> Stored | None:
    return None if record is None else class_of(key).load(json.loads(json.dumps(record.dump())))


def check(script: Path, open_store: Callable[[Callable[[], int]], Store]) -> None:
    written = script.read_text(encoding="utf-8")
    got = run(written, open_store)
    if REWRITE:
        script.write_text(got, encoding="utf-8")
        return
    difference = difflib.unified_diff(
        written.splitlines(), got.splitlines(), f"{script.name}, as written", "as it went", lineterm="", n=1
    )
    assert got == written, "\n" + "\n".join(difference)


@pytest.mark.promise("excl", "excl:same-token", "lease:never-early", "lease:outage-credit", "token:rises")
@pytest.mark.promise("proof", "idem:acquire", "idem:release", "audit")
@pytest.mark.promise("tree", "queue:fifo", "queue:no-dead-grant", "queue:one-wake", "deadlock", "session")
@pytest.mark.promise("all-or-nothing", "attempts", "access")
@pytest.mark.fault("F-251", "F-252", "F-253")  # deadlock_by_polling_beside_a_line, _slots_twice, _behind_slots
@pytest.mark.fault("F-733")  # line_dead_session_is_never_given_the_job
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_goes_as_written(script: Path) -> None:
    check(script, MemoryStore)


@pytest.mark.promise("same-answer")
@pytest.mark.skipif(REWRITE, reason="the scripts are being rewritten")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_goes_the_same_on_records_that_were_written_out_and_read_again(script: Path) -> None:
    check(script, TextStore)


def test_every_outcome_has_words() -> None:
    assert {kind.__name__ for kind in ANSWERS} == set(OUTCOMES)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("at 0s a1 grabs issue-1", "line 3: no such verb: 'grabs'"),
        ("at 0s a1 claims issue-1 colour=red", "line 3: claims knows no 'colour'"),
        ("at 0s a1 claims issue-1 again=yes", "line 3: again: a flag takes no value"),
        ("at 0s a1 claims issue-1 ttl=soon", "line 3: ttl: 'soon' is not a duration"),
        ("at 0s a1 claims issue-1 ttl=1s ttl=2s", "line 3: 'ttl' is said twice"),
        ("at noon a1 claims issue-1", "line 3: time: 'noon' is not a duration"),
        ("at 0s a1 claims", "line 3: claims what?"),
        ("at 0s a1 claims 'issue-1", "line 3: No closing quotation"),
        ("a1 claims issue-1", "line 3: neither"),
        ("at 0s server beats issue-1", "line 3: beats knows no 'issue-1'"),
    ],
)
def test_a_word_the_interpreter_does_not_know_is_an_error_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(f"# first\n\n{line}\n", MemoryStore)
    assert str(caught.value).startswith(complaint)


def test_time_never_goes_back_in_a_script() -> None:
    with pytest.raises(ScenarioError, match="line 2: time goes back to 4s"):
        run("at 5s a1 claims issue-1\nat 4s a1 claims issue-1\n", MemoryStore)


def test_running_a_script_again_on_its_own_answers_changes_nothing() -> None:
    once = run("at 0s a1 claims job ttl=10s\nevents\n", MemoryStore)
    assert run(once, MemoryStore) == once
    assert once.endswith("\nevents\n    acquired a1 job#1\n")
