"""heartbeat: renew claims, and record how far the work has come."""

from __future__ import annotations

from dibs.cli.framework.batch import combined
from dibs.cli.framework.flag_values import ttl_seconds
from dibs.cli.framework.flags import ACTOR, CHECKPOINT, LEASE, METADATA, NOT_YOURS, SESSION, proof, put
from dibs.cli.framework.result import failure, is_failure, yes
from dibs.cli.framework.spec import JOBS, Command, Option
from dibs.cli.text import claim as claim_text
from dibs.core.limits import CHECKPOINT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]


def heartbeat(call: Call) -> Answer:
    document = proof(call)
    put(document, "ttl_seconds", ttl_seconds(call))
    put(document, "metadata", call.values.get("metadata"))
    put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    return combined([(name, _renewed(call, name, document)) for name in call.values["job"]])


def _renewed(call: Call, name: str, document: Document) -> Answer:
    reply = call.door().call("renew", name, document)
    if is_failure(reply):
        return failure(reply)
    body: Document = {"name": name, **(reply.body or {})}  # an older server does not send it
    _add_told(call, body)
    return yes(body, claim_text.renewed(name, body, call.paint))


def _add_told(call: Call, body: Document) -> None:
    """Renewing the actor's session may have told already who waits for this job: it is said once, here."""
    told = [job for job in call.wanted if job["name"] == body["name"]]
    if told:
        call.wanted = [job for job in call.wanted if job not in told]
        body["new_waiters"] = body.get("new_waiters", 0) + told[0]["new_waiters"]


COMMANDS = {
    "heartbeat": Command(
        "heartbeat",
        heartbeat,
        about=(
            "Restarts the claim's TTL. The checkpoint is shown to the next owner. Several jobs are renewed "
            "one by one."
        ),
        arguments=(JOBS,),
        options=(
            LEASE,
            SESSION,
            ACTOR,
            Option("--ttl", "a new TTL (default: the present one)", value="TIME"),
            CHECKPOINT,
            METADATA,
        ),
        examples=(
            ("still here", 'dibs heartbeat issue-1842 --lease "$LEASE"'),
            ("with progress", 'dibs heartbeat issue-1842 --lease "$LEASE" --checkpoint "tests pass"'),
            ("inside a session", "dibs heartbeat issue-1842 --checkpoint 'half way'"),
            ("progress from a file", 'dibs heartbeat issue-1842 --lease "$LEASE" --checkpoint - < notes.txt'),
        ),
        exits=((0, "still yours"), NOT_YOURS),
    ),
}
