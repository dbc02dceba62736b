"""One job between the model in `models/one_job.qnt` and the real rules: commands of its steps, records as it has them.

A step of the model's time is 5 s. An ask of the model is a number, which is a lease id here."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

from dibs.core.commands import Acquire, Beat, KeepPlaces, Leave, Release, Renew, Sweep
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.limits import REMEMBERED_MAX
from dibs.core.records import META_KEY, Holder, LockRecord, Meta, Ticket, lock_key, ticket_key

if TYPE_CHECKING:
    from dibs.core.commands import Command
    from dibs.core.records import Ending, Stored

    Records = dict[str, Stored | None]

NO_SEAT = "-"  # the model still has seats; the rules have `Withdraw` in their place
STEP_MS = 5_000  # one step of the model's time
BEGAN_MS = 1_000_000
TTL_MS, TICKET_MS = 4 * STEP_MS, 3 * STEP_MS
NS, JOB, PRINCIPAL = "default", "job", "team"
NOBODY: dict[str, Any] = {
    "claim": {"worker": "", "number": 0},
    **dict.fromkeys(("lease", "token", "renewed", "ttl", "seat"), 0),
}


def time_of(step: int) -> int:
    return BEGAN_MS + step * STEP_MS


def id_of(ask: int) -> str:
    return f"ask{ask}"


def seat_text(seat: int) -> str:
    if seat > 0:
        return id_of(seat)
    return NO_SEAT if seat == 0 else NO_SEAT + id_of(-seat)


def command_of(did: dict[str, Any], numbers: dict[int, int]) -> Command:
    """The command, as the real rules take it. They number the places in line: `numbers` has that of each lease."""
    what, claim, number = did["what"], did["claim"], numbers.get(did["lease"], 0)
    common: dict[str, Any] = {"ns": NS, "name": JOB, "principal": PRINCIPAL}
    seat = id_of(did["ask"]) if did["ask"] else None
    lease = {**common, "lease_id": id_of(did["lease"])}
    if what == "acquire":
        has_ticket = did["follows"] != 0
        return Acquire(
            **common,
            owner=claim["worker"],
            request_key=f"{claim['worker']}{claim['number']}",
            fresh_lease_id=id_of(did["ask"]),
            ttl_ms=TTL_MS,
            wait=True,
            ticket=number if has_ticket else 0,
            ticket_id=id_of(did["lease"]) if has_ticket else None,
        )
    if what == "renew":
        return Renew(**lease)
    if what == "shorten":
        return Renew(**lease, ttl_ms=TICKET_MS)
    if what == "release":
        return Release(**lease, uncounted=seat is not None)
    if what == "leave":
        return Leave(**common, ticket=number, ticket_id=id_of(did["lease"]))
    if what == "keep":
        return KeepPlaces(places=((NS, JOB, number),))
    if what == "sweep":
        return Sweep(key=lock_key(NS, JOB))
    # A server that was never here before reads what the others' pulses say.
    assert what == "outage"
    return Beat(server=f"at{did['now']}", alive_since_ms=time_of(did["now"]), heard_ms=time_of(did["since"]))


class Life:
    """The records of one job, which the real rules write."""

    def __init__(self) -> None:
        self.records: Records = {}
        self.numbers: dict[int, int] = {}  # of every place there was

    def decide(self, did: dict[str, Any]) -> None:
        view = View(time_of(did["now"]), self.records)
        view.load = lambda keys: self.records.update({key: self.records.get(key) for key in keys})
        if did["what"] != "outage":
            view.vouched_ms = time_of(did["now"])
        self.records.update(decide(view, command_of(did, self.numbers)).writes)
        self.numbers |= {int(each.lease_id[3:]): each.number for each in self.line()}

    def lock(self) -> LockRecord:
        lock = self.records.get(lock_key(NS, JOB)) or LockRecord(ns=NS, name=JOB)
        assert isinstance(lock, LockRecord)
        return lock

    def line(self) -> list[Ticket]:
        tickets = [self.records[ticket_key(NS, JOB, number)] for number in self.lock().line]
        return [each for each in tickets if isinstance(each, Ticket)]

    def stored(self) -> dict[str, Any]:
        """The records as the model has them."""
        lock, meta = self.lock(), self.records.get(META_KEY) or Meta()
        assert isinstance(meta, Meta)
        assert len(lock.holders) <= 1
        return {
            "token": lock.token,
            "owner": turn_of(*lock.holders) if lock.holders else NOBODY,
            "line": [turn_of(each) for each in self.line()],
            "ended": sorted(map(claim_of, lock.endings), key=lambda claim: (claim["worker"], claim["number"])),
            "outages": [{"began": step_of(each.began_ms), "ended": step_of(each.ended_ms)} for each in meta.outages],
        }


def turn_of(turn: Holder | Ticket) -> dict[str, Any]:
    token, ttl_ms = (turn.token, turn.ttl_ms) if isinstance(turn, Holder) else (0, TICKET_MS)
    assert turn.expires_ms >= turn.renewed_ms + ttl_ms
    return {
        "claim": claim_of(turn),
        "lease": int(turn.lease_id[3:]),
        "token": token,
        "renewed": step_of(turn.renewed_ms),
        "ttl": ttl_ms // STEP_MS,
        "seat": seat_number(turn.lease_id),
    }


def claim_of(turn: Holder | Ticket | Ending) -> dict[str, Any]:
    assert turn.request_key is not None
    return {"worker": turn.request_key[0], "number": int(turn.request_key[1:])}


def step_of(time_ms: int) -> int:
    steps, rest = divmod(time_ms - BEGAN_MS, STEP_MS)
    assert rest == 0
    return steps


def seat_number(seat: str) -> int:
    found = re.search(r"ask(\d+)$", seat)
    number = int(found[1]) if found else 0
    return -number if seat.startswith(NO_SEAT) else number


def random_life(seed: int, steps: int = 40) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Steps that the real rules decided, each with the records before and after it. Asks, leases and places are chosen
    at random among those that were ever there, so that most of what comes is late or for nobody."""
    chance = random.Random(seed)
    life = Life()
    steps_taken: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    now = asks = 0
    while len(steps_taken) < steps:
        before, since = life.stored(), now
        if len(before["ended"]) == REMEMBERED_MAX:
            break  # the model forgets none
        now += chance.choice((0, 0, 0, 1, 1, 2))
        what = chance.choice(["acquire"] * 5 + ["renew", "release", "shorten", "leave", "keep", "sweep"])
        if chance.random() < 0.06 and now > since + 1:
            what = "outage"
        known = chance.choice([before["owner"], *before["line"]])
        did: dict[str, Any] = {
            "what": what,
            "claim": NOBODY["claim"],
            "lease": known["lease"] or chance.randrange(asks + 1),
            "follows": 0,
            "ask": chance.randrange(asks + 1) if what in ("shorten", "leave", "release") else 0,
            "now": now,
            "since": since if what == "outage" else 0,
        }
        if what == "acquire":
            asks += 1
            anybody = {**NOBODY, "claim": {"worker": chance.choice("abc"), "number": chance.randrange(1, 5)}}
            place = chance.choice([*before["line"], anybody])  # a ticket is shown only by those who got it
            follows = place["seat"] if chance.random() < 0.7 else chance.randrange(-asks, asks + 1)
            did |= {"claim": place["claim"], "lease": place["lease"], "ask": asks}
            did["follows"] = follows if place["lease"] else 0
        life.decide(did)
        steps_taken.append((did, before, life.stored()))
    return steps_taken
