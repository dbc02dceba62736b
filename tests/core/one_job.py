"""One job between the model in `models/one_job.qnt` and the real rules: commands of its steps, records as it has them.

A step of the model's time is 5 s. An ask of the model is a number, which is a lease id here."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

from dibs.core.commands import Acquire, Beat, KeepPlaces, Leave, Release, Renew, Sweep
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.limits import ENDINGS_KEPT
from dibs.core.records import META_KEY, LockRecord, Meta, Ticket, lock_key, ticket_key
from dibs.core.tickets import NOBODY, seat_of

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.records import Stored

    Records = dict[str, Stored | None]

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


def decided(records: Records, did: dict[str, Any]) -> None:
    """Let the real rules do a step, and write it into the records."""
    view = View(time_of(did["now"]), records)
    view.load = lambda keys: records.update({key: records.get(key) for key in keys})
    if did["what"] != "outage":
        view.vouched_ms = time_of(did["vouched"])
    records.update(decide(view, command_of(did)).writes)


def stored(records: Records) -> dict[str, Any]:
    """The records as the model has them."""
    lock = records.get(lock_key(NS, JOB)) or LockRecord(ns=NS, name=JOB)
    meta = records.get(META_KEY) or Meta()
    assert isinstance(lock, LockRecord)
    assert isinstance(meta, Meta)
    tickets = [records[ticket_key(NS, JOB, number)] for number in lock.line]
    return {
        "version": 0,
        "token": lock.token,
        "next": lock.next_ticket,
        "holders": [
            {
                **asked_by(h.lease_id, h.request_key),
                "token": h.token,
                "renewed": step_of(h.renewed_ms),
                "ttl": h.ttl_ms // STEP_MS,
                "expires": step_of(h.expires_ms),
                "seat": seat_number(seat_of(h)),
            }
            for h in lock.holders
        ],
        "line": [
            {
                **asked_by(t.lease_id, t.request_key),
                "number": t.number,
                "renewed": step_of(t.renewed_ms),
                "expires": step_of(t.expires_ms),
                "seat": seat_number(seat_of(t)),
            }
            for t in tickets
            if isinstance(t, Ticket)
        ],
        "endings": [asked_by(each.lease_id, each.request_key) for each in reversed(lock.endings)],
        "outages": [{"began": step_of(each.began_ms), "ended": step_of(each.ended_ms)} for each in meta.outages],
    }


def step_of(time_ms: int) -> int:
    steps, rest = divmod(time_ms - BEGAN_MS, STEP_MS)
    assert rest == 0
    return steps


def asked_by(lease_id: str, request_key: str | None) -> dict[str, Any]:
    assert request_key is not None
    return {"lease": int(lease_id[3:]), "worker": request_key[0], "claim": int(request_key[1:])}


def seat_number(seat: str) -> int:
    found = re.search(r"ask(\d+)$", seat)
    number = int(found[1]) if found else 0
    return -number if seat.startswith(NOBODY) else number


def random_life(seed: int, steps: int = 40) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Steps that the real rules decided, each with the records before and after it. Asks, leases and places are chosen
    at random among those that were ever there, so that most of what comes is late or for nobody."""
    chance = random.Random(seed)
    records: Records = {}
    life: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    now = vouched = asks = 0
    while len(life) < steps:
        before = stored(records)
        if len(before["endings"]) == ENDINGS_KEPT:
            break  # the model forgets none
        now += chance.choice((0, 0, 0, 1, 1, 2))
        away = chance.random() < 0.06 and now > vouched + 1 and len(before["outages"]) < 3
        what = chance.choice(["acquire"] * 5 + ["renew", "release", "shorten", "leave", "keep", "sweep"])
        vouched = vouched if away else now
        known = chance.choice([*before["holders"], *before["line"], {"lease": 0, "number": 0}])
        ask: dict[str, Any] = dict.fromkeys(("id", "claim", "number", "ticket", "follows", "sent", "lease"), 0)
        ask["worker"] = "a"
        if what == "acquire":
            asks += 1
            anybody = {
                "worker": chance.choice("abc"),
                "claim": chance.randrange(1, 5),
                "number": 0,
                "lease": 0,
                "seat": 0,
            }
            place = chance.choice([*before["line"], anybody])  # a ticket is shown only by those who got it
            ask |= {"id": asks, "number": place["number"], "ticket": place["lease"]}
            ask |= {"worker": place["worker"], "claim": place["claim"]}
            ask["follows"] = place["seat"] if chance.random() < 0.7 else chance.randrange(-asks, asks + 1)
        did = {
            "what": "outage" if away else what,
            "ask": ask,
            "lease": known["lease"] or chance.randrange(asks + 1),
            "number": known.get("number", 0) or chance.randrange(before["next"]),
            "asking": chance.randrange(asks + 1) if what in ("shorten", "leave", "release") else 0,
            "now": now,
            "vouched": vouched,
        }
        vouched = now
        decided(records, did)
        life.append((did, before, stored(records)))
    return life
