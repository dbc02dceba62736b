"""The port of a tracker, which knows an issue by its one name (`wire/issue_names.py`), and its answers as replies to
claims.

Each question takes a bounded time and raises NoAnswer, and nothing else. No credentials are stored: the tracker's own
program has them. Texts of a tracker are a stranger's texts: they are cut here, and escaped where they are printed.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.base.cheap import Sequence
from dibs.base.jsontext import Document
from dibs.wire.documents import Reply, refused_document
from dibs.wire.parts import instant_ms, timestamp

FREE, TAKEN, DONE, UNKNOWN = "free", "taken", "done", "unknown"


class NoAnswer(Exception):
    """The tracker could not be asked, or gave no answer that can be used. The text says why, without a full stop."""


class IssueState(NamedTuple):
    """The state of an issue. TAKEN: `by` has an open pull request at `url` that closes it. DONE: it is closed, `how`
    says how, and `url` is the result: the pull request that closed it, else the issue itself."""

    name: str
    state: str
    url: str = ""
    by: str = ""
    how: str = ""
    at: str = ""
    title: str = ""


# A tracker's answer as the reply to a claim: the same documents as for jobs that are held or done in the store. Pure.
#
# Fields that only a store knows are null or 0. `tracker` says where the answer comes from.

RETRY_MS = 5 * 60 * 1000  # when asking again makes sense: people merge and close by hand


def refusal(state: IssueState, now_ms: int, title: str) -> Document:
    tracker = {"title": title, "url": state.url, "how": state.how or "open pull request"}
    if state.state != DONE:
        return {
            "status": "held",
            "name": state.name,
            "owner": state.by,
            "remaining_ms": None,
            "expires_at": None,
            "waiting": 0,
            "retry_after_ms": RETRY_MS,
            "tracker": tracker,
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
        "tracker": tracker,
    }


def refused_several(documents: Sequence[Document], *, all_of: int = 0) -> Reply:
    """The reply to a claim of several jobs of which nothing was got."""
    return Reply(status=200, body=refused_document(documents, all_of=all_of))


def _instant(text: str) -> str | None:
    """A time of the tracker (2026-11-01T10:00:00Z) as replies have it; None if it is none."""
    try:
        return timestamp(instant_ms(f"{text[:19]}.000Z"))
    except ValueError:
        return None
