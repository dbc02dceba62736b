"""The comment and the label on an issue that somebody has claimed, if the repository wants them.

Only the owner writes: after its claim was granted, and before it is released. A failure there costs a line on stderr,
and never the claim.
"""

from __future__ import annotations

from dibs.agents.tracker.guard import TrackerGuard, is_tracked
from dibs.agents.tracker.port import NoAnswer
from dibs.base.terminal import plain
from dibs.cli.git.job_names import names_here
from dibs.client.queueing import status_of
from dibs.core.limits import TRACKER_MS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.agents.tracker.port import IssueTracker
    from dibs.cli.framework.context import Call
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

_OWNER_CHARS_MAX = 100
_NOT_OURS = (
    "the job is yours, but its issue does not show it: {} is not of the repository that this was cloned from. To "
    "write there: git config dibs.tracker.writes OWNER/NAME"
)


def guard_of(call: Call) -> TrackerGuard:
    return TrackerGuard(call.env, names_here(call))


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
            text = _text(lease) if settings.comment else None
            timeout_ms = min(TRACKER_MS_MAX, max(1, lease["remaining_ms"] // 3))
            try:
                tracker = guard.tracker([lease["name"]], timeout_ms)
                tracker.announce(lease["name"], text, settings.label or None, lease["fencing_token"])
            except NoAnswer as error:
                call.complain(f"the job is yours, but its issue does not show it: {error}.")


def withdraw(
    call: Call, guard: TrackerGuard, name: str, token: int, timeout_ms: int = TRACKER_MS_MAX
) -> None:
    """Take comment and label away, just before the job is released."""
    settings = guard.settings()
    if settings is None or not settings.announces or timeout_ms <= 0 or not guard.may_write(name):
        return
    try:
        tracker: IssueTracker = guard.tracker([name], min(TRACKER_MS_MAX, timeout_ms))
        tracker.withdraw(name, settings.label or None, token, has_comment=settings.comment)
    except NoAnswer as error:
        call.complain(f"the issue of {name} may still show who had it: {error}.")


def withdraw_before_release(call: Call, name: str, proof: Document) -> None:
    """The same for a command that has only the proof of the claim. Who is not the owner changes nothing."""
    guard = guard_of(call)
    settings = guard.settings()
    if settings is None or not settings.announces or not guard.may_write(name):
        return
    body = call.door().call("renew", name, dict(proof)).body or {}
    if isinstance(body.get("fencing_token"), int):
        withdraw(call, guard, name, body["fencing_token"], body["remaining_ms"] // 3)


def _text(lease: Document) -> str:
    """The owner in a code span, so that `user@host` mentions nobody."""
    owner = "".join([char for char in str(lease["owner"]) if char.isprintable() and char != "`"])
    return f"`{owner[:_OWNER_CHARS_MAX]}` is working on this. It has claimed the issue with dibs."
