"""`tools/porcupine`, the second judge of a record, on good records and on planted ones: it finds two owners beside lost
answers, in time, and says when it had too little time."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.testing.judge import judge, read_calls
from tests.programs import slowness

if TYPE_CHECKING:
    pass

SECONDS_MAX = 60


def line(call: str, began: float, ended: float, **fields: Any) -> dict[str, Any]:
    return {
        "number": 0,
        "client": "c",
        "call": call,
        "job": "job",
        "began": began,
        "ended": ended,
        "outcome": "ok",
        **fields,
    }


def grant(who: str, token: int, began: float, **fields: Any) -> dict[str, Any]:
    return line("claim", began, began + 0.1, key=who, lease=f"lease-{who}", token=token, ttl=60, owner=who, **fields)


def lost(who: str, began: float) -> dict[str, Any]:
    return line("claim", began, began + 0.1, key=who, owner=who, ttl=60, outcome="unknown")


def checked(porcupine: str, folder: Path, calls: list[dict[str, Any]], *flags: str) -> tuple[int, str]:
    record = folder / "record.jsonl"
    record.write_text("".join(json.dumps({**call, "number": number}) + "\n" for number, call in enumerate(calls)))
    done = subprocess.run(
        [porcupine, *flags, str(record)], capture_output=True, text=True, timeout=4 * SECONDS_MAX, check=False
    )
    return done.returncode, done.stdout


LOST = lost("a", 0)
FINE = {
    "a lost claim that nobody saw": [
        LOST,
        grant("b", 1, 1),
        line("release", 2, 2.1, lease="lease-b"),
        grant("c", 2, 3),
    ],
    "a lost claim that was repeated": [LOST, grant("a", 1, 1), line("renew", 2, 2.1, lease="lease-a", token=1, ttl=60)],
    "a lost claim that was shown": [LOST, line("show", 1, 1.1, held=True, token=1), grant("b", 2, 70)],
    "a lost release": [grant("b", 1, 1), line("release", 2, 2.1, lease="lease-b", outcome="unknown"), grant("c", 2, 3)],
    "a lost transfer": [
        grant("b", 1, 1),
        line("transfer", 2, 2.1, lease="lease-b", outcome="unknown"),
        line("show", 3, 3.1, held=True, token=2),
    ],
    "a transfer whose heir is not recorded": [
        grant("b", 1, 1),
        line("transfer", 2, 2.1, lease="lease-b"),
        line("show", 3, 3.1, held=True, token=2),
        line("release", 4, 4.1, lease="lease-heir"),
        grant("c", 3, 5),
    ],
    "a place in line": [
        grant("b", 1, 1),
        line("claim", 1.5, 1.6, key="c", owner="c", outcome="refused", code="queued"),
        line("release", 2, 2.1, lease="lease-b"),
        line("show", 3, 3.1, held=True, token=2),
        grant("c", 2, 4),
    ],
    "a place in line without a key that is served before its owner asks again": [
        grant("b", 1, 1),
        line("claim", 1.5, 1.6, owner="c", outcome="refused", code="queued"),
        line("release", 2, 2.1, lease="lease-b"),
        line("show", 3, 3.1, held=True, token=2),
        {**grant("c", 2, 4), "key": ""},
    ],
}
NOT_CURRENT = line("renew", 3, 3.1, lease="lease-b", outcome="refused", code="lease_not_current")
WRONG = {
    "two owners": [grant("b", 1, 1), grant("c", 2, 2), NOT_CURRENT],
    "two owners beside a lost claim": [LOST, grant("b", 1, 1), grant("c", 2, 2), NOT_CURRENT],
    "two owners beside lost calls": [
        *[lost(f"a{number}", number / 10) for number in range(8)],
        grant("b", 1, 1),
        line("release", 1.5, 1.6, lease="lease-z", outcome="unknown"),
        grant("c", 2, 2),
        NOT_CURRENT,
    ],
    "a token twice": [LOST, grant("b", 1, 1), line("release", 2, 2.1, lease="lease-b"), grant("c", 1, 3)],
    "an old show": [LOST, grant("b", 2, 1), line("show", 2, 2.1, held=True, token=1)],
    "free in the middle": [LOST, grant("b", 1, 1), line("show", 2, 2.1, held=False)],
    "a release of nothing": [
        LOST,
        grant("b", 1, 1),
        line("release", 2, 2.1, lease="lease-b"),
        NOT_CURRENT,
        line("show", 4, 4.1, held=True, token=1),
    ],
    "an heir beside the old owner": [
        grant("b", 1, 1),
        line("transfer", 2, 2.1, lease="lease-b"),
        line("renew", 3, 3.1, lease="lease-b", token=1, ttl=60),
    ],
    "another's session ends": [
        grant("b", 1, 1, session="s1"),
        line("session_end", 1.5, 1.6, job="", session="s2"),
        grant("c", 2, 2, session="s2"),
        NOT_CURRENT,
    ],
}


@pytest.mark.fault("F-794")
@pytest.mark.parametrize("name", FINE)
def test_what_a_server_may_answer_is_fine(porcupine: str, tmp_path: Path, name: str) -> None:
    assert checked(porcupine, tmp_path, FINE[name])[0] == 0


@pytest.mark.fault("F-275")
@pytest.mark.parametrize("name", WRONG)
def test_what_no_server_may_answer_is_found_also_beside_lost_answers(porcupine: str, tmp_path: Path, name: str) -> None:
    code, says = checked(porcupine, tmp_path, WRONG[name])
    assert (code, "job: no single server could have answered so" in says) == (1, True), says


def long_record(chance: Random, count: int) -> list[dict[str, Any]]:
    """What clients of one server are answered, a tenth of the answers lost. The server acts at the middle of a call."""
    calls: list[dict[str, Any]] = []
    owners: dict[str, tuple[str, int]] = {}
    tokens: dict[str, int] = {}
    untold: set[str] = set()
    now = 0.0
    for number in range(count):
        now += chance.random() / 10
        job, early, later = f"job-{chance.randrange(5)}", now - chance.random(), now + chance.random()
        fate = "unknown" if chance.random() < 0.1 else "ok"
        times: dict[str, Any] = {"began": early, "ended": later, "job": job, "outcome": fate}
        if job not in owners:
            tokens[job] = token = tokens.get(job, 0) + 1
            owners[job] = (f"lease-{number}", token)
            told: dict[str, Any] = {"lease": f"lease-{number}", "token": token} if fate == "ok" else {}
            if not told:
                untold.add(f"lease-{number}")
            calls.append({**line("claim", 0, 0, key=f"k{number}", ttl=3_600), **times, **told})
            continue
        lease, token = owners[job]
        what = chance.choice(("renew", "show", "claim", "release"))
        if what == "release":
            del owners[job]
            if lease in untold:
                continue  # the server gives it back
            calls.append({**line("release", 0, 0, lease=lease), **times})
        elif what == "renew" and lease not in untold:
            calls.append({**line("renew", 0, 0, lease=lease, token=token, ttl=3_600), **times})
        elif what == "show":
            calls.append({**line("show", 0, 0, held=True, token=token), **times})
        else:
            calls.append({**line("claim", 0, 0, key=f"k{number}", code="held"), **times, "outcome": "refused"})
    return calls


@pytest.mark.fault("F-275")
def test_ten_thousand_operations_are_judged_within_a_minute(porcupine: str, tmp_path: Path) -> None:
    calls = long_record(Random(7), 10_000)
    began_s = time.monotonic()
    code, says = checked(porcupine, tmp_path, calls)
    assert code == 0, says
    held = next(
        at for at, call in enumerate(calls) if at > 5_000 and call["call"] == "renew" and call["outcome"] == "ok"
    )
    second = {**calls[held], "call": "claim", "key": "second", "lease": "second", "token": calls[held]["token"] + 1}
    second |= {"began": calls[held]["ended"], "ended": calls[held]["ended"] + 0.01}
    again = {**calls[held], "began": second["ended"] + 0.01, "ended": second["ended"] + 0.02}
    code, says = checked(porcupine, tmp_path, [*calls[: held + 1], second, again, *calls[held + 1 :]])
    assert code == 1, says
    assert time.monotonic() - began_s < 2 * SECONDS_MAX * slowness()


@pytest.mark.fault("F-275")
def test_what_takes_too_long_is_said_to_and_is_not_called_wrong(porcupine: str, tmp_path: Path) -> None:
    code, says = checked(porcupine, tmp_path, long_record(Random(8), 10_000), "-within", "1ms")
    assert code == 2, says
    assert "not decided in time" in says
    assert ", 0 jobs that no single server" in says


@pytest.mark.fault("F-795")
def test_both_judges_agree_on_the_planted_records() -> None:
    for name, calls in {**FINE, **WRONG}.items():
        whole = [*calls, line("race", 999, 999)]  # a record without its last line was cut off, and proves less
        run = read_calls([json.dumps({**call, "number": number}) for number, call in enumerate(whole)])
        if name not in ("a release of nothing", "free in the middle", "an old show"):  # it does not look at every show
            assert bool(judge(run)) is (name in WRONG), name
