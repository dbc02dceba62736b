"""What all commands that claim share: sending the request, waiting in line, and making the answer."""

from __future__ import annotations

from dibs.base.errors import FATE_UNKNOWN, StoreUnavailable
from dibs.base.terminal import plain
from dibs.cli.framework.flags import TRACKED, is_actor, next_words
from dibs.cli.framework.registry import part
from dibs.cli.framework.result import failure, is_failure, no, refusal_exit
from dibs.cli.text import claim as claim_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer
    from dibs.cli.supervise.keeper import WatchedProcess
    from dibs.wire.documents import Reply

    Document = dict[str, Any]


def watched_for(call: Call) -> WatchedProcess | None:
    """The process during whose life the claim is renewed (--keep, --keep-for); None without these flags."""
    if not call.values.get("keep") and call.values.get("keep_for") is None:
        return None
    from dibs.cli.supervise.keeper import watched_process

    return watched_process(call)


def granted(
    call: Call, body: Document, asked: Document, watched: WatchedProcess | None, more: Sequence[str] = ()
) -> str:
    """The answer for a claim that succeeded, with `more` lines. Starts the keeper process, if one was asked for."""
    keep(call, body, [body["name"]], asked, watched)
    return claim_text.acquired(
        body,
        call.paint,
        next_words(call),
        timed="ttl_seconds" in asked,
        in_session="session_id" in asked,
        by_actor=is_actor(call),
        kept_for=body.get("kept_for"),
        more=more,
    )


def keep(call: Call, grant: Document, names: list[str], asked: Document, watched: WatchedProcess | None) -> None:
    """Start a keeper process for the claim, if one was asked for. If it cannot renew the claim, the claim is given
    back."""
    if watched is None:
        return
    from dibs.cli.supervise.keeper import leave_keeper

    trouble = leave_keeper(call, grant, names, asked, watched)
    if trouble is not None:
        _give_back(call, grant, names)
        told = ", ".join([plain(name) for name in names])
        raise StoreUnavailable(
            f"Nothing was claimed, because no background process can renew {told}: {trouble.rstrip('.')}. "
            "Claim without --keep, and send heartbeats."
        )
    grant["kept_for"] = watched.pid


def _give_back(call: Call, grant: Document, names: list[str]) -> None:
    """Give the claim back, because nothing would renew it."""
    if call.unconfirmed:
        call.unconfirmed.give_back()
        return
    for name in names:
        call.ask("release", name, {"lease_id": grant["lease_id"]})


def ask(call: Call, verb: str, name: str, document: Document) -> Reply:
    """Send the claim, and wait in line with --wait. If a tracker knows the job, it is asked, too."""
    names: list[str] = document.get("names") or [name]
    tracker = part("issue tracker") if any(each.startswith(TRACKED) for each in names) else None
    if tracker is None:
        return _ask(call, verb, name, document)
    reply: Reply = tracker.ask_tracked(call, verb, names, document, lambda asked: _ask(call, verb, name, asked))
    return reply


def _ask(call: Call, verb: str, name: str, document: Document) -> Reply:
    given = call.values.get
    if given("wait") is None and given("ticket") is None and given("keep_place") is None:
        return call.claim(verb, name, document)
    from dibs.cli.commands.claim_wait import wait_in_line

    return wait_in_line(call, verb, name, document)


def refused(call: Call, reply: Reply, request_key: str) -> Answer:
    """The answer for a claim that was refused."""
    body: Document = reply.body or {}
    if is_failure(reply):
        return _failed(call, failure(reply), request_key)
    status: str = body["status"]
    if status == "queued":
        from dibs.cli.commands.claim_wait import time_is_over

        return time_is_over(call, body)
    message = claim_text.sentence(body)
    if status == "held":
        asked_as = call.settings.owner
        text = claim_text.held(body, call.paint, asked_as)
        if claim_text.is_namesake(body, asked_as):
            message = f"{message} {claim_text.NAMESAKE}"
    elif status == "done":
        text = claim_text.done(body, call.paint)
    elif status == "parked":
        text = claim_text.parked(body, call.paint, next_words(call, ("url", "namespace")))
    else:
        text = claim_text.delayed(body, call.paint)
    return no(refusal_exit(reply) or 0, body, text, code=status, message=message)


def _failed(call: Call, answer: Answer, request_key: str) -> Answer:
    """If it is unknown whether the claim succeeded, repeating it with the same request key gives the same lease."""
    if FATE_UNKNOWN in answer.text:
        answer.text += f"\nTo find out, repeat the claim with --request-key {request_key}"
        answer.message = answer.text
    elif answer.document.get("cycle"):
        answer.text = claim_text.deadlock(answer.document["cycle"])
    return answer
