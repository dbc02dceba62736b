"""git push: pushes the branch and the claim together, so that the remote refuses the code of a former owner."""

from __future__ import annotations

import os

from dibs.base.errors import FATE_UNKNOWN, HookRefused, InvalidInput
from dibs.base.redact import without_secrets
from dibs.cli.framework.context import say_notices
from dibs.cli.framework.flag_values import ttl_seconds
from dibs.cli.framework.flags import ACTOR, LEASE, SESSION, TTL, proof, put
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, yes
from dibs.cli.framework.spec import ANY, Argument, Command, Option
from dibs.wire.codes import NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]

_NOTHING = "Nothing was pushed."


def push(call: Call) -> Answer:
    from dibs.client.embedded import EmbeddedDoor

    name: str = call.values["job"]
    remote, branch = _target(call)
    document = proof(call)
    put(document, "ttl_seconds", ttl_seconds(call))
    url = call.settings.url or f"git:{remote}"
    if url.partition("?")[0] != f"git:{remote}":
        raise InvalidInput(
            f"The claim is at {without_secrets(url)} and the branch goes to {remote}. Both must be at one "
            f"remote."
        )
    door = EmbeddedDoor.at(url, call.settings.namespace)
    try:
        from dibs.client.branches import push_branch

        reply = push_branch(door, name, document, branch, os.getcwd())
    except HookRefused as error:
        text = f"{error.details} {_NOTHING}"
        return Answer(NO, {}, text, code="hook_refused", message=text, is_error=True)
    finally:
        say_notices(door, call.stderr)
        door.close()
    if is_failure(reply):
        answer = failure(reply)
        if FATE_UNKNOWN not in answer.text:
            answer.text = answer.message = f"{answer.text.rstrip('.')}. {_NOTHING}"
        return answer
    body: Document = reply.body or {}
    pushed = body["pushed"]
    what = "was there already" if pushed["before"] == pushed["after"] else f"is now at {pushed['after'][:12]}"
    return yes(body, f"{call.paint.good('Pushed')}: {pushed['branch']} {what}, and {name} is still yours.")


def _target(call: Call) -> tuple[str, str | None]:
    words: list[str] = call.values.get("target") or []
    if len(words) > 2:
        raise UsageError("git push takes a remote and a branch.", call.command)
    return words[0] if words else "origin", words[1] if len(words) > 1 else None


COMMANDS = {
    "git push": Command(
        "git push",
        push,
        about=(
            "Pushes the branch and renews the claim in one atomic push. If somebody has taken over the job, "
            "the remote refuses your branch. The claim must be at the same remote "
            "(--url git:REMOTE, which is the default here). Never forces: the branch must be ahead of the remote's. "
            "The clone's pre-push hook runs first."
        ),
        arguments=(
            Argument(
                "TARGET",
                "the remote, then the branch (default: origin and the branch checked out)",
                takes=ANY,
            ),
        ),
        options=(
            Option(
                "--job", "the job that the branch belongs to", value="JOB", completes="job", required="job"
            ),
            LEASE,
            SESSION,
            ACTOR,
            TTL,
        ),
        examples=(
            ("the work is done", "dibs git push origin fix-1842 --job issue-1842 --lease $LEASE"),
            ("inside a session", "dibs git push --job issue-1842"),
        ),
        exits=(
            (0, "pushed, and the claim was renewed"),
            (1, "the pre-push hook refused; nothing was pushed"),
            (2, "the job is not yours any more; nothing was pushed"),
            (64, "somebody pushed to the branch, or there is no such branch; nothing was pushed"),
            (69, "the remote cannot be reached"),
            (77, "the remote refused the push"),
        ),
    ),
}
