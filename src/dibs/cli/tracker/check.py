"""Commands that claim ask the tracker, if the repository wants it. The flow is in `client/tracked_claim.py`."""

from __future__ import annotations

from dibs.agents.tracker.answer import refused_several
from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from dibs.cli.tracker.notice import announce, guard_of, withdraw
from dibs.client.queueing import drive
from dibs.client.tracked_claim import ANY, TrackedClaim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.agents.tracker.guard import TrackerGuard
    from dibs.agents.tracker.port import IssueState
    from dibs.cli.framework.context import Call
    from dibs.cli.supervise.process_session import ProcessSession
    from dibs.wire.documents import Reply

    Document = dict[str, Any]
    AskStore = Callable[[Document], Reply]


def ask_tracked(call: Call, verb: str, names: list[str], document: Document, ask: AskStore) -> Reply:
    """Claim, and ask the tracker about what was got. `ask` sends the claim, and waits in line if that is wanted."""
    guard = guard_of(call)
    own_key = call.values.get("request_key") is None
    tracked = TrackedClaim(guard, verb, names, again=bool(document.get("again")), own_key=own_key)
    if not drive(call.door(), tracked.is_asked_for()):
        return ask(document)
    reply = drive(call.door(), tracked.look_first())
    return reply or _claimed(call, guard, tracked, document, ask)


def claim_page(call: Call, guard: TrackerGuard, page: list[IssueState], document: Document) -> Reply:
    """Claim the first issue of a page of `dibs gh next` that is free."""
    document["names"] = [issue.name for issue in page]
    tracked = TrackedClaim(
        guard, ANY, document["names"], again=bool(document.get("again")), own_key=True, always=True
    )
    tracked.note({issue.name: issue for issue in page})
    if not tracked.names_left():
        return refused_several(tracked.refusals())
    return _claimed(call, guard, tracked, document, lambda asked: call.claim(ANY, "", asked))


def _claimed(
    call: Call, guard: TrackerGuard, tracked: TrackedClaim, document: Document, ask: AskStore
) -> Reply:
    """Claim until the tracker agrees, or nothing is left to claim."""
    reply = None
    while reply is None:
        asked = document | ({"names": tracked.names_left()} if "names" in document else {})
        sent_ms = steady_ms()
        reply = drive(call.door(), tracked.confirm(ask(asked), sent_ms))
        if reply is None:
            document["request_key"] = new_id()
    _tell(call, tracked)
    announce(call, guard, reply)
    return reply


def confirm_grant(session: ProcessSession, job: str, document: Document, reply: Reply, sent_ms: int) -> Reply:
    """Ask the tracker about a job that `run` or `hold` has claimed in its session."""
    call = session.call
    again = bool(document.get("again"))
    tracked = TrackedClaim(guard_of(call), "acquire", [job], again=again, own_key=True)
    if not drive(call.door(), tracked.is_asked_for()):
        return reply
    confirmed = drive(call.door(), tracked.confirm(reply, sent_ms))
    _tell(call, tracked)
    session.renew_idle()
    return confirmed or reply


def show_grant(session: ProcessSession, grant: Reply) -> None:
    """Say on the issue who has it, until the session ends. An interrupt takes it back, too."""
    call, guard, body = session.call, guard_of(session.call), grant.body or {}
    name, token = body["name"], body["fencing_token"]
    session.before_end = lambda: withdraw(call, guard, name, token, (session.plan.lost_ms - steady_ms()) // 2)
    announce(call, guard, grant)
    session.renew_idle()


def _tell(call: Call, tracked: TrackedClaim) -> None:
    if tracked.warning is not None:
        call.complain(f"GitHub gave no answer, so the claim was not checked there: {tracked.warning}.")
