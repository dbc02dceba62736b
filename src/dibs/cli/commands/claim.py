"""claim: one job, or the paths of all files staged in git. And what all commands that claim share."""

from __future__ import annotations

from dibs.base.cheap import Any, Sequence
from dibs.base.errors import FATE_UNKNOWN, StoreUnavailable
from dibs.base.terminal import plain
from dibs.cli.framework import flags
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, is_granted, no, refusal_exit, yes
from dibs.cli.framework.spec import MAYBE, NEW_JOB, Argument, Command
from dibs.cli.text import claim as claim_text
from dibs.core.limits import ACTOR_TTL_MS
from dibs.wire.documents import Reply


def claim_document(call: Call) -> Document:
    """The request of a claim. With --keep and --keep-for, notes the process during whose life the claim is renewed."""
    if call.values.get("keep") or call.values.get("keep_for") is not None:
        from dibs.cli.supervise.background_heartbeat import watched_process

        call.watched = watched_process(call)
    document = flags.claim_document(call)
    if call.watched is None and "session_id" not in document and _by_hand(call) is not None:
        document.setdefault("ttl_seconds", ACTOR_TTL_MS // 1000)  # only what is typed is a sign of life
    return document


def granted(call: Call, body: Document, asked: Document, more: Sequence[str] = ()) -> str:
    """The answer for a claim that succeeded, with `more` lines. Starts the keeper process, if one was asked for."""
    if call.watched is not None:
        _keep(call, body, asked)
    by_name = "session_id" not in asked and "leases" not in body and _remembered(call, body, asked)
    return claim_text.acquired(
        body, call.paint, flags.next_words(call), asked, by_actor=flags.is_actor(call), by_name=by_name, more=more
    )


def _by_hand(call: Call) -> Any:
    """The part that remembers claims for the shell in which somebody types this command; None if nobody does."""
    if not call.is_typed:
        return None
    from dibs.base.plugins import PARTS, plugin

    typed: Any = plugin(PARTS, "typed-claims")
    return typed if typed is not None and typed.is_by_hand() else None


def _remembered(call: Call, body: Document, asked: Document) -> bool:
    typed = _by_hand(call)
    return typed is not None and bool(typed.remember(call, body, asked["request_key"]))


def _keep(call: Call, grant: Document, asked: Document) -> None:
    """Start a keeper process for the claim. If it cannot renew the claim, the claim is given back."""
    from dibs.cli.supervise.background_heartbeat import leave_keeper

    names = [lease["name"] for lease in grant.get("leases", [grant])]
    trouble = leave_keeper(call, grant, names, asked, call.watched)
    if trouble is None:
        grant["kept_for"] = call.watched.pid
        return
    if call.unconfirmed:
        call.unconfirmed.give_back()
    else:  # the caller chose the request key
        for name in names:
            call.ask("release", name, {"lease_id": grant["lease_id"]})
    raise StoreUnavailable(
        f"Nothing was claimed, because no background process can renew {plain(', '.join(names))}: "
        f"{trouble.rstrip('.')}. Claim without --keep, and send heartbeats."
    )


def ask(call: Call, verb: str, name: str, document: Document) -> Reply:
    """Send the claim, and wait in line with --wait. If a tracker knows the job, it is asked, too."""
    names: list[str] = document.get("names") or [name]
    tracker = flags.tracker_for(names)
    if tracker is None:
        return _ask(call, verb, name, document)
    reply: Reply = tracker.ask_tracked(call, verb, names, document, lambda asked: _ask(call, verb, name, asked))
    return reply


def _ask(call: Call, verb: str, name: str, document: Document) -> Reply:
    given = call.values.get
    if given("wait") is None and given("ticket") is None and given("keep_place") is None:
        return call.claim(verb, name, document)
    from dibs.cli.commands.wait import wait_in_queue

    return wait_in_queue(call, verb, name, document)


def refused(call: Call, reply: Reply, asked: Document) -> Answer:
    """The answer for a claim that was not granted. `asked` is its request."""
    body: Document = reply.body or {}
    if is_failure(reply):
        answer = failure(reply)
        if FATE_UNKNOWN in answer.text:  # the same request key gives the same lease
            answer.text += f"\nTo find out, repeat the claim with --request-key {asked['request_key']}"
            answer.message = answer.text
        return answer
    status: str = body["status"]
    if status == "queued":
        from dibs.cli.commands.wait import time_is_over

        return time_is_over(call, body)
    by_actor = "session_id" in asked and flags.is_actor(call)
    asked_as = asked.get("owner") or (flags.actor_owner(call) if by_actor else None)
    message, namesake = claim_text.sentence(body), claim_text.namesake(body, asked_as, by_actor=by_actor)
    if status == "held" and namesake:
        message = f"{message} {namesake[0]}"
    text = claim_text.refusal(body, call.paint, flags.next_words(call, ("url", "namespace")), namesake)
    return no(refusal_exit(reply) or 0, body, text, code=status, message=message)


def claim(call: Call) -> Answer:
    name = call.values.get("job")
    if call.values.get("staged"):
        if name is not None:
            raise UsageError("Give JOB or --staged, not both.")
        from dibs.base.plugins import PARTS, plugin  # not for other claims: each import delays them

        staged: Any = plugin(PARTS, "staged-files", "dibs claim --staged")
        answer: Answer = staged.claim_staged(call)
        return answer
    if name is None:
        raise UsageError(f"claim needs JOB: {NEW_JOB.help}.")
    document = claim_document(call)
    reply = ask(call, "acquire", name, document)
    if not is_granted(reply):
        return refused(call, reply, document)
    body: Document = reply.body or {}
    return yes(body, granted(call, body, document), quiet=plain(body["lease_id"]))


COMMANDS = {
    "claim": Command(
        claim,
        Argument("JOB", f"{NEW_JOB.help}; required unless --staged is given", takes=MAYBE),
        *flags.CLAIM_OWNER,
        *flags.CLAIM_WAIT,
        *flags.CLAIM_TERMS,
        flags.STAGED,
        *flags.CLAIM_KEEP,
        usual=("--actor", "--ttl", "--metadata", "--wait", "--shared", "--again"),
        several=(("claim-all", "all or none"), ("claim-any", "the first free one")),
        about=(
            "With --actor NAME, heartbeat and release need only the same name, and every command of yours "
            "renews all your claims for 15 minutes, in every namespace; one with --ttl lasts for that from "
            "its own last heartbeat. In a session (DIBS_SESSION) they need no name at all, and the claim "
            "lasts as long as the session. A claim without either lasts for its TTL from the last "
            "heartbeat, and prints a lease id, which proves it; at a terminal the shell remembers that, and it "
            "lasts 15 minutes without --ttl. If somebody else has the job, prints the "
            "owner. With --wait it waits in line, first come first served, and leaves the line when the "
            "wait is over. With --staged it claims all of the files or none, and remembers the claims for "
            "this shell, so that the hooks know them as yours."
        ),
        examples=(
            (
                'dibs claim issue-1842 --actor agent-7 --metadata "repo=acme/app"',
                "claim a job; `dibs release issue-1842 --actor agent-7` lets it go",
            ),
            ("dibs claim -q issue-1842 || exit 0", "in a script, with DIBS_ACTOR set"),
            ("dibs claim issue-1842 --wait 5m", "wait for it, first come first served"),
            ("dibs claim gpu --slots 3 --wait 10m", "one of three at once"),
            ("dibs claim path:docs --shared", "read together, write alone"),
            ("dibs claim --staged --ttl 15m", "all files that are about to be committed"),
            ('dibs claim issue-1842 --keep-for "$AGENT_PID"', "for an agent that runs longer than the TTL"),
            ("dibs claim -- -odd-name", "a name that begins with a dash"),
        ),
        exits=(
            (0, "the job is yours"),
            (1, "somebody else has the job, or still has it after the wait"),
            *flags.CLAIM_EXITS,
        ),
    ),
}
