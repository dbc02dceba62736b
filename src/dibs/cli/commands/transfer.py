"""transfer: hand a job to another owner."""

from __future__ import annotations

from dibs.base.ids import new_id
from dibs.base.terminal import plain
from dibs.cli.framework.flag_values import ttl_seconds
from dibs.cli.framework.flags import ACTOR, CHECKPOINT, LEASE, SESSION, checked_session, proof, put
from dibs.cli.framework.result import failure, is_failure, yes
from dibs.cli.framework.spec import JOB, Command, Option
from dibs.cli.text import claim as claim_text
from dibs.core.limits import CHECKPOINT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]


def transfer(call: Call) -> Answer:
    to, to_session = call.values.get("to"), call.values.get("to_session")
    document = {**proof(call), "fresh_lease_id": new_id()}
    put(document, "to_owner", to)
    if to_session is not None:
        document["to_session"] = checked_session(call, to_session, "--to-session")
    put(document, "ttl_seconds", ttl_seconds(call))
    put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    reply = call.door().call("transfer", call.values["job"], document)
    if is_failure(reply):
        answer = failure(reply)
        if answer.document.get("cycle"):
            answer.text = claim_text.deadlock(answer.document["cycle"])
        return answer
    body: Document = reply.body or {}
    text = claim_text.transferred(body, call.paint, to_session=to_session is not None)
    return yes(body, text, quiet=plain(body["lease_id"]))


COMMANDS = {
    "transfer": Command(
        "transfer",
        transfer,
        about=(
            "The new owner gets a new lease id, a higher fencing token, and the checkpoint, in one atomic "
            "step. Your own lease ends. A session needs only the job's name; to an owner you pass the printed"
            " lease id. The line of those who wait stays as it is."
        ),
        arguments=(JOB,),
        options=(
            Option("--to", "the new owner, as shown to others", value="OWNER", filled=True, required="to"),
            Option(
                "--to-session",
                "the new owner's open session",
                value="ID",
                completes="session",
                required="to",
            ),
            LEASE,
            SESSION,
            ACTOR,
            Option("--ttl", "a new TTL (default: the present one)", value="TIME"),
            CHECKPOINT,
        ),
        examples=(
            ("to a worker that gets the lease id", 'dibs transfer issue-1842 --to agent-8 --lease "$LEASE"'),
            ("to another session, from inside one", 'dibs transfer issue-1842 --to-session "$OTHER"'),
        ),
        exits=(
            (0, "handed over"),
            (2, "the job is not yours, or there is no such session"),
            (3, "the transfer would deadlock: the new owner waits for somebody who waits for this job"),
        ),
    ),
}
