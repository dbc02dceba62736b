"""Texts for claims of several jobs. Pure."""

from __future__ import annotations

from dibs.cli.text.claim import field, lasting, sentence
from dibs.cli.text.words import job_command, plain, span, table
from dibs.wire.sentences import several

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]


def pair(document: Document) -> str:
    """Name and lease id for a script. No name contains a tab."""
    return f"{plain(document['name'])}\t{plain(document['lease_id'])}"


def acquired_all(
    document: Document,
    paint: Paint,
    after: list[str],
    *,
    timed: bool,
    in_session: bool,
    by_actor: bool = False,
    kept_for: int | None = None,
) -> str:
    """All jobs were claimed. The parameters are those of `claim.acquired`."""
    leases = document["leases"]
    by_session = in_session and not timed
    how_long = lasting(document, by_session=by_session, by_actor=by_actor)
    what = f"all {len(leases)}" if len(leases) > 1 else "it"
    lines = [f"{paint.good('Claimed')} {what} {how_long}, as {plain(document['owner'])}."]
    rows = [("JOB", "TOKEN") if in_session else ("JOB", "TOKEN", "LEASE")]
    for lease in leases:
        row = (plain(lease["name"]), str(lease["fencing_token"]))
        rows.append(row if in_session else (*row, lease["lease_id"]))
    head, *more = table(rows)
    lines += [paint.faint(f"  {head}"), *(f"  {line}" for line in more)]
    proof = [] if in_session else ["--lease", document["lease_id"]]
    words = [lease["name"] for lease in leases], [*after, *proof]
    if kept_for is not None:
        lines.append(field("kept for", f"process {kept_for}, until it ends"))
    if by_session or kept_for is not None:
        lines.append(f"When they are done:  {job_command(['release'], *words)}")
    else:
        within = span(document["renew_after_ms"])
        lines.append(f"Send a heartbeat within {within}:  {job_command(['heartbeat'], *words)}")
    return "\n".join(lines)


SKIPPED_SHOWN = 5


def skipped(entries: Sequence[Document]) -> list[str]:
    """The names that claim-any skipped, and why."""
    lines = [field("skipped", f"{plain(entry.get('name') or '?')}: {_why(entry)}") for entry in entries[:SKIPPED_SHOWN]]
    more = len(entries) - len(lines)
    return [*lines, field("skipped", f"{more} more")] if more else lines


ALL_DONE = "All of these jobs are done."


def all_done(document: Document, paint: Paint) -> str:
    rows = [(plain(entry.get("name") or "?"), _why(entry)) for entry in document["refused"]]
    return "\n".join([paint.good(ALL_DONE), *(f"  {line}" for line in table(rows))])


_NOT_CLAIMED = {
    "free": "None of these jobs is available",
    "all": "Nothing was claimed, because not all of these jobs are available",
}


def refused_sentence(document: Document, wanted: str) -> str:
    """`wanted` is "free" (any of them) or "all"."""
    return plain(f"{_NOT_CLAIMED[wanted]}: {several(document['refused'])}.")


def refused(document: Document, paint: Paint, wanted: str) -> str:
    """The refused jobs, each with the reason."""
    rows = [(plain(entry.get("name") or "?"), _why(entry)) for entry in document["refused"]]
    return "\n".join([paint.wait(_NOT_CLAIMED[wanted] + "."), *(f"  {line}" for line in table(rows))])


def _why(entry: Document) -> str:
    return sentence({**entry, "name": "it"})  # the table has the name in its first column
