"""Commands that claim ask the tracker, if the repository wants it. The flow is in `agents/tracker/tracked_claim.py`.

If the repository wants that, too, a comment and a label on the issue say who has claimed it. Only the owner writes:
after its claim was granted, and before it is released. A failure there costs a line on stderr, and never the claim.
"""

from __future__ import annotations

from dibs.agents.repository.job_names import JobNames
from dibs.agents.tracker.port import IssueState, NoAnswer, refused_several
from dibs.agents.tracker.tracked_claim import ANY, TrackedClaim, TrackerGuard
from dibs.base.cheap import Callable
from dibs.base.checkout import current_folder
from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.terminal import plain
from dibs.cli.framework.context import Call
from dibs.client.flow import drive, status_of
from dibs.client.pending import withdrawal
from dibs.core.limits import TRACKER_MS_MAX
from dibs.wire.documents import Reply
from dibs.wire.issue_names import is_tracked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.supervise.process_session import ProcessSession

AskStore = Callable[[Document], Reply]

_OWNER_CHARS_MAX = 100
_NOT_OURS = (
    "the job is yours, but its issue does not show it: {} is not of the repository that this was cloned from. To "
    "write there: git config dibs.tracker.writes OWNER/NAME, and dibs trust"
)


def guard_of(call: Call) -> TrackerGuard:
    return TrackerGuard(call.env, JobNames(call.env, current_folder()).top)


def announce(call: Call, guard: TrackerGuard, reply: Reply) -> None:
    """Say on the issues that were claimed who works on them."""
    settings = guard.settings()
    if settings is None or not settings.announces or status_of(reply) != "acquired":
        return
    body: Document = reply.body or {}
    for lease in body.get("leases") or [body]:
        if is_tracked(lease["name"]) and not lease.get("held_before"):
            if not guard.may_write(lease["name"]):
                call.complain(_NOT_OURS.format(plain(lease["name"])))
                continue
            timeout_ms = min(TRACKER_MS_MAX, max(1, lease["remaining_ms"] // 3))
            try:
                notices = guard.tracker([lease["name"]], timeout_ms).notices(lease["name"])
                if notices is not None:
                    # In a code span, `user@host` mentions nobody.
                    owner = "".join([char for char in str(lease["owner"]) if char.isprintable() and char != "`"])
                    text = f"`{owner[:_OWNER_CHARS_MAX]}` is working on this. It has claimed the issue with dibs."
                    notices.announce(text if settings.comment else None, settings.label or None, lease["fencing_token"])
            except NoAnswer as error:
                call.complain(f"the job is yours, but its issue does not show it: {error}.")


def withdraw(call: Call, guard: TrackerGuard, name: str, token: int, timeout_ms: int = TRACKER_MS_MAX) -> None:
    """Take comment and label away, just before the job is released."""
    settings = guard.shows(name)
    if settings is None or timeout_ms <= 0:
        return
    try:
        notices = guard.tracker([name], min(TRACKER_MS_MAX, timeout_ms)).notices(name)
        if notices is not None:
            notices.withdraw(settings.label or None, token, has_comment=settings.comment)
    except NoAnswer as error:
        call.complain(f"the issue of {name} may still show who had it: {error}.")


def withdraw_before_release(call: Call, name: str, proof: Document) -> None:
    """The same for a command that has only the proof of the claim. Who is not the owner changes nothing."""
    guard = guard_of(call)
    body = {} if guard.shows(name) is None else call.ask("renew", name, dict(proof)).body or {}
    if isinstance(body.get("fencing_token"), int):
        withdraw(call, guard, name, body["fencing_token"], body["remaining_ms"] // 3)


def ask_tracked(call: Call, verb: str, names: list[str], document: Document, ask: AskStore) -> Reply:
    """Claim, and ask the tracker about what was got. `ask` sends the claim, and waits in line if that is wanted."""
    guard = guard_of(call)
    own_key = call.values.get("request_key") is None
    tracked = TrackedClaim(guard, verb, names, again=bool(document.get("again")), own_key=own_key)
    if not drive(call.transport(), tracked.is_asked_for()):
        return ask(document)
    return drive(call.transport(), tracked.look_first()) or _claimed(call, guard, tracked, names, document, ask)


def claim_page(call: Call, guard: TrackerGuard, page: list[IssueState], document: Document) -> Reply:
    """Claim the first issue of a page of `dibs gh next` that is free."""
    document["names"] = [issue.name for issue in page]
    tracked = TrackedClaim(guard, ANY, document["names"], again=bool(document.get("again")), own_key=True, always=True)
    tracked.note({issue.name: issue for issue in page})
    if not tracked.names_left():
        return refused_several(tracked.refusals())
    names: list[str] = document["names"]
    return _claimed(call, guard, tracked, names, document, lambda asked: call.claim(ANY, "", asked))


def _claimed(
    call: Call, guard: TrackerGuard, tracked: TrackedClaim, names: list[str], document: Document, ask: AskStore
) -> Reply:
    """Claim until the tracker agrees, or nothing is left to claim."""
    reply = None
    while reply is None:
        asked = document | ({"names": tracked.names_left()} if "names" in document else {})
        sent_ms = steady_ms()
        got = ask(asked)
        undo = withdrawal(asked.get("names") or names, asked["request_key"])
        reply = drive(call.transport(), tracked.confirm(got, sent_ms, undo))
        document["request_key"] = new_id() if reply is None else asked["request_key"]
    _print_notes(call, tracked)
    announce(call, guard, reply)
    return reply


def confirm_grant(session: ProcessSession, job: str, document: Document, reply: Reply, sent_ms: int) -> Reply:
    """Ask the tracker about a job that `run` or `hold` has claimed in its session."""
    call = session.call
    tracked = TrackedClaim(guard_of(call), "acquire", [job], again=bool(document.get("again")), own_key=True)
    if not drive(call.transport(), tracked.is_asked_for()):
        return reply
    undo = withdrawal([job], document["request_key"])
    confirmed = drive(call.transport(), tracked.confirm(reply, sent_ms, undo))
    _print_notes(call, tracked)
    session.renew_idle()
    return confirmed or reply


def show_grant(session: ProcessSession, grant: Reply) -> None:
    """Say on the issue who has it, until the session ends. An interrupt takes it back, too."""
    call, guard, body = session.call, guard_of(session.call), grant.body or {}
    name, token = body["name"], body["fencing_token"]
    session.before_end = lambda: withdraw(call, guard, name, token, (session.lost_ms - steady_ms()) // 2)
    announce(call, guard, grant)
    session.renew_idle()


def _print_notes(call: Call, tracked: TrackedClaim) -> None:
    if tracked.warning is not None:
        call.complain(f"GitHub gave no answer, so the claim was not checked there: {tracked.warning}.")
