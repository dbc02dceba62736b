"""Calls to etcd over gRPC: connections kept alive, members tried in turn, every call bounded in time.

    reading   A read is repeated at the next member until an answer comes or ETCD_MS_MAX is over.
    writing   A write is sent once. It is repeated only if nothing can have been written: no connection was made, or
              etcd refused before it proposed anything to the cluster.

A member that did not answer is not asked first the next time. A new token is requested when the old one has expired.

**The data may be other data than before**: a snapshot was put back. Its revisions repeat, so what is remembered of the
old data would be taken for what it holds now. etcd must be stopped for that, and every connection breaks. So each new
connection is asked for the place in the history that is known: the random name of the last commit, at the last revision
that was seen. A history that went on from the snapshot has another name there, or has not come so far. Then another
**epoch** begins for this process: versions of another one, and writes that were made in one, are conflicts.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.core.limits import ETCD_MS_MAX, ETCD_TRY_MS_MAX
from dibs.stores.etcd import messages
from dibs.stores.etcd.errors import LostConnection, Refusal, translated
from dibs.stores.etcd.http2 import EtcdConnection
from dibs.stores.etcd.location import EtcdLocation, shown_endpoint
from dibs.stores.etcd.messages import KeyValue, RangeAnswer, TxnAnswer
from dibs.stores.port import Conflict

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
Answer = Callable[[bytes], T]
SeenCommit = tuple[int, bytes, int, bytes]  # a revision; key, revision and value of the last commit's name then
Call = tuple[str, bytes, str | None, int]  # path, request, token, how long it may take

RANGE, TXN, COMPACT = "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Compact"
WATCH, STATUS = "/etcdserverpb.Watch/Watch", "/etcdserverpb.Maintenance/Status"
LEASE_GRANT, LEASE_REVOKE = "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke"
LEASE_LEFT, AUTHENTICATE = "/etcdserverpb.Lease/LeaseTimeToLive", "/etcdserverpb.Auth/Authenticate"

PAUSE_S = 0.05
IDLE_MAX = 16


class EtcdClient:
    """For any thread. Raises errors of dibs, and Refusal for errors that the caller wants to handle."""

    def __init__(self, location: EtcdLocation) -> None:
        self.location = location
        self._tls = _tls(location) if location.tls else None
        self._lock = allocate_lock()
        self._idle: list[EtcdConnection] = []
        self._first = 0  # which endpoint is asked first
        self._token: str | None = None
        self._closed = False
        self.epoch = 0
        self.on_put_back: Callable[[], None] = lambda: None
        self._known: SeenCommit | None = None

    def range(self, key: bytes, end: bytes = b"", **options: Any) -> list[KeyValue]:
        return self.read(RANGE, messages.range_request(key, end, **options), RangeAnswer).kvs

    def txn(self, success: Sequence[bytes], compare: Sequence[bytes] = (), *, refusals: bool = False) -> TxnAnswer:
        """A transaction that changes nothing, or may be repeated."""
        return self.read(TXN, messages.txn(success, compare), TxnAnswer, refusals=refusals)

    def write(self, request: bytes, epoch: int | None = None) -> TxnAnswer:
        """A transaction that must not be repeated. StoreUnavailable(unknown=True) if it may have been executed. Raises
        Conflict if it was made in another epoch."""
        epoch = self.epoch if epoch is None else epoch
        return self._call(TXN, request, TxnAnswer, writes=True, refusals=False, epoch=epoch)

    def read(self, path: str, request: bytes, answer: Answer[T], *, refusals: bool = False) -> T:
        """A call that changes nothing, or may be repeated. `answer` reads what etcd says."""
        return self._call(path, request, answer, writes=False, refusals=refusals)

    def _call(
        self, path: str, request: bytes, answer: Answer[T], *, writes: bool, refusals: bool, epoch: int | None = None
    ) -> T:
        began_ms = steady_ms()
        failed = 0
        while True:
            endpoint = self.location.endpoints[self._first]
            left_ms = max(1, began_ms + ETCD_MS_MAX - steady_ms())
            try_ms = min(left_ms, ETCD_TRY_MS_MAX)
            try:
                token = self._authenticated(endpoint, try_ms)
                # A write may use all the time, because it cannot be tried elsewhere.
                call = path, request, token, left_ms if writes else try_ms
                return self._asked(endpoint, try_ms, call, answer, epoch)
            except (LostConnection, Refusal) as error:
                failed += 1
                # Unreachable members get less time than members that answer.
                ends_ms = began_ms + (ETCD_TRY_MS_MAX if _is_unsent(error) else ETCD_MS_MAX)
                by_tls = isinstance(error, LostConnection) and error.lasts and failed >= len(self.location.endpoints)
                if self._is_final(error, writes) or by_tls or steady_ms() >= ends_ms:
                    if refusals and isinstance(error, Refusal):
                        raise
                    where = self.location.shown() if _is_unsent(error) else shown_endpoint(endpoint)
                    raise translated(error, where, writes=writes) from None
                self.failed(endpoint, error)
            # Try each member once without a pause; then pause, so that they can elect a leader.
            if failed >= len(self.location.endpoints):
                time.sleep(PAUSE_S)

    def _is_final(self, error: LostConnection | Refusal, writes: bool) -> bool:
        if isinstance(error, LostConnection):
            return writes and error.sent
        if error.wants_new_token:
            return self.location.user is None
        return not error.is_passing or (writes and not error.is_before_write)

    def _asked(
        self, endpoint: tuple[str, int], connect_ms: int, call: Call, answer: Answer[T], epoch: int | None = None
    ) -> T:
        """One call on a connection that is kept for the next, unless it was lost. Not in another epoch than `epoch`."""
        connection = self._connection(endpoint, connect_ms, call)
        if epoch not in (None, self.epoch):
            self._keep(connection)
            raise Conflict
        try:
            found = answer(connection.request(*call))
        except Refusal:
            self._keep(connection)
            raise
        except messages.NO_MESSAGE:
            connection.close()
            raise LostConnection("its answer is not etcd's", sent=True) from None
        self._keep(connection)
        return found

    def _connection(self, endpoint: tuple[str, int], timeout_ms: int, call: Call) -> EtcdConnection:
        while True:
            with self._lock:
                found = next((each for each in reversed(self._idle) if each.endpoint == endpoint), None)
                if found is not None:
                    self._idle.remove(found)
            if found is None:
                made = EtcdConnection(endpoint, self._tls, timeout_ms)
                if call[0] != AUTHENTICATE:
                    self._place(made, call)
                return made
            if found.is_usable():
                return found
            found.close()

    def saw(self, seen: SeenCommit) -> None:
        known = self._known
        if known is None or known[0] < seen[0]:
            self._known = seen

    def _place(self, made: EtcdConnection, call: Call) -> None:
        """Find out whether a new connection leads to the data that is known. Raises LostConnection and Refusal."""
        epoch, known = self.epoch, self._known
        if known is None:
            return
        revision, key, written, name = known
        request = messages.range_request(key, revision=revision)
        try:
            found = RangeAnswer(made.request(RANGE, request, *call[2:])).first
            is_same = found is not None and (found.mod_revision, found.value) == (written, name)
            is_sure = True
        except Refusal as error:
            if not error.is_compacted:
                made.close()
                if error.is_before_write:
                    raise
                raise LostConnection(error.message, sent=False) from None  # the call itself was not sent
            # It may be the same data. What is remembered is read again, at no great cost.
            is_same, is_sure = False, error.is_of_the_future
        except (LostConnection, *messages.NO_MESSAGE) as error:
            made.close()
            raise LostConnection(getattr(error, "why", "its answer is not etcd's"), sent=False) from None
        if is_same:
            return
        with self._lock:
            if self.epoch != epoch:
                return  # another thread has noticed
            if is_sure:
                self.on_put_back()  # first: nobody writes in the new epoch before the floor is raised
            self.epoch, self._known = epoch + 1, None

    def _keep(self, connection: EtcdConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _authenticated(self, endpoint: tuple[str, int], timeout_ms: int) -> str | None:
        if self.location.user is None or self._token is not None:
            return self._token
        who = messages.message(self.location.user.encode(), self.location.password.encode())
        try:
            call = AUTHENTICATE, who, None, timeout_ms
            self._token = self._asked(endpoint, timeout_ms, call, messages.token)
        except LostConnection as error:
            raise LostConnection(
                error.why, sent=False, fix=error.fix, lasts=error.lasts
            ) from None  # the call itself was not sent
        return self._token

    def stream(self, path: str, requests: Sequence[bytes], silence_ms: int) -> tuple[EtcdConnection, Iterator[bytes]]:
        """A separate connection, and the messages that it receives. Raises LostConnection or Refusal."""
        endpoint = self.location.endpoints[self._first]
        try:
            token = self._authenticated(endpoint, ETCD_TRY_MS_MAX)
            connection = EtcdConnection(endpoint, self._tls, ETCD_TRY_MS_MAX)
        except LostConnection as error:
            self.failed(endpoint, error)
            raise
        return connection, connection.stream(path, requests, token, silence_ms)

    def failed(self, endpoint: tuple[str, int], error: Exception) -> None:
        """Before the next try: forget a token that is over, or ask the next member first, unless another thread did."""
        if isinstance(error, Refusal) and error.wants_new_token:
            self._token = None
            return
        with self._lock:
            if self.location.endpoints[self._first] == endpoint:
                self._first = (self._first + 1) % len(self.location.endpoints)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()


def _is_unsent(error: LostConnection | Refusal) -> bool:
    return isinstance(error, LostConnection) and not error.sent


def _tls(location: EtcdLocation) -> ssl.SSLContext:
    import ssl

    files = f"ca={location.ca}"
    try:
        context = ssl.create_default_context(cafile=location.ca)
        if location.cert is not None:
            files = f"cert={location.cert} with key={location.key}"
            context.load_cert_chain(location.cert, location.key)
    except ssl.SSLError as error:
        why = (error.reason or "not PEM").replace("_", " ").lower()
        raise InvalidInput(f"{files} in the etcd URL cannot be used: {why}. Name files in PEM format.") from None
    except OSError as error:
        raise InvalidInput(f"{files} in the etcd URL cannot be read: {error.strerror}.") from None
    context.set_alpn_protocols(["h2"])
    return context
