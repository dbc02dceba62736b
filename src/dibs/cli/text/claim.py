"""Texts for one claim, from reply documents. Pure: no clock, no terminal, no I/O."""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.base.jsontext import Document
from dibs.cli.text.words import Paint, ago, job_command, plain, span, table
from dibs.wire import sentences


def field(name: str, value: str) -> str:
    return f"  {name:<15}{plain(value)}"


def acquired(
    document: Document,
    paint: Paint,
    after: list[str],
    asked: Document,
    *,
    by_actor: bool,
    by_name: bool = False,
    more: Sequence[str] = (),
) -> str:
    """A claim of one job, or of several at once, that succeeded. `after` are the flags to repeat in the next command,
    `asked` is the request. In a session the name is proof enough, and a claim without a TTL of its own lasts as long as
    the session. `by_actor`: the session is an actor's, and every command of the actor renews it. `by_name`: the shell's
    next commands find the lease by the job's name. `more` are lines to print before the last."""
    in_session, kept_for = "session_id" in asked, document.get("kept_for")
    by_session = in_session and "ttl_seconds" not in asked
    how_long = "until the session ends"
    if by_actor or not by_session:
        how_long = f"for {span(document['remaining_ms'])}" + (" after each command of yours" if by_session else "")
    leases = document.get("leases")
    if leases is None:
        names, what, end = [document["name"]], paint.strong(plain(document["name"])), "When it is done"
        details = _lease_fields(document, in_session=in_session)
    else:
        names, what, end = [lease["name"] for lease in leases], f"all {len(leases)}", "When they are done"
        what = what if len(leases) > 1 else "it"
        details = _lease_rows(leases, paint, in_session=in_session)
    lines = [f"{paint.good('Claimed')} {what} {how_long}, as {plain(document['owner'])}.", *details]
    if kept_for is not None:
        lines.append(field("kept for", f"process {kept_for}, until it ends"))
    lines += more
    proof = [] if in_session or by_name else ["--lease", document["lease_id"]]
    before, behind = (after, proof) if leases is None else ([], [*after, *proof])
    if by_session or kept_for is not None:
        lines.append(f"{end}:  {job_command(['release', *before], names, behind)}")
    else:
        within = span(document["renew_after_ms"])
        lines.append(f"Send a heartbeat within {within}:  {job_command(['heartbeat', *before], names, behind)}")
    if by_name:
        lines.append(f"{end}:  {job_command(['release', *before], names, behind)}")
    return "\n".join(lines)


def _lease_fields(document: Document, *, in_session: bool) -> list[str]:
    lines = [] if in_session else [field("lease", document["lease_id"])]
    lines.append(field("fencing token", str(document["fencing_token"])))
    if "slot" in document:
        lines.append(field("slot", sentences.slot_text(document)))
    if document.get("previous"):
        lines += previous(document["previous"], sentences.now_ms_of(document))
        lines += effects(document["previous"], sentences.now_ms_of(document))
    if document.get("attempt", 1) > 1:
        lines.append(field("attempt", str(document["attempt"])))
    return lines + ceiling(document)


def ceiling(document: Document) -> list[str]:
    """A line about a claim that ends, whatever is renewed."""
    if document.get("ends_in_ms") is None:
        return []
    at = document["ends_at"][:16].replace("T", " ")
    return [field("ends at most", f"in {span(document['ends_in_ms'])}, at {at}Z, whatever is renewed")]


def closed(document: Document) -> list[str]:
    """A line about a job that is held and closed for others."""
    return [field("closed", sentences.closed(document))] if document.get("closed") else []


def _lease_rows(leases: list[Document], paint: Paint, *, in_session: bool) -> list[str]:
    heads = ["JOB", "TOKEN", *(["SLOT"] if any("slot" in lease for lease in leases) else []), "LEASE"]
    rows = [tuple(heads[:-1] if in_session else heads)]
    for lease in leases:
        cells = {"JOB": plain(lease["name"]), "TOKEN": str(lease["fencing_token"]), "LEASE": lease["lease_id"]}
        cells["SLOT"] = sentences.slot_text(lease) or "-"
        rows.append(tuple([cells[head] for head in rows[0]]))
    head, *lines = [f"  {line}" for line in table(rows)]
    return [paint.faint(head), *lines]


def refusal(document: Document, paint: Paint, after: Sequence[str] = (), namesake: Sequence[str] = ()) -> str:
    """A job that is held, done, parked or delayed. `after` are the flags to repeat in the next command, `namesake` is
    what to say of an owner with the caller's name."""
    status = document["status"]
    leads = {"held": paint.wait("Held:"), "done": paint.good("Done:"), "parked": paint.bad("Parked:")}
    leads["superseded"] = paint.wait("Superseded:")
    lines = [f"{leads.get(status, paint.wait('Not yet:'))} {sentence(document)}"]
    if status == "held" and "paused" not in document:
        lines += hold_fields(document)
        lines += namesake
    elif status == "done":
        lines += [field("result", document["result"])] if document.get("result") else []
    elif document.get("previous"):
        lines += previous(document["previous"], sentences.now_ms_of(document))
    if status == "parked":
        lines.append(f"Fix the cause, then free it:  {job_command(['free', *after], [document['name']])}")
    return "\n".join(lines)


_NAMESAKE = (
    "That is your own owner name, which proves nothing: another process of yours may have the job.",
    "If you claimed it by hand, the claim printed a lease id, for --lease. With --actor NAME you need none.",
)
# An actor is known at one address, so two addresses of one store show two owners of one name.
SAME_ACTOR = "That is your own name: it was claimed at another address (--url), or in another session of that name."


def namesake(document: Document, asked_as: str | None, *, by_actor: bool) -> Sequence[str]:
    """Say that the only owner has the same name as the caller, if it has."""
    if any(each in document for each in ("conflict", "tracker", "slot", "paused")):
        return ()
    if asked_as is None or document.get("owner") != asked_as:
        return ()
    return (SAME_ACTOR,) if by_actor else _NAMESAKE


def sentence(document: Document) -> str:
    return plain(sentences.sentence(document))


def waited_for(document: Document) -> list[str]:
    """A line that reports to an owner, once, that somebody waits."""
    if not document.get("new_waiters"):
        return []
    return [plain(sentences.waiters(document["name"], document["waiting"]))]


def hold_fields(document: Document) -> list[str]:
    lines = [field("since", ago(document["held_ms"]))] if "held_ms" in document else []
    if sentences.life(document):
        lines.append(field("heard", sentences.life(document)))
    notes = {"metadata": sentences.said(document.get("metadata")), "checkpoint": document.get("checkpoint")}
    lines += [field(key, plain(value)) for key, value in notes.items() if value]
    if document.get("attempt", 1) > 1:
        lines.append(field("attempt", str(document["attempt"])))
    if document.get("mode", "exclusive") != "exclusive":
        lines.append(field("mode", plain(document["mode"])))
    if "fencing_token" in document:
        lines.append(field("fencing token", str(document["fencing_token"])))
    lines += ceiling(document)
    if "slot" in document:
        lines.append(field("slot", sentences.slot_text(document)))
    if document.get("waiting"):
        lines.append(field("waiting", f"{document['waiting']} in line"))
    return lines


def deadlock(cycle: list[str]) -> str:
    """The cycle of waiters as a path, from the caller back to the caller, and in words."""
    names = [plain(sentences.shown_name(each)) for each in cycle]
    steps = []
    for index in range(0, len(names) - 1, 2):
        holder = names[(index + 2) % len(names)]
        steps.append(f"{names[index]} waits for {names[index + 1]}, which {holder} has")
    path, waits = sentences.cycle_path(names), ";\n  ".join(steps)
    return f"Waiting would deadlock:\n  {path}\n  {waits}.\nRelease something and try again later."


def previous(document: Document, now_ms: int | None) -> list[str]:
    lines = [field("before", sentences.ended(document, now_ms))]
    if document.get("checkpoint"):
        lines.append(field("got to", document["checkpoint"]))
    return lines


STEP_CHARS_MAX = 120  # of a key, a result or a reason


def effects(document: Document, now_ms: int | None) -> list[str]:
    """A line for each step that was noted: what is in doubt must be looked at before the work goes on."""
    shown = [
        {key: f"{text[:STEP_CHARS_MAX]}…" if len(str(text)) > STEP_CHARS_MAX else text for key, text in each.items()}
        for each in document.get("effects", ())
    ]
    return [field("step", sentences.effect(each, now_ms)) for each in shown]
