"""The judge is judged: each history here has one fault planted in it, and the judge must find it, and nothing else."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from io import StringIO
from random import Random
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.base.reply import Reply
from dibs.client.pending import withdrawal
from dibs.client.servers import PATIENCE_MS
from dibs.client.transport import Ask
from dibs.testing import racers
from dibs.testing.judge import NO_POOL, OK, RACE, RecordedCall, exercised, judge, read_calls
from dibs.testing.racers import race_terms
from dibs.testing.workload import Workload

TTL = 2.0


def call(call: str, at: float, **more: object) -> RecordedCall:
    known = {"client": "a", "job": "x", "began": at, "ended": at + 0.1, "outcome": "ok", "ttl": TTL}
    return RecordedCall(number=0, call=call, **known | more)  # type: ignore[arg-type]


def claim(at: float, token: int, **more: object) -> RecordedCall:
    return call("claim", at, **{"lease": f"l{token}", "token": token, "key": f"k{token}"} | more)


def renew(at: float, token: int, **more: object) -> RecordedCall:
    return call("renew", at, **{"lease": f"l{token}", "token": token} | more)


def release(at: float, token: int, **more: object) -> RecordedCall:
    return call("release", at, **{"lease": f"l{token}", "token": token} | more)


def show(at: float, token: int) -> RecordedCall:
    return call("show", at, held=token > 0, token=token)


def held(at: float, token: int, **more: object) -> RecordedCall:
    """What a client of the SDK says of a lease whose heartbeats nobody recorded."""
    return call("held", at, **{"lease": f"l{token}", "token": token} | more)


def queued(at: float, key: str, **more: object) -> RecordedCall:
    return call("claim", at, **{"outcome": "refused", "code": "queued", "key": key} | more)


def leave(at: float, key: str, **more: object) -> RecordedCall:
    return call("leave", at, key=key, **more)


def close(at: float, name: str = "x", **more: object) -> RecordedCall:
    return call("close", at, **{"job": name, "client": "o", "ttl": 60} | more)


def pool(at: float, slots: int) -> RecordedCall:
    return call("pool", at, slots=slots, client="o")


def opened(session: str, parent: str = "", **more: object) -> RecordedCall:
    return call("session_open", 0, job="", session=session, parent=parent, **more)


def share(at: float, token: int, **more: object) -> RecordedCall:
    return call("share", at, **{"lease": f"l{token}"} | more)


def place(at: float, key: str, ticket: str, position: object = 1, **more: object) -> RecordedCall:
    return queued(at, key, ticket=ticket, position=position, **more)


A, B = {"client": "a"}, {"client": "b"}
LOST = {"outcome": "refused", "code": "lease_not_current"}
UNKNOWN = {"outcome": "unknown"}

GOOD = {
    "one after the other": [claim(0, 1), release(1, 1), claim(1.2, 2, **B), release(2, 2, **B)],
    "after a release that was sent": [claim(0, 1), release(1, 1, ended=3.0), claim(1.05, 2, **B)],
    "after its time": [claim(0, 1), claim(2.05, 2, **B)],
    "kept alive": [claim(0, 1), renew(1.5, 1), renew(3, 1), claim(5.05, 2, **B)],
    "a repeat gets the same": [claim(0, 0, **UNKNOWN, lease="", key="k1"), claim(0.5, 1), claim(0.7, 1)],
    "a lost release, and again": [claim(0, 1), release(1, 1, **UNKNOWN), release(1.2, 1), claim(1.4, 2, **B)],
    "broken by an operator": [claim(0, 1), call("break", 0.5, **B), claim(0.7, 2, **B), renew(1, 1, **LOST)],
    "handed over": [
        claim(0, 1),
        call("transfer", 0.5, lease="l1", token=1),
        call("heir", 0.5, lease="l2", token=2, client="b"),
        renew(1, 2, **B),
    ],
    "ended with its session": [
        claim(0, 1, session="s"),
        call("session_end", 0.5, session="s", job=""),
        claim(0.7, 2, **B),
        renew(1, 1, **LOST),
    ],
    "lost after its time": [claim(0, 1), renew(2.2, 1, **LOST)],
    "all of two jobs": [claim(0, 1), claim(0, 1, job="y"), renew(0.5, 1), renew(0.5, 1, job="y")],
    "shown as it is": [show(0, 0), claim(0.2, 1), show(0.5, 1), release(1, 1), show(1.2, 0)],
    "shown while it changes": [claim(0, 1, ended=0.5), show(0.2, 0), show(0.2, 1)],
    "kept by the SDK": [claim(0, 1, ttl=0), held(0.1, 1, ended=9), release(9.1, 1), claim(9.05, 2, **B)],
    "lost by the SDK": [claim(0, 1, ttl=0), held(0.1, 1, ended=1), claim(3, 2, **B)],
    "served in order": [queued(1, "k2"), queued(1.2, "k3", **B), claim(2, 2), claim(4.1, 3, **B)],
    "at the same time": [queued(1, "k3", ended=2.0), queued(1.5, "k2", **B), claim(3, 2, **B), claim(5.1, 3)],
    "a place that was given up": [queued(1, "k3"), leave(1.2, "k3"), claim(1.5, 2, **B), claim(4, 3)],
    "a place after a long silence": [queued(1, "k3"), claim(2, 2, **B), claim(30, 3)],
    "a key so old that it is forgotten": [claim(0, 1), release(0.5, 1), claim(1, 40, key="k1")],
    "a key forgotten after ten minutes": [claim(0, 1), release(0.5, 1), claim(700, 2, key="k1")],
    "shared": [claim(0, 1, units=1), claim(0.2, 2, units=1, **B), claim(0.4, 3, units=1, client="c")],
    "as many units as slots": [claim(0, 1, units=2, slots=3), claim(0.2, 2, units=1, slots=3, **B)],
    "a pool that got fewer": [pool(0, 3), claim(1, 1, units=3), pool(1.5, 1)],
    "a pool that got more": [pool(0, 1), claim(1, 1, units=1), pool(1.2, 3), claim(1.5, 2, units=2, **B)],
    "a family": [opened("s"), opened("t", "s"), claim(1, 1, session="s"), claim(1.2, 2, session="t", **B)],
    "a child that ends with its parent": [
        opened("t", "s"),
        claim(1, 1, session="t"),
        call("session_end", 1.5, session="s", job=""),
        renew(2, 1, **LOST),
    ],
    "before its ceiling": [claim(0, 1, ceiling=5), renew(1, 1), renew(2.9, 1)],
    "at its ceiling, by a clock that stood while nobody was answered": [claim(0, 1, ceiling=5), renew(6, 1)],
    "opened again": [close(0), call("open", 1, client="o"), claim(2, 1)],
    "asked before it closed": [queued(0, "k1"), close(0.5), claim(0.9, 1)],
    "after the closure": [close(0, ttl=1), claim(0.95, 1)],
    "its repeat is told while closed": [claim(0, 1), close(0.5), claim(1, 1)],
    "a place that comes nearer": [place(0, "k1", "t1", 2), place(1, "k1", "t1", 1), claim(2, 1)],
    "a place stays in its group": [
        place(0, "k2", "t2", group="h", **B),
        place(1, "k1", "t1", group="g"),
        place(2, "k1", "t1", group="h"),
    ],
    "another place after a long silence": [place(0, "k1", "t1"), place(20, "k1", "t2")],
    "another place after it left": [place(0, "k1", "t1"), leave(1, "k1"), place(2, "k1", "t2")],
    "another place after another ask of its session got the job and gave it back": [
        place(0, "k2", "t2", session="s"),
        claim(1, 1, session="s", **B),
        release(1.2, 1, **B),
        place(0.5, "k2", "t3", session="s", ended=1.4),
    ],
    "a repeat of a claim that was granted before its pool got fewer slots": [
        pool(0, 3),
        claim(1, 0, key="k1", lease="", units=3, **UNKNOWN),
        pool(1.5, 2),
        claim(1.7, 1, units=3),
    ],
    "shared from now on": [claim(0, 1), share(0.5, 1), claim(0.8, 2, units=1, **B), renew(1, 1)],
    "shared from now on, by its session": [
        claim(0, 1, session="s"),
        share(0.5, 0, lease="", session="s", **UNKNOWN),
        claim(0.8, 2, units=1, **B),
    ],
    "given up after it was served": [claim(0, 1), leave(0.5, "k1"), claim(0.7, 2, **B)],
    "replaced by the newest": [
        place(0, "k1", "t1", group="g"),
        place(1, "k2", "t2", group="g", **B),
        place(2, "k2", "t2", group="g", **B),
    ],
}

BAD = {
    "two owners": ("excl", [claim(0, 1), claim(1, 2, **B)]),
    "two owners after a renewal": ("excl", [claim(0, 1), renew(1.5, 1), claim(3, 2, **B)]),
    "a late give-back": ("excl", [claim(0, 1), claim(0.4, 2, **B), renew(0.8, 1)]),
    "two owners by a transfer": (
        "excl",
        [claim(0, 1), call("heir", 0.5, lease="l2", token=2, client="b")],
    ),
    "an heir that was passed over": (
        "excl",
        [
            claim(0, 1),
            call("transfer", 0.5, lease="l1", token=1),
            call("heir", 0.5, lease="l2", token=2, client="b"),
            claim(1, 3),
        ],
    ),
    "one of two jobs twice": ("excl", [claim(0, 1), claim(0, 1, job="y"), claim(1, 2, job="y", **B)]),
    "two owners by the SDK": ("excl", [claim(0, 1, ttl=0), held(0.1, 1, ended=5), claim(3, 2, **B)]),
    "two clients of the SDK": (
        "excl",
        [claim(0, 1, ttl=0), held(0.1, 1, ended=5), claim(3, 2, ttl=0, **B), held(3.1, 2, ended=4, **B)],
    ),
    "served past the line": ("queue:fifo", [queued(1, "k3"), claim(2, 2, **B), claim(4.1, 3)]),
    "served past the line, both waiting": (
        "queue:fifo",
        [queued(1, "k3"), queued(1.2, "k2", **B), claim(2, 2, **B), queued(3, "k3"), claim(4.1, 3)],
    ),
    "a place that was lost with an answer": (
        "queue:fifo",
        [queued(1, "k3"), call("claim", 1.2, key="k3", **UNKNOWN), claim(2, 2, **B), claim(4.1, 3)],
    ),
    "the last of the line first": (
        "queue:fifo",
        [
            queued(1, "k3"),
            queued(1.2, "k4", **B),
            claim(1.5, 2, client="c"),
            claim(3.6, 3, key="k4", lease="l4", **B),
            claim(5.7, 4, key="k3", lease="l3"),
        ],
    ),
    "shared with one who is alone": ("excl", [claim(0, 1, units=1), claim(0.5, 2, **B)]),
    "two families": ("excl", [opened("t", "s"), claim(1, 1, session="t"), claim(1.2, 2, session="u", **B)]),
    "too many units": ("units", [claim(0, 1, units=2, slots=2), claim(0.5, 2, units=1, slots=2, **B)]),
    "too many for a pool that got fewer": (
        "units",
        [pool(0, 3), pool(1, 1), claim(2, 1, units=1), claim(2.5, 2, units=1, **B)],
    ),
    "renewed past its ceiling": ("max-hold", [claim(0, 1, ceiling=1), renew(0.9, 1), renew(1.5, 1)]),
    "renewed past its ceiling and a silence": ("max-hold", [claim(0, 1, ceiling=1), renew(2, 1), renew(2.9, 1)]),
    "promised too much": ("max-hold", [claim(0, 1, ceiling=1, ttl=5)]),
    "granted while closed": ("closed", [close(0), claim(1, 1)]),
    "granted while the folder is closed": ("closed", [close(0, "lab/"), claim(1, 1, job="lab/0")]),
    "another place": ("queue:fifo", [place(0, "k1", "t1"), place(1, "k1", "t2")]),
    "another place of a session that never had the job": (
        "queue:fifo",
        [
            place(0, "k1", "t1", session="s"),
            place(0.3, "k2", "t2", session="s", **B),
            place(1, "k1", "t3", session="s"),
        ],
    ),
    "moved back": ("queue:fifo", [place(0, "k1", "t1", 1), place(1, "k1", "t1", 4)]),
    "not replaced": (
        "queue:newest",
        [place(0, "k1", "t1", group="g"), place(1, "k2", "t2", group="g", **B), place(2, "k1", "t1", group="g")],
    ),
    "two owners, one would have shared": (
        "excl",
        [claim(0, 1), share(0.3, 1, outcome="refused", code="conflict"), claim(1, 2, units=1, **B)],
    ),
    "two owners after a refused share": (
        "excl",
        [claim(0, 9), release(0.1, 9), share(0.3, 9, **LOST), claim(0.5, 10), claim(1, 11, **B)],
    ),
    "alone beside one who shares": ("excl", [claim(0, 1), share(0.3, 1), claim(1, 2, **B)]),
    "two owners beside a session that nobody was told of": (
        "excl",
        [opened("s"), opened("", "s", **UNKNOWN), claim(1, 1, session="s"), claim(1.5, 2, **B)],
    ),
    "served past the line beside a session that nobody was told of": (
        "queue:fifo",
        [opened("", "s", **UNKNOWN), queued(1, "k3"), claim(2, 2, **B), claim(4.1, 3)],
    ),
    "shown as free": ("excl", [claim(0, 1), show(1, 0)]),
    "shown with another": ("excl", [claim(0, 5), show(1, 7)]),
    "the same token twice": ("token:rises", [claim(0, 1), release(1, 1), claim(2, 1, lease="l2", key="k2", **B)]),
    "a smaller token": ("token:rises", [claim(0, 9), release(1, 9), claim(2, 3, **B)]),
    "a smaller token, much later": (
        "token:rises",
        [claim(0, 9), release(0.5, 9), claim(1, 10, **B), release(1.5, 10, **B), claim(2, 8)],
    ),
    "one lease, two tokens": ("token:rises", [claim(0, 1), claim(0.5, 2, lease="l1", key="k1")]),
    "shown with an owner of long ago": ("token:rises", [claim(0, 4), release(1, 4), claim(1.2, 5, **B), show(5, 4)]),
    "two leases with one key": ("idem:acquire", [claim(0, 1), release(1, 1), claim(2, 2, key="k1")]),
    "two leases with one key, much later": (
        "idem:acquire",
        [claim(0, 1), release(1, 1), claim(541, 2, key="k1")],
    ),
    "a repeat that made a second lease": (
        "idem:acquire",
        [claim(0, 1), claim(2.5, 2, key="k1")],
    ),
    "a renewal under the next owner": ("proof", [claim(0, 1), claim(2.5, 2, **B), release(3, 2, **B), renew(4, 1)]),
    "a renewal long after": ("proof", [claim(0, 1), claim(3, 2, **B), claim(6, 3, **B), renew(9, 1)]),
    "renewed after its release": ("proof", [claim(0, 1), release(0.5, 1), renew(1, 1)]),
    "granted again after its release": ("proof", [claim(0, 1), release(0.5, 1), claim(1, 1)]),
    "shown after its release": ("proof", [claim(0, 1), release(1, 1), show(2, 1)]),
    "lost too early": ("lease:never-early", [claim(0, 1), renew(1, 1, **LOST)]),
    "lost too early after a renewal": ("lease:never-early", [claim(0, 1), renew(1.5, 1), renew(2.5, 1, **LOST)]),
    "a release that says it was lost": ("lease:never-early", [claim(0, 1), release(1, 1, **LOST)]),
    "forgotten by a restart": (
        "lease:never-early",
        [claim(0, 1), renew(0.5, 1), renew(1, 1, **LOST), claim(9, 2, **B)],
    ),
}


@pytest.mark.fault("F-720", "F-721", "F-740", "F-741")
@pytest.mark.parametrize("name", GOOD)
def test_a_run_in_which_the_promises_were_kept_is_not_blamed(name: str) -> None:
    assert judge(GOOD[name]) == []


@pytest.mark.fault("F-706")
@pytest.mark.fault("F-725")
@pytest.mark.fault("F-726")
@pytest.mark.parametrize("name", BAD)
def test_a_planted_fault_is_found(name: str) -> None:
    promise, run = BAD[name]
    found = judge(run)
    assert promise in {each.promise for each in found}, found


@pytest.mark.parametrize("name", BAD)
def test_the_window_shows_the_calls_that_cannot_all_be_true(name: str) -> None:
    promise, run = BAD[name]
    wrong = next(each for each in judge(run) if each.promise == promise)
    assert set(wrong.calls) <= set(wrong.window(run))


def test_every_kind_of_violation_has_a_planted_fault() -> None:
    assert {promise for promise, _ in BAD.values()} == {
        "excl",
        "token:rises",
        "idem:acquire",
        "proof",
        "lease:never-early",
        "queue:fifo",
        "queue:newest",
        "units",
        "max-hold",
        "closed",
    }
    assert len(BAD) >= 30


def test_what_happened_is_counted_and_what_did_not_is_nought() -> None:
    race = call("race", 9, job="", features={"closures": 2, "breaks": 0})
    run = [
        queued(0, "k2", **B),
        claim(0, 1),
        renew(0.5, 1),
        release(1, 1),
        claim(1.2, 2, **B),
        claim(1.4, 2, **B),
        race,
    ]
    assert exercised(run) == {
        "grants": 2,
        "renewals": 1,
        "hand-overs": 1,
        "waits served": 1,
        "lost answers": 0,
        "repeats": 1,
        "closures": 2,
        "breaks": 0,
    }


def test_a_claim_that_was_asked_again_after_a_lost_answer_is_a_repeat() -> None:
    did = exercised([claim(0, 0, **UNKNOWN, lease="", key="k1"), claim(0.5, 1), claim(3, 2, **B)])
    assert (did["grants"], did["repeats"], did["lost answers"]) == (2, 1, 1)


def test_a_record_is_read_in_the_order_of_time_and_a_line_that_was_cut_off_is_left_out() -> None:
    run = [replace(each, number=number) for number, each in enumerate(GOOD["kept alive"])]
    over = RecordedCall(len(run), "", RACE, "", 99, 99, OK)
    lines = [json.dumps(asdict(each) | {"added_later": 1}) for each in (*reversed(run), over)]
    assert read_calls([*lines, lines[0][:40]]) == [*run, over]


@pytest.mark.fault("F-779")
def test_of_a_record_that_was_cut_off_the_last_calls_prove_nothing() -> None:
    """The release of the first owner was answered, and its line was not written any more."""
    run = [claim(0, 1), claim(30, 2, **B), claim(30.5, 3, lease="c", key="k3")]
    run = [replace(each, number=number) for number, each in enumerate(run)]
    assert judge(run)
    found = read_calls([json.dumps(asdict(each)) for each in run])
    assert found == run[:1]
    released = replace(run[1], call="release", client="b")
    assert read_calls([json.dumps(asdict(each)) for each in (*run, released)])[-1] == released


@pytest.mark.fault("F-728")
@pytest.mark.parametrize("line", ["{", "[]", "\x00", '{"number": 1}', '{"number": "one"}'])
def test_a_record_that_is_damaged_in_the_middle_is_refused(line: str) -> None:
    lines = [json.dumps(asdict(each)) for each in GOOD["kept alive"]]
    with pytest.raises(InvalidInput, match="Line 2 is not a call"):
        read_calls([lines[0], line, *lines[1:]])
    wrong = json.dumps(asdict(GOOD["kept alive"][0]) | {"began": "soon"})
    with pytest.raises(InvalidInput, match="Line 1 is not a call"):
        read_calls([wrong, *lines])


def test_a_long_record_is_judged_in_a_time_that_grows_with_its_length() -> None:
    """Breaks, shares and families looked at every lease since the beginning."""

    def steps(turns: int) -> int:
        run: list[RecordedCall] = [opened("t", "s")]
        for turn in range(turns):
            at, more = turn * 10.0, {"session": f"s{turn}"}
            run += [opened(f"t{turn}", f"s{turn}"), claim(at, turn, **more), share(at + 0.5, turn)]
            run += [call("break", at + 1, client="o"), call("session_end", at + 2, job="", **more)]
        count = 0

        def step(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(step)
        try:
            judge(run)
        finally:
            sys.setprofile(None)
        return count

    assert steps(800) < 3 * steps(400)


@pytest.mark.fault("F-710")
@pytest.mark.parametrize(("ticket", "key"), [("t1", "k1"), ("another", "")])
def test_who_leaves_by_its_ticket_is_noted_with_the_key_of_its_claim(ticket: str, key: str) -> None:
    """It may use the key again. Without this, its next place would be another one of the same claim."""
    noted: list[dict[str, Any]] = []
    stage: Any = SimpleNamespace(now=lambda: 1.0, note=lambda **line: noted.append(line), chance=Random(1))
    life = Workload("c1", stage, race_terms("1", operates=False))
    queued = {"status": "queued", "name": "x", "ticket": "t1", "position": 1}
    life.note(Ask("acquire", "x", {"owner": "c1", "request_key": "k1"}), 0.5, Reply(202, queued))
    life.note(withdrawal(["x"], None, ticket), 0.9, Reply(200, {}))
    assert [(line["call"], line["key"]) for line in noted] == [("claim", "k1"), ("leave", key)]


@pytest.mark.fault("F-717")
@pytest.mark.parametrize(("features", "units"), [({"shared"}, 1), ({"share"}, 1), (set(), None)])
def test_what_a_session_got_by_an_earlier_claim_may_be_shared(features: set[str], units: int | None) -> None:
    noted: list[dict[str, Any]] = []
    stage: Any = SimpleNamespace(now=lambda: 1.0, note=lambda **line: noted.append(line), chance=Random(1))
    life = Workload("c1", stage, race_terms("1", operates=False)._replace(features=frozenset(features)))
    lease = {"lease_id": "L", "fencing_token": 1, "remaining_ms": 2_000}
    life.note(Ask("renew", "x", {"session_id": "s"}), 0.5, Reply(200, lease))
    assert [(line["call"], line.get("units")) for line in noted] == [("claim", units)]


@pytest.mark.fault("F-715")
@pytest.mark.parametrize(("late_ms", "attempts"), [(0, []), (PATIENCE_MS, ["open"])])
def test_an_operator_who_was_answered_late_may_have_asked_another_server_before(
    late_ms: int, attempts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = 0.0

    def answer(asked: Ask) -> Reply:
        nonlocal at_s
        at_s += late_ms / 1000
        return Reply(200, {})

    monkeypatch.setattr(racers, "now", lambda: at_s)
    record = StringIO()
    transport: Any = SimpleNamespace(ask=answer)
    common = (racers.Recorder(record), "seed", Event())
    racer = racers.Racer("c1", lambda: transport, common, race_terms("1", operates=True))
    racer.ask_by(transport, Ask("open", "x"))
    assert [json.loads(line)["call"] for line in record.getvalue().splitlines()] == attempts


@pytest.mark.fault("F-712")
def test_a_job_that_is_a_pool_no_longer_is_shared_by_any_number() -> None:
    shared = [claim(2, 1, units=1), claim(2.2, 2, units=1, **B)]
    assert judge([pool(0, 2), pool(1, NO_POOL), *shared]) == []
    assert [wrong.promise for wrong in judge([pool(0, 2), pool(1, 1), *shared])] == ["units"]
