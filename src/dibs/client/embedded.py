"""dibs without a server: the rules and the store run in this process, and give the documents of a server.

It imports stores and the engine when a store is opened, so that requests to a server need not import them.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from dibs.base.cheap import Any, Callable, Iterator, Sequence, signal
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, StoreUnavailable
from dibs.client.transport import ANYWHERE, Ask, JobNamespaces, Jobs, OneNamespace, Streamed, close_all
from dibs.core.caller_rights import LOCAL, Caller
from dibs.core.commands import Command, EndSession, Sweep
from dibs.core.limits import EMBEDDED_POLL_MS, TICKET_KEEP_MS
from dibs.core.names import check_name
from dibs.core.outcomes import Granted, Held, Outcome, Queued, Refused, Status
from dibs.core.records import Holder, SessionRecord, lock_key, session_key, ticket_key
from dibs.wire.documents import Reply, reply_for_error, reply_to
from dibs.wire.requests import command_for, namespace_for, shape, wait_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.engine.coordinator import Coordinator
    from dibs.stores.port import Store

# Claiming without a server: finding dead owners, and waiting in the queue.
#
# A waiter watches only its own ticket. Who hands it the job, or drops it from the queue, deletes the ticket, and the
# store wakes the waiter. Only the first few in the queue look for expired holds and dead owners, each a little later
# than the one before, which may have died. Asking again writes only what changed, or to keep the place.

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def claim(coordinator: Coordinator, command: Any, wait_ms: int) -> Outcome:
    """The outcome of a claim, after waiting in the queue for up to `wait_ms`. An interrupt never comes during a
    request; whoever claims withdraws the claim then (`pending.py`)."""
    until_ms = steady_ms() + wait_ms
    outcome: Outcome | None = None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        while True:
            outcome = _ask(coordinator, command)
            left_ms = until_ms - steady_ms()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if not isinstance(outcome, Queued) or left_ms <= 0:
                return outcome
            command = command.replace(ticket=outcome.ticket, ticket_id=outcome.ticket_id)
            key = ticket_key(outcome.ns, outcome.name, outcome.ticket)
            poll_ms = max(EMBEDDED_POLL_MS, coordinator.store.capabilities.poll_ms)
            coordinator.store.until_gone(key, min(left_ms, _patience_ms(outcome, poll_ms)))
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ask(coordinator: Coordinator, command: Command) -> Outcome:
    """Claim, and once more after ending the sessions of dead owners in the way."""
    outcome = coordinator.one(command)
    if isinstance(outcome, Granted):
        return outcome
    answers = outcome.outcomes if isinstance(outcome, Refused) else (outcome,)
    holders = [b.holder for each in answers if isinstance(each, Held | Queued) for b in each.blockers]
    return coordinator.one(command) if _end_dead(coordinator, holders) else outcome


def _end_dead(coordinator: Coordinator, holders: Sequence[Holder]) -> bool:
    """End the sessions of these holders whose processes have ended on this machine. Tells whether there were any."""
    sessions = {holder.session for holder in holders if holder.session is not None}
    if not sessions:
        return False
    from dibs.system.session_mark import is_gone  # imported only if a session has a job

    found = coordinator.store.read([session_key(session) for session in sessions]).records.values()
    dead = [each.record for each in found if isinstance(each.record, SessionRecord) and is_gone(each.record.process)]
    for session in dead:
        coordinator.one(EndSession(session=session.id, principal=None, dead=True, process=session.process))
    return bool(dead)


def _patience_ms(queued: Queued, poll_ms: int) -> int:
    """Return how long to wait for a wake-up: until the hold in the way may have ended. Places ahead look first."""
    ends_ms = [blocker.holder.expires_ms - queued.now_ms for blocker in queued.blockers]
    if queued.delay_until_ms > queued.now_ms:
        ends_ms.append(queued.delay_until_ms - queued.now_ms)
    look_ms = max(1, min([*ends_ms, poll_ms])) + (queued.position - 1) * poll_ms
    return min(look_ms, TICKET_KEEP_MS)


def default_store_url() -> str:
    from dibs.stores.registry import default_url

    return default_url()


def check_store_url(url: str) -> None:
    """Raise InvalidInput if there is no store for such a URL. Opens none."""
    from dibs.stores import registry

    registry.check_store_url(url)


CLAIMS = ("acquire", "acquire-any", "acquire-all")


class EmbeddedTransport:
    """A transport to a store. `open_it` is called on first use, so that a failure to open the store is a reply, too."""

    def __init__(
        self, open_it: Callable[[], Coordinator], naming: JobNamespaces = ANYWHERE, caller: Caller = LOCAL
    ) -> None:
        self._open = open_it
        self._naming = naming
        self._caller = caller
        self._opened: Coordinator | None = None
        self._left_out: Sequence[str] = ()  # what the last list or history could not read
        self._seen_seq: int | None = None

    @classmethod
    def at(cls, url: str | None, namespace: str | None = None) -> EmbeddedTransport:
        """The store at `url`; None is the default one."""
        return cls(lambda: open_coordinator(url), OneNamespace(namespace))

    def coordinator(self) -> Coordinator:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def store(self) -> Store:
        return self.coordinator().store

    def ask(self, asked: Ask) -> Reply:
        try:
            reply = self._answer(asked)
        except DibsError as error:  # any other error is a bug, and is raised with its traceback
            reply = reply_for_error(error)
        return self._naming.with_namespace(reply, asked.jobs)

    def _answer(self, asked: Ask) -> Reply:
        verb = asked.verb
        query = _QUERIES.get(verb.partition("-")[0])
        if query is not None:
            return query(self, asked, self.namespace(asked.jobs))
        # The server's order of checks: shape, caller, meaning. The store is not opened for an invalid request.
        shaped = shape(verb, asked.document)
        command = command_for(verb, self.namespace(asked.jobs), asked.name, shaped, self._caller)
        if verb in CLAIMS:
            return reply_to(verb, claim(self.coordinator(), command, wait_ms(shaped)))
        outcome = self.coordinator().one(command)
        if verb == "inspect":
            outcome = _with_ends_written(self.coordinator(), command, outcome)
        return reply_to(verb, outcome)

    def ask_all(self, asks: Sequence[Ask]) -> list[Reply]:
        """The replies to commands that do not wait, decided together and written in one commit. A claim that is refused
        is asked for again by itself, as any claim: the owner in its way may be dead."""
        try:
            commands = [
                command_for(
                    each.verb, self.namespace(each.jobs), each.name, shape(each.verb, each.document), self._caller
                )
                for each in asks
            ]
            results = self.coordinator().run(commands)
        except DibsError:
            return [self.ask(each) for each in asks]  # each is told what is wrong with it
        replies = []
        for asked, result in zip(asks, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, DibsError):
                raise result
            if isinstance(result, BaseException | Refused | Held | Queued):
                replies.append(self.ask(asked))
            else:
                replies.append(self._naming.with_namespace(reply_to(asked.verb, result), asked.jobs))
        return replies

    def namespace(self, jobs: Jobs = ()) -> str:
        return namespace_for(self._caller, self._naming.namespace(jobs))

    def end_dead_session(self, session: str) -> None:
        """End a session whose worker is dead: its jobs are lost, not released. Raises the store's errors."""
        self.coordinator().one(EndSession(session=session, principal=None, dead=True))

    def _list(self, asked: Ask, ns: str) -> Reply:
        from dibs.core.claims.inspect import states_named
        from dibs.engine.queries import claimed
        from dibs.wire.lease_documents import list_document

        prefix, after, limit = asked.name, asked.document.get("after") or "", asked.document["limit"]
        states = states_named(asked.document.get("status"))
        pools = asked.document.get("pools") == "true"
        page = claimed(self.store(), ns, prefix, after, limit, states, pools=pools)
        try:  # as a claim would, if the store can be written
            ended = _end_dead(self.coordinator(), [holder for lock in page.locks for holder in lock.holders])
        except DibsError:
            ended = False
        if ended:
            page = claimed(self.store(), ns, prefix, after, limit, states, pools=pools)
        found = list_document(
            page.locks, page.now_ms, prefix, page.next_after, page.closures, frozen=page.frozen, whole=not after
        )
        self._left_out = self.store().damaged()
        return Reply(200, found)

    def _history(self, asked: Ask, ns: str) -> Reply:
        from dibs.engine.queries import history
        from dibs.wire.lease_documents import history_document

        events = history(self.store(), ns, check_name(asked.name), asked.document["limit"])
        self._left_out = self.store().damaged()
        return Reply(200, history_document(asked.name, events))

    def _overdue(self, asked: Ask, ns: str) -> Reply:
        from dibs.engine.queries import last_run
        from dibs.wire.lease_documents import overdue_document

        run = last_run(self.store(), ns, check_name(asked.name))
        document = overdue_document(run, asked.document["within_seconds"])
        return Reply(200 if document["status"] == "in_time" else 409, document)

    def _events(self, asked: Ask, ns: str) -> Reply:
        from dibs.engine.event_log import EventFilter, collect, position_at
        from dibs.engine.queries import begun
        from dibs.wire.lease_documents import events_document

        terms = asked.document
        if "name" in terms:
            wanted = EventFilter(ns=ns, name=check_name(terms["name"]))
        else:
            wanted = EventFilter(ns=ns, prefix=asked.name)
        begun(self.store())
        begin, since = terms.get("after"), terms.get("since_seconds")
        if begin is None and since:
            begin = position_at(self.store(), self.store().read(()).now_ms - round(since * 1000))
        page = collect(self.store(), wanted, begin, terms["limit"])
        self._left_out = self.store().damaged()
        return Reply(200, events_document(begin, page.events, page.upto, page.oldest))

    def _waiters(self, asked: Ask, ns: str) -> Reply:
        from dibs.engine.queries import live_tickets
        from dibs.wire.lease_documents import waiters_document

        return Reply(200, waiters_document(live_tickets(self.store(), ns, "", "", asked.document["limit"])))

    def _sessions(self, asked: Ask, ns: str) -> Reply:
        from dibs.engine.queries import open_sessions
        from dibs.wire.session_documents import session_document

        return Reply(200, {"sessions": [session_document(state) for state in open_sessions(self.store(), None)]})

    def _agents(self, asked: Ask, ns: str) -> Reply:
        from dibs.engine.queries import agents_page
        from dibs.system.session_mark import is_gone

        asks = asked.document
        found = agents_page(
            self.store(),
            None,
            None,
            is_gone,
            after=asks.get("after") or "",
            limit=asks["limit"],
            ended=asks.get("ended") == "true",
        )
        self._left_out = self.store().damaged()
        return Reply(200, found)

    def _tokens(self, asked: Ask, ns: str) -> Reply:
        """A request about the tokens that servers on this store accept."""
        from dibs.engine.credentials import CredentialAdmin

        document = {key: value for key, value in asked.document.items() if key != "id"}
        admin = CredentialAdmin(self.store(), self._caller)
        return admin.ask(asked.verb, asked.name, asked.document.get("id", ""), document)

    def _rights(self, asked: Ask, ns: str) -> Reply:
        from dibs.engine.credentials import rights_page

        return Reply(200, rights_page(self.store(), None, asked.document["after"], asked.document["limit"]))

    def _webhooks(self, asked: Ask, ns: str) -> Reply:
        """A request about the webhooks that servers on this store deliver to."""
        from dibs.engine.webhooks import WebhookAdmin

        return WebhookAdmin(self.store(), self._caller, ns).ask(asked.verb, asked.name, asked.document)

    def _not_here(self, asked: Ask, ns: str) -> Reply:
        raise InvalidInput("Only a server answers this. Name one: --url http://HOST:PORT.")

    def await_events(self, asked: Ask, timeout_ms: int) -> Iterator[Streamed]:
        """Only waits: whatever comes is read as a page, which costs a store of this machine nothing."""
        self.store().watch(asked.document["after"], timeout_ms)
        return iter(())

    def news(self, timeout_ms: int) -> None:
        store = self.store()
        if self._seen_seq is None or store.watch(self._seen_seq, timeout_ms):
            newest = store.events(0, 1, newest=True)
            self._seen_seq = newest[-1].seq if newest else 0

    def notices(self) -> list[str]:
        said = [] if self._opened is None else self._opened.store.notices()
        if self._left_out:
            some, more = ", ".join(self._left_out[:3]), len(self._left_out) - 3
            some += f" and {more} more" if more > 0 else ""
            said = [*said, f"left out, because it cannot be read: {some}. See `dibs doctor`."]
        return said

    def close(self) -> None:
        if self._opened is not None:
            self._opened.store.close()
            self._opened = None


# What is no command of the rules, by the first word of its verb. A store alone knows no callers and no runs.
_QUERIES: dict[str, Callable[[EmbeddedTransport, Ask, str], Reply]] = {
    "list": EmbeddedTransport._list,
    "history": EmbeddedTransport._history,
    "overdue": EmbeddedTransport._overdue,
    "events": EmbeddedTransport._events,
    "waiters": EmbeddedTransport._waiters,
    "sessions": EmbeddedTransport._sessions,
    "agents": EmbeddedTransport._agents,
    "rights": EmbeddedTransport._rights,
    **dict.fromkeys(("token", "tokens"), EmbeddedTransport._tokens),
    **dict.fromkeys(("webhook", "webhooks"), EmbeddedTransport._webhooks),
    **dict.fromkeys(("whoami", "run", "runs"), EmbeddedTransport._not_here),
}


def open_coordinator(url: str | None) -> Coordinator:
    """Open a store, with the one coordinator that this process has for it."""
    from dibs.engine.coordinator import Coordinator
    from dibs.stores.codec import NamesNoStore
    from dibs.stores.registry import default_url, open_store

    try:
        return Coordinator(open_store(default_url() if url is None else url))
    except NamesNoStore as error:
        raise InvalidInput(f"{error.details} A server is http://HOST:PORT, https://HOST or unix:///PATH.") from None


class SharedStore:
    """One open store for all threads of a process, with one coordinator; stores serialise their callers themselves. A
    forked child opens its own, and neither uses nor closes that of its parent."""

    def __init__(self, url: str | None) -> None:
        from weakref import finalize  # used by programs, not by the command

        self._url = url
        self._lock = allocate_lock()
        self._coordinator: Coordinator | None = None
        self._pid = os.getpid()
        self._opened: list[Store] = []
        finalize(self, close_all, self._opened, self._pid).atexit = False
        self._left_alone: list[Store] = []  # dropping the parent's store would close it

    def coordinator(self) -> Coordinator:
        if os.getpid() != self._pid:
            if self._url == "memory://" and self._coordinator is not None:
                raise StoreUnavailable("A memory:// store cannot be used after a fork: the child would have a copy.")
            self._left_alone += self._opened
            self._opened.clear()
            self._pid, self._coordinator, self._lock = os.getpid(), None, allocate_lock()
        with self._lock:
            if self._coordinator is None:
                self._coordinator = open_coordinator(self._url)
                self._opened.append(self._coordinator.store)
            return self._coordinator

    def close(self) -> None:
        with self._lock:
            if self._coordinator is not None and os.getpid() == self._pid:
                self._coordinator.store.close()
                self._coordinator = None
                self._opened.clear()


def _with_ends_written(coordinator: Coordinator, command: Any, outcome: Outcome) -> Outcome:
    """Write down the ends of a job's holds, if the store can be written: without a server nobody else does."""
    if not isinstance(outcome, Status) or all(outcome.now_ms < each.expires_ms for each in outcome.lock.holders):
        return outcome
    try:
        coordinator.one(Sweep(key=lock_key(command.ns, command.name)))
    except DibsError:
        return outcome
    return coordinator.one(command)
