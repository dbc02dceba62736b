"""Sentences for replies: who has a job, for how long, how an earlier hold ended. Pure.

A sentence states facts. Each surface adds its next step: a flag, an argument, a tool. Names and reasons are text of
others and are not changed here; `dibs/base/terminal.py` escapes them for a terminal.
"""

from __future__ import annotations

from dibs.base.cheap import Callable, Sequence
from dibs.base.jsontext import Document
from dibs.core.durations import ago, span
from dibs.core.names import in_tree
from dibs.core.overlap import overlaps
from dibs.wire.parts import AGENT_NOTE, instant_ms

NAMES_SHOWN = 5
# How the note begins that says in which checkout and clone an agent's hook claimed a file.
CHECKOUT_NOTE = "checkout="
_MARK = "path:@"
_MARK_DIGITS = 12
_HEXADECIMAL = frozenset("0123456789abcdef")
SILENT_MS = 60_000  # an owner that was not heard of for this long is called silent


def shown_name(name: str) -> str:
    """The name of a job as people know it. An agent's hook claims a file as `path:src/a`, which all clones see, and as
    `path:@ID/src/a` for one checkout, ID being a digest: both are the file."""
    if not name.startswith(_MARK):
        return name
    mark, _, path = name[len(_MARK) :].partition("/")
    return f"path:{path}" if path and len(mark) == _MARK_DIGITS and _HEXADECIMAL.issuperset(mark) else name


def said(metadata: str | None) -> str | None:
    """Return `metadata` that a person or a worker wrote; None for a note of a program of dibs, which is not for
    people."""
    return None if metadata is None or metadata.startswith((AGENT_NOTE, CHECKOUT_NOTE)) else metadata


def readable(document: Document) -> Document:
    """A job, an event or a refusal without what only programs of dibs can read."""
    changed = dict(document)
    for field in ("name", "conflict"):
        if isinstance(document.get(field), str):
            changed[field] = shown_name(document[field])
    if "metadata" in document:
        changed["metadata"] = said(document["metadata"])
    for field in ("holders", "overlapping", "refused", "locks", "leases", "rest", "holds"):
        if isinstance(document.get(field), list | tuple):
            changed[field] = [readable(each) for each in document[field]]
    if changed.get("overlapping"):  # a file of an agent overlaps by both of its names
        once = {(each.get("name"), each.get("owner")): each for each in changed["overlapping"]}
        changed["overlapping"] = list(once.values())
    return changed


def as_it(document: Document) -> Document:
    """A document about a job whose name was said before: sentences call the job `it`, wherever it is named."""
    name, it = document.get("name"), {"name": "it"}
    changed = {**document, **it}
    if document.get("closed") and document["closed"]["name"] == name:
        changed["closed"] = {**document["closed"], **it}
    if document.get("holders"):
        changed["holders"] = [{**each, **it} if each.get("name") == name else each for each in document["holders"]]
    return changed


def sentence(document: Document) -> str:
    """Return why a job was not granted, or its state. For an error, its own sentence."""
    document = readable(document)
    if "refused" in document:
        few = f"Only {document['free']} can be claimed now. " if "free" in document else ""
        lost = "Some of what this request key got was lost."
        why = f"Not available: {several(document['refused'])}." if document["refused"] else lost
        return f"{few}{why}{still_held(document)}"
    if "closed" in document and document.get("status") == "queued":  # for that it waits, whoever has the job
        return closed(document)
    sentence_of = _OF_STATUS.get(document.get("status", ""))
    if sentence_of is not None:
        return sentence_of(document)
    return str(document.get("details") or document.get("status") or "There was no answer.")


def still_held(document: Document, *, proof: bool = False) -> str:
    """Name what a repeated claim of several jobs was refused, and still has: an earlier answer may have been lost. With
    `proof` it has the lease id: for an answer that only the caller reads, not for an error that may be logged."""
    rest = document.get("rest")
    if not rest:
        return ""
    names = ", ".join([lease["name"] for lease in rest])
    lease = f", with lease id {rest[0]['lease_id']}" if proof else ""
    return f" This request key still has {names}{lease}: release what you do not need."


def in_full(document: Document) -> str:
    """The sentence, with the owner's last sign of life, or the end of the last hold if that is the reason."""
    document = readable(document)
    previous = document.get("previous")
    if document.get("status") in ("held", "queued") and "silent_ms" in document and "closed" not in document:
        return f"{held(document, silence=False)} {_in_a_sentence(document)}"
    if not previous or document.get("status") not in ("delayed", "parked"):
        return sentence(document)
    return f"{sentence(document)} {ended(previous, now_ms_of(document))}."


def held(document: Document, *, silence: bool = True) -> str:
    """Return who blocks the claim: an owner, with a long silence, or only others in line."""
    text = _holding(document)
    is_silent = silence and document.get("silent_ms", 0) >= SILENT_MS
    return f"{text} {_in_a_sentence(document)}" if is_silent else text


def _holding(document: Document) -> str:
    name, owner = document.get("name", ""), document.get("owner")
    if document.get("tracker"):
        return f"{owner} has an open pull request that closes {name}: {document['tracker']['url']}"
    if document.get("paused"):
        return paused(document)
    if owner is None:
        first = (document.get("reserved_for") or {}).get("owner")
        who = "others in line come first" if first is None else f"{first} is first in line for it"
        return f"Nobody has {name} now, but {who}."
    left, held, holders = _for_another(document.get("remaining_ms") or 0), name, document.get("holders", ())
    others = document.get("holder_count", len(holders)) - 1
    if document.get("conflict"):
        held = shown_name(document["conflict"])
    if held != name and all(map(in_tree, (held, name))) and overlaps(held, name):
        more = " One more overlaps it, too." if others == 1 else f" {others} more overlap it, too."
        overlap = f"{held}, which overlaps {name},"
        return f"{owner} has {overlap} {left}.{more if others > 0 else ''}"
    same = [each for each in holders if each.get("name", held) == held]
    if len(same) < len(holders):  # of several jobs, others are in the way, too
        others = len(same) - 1
    if others > 0:
        return f"{owner} and {others} {'other' if others == 1 else 'others'} have {held} {left}."
    return f"{owner} has {held} {left}."


def life(document: Document) -> str:
    """The owner's last sign of life, in a few words: `last heartbeat 3 seconds ago`, or `silent for 14m`. An agent's
    program may send heartbeats while the agent itself does nothing, which is said, too. Empty if it is not known."""
    if "silent_ms" not in document:
        return ""
    silent_ms, idle_ms = document["silent_ms"], document.get("idle_ms", 0)
    text = f"last heartbeat {ago(silent_ms)}" if silent_ms < SILENT_MS else f"silent for {span(silent_ms)}"
    return f"{text}, last tool call {ago(idle_ms)}" if idle_ms - silent_ms >= SILENT_MS else text


def _in_a_sentence(document: Document) -> str:
    text = life(document)
    return f"{text[0].upper()}{text[1:]}."


def waiters(name: str, waiting: int) -> str:
    """For the owner: somebody waits for its job. One sentence, however many wait."""
    who = "Somebody waits" if waiting == 1 else f"{waiting:,} wait"
    return f"{who} for {shown_name(name)}: release it as soon as you are finished with it."


def done(document: Document) -> str:
    """The job is done; without times if the document does not have them."""
    owner = document.get("owner") or (document.get("done") or {}).get("owner")
    tracker, ago_ms = document.get("tracker"), document.get("done_ms_ago")
    if tracker:
        when = "" if ago_ms is None else f", {ago(ago_ms)}"
        return f"{tracker['title']} says that {document.get('name')} is {tracker['how']}{when}."
    if "done_ms_ago" not in document:
        return f"{document.get('name')} was done by {owner}."
    return (
        f"{document.get('name')} was done by {owner}, {ago(document['done_ms_ago'])}. "
        f"It counts as done {_for_another(document['retry_after_ms'])}."
    )


def delayed(document: Document) -> str:
    how = (document.get("previous") or {}).get("how")
    why = {None: "a failure or a loss", "failed": "a failure"}.get(how, "its last owner was lost")
    left = span(document.get("retry_after_ms") or 0)
    return f"{document.get('name')} rests after {why}. It can be claimed in {left}."


def parked(document: Document) -> str:
    count = document.get("failures")
    if count == 1:
        return f"{document.get('name')} is parked: its owner failed at it or was lost."
    owners = f"{count} owners" if count else "too many owners"
    return f"{document.get('name')} is parked: {owners} in a row failed at it or were lost."


def closed(document: Document) -> str:
    """For how long an operator keeps a job closed, and why."""
    closure = document["closed"]
    name, within = document.get("name"), closure["name"]
    below = "" if within == name else f", with {within},"
    until = closure["until"][:16].replace("T", " ")
    left = _for_another(closure["remaining_ms"])
    return f"{name} is closed{below} {left}, until {until}Z, by {closure['by']}: {closure['reason']}."


def paused(document: Document) -> str:
    return f"{document.get('name')} is paused: its pool has no slots until an operator gives it some."


def frozen(document: Document) -> str:
    return f"Nobody has {document.get('name')}, and nobody can claim it now: its store is frozen while it is moved."


def superseded(document: Document) -> str:
    by = document.get("by")
    who = f"{by} asked later and waits" if by else "a newer one came"
    return f"This claim of {document.get('name')} waits no longer: {who} for the group {document.get('group')}."


def free(document: Document) -> str:
    overlapping = document.get("overlapping")
    if document.get("pool"):
        return f"Nobody has {document.get('name')}: {pool(document)}."
    if not overlapping:
        return f"Nobody has {document.get('name')}."
    by = ", ".join([f"{each['name']} ({each['owner']})" for each in overlapping])
    more = document.get("overlapping_count", len(overlapping)) - len(overlapping)
    by += f", and {more} more" if more else ""
    return f"Nobody has {document.get('name')} itself, but what overlaps it is held: {by}."


def slot_text(document: Document) -> str:
    """The numbers of a hold's slots, with commas between; empty if it has none."""
    numbers = document.get("slot_numbers") or [document["slot"]] if "slot" in document else ()
    return ",".join([str(number) for number in numbers])


def pool(document: Document) -> str:
    """The slots of a pool: `a pool of 4 slots`."""
    slots = document["slots"]
    return f"a pool of {slots} slot{'' if slots == 1 else 's'}"


def several(entries: Sequence[Document]) -> str:
    """Jobs, each with its state: `a (held by w1), b (done) and 3 more`. Those that wait for a person come first."""
    ordered = sorted(entries, key=lambda each: each.get("status") != "parked")
    return few([f"{each.get('name') or '?'} ({_in_short(each)})" for each in ordered])


def few(texts: Sequence[str], most: int = NAMES_SHOWN) -> str:
    """The first of several: `a, b and 3 more`."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def _in_short(entry: Document) -> str:
    status, owner = entry.get("status", "held"), entry.get("owner")
    return f"held by {owner}" if status in ("held", "queued") and owner is not None else str(status)


def ended(previous: Document, now_ms: int | None) -> str:
    """Return how an earlier hold ended, when and why, without a full stop. Without `now_ms` it has the time of day."""
    at, owner, by = previous["at"], previous["owner"], previous.get("by") or "somebody"
    when = f"on {at[:19]}Z" if now_ms is None else ago(now_ms - instant_ms(at))
    why = f": {previous['reason']}" if previous.get("reason") else ""
    match previous["how"]:
        case "released":
            return f"{owner} released it {when}"
        case "failed":
            return f"{owner} failed at it {when}{why}"
        case "transferred":
            return f"{owner} handed it to {by} {when}"
        case "expired" if previous.get("reason") == "max_hold":
            return f"{owner}'s claim reached the longest time that it may last {when}"
        case "expired":
            return f"{owner} went silent; its claim ran out {when}"
        case "broken":
            return f"{by} took it from {owner} {when}{why}"
    return f"{owner}, {previous['how']} {when}"


def effect(document: Document, now_ms: int | None) -> str:
    """A step that changes something outside, and how it stands, without a full stop."""
    key, owner = document["key"], document.get("owner") or "somebody"
    at = document.get("at")
    when = "" if at is None else f" on {at[:19]}Z" if now_ms is None else f" {ago(now_ms - instant_ms(at))}"
    why = f": {document['reason']}" if document.get("reason") else ""
    match document["status"]:
        case "done":
            return f"{key} was done{when} by {owner}" + (f": {document['result']}" if document.get("result") else "")
        case "failed":
            return f"{key} failed{when} for {owner}{why}"
        case "in_doubt":
            return f"in doubt: {key}, begun{when} by {owner} (token {document.get('fencing_token')}){why}"
        case "running":
            return f"{key} was begun{when} by {owner} and is not ended"
    return f"{key} was not begun"


def not_a_job(name: str, what: str) -> str:
    """`what` says of the name what only a job can be: a field, a flag or an argument."""
    return f"{name} is a resource, not a job: it can be held, but not be done, fail or be parked. Leave out {what}."


def cycle_path(cycle: Sequence[str]) -> str:
    """A cycle of waiting, from the caller back to the caller."""
    return " → ".join([shown_name(each) for each in (*cycle, cycle[0])])


def _for_another(ms: int) -> str:
    return f"for another {span(ms)}" if ms >= 1_000 else "for less than another second"


def now_ms_of(document: Document) -> int | None:
    """The store's time when it made the document, if it is known: this machine's clock may be wrong."""
    for at, left in (("expires_at", "remaining_ms"), ("available_at", "retry_after_ms")):
        if document.get(at) and document.get(left) is not None:
            return instant_ms(document[at]) - int(document[left])
    return None


_OF_STATUS: dict[str, Callable[[Document], str]] = {
    "held": held,
    "queued": held,
    "done": done,
    "delayed": delayed,
    "parked": parked,
    "superseded": superseded,
    "free": free,
    "closed": closed,
    "paused": paused,
    "frozen": frozen,
}
STATES = frozenset(_OF_STATUS)
