"""What a session wants: a refused claim that counts as waiting, for `deadlock.py`. An agent that asks, is refused,
thinks and asks again waits just like one in line. So the last refusal of a session that holds something counts until
the session gets something, lets something go or asks for something else, and for WANT_MS at most. A reported deadlock
is also a refusal: the others in the cycle must be told of it as well when they ask again. So is a wait that was given
up.
"""

from __future__ import annotations

from dibs.core.limits import WANT_MS
from dibs.core.proof import may_use
from dibs.core.records import Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.commands import AcquireTerms
    from dibs.core.draft import Draft
    from dibs.core.records import Ticket


def note_want(draft: Draft, ask: AcquireTerms | Ticket, names: tuple[str, ...]) -> None:
    """The caller asked for these and was refused."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is not None and session.holds:
        want = Want(
            ns=ask.ns,
            name=names[0],
            until_ms=draft.now_ms + WANT_MS,
            mode=ask.mode,
            slots=ask.slots,
            at_ms=draft.now_ms,
            more=names[1:],
        )
        draft.put(session.replace(want=want))


def forget_want(draft: Draft, ask: AcquireTerms) -> None:
    """The session got a final answer to a new request, so its earlier refusal does not count any more."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is not None and session.want is not None and may_use(session, ask.principal, ask.bound):
        draft.put(session.replace(want=None))
