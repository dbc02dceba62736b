"""Does what the routes are for: reads a request, has its command decided, reads lists.

The order of the checks is the contract's: the body's type, size, syntax and fields first, then who asks, then what the
values mean. `Api.ask` does all of that for every verb; `response.answer_for` makes the answer from the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from dibs.base.errors import AuthenticationRequired, DibsError, InvalidInput, ServerDraining, Unavailable
from dibs.base.reply import Reply
from dibs.core import limits
from dibs.core.caller_rights import AGENT, LEAST_ROLE, NO_LIMITS, Caller, require
from dibs.core.claims.inspect import states_named
from dibs.core.commands import Acquire, AcquireAll, Command
from dibs.core.names import DEFAULT_NAMESPACE, check_name
from dibs.core.outcomes import Outcome
from dibs.core.service.signed_identity import NoteIdentity
from dibs.engine.auth import RequestRates, TokenGuard, digest_of
from dibs.engine.batcher import resolve
from dibs.engine.coordinator import CallerGone
from dibs.engine.event_log import fitting, newest_fitting, text_of
from dibs.engine.feed import in_turn
from dibs.engine.metrics import WAIT, outcome_word
from dibs.engine.queries import agents_page, claimed, history, last_run, open_sessions
from dibs.engine.waiters import Waiter
from dibs.server.engine import Engine
from dibs.server.event_stream import StreamRegistry
from dibs.server.http import parse
from dibs.server.http.admission import Refusals
from dibs.server.http.browser import REFUSED, OwnNames
from dibs.server.http.request import PEER, HttpRequest, RequestHead
from dibs.server.http.response import MISDIRECTED, ClientGone, HttpError, answer_document, note
from dibs.server.monitor.health import SharedProbe, health_of
from dibs.server.settings import ServerSettings
from dibs.system.session_mark import is_gone
from dibs.wire import lease_documents, session_documents
from dibs.wire.operations import Operation
from dibs.wire.requests import command_for, namespace_for, shape, wait_ms

Document = dict[str, Any]
HttpConnection = Any  # dibs.server.connection.HttpConnection, which knows these
Wait = Callable[[Acquire | AcquireAll, int, Callable[[Outcome | BaseException], bool]], Waiter]
Headers = Mapping[bytes, bytes]
Found = TypeVar("Found")

COUNTED = b":counted"  # a request that was counted already; no header of a request can be called so
_CLAIMS = frozenset(("acquire", "acquire-any", "acquire-all"))
_MAY_WAIT = (Acquire, AcquireAll)  # made once: a union would be made for every request
_BEGINS = frozenset((*_CLAIMS, "session-open"))
_SESSIONS = frozenset(("session-open", "session-keep", "session-show", "session-end"))
_BODILESS = frozenset(("inspect", "session-show", "session-end", "session-keep", "free", "open"))  # or it may have one

# What is of no use to anybody but the caller is not decided for a caller that has gone. A heartbeat or a release is.
FOR_THE_CALLER = frozenset((*_BEGINS, "inspect", "session-show"))


class LongPoll:
    """A caller that waits for its outcome in a task."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._waiter: Waiter | None = None
        self._future: asyncio.Future[Outcome] = connection.loop.create_future()

    async def outcome(self, wait: Wait, command: Acquire | AcquireAll, wait_ms: int) -> Outcome:
        """The final outcome for the caller; raises its error, or ClientGone."""
        self._waiter = wait(command, wait_ms, lambda result: resolve(self._future, result))
        self._connection.waiting = self
        try:
            return await self._future
        finally:
            self._connection.waiting = None

    def cancel(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        if not self._future.done():
            self._future.set_exception(ClientGone())

    def hurry(self) -> None:
        if self._waiter is not None:
            self._waiter.hurry()


class Api:
    def __init__(self, engine: Engine, guard: TokenGuard, settings: ServerSettings | None = None) -> None:
        self.engine = engine
        self.post: Callable[..., None] = engine.batcher.post
        self.wait = engine.waiters.ask
        self.undelivered = engine.waiters.on_undelivered
        self.guard = guard
        engine.dispatcher.ledger.lets_in = guard.lets_in
        if guard.directory is not None:
            engine.on_tokens = guard.directory.hurry
        if guard.signed is not None:
            guard.signed.counts = engine.metrics.identities
            guard.signed.on_accepted = self._note_identity
        self._rates = RequestRates(metrics=engine.metrics)
        self._refusals = Refusals(engine.metrics)
        self.is_draining = False  # about to end: refuses new claims and sessions
        self.streams = StreamRegistry()
        self.operations: list[Operation] = []  # all that this server has, for its description
        self.notes_callers = False  # whether the log wants to know them
        self.settings = settings or ServerSettings()
        self.metrics_are_open = self.settings.open_metrics  # they need no token then
        self.names = OwnNames()
        self.checks_names = False  # in every request without a valid token, not only where that is always so
        self.certificate_ends_ms: Callable[[], int | None] = lambda: None  # without TLS
        # Called when the server begins, with what counts the requests that were answered.
        self.on_start: list[Callable[[Callable[[], int]], object]] = []
        self.on_close: list[Callable[[], object]] = []
        self._probe = SharedProbe(lambda: health_of(engine.store), "dibs-health")
        self._readers = ThreadPoolExecutor(limits.READERS_MAX, thread_name_prefix="dibs-reader")

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._probe.close()
        for close in self.on_close:
            close()

    def _note_identity(self, command: NoteIdentity) -> None:
        """Put it into the history. A request does not fail because its caller could not be noted."""
        with suppress(Unavailable):
            self.post(command, lambda result: True)

    def check_open(self) -> None:
        if self.is_draining:
            raise ServerDraining(
                "This server is about to end and takes no new claims. Ask another one, or again in a moment.",
                retry_after_ms=limits.OVERLOAD_RETRY_MS,
            )

    def command_of(
        self, verb: str, raw_name: bytes, query: bytes, head: RequestHead, document: Document
    ) -> tuple[Command, int]:
        """The command of a request with checked fields, and how long its caller would wait. Raises if it is invalid."""
        headers = head.headers
        caller = self._known(head.digest, headers)
        if caller.limits is not NO_LIMITS and COUNTED not in headers:
            self._rates.count(caller, verb)
        if query or head.has_terms:
            ns = self.namespace_of(caller, parse.parse_query(query), headers)
        else:
            ns = caller.namespace or DEFAULT_NAMESPACE
        if self.is_draining and verb in _BEGINS:
            self.check_open()
        is_claim = verb in _CLAIMS
        if head.has_terms:
            self._check_store(headers)
            if is_claim and parse.KEY_HEADER in headers:
                parse.add_key(document, headers[parse.KEY_HEADER])
        if is_claim:
            caller = self.counted(caller, len(document["names"]) if verb == "acquire-all" else document.get("count", 1))
        # Session ids are plain UUIDs; a percent-encoded one is invalid.
        is_session = verb in _SESSIONS
        name = raw_name.decode("latin-1") if is_session else parse.decode_name(raw_name)
        if head.has_terms and not is_session:
            name = parse.one_name(name, headers)
            if "names" in document:
                document["names"] = [parse.one_name(each, headers) for each in document["names"]]
        command = command_for(verb, ns, name, document, caller)
        return command, wait_ms(document) if "wait_seconds" in document else 0

    def ask(self, call: HttpRequest, verb: str, body: bytes | BaseException) -> None:
        """Have the command of a request decided. It is answered as soon as there is an outcome."""
        if isinstance(body, BaseException):
            raise body
        if call.head.has_terms and not self._is_meant(call.head.headers):
            call.connection.step(call, lambda given: self._ask_by_new_name(call, verb, given), body)
        else:
            self._ask(call, verb, body)

    def _ask(self, call: HttpRequest, verb: str, body: bytes) -> None:
        head = call.head
        document: Document = {}
        if body or verb not in _BODILESS:
            if not head.is_acceptable:
                parse.check_head(head.headers)
            typed = parse.typed_document(verb, body)
            document = shape(verb, parse.parse_json(body)) if typed is None else typed
        command, wait_ms = self.command_of(verb, call.raw_name, call.query, head, document)
        connection = call.connection
        if connection.whole:
            connection.keep_head(call, body)
        # From a client that asks another server when this one is slow, and closes the connection then. A server that
        # stood still must not claim for it what it has, or was refused, elsewhere.
        call.moves = head.may_move and verb in _CLAIMS
        if wait_ms and isinstance(command, _MAY_WAIT):
            call.verb = WAIT
            has_hung_up = call.is_away if call.moves else None
            # `Waiters` handles a caller that hangs up while it waits.
            connection.waiting = self.wait(command, wait_ms, call.deliver, has_hung_up=has_hung_up)
        else:
            if verb in _CLAIMS and isinstance(command, _MAY_WAIT) and command.ticket_id is not None:
                self.engine.waiters.on_poll(command)
            call.command = command
            self.post(command, call.deliver, call.is_away if verb in FOR_THE_CALLER else None)

    async def outcome(
        self, verb: str, command: Command, waits_ms: int, connection: HttpConnection
    ) -> Outcome | BaseException:
        """Decide one of the commands of a request (a tool of MCP), also after a wait. Raises ClientGone."""
        if waits_ms and isinstance(command, _MAY_WAIT):
            if connection.call is not None:
                connection.call.verb = WAIT
            result = await LongPoll(connection).outcome(self.wait, command, waits_ms)
        else:
            is_gone = (lambda: connection.is_gone) if verb in FOR_THE_CALLER else None
            try:
                result = await self.engine.batcher.submit(command, is_gone)
            except CallerGone:
                raise ClientGone from None
            if connection.is_gone:
                self.undelivered(command, result)
        note(outcome=outcome_word(type(result)))
        return result

    async def sessions(self, headers: Headers) -> Reply:
        """The caller's open sessions. For roles other than agent: all sessions in the token's namespaces."""
        caller = self.caller_for("sessions", headers)
        whose = caller.principal if caller.role == AGENT else None

        def read() -> Reply:
            found = open_sessions(self.engine.store, whose, caller.namespace)
            documents = [session_documents.session_document(state) for state in found]
            for document in documents:
                # The id proves the session, so not even an operator sees it.
                if document["user_id"] != caller.principal:
                    document["session_id"] = lease_documents.short_session(document["session_id"])
            return answer_document({"sessions": documents})

        return await self.in_reader(read)

    async def agents(self, query: bytes, headers: Headers) -> Reply:
        """The agents among the sessions that the caller may see."""
        caller = self.caller_for("agents", headers)
        whose = caller.principal if caller.role == AGENT else None
        asked = parse.parse_query(query)
        after, ended = asked.get("after", ""), bool(parse.truth(asked, "ended"))
        limit = parse.whole_number(asked, "limit", limits.AGENTS_PAGE_DEFAULT, 1, limits.AGENTS_PAGE_MAX)

        def read() -> Reply:
            bound = caller.namespace
            found = agents_page(self.engine.store, whose, bound, is_gone, after=after, limit=limit, ended=ended)
            return answer_document(found)

        return await self.in_reader(read)

    def list_reader(self, query: bytes, headers: Headers) -> Callable[[], Document]:
        ns, asked = self.reader("list", query, headers)
        prefix, after = parse.name_part(asked, "prefix"), parse.name_part(asked, "after")
        limit = parse.whole_number(asked, "limit", limits.LIST_PAGE_DEFAULT, 1, limits.LIST_PAGE_MAX)
        states, ended = states_named(asked.get("status")), parse.endings_asked(asked)
        pools = bool(parse.truth(asked, "pools"))

        def read() -> Document:
            page = claimed(self.engine.store, ns, prefix, after, limit, states, ended, pools=pools)
            return lease_documents.list_document(
                page.locks, page.now_ms, prefix, page.next_after, page.closures, frozen=page.frozen, whole=not after
            )

        return read

    def history_reader(self, raw_name: bytes, query: bytes, headers: Headers) -> Callable[[], Document]:
        """Reads the newest events of a job; with `after`, the events that follow it."""
        ns, asked = self.reader("history", query, headers)
        name = check_name(parse.one_name(parse.decode_name(raw_name), headers))
        limit = parse.whole_number(asked, "limit", limits.HISTORY_PAGE_DEFAULT, 1, limits.HISTORY_PAGE_MAX)
        after = parse.whole_number(asked, "after", 0, 0, parse.SEQ_MAX) if "after" in asked else None

        def read() -> Document:
            found = history(self.engine.store, ns, name, limit, after)
            some = newest_fitting(found) if after is None else found[: fitting(map(text_of, found))]
            return lease_documents.history_document(name, some)

        return read

    async def overdue(self, raw_name: bytes, query: bytes, headers: Headers) -> Reply:
        """Tell whether a job succeeded in time, for probes also by the status."""
        ns, asked = self.reader("overdue", query, headers)
        name = check_name(parse.one_name(parse.decode_name(raw_name), headers))
        within = parse.whole_number(asked, "within_seconds", limits.WITHIN_S_DEFAULT, 1, limits.WITHIN_S_MAX)

        def read() -> Reply:
            document = lease_documents.overdue_document(last_run(self.engine.store, ns, name), within)
            return answer_document(document, 200 if document["status"] == "in_time" else 409)

        return await self.in_reader(read)

    async def health(self) -> Reply:
        """Ask the store, no longer than a load balancer waits, and once for all who ask: no token is needed."""
        try:
            return await self._probe.ask(limits.HEALTH_MS_MAX)
        except TimeoutError:
            raise Unavailable(f"The store did not answer within {limits.HEALTH_MS_MAX} ms.") from None

    async def ready(self) -> Reply:
        """Tell whether new claims are taken here, for load balancers."""
        self.check_open()
        health = await self.health()
        return answer_document({"status": "ready"}) if health.status == 200 else health

    def _is_meant(self, headers: Headers) -> bool:
        """Return whether the request is for this store, also under a name that it had before it was moved here."""
        wanted = headers.get(parse.STORE_HEADER)
        names = (self.engine.store_id, *self.engine.moved_from)
        return wanted is None or wanted in [name.encode() for name in names]

    async def _ask_by_new_name(self, call: HttpRequest, verb: str, body: bytes) -> None:
        """Ask the store for its name first: it may have been moved, or thawed, a moment ago."""
        self.caller_of(call.headers)
        await self.in_reader(self.engine.learn_name)
        self._ask(call, verb, body)

    def _check_store(self, headers: Headers) -> None:
        if not self._is_meant(headers):
            raise HttpError(
                "This server's store is not the one that the request is for. Two servers of different stores stand in "
                "one list.",
                MISDIRECTED,
            )

    # For other routes beside these (the gateway, OctoStore's).

    def caller_of(self, headers: Headers) -> Caller:
        """The caller: known by token, or as the user at the other end of the machine's socket."""
        return self._known(digest_of(headers.get(b"authorization")), headers)

    def _known(self, digest: bytes | None, headers: Headers) -> Caller:
        try:
            caller = self.guard.known(digest, headers.get(PEER))
        except AuthenticationRequired:
            if REFUSED in headers:
                raise AuthenticationRequired(headers[REFUSED].decode()) from None
            raise
        if self.notes_callers:
            note(principal=caller.principal)
        return caller

    def answered(self, status: int, verb: str, client: str, digest: bytes | None, peer: bytes | None) -> None:
        """Note who was refused. `digest` is the hash of the token that came."""

        def principal() -> str:
            try:
                return self.guard.known(digest, peer).principal
            except DibsError:
                return "nobody that is known"

        self._refusals.note(status, verb, client, principal)

    def check_names(self, sent: Sequence[tuple[bytes, bytes]]) -> None:
        """Refuse a request that a browser sends for a foreign page, if this server is for its own machine. A token says
        more than a name: with one, a client may call the machine as it likes."""
        if not self.checks_names:
            return
        try:
            self.names.check(sent)
        except HttpError:
            try:
                self.caller_of(dict(reversed(sent)))
            except DibsError:
                pass
            else:
                return
            raise

    def still_allows(self, headers: Headers) -> Callable[[], bool]:
        """Asks whether a stream may go on: with its token, for the namespace that the token is for now."""
        namespace = self.caller_of(headers).namespace

        def is_allowed() -> bool:
            try:
                return self.caller_of(headers).namespace == namespace
            except DibsError:
                return False

        return is_allowed

    def caller_for(self, verb: str, headers: Headers) -> Caller:
        """The caller, with one more request counted for it. Raises NotAllowed if its role is not enough for `verb`."""
        caller = self.caller_of(headers)
        if COUNTED not in headers:
            self._rates.count(caller, verb)
        if verb in LEAST_ROLE:
            require(caller, verb)
        return caller

    def look_for_tokens(self) -> None:
        """Learn at once of changes made here. Other servers learn of them within the bound of `auth:revoked`."""
        if self.guard.directory is not None:
            self.guard.directory.look()

    def counted(self, caller: Caller, wanted: int = 1) -> Caller:
        """The caller of a claim, with the server's ceiling, and whether its credential may hold that many jobs more."""
        if self.settings.max_hold_ms:
            caller = caller.replace(max_hold_ms=self.settings.max_hold_ms)
        if caller.limits.held:  # the store counts what it has
            return caller
        live = self.engine.tally.live_of(caller.principal, caller.namespace)
        return caller.replace(over_quota=True) if live + wanted > self.settings.locks_per_principal else caller

    def reader(self, verb: str, query: bytes, headers: Headers) -> tuple[str, dict[str, str]]:
        caller = self.caller_for(verb, headers)
        asked = parse.parse_query(query)
        return self.namespace_of(caller, asked, headers), asked

    def namespace_of(self, caller: Caller, asked: Mapping[str, str], headers: Headers) -> str:
        raw = headers.get(parse.NAMESPACE_HEADER)
        named = asked.get("namespace")
        if raw is None:
            return namespace_for(caller, named)
        in_header = parse.header_text(raw, "X-Dibs-Namespace")
        if named is not None and named != in_header:
            raise InvalidInput("The header X-Dibs-Namespace and the query name two different namespaces.")
        return namespace_for(caller, in_header)

    async def in_reader(self, read: Callable[[], Found]) -> Found:
        """A long read must delay neither the event loop nor the commits."""
        return await in_turn(self._readers, read)
