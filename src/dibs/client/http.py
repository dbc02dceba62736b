"""dibs over HTTP: a transport to a server."""

from __future__ import annotations

from time import sleep

from dibs.base.cheap import Iterator, Sequence
from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, DibsError, ServerUnreachable
from dibs.base.generators import run_generator
from dibs.base.http1 import ConnectionLost
from dibs.base.jsontext import Document
from dibs.client.connection import CLOSED, Deadline, NotConnected, ServerConnection, needs_https, speaks_tls
from dibs.client.exchange import Attempts, Result, ask_servers, document_of
from dibs.client.requests import RequestBuilder
from dibs.client.servers import Servers
from dibs.client.transport import ANYWHERE, Ask, JobNamespaces, Streamed
from dibs.wire.documents import Reply, reply_for_error

TIMEOUT_MS_DEFAULT = 10_000


class HttpTransport:
    """A transport to a server, or to several of one store. `timeout_ms` bounds each call with its retries, and may be
    changed between calls.

    With `keep` a connection stays open for the next call, which a program wants and a command does not need."""

    def __init__(
        self,
        servers: Servers,
        *,
        naming: JobNamespaces = ANYWHERE,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        keep: bool = False,
    ) -> None:
        self.servers = servers
        self.timeout_ms = timeout_ms
        self._builder = RequestBuilder(servers, naming=naming, keep=keep)
        self._connections = {each.url: ServerConnection(each, keep=keep) for each in servers.addresses}
        self._early: list[Reply] = []  # the reply to the next attempt, if it has come already

    def ask(self, asked: Ask) -> Reply:
        try:
            flow = ask_servers(self.servers, self._builder, asked, self.timeout_ms)
            return self._builder.naming.with_namespace(run_generator(flow, self._attempt), asked.jobs)
        except DibsError as error:
            address = self.servers.addresses[0]
            if CLOSED in error.details and speaks_tls(address):
                error = needs_https(address)
            return reply_for_error(error, sent=not isinstance(error, NotConnected))

    def ask_all(self, asks: Sequence[Ask]) -> list[Reply]:
        """The replies to requests that may be repeated (`is_repeatable`), which are sent together. One that gets no
        answer so is asked alone."""
        address = self.servers.order(steady_ms())[0]
        early: list[Reply] = []
        if len(asks) > 1:
            requests = [self._builder.request(each, address) for each in asks]
            early = self._connections[address.url].exchange_all(requests, Deadline(self.timeout_ms))
        replies = []
        for at, asked in enumerate(asks):
            self._early = early[at : at + 1]
            replies.append(self.ask(asked))
        return replies

    def await_events(self, asked: Ask, timeout_ms: int) -> Iterator[Streamed]:
        """From the server that answers first; a page of events has just asked it."""
        from dibs.client.event_reader import read_events

        address = self.servers.order(steady_ms())[0]
        request = self._builder.request(asked, address)
        deadline = Deadline(min(self.timeout_ms, max(timeout_ms, 1)))
        return read_events(self._connections[address.url], request, deadline, timeout_ms)

    def news(self, timeout_ms: int) -> None:
        """A server reports no news outside of a wait in line, so this only sleeps."""
        sleep(timeout_ms / 1000)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def health(self) -> Document:
        """Return what GET /health says, of the first server. Raises what went wrong."""
        address = self.servers.addresses[0]
        request = self._builder.request(Ask("health"), address)
        try:
            reply = self._connections[address.url].exchange(request, Deadline(self.timeout_ms), repeatable=True)
        except ConnectionLost:
            raise ServerUnreachable(f"{address.url} {CLOSED}") from None
        document = document_of(reply, address)
        if document is None:
            raise BadReply(f"{address.url} answered /health with nothing.")
        names = [reply.headers.get(name) for name in ("x-dibs-store", "x-dibs-moved-from")]
        return document | {"store": names[0], "moved_from": (names[1] or "").split(",")}

    def _attempt(self, attempt: Attempts) -> Result:
        connection = self._connections[attempt.address.url]
        if self._early:
            return self._early.pop()
        try:
            deadline = Deadline(attempt.timeout_ms, attempt.now_ms)
            return connection.exchange(attempt.request, deadline, repeatable=attempt.repeatable)
        except (ConnectionLost, ServerUnreachable) as error:
            return error
