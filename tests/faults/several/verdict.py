"""The verdict on a run: compares the clients' notes with each other and with the store's history.

Returns a list of violations, which are:

- events of the store that break a promise: two owners, tokens that do not rise, leases cut short
- a waiter served before an earlier one, a claim that passed the line, a place that was served twice
- a client that was sure of a job after another one with a larger token was
- a claim, renewal or release that was acknowledged and is not in the store's history; a request key with two leases
- a write behind the fence with a smaller token than one before it
- a job that its living owner lost, although no fault lasted as long as its lease
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dibs.core.events import OWNERSHIP_ENDS
from dibs.core.limits import REMEMBERED_MAX
from tests.faults.schedules import fenced_writes, late, overlaps
from tests.models.history import broken_promises, overtaken
from tests.models.replay import replay

if TYPE_CHECKING:
    from pathlib import Path

    from dibs.core.events import Event

Note = dict[str, Any]


@dataclass
class Verdict:
    wrong: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def judge(folder: Path, events: list[Event]) -> Verdict:
    notes = diaries(folder)
    sure = [f"{job}: {each}" for job, times in beliefs(notes).items() for each in overlaps(times)]
    fenced = fenced_writes(folder)
    late_writes = sum(late(tokens) for tokens in fenced.values())
    owned = [job for (_, job), claims in replay(events).items() if claims and not job.startswith("kept-")]
    wrong = [
        *broken_promises(events),
        *overtaken(events, plain=True),
        *served_twice(events),
        *sure,
        *unkept(notes, events),
        *(f"late writes behind the fence: {late_writes}" for _ in range(bool(late_writes))),
        *(f"still owned by history: {job}" for job in owned),
        *(f"{note['what']}: {note['says']}" for note in notes if note.get("what") in ("crashed", "not kept")),
    ]
    what = Counter(str(note.get("what")) for note in notes)
    counts = {
        "claims": what["got"],
        "hand-overs": sum(event.kind == "acquired" and event.ticket > 0 for event in events),
        "renewals": what["renewed"],
        "releases": what["released"],
        "expired": sum(event.kind == "expired" for event in events),
        "outages": sum(event.kind == "outage" for event in events),
        "asked again": what["again"] + what["trouble"],
        "lost": what["lost"],
        "deadlocks": sum(note.get("code") == "deadlock" for note in notes),
        "checks": what["believed"] + what["kept"],
        "fenced writes": sum(map(len, fenced.values())),
        "refused by the fence": sum("refused" in note for note in notes),
        "keys forgotten": len(repeated(notes, events)),
        "overlaps": len(sure),
    }
    return Verdict(wrong, counts)


def diaries(folder: Path) -> list[Note]:
    found = []
    for diary in sorted(folder.glob("p*.jsonl")):
        for line in diary.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # its writer was killed in the middle of it
    return found


def beliefs(notes: list[Note]) -> dict[str, dict[int, list[tuple[int, int]]]]:
    """For each lease of each job, the times at which its client was sure of it, as (at the latest, at the earliest):
    by `check()`, or for its TTL from before its request. A client is not sure after it asked for a release."""
    found: dict[str, dict[int, list[tuple[int, int]]]] = {}
    let_go = {_lease(note): note["at_ms"] for note in notes if note.get("what") == "releases"}
    let_go |= {_lease(note): note["asked_ms"] for note in notes if note.get("what") == "released"}
    for note in notes:
        if note.get("what") == "believed":
            last_ms = note["before_ms"]
        elif note.get("what") == "sure" and note["at_ms"] <= note["until_ms"]:
            last_ms = min(note["until_ms"], let_go.get(_lease(note), note["until_ms"]))
        else:
            continue
        found.setdefault(note["job"], {}).setdefault(note["token"], []).append((last_ms, note["at_ms"]))
    return found


def _lease(note: Note) -> tuple[Any, Any, Any]:
    return note.get("job"), note.get("owner"), note.get("token")


def served_twice(events: list[Event]) -> list[str]:
    """A place in a line is served once, and by its own owner: one wake for each hand-over."""
    queued = {(event.job, event.ticket): event.owner for event in events if event.kind == "queued"}
    served: Counter[tuple[str, int]] = Counter()
    wrong = []
    for event in events:
        if event.kind == "acquired" and event.ticket:
            place = (event.job, event.ticket)
            served[place] += 1
            if queued.get(place) != event.owner:
                wrong.append(f"{event.owner} was given the place of {queued.get(place)} in {place}")
    return [
        *wrong,
        *(f"place {place} was served {times} times" for place, times in served.items() if times > 1),
    ]


def repeated(notes: list[Note], events: list[Event]) -> list[tuple[str, bool]]:
    """Claims with a second lease. That is wrong unless the first is so old that its job has forgotten the request key:
    the request was held up in a server or in the network, while the client went elsewhere and others had the job
    often. Nor is it wrong if the first ran out before its client was told of it: a client that still waits then claims
    with a new key."""
    found = []
    told = {_lease(note) for note in notes if note.get("what") == "got"}
    untold = {
        (event.job, event.owner)
        for event in events
        if event.kind == "expired" and (event.job, event.owner, event.token) not in told
    }
    first: dict[tuple[str, str], int] = {}
    ended: Counter[str] = Counter()
    for event in events:
        if event.kind == "acquired":
            who = (event.job, event.owner)
            if who in first:
                is_wrong = ended[event.job] - first[who] <= REMEMBERED_MAX and who not in untold
                found.append((f"a second lease with the request key of {who}: {event}", is_wrong))
            first[who] = ended[event.job]
        elif event.kind in OWNERSHIP_ENDS:
            ended[event.job] += 1
    return found


def unkept(notes: list[Note], events: list[Event]) -> list[str]:
    """Answers to clients that history does not have."""
    claimed = Counter((event.job, event.owner, event.token) for event in events if event.kind == "acquired")
    released = {(event.job, event.owner, event.token) for event in events if event.kind == "released"}
    progress = {(event.job, event.owner, event.checkpoint) for event in events if event.kind == "progress"}
    wrong = [each for each, is_wrong in repeated(notes, events) if is_wrong]
    for note in notes:
        what = note.get("what")
        lease = _lease(note)
        if what == "got" and not claimed[lease]:
            wrong.append(f"acknowledged and gone: {note}")
        if what == "released" and lease not in released:
            wrong.append(f"released and not so: {note}")
        if what == "renewed" and (note["job"], note["owner"], note["owner"]) not in progress:
            wrong.append(f"renewed and not so: {note}")
        # Tokens count the leases of a job, so their distance says how many ended between the two.
        if what == "doubled" and note["again"] - note["token"] <= REMEMBERED_MAX:
            wrong.append(f"one request key, two leases: {note}")
    return wrong
