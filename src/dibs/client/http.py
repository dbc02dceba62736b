"""dibs over HTTP: a door to a server."""

from __future__ import annotations

from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, DibsError, ServerUnreachable
from dibs.base.generators import run_generator
from dibs.base.http1 import ConnectionLost
from dibs.base.ids import new_id
from dibs.client import requests as questions
from dibs.client.exchange import ask_servers
from dibs.client.naming import told
from dibs.client.replies import document_of
from dibs.client.requests import RequestBuilder
from dibs.client.transport import Deadline, NotConnected, ServerConnection
from dibs.wire.documents import Reply, reply_for_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from dibs.client.door import Streamed
    from dibs.client.exchange import Attempt, Result
    from dibs.client.naming import Namespaces
    from dibs.client.requests import Question
    from dibs.client.servers import Servers

    Document = dict[str, Any]

TIMEOUT_MS_DEFAULT = 10_000


class HttpDoor:
    """A door to a server, or to several of one store. `timeout_ms` bounds each call, its retries included, and may be
    changed between calls.

    With `keep` a connection stays open for the next call, which a program wants and a command does not need."""

    def __init__(
        self,
        servers: Servers,
        *,
        namespace: str | Namespaces | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        keep: bool = False,
    ) -> None:
        self.servers = servers
        self.timeout_ms = timeout_ms
        self._builder = RequestBuilder(servers, namespace=namespace, keep=keep)
        self._connections = {each.url: ServerConnection(each, keep=keep) for each in servers.addresses}

    def call(self, verb: str, name: str, document: Document) -> Reply:
        return self._reply(questions.question, verb, name, document)

    def claimed(self, prefix: str, after: str, limit: int, states: tuple[str, ...] = ("held",)) -> Reply:
        return self._reply(questions.list_question, prefix, after, limit, states)

    def history(self, name: str, limit: int) -> Reply:
        return self._reply(questions.history_question, name, limit)

    def events(
        self, prefix: str, name: str | None, after: int | None, limit: int, since_ms: int = 0
    ) -> Reply:
        return self._reply(questions.events_question, prefix, name, after, limit, since_ms)

    def await_events(self, prefix: str, name: str | None, after: int, timeout_ms: int) -> Iterator[Streamed]:
        """From the server that answers first; `events` has just asked it."""
        from dibs.client.event_reader import read_events

        address = self.servers.order(steady_ms())[0]
        asked = questions.events_question(prefix, name, after, 1, follow=True)
        request = self._builder.request(asked, address)
        deadline = Deadline(min(self.timeout_ms, max(timeout_ms, 1)))
        return read_events(self._connections[address.url], request, deadline, timeout_ms)

    def sessions(self) -> Reply:
        return self._reply(lambda: questions.SESSIONS)

    def whoami(self) -> Reply:
        """Whose the token is that is sent, and when it ends."""
        return self._reply(lambda: questions.WHOAMI)

    def open_run(self, document: Document) -> Reply:
        """Begin a run on a server that serves the gateway. Repeatable, because the secret comes with the request."""
        return self._reply(questions.run_question, {"secret": new_id(), **document})

    def runs(self) -> Reply:
        return self._reply(lambda: questions.RUNS)

    def end_runs(self, holder: str) -> Reply:
        return self._reply(questions.end_runs_question, holder)

    def ask_tokens(self, verb: str, name: str, wanted_id: str, document: Document) -> Reply:
        """About the server's tokens, for an admin: one of the verbs of `engine/credentials.py`."""
        return self._reply(questions.token_question, verb, name, wanted_id, document)

    def rights(self, after: int, limit: int) -> Reply:
        """What changed about who may do what, for an admin."""
        return self._reply(questions.rights_question, after, limit)

    def ask_webhooks(self, verb: str, webhook_id: str, document: Document) -> Reply:
        """About webhooks: one of the verbs of `engine/webhooks/admin.py`."""
        return self._reply(questions.webhook_question, verb, webhook_id, document)

    def news(self, timeout_ms: int) -> None:
        """A server reports no news outside of a wait in line, so this only sleeps."""
        from time import sleep

        sleep(timeout_ms / 1000)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def health(self) -> Document:
        """What GET /health says, of the first server. Raises what went wrong."""
        address = self.servers.addresses[0]
        request = self._builder.request(questions.HEALTH, address)
        try:
            raw = self._connections[address.url].exchange(request, Deadline(self.timeout_ms), repeatable=True)
        except ConnectionLost:
            raise ServerUnreachable(f"{address.url} closed the connection without an answer.") from None
        document = document_of(raw, address)
        if document is None:
            raise BadReply(f"{address.url} answered /health with nothing.")
        return document | {"store": raw.headers.get("x-dibs-store")}

    def _reply(self, make: Callable[..., Question], *about: Any) -> Reply:
        """The reply to the question that `make` makes."""
        try:
            asked = make(*about)
            flow = ask_servers(self.servers, self._builder, asked, self.timeout_ms)
            return told(self._builder.namespaces, run_generator(flow, self._attempt), asked.names)
        except DibsError as error:
            return reply_for_error(error, sent=not isinstance(error, NotConnected))

    def _attempt(self, attempt: Attempt) -> Result:
        connection = self._connections[attempt.address.url]
        try:
            deadline = Deadline(attempt.timeout_ms)
            return connection.exchange(attempt.request, deadline, repeatable=attempt.repeatable)
        except (ConnectionLost, ServerUnreachable) as error:
            return error
