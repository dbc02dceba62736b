"""The store contract: the log of events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from dibs.base import clock
from dibs.core.events import Event
from dibs.stores.port import Maintenance, Store, maintenance_of
from dibs.testing.contract_base import WAIT_S_MAX, Connect, ContractBase, event, key_of, lock, put, record_of, versions


def log(store: Store, *events: Event) -> int:
    return store.commit({}, {}, events)


def jobs(events: list[Event]) -> list[str]:
    return [each.job for each in events]


def rises(numbers: list[int]) -> bool:
    return all(0 < first < second for first, second in pairwise([*numbers, max(numbers, default=0) + 1]))


def beside(call: Callable[[], bool]) -> tuple[threading.Thread, list[bool]]:
    """Call in a thread, and note what is answered there."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    return thread, answers


class EventContract(ContractBase):
    def test_a_new_store_has_no_events(self, store: Store) -> None:
        assert store.events(0, 10) == []
        assert store.events(0, 10, ("default", "x"), newest=True) == []

    def test_events_come_back_whole_and_numbered(self, connect: Connect, store: Store) -> None:
        full = Event(
            at_ms=5,
            kind="released",
            ns="n",
            job="a/😀",
            owner="o",
            principal="p",
            token=9,
            mode="shared",
            attempt=2,
            ttl_ms=60_000,
            metadata="m",
            checkpoint="c\n",
            result="r",
            done_until_ms=8,
            by="b",
            reason="why",
            began_ms=3,
        )
        last_seq = log(store, full, event("x"))
        for each in (store, connect()):
            found = each.events(0, 10)
            assert [each.replace(seq=0) for each in found] == [full, event("x")]
            assert rises([event.seq for event in found])
            assert found[-1].seq == last_seq
            if store.capabilities.gapless:
                assert [event.seq for event in found] == [1, 2]

    def test_a_commit_answers_with_the_number_of_the_last_event(self, store: Store) -> None:
        assert put(store, lock("x")) == 0
        last_seq = put(store, lock("x", token=2), events=(event("x"), event("x")))
        assert last_seq == store.events(0, 10)[1].seq
        assert put(store, lock("x", token=3)) == last_seq

    def test_a_commit_answers_behind_the_events_of_others_where_there_are_no_gaps(
        self, connect: Connect, store: Store
    ) -> None:
        log(store, event("mine"))
        theirs = log(connect(), event("theirs"), event("theirs"))
        if store.capabilities.gapless:
            assert put(store, lock("x")) == theirs
            assert log(store, event("mine")) == theirs + 1
        elif store.capabilities.one_log:
            assert log(store, event("mine")) > theirs

    def test_who_reads_the_log_while_others_write_misses_nothing(self, connect: Connect, store: Store) -> None:
        """Reads on from the last number it saw. In one log, no later event may have a lower number."""
        if not store.capabilities.one_log:
            return
        writers, count = 3, 15

        def write(number: int, own: Store) -> None:
            for round_ in range(count):
                log(own, *[event(f"w{number}", token=round_) for _ in range(1 + round_ % 2)])

        threads = [threading.Thread(target=write, args=(number, connect())) for number in range(writers)]
        found: list[Event] = []
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            found += store.events(found[-1].seq if found else 0, 7)
        while page := store.events(found[-1].seq if found else 0, 7):
            found += page
        assert found == store.events(0, 1_000)
        assert len(found) == writers * sum(1 + round_ % 2 for round_ in range(count))

    def test_events_are_in_the_order_of_their_commits(self, connect: Connect, store: Store) -> None:
        other = connect()
        for number in range(10):
            log((store, other)[number % 2], event("a", token=number), event(f"b{number}"))
        found = store.events(0, 100)
        assert other.events(0, 100) == found
        of_one_job = [each for each in found if each.job == "a"]
        assert [each.token for each in of_one_job] == list(range(10))
        assert rises([each.seq for each in of_one_job])
        assert sorted(jobs(found)) == ["a"] * 10 + [f"b{number}" for number in range(10)]
        if store.capabilities.one_log:
            assert jobs(found) == [job for number in range(10) for job in ("a", f"b{number}")]
            assert rises([each.seq for each in found])
        if store.capabilities.gapless:
            assert [each.seq for each in found] == list(range(1, 21))

    def test_events_are_read_in_pages_from_either_end(self, store: Store) -> None:
        log(store, *[event(f"j{number}") for number in range(1, 8)])
        seqs = [each.seq for each in store.events(0, 10)]
        assert jobs(store.events(0, 3)) == ["j1", "j2", "j3"]
        assert jobs(store.events(seqs[2], 3)) == ["j4", "j5", "j6"]
        assert jobs(store.events(seqs[5], 3)) == ["j7"]
        assert store.events(seqs[6], 3) == []
        assert jobs(store.events(0, 2, newest=True)) == ["j6", "j7"]
        assert jobs(store.events(seqs[5], 5, newest=True)) == ["j7"]
        assert store.events(0, 0) == []

    def test_the_events_of_one_job_are_those_of_its_name_in_its_namespace(self, store: Store) -> None:
        log(store, event("x", token=1), event("x/y"), event("x", ns="other"), event("X"), event("x", token=2))
        log(store, event("x", token=3))
        job = ("default", "x")
        found = store.events(0, 10, job)
        assert [each.token for each in found] == [1, 2, 3]
        assert [each.token for each in store.events(found[0].seq, 1, job)] == [2]
        assert [each.token for each in store.events(0, 2, job, newest=True)] == [2, 3]
        assert store.events(0, 10, ("other", "x")) == [store.events(0, 10)[2]]
        assert store.events(0, 10, ("default", "no such")) == []

    def test_old_events_are_dropped_by_age(self, store: Store) -> None:
        log(store, *[event(f"j{at_ms}", at_ms=at_ms) for at_ms in (1, 2, 3, 9, 10)])
        assert store.prune(keep=100, before_ms=4) == 3
        assert jobs(store.events(0, 10)) == ["j9", "j10"]
        assert store.prune(keep=100, before_ms=4) == 0

    def test_old_events_are_dropped_by_count(self, store: Store) -> None:
        log(store, *[event(f"j{number}") for number in range(10)])
        assert store.prune(keep=10, before_ms=0) == 0
        assert store.prune(keep=4, before_ms=0) == 6
        assert jobs(store.events(0, 10)) == ["j6", "j7", "j8", "j9"]
        assert jobs(store.events(0, 10, ("default", "j3"))) == []

    def test_age_and_count_together_keep_the_newest_of_what_is_young(self, store: Store) -> None:
        log(store, *[event(f"j{at_ms}", at_ms=at_ms) for at_ms in (1, 2, 3, 5, 6, 7, 8)])
        assert store.prune(keep=3, before_ms=4) == 4
        assert jobs(store.events(0, 10)) == ["j6", "j7", "j8"]

    def test_numbers_are_not_used_again_when_all_events_are_gone(self, connect: Connect, store: Store) -> None:
        before = log(store, event("a"), event("b"))
        assert store.prune(keep=0, before_ms=0) == 2
        assert store.events(0, 10) == []
        assert store.newest_seq() == before
        last_seq = log(connect(), event("b"))
        assert store.newest_seq() == last_seq
        assert last_seq > before
        assert [each.seq for each in store.events(0, 10)] == [last_seq]
        if store.capabilities.gapless:
            assert last_seq == before + 1

    def test_numbers_go_on_above_those_of_another_store(self, connect: Connect, store: Store) -> None:
        other, upkeep = connect(), maintenance_of(store)
        if type(upkeep).number_from is Maintenance.number_from:
            return  # it cannot, and says so in no other way
        first = log(other, event("own"))
        far = first + 5_000_000_000
        upkeep.number_from(far)
        upkeep.number_from(far - 1_000)  # never back
        assert [each.seq for each in store.events(0, 10)] == [first]
        for writer in (other, store):
            assert log(writer, event("a"), event("b")) > far
        seqs = [each.seq for each in store.events(0, 4, newest=True)]
        assert seqs[0] > far
        assert rises(seqs)
        for reader in (other, store, connect()):
            assert [each.seq for each in reader.events(seqs[0] - 1, 10)] == seqs
            assert [each.seq for each in reader.events(seqs[0], 10, ("default", "b"))] == [seqs[1], seqs[3]]
            assert [each.seq for each in reader.events(0, 2, newest=True)] == seqs[2:]
            assert reader.watch(seqs[2], 0)
            assert not reader.watch(seqs[3], 0)
            assert put(reader, lock(f"x{id(reader)}", token=1)) == seqs[3]
        if store.capabilities.gapless:
            assert seqs == list(range(far + 1, far + 5))
        store.prune(keep=1, before_ms=0)
        assert [each.seq for each in other.events(0, 10)] == seqs[3:]

    def test_a_watch_of_what_is_there_already_does_not_wait(self, store: Store) -> None:
        last_seq = log(store, event("a"), event("b"))
        assert store.watch(0, 0)
        assert store.watch(last_seq - 1, int(WAIT_S_MAX * 1000))

    def test_a_watch_ends_when_its_time_is_over(self, store: Store) -> None:
        last_seq = log(store, event("a"))
        began_ms = clock.steady_ms()
        assert not store.watch(last_seq, 60)
        assert 55 <= clock.steady_ms() - began_ms < WAIT_S_MAX * 1000

    @pytest.mark.parametrize("whose", ["its own", "another connection's"])
    def test_a_watch_wakes_on_a_commit(self, connect: Connect, store: Store, whose: str) -> None:
        writer = store if whose == "its own" else connect()
        after = 0
        for round_ in range(3):  # the wait may begin before or after the commit: it must wake in both orders
            watching, woken = beside(partial(store.watch, after, int(WAIT_S_MAX * 1000)))
            watching.join(0.01 * round_)
            after = log(writer, event("x"))
            watching.join(WAIT_S_MAX / 2)
            assert woken == [True]

    @pytest.mark.parametrize("whose", ["its own", "another connection's"])
    def test_who_waits_for_a_record_to_go_is_woken_when_it_is_deleted(
        self, connect: Connect, store: Store, whose: str
    ) -> None:
        writer = store if whose == "its own" else connect()
        assert store.until_gone(key_of("x"), 0)
        put(store, lock("x"))
        assert not store.until_gone(key_of("x"), 1)
        waiting, answers = beside(lambda: store.until_gone(key_of("x"), int(WAIT_S_MAX * 1000)))
        put(writer, lock("x", token=2), events=(event("x"),))
        assert not answers
        read = versions(writer, key_of("x"))
        writer.commit(read, {key_of("x"): None}, [event("x")])
        waiting.join(WAIT_S_MAX)
        assert answers == [True]

    def test_a_commit_without_events_does_not_end_a_watch(self, store: Store) -> None:
        watching, answers = beside(lambda: store.watch(0, 150))
        put(store, lock("x"))
        watching.join(WAIT_S_MAX)
        assert answers == [False]
        assert record_of(store, "x")
