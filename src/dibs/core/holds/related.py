"""Related sessions, a parent and its children: the promise `excl:related`.

An agent and its subagent are one worker for everybody else: claims of a session and of its parent do not exclude each
other (`exclusion.py`), and neither waits for what the other has (`waiting/wait_graph.py`). Two children of one parent
are two workers. In a pool each counts by itself (`capacity.py`). A session names its parent when it is opened
(`claims/sessions.py`).
"""

from __future__ import annotations

from dibs.core.draft import Draft
from dibs.core.holds.capacity import Owners


def are_related(draft: Draft, one: str | None, other: str | None) -> bool:
    """Return whether one of two sessions is the parent of the other."""
    if one is None or other is None or one == other:
        return False
    child, parent = draft.session(one), draft.session(other)
    return (child is not None and child.parent == other) or (parent is not None and parent.parent == one)


def without_related(draft: Draft, owners: Owners, session: str | None) -> Owners:
    """The owners that are not the session's parent or children."""
    if session is None:
        return owners
    return Owners((), [each for each in owners.live if not are_related(draft, session, each.session)])
