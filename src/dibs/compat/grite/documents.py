"""The output of `dibs lock`: grite's documents and words. Pure.

grite's documentation and its program disagree about the fields. The documents have both sets, so that scripts written
against either work. `nonce` is the lease id, which `--lease` takes.
"""

from __future__ import annotations

from dibs.base.errors import InvalidName
from dibs.base.jsontext import Document
from dibs.cli.text.words import instant_ms, plain, table
from dibs.core.durations import format_duration
from dibs.core.names import check_name
from dibs.wire.sentences import in_full

_NEXT = {
    "held": "Wait until it is released or runs out, or take another.",
    "done": "Nothing needs to be done.",
    **dict.fromkeys(("delayed", "closed"), "Try again later."),
    "parked": "Once the cause is gone, free it: dibs free RESOURCE.",
}


def lease_document(resource: str, owner: str, reply: Document, ttl_seconds: int) -> Document:
    """The document of an acquired or renewed lease, for its owner."""
    lock = {
        "resource": resource,
        "owner": owner,
        "nonce": reply["lease_id"],
        "expires_unix_ms": instant_ms(reply["expires_at"]),
    }
    return {**lock, "ttl_seconds": ttl_seconds, "fencing_token": reply["fencing_token"], "lock": lock}


def lease_text(what: str, resource: str, reply: Document, *, show_lease: bool, kept: bool = False) -> str:
    """`kept`: dibs remembers the lease for the shell that ran the command."""
    lines = [f"Lock {what}", f"  Resource: {plain(resource)}", f"  Expires: {clock(reply['expires_at'])}"]
    if show_lease:
        lines.append(f"  Lease: {reply['lease_id']}")
    if show_lease and not kept:
        lines.append(
            "dibs does not remember this lease: pass it with --lease, or name yourself with --actor or DIBS_ACTOR."
        )
    return "\n".join(lines)


SPELLED = "resource="


def spelled(name: str, metadata: object) -> str:
    """The owner's spelling of a resource, if the metadata has one that fits."""
    if isinstance(metadata, str) and metadata.startswith(SPELLED):
        given = metadata.removeprefix(SPELLED)
        try:
            return given if check_name(given) == name else name
        except InvalidName:
            pass
    return name


def released(resource: str, owner: str | None, lease_id: str | None, *, was_held: bool) -> tuple[Document, str]:
    """The document and the text. An ended lock expires at 0, as grite's documentation says."""
    lock = {"resource": resource, "owner": owner, "nonce": lease_id, "expires_unix_ms": 0}
    text = f"{'Lock released' if was_held else 'Nothing to release'}\n  Resource: {plain(resource)}"
    return {"resource": resource, "released": True, "was_held": was_held, "lock": lock}, text


def status_document(locks: list[Document]) -> Document:
    """Live locks, one entry for each owner: `expired` is always false. No two conflict: `conflicts` is always empty."""
    shown = [_lock(lock["name"], holder) for lock in locks for holder in lock.get("holders") or (lock,)]
    return {"locks": shown, "conflicts": [], "total": len(shown)}


def _lock(resource: str, holder: Document) -> Document:
    return {
        "resource": spelled(resource, holder.get("metadata")),
        "owner": holder["owner"],
        "expires_unix_ms": instant_ms(holder["expires_at"]),
        "time_remaining_seconds": holder["remaining_ms"] // 1000,
        "expired": False,
        "fencing_token": holder["fencing_token"],
    }


def status_text(document: Document) -> str:
    if not document["locks"]:
        return "No active locks"
    rows = [
        (
            plain(lock["resource"]),
            plain(lock["owner"]),
            f"expires in {format_duration(max(1, lock['time_remaining_seconds']) * 1000)}",
        )
        for lock in document["locks"]
    ]
    return "\n".join(["Active Locks:", *(f"  {line}" for line in table(rows))])


def refused(resource: str, reply: Document) -> tuple[str, Document, str]:
    """The resource is not available: message, details and text."""
    status = reply["status"]
    suggestions = [_NEXT.get(status, _NEXT["held"])]
    owner, expires = reply.get("owner"), reply.get("expires_at")
    remaining_s = (reply.get("remaining_ms") or reply.get("retry_after_ms") or 0) // 1000
    details: Document = {
        "resource": resource,
        "owner": owner,
        "expires_unix_ms": instant_ms(expires) if expires else None,
        "time_remaining_seconds": remaining_s,
        "status": status,
        "suggestions": suggestions,
    }
    lines = ["Error: Lock conflict", f"  Resource: {plain(resource)}"]
    if owner is not None:
        lines.append(f"  Owner: {plain(owner)}")
    if expires:
        lines.append(f"  Expires: {clock(expires)}")
    if reply.get("conflict"):
        details["conflict"] = reply["conflict"]
        lines.append(f"  Overlaps: {plain(reply['conflict'])}")
    if status != "held":
        lines += [f"  {plain(in_full(reply))}", f"  {suggestions[0]}"]
    held = f"held by {plain(owner or 'unknown')}" if status == "held" else status
    return f"conflict: Lock on {plain(resource)} is {held} (expires in {remaining_s}s)", details, "\n".join(lines)


def not_yours(verb: str, resource: str, state: Document) -> tuple[str, Document, str]:
    """The caller does not hold the lock it renews or releases: message, details and text. `state` is the job's."""
    owner = state.get("owner")
    if owner is None:
        body = f"Cannot {verb} lock on {plain(resource)} - nobody holds it"
        suggestion = f"Acquire it again: dibs lock acquire {plain(resource)}. Somebody may have had it meanwhile."
    else:
        body = f"Cannot {verb} lock on {plain(resource)} - owned by {plain(owner)}"
        suggestion = "If it is yours, prove it: --lease NONCE, as acquire printed it, or the --actor that acquired it."
    details = {"resource": resource, "owner": owner, "suggestions": [suggestion]}
    return f"conflict: {body}", details, f"Error: {body}\n  {suggestion}"


def clock(timestamp: str) -> str:
    return f"{timestamp[:10]} {timestamp[11:19]} UTC"


# grite's own codes and exit codes for `dibs lock`: (code, exit) for each of our words.
CONFLICT, BAD_USAGE = ("conflict", 4), 2
SERVER_AWAY = ("ipc_error", 6)
LOCK_CODES = {
    **dict.fromkeys(("held", "queued", "done", "delayed", "parked", "closed", "superseded", "number_taken"), CONFLICT),
    **dict.fromkeys(("lease_not_current", "conflict", "deadlock", "session_expired"), CONFLICT),
    "not_found": ("not_found", 3),
    "invalid_input": ("invalid_input", BAD_USAGE),
    "invalid_ttl": ("invalid_ttl", BAD_USAGE),
    "invalid_lock_name": ("invalid_lock_name", BAD_USAGE),
    "upstream_unavailable": ("io_error", 5),
    "draining": ("io_error", 5),
    "capacity_exceeded": ("db_busy", 5),
    "rate_limited": ("db_busy", 5),
    "internal_error": ("internal_error", 1),
    # grite has no sign-in: these are our own words, with grite's exit code for an unusable location.
    "authentication_required": ("authentication_required", 5),
    "authentication_failed": ("authentication_failed", 5),
    "forbidden": ("forbidden", 5),
    "lock_limit_exceeded": ("lock_limit_exceeded", 5),
}


def lock_code(word: str, *, server: bool) -> tuple[str, int]:
    """grite's code and exit code for one of our words. A server corresponds to grite's daemon."""
    if server and word in ("upstream_unavailable", "draining"):
        return SERVER_AWAY
    return LOCK_CODES.get(word, ("internal_error", 1))
