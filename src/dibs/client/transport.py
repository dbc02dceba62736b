"""The interface of every client: a transport, with the same replies from a store and from a server.

A reply is the status and document that a server sends; refusals and errors are replies, too. A transport raises no
exception for a request. If there is no server or no store, the reply is the same as the server's "store unavailable".
"""

from __future__ import annotations

import os

from dibs.base.cheap import Any, Iterator, Protocol, Sequence
from dibs.base.jsontext import Document
from dibs.base.reply import Reply
from dibs.wire.codes import NOT_ANY_MORE, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.wire.issue_names import JobName

Jobs = tuple[object, ...]
Streamed = tuple[int, Document | None]  # a position, and the event that brought the reader there
SEVERAL = ("acquire-any", "acquire-all", "withdraw")
# How verbs begin that are about no job.
NO_JOBS = ("session", "run", "token", "webhook", "rights", "whoami", "health")


class Ask:
    """A request to a transport: a verb, what it is about, and the fields that the HTTP reference lists for it.

    `name` is the job; of `list` the prefix; of `events` the prefix, or the job that the field `name` names; of
    sessions, tokens, webhooks and runs their own id or name. It is empty where there is none, and for several jobs,
    which are in the field `names`. `jobs` are its names of jobs, which tell the namespace; a prefix counts, too."""

    __slots__ = ("document", "jobs", "name", "verb")

    def __init__(self, verb: str, name: str = "", document: Document | None = None) -> None:
        self.verb = verb
        self.name = name
        self.document: Document = {} if document is None else document
        self.jobs: Jobs = () if verb.startswith(NO_JOBS) else (name,)
        if verb in SEVERAL:
            names = self.document.get("names")
            self.jobs = tuple(names) if isinstance(names, list | tuple) else ()


def is_over(reply: Reply) -> bool:
    """Tell whether the lease or the session of a request has ended. The reply about a job that is done or parked is no
    error, and says nothing about lease or session."""
    return "code" in (reply.body or {}) and kind_of(reply) == NOT_ANY_MORE


class Transport(Protocol):
    """A transport belongs to one caller: it is not for several threads at once."""

    def ask(self, asked: Ask) -> Reply:
        """The reply to a request."""

    def ask_all(self, asks: Sequence[Ask]) -> list[Reply]:
        """The replies to requests that may be repeated and do not wait, in one round trip or one commit if that is
        possible. They are independent: one that fails undoes no other."""

    def await_events(self, asked: Ask, timeout_ms: int) -> Iterator[Streamed]:
        """Events after a position as they happen, each with its position, and positions without an event; for at most
        `timeout_ms`. It may end sooner, for any reason: asking for a page says which, and goes on where it ended."""

    def news(self, timeout_ms: int) -> None:
        """Wait until something may have changed since the last call, for at most `timeout_ms`."""

    def close(self) -> None:
        """Close files and connections. A second call does nothing."""


class Surroundings(Protocol):
    """A resolver of names, which knows the git work tree around a folder (`naming.py`)."""

    def namespace(self) -> str | None:
        """The namespace of its `path:` and `repo:` names; None if git knows no work tree here."""

    def in_checkout(self, name: str) -> str | None:
        """The name of the file `path:…` for this work tree alone; None outside of one."""

    def explained(self, name: str) -> JobName:
        """The one name of a job. Raises InvalidInput where settings or clone cannot be read, and InvalidName."""

    def tracked_claim(self, verb: str, names: Sequence[str], *, again: bool, own_key: bool) -> Any:
        """The flow of a claim of issues that a tracker is asked about."""


class JobNamespaces(Protocol):
    """Says in which namespace jobs are. Whoever opens a transport hands it one, and the transport asks that for each
    request."""

    def namespace(self, jobs: Jobs) -> str | None:
        """The namespace of these jobs; None: `default`, or the token's. Raises InvalidInput if they are in several."""

    def is_known(self, jobs: Jobs) -> bool:
        """True if `namespace` answers without running another program, which an event loop does in a thread."""

    def with_namespace(self, reply: Reply, jobs: Jobs) -> Reply:
        """The reply, with the namespace in it if the caller could not know it."""


class OneNamespace:
    """The naming of a caller that knows the namespace of all its jobs."""

    __slots__ = ("_namespace",)

    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace

    def namespace(self, jobs: Jobs) -> str | None:
        return self._namespace

    def is_known(self, jobs: Jobs) -> bool:
        return True

    def with_namespace(self, reply: Reply, jobs: Jobs) -> Reply:
        return reply


ANYWHERE = OneNamespace(None)  # `default`, or the one that the token is bound to


def close_all(opened: list[Any], pid: int) -> None:
    """Close what a client has opened that was dropped without being closed. In a forked child it is the parent's."""
    if os.getpid() == pid:
        for each in opened:
            each.close()
