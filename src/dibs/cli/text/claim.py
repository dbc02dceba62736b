"""Texts for one claim, from reply documents. Pure: no clock, no terminal, no I/O."""

from __future__ import annotations

from dibs.cli.text.words import ago, job_command, plain, span
from dibs.wire import sentences

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.cli.text.colour import Paint
    from dibs.wire.documents import Document


def field(name: str, value: str) -> str:
    return f"  {name:<15}{plain(value)}"


def acquired(
    document: Document,
    paint: Paint,
    after: list[str],
    *,
    timed: bool = False,
    in_session: bool = False,
    by_actor: bool = False,
    kept_for: int | None = None,
    more: Sequence[str] = (),
) -> str:
    """A claim that succeeded. `after` are the flags to repeat in the next command. In a session the name is proof
    enough, and a claim that is not `timed` lasts as long as the session. `by_actor`: the session is an actor's, and
    every command of the actor renews it. `kept_for` is the process during whose life a keeper sends heartbeats. `more`
    are lines to print before the last."""
    name = document["name"]
    by_session = in_session and not timed
    how_long = lasting(document, by_session=by_session, by_actor=by_actor)
    lines = [f"{paint.good('Claimed')} {paint.strong(plain(name))} {how_long}, as {plain(document['owner'])}."]
    if not in_session:
        lines.append(field("lease", document["lease_id"]))
    lines.append(field("fencing token", str(document["fencing_token"])))
    if document.get("previous"):
        lines += previous(document["previous"], sentences.now_ms_of(document))
    if document.get("attempt", 1) > 1:
        lines.append(field("attempt", str(document["attempt"])))
    proof = [] if in_session else ["--lease", document["lease_id"]]
    if kept_for is not None:
        lines.append(field("kept for", f"process {kept_for}, until it ends"))
    lines += more
    if by_session or kept_for is not None:
        lines.append(f"When it is done:  {job_command(['release', *after], [name], proof)}")
    else:
        within = span(document["renew_after_ms"])
        lines.append(f"Send a heartbeat within {within}:  {job_command(['heartbeat', *after], [name], proof)}")
    return "\n".join(lines)


def lasting(document: Document, *, by_session: bool, by_actor: bool) -> str:
    """Return how long a new claim lasts. An actor's lasts as its session does, which each of its commands renews."""
    if not by_session:
        return f"for {span(document['remaining_ms'])}"
    return f"for {span(document['remaining_ms'])} after each command of yours" if by_actor else "until the session ends"


def held(document: Document, paint: Paint, asked_as: str | None = None) -> str:
    """Somebody has the job. `asked_as` is the caller's owner name, if it gave no proof."""
    lines = [f"{paint.wait('Held:')} {sentence(document)}", *hold_fields(document)]
    if is_namesake(document, asked_as):
        lines += [NAMESAKE, _NAMESAKE_NEXT]
    return "\n".join(lines)


NAMESAKE = "That is your own owner name, which proves nothing: another process of yours may have the job."
_NAMESAKE_NEXT = (
    "If you claimed it by hand, the claim printed a lease id, for --lease. With --actor NAME you need none."
)


def is_namesake(document: Document, asked_as: str | None) -> bool:
    """Tell whether the only owner has the same name as the caller."""
    if "conflict" in document or "tracker" in document:
        return False
    return asked_as is not None and document["owner"] == asked_as


def sentence(document: Document) -> str:
    """Return why the job is not available, safe to print."""
    return plain(sentences.sentence(document))


def waited_for(document: Document) -> list[str]:
    """A line for an owner that is told for the first time that somebody waits."""
    if not document.get("new_waiters"):
        return []
    return [plain(sentences.waiters(document["name"], document["waiting"]))]


def hold_fields(document: Document) -> list[str]:
    """The public fields of a hold."""
    lines = [field("since", ago(document["held_ms"]))] if "held_ms" in document else []
    if sentences.life(document):
        lines.append(field("heard", sentences.life(document)))
    for key in ("metadata", "checkpoint"):
        if document.get(key):
            lines.append(field(key, plain(document[key])))
    if document.get("attempt", 1) > 1:
        lines.append(field("attempt", str(document["attempt"])))
    if document.get("mode", "exclusive") != "exclusive":
        lines.append(field("mode", plain(document["mode"])))
    if "fencing_token" in document:
        lines.append(field("fencing token", str(document["fencing_token"])))
    if document.get("waiting"):
        lines.append(field("waiting", f"{document['waiting']} in line"))
    return lines


def parked(document: Document, paint: Paint, after: list[str]) -> str:
    lines = [f"{paint.bad('Parked:')} {sentence(document)}"]
    if document.get("previous"):
        lines += previous(document["previous"], sentences.now_ms_of(document))
    command = job_command(["free", *after], [document["name"]])
    lines.append(f"Fix the cause, then free it:  {command}")
    return "\n".join(lines)


def deadlock(cycle: list[str]) -> str:
    """The cycle of waiters as a path, from the caller back to the caller, and in words."""
    names = [plain(each) for each in cycle]
    steps = []
    for index in range(0, len(names) - 1, 2):
        holder = names[(index + 2) % len(names)]
        steps.append(f"{names[index]} waits for {names[index + 1]}, which {holder} has")
    told = ";\n  ".join(steps)
    path = sentences.cycle_path(names)
    return f"Waiting would deadlock:\n  {path}\n  {told}.\nRelease something and try again later."


def done(document: Document, paint: Paint) -> str:
    lines = [f"{paint.good('Done:')} {sentence(document)}"]
    if document.get("result"):
        lines.append(field("result", plain(document["result"])))
    return "\n".join(lines)


def delayed(document: Document, paint: Paint) -> str:
    lines = [f"{paint.wait('Not yet:')} {sentence(document)}"]
    if document.get("previous"):
        lines += previous(document["previous"], sentences.now_ms_of(document))
    return "\n".join(lines)


def previous(document: Document, now_ms: int | None) -> list[str]:
    """The previous owner, how its hold ended, and its checkpoint."""
    lines = [field("before", sentences.ended(document, now_ms))]
    if document.get("checkpoint"):
        lines.append(field("got to", document["checkpoint"]))
    return lines


def renewed(name: str, document: Document, paint: Paint) -> str:
    lines = [f"{paint.good('Still yours:')} {plain(name)}, for another {span(document['remaining_ms'])}."]
    if document.get("checkpoint"):
        lines.append(field("checkpoint", plain(document["checkpoint"])))
    return "\n".join([*lines, *waited_for({"name": name, **document})])


def released(name: str, done_ms: int, paint: Paint) -> str:
    after = "It can be claimed."
    if done_ms:
        after = f"Marked done for {span(done_ms)}."
    return f"{paint.good('Released')} {plain(name)}. {after}"


def failed(document: Document, paint: Paint, after: list[str]) -> str:
    name, count = plain(document["name"]), document["failures"]
    told = f"{paint.wait('Released as failed:')} {name}, {count} in a row."
    if document["parked"]:
        return f"{told} It is parked. Fix the cause, then free it:  {job_command(['free', *after], [document['name']])}"
    if document["retry_after_ms"]:
        return f"{told} It can be claimed in {span(document['retry_after_ms'])}."
    return f"{told} It can be claimed."


def broken(document: Document, paint: Paint) -> str:
    name = plain(document["name"])
    if not document["broken"]:
        return f"Nobody has {name}. Nothing was changed."
    lines = []
    for hold in document["broken"]:
        lines.append(
            f"{paint.wait('Broken:')} {plain(hold['owner'])} has lost {name}. Its next heartbeat is refused "
            f"with your reason."
        )
        if hold.get("checkpoint"):
            lines.append(field("got to", plain(hold["checkpoint"])))
    return "\n".join(lines)


def transferred(document: Document, paint: Paint, *, to_session: bool) -> str:
    name, owner = plain(document["name"]), plain(document["owner"])
    lines = [f"{paint.good('Handed over:')} {name} is {owner}'s now, for another {span(document['remaining_ms'])}."]
    lines.append(field("fencing token", str(document["fencing_token"])))
    if not to_session:
        lines.append(field("lease", document["lease_id"]))
        lines.append(f"Give the lease id to {owner}: it proves the claim. Your own lease has ended.")
    return "\n".join(lines)


def freed(document: Document, paint: Paint) -> str:
    name = plain(document["name"])
    if not document["freed"]:
        return f"{name} is not parked. Nothing was changed."
    return f"{paint.good('Freed:')} {name} can be claimed again. Its failure count is 0."
