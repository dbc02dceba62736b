"""claim: one job, or the paths of all files staged in git."""

from __future__ import annotations

from dibs.base.terminal import plain
from dibs.cli.commands.claim_request import ask, granted, refused, watched_for
from dibs.cli.framework.flags import (
    CLAIM_EXITS,
    CLAIM_KEEP,
    CLAIM_OWNER,
    CLAIM_TERMS,
    CLAIM_WAIT,
    claim_document,
)
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import is_failure, refusal_exit, yes
from dibs.cli.framework.spec import MAYBE, NEW_JOB, Argument, Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer

    Document = dict[str, Any]


def claim(call: Call) -> Answer:
    name = call.values.get("job")
    if call.values.get("staged"):
        if name is not None:
            raise UsageError("Give JOB or --staged, not both.", "claim")
        from dibs.cli.framework.registry import part

        staged: Any = part("staged files", "dibs claim --staged")
        answer: Answer = staged.claim_staged(call)
        return answer
    if name is None:
        raise UsageError(f"claim needs JOB: {NEW_JOB.help}.", "claim")
    document = claim_document(call)
    watched = watched_for(call)
    reply = ask(call, "acquire", name, document)
    if refusal_exit(reply) is not None or is_failure(reply):
        return refused(call, reply, document["request_key"])
    body: Document = reply.body or {}
    return yes(body, granted(call, body, document, watched), quiet=plain(body["lease_id"]))


COMMANDS = {
    "claim": Command(
        "claim",
        claim,
        about=(
            "With --actor NAME, heartbeat and release need only the same name, and every command of yours renews the "
            "claim for 15 minutes, or for its --ttl. In a session (DIBS_SESSION) they need no name at all, and the "
            "claim lasts as long as the session. A claim without either lasts for its TTL from the last heartbeat, "
            "and prints a lease id, which proves it. If somebody else has the job, prints the owner. "
            "With --wait it waits in line, first come first served, and leaves the line when the wait is over. "
            "With --staged it claims all of the files or none, and remembers the claims "
            "for this shell, so that the hooks know them as yours."
        ),
        arguments=(Argument("JOB", f"{NEW_JOB.help}; required unless --staged is given", takes=MAYBE),),
        options=(
            *(*CLAIM_OWNER, *CLAIM_WAIT, *CLAIM_TERMS),
            Option("--staged", "claim the path: of every file staged in git, instead of a JOB"),
            *CLAIM_KEEP,
        ),
        usual=("--actor", "--ttl", "--metadata", "--wait", "--shared", "--again"),
        examples=(
            (
                "claim a job; `dibs release issue-1842 --actor agent-7` lets it go",
                'dibs claim issue-1842 --actor agent-7 --metadata "repo=acme/app"',
            ),
            ("in a script, with DIBS_ACTOR set", "dibs claim -q issue-1842 || exit 0"),
            ("wait for it, first come first served", "dibs claim issue-1842 --wait 5m"),
            ("one of three at once", "dibs claim gpu --slots 3 --wait 10m"),
            ("read together, write alone", "dibs claim path:docs --shared"),
            ("all files that are about to be committed", "dibs claim --staged --ttl 15m"),
            ("for an agent that runs longer than the TTL", 'dibs claim issue-1842 --keep-for "$AGENT_PID"'),
            ("a name that begins with a dash", "dibs claim -- -odd-name"),
        ),
        exits=(
            (0, "the job is yours"),
            (1, "somebody else has the job, or still has it after the wait"),
            *CLAIM_EXITS,
        ),
        several=(("claim-all", "all or none"), ("claim-any", "the first free one")),
    ),
}
