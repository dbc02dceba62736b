"""dibs without a server: the rules and the store in this process, with the documents a server would send.

The only client module that may import stores and the service, and it does so when a store is opened: talking to a
server must not pay for them.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from dibs.core.identity import LOCAL
from dibs.errors import DibsError, HookRefused, InvalidInput, StoreUnavailable
from dibs.repository.namespace import names_of, namespace_for_names, told
from dibs.wire.documents import reply_for_error, reply_to
from dibs.wire.inspect import history_document, list_document
from dibs.wire.requests import command_for, namespace_for, shape, wait_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from dibs.compat.action_llama.runs import Run
    from dibs.core.identity import Caller
    from dibs.repository.namespace import Namespaces
    from dibs.stores.port import Store
    from dibs.wire.documents import Reply

    Document = dict[str, Any]


def default_store_url() -> str:
    """Where claims are kept when nobody says otherwise."""
    from dibs.stores.registry import default_url

    return default_url()


def process_mark(pid: int) -> str | None:
    """What names a process of this machine for good, or None when there is no such process, or no telling."""
    from dibs.service.processes import process_mark as mark

    return mark(pid)


def guarded_mark(token: str, pids: Sequence[int]) -> str | None:
    """What names a command for good: those who guard it, and all that carries its token. None where there is no
    telling."""
    from dibs.service.processes import guarded_mark as mark

    return mark(token, pids)


def guarded_env(env: Mapping[str, str], token: str) -> dict[str, str]:
    """The variable by which everything that a command starts can be found."""
    from dibs.service.descendants import VARIABLE, with_token

    return {VARIABLE: with_token(env.get(VARIABLE), token)}


def marked(token: str) -> list[int]:
    """The processes that carry a command's token, as far as we may look."""
    from dibs.service.descendants import marked as found

    return found(token)


def lineage(pid: int) -> list[str]:
    """The marks of a process and of those it descends from, nearest first. Empty where the system does not tell."""
    from dibs.service.processes import lineage as marks

    return marks(pid)


def is_gone(mark: str) -> bool:
    """Whether the process that a mark names has surely ended."""
    from dibs.service.processes import is_gone as gone

    return gone(mark)


CLAIMS = ("acquire", "acquire-any", "acquire-all")


class EmbeddedDoor:
    """A door to a store. `open_it` is called on first use, so that a store that cannot be opened is a reply as well."""

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
            from dibs.stores.registry import open_store

            try:
                return open_store(default_store_url() if url is None else url)
            except InvalidInput as error:
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
            from dibs.service.coordinator import Coordinator

            # In the server's order of checks: shape, caller, meaning; and nothing is opened for what cannot be.
            shaped = shape(verb, document)
            command = command_for(verb, self._namespace(names), name, shaped, self._caller)
            coordinator = Coordinator(self.store())
            if verb in CLAIMS:
                from dibs.client.embedded_claim import claim

                return reply_to(verb, claim(coordinator, command, wait_ms(shaped)))
            return reply_to(verb, coordinator.one(command))

        return told(self._namespaces, _reply(answer), names)

    def _namespace(self, names: tuple[object, ...] = ()) -> str:
        return namespace_for(self._caller, namespace_for_names(self._namespaces, names))

    def end_dead_session(self, session: str) -> None:
        """End a session whose worker is dead: what it held is lost, not released. Raises what the store meets."""
        from dibs.core.commands import EndSession
        from dibs.service.coordinator import Coordinator

        Coordinator(self.store()).one(EndSession(session=session, principal=None, dead=True))

    def claimed(self, prefix: str, after: str, limit: int, states: tuple[str, ...] = ("held",)) -> Reply:
        def answer() -> Reply:
            from dibs.service.queries import claimed

            page = claimed(self.store(), self._namespace((prefix,)), prefix, after, limit, states)
            return _ok(list_document(page.locks, page.now_ms, prefix, page.next_after, whole=not after))

        return told(self._namespaces, _reply(answer), (prefix,))

    def history(self, name: str, limit: int) -> Reply:
        def answer() -> Reply:
            from dibs.core.names import check_name

            job = (self._namespace((name,)), check_name(name))
            events = self.store().events(0, limit, job, newest=True)
            return _ok(history_document(name, events))

        return told(self._namespaces, _reply(answer), (name,))

    def sessions(self) -> Reply:
        def answer() -> Reply:
            from dibs.service.queries import open_sessions
            from dibs.wire.documents import session_document

            return _ok({"sessions": [session_document(state) for state in open_sessions(self.store(), None)]})

        return _reply(answer)

    def news(self, timeout_ms: int) -> None:
        store = self.store()
        if self._seen_seq is None or store.watch(self._seen_seq, timeout_ms):
            newest = store.events(0, 1, newest=True)
            self._seen_seq = newest[-1].seq if newest else 0

    def as_run(self, secret: str, *, audited: bool = True) -> tuple[Run, EmbeddedDoor] | None:
        """The run that a secret stands for, and the same store as that run sees it. None: there is none, or it is over.
        `audited`: what it asks is in the history.

        Raises what the store meets."""
        from dibs.compat.action_llama.runs import run_of, session_of
        from dibs.core.commands import KeepSession
        from dibs.service.coordinator import Coordinator
        from dibs.service.queries import inspect_one

        run = run_of(inspect_one(self.store(), session_of(secret)))
        if run is None:
            return None
        if run.stale:
            Coordinator(self.store()).one(KeepSession(session=run.session, principal=run.caller.principal))
        return run, EmbeddedDoor(self.store, run.namespace, run.caller.replace(audited=audited))

    def open_run(self, document: Document) -> Reply:
        """Begin a run; the reply holds its secret. What a server does for POST /gateway/runs."""

        def answer() -> Reply:
            from dibs.compat.action_llama.runs import opened, opening
            from dibs.service.coordinator import Coordinator
            from dibs.wire.documents import Reply

            command, secret = opening(self._namespace(), document, LOCAL)
            outcome = Coordinator(self.store()).one(command)
            return Reply(status=201, body=opened(command, outcome, secret))

        return _reply(answer)

    def runs(self) -> Reply:
        def answer() -> Reply:
            from dibs.compat.action_llama.runs import principal_of, run_document
            from dibs.service.queries import open_sessions

            principal = principal_of(self._namespace())
            return _ok({"runs": [run_document(state) for state in open_sessions(self.store(), principal)]})

        return _reply(answer)

    def end_runs(self, holder: str) -> Reply:
        """End every run of `holder` and free what they held."""

        def answer() -> Reply:
            from dibs.compat.action_llama.runs import ended, principal_of
            from dibs.core.commands import EndSession
            from dibs.service.coordinator import Coordinator
            from dibs.service.queries import open_sessions

            ns = self._namespace()
            found = open_sessions(self.store(), principal_of(ns))
            found = [state for state in found if state.session.owner == holder]
            for state in found:
                end = EndSession(session=state.session.id, principal=state.session.principal)
                Coordinator(self.store()).one(end)
            return ended(ns, holder, found)

        return _reply(answer)

    def sweep(self) -> Document:
        """Do now what is due on any job: expiries become events, long idle records are forgotten. Then let the store
        clear away what it keeps for its own sake."""
        from dibs.core.commands import Sweep
        from dibs.core.limits import SWEEP_BATCH_MAX
        from dibs.service.coordinator import Coordinator
        from dibs.stores.port import maintenance_of

        coordinator = Coordinator(self.store())
        swept: Document = {"jobs": 0, "expired": 0, "forgotten": 0}
        seen: set[str] = set()
        while True:
            # A lease with outage credit may stay due for the store and not for the rules: once around is enough.
            keys = self.store().due(SWEEP_BATCH_MAX).keys
            if seen.issuperset(keys):
                return swept | maintenance_of(self.store()).tidy()
            seen.update(keys)
            for outcome in coordinator.run([Sweep(key=key) for key in keys]):
                if isinstance(outcome, BaseException):
                    raise outcome
                swept["jobs"] += 1
                swept["expired"] += getattr(outcome, "expired", 0)
                swept["forgotten"] += getattr(outcome, "forgotten", False)

    def facts(self) -> Document:
        """What a person who looks after the store wants to know. Opens it, and makes it if it is not there."""
        from dibs.stores.port import maintenance_of

        store = self.store()
        return {
            "kind": store.capabilities.name,
            "clock": store.capabilities.clock,
            "format": _format_of(store.capabilities.name),
            "path": getattr(store, "path", None),
            "now_ms": store.read(()).now_ms,
            "size_bytes": maintenance_of(store).size_bytes(),
        }

    def git_push(self, name: str, document: Document, branch: str | None, folder: str) -> Reply:
        """Renew a claim that is kept at a git remote, and push a branch there, in one step. Raises HookRefused."""

        def answer() -> Reply:
            from dibs.client.branches import push_with_claim
            from dibs.core.commands import Renew

            ns = self._namespace((name,))
            command = command_for("renew", ns, name, shape("renew", document), LOCAL)
            assert isinstance(command, Renew)  # that is what the verb makes
            outcome, pushed = push_with_claim(self.store(), command, branch, folder)
            reply = reply_to("renew", outcome)
            return reply if reply.status >= 400 else _ok((reply.body or {}) | {"pushed": pushed})

        try:
            return answer()
        except HookRefused:
            raise
        except DibsError as error:
            return reply_for_error(error)

    def probe(self) -> list[Document]:
        """What the store finds out about its place by trying."""
        from dibs.stores.port import maintenance_of

        return maintenance_of(self.store()).probe()

    def notices(self) -> list[str]:
        """What the store noticed about its place while it was used."""
        return [] if self._opened is None else self._opened.notices()

    def holds_anything(self) -> bool:
        """Whether any job of any namespace is held right now."""
        from dibs.core.records import LOCK_PREFIX, LockRecord

        after = ""
        while page := self.store().scan(LOCK_PREFIX, after, 1_000, live=True):
            now_ms = self.store().read(()).now_ms
            for _, found in page:
                held = found.record.holders if isinstance(found.record, LockRecord) else ()
                if any(each.expires_ms > now_ms or not each.ttl_ms for each in held):
                    return True
            after = page[-1][0]
        return False

    def raise_floor(self, floor: int) -> int:
        """The floor under all fencing tokens from now on. Raises what the store meets."""
        from dibs.core.commands import RaiseFloor
        from dibs.core.outcomes import Raised
        from dibs.service.coordinator import Coordinator

        outcome = Coordinator(self.store()).one(RaiseFloor(floor=floor))
        assert isinstance(outcome, Raised)
        return outcome.floor

    def try_write(self) -> None:
        """Raise what a write would meet. No record is changed by it."""
        self.store().commit({}, {}, ())

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class SharedStore:
    """One opened store for all threads of a process: stores serialise their callers themselves.

    A forked child opens it anew. What the parent had open is neither used nor closed there."""

    def __init__(self, url: str | None) -> None:
        from weakref import finalize  # programs use this, the command does not

        self._url = url
        self._lock = allocate_lock()
        self._store: Store | None = None
        self._pid = os.getpid()
        self._opened: list[Store] = []
        finalize(self, _close_all, self._opened, self._pid).atexit = False
        self._left_alone: list[Store] = []  # dropping what a parent had open would close it

    def get(self) -> Store:
        if os.getpid() != self._pid:
            if self._url == "memory://" and self._store is not None:
                raise StoreUnavailable(
                    "A memory:// store does not cross a fork: the child would see a copy of it."
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
    """A client was dropped without being closed. In a forked child the stores are the parent's."""
    if os.getpid() == pid:
        for store in stores:
            store.close()


def _format_of(kind: str) -> int | None:
    """The version of the format that an opened store has: older ones were brought up to it, newer ones refused."""
    if kind != "sqlite":
        return None
    from dibs.stores.sqlite.fileformat import VERSION

    return VERSION


def _ok(body: Document) -> Reply:
    from dibs.wire.documents import Reply

    return Reply(status=200, body=body)


def _reply(answer: Callable[[], Reply]) -> Reply:
    """Errors we know are replies. What we do not know is a fault and must be seen as one, with its traceback."""
    try:
        return answer()
    except DibsError as error:
        return reply_for_error(error)
