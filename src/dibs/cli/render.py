"""From reply documents to what a person reads. Pure: no clock, no terminal, no I/O.

The store's own "now" is in most documents (`expires_at` less `remaining_ms`), so that "4 minutes ago" is right on a
machine whose clock is not.
"""

from __future__ import annotations

from dibs.cli.words import ago, instant_ms, plain, shell_line, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.paint import Paint

    Document = dict[str, Any]


def field(name: str, value: str) -> str:
    return f"  {name:<15}{value}"


def acquired(document: Document, paint: Paint, after: list[str]) -> str:
    """A claim that succeeded. `after` are the global flags that the next command needs as well."""
    name, lease_id = document["name"], document["lease_id"]
    remaining_ms = document["remaining_ms"]
    now_ms = instant_ms(document["expires_at"]) - remaining_ms
    owner = plain(document["owner"])
    head = f"{paint.good('Claimed')} {paint.strong(plain(name))} for {span(remaining_ms)}, as {owner}."
    lines = [head, field("lease", lease_id), field("fencing token", str(document["fencing_token"]))]
    if document.get("previous"):
        lines += previous(document["previous"], now_ms)
    if document.get("attempt", 1) > 1:
        lines.append(field("attempt", str(document["attempt"])))
    # A name that begins with a dash comes last, after two of them.
    words = ["--lease", lease_id, "--", name] if name.startswith("-") else [name, "--lease", lease_id]
    command = shell_line(["dibs", "heartbeat", *after, *words])
    lines.append(f"Stay alive within {span(document['renew_after_ms'])}:  {command}")
    return "\n".join(lines)


def held(document: Document, paint: Paint) -> str:
    lines = [f"{paint.wait('Held:')} {held_sentence(document)}", *hold_fields(document)]
    return "\n".join(lines)


def held_sentence(document: Document) -> str:
    owner, name = plain(document["owner"]), plain(document["name"])
    return f"{owner} has {name} for another {span(document['remaining_ms'])}."


def hold_fields(document: Document) -> list[str]:
    """What everybody may see of a hold."""
    lines = [field("since", ago(document["held_ms"]))]
    for key in ("metadata", "checkpoint"):
        if document.get(key):
            lines.append(field(key, plain(document[key])))
    if document.get("attempt", 1) > 1:
        lines.append(field("attempt", str(document["attempt"])))
    lines.append(field("fencing token", str(document["fencing_token"])))
    return lines


def done_sentence(document: Document) -> str:
    """Of a `done` reply, which carries how long ago it was."""
    return (
        f"{plain(document['name'])} was done by {plain(document['owner'])}, {ago(document['done_ms_ago'])}. "
        f"It counts as done for another {span(document['retry_after_ms'])}."
    )


def done(document: Document, paint: Paint, sentence: str) -> str:
    lines = [f"{paint.good('Done:')} {sentence}"]
    if document.get("result"):
        lines.append(field("result", plain(document["result"])))
    return "\n".join(lines)


def delayed_sentence(document: Document) -> str:
    return (
        f"{plain(document['name'])} rests after its last owner was lost. "
        f"It can be claimed in {span(document['retry_after_ms'])}."
    )


def delayed(document: Document, paint: Paint) -> str:
    return f"{paint.wait('Not yet:')} {delayed_sentence(document)}"


def previous(document: Document, now_ms: int) -> list[str]:
    """Who had the job before, how that ended, and how far it had come."""
    when = ago(now_ms - instant_ms(document["at"]))
    owner = plain(document["owner"])
    how = {
        "released": f"{owner} released it {when}",
        "expired": f"{owner} went silent; its claim ran out {when}",
        "broken": f"{plain(document.get('by'))} took it from {owner} {when}: {plain(document.get('reason'))}",
    }.get(document["how"], f"{owner}, {plain(document['how'])} {when}")
    lines = [field("before", how)]
    if document.get("checkpoint"):
        lines.append(field("got to", plain(document["checkpoint"])))
    return lines


def renewed(name: str, document: Document, paint: Paint) -> str:
    lines = [f"{paint.good('Still yours:')} {plain(name)}, for another {span(document['remaining_ms'])}."]
    if document.get("checkpoint"):
        lines.append(field("checkpoint", plain(document["checkpoint"])))
    return "\n".join(lines)


def released(name: str, done_ms: int, paint: Paint) -> str:
    after = "The next claim gets it."
    if done_ms:
        after = f"Who claims it in the next {span(done_ms)} is told that it is done."
    return f"{paint.good('Released')} {plain(name)}. {after}"


def broken(document: Document, paint: Paint) -> str:
    name = plain(document["name"])
    if not document["broken"]:
        return f"Nobody had {name}; nothing was taken away."
    lines = []
    for hold in document["broken"]:
        lines.append(
            f"{paint.wait('Taken:')} {plain(hold['owner'])} has lost {name}; its next heartbeat is told why."
        )
        if hold.get("checkpoint"):
            lines.append(field("got to", plain(hold["checkpoint"])))
    return "\n".join(lines)
