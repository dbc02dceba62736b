"""The model in `models/one_job.qnt` decides as the real rules do: its traces are replayed, write by write.

`scripts/model` makes the traces. They are checked in, so this test needs no other program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.commands import Acquire, Beat, KeepPlaces, Leave, Release, Renew, Sweep
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.keys import META_KEY, lock_key, ticket_key
from dibs.core.limits import ENDINGS_KEPT
from dibs.core.records import LockRecord, Meta, Ticket
from dibs.core.tickets import NOBODY, seat_of

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.records import Stored

TRACES: list[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "models" / "traces.json").read_text(encoding="utf-8")
)
STEP_MS = 5_000  # one step of the model's time
BEGAN_MS = 1_000_000
TTL_MS, TICKET_MS = 4 * STEP_MS, 3 * STEP_MS
NS, JOB, PRINCIPAL = "default", "job", "team"


def time_of(step: int) -> int:
    return BEGAN_MS + step * STEP_MS


def id_of(ask: int) -> str:
    return f"ask{ask}"


def seat_text(seat: int) -> str:
    if seat > 0:
        return id_of(seat)
    return NOBODY if seat == 0 else NOBODY + id_of(-seat)


def command_of(did: dict[str, Any]) -> Command:
    what, ask = did["what"], did["ask"]
    seat = id_of(did["asking"]) if did["asking"] else None
    lease: dict[str, Any] = {
        "ns": NS,
        "name": JOB,
        "principal": PRINCIPAL,
        "lease_id": id_of(did["lease"]),
        "seat": seat,
    }
    if what == "acquire":
        return Acquire(
            ns=NS,
            name=JOB,
            principal=PRINCIPAL,
            owner=ask["worker"],
            request_key=f"{ask['worker']}{ask['claim']}",
            fresh_lease_id=id_of(ask["id"]),
            ttl_ms=TTL_MS,
            wait=True,
            ticket=ask["number"],
            ticket_id=id_of(ask["ticket"]) if ask["ticket"] else None,
            follows=seat_text(ask["follows"]) if ask["ticket"] else None,
        )
    if what == "renew":
        return Renew(**lease)
    if what == "shorten":
        return Renew(**lease, ttl_ms=TICKET_MS)
    if what == "release":
        return Release(**lease, uncounted=seat is not None)
    if what == "leave":
        ticket_id = id_of(did["lease"])
        return Leave(ns=NS, name=JOB, principal=PRINCIPAL, ticket=did["number"], ticket_id=ticket_id, seat=seat)
    if what == "keep":
        return KeepPlaces(places=((NS, JOB, did["number"]),))
    if what == "sweep":
        return Sweep(key=lock_key(NS, JOB))
    # A server that was never here before reads what the others' pulses say.
    assert what == "outage"
    return Beat(server=f"at{did['now']}", alive_since_ms=time_of(did["now"]), heard_ms=time_of(did["vouched"]))


def replay(trace: list[dict[str, Any]]) -> None:
    records: dict[str, Stored | None] = {}
    for number, step in enumerate(trace):
        did = step["did"]
        view = View(time_of(did["now"]), records)
        view.load = lambda keys: records.update({key: records.get(key) for key in keys})
        if did["what"] != "outage":
            view.vouched_ms = time_of(did["vouched"])
        records.update(decide(view, command_of(did)).writes)
        assert stored(records) == expected(step["store"]), f"write {number}: {did}"


def stored(records: dict[str, Stored | None]) -> dict[str, Any]:
    """The records as the model has them."""
    lock = records.get(lock_key(NS, JOB)) or LockRecord(ns=NS, name=JOB)
    meta = records.get(META_KEY) or Meta()
    assert isinstance(lock, LockRecord)
    assert isinstance(meta, Meta)
    tickets = [records[ticket_key(NS, JOB, number)] for number in lock.line]
    return {
        "token": lock.token,
        "next": lock.next_ticket,
        "holders": [
            (h.lease_id, h.request_key, h.token, h.renewed_ms, h.ttl_ms, h.expires_ms, seat_of(h)) for h in lock.holders
        ],
        "line": [
            (t.number, t.lease_id, t.request_key, t.renewed_ms, t.expires_ms, seat_of(t))
            for t in tickets
            if isinstance(t, Ticket)
        ],
        "endings": [(each.lease_id, each.request_key) for each in lock.endings],
        "outages": [(each.began_ms, each.ended_ms) for each in meta.outages],
    }


def expected(store: dict[str, Any]) -> dict[str, Any]:
    return {
        "token": store["token"],
        "next": store["next"],
        "holders": [
            (
                id_of(h["lease"]),
                f"{h['worker']}{h['claim']}",
                h["token"],
                time_of(h["renewed"]),
                h["ttl"] * STEP_MS,
                time_of(h["expires"]),
                seat_text(h["seat"]),
            )
            for h in store["holders"]
        ],
        "line": [
            (
                p["number"],
                id_of(p["lease"]),
                f"{p['worker']}{p['claim']}",
                time_of(p["renewed"]),
                time_of(p["expires"]),
                seat_text(p["seat"]),
            )
            for p in store["line"]
        ],
        "endings": [(id_of(e["lease"]), f"{e['worker']}{e['claim']}") for e in reversed(store["endings"])][
            :ENDINGS_KEPT
        ],
        "outages": [(time_of(each["began"]), time_of(each["ended"])) for each in store["outages"]],
    }


@pytest.mark.promise("excl")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("number", range(len(TRACES)))
def test_the_rules_write_what_the_model_writes(number: int) -> None:
    replay(TRACES[number])


def test_the_traces_have_every_kind_of_step_and_what_is_hard() -> None:
    steps = [step for trace in TRACES for step in trace]
    assert {step["did"]["what"] for step in steps} == {
        "acquire",
        "renew",
        "shorten",
        "release",
        "leave",
        "keep",
        "sweep",
        "outage",
    }
    seats = [hold["seat"] for step in steps for hold in step["store"]["holders"]]
    assert min(seats) < 0 < max(seats), "no lease that several asks know of"
    assert max(len(step["store"]["line"]) for step in steps) >= 2
    assert max(len(step["store"]["outages"]) for step in steps) >= 2


def test_a_trace_that_the_rules_did_not_write_is_refused() -> None:
    trace = json.loads(json.dumps(next(trace for trace in TRACES if trace[-1]["store"]["holders"])))
    trace[-1]["store"]["holders"][0]["token"] += 1
    with pytest.raises(AssertionError, match=f"write {len(trace) - 1}"):
        replay(trace)
