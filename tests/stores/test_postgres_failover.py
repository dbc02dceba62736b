"""A real standby is promoted, and the old primary comes back: what two processes that use both hosts do."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreReplaced, StoreUnavailable
from dibs.core.commands import Acquire, Renew
from dibs.core.lease_outcomes import Renewed
from dibs.core.outcomes import Granted, Held, NotCurrent
from dibs.core.records import META_KEY
from dibs.engine.coordinator import Coordinator
from dibs.server.monitor.health import known_trouble
from dibs.stores.port import Conflict
from dibs.stores.postgres import PostgresLocation
from dibs.stores.postgres.store import PostgresStore
from dibs.testing.contract_base import event, key_of, lock, put
from tests import postgres_pair
from tests.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import PostgresServer, Schema
    from tests.postgres_pair import PostgresPair

pytestmark = pytest.mark.full


def url_of(pair: PostgresPair, *, timeout: str = "3s") -> str:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in pair.nodes)
    return f"postgresql://dibs@{hosts}/postgres?timeout={timeout}"


def claim(store: PostgresStore, who: str, name: str) -> Any:
    command = Acquire(ns="default", principal=who, owner=who, fresh_lease_id=f"lease-{who}", ttl_ms=600_000, name=name)
    return Coordinator(store).one(command)


def patiently(act: Callable[[], Any]) -> Any:
    """Ask again while there was no answer in time, which says nothing about who would have given it."""

    def asked() -> list[Any] | None:
        try:
            return [act()]
        except StoreReplaced:
            raise
        except StoreUnavailable:
            return None

    return wait_until(asked, "PostgreSQL answers")[0]


SHARED = [lock(f"shared-{number}") for number in range(10)]


class Failover:
    """What happens when a standby that lacks the last commits is promoted."""

    def __init__(self, pair: PostgresPair, stack: ExitStack) -> None:
        self.pair = pair
        url = url_of(pair, timeout="1500ms")
        self.first, self.second = (
            stack.enter_context(_closing(PostgresStore(PostgresLocation(url)))) for _ in range(2)
        )
        put(self.first, lock("kept"), events=(event("kept"),))
        self.before = self.first.read([META_KEY, key_of("new")])
        wait_until(pair.has_all, "the standby has all")
        pair.standby.kill()
        for _ in range(4):
            put(self.first, *SHARED, events=(event("shared"),))
        self.lost = claim(self.first, "worker-1", "job")
        self.last_lost_seq = self.first.events(0, 10)[-1].seq
        pair.primary.kill()
        pair.standby.start()
        pair.promote()


def _closing(store: PostgresStore) -> Any:
    from contextlib import closing

    return closing(store)


@pytest.fixture(scope="module")
def failover(postgres_programs: tuple[str, str]) -> Iterator[Failover]:
    with ExitStack() as stack:
        pair = stack.enter_context(postgres_pair.pair(*postgres_programs, synchronous=False))
        yield Failover(pair, stack)


@pytest.mark.fault("F-060")
@pytest.mark.promise("token:rises")
def test_what_was_decided_by_records_of_the_old_primary_is_a_conflict_on_the_new_one(
    failover: Failover, caplog: pytest.LogCaptureFixture
) -> None:
    versions = {key: found.version for key, found in failover.before.records.items()}
    with caplog.at_level(logging.WARNING, "dibs"), pytest.raises(Conflict):
        failover.second.commit(versions, {key_of("new"): lock("new")}, ())
    assert "has begun a new timeline" in caplog.text
    put(failover.second, lock("new"))


@pytest.mark.fault("F-060")
@pytest.mark.promise("excl")
@pytest.mark.promise("proof")
def test_a_record_that_was_cached_before_a_failover_is_not_taken_for_one_made_after_it(
    failover: Failover,
) -> None:
    keys = [key_of("job"), *(key_of(each.name) for each in SHARED)]
    failover.second.commit({}, {}, ())  # on the new timeline, which the first commit tells
    for each in SHARED:  # one after another: each gets a version that the cached ones could have
        put(failover.second, lock(each.name, token=2))
    assert isinstance(claim(failover.second, "worker-2", "job"), Granted)
    assert failover.first.read(keys).records == failover.second.read(keys).records
    late = Renew(ns="default", name="job", principal="worker-1", lease_id=failover.lost.lease.lease_id)
    Coordinator(failover.first).one(late)
    kept = failover.second.read([key_of("job")]).records[key_of("job")].record
    assert [holder.owner for holder in kept.holders] == ["worker-2"]


@pytest.mark.fault("F-061")
@pytest.mark.promise("token:rises")
def test_a_claim_after_a_failover_has_a_higher_token_than_one_that_was_lost(failover: Failover) -> None:
    claim(failover.second, "worker-2", "job")
    held = failover.second.read([key_of("job")]).records[key_of("job")].record
    assert held.token > failover.lost.lease.token
    assert held.token > failover.first.read(()).now_ms - 600_000  # by time, above whatever was handed out


@pytest.mark.fault("F-256")
@pytest.mark.promise("events:told")
def test_events_after_a_failover_have_numbers_that_nobody_has_read(failover: Failover) -> None:
    put(failover.second, lock("first"), events=(event("first"),))
    assert failover.second.events(0, 100)[-1].seq > failover.last_lost_seq


@pytest.mark.fault("F-061")
@pytest.mark.promise("events:told")
def test_a_process_gives_no_event_a_number_that_it_has_seen_before(failover: Failover) -> None:
    failover.first.commit({}, {}, ())
    put(failover.first, lock("after"), events=(event("after"),))
    assert failover.first.events(0, 100)[-1].seq > failover.last_lost_seq


@pytest.mark.fault("F-062")
@pytest.mark.promise("excl")
@pytest.mark.promise("damage:told")
def test_an_old_primary_that_comes_back_is_not_used(failover: Failover) -> None:
    pair, store = failover.pair, failover.first
    patiently(lambda: store.read(()))  # it goes to the new primary, while there is no other
    pair.standby.start()  # the old primary, as it was: it accepts writes
    with pytest.raises(StoreUnavailable, match=r"accept writes: .*timeline [12].* and .*timeline [12].*old primary"):
        PostgresStore(PostgresLocation(url_of(pair, timeout="20s")))
    patiently(lambda: claim(store, "worker-3", "new-job"))
    pair.primary.kill()
    acts: list[Callable[[], object]] = [
        lambda: store.read([key_of("new-job")]),
        lambda: store.scan(""),
        lambda: store.events(0, 10),
        lambda: claim(store, "worker-4", "new-job"),
    ]
    for act in acts:  # none is carried out
        with pytest.raises(StoreReplaced, match="lacks what it had"):
            patiently(act)
    pair.primary.start()
    assert isinstance(patiently(lambda: claim(store, "worker-4", "new-job")), Held)
    pair.standby.kill()
    PostgresStore(PostgresLocation(url_of(pair, timeout="20s"))).close()


@pytest.mark.fault("F-061")
@pytest.mark.promise("durable")
def test_a_synchronous_failover_loses_nothing_and_goes_on(postgres_programs: tuple[str, str]) -> None:
    with (
        postgres_pair.pair(*postgres_programs) as pair,
        _closing(PostgresStore(PostgresLocation(url_of(pair)))) as store,
    ):
        before = claim(store, "worker-1", "job")
        pair.primary.kill()
        pair.promote()
        store.commit({}, {}, ())  # compares nothing, so it is no conflict
        assert isinstance(claim(store, "worker-2", "job"), Held)
        after = claim(store, "worker-2", "other")
        assert after.lease.token > before.lease.token
        put(store, lock("again"))  # only the first commit on a timeline is a conflict


def catch_up(late: PostgresStore, ahead: PostgresStore) -> None:
    """Commit as often as the other has seen, so that the database is not behind it."""
    for _ in range(100):
        patiently(lambda: late.read(()))
        if late._seen >= ahead._seen:
            return
        late.commit({}, {}, ())
    raise AssertionError("it is still behind")


def check_that_only_the_second_is_the_owner(first: PostgresStore, second: PostgresStore, lost: Granted) -> None:
    catch_up(second, first)
    job = key_of("job")
    kept = second.read([job]).records[job]
    recalled = Renew(ns="default", name="job", principal="worker-1", lease_id=lost.lease.lease_id)
    assert isinstance(patiently(lambda: Coordinator(first).one(recalled)), NotCurrent)
    assert first.read([job]).records[job] == kept
    mine = Renew(ns="default", name="job", principal="worker-2", lease_id="lease-worker-2")
    assert isinstance(Coordinator(second).one(mine), Renewed)


@pytest.mark.fault("F-271")
@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
def test_after_two_failovers_to_timelines_of_one_number_the_owner_of_the_second_stays(
    postgres_programs: tuple[str, str],
) -> None:
    with postgres_pair.copies(*postgres_programs) as copies, ExitStack() as stack:
        url = f"{copies.url}?timeout=20s"
        first = stack.enter_context(_closing(PostgresStore(PostgresLocation(url))))
        put(first, lock("kept"))
        one, two = (copies.copy(name) for name in ("one", "two"))
        copies.put(one, promote=True)
        lost = patiently(lambda: claim(first, "worker-1", "job"))
        copies.put(two, promote=True)
        second = stack.enter_context(_closing(PostgresStore(PostgresLocation(url))))
        kept = patiently(lambda: claim(second, "worker-2", "job"))
        assert kept.lease.token > lost.lease.token
        check_that_only_the_second_is_the_owner(first, second, lost)


@pytest.mark.fault("F-271")
@pytest.mark.fault("F-410")
@pytest.mark.fault("F-424")
@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
def test_a_snapshot_of_the_disk_that_is_put_back_is_not_taken_for_what_a_running_server_remembers(
    postgres_programs: tuple[str, str],
) -> None:
    with postgres_pair.copies(*postgres_programs) as copies, ExitStack() as stack:
        url = f"{copies.url}?timeout=20s"
        first = stack.enter_context(_closing(PostgresStore(PostgresLocation(url))))
        put(first, lock("kept"))
        snapshot = copies.stopped_copy("snapshot")
        lost = patiently(lambda: claim(first, "worker-1", "job"))
        copies.put(snapshot)
        second = stack.enter_context(_closing(PostgresStore(PostgresLocation(url))))
        again = claim(second, "worker-2", "job")
        check_that_only_the_second_is_the_owner(first, second, lost)
        assert again.lease.token == lost.lease.token, "nobody who knew that was there"
        raised = patiently(lambda: claim(first, "worker-3", "another")).lease.token
        assert raised > first.read(()).now_ms - 600_000
        assert first.events(0, 1, newest=True)[0].seq > (first.read(()).now_ms - 600_000) * 1_000
        assert claim(second, "worker-4", "a third").lease.token == raised


@pytest.mark.fault("F-410")
@pytest.mark.promise("token:rises")
def test_a_database_that_was_only_restarted_or_pruned_raises_no_floor(
    postgres_server: PostgresServer,
) -> None:
    with _closing(PostgresStore(PostgresLocation(postgres_server.url))) as store:
        assert claim(store, "worker-1", "job").lease.token == 1
        for number in range(2):
            postgres_server.kill()
            postgres_server.start()
            assert patiently(lambda: claim(store, "worker-1", f"job-{number}")).lease.token == 1  # noqa: B023 - at once
            store.prune(keep=0, before_ms=1 << 52)


TABLES = ("records", "events", "state")


@pytest.mark.fault("F-271")
@pytest.mark.promise("excl")
def test_a_copy_that_is_put_back_at_once_is_read_anew_and_what_is_due_in_it_is_found(
    postgres_schema: Callable[[], Schema],
) -> None:
    schema = postgres_schema()
    with ExitStack() as stack:
        first = stack.enter_context(_closing(PostgresStore(PostgresLocation(schema.url))))
        put(first, lock("kept"))
        for table in TABLES:
            schema.run(f"CREATE TABLE {{s}}.copy_of_{table} AS TABLE {{s}}.{table}")
        lost = claim(first, "worker-1", "job")
        first.due(10)
        schema.run("TRUNCATE {s}.records, {s}.events, {s}.state")
        for table in TABLES:
            schema.run(f"INSERT INTO {{s}}.{table} TABLE {{s}}.copy_of_{table}")
        second = stack.enter_context(_closing(PostgresStore(PostgresLocation(schema.url))))
        put(second, lock("soon", expires_ms=1))
        put(first, lock("later"))  # it has seen that nothing is due, at a commit of that number
        assert second.due(10).keys == [key_of("soon")]
        claim(second, "worker-2", "job")
        check_that_only_the_second_is_the_owner(first, second, lost)


@pytest.mark.fault("F-065", "F-735")
def test_a_standby_that_is_away_is_named_and_nobody_is_told_to_end_the_commit_that_waits(
    postgres_programs: tuple[str, str],
) -> None:
    with postgres_pair.pair(*postgres_programs) as pair, ExitStack() as stack:
        url = url_of(pair, timeout="8s")
        waits, asks = (
            stack.enter_context(_closing(PostgresStore(PostgresLocation(each))))
            for each in (url_of(pair, timeout="3s"), url)
        )
        put(asks, lock("kept"))
        pair.standby.kill()
        with pytest.raises(StoreUnavailable, match="and at the standby if its commits wait for one") as late:
            put(waits, lock("x"))
        assert late.value.unknown
        with pytest.raises(StoreUnavailable, match=r"(?s)waits for a standby.*Do not end the transaction") as told:
            put(asks, lock("y"))
        assert not told.value.unknown
        assert "kept open" not in told.value.details
        assert asks.read([key_of("kept")]).records[key_of("kept")].record == lock("kept")
        assert isinstance(known_trouble(asks, None), StoreUnavailable), "a look at its health makes it no better"
        pair.primary.signal(signal.SIGKILL)
