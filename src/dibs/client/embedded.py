"""dibs without a server: the rules and the store run in this process, and give the documents of a server.

It imports stores and the engine when a store is opened, so that requests to a server need not import them.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from dibs.base.cheap import signal
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, StoreUnavailable
from dibs.client.naming import names_of, namespace_for_names, told
from dibs.core.commands import EndSession, Leave, Release
from dibs.core.identity import LOCAL
from dibs.core.keys import session_key, ticket_key
from dibs.core.limits import EMBEDDED_POLL_MS, TICKET_KEEP_MS
from dibs.core.outcomes import Granted, GrantedAll, Held, Left, Queued, Refused
from dibs.core.records import SessionRecord
from dibs.wire.documents import reply_for_error, reply_to
from dibs.wire.requests import command_for, namespace_for, shape, wait_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from dibs.client.door import Streamed
    from dibs.client.naming import Namespaces
    from dibs.core.commands import Command
    from dibs.core.identity import Caller
    from dibs.core.outcomes import Outcome
    from dibs.engine.coordinator import Coordinator
    from dibs.stores.port import Store
    from dibs.wire.documents import Reply

    Document = dict[str, Any]

# Claiming without a server: finding dead owners, and waiting in line.
#
# A waiter watches only its own ticket. The process that hands it the job, or drops it from the line, deletes the
# ticket, and the store wakes the waiter. Only the first few in line look for expired holds and dead owners, each a
# little later than the one before, in case those before have died. Asking again writes nothing unless something
# changed or the place must be kept.

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def claim(coordinator: Coordinator, command: Any, wait_ms: int) -> Outcome:
    """The outcome of a claim, after waiting in line for up to `wait_ms` if it waits. An interrupt gives up the claim
    or the place. It can come only while the store is watched, never during a request, so it is always known what was
    written."""
    if not wait_ms:
        shield = _Shield()
        try:
            return _ask(coordinator, command)
        finally:
            shield.down()
    until_ms = steady_ms() + wait_ms
    poll_ms = max(EMBEDDED_POLL_MS, coordinator.store.capabilities.poll_ms)
    outcome: Outcome | None = None
    shield = _Shield()
    try:
        while True:
            outcome = _ask(coordinator, command)
            left_ms = until_ms - steady_ms()
            if not isinstance(outcome, Queued) or left_ms <= 0:
                shield.down()
                return outcome
            command = command.replace(ticket=outcome.ticket, ticket_id=outcome.ticket_id)
            shield.down()
            key = ticket_key(outcome.ns, outcome.name, outcome.ticket)
            coordinator.store.until_gone(key, min(left_ms, _patience_ms(outcome, poll_ms)))
            shield.up()
    except KeyboardInterrupt:
        give_up(coordinator, command, outcome)
        raise
    finally:
        shield.down()


class _Shield:
    """Blocks the signals that end a process. It does not import `signal`, which costs more than a claim."""

    def __init__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def up(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def down(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def give_up(coordinator: Coordinator, command: Any, outcome: Outcome | None) -> None:
    """Give back what `outcome` granted: the job, the place in line, or the job that was handed over a moment ago. What
    another ask was told of, too, stays."""
    ns, principal, seat = command.ns, command.principal, command.fresh_lease_id
    grants = outcome.grants if isinstance(outcome, GrantedAll) else (outcome,)
    got = [(each.name, each.lease.lease_id) for each in grants if isinstance(each, Granted)]
    if isinstance(outcome, Queued):
        number, ticket_id = outcome.ticket, outcome.ticket_id
        left = coordinator.one(
            Leave(
                ns=ns, name=outcome.name, principal=principal, ticket=number, ticket_id=ticket_id, seat=seat
            )
        )
        if isinstance(left, Left) and not left.was_in:
            got = [(name, ticket_id) for name in getattr(command, "names", None) or (command.name,)]
    for name, lease_id in got:
        coordinator.one(
            Release(ns=ns, name=name, principal=principal, lease_id=lease_id, uncounted=True, seat=seat)
        )


def _ask(coordinator: Coordinator, command: Command) -> Outcome:
    """Claim. If an owner that blocks the claim is dead, which every process on this machine can see, end its session
    and claim again."""
    outcome = coordinator.one(command)
    if _end_dead_session(coordinator, outcome):
        return coordinator.one(command)
    return outcome


def _end_dead_session(coordinator: Coordinator, outcome: Outcome) -> bool:
    answers = outcome.outcomes if isinstance(outcome, Refused) else (outcome,)
    blockers = [b for each in answers if isinstance(each, Held | Queued) for b in each.blockers]
    sessions = {blocker.holder.session for blocker in blockers if blocker.holder.session is not None}
    if not sessions:
        return False
    from dibs.system.session_mark import is_gone  # imported only if a session blocks the claim

    found = coordinator.store.read([session_key(session) for session in sessions]).records.values()
    dead = [
        each.record.id
        for each in found
        if isinstance(each.record, SessionRecord) and is_gone(each.record.process)
    ]
    for session in dead:
        coordinator.one(EndSession(session=session, principal=None, dead=True))
    return bool(dead)


def _patience_ms(queued: Queued, poll_ms: int) -> int:
    """How long to wait for a wake-up at most: until the blocking hold may have ended, and well before the place is
    lost. Places ahead look first."""
    ends_ms = [blocker.holder.expires_ms - queued.now_ms for blocker in queued.blockers]
    if queued.delay_until_ms > queued.now_ms:
        ends_ms.append(queued.delay_until_ms - queued.now_ms)
    look_ms = max(1, min([*ends_ms, poll_ms])) + (queued.position - 1) * poll_ms
    return min(look_ms, TICKET_KEEP_MS)


def default_store_url() -> str:
    """The URL of the default store."""
    from dibs.stores.registry import default_url

    return default_url()


def process_mark(pid: int) -> str | None:
    """A permanent mark of a process of this machine; None if there is no such process, or it cannot be seen."""
    from dibs.system.session_mark import process_mark as mark

    return mark(pid)


def guarded_mark(token: str, pids: Sequence[int]) -> str | None:
    """A permanent mark of a command: its guards, and all processes with its token. None if it cannot be made."""
    from dibs.system.session_mark import guarded_mark as mark

    return mark(token, pids)


def guarded_env(env: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment variable by which all processes of a command can be found."""
    from dibs.system.session_mark import VARIABLE, with_token

    return {VARIABLE: with_token(env.get(VARIABLE), token)}


def marked(token: str) -> list[int]:
    """The processes with a command's token, as far as they can be seen."""
    from dibs.system.session_mark import marked as found

    return found(token)


def lineage(pid: int) -> list[str]:
    """The marks of a process and its ancestors, nearest first. Empty if they cannot be seen."""
    from dibs.system.session_mark import lineage as marks

    return marks(pid)


def is_gone(mark: str) -> bool:
    """Whether the process of a mark has certainly ended."""
    from dibs.system.session_mark import is_gone as gone

    return gone(mark)


CLAIMS = ("acquire", "acquire-any", "acquire-all")


class EmbeddedDoor:
    """A door to a store. `open_it` is called on first use, so that a failure to open the store is a reply, too."""

    def __init__(
        self,
        open_it: Callable[[], Store],
        namespace: str | Namespaces | None = None,
        caller: Caller = LOCAL,
    ) -> None:
        self._open = open_it
        self._namespaces = namespace
        self._caller = caller
        self._opened: Store | None = None
        self._seen_seq: int | None = None

    @classmethod
    def at(cls, url: str | None, namespace: str | None = None) -> EmbeddedDoor:
        """The store at `url`; None is the default one."""

        def open_it() -> Store:
            from dibs.stores.codec import NamesNoStore
            from dibs.stores.registry import open_store

            try:
                return open_store(default_store_url() if url is None else url)
            except NamesNoStore as error:
                server = "A server is http://HOST:PORT, https://HOST or unix:///PATH."
                raise InvalidInput(f"{error.details} {server}") from None

        return cls(open_it, namespace)

    def store(self) -> Store:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def call(self, verb: str, name: str, document: Document) -> Reply:
        names = names_of(verb, name, document)

        def answer() -> Reply:
            from dibs.engine.coordinator import Coordinator

            # The server's order of checks: shape, caller, meaning. The store is not opened for an invalid request.
            shaped = shape(verb, document)
            command = command_for(verb, self.namespace(names), name, shaped, self._caller)
            coordinator = Coordinator(self.store())
            if verb in CLAIMS:
                from dibs.client.embedded import claim

                return reply_to(verb, claim(coordinator, command, wait_ms(shaped)))
            outcome = coordinator.one(command)
            if verb == "inspect":
                outcome = _settled(coordinator, command, outcome)
            return reply_to(verb, outcome)

        return told(self._namespaces, answered(answer), names)

    def namespace(self, names: tuple[object, ...] = ()) -> str:
        """The namespace of a request about these names."""
        return namespace_for(self._caller, namespace_for_names(self._namespaces, names))

    def end_dead_session(self, session: str) -> None:
        """End a session whose worker is dead: its jobs are lost, not released. Raises the store's errors."""
        from dibs.core.commands import EndSession
        from dibs.engine.coordinator import Coordinator

        Coordinator(self.store()).one(EndSession(session=session, principal=None, dead=True))

    def claimed(self, prefix: str, after: str, limit: int, states: tuple[str, ...] = ("held",)) -> Reply:
        def answer() -> Reply:
            from dibs.engine.queries import claimed
            from dibs.wire.lease_documents import list_document

            page = claimed(self.store(), self.namespace((prefix,)), prefix, after, limit, states)
            return _ok(list_document(page.locks, page.now_ms, prefix, page.next_after, whole=not after))

        return told(self._namespaces, answered(answer), (prefix,))

    def history(self, name: str, limit: int) -> Reply:
        def answer() -> Reply:
            from dibs.core.names import check_name
            from dibs.wire.lease_documents import history_document

            job = (self.namespace((name,)), check_name(name))
            events = self.store().events(0, limit, job, newest=True)
            return _ok(history_document(name, events))

        return told(self._namespaces, answered(answer), (name,))

    def events(
        self, prefix: str, name: str | None, after: int | None, limit: int, since_ms: int = 0
    ) -> Reply:
        about = (prefix if name is None else name,)

        def answer() -> Reply:
            from dibs.core.names import check_name
            from dibs.engine.event_log import EventFilter, collect, position_at
            from dibs.wire.event_frames import events_document

            only = None if name is None else check_name(name)
            wanted = EventFilter(ns=self.namespace(about), prefix=prefix, name=only)
            begin = after
            if begin is None and since_ms:
                begin = position_at(self.store(), self.store().read(()).now_ms - since_ms)
            page = collect(self.store(), wanted, begin, limit)
            return _ok(events_document(begin, page.events, page.upto, page.oldest))

        return told(self._namespaces, answered(answer), about)

    def await_events(self, prefix: str, name: str | None, after: int, timeout_ms: int) -> Iterator[Streamed]:
        """Only waits: whatever comes is read with `events`, which costs a store of this machine nothing."""
        self.store().watch(after, timeout_ms)
        return iter(())

    def sessions(self) -> Reply:
        def answer() -> Reply:
            from dibs.engine.queries import open_sessions
            from dibs.wire.lease_documents import session_document

            return _ok({"sessions": [session_document(state) for state in open_sessions(self.store(), None)]})

        return answered(answer)

    def ask_tokens(self, verb: str, name: str, wanted_id: str, document: Document) -> Reply:
        """A request about the tokens that servers on this store accept."""

        def answer() -> Reply:
            from dibs.engine.credentials import CredentialAdmin

            return CredentialAdmin(self.store(), self._caller).ask(verb, name, wanted_id, document)

        return answered(answer)

    def rights(self, after: int, limit: int) -> Reply:
        """What changed about who may do what."""

        def answer() -> Reply:
            from dibs.engine.rights_log import rights_page

            return Reply(status=200, body=rights_page(self.store(), None, after, limit))

        return answered(answer)

    def ask_webhooks(self, verb: str, webhook_id: str, document: Document) -> Reply:
        """A request about the webhooks that servers on this store deliver to."""

        def answer() -> Reply:
            from dibs.engine.webhooks.admin import WebhookAdmin

            return WebhookAdmin(self.store(), self._caller, self.namespace()).ask(verb, webhook_id, document)

        return answered(answer)

    def news(self, timeout_ms: int) -> None:
        store = self.store()
        if self._seen_seq is None or store.watch(self._seen_seq, timeout_ms):
            newest = store.events(0, 1, newest=True)
            self._seen_seq = newest[-1].seq if newest else 0

    def notices(self) -> list[str]:
        """Notices of the store about its location."""
        return [] if self._opened is None else self._opened.notices()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class SharedStore:
    """One open store for all threads of a process; stores serialise their callers themselves. A forked child opens its
    own, and neither uses nor closes that of its parent."""

    def __init__(self, url: str | None) -> None:
        from weakref import finalize  # used by programs, not by the command

        self._url = url
        self._lock = allocate_lock()
        self._store: Store | None = None
        self._pid = os.getpid()
        self._opened: list[Store] = []
        finalize(self, _close_all, self._opened, self._pid).atexit = False
        self._left_alone: list[Store] = []  # dropping the parent's store would close it

    def get(self) -> Store:
        if os.getpid() != self._pid:
            if self._url == "memory://" and self._store is not None:
                raise StoreUnavailable(
                    "A memory:// store cannot be used after a fork: the child would have a copy."
                )
            self._left_alone += self._opened
            self._opened.clear()
            self._pid, self._store, self._lock = os.getpid(), None, allocate_lock()
        with self._lock:
            if self._store is None:
                self._store = EmbeddedDoor.at(self._url).store()
                self._opened.append(self._store)
            return self._store

    def close(self) -> None:
        with self._lock:
            if self._store is not None and os.getpid() == self._pid:
                self._store.close()
                self._store = None
                self._opened.clear()


def _close_all(stores: list[Store], pid: int) -> None:
    """Close the stores of a client that was dropped without being closed. In a forked child they are the parent's."""
    if os.getpid() == pid:
        for store in stores:
            store.close()


def _ok(body: Document) -> Reply:
    from dibs.wire.documents import Reply

    return Reply(status=200, body=body)


def answered(answer: Callable[[], Reply]) -> Reply:
    """Known errors become replies. An unknown error is a fault, and is raised with its traceback."""
    try:
        return answer()
    except DibsError as error:
        return reply_for_error(error)


def _settled(coordinator: Coordinator, command: Any, outcome: Outcome) -> Outcome:
    """The state of a job, with the ends of its holds written down: without a server nobody else does it. On a store
    that cannot be written it stays as it is."""
    from dibs.core.commands import Sweep
    from dibs.core.keys import lock_key
    from dibs.core.outcomes import Status

    assert isinstance(outcome, Status)  # that is what the command gives
    if all(outcome.now_ms < each.expires_ms for each in outcome.lock.holders):
        return outcome
    try:
        coordinator.one(Sweep(key=lock_key(command.ns, command.name)))
    except DibsError:
        return outcome
    return coordinator.one(command)
