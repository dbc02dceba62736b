"""One job between the model in `models/one_job.qnt` and the real rules: commands of its steps, records as it has them.

A step of the model's time is 5 s. An ask of the model is a number, which is a lease id here."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from dibs.core.commands import Acquire, Beat, KeepTickets, Release, Renew, Sweep, Withdraw
from dibs.core.decide import decide
from dibs.core.draft import View
from dibs.core.limits import REMEMBERED_MAX
from dibs.core.records import META_KEY, Holder, LockRecord, Meta, Ticket, lock_key, ticket_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.core.commands import Command
    from dibs.core.records import Ending, Stored, WithdrawnAsk

    Records = dict[str, Stored | None]

STEP_MS = 5_000  # one step of the model's time
BEGAN_MS = 1_000_000
TTL_MS, TICKET_MS = 4 * STEP_MS, 3 * STEP_MS
NS, JOB, PRINCIPAL = "default", "job", "team"
NOBODY: dict[str, Any] = {
    "claim": {"worker": "", "number": 0},
    **dict.fromkeys(("lease", "token", "renewed", "ttl"), 0),
    "used": False,
}


def time_of(step: int) -> int:
    return BEGAN_MS + step * STEP_MS


def id_of(ask: int) -> str:
    return f"ask{ask}"


def key_of(claim: dict[str, Any]) -> str | None:
    return f"{claim['worker']}{claim['number']}" if claim["number"] else None


def command_of(did: dict[str, Any], numbers: dict[int, int]) -> Command:
    """The command, as the real rules take it. They number the places in line: `numbers` has that of each lease."""
    what, claim, number = did["what"], did["claim"], numbers.get(did["lease"], 0)
    common: dict[str, Any] = {"ns": NS, "name": JOB, "principal": PRINCIPAL}
    shown = id_of(did["lease"]) if did["lease"] else None
    lease = {**common, "lease_id": id_of(did["lease"])}
    if what == "acquire":
        return Acquire(
            **common,
            owner=claim["worker"],
            request_key=key_of(claim),
            fresh_lease_id=id_of(did["ask"]),
            ttl_ms=TTL_MS,
            wait=True,
            ticket=number,
            ticket_id=shown,
        )
    if what == "renew":
        return Renew(**lease)
    if what == "release":
        return Release(**lease)
    if what == "withdraw":
        ask = id_of(did["ask"]) if did["ask"] else None
        undo = Withdraw(ns=NS, principal=PRINCIPAL, names=(JOB,), request_key=key_of(claim), fresh_lease_id=ask)
        return undo.replace(ticket=number, ticket_id=shown)
    if what == "keep":
        return KeepTickets(tickets=((NS, JOB, number),))
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
            "ended": claims_of(lock.endings),
            "withdrawn": claims_of(lock.withdrawn),
            "outages": [{"began": step_of(each.began_ms), "ended": step_of(each.ended_ms)} for each in meta.outages],
        }


def turn_of(turn: Holder | Ticket) -> dict[str, Any]:
    token, ttl_ms = (turn.token, turn.ttl_ms) if isinstance(turn, Holder) else (0, TICKET_MS)
    assert turn.expires_ms >= turn.renewed_ms + ttl_ms
    return {
        "claim": claim_of(turn.request_key) if turn.request_key else {"worker": turn.owner, "number": 0},
        "lease": int(turn.lease_id[3:]),
        "token": token,
        "renewed": step_of(turn.renewed_ms),
        "ttl": ttl_ms // STEP_MS,
        "used": turn.used,
    }


def claim_of(key: str) -> dict[str, Any]:
    return {"worker": key[0], "number": int(key[1:])}


def claims_of(past: Sequence[Ending | WithdrawnAsk]) -> list[dict[str, Any]]:
    """Those with a key, in the order in which Quint's sets are written."""
    claims = [claim_of(each.request_key) for each in past if each.request_key is not None]
    return sorted(claims, key=lambda claim: (claim["worker"], claim["number"]))


def step_of(time_ms: int) -> int:
    steps, rest = divmod(time_ms - BEGAN_MS, STEP_MS)
    assert rest == 0
    return steps


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
        what = chance.choice(["acquire"] * 5 + ["withdraw"] * 2 + ["renew", "release", "keep", "sweep"])
        if chance.random() < 0.06 and now > since + 1:
            what = "outage"
        known = chance.choice([before["owner"], *before["line"]])
        did: dict[str, Any] = {
            "what": what,
            "claim": NOBODY["claim"],
            "lease": known["lease"] or chance.randrange(asks + 1),
            "ask": 0,
            "now": now,
            "since": since if what == "outage" else 0,
        }
        if what == "acquire":
            asks += 1
            anybody = {**NOBODY, "claim": {"worker": chance.choice("abc"), "number": chance.randrange(5)}}
            place = chance.choice([*before["line"], anybody])  # a ticket is shown only by those who got it
            did |= {"claim": place["claim"], "lease": place["lease"], "ask": asks}
        if what == "withdraw":
            did |= withdrawal(chance, known)
        life.decide(did)
        steps_taken.append((did, before, life.stored()))
    return steps_taken


def withdrawal(chance: random.Random, turn: dict[str, Any]) -> dict[str, Any]:
    """What a withdrawal names: a claim by its key, also before it came; an ask without a key; or only a place."""
    by = chance.choice(("key", "ask", "place"))
    other = {"worker": chance.choice("abc"), "number": chance.randrange(1, 5)}
    claim = turn["claim"] if chance.random() < 0.7 else other
    return {
        "claim": claim if by == "key" and claim["number"] else NOBODY["claim"],
        "lease": turn["lease"] if by == "place" else 0,
        "ask": turn["lease"] if by == "ask" else 0,
    }
