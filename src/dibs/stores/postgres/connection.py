"""One connection to PostgreSQL, by libpq's non-blocking calls: every wait is ours, and is bounded.

psycopg's own cursors wait until the server answers, and a stopped server never does. There are no session settings:
behind pgbouncer the next statement may go to another backend. For the same reason a statement is prepared only if no
pooler is in between.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from psycopg import Error, pq

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.stores.codec import utf8

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

Row = tuple[bytes | None, ...]

# Values as PostgreSQL reads them in text: parameters and arrays of them.


def text(value: str) -> bytes:
    """A parameter. PostgreSQL has no NUL in text, and its library would silently cut the value off there."""
    if "\0" in value:
        raise InvalidInput("Text may not hold a NUL character.")
    return utf8(value)


def array(values: Iterable[str]) -> bytes:
    """A `text[]`."""
    quoted = [each.replace("\\", "\\\\").replace('"', '\\"') for each in values]
    return text('{"' + '","'.join(quoted) + '"}') if quoted else b"{}"


def numbers(values: Iterable[int | None]) -> bytes:
    """A `bigint[]` or `boolean[]`."""
    return b"{%b}" % ",".join(["NULL" if each is None else str(each) for each in values]).encode()


def number(value: int) -> bytes:
    return b"%d" % value


_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY)
_LATE = "no answer in time"
NOT_PREPARED = "26000"
PLAIN_TIMES = 4  # of a connection: to prepare a statement takes two round trips, and saves a part of each later one


class QueryRefused(Exception):
    """The server refused a statement of `user` and rolled it back; `sqlstate` says why. The connection can still be
    used. If a lock was not given in time, `holder` has it; `by_standby`: for a commit that waits for the standby."""

    def __init__(self, sqlstate: str, says: str, user: str) -> None:
        super().__init__(says)
        self.sqlstate = sqlstate
        self.user = user
        self.holder = ""
        self.by_standby = False


class LinkLost(Exception):
    """The connection failed or ended. `sent`: a statement was under way, and may have been executed."""

    def __init__(self, says: str, *, sent: bool, late: bool = False) -> None:
        super().__init__(says)
        self.sent = sent
        self.late = late


class LinkBehind(LinkLost):
    """A server lacks commits that were confirmed to this process. It must not be used."""


class PostgresConnection:
    """The constructor connects, or raises. One thread uses it at a time."""

    def __init__(self, conninfo: bytes, deadline_ms: int) -> None:
        self._pg: PGconn = pq.PGconn.connect_start(conninfo + _addresses(conninfo, deadline_ms))
        try:
            self._connect(deadline_ms)
        except BaseException:
            self._pg.finish()
            raise
        self._pg.nonblocking = 1
        self._poll = select.poll()  # for what comes from the server
        self._poll.register(self._pg.socket, select.POLLIN)
        self.server_version = self._pg.server_version
        self.user = self._pg.user.decode(errors="replace")
        version = (self._pg.parameter_status(b"server_version") or b"").decode()
        self._times: dict[bytes, int] = {}  # how often each was asked that is not prepared yet
        self._names: dict[bytes, bytes] = {}  # of prepared statements; empty: it is not to be prepared
        self.about = f"PostgreSQL {version}, database {self._pg.db.decode(errors='replace')}, role {self.user}"

    def _connect(self, deadline_ms: int) -> None:
        while True:
            if self._pg.status == pq.ConnStatus.BAD:
                raise LinkLost(self._says(), sent=False)
            step = self._pg.connect_poll()
            if step == pq.PollingStatus.OK:
                return
            if step == pq.PollingStatus.FAILED:
                raise LinkLost(self._says(), sent=False)
            wanted = select.POLLIN if step == pq.PollingStatus.READING else select.POLLOUT
            self._wait(wanted, deadline_ms, sent=False)

    @property
    def is_pooled(self) -> bool:
        """Return whether there is a pooler in between: then the backend is not the one that accepted the connection."""
        (row,) = self.query(b"SELECT pg_backend_pid()", (), steady_ms() + 5_000)
        return int(row[0] or 0) != self._pg.backend_pid

    @property
    def is_alive(self) -> bool:
        """False if the server has visibly closed it while it was idle. Sends nothing."""
        try:
            if not self._poll.poll(0):
                return True
            self._pg.consume_input()
            return self._pg.status == pq.ConnStatus.OK and not self._poll.poll(0)
        except Error:
            return False

    def query(self, sql: bytes, values: Sequence[bytes | None], deadline_ms: int) -> list[Row]:
        """The rows of one statement. Raises only QueryRefused or LinkLost."""
        return self._asked(lambda: self._pg.send_query_params(sql, values), deadline_ms)

    def repeat(self, sql: bytes, values: Sequence[bytes | None], deadline_ms: int) -> list[Row]:
        """Like `query`, for a statement that is asked often: the server keeps it parsed, unless a pooler is in between.
        A program that asks a few times does not pay for that."""
        name = self._names.get(sql)
        if name is None:
            times = self._times[sql] = self._times.get(sql, 0) + 1
            name = self._prepared(sql, deadline_ms) if times > PLAIN_TIMES else b""
        if not name:
            return self.query(sql, values, deadline_ms)
        try:
            return self._asked(lambda: self._pg.send_query_prepared(name, values), deadline_ms)
        except QueryRefused as refused:
            if refused.sqlstate != NOT_PREPARED:
                raise
        self._names[sql] = b""  # something in between gave us another session, or cleared ours
        return self.query(sql, values, deadline_ms)

    def _prepared(self, sql: bytes, deadline_ms: int) -> bytes:
        """The name of a statement from now on; empty behind a pooler."""
        name = b""
        try:
            if not self.is_pooled:
                name = b"dibs_%d" % len(self._names)
                self._asked(lambda: self._pg.send_prepare(name, sql), deadline_ms)
        except LinkLost as lost:
            raise LinkLost(str(lost), sent=False, late=lost.late) from None
        self._names[sql] = name
        return name

    def script(self, sql: str, deadline_ms: int) -> list[Row]:
        """Several statements at once, without parameters. Returns the rows of the last one."""
        return self._asked(lambda: self._pg.send_query(sql.encode()), deadline_ms)

    def _asked(self, send: Callable[[], None], deadline_ms: int) -> list[Row]:
        try:
            send()
        except Error as error:
            raise LinkLost(_text(error), sent=False) from None
        try:
            while self._pg.flush():
                if self._wait(select.POLLIN | select.POLLOUT, deadline_ms, sent=True) & select.POLLIN:
                    self._pg.consume_input()
            result: PGresult | None = None
            while (following := self._result(deadline_ms)) is not None:
                if result is None or result.status in _GOOD:
                    result = following
        except Error as error:
            raise LinkLost(_text(error), sent=True) from None
        if result is None:
            raise LinkLost(self._says(), sent=True)
        if result.status in _GOOD:
            columns = range(result.nfields)
            return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]
        sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        says = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace") or self._says()
        if self._pg.status == pq.ConnStatus.BAD or not sqlstate:
            raise LinkLost(says, sent=True)
        raise QueryRefused(sqlstate, says, self.user)

    def _result(self, deadline_ms: int) -> PGresult | None:
        while self._pg.is_busy():
            self._wait_by(self._poll, deadline_ms, sent=True)
            self._pg.consume_input()
        return self._pg.get_result()

    def _wait(self, wanted: int, deadline_ms: int, *, sent: bool) -> int:
        poll = select.poll()
        poll.register(self._pg.socket, wanted)
        return self._wait_by(poll, deadline_ms, sent=sent)

    def _wait_by(self, poll: select.poll, deadline_ms: int, *, sent: bool) -> int:
        left_ms = deadline_ms - steady_ms()
        ready = poll.poll(left_ms) if left_ms > 0 else []
        if not ready:
            raise LinkLost(_LATE, sent=sent, late=True)
        return ready[0][1]

    def notes(self, woken_by: int, timeout_ms: int) -> list[str]:
        """Wait for notifications, or until the descriptor `woken_by` can be read. Returns the notifications."""
        found = self._notes()  # some may have arrived with the answer to a statement
        if found:
            return found
        poll = select.poll()
        poll.register(self._pg.socket, select.POLLIN)
        poll.register(woken_by, select.POLLIN)
        try:
            if any(descriptor == self._pg.socket for descriptor, _ in poll.poll(timeout_ms)):
                self._pg.consume_input()
        except Error as error:
            raise LinkLost(_text(error), sent=False) from None
        if self._pg.status != pq.ConnStatus.OK:
            raise LinkLost(self._says(), sent=False)
        return self._notes()

    def _notes(self) -> list[str]:
        found = []
        while (note := self._pg.notifies()) is not None:
            found.append(note.extra.decode(errors="replace"))
        return found

    def close(self) -> None:
        self._pg.finish()

    def _says(self) -> str:
        return self._pg.error_message.decode(errors="replace").strip()


def _addresses(conninfo: bytes, deadline_ms: int) -> bytes:
    """The addresses of the host, as further settings. libpq would look them up without a deadline, and psycopg would
    keep all threads of the process waiting meanwhile."""
    given = {each.keyword: each.val for each in pq.Conninfo.parse(conninfo)}
    host = given[b"host"] or b""
    if not host or host.startswith((b"/", b"@")) or given[b"hostaddr"]:
        return b""
    answers: SimpleQueue[list[str] | OSError] = SimpleQueue()
    Thread(target=lambda: answers.put(_looked_up(host)), name="dibs-resolve", daemon=True).start()
    try:
        found = answers.get(timeout=max(0, deadline_ms - steady_ms()) / 1000)
    except Empty:
        raise LinkLost(_LATE, sent=False, late=True) from None
    if isinstance(found, OSError):
        raise LinkLost(f'could not find the address of "{host.decode()}": {found.strerror}', sent=False)
    hosts = ",".join([host.decode()] * len(found))
    return f" host='{hosts}' hostaddr='{','.join(found)}'".encode()


def _looked_up(host: bytes) -> list[str] | OSError:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _text(error: Error) -> str:
    return str(error).strip()
