"""`dibs pool`, and what claims of a pool print and are given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import clean_env, dibs_here

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess


def dibs(folder: Path, *words: str) -> CompletedProcess[str]:
    return dibs_here(clean_env(folder), folder, *words)


def ask(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    ran = dibs(folder, *words, "--json")
    said = json.loads(ran.stdout or ran.stderr)
    return ran.returncode, said.get("data") or said["error"]


@pytest.mark.promise("pool:operator", "slot:number")
def test_a_pool_is_set_listed_and_removed(tmp_path: Path) -> None:
    assert ask(tmp_path, "pool", "set", "gpu", "--slots", "2")[1]["slots"] == 2
    assert [ask(tmp_path, "claim", "gpu")[1]["slot"] for _ in range(2)] == [0, 1]
    code, held = ask(tmp_path, "claim", "gpu")
    assert (code, held["status"]) == (1, "held")
    code, differs = ask(tmp_path, "claim", "gpu", "--slots", "3")
    assert (code, "Leave slots out" in json.dumps(differs)) == (2, True)
    (pool,) = ask(tmp_path, "pool", "list")[1]["pools"]
    assert (pool["name"], pool["slots"], pool["slots_taken"]) == ("gpu", 2, 2)
    assert ask(tmp_path, "pool", "remove", "gpu")[1] == {
        "name": "gpu",
        "slots": None,
        "was": 2,
        "slots_taken": 2,
        "waiting": 0,
    }
    assert ask(tmp_path, "pool", "list")[1] == {"pools": []}


@pytest.mark.promise("pool:pause")
def test_a_paused_pool_is_called_so(tmp_path: Path) -> None:
    assert "Paused" in dibs(tmp_path, "pool", "set", "gpu", "--slots", "0").stdout
    refused = dibs(tmp_path, "claim", "gpu")
    assert (refused.returncode, "gpu is paused" in refused.stdout) == (1, True)
    assert "paused" in dibs(tmp_path, "owner", "gpu").stdout
    assert "paused" in dibs(tmp_path, "pool", "list").stdout


@pytest.mark.promise("units")
def test_units_have_their_numbers_and_too_many_are_refused(tmp_path: Path) -> None:
    dibs(tmp_path, "pool", "set", "gpu", "--slots", "3")
    taken = ask(tmp_path, "claim", "gpu", "--units", "2")[1]
    assert (taken["slot"], taken["slot_numbers"]) == (0, [0, 1])
    refused = dibs(tmp_path, "claim", "gpu", "--units", "4", "--wait", "1h")
    assert (refused.returncode, "The job has 3 slots" in refused.stderr) == (2, True)
    assert "2 of 3 slots" in dibs(tmp_path, "list").stdout
    assert "slot 0,1" in dibs(tmp_path, "history", "gpu").stdout


@pytest.mark.promise("all-or-nothing")
def test_claim_any_with_a_count_gives_so_many_or_none(tmp_path: Path) -> None:
    code, got = ask(tmp_path, "claim-any", "l1", "l2", "l3", "--count", "2")
    assert (code, [lease["name"] for lease in got["leases"]]) == (0, ["l1", "l2"])
    refused = dibs(tmp_path, "claim-any", "l1", "l2", "l3", "--count", "2")
    assert (refused.returncode, "only 1 of these" in refused.stdout) == (1, True)
    assert dibs(tmp_path, "claim-any", "l1", "l2", "--count", "3").returncode == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpu", "--slots", "100000"), "from 0 to 10000"),
        (("gpu", "--slots", "-1"), "from 0 to 10000"),
        (("gpu",), "needs --slots"),
        (("path:src", "--slots", "2"), "have no pool"),
        (("election:x", "--slots", "2"), "have no pool"),
        (("a\nb", "--slots", "2"), "control characters"),
    ],
)
def test_what_is_no_pool_is_refused_with_a_sentence(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    refused = dibs(tmp_path, "pool", "set", *words)
    assert (refused.returncode, said in refused.stderr) == (64, True)
