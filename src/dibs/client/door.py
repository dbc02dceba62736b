"""The interface of both clients: a door, with the same replies from a store and from a server.

A reply is the status and document that a server sends; refusals and errors are replies, too. A door raises no
exception for a request. If there is no server or no store, the reply is the same as the server's "store unavailable".
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Protocol

    from dibs.core.references import JobName
    from dibs.wire.documents import Reply

    Document = dict[str, Any]
    Streamed = tuple[int, Document | None]  # a position, and the event that brought the reader there
else:
    Protocol = object

VERBS = (
    *("acquire", "acquire-any", "acquire-all", "leave", "renew", "release", "transfer"),
    *("break", "free", "inspect", "acl", "session-open", "session-keep", "session-end", "session-show"),
)
# Codes of replies about a lease or a session that has ended.
OVER_CODES = ("lease_not_current", "not_found", "session_expired")


class Door(Protocol):
    """A door belongs to one caller: it is not for several threads at once."""

    def call(self, verb: str, name: str, document: Document) -> Reply:
        """Send a request: one of VERBS, about the job `name`. `document` is the request body of the HTTP reference.

        For the verbs of sessions `name` is the session's id; to open one, and for several jobs, it is empty."""
        ...

    def claimed(self, prefix: str, after: str, limit: int, states: tuple[str, ...] = ("held",)) -> Reply:
        """Up to `limit` jobs in one of these states whose name begins with `prefix` and comes after `after`."""
        ...

    def history(self, name: str, limit: int) -> Reply:
        """The newest `limit` events of a job, oldest first."""
        ...

    def events(
        self, prefix: str, name: str | None, after: int | None, limit: int, since_ms: int = 0
    ) -> Reply:
        """A page of events of all jobs whose name begins with `prefix`, or of one job, after a position; or else those
        of the last `since_ms` milliseconds; or else the newest."""
        ...

    def await_events(self, prefix: str, name: str | None, after: int, timeout_ms: int) -> Iterator[Streamed]:
        """Events after a position as they happen, each with its position, and positions without an event; for at most
        `timeout_ms`. It may end sooner, for any reason: `events` says which, and goes on where it ended."""
        ...

    def sessions(self) -> Reply:
        """The open sessions of the caller."""
        ...

    def news(self, timeout_ms: int) -> None:
        """Wait until something may have changed since the last call, for at most `timeout_ms`."""
        ...

    def close(self) -> None:
        """Close files and connections. A second call does nothing."""
        ...


class Surroundings(Protocol):
    """What a resolver of names knows of the git work tree around a folder (`naming.py`)."""

    def namespace(self) -> str | None:
        """The namespace of its `path:` and `repo:` names; None if git knows no work tree here."""
        ...

    def explained(self, name: str) -> JobName:
        """The one name of a job. Raises InvalidInput where settings or clone cannot be read, and InvalidName."""
        ...

    def tracked_claim(self, verb: str, names: Sequence[str], *, again: bool, own_key: bool) -> Any:
        """The flow of a claim of issues that a tracker is asked about."""
        ...
