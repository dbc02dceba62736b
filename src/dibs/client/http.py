"""dibs over HTTP: a door to a server."""

from __future__ import annotations

from dibs.client import requests as questions
from dibs.client.http1 import ConnectionLost
from dibs.client.replies import checked_reply, document_of
from dibs.client.requests import RequestBuilder, RetryBudget
from dibs.client.transport import Deadline, NotConnected, ServerConnection, TimedOut
from dibs.errors import BadReply, DibsError, ServerUnreachable
from dibs.ids import new_id
from dibs.repository.namespace import told
from dibs.wire.documents import Reply, reply_for_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.client.http1 import RawReply
    from dibs.client.requests import Question
    from dibs.client.urls import ServerAddress
    from dibs.repository.namespace import Namespaces

    Document = dict[str, Any]

TIMEOUT_MS_DEFAULT = 10_000


class HttpDoor:
    """A door to a server. `timeout_ms` limits each call, including its retries, and may be changed between calls. With
    `keep` the connection stays open for the next call, for programs that make many."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        token: str | None = None,
        namespace: str | Namespaces | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        keep: bool = False,
    ) -> None:
        self.address = address
        self.timeout_ms = timeout_ms
        self._builder = RequestBuilder(address, token=token, namespace=namespace, keep=keep)
        self._connection = ServerConnection(address, keep=keep)

    def call(self, verb: str, name: str, document: Document) -> Reply:
        return self._reply(lambda: questions.question(verb, name, document))

    def claimed(self, prefix: str, after: str, limit: int, states: tuple[str, ...] = ("held",)) -> Reply:
        return self._reply(lambda: questions.list_question(prefix, after, limit, states))

    def history(self, name: str, limit: int) -> Reply:
        return self._reply(lambda: questions.history_question(name, limit))

    def sessions(self) -> Reply:
        return self._reply(lambda: questions.SESSIONS)

    def open_run(self, document: Document) -> Reply:
        """Begin a run on a server that serves the gateway. Repeatable, because the secret comes with the request."""
        return self._reply(lambda: questions.run_question({"secret": new_id(), **document}))

    def runs(self) -> Reply:
        return self._reply(lambda: questions.RUNS)

    def end_runs(self, holder: str) -> Reply:
        return self._reply(lambda: questions.end_runs_question(holder))

    def ask_tokens(self, verb: str, name: str, wanted_id: str, document: Document) -> Reply:
        """About the server's tokens, for an admin: one of the verbs of `service/credentials.py`."""
        return self._reply(lambda: questions.token_question(verb, name, wanted_id, document))

    def news(self, timeout_ms: int) -> None:
        """A server reports no news outside of a wait in line, so this only sleeps."""
        from time import sleep

        sleep(timeout_ms / 1000)

    def close(self) -> None:
        self._connection.close()

    def health(self) -> Document:
        """The document of GET /health. Raises the error."""
        document = document_of(self._exchange(questions.HEALTH), self.address)
        if document is None:
            raise BadReply(f"{self.address.url} answered /health with nothing.")
        return document

    def _reply(self, ask: Callable[[], Question]) -> Reply:
        try:
            asked = ask()
            reply = checked_reply(asked.verb, self._exchange(asked), self.address)
            return told(self._builder.namespaces, reply, asked.names)
        except DibsError as error:
            return reply_for_error(error, sent=not isinstance(error, NotConnected))

    def _exchange(self, asked: Question) -> RawReply:
        request = self._builder.request(asked)
        deadline = Deadline(self.timeout_ms + asked.waits_ms)
        tries = RetryBudget(self.address, asked)
        while True:
            try:
                try:
                    return self._connection.exchange(request, deadline, repeatable=asked.repeatable)
                except ConnectionLost:
                    tries.broken()
            except TimedOut as error:
                raise tries.timed_out(error) from None
            except ServerUnreachable as error:
                raise tries.unreachable(error) from None
