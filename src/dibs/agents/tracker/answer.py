"""A tracker's answer as the reply to a claim: the same documents as for jobs that are held or done in the store. Pure.

Fields that only a store knows are null or 0. `tracker` says where the answer comes from.
"""

from __future__ import annotations

from dibs.agents.tracker.port import DONE
from dibs.wire.documents import Reply
from dibs.wire.parts import instant_ms, timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dibs.agents.tracker.port import IssueState

    Document = dict[str, Any]

RETRY_MS = 5 * 60 * 1000  # when asking again makes sense: people merge and close by hand
_OK = 200


def refusal(state: IssueState, now_ms: int, title: str) -> Document:
    told = {"title": title, "url": state.url, "how": state.how or "open pull request"}
    if state.state != DONE:
        return {
            "status": "held",
            "name": state.name,
            "owner": state.by,
            "remaining_ms": None,
            "expires_at": None,
            "waiting": 0,
            "retry_after_ms": RETRY_MS,
            "tracker": told,
        }
    owner, at = state.by or title, _instant(state.at)
    done = {"owner": owner, "at": at, "until": None, "result": state.url, "fencing_token": 0}
    return {
        "status": "done",
        "name": state.name,
        "owner": owner,
        "done_at": at,
        "done_ms_ago": None if at is None else max(0, now_ms - instant_ms(at)),
        "until": None,
        "retry_after_ms": RETRY_MS,
        "fencing_token": 0,
        "result": state.url,
        "done": done,
        "tracker": told,
    }


def refused(documents: Sequence[Document]) -> Reply:
    """The reply to a claim of one job."""
    return Reply(status=_OK, body=dict(documents[0]))


def refused_several(documents: Sequence[Document]) -> Reply:
    """The reply to a claim of several jobs of which nothing was got."""
    return Reply(status=_OK, body={"status": "held", "refused": list(documents), "retry_after_ms": RETRY_MS})


def _instant(text: str) -> str | None:
    """A time of the tracker (2026-11-01T10:00:00Z) as replies have it; None if it is none."""
    try:
        return timestamp(instant_ms(f"{text[:19]}.000Z"))
    except ValueError:
        return None
