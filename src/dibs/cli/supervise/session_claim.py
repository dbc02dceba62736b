"""The claim of `run` and `hold`: one job, in the session of the process, which is renewed during the wait.

A session that ends during the wait (the machine slept, the server was away) had no job. So nothing is lost but the
place in line: another session is opened, and the wait goes on at the end of the line.
"""

from __future__ import annotations

from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from dibs.cli.framework.flag_values import seconds
from dibs.cli.framework.flags import TRACKED, terms
from dibs.cli.framework.registry import part
from dibs.cli.framework.result import is_failure, refusal_exit
from dibs.client.door import OVER_CODES
from dibs.core.limits import TTL_MS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.cli.framework.result import Answer
    from dibs.cli.supervise.process_session import ProcessSession
    from dibs.wire.documents import Reply

    Document = dict[str, Any]


def claim(
    session: ProcessSession,
    job: str,
    *,
    queued: Callable[[Document], None] | None = None,
    reopened: Callable[[], None] | None = None,
) -> Answer | None:
    """Claim the job in the session; with --wait, wait in line. None if it is ours, else the answer. `queued` is called
    with every place in line, `reopened` when another session had to be opened."""
    call = session.call
    document = {"owner": call.settings.owner} | terms(call)
    wait_seconds = seconds(call, "wait", TTL_MS_MAX) or 0
    until_ms = steady_ms() + wait_seconds * 1000
    tracker = part("issue tracker") if job.startswith(TRACKED) else None
    while True:
        document["session_id"] = session.id
        sent_ms = steady_ms()
        if wait_seconds:
            reply = _in_line(session, job, document, until_ms, queued)
        else:
            reply = call.claim("acquire", job, document)
        if tracker is not None:
            reply = tracker.confirm_grant(session, job, document, reply, sent_ms)
        if refusal_exit(reply) is None and not is_failure(reply):
            session.grant = reply.body or {}
            if tracker is not None:
                tracker.show_grant(session, reply)
            if wait_seconds:
                session.renew_idle()  # the grant may have come while this process was paused
            if not session.is_over:
                return None
        elif not wait_seconds or (reply.body or {}).get("code") not in OVER_CODES:
            from dibs.cli.commands.claim_request import refused

            return refused(call, reply, document["request_key"])
        trouble = session.open()
        if trouble is not None:
            return trouble
        document["request_key"] = new_id()  # a key belongs to one session
        if reopened is not None:
            reopened()


def _in_line(
    session: ProcessSession,
    job: str,
    document: Document,
    until_ms: int,
    queued: Callable[[Document], None] | None,
) -> Reply:
    from dibs.cli.commands.claim_wait import wait_in_line

    def meanwhile(body: Document | None) -> int:
        if body is not None and queued is not None:
            queued(body)
        session.renew_idle()
        return max(0, session.plan.next_ms - steady_ms())

    wait_ms = max(1, until_ms - steady_ms())
    return wait_in_line(session.call, "acquire", job, document, meanwhile, wait_ms=wait_ms)
