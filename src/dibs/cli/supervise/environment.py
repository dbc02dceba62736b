"""The environment of a command that dibs runs."""

from __future__ import annotations

from dibs.base.clock import steady_ms, wall_ms
from dibs.cli.supervise.outer_sessions import VARIABLE as OUTER
from dibs.cli.supervise.outer_sessions import sessions_around
from dibs.core.names import ELECTION_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.supervise.process_session import ProcessSession

    Document = dict[str, Any]

# Variables of an outer claim: the command gets its own, or none.
_NOT_INHERITED = (
    *("DIBS_LEASE", "DIBS_JOB", "DIBS_FENCING_TOKEN", "DIBS_ATTEMPT", "DIBS_DEADLINE_MS"),
    *("DIBS_ELECTION", "DIBS_TERM"),
    *("DIBS_CHECKPOINT", "DIBS_CHECKPOINT_FILE", "DIBS_PREVIOUS_OWNER", "DIBS_PREVIOUS_END"),
)


def environment(call: Call, session: ProcessSession) -> dict[str, str]:
    """The command's own dibs calls use the same store or server, this session and the same owner. The environment also
    has the last owner's checkpoint, and the checkpoint file is filled with it."""
    settings = call.settings
    given: dict[str, str | None] = {
        "DIBS_URL": settings.url or _default_url(),
        "DIBS_NAMESPACE": call.stated_namespace,
        "DIBS_OWNER": settings.owner,
        "DIBS_SESSION": session.id,
        OUTER: " ".join(sessions_around(call.env)) or None,
    }
    if session.grant is not None:
        given |= _of_job(session, session.grant)
        path = call.values.get("checkpoint_file")
        if path is not None:
            from dibs.cli.supervise.checkpoint_file import CheckpointFile

            session.notes = CheckpointFile(path)
            session.notes.fill((session.grant.get("previous") or {}).get("checkpoint"))
            given["DIBS_CHECKPOINT_FILE"] = session.notes.path
    env = {key: value for key, value in call.env.items() if key not in _NOT_INHERITED}
    # An environment cannot contain a zero byte. A checkpoint with one can be read from the file.
    return env | {key: value for key, value in given.items() if value is not None and "\0" not in value}


def _of_job(session: ProcessSession, grant: Document) -> dict[str, str | None]:
    previous: Document = grant.get("previous") or {}
    until_ms = wall_ms() + session.plan.lost_ms - steady_ms()
    is_election = grant["name"].startswith(ELECTION_PREFIX)
    return {
        "DIBS_ELECTION": grant["name"].removeprefix(ELECTION_PREFIX) if is_election else None,
        "DIBS_TERM": str(grant["fencing_token"]) if is_election else None,
        "DIBS_JOB": grant["name"],
        "DIBS_FENCING_TOKEN": str(grant["fencing_token"]),
        "DIBS_ATTEMPT": str(grant.get("attempt", 1)),
        "DIBS_DEADLINE_MS": str(until_ms),
        "DIBS_PREVIOUS_OWNER": previous.get("owner"),
        "DIBS_PREVIOUS_END": previous.get("how"),
        "DIBS_CHECKPOINT": previous.get("checkpoint"),
    }


def _default_url() -> str:
    from dibs.client.embedded import default_store_url

    return default_store_url()
