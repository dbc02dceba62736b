"""The checker of runs finds every violation: a checker that reports nothing would pass every run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.events import Event
from dibs.core.limits import REMEMBERED_MAX
from tests.faults.schedules import prepare
from tests.faults.several.verdict import judge

if TYPE_CHECKING:
    from pathlib import Path

A = {"job": "j", "owner": "a", "token": 1}
B = {"job": "j", "owner": "b", "token": 2}
GOOD = (
    "1 acquired a 1 0",
    "2 queued b 0 1",
    "9 progress a 1 0",
    "9 released a 1 0",
    "9 acquired b 2 1",
    "20 released b 2 0",
)
NOTED = (
    {"what": "got", "at_ms": 2, **A},
    {"what": "believed", "at_ms": 3, "before_ms": 3, **A},
    {"what": "renewed", "at_ms": 9, **A},
    {"what": "released", "at_ms": 10, "asked_ms": 8, **A},
    {"what": "got", "at_ms": 10, **B},
    {"what": "sure", "at_ms": 10, "until_ms": 1010, **B},
    {"what": "released", "at_ms": 21, "asked_ms": 19, **B},
)


def judged(folder: Path, lines: tuple[str, ...], notes: tuple[dict[str, Any], ...]) -> list[str]:
    """Lines of "TIME KIND OWNER TOKEN TICKET"."""
    prepare(folder)
    (folder / "p1.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    events = []
    for seq, line in enumerate(lines, start=1):
        at, kind, owner, token, ticket = line.split()
        known = {"token": int(token), "ticket": int(ticket), "checkpoint": owner, "seq": seq}
        events.append(Event(at_ms=int(at), kind=kind, ns="n", job="j", owner=owner, **known))  # type: ignore[arg-type]
    return judge(folder, events).wrong


def test_a_good_run_is_left_alone(tmp_path: Path) -> None:
    assert judged(tmp_path, GOOD, NOTED) == []


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (GOOD[:-1], "still owned by history"),
        (GOOD[4:], "acknowledged and gone"),
        (("1 acquired a 1 0", "9 expired a 1 0", *GOOD[4:]), "released and not so"),
        (GOOD[:2] + GOOD[3:], "renewed and not so"),
        ((*GOOD[:2], "3 queued c 0 2", *GOOD[2:4], "9 acquired c 2 2"), "before [1]"),
        ((*GOOD[:4], "9 acquired c 2 0"), "before [1]"),
        ((*GOOD, "20 acquired b 3 1", "21 released b 3 0"), "served 2 times"),
        ((*GOOD[:4], "9 acquired c 2 1"), "given the place of b"),
        ((*GOOD, "20 acquired a 3 0", "21 released a 3 0"), "second lease with the request key"),
    ],
)
def test_what_the_store_lost_or_confused_is_found(tmp_path: Path, lines: tuple[str, ...], what: str) -> None:
    assert any(what in each for each in judged(tmp_path, lines, NOTED))


def test_a_client_that_was_killed_while_it_released_was_not_sure_any_more(tmp_path: Path) -> None:
    sure = {"what": "sure", "at_ms": 3, "until_ms": 1003, **A}
    notes = (sure, *(note for note in NOTED if note["what"] != "released" or note["token"] != A["token"]))
    asked = {"what": "releases", "at_ms": 5, **A}
    for name in ("silent", "asked"):
        (tmp_path / name).mkdir()
    assert any("believed" in each for each in judged(tmp_path / "silent", GOOD, notes))
    assert judged(tmp_path / "asked", GOOD, (*notes, asked)) == []


@pytest.mark.parametrize(
    ("note", "what"),
    [
        ({"what": "believed", "at_ms": 11, "before_ms": 11, **A}, "j: 1 believed at 11, 2 already at 10"),
        ({"what": "doubled", "at_ms": 11, "again": 2, **A}, "one request key, two leases"),
        ({"what": "not kept", "at_ms": 11, "says": "kept-x is lost"}, "kept-x is lost"),
        ({"what": "crashed", "at_ms": 11, "says": "TypeError"}, "TypeError"),
    ],
)
def test_what_clients_confused_is_found(tmp_path: Path, note: dict[str, Any], what: str) -> None:
    assert any(what in each for each in judged(tmp_path, GOOD, (*NOTED, note)))


def test_a_request_that_comes_after_its_key_was_forgotten_is_counted_and_not_wrong(tmp_path: Path) -> None:
    between = []
    for number in range(REMEMBERED_MAX):
        between += [
            f"{30 + number} acquired o{number} {3 + number} 0",
            f"{30 + number} released o{number} {3 + number} 0",
        ]
    late = ("90 acquired a 99 0", "91 released a 99 0")
    assert judged(tmp_path, (*GOOD, *between, *late), NOTED) == []


def test_a_claim_whose_lease_ran_out_before_its_client_was_told_may_have_a_second_one(tmp_path: Path) -> None:
    late = ("20 acquired c 3 0", "24 expired c 3 0", "25 acquired c 4 0", "26 released c 4 0")
    told = {"what": "got", "at_ms": 21, "job": "j", "owner": "c", "token": 3}
    for name in ("untold", "told"):
        (tmp_path / name).mkdir()
    assert judged(tmp_path / "untold", (*GOOD, *late), NOTED) == []
    assert any("second lease" in each for each in judged(tmp_path / "told", (*GOOD, *late), (*NOTED, told)))
