"""What both clients offer: one door, the same replies behind it.

A reply is what the server would send, status and document, whoever made it: refusals and errors are replies too. A
door raises nothing for what the caller asked. What it cannot even ask (no server, no store) is a reply of the same kind
as the server's own "store unavailable".
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from dibs.wire.documents import Reply

    Document = dict[str, Any]
else:
    Protocol = object

VERBS = (
    *("acquire", "acquire-any", "acquire-all", "leave", "renew", "release", "transfer"),
    *("break", "free", "inspect", "acl", "session-open", "session-keep", "session-end", "session-show"),
)
# What a reply's code says of a lease, or a session, that is no more.
OVER_CODES = ("lease_not_current", "not_found", "session_expired")


class Door(Protocol):
    """Not for several threads at once: a door is one caller's."""

    def call(self, verb: str, name: str, document: Document) -> Reply:
        """Ask one of VERBS about the job `name`. `document` is the request body of the HTTP reference.

        For the verbs of sessions `name` is the session's id; to open one, and for several jobs, it is empty."""
        ...

    def claimed(self, prefix: str, after: str, limit: int, states: tuple[str, ...] = ("held",)) -> Reply:
        """Up to `limit` jobs in one of these states whose name begins with `prefix` and comes after `after`."""
        ...

    def history(self, name: str, limit: int) -> Reply:
        """The newest `limit` events of a job, oldest first."""
        ...

    def sessions(self) -> Reply:
        """The open sessions of whoever asks."""
        ...

    def news(self, timeout_ms: int) -> None:
        """Wait until something may have changed since the last call, `timeout_ms` at most."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Calling it again does nothing."""
        ...
