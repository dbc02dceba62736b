"""What goes wrong with a PostgreSQL, as the store tells it: in words, in time, whether a write may have happened."""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput, StoreBroken, StoreDenied, StoreFull, StoreUnavailable
from dibs.core.records import META_KEY, Meta
from dibs.stores.port import Conflict
from dibs.stores.postgres import PostgresLocation, pool
from dibs.stores.postgres.connection import PLAIN_TIMES, LinkLost, PostgresConnection
from dibs.stores.postgres.store import PostgresStore
from dibs.stores.registry import open_store
from dibs.testing.contract_base import event, in_threads, key_of, lock, put
from tests.programs import WAIT_S_MAX, slowness
from tests.stalls import is_in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import Schema

pytestmark = pytest.mark.full


@pytest.fixture
def schema(postgres_schema: Callable[[], Schema]) -> Schema:
    return postgres_schema()


@pytest.fixture
def store(schema: Schema) -> Iterator[PostgresStore]:
    made = PostgresStore(PostgresLocation(f"{schema.url}&timeout=2s"))
    yield made
    made.close()


class Wire:
    """Passes bytes between the store and PostgreSQL until it is told to lose them."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("@")[2].partition("/")[0].partition(":")
        self._far = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.loses_requests = False
        self.loses_replies = False
        self.url = url.replace(f"{host}:{port}", f"127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._far)
            self._sockets += [near, far]
            for source, target, is_request in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=(source, target, is_request), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        try:
            while data := source.recv(65536):
                if not (self.loses_requests if is_request else self.loses_replies):
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self) -> None:
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def close(self) -> None:
        self._listener.close()
        self.cut()
        for each in self._sockets:
            each.close()


@pytest.fixture
def wire(schema: Schema) -> Iterator[Wire]:
    made = Wire(schema.server_url)
    yield made
    made.close()


@pytest.fixture
def far(schema: Schema, wire: Wire) -> Iterator[PostgresStore]:
    """A store behind the wire."""
    schema.make()
    made = PostgresStore(PostgresLocation(f"{wire.url}?schema={schema.name}&timeout=1500ms"))
    yield made
    made.close()


def refused(act: Callable[[], object], *, says: str, unknown: bool, within_s: float = 5) -> None:
    began_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match=says) as caught:
        act()
    assert caught.value.unknown is unknown
    assert is_in_time(began_s, within_s)


@pytest.mark.parametrize("lost", ["loses_requests", "loses_replies"])
def test_a_server_that_says_nothing_any_more_is_waited_for_just_so_long(
    far: PostgresStore, wire: Wire, lost: str
) -> None:
    put(far, lock("x"))
    setattr(wire, lost, True)
    refused(lambda: far.read([key_of("x")]), says="gave no answer within 1.5 seconds", unknown=False)
    refused(lambda: far.due(1), says="gave no answer", unknown=False)
    refused(lambda: far.events(0, 1), says="gave no answer", unknown=False)
    setattr(wire, lost, False)
    assert far.read([key_of("x")]).records[key_of("x")].record == lock("x")


def test_a_commit_whose_answer_is_lost_is_unknown_and_found_out_by_reading(far: PostgresStore, wire: Wire) -> None:
    found = far.read([key_of("x")]).records[key_of("x")]
    wire.loses_replies = True

    def commit() -> None:
        far.commit({key_of("x"): found.version}, {key_of("x"): lock("x")}, [event("x")])

    refused(commit, says="gave no answer", unknown=True)
    wire.loses_replies = False
    assert far.read([key_of("x")]).records[key_of("x")].record == lock("x")
    assert len(far.events(0, 10)) == 1


def test_a_connection_that_ends_between_two_calls_is_not_noticed(far: PostgresStore, wire: Wire) -> None:
    put(far, lock("x"))
    for token in range(2, 6):
        wire.cut()
        threading.Event().wait(0.05)  # the end has arrived before the next call looks
        assert put(far, lock("x", token=token)) == 0


def test_a_read_survives_a_connection_that_ends_in_the_middle_of_it(schema: Schema, wire: Wire) -> None:
    schema.make()
    far = PostgresStore(PostgresLocation(f"{wire.url}?schema={schema.name}&timeout=30s"))
    put(far, lock("x"))
    wire.loses_replies = True

    def restore() -> None:
        wire.loses_replies = False
        wire.cut()

    timer = threading.Timer(0.2, restore)
    timer.start()
    assert far.read([key_of("x")]).records[key_of("x")].record == lock("x")
    timer.join()
    far.close()


def test_nothing_is_doubled_or_lost_while_backends_are_terminated(schema: Schema, store: PostgresStore) -> None:
    over, counted = threading.Event(), threading.Event()

    def terminate() -> None:
        while not over.is_set():
            schema.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dibs'"
                " AND query LIKE '%{s}%'"
            )
            over.wait(0.01)
            counted.wait(WAIT_S_MAX)  # on a busy machine nobody would count between two cuts
            counted.clear()

    def work() -> None:
        for _ in range(40):
            count_one(store)
            counted.set()

    terminating = threading.Thread(target=terminate, daemon=True)
    terminating.start()
    workers = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(WAIT_S_MAX)
        assert not each.is_alive()
    over.set()
    counted.set()
    terminating.join(WAIT_S_MAX)
    tokens = [each.token for each in store.events(0, 10_000)]
    assert tokens == list(range(1, len(tokens) + 1))  # one after another, whatever was cut
    assert len(tokens) >= 120


def increment(store: PostgresStore) -> None:
    """Count one up, however often others are faster."""
    while True:
        found = store.read([META_KEY]).records[META_KEY]
        count = found.record.token_floor + 1 if isinstance(found.record, Meta) else 1
        try:
            store.commit({META_KEY: found.version}, {META_KEY: Meta(token_floor=count)}, [event("n", token=count)])
            return
        except Conflict:
            continue


def count(store: PostgresStore, times: int) -> None:
    for _ in range(times):
        increment(store)


def count_one(store: PostgresStore) -> None:
    """Until it is known to be counted. What is unknown may have been: then it counts once more, and that shows."""
    while True:
        try:
            increment(store)
            return
        except StoreUnavailable as error:
            if not error.unknown:
                continue


@pytest.mark.parametrize(
    ("sqlstate", "error", "says"),
    [
        ("53100", StoreFull, "has no room left"),
        ("57014", StoreUnavailable, "gave up on a statement"),
        ("53300", StoreUnavailable, "has no connection left"),
        ("XX001", StoreBroken, "damaged"),
        ("P0001", StoreUnavailable, r"refused to work: as the test asked \(P0001\)"),
        ("25006", StoreUnavailable, "read-only: a standby, most likely"),
        ("40001", StoreUnavailable, "gave up on a statement"),
    ],
)
def test_what_postgresql_refuses_is_said_in_words_and_changes_nothing(
    schema: Schema,
    store: PostgresStore,
    sqlstate: str,
    error: type[Exception],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "TRY_MS_MIN", 1_500)  # a stall in the last try would be no answer
    schema.run(
        "CREATE FUNCTION {s}.no() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION 'as the test asked' USING ERRCODE = '{sqlstate}'; END $$"
    )
    schema.run("CREATE TRIGGER no BEFORE INSERT ON {s}.records EXECUTE FUNCTION {s}.no()")
    with pytest.raises(error, match=says) as caught:
        put(store, lock("x"), events=(event("x"),))
    assert not getattr(caught.value, "unknown", False)
    schema.run("DROP TRIGGER no ON {s}.records")
    assert store.events(0, 10) == []
    assert put(store, lock("x"), events=(event("x"),)) == 1


def test_a_serialization_failure_is_tried_again(schema: Schema, store: PostgresStore) -> None:
    schema.run("CREATE SEQUENCE {s}.tries")
    schema.run(
        "CREATE FUNCTION {s}.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('{s}.tries') < 4 THEN"
        " RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$"
    )
    schema.run("CREATE TRIGGER no BEFORE INSERT ON {s}.events FOR EACH ROW EXECUTE FUNCTION {s}.no()")
    assert put(store, lock("x"), events=(event("x"),)) == 1


def test_a_database_whose_transactions_are_serializable_loses_nothing(schema: Schema) -> None:
    role = f"strict_{schema.name[-8:]}"
    schema.run(f"CREATE ROLE {role} LOGIN SUPERUSER")
    schema.run(f"ALTER ROLE {role} SET default_transaction_isolation = 'serializable'")
    url = schema.url.replace("dibs@", f"{role}@")
    stores = [PostgresStore(PostgresLocation(url)) for _ in range(3)]
    in_threads([partial(count, each, 15) for each in stores])
    assert [each.token for each in stores[0].events(0, 100)] == list(range(1, 46))
    for store in stores:
        store.close()


def test_a_lock_that_somebody_keeps_is_waited_for_just_so_long(schema: Schema) -> None:
    import psycopg

    store = PostgresStore(PostgresLocation(f"{schema.url}&timeout=8s"))
    with psycopg.connect(schema.server_url) as other:
        other.execute(f'SELECT * FROM "{schema.name}".state FOR UPDATE'.encode())
        refused(lambda: put(store, lock("x")), says="look in pg_stat_activity", unknown=False, within_s=7.5)
        assert store.read([key_of("x")]).records[key_of("x")].record is None  # reading waits for nobody
    put(store, lock("x"))
    store.close()


def test_a_schema_that_is_dropped_under_its_users_is_reported(schema: Schema, store: PostgresStore) -> None:
    schema.drop()
    with pytest.raises(StoreBroken, match="lacks what dibs keeps there"):
        store.read(())


@pytest.mark.parametrize("text", ["a\0b", "half \ud800 pair"])
def test_text_that_postgresql_cannot_hold_is_refused_and_nothing_is_cut_off(store: PostgresStore, text: str) -> None:
    for act in (
        lambda: store.read([key_of(text)]),
        lambda: store.scan(key_of(text)),
        lambda: store.events(0, 1, ("default", text)),
        lambda: store.commit({key_of(text): 0}, {key_of(text): lock("x")}, ()),
        lambda: store.commit({}, {}, [event(text)]),
    ):
        with pytest.raises(InvalidInput):
            act()
    assert store.scan("") == []
    assert store.events(0, 10) == []


def test_what_is_closed_says_so(store: PostgresStore) -> None:
    store.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.read(())


SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hunter2@127.0.0.1:1/db?timeout=300ms",
        "postgresql://127.0.0.1:1/db?timeout=300ms&user=ann&password=hunter2",
        "postgresql://ann:hunter2@127.0.0.1:1/db?timeout=soon",
        "postgresql://ann:hunter2@127.0.0.1:1/db?migrate=perhaps",
        "postgresql://ann:hunter2@127.0.0.1:1/db?schema=",
        "postgresql://ann:hunter2@127.0.0.1:1/db?schema=pg_mine",
        "postgresql://ann:hunter2@127.0.0.1:1/db?listen=nowhere",
        "postgresql://ann:hunter2@127.0.0.1:1/db?no_such_option=1",
        "postgresql://ann:x/hunter2@127.0.0.1:1/db",
        "postgresql://ann:x@hunter2@127.0.0.1:1/db",
        "postgresql://ann:x?hunter2@127.0.0.1:1/db",
        "postgresql://ann:hunter2%zz@127.0.0.1:1/db",
        "postgresql://ann:hunter2@[::1:1/db",
        "postgresql://ann:hunter2@127.0.0.1:1,127.0.0.1:1:1/db",
        "postgresql://ann:hunter2@127.0.0.1,127.0.0.2,127.0.0.3:1,2/db",
        "postgres://ann:hunter2@no-such-host.invalid/db?timeout=300ms",
        "postgresql+psycopg://ann:hunter2@127.0.0.1:1/db",
    ],
)
def test_no_password_is_in_any_message(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.stores.postgres.location.TIMEOUT_MS", 300)
    with pytest.raises((InvalidInput, StoreUnavailable, StoreDenied)) as caught:
        open_store(url)
    assert SECRET not in caught.value.details
    assert SECRET not in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://db/x?scema=y", "'scema' is no option of a PostgreSQL URL"),
        ("postgresql://db:99999/x", "cannot be read as a PostgreSQL URL"),
        ("postgresql://127.0.0.1:1/x", r"accepting TCP/IP connections\. Try again"),
    ],
)
def test_what_is_wrong_with_a_url_is_named(url: str, says: str) -> None:
    with pytest.raises((InvalidInput, StoreUnavailable), match=says):
        open_store(url)


def test_a_database_or_role_that_is_not_there_is_reported_at_once(schema: Schema) -> None:
    began_s = time.monotonic()
    with pytest.raises(StoreDenied, match="does not exist"):
        open_store(schema.url.replace("/postgres?", "/nothing?"))
    with pytest.raises(StoreDenied, match="does not exist"):
        open_store(schema.url.replace("dibs@", "nobody_here@"))
    assert is_in_time(began_s, 4 * slowness())


def test_of_several_hosts_the_one_that_can_be_written_is_used(schema: Schema) -> None:
    host = schema.server_url.partition("@")[2].partition("/")[0]
    url = schema.url.replace(host, f"127.0.0.1:1,{host}")
    store = PostgresStore(PostgresLocation(url))
    put(store, lock("x"))
    store.close()


def _prepared(store: PostgresStore) -> int:
    """How many statements the session of the store's connection has parsed."""
    ((count,),) = store._pool.rows(b"SELECT count(*) FROM pg_prepared_statements")
    return int(count or 0)


def _commits(store: PostgresStore, begin: int, end: int) -> None:
    for number in range(begin, end):
        put(store, lock(f"job-{number}"))


def test_a_commit_is_parsed_once_for_a_connection_that_repeats_it(store: PostgresStore) -> None:
    _commits(store, 0, 1)
    assert _prepared(store) == 0, "who asks once does not pay for it"
    _commits(store, 1, 20)
    assert _prepared(store) > 0


def test_a_session_that_somebody_cleared_is_asked_plainly(store: PostgresStore) -> None:
    _commits(store, 0, 20)
    store._pool.rows(b"DEALLOCATE ALL")
    _commits(store, 20, 40)
    assert _prepared(store) == 0
    assert len(store.scan("", limit=1000)) >= 40


def test_a_connection_that_is_lost_while_a_commit_is_parsed_has_written_nothing_and_another_one_is_asked(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commits(store, 0, PLAIN_TIMES)
    lost: list[PostgresConnection] = []

    def silent(link: PostgresConnection) -> bool:
        lost.append(link)
        raise LinkLost("the connection was closed", sent=True)

    monkeypatch.setattr(PostgresConnection, "is_pooled", property(silent))
    _commits(store, PLAIN_TIMES, PLAIN_TIMES + 1)
    assert len(lost) == 1
