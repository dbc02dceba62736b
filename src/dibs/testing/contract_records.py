"""The store contract: reads, conditions, lists, and due records."""

from __future__ import annotations

import pytest

from dibs.core.records import META_KEY, Done, Ending, Meta, Outage, Pulse, SessionRecord, Stored, lock_key, pulse_key
from dibs.stores.port import ABSENT, Conflict, Maintenance, Store
from dibs.testing.contract_base import (
    Connect,
    ContractBase,
    PassTime,
    drop,
    event,
    key_of,
    lock,
    put,
    record_of,
    versions,
)

ODD_NAMES = (
    *("a", "a/b", "a/b/c", "a b", "a%b", "a%2Fb", "a_b", "a*b", "a'b", 'a"b', "a\\b", "A", "ab", "b"),
    *("path:src/auth.rs", "github://acme/app/issues/42"),
    *("é", "e\u0301", "\ud7ff", "\ue000", "\uffee", "😀", "😀/👩\u200d💻", "\U0010ffff", "\U0010ffff\U0010ffff"),
)


class RecordContract(ContractBase):
    many = 1_000  # records of one decision; a store with slow commits may set a smaller number

    def test_an_unknown_key_reads_as_absent(self, store: Store) -> None:
        assert store.read(["lock/default/x", META_KEY]).records == {
            "lock/default/x": ABSENT,
            META_KEY: ABSENT,
        }

    def test_what_is_recalled_is_what_was_read_while_nobody_else_writes(self, store: Store) -> None:
        keys = [key_of("a"), key_of("b"), META_KEY]
        assert store.recall(keys).records == dict.fromkeys(keys, ABSENT)
        put(store, lock("a"))
        put(store, lock("a", token=2), lock("b"))
        recalled, read = store.recall(keys), store.read(keys)
        assert recalled.records == read.records
        assert read.now_ms - 60_000 < recalled.now_ms <= read.now_ms
        drop(store, key_of("a"))
        assert store.recall([key_of("a")]).records == {key_of("a"): ABSENT}
        assert not store.read(keys).is_recalled

    @pytest.mark.promise("excl")
    def test_what_is_recalled_may_be_old_but_never_is_written_over(self, store: Store, connect: Connect) -> None:
        other, a, b = connect(), key_of("a"), key_of("b")
        put(store, lock("a"), lock("b"))
        before = versions(store, a, b)
        put(other, lock("a", token=2))
        recalled = store.recall([b, a])
        now = versions(other, a, b)
        seen = {key: found.version for key, found in recalled.records.items()}
        assert seen in (now, before)
        assert recalled.is_recalled or seen == now
        puts: dict[str, Stored | None] = {b: lock("b", token=3)}
        with pytest.raises(Conflict):
            store.commit(before, puts, ())
        assert versions(store, a, b) == now
        put(other, lock("a", token=4))
        store.recall([a])
        store.commit({b: now[b]}, puts, ())  # a record that is not compared may be as old as it likes
        assert store.read([b]).records[b].record == puts[b]

    def test_reading_no_keys_gives_the_time(self, store: Store) -> None:
        snapshot = store.read(())
        assert snapshot.records == {}
        assert snapshot.now_ms > 0

    def test_time_never_runs_backwards_on_any_connection(
        self, connect: Connect, store: Store, pass_time: PassTime
    ) -> None:
        other = connect()
        seen = []
        for _ in range(20):
            seen += [store.read(()).now_ms, other.read((META_KEY,)).now_ms]
            pass_time(1)
        assert seen == sorted(seen)

    def test_records_come_back_as_they_were_written(self, connect: Connect, store: Store) -> None:
        full = lock('a "quoted" \\ 😀/é name', token=2**53 + 1).replace(
            endings=(
                Ending(
                    lease_id="l",
                    owner="o",
                    principal="p",
                    token=1,
                    how="broken",
                    at_ms=5,
                    by="b",
                    reason="\n\t",
                    metadata="a=b",
                ),
            ),
            done=Done(owner="o", token=1, at_ms=5, until_ms=6, result="{}"),
            acl=("user:a", "team:b"),
            line=(1, 2),
            failures=3,
        )
        records: dict[str, Stored | None] = {
            lock_key(full.ns, full.name): full,
            META_KEY: Meta(token_floor=7, outages=(Outage(began_ms=1, ended_ms=2),)),
            pulse_key("s"): Pulse(server="s", at_ms=9),
        }
        store.commit(dict.fromkeys(records, 0), records, ())
        for each in (store, connect()):
            found = each.read(records).records
            assert {key: value.record for key, value in found.items()} == records
            assert all(value.version > 0 for value in found.values())

    @pytest.mark.promise("same-answer")
    @pytest.mark.parametrize(
        "meanwhile", ["made", "changed", "deleted", "deleted and made anew", "only looked at, and changed"]
    )
    def test_a_commit_whose_reads_are_out_of_date_changes_nothing(
        self, connect: Connect, store: Store, meanwhile: str
    ) -> None:
        key, mine = key_of("contested"), key_of("mine")
        if meanwhile != "made":
            put(store, lock("contested", token=1))
        read = versions(store, key, mine)
        other = connect()
        if meanwhile.startswith("deleted"):
            drop(other, key)
        if meanwhile != "deleted":
            put(other, lock("contested", token=2))
        before = (store.read([key, mine]).records, store.events(0, 10))

        puts: dict[str, Stored | None] = {mine: lock("mine")}
        if not meanwhile.startswith("only"):
            puts[key] = lock("contested", token=3)
        with pytest.raises(Conflict):
            store.commit(read, puts, [event("mine")])

        for each in (store, other, connect()):
            assert (each.read([key, mine]).records, each.events(0, 10)) == before

    def test_a_commit_after_a_conflict_works_with_fresh_versions(self, store: Store) -> None:
        put(store, lock("x", token=1))
        with pytest.raises(Conflict):
            store.commit({key_of("x"): 0}, {key_of("x"): lock("x", token=2)}, ())
        put(store, lock("x", token=3))
        assert record_of(store, "x") == lock("x", token=3)

    def test_versions_of_a_key_never_repeat(self, connect: Connect, store: Store) -> None:
        other, seen = connect(), []
        for round_ in range(6):
            each = (store, other)[round_ % 2]
            put(each, lock("x", token=round_))
            seen.append(versions(each, key_of("x"))[key_of("x")])
            if round_ % 3 == 2:
                drop(each, key_of("x"))
                assert versions(each, key_of("x")) == {key_of("x"): 0}
        assert len(set(seen)) == len(seen)

    def test_deleting_what_is_absent_is_fine(self, store: Store) -> None:
        drop(store, key_of("never"))
        assert store.read([key_of("never")]).records == {key_of("never"): ABSENT}

    def test_a_connection_sees_at_once_what_another_committed(self, connect: Connect, store: Store) -> None:
        other = connect()
        for token in range(1, 5):
            put(store, lock("x", token=token))
            assert record_of(other, "x") == lock("x", token=token)
            drop(other, key_of("x"))
            assert store.read([key_of("x")]).records[key_of("x")] == ABSENT

    @pytest.mark.fault("F-035")
    def test_one_commit_takes_a_decision_of_many_records_and_events(self, connect: Connect, store: Store) -> None:
        names = [f"job-{number:05}" for number in range(self.many)]
        keys = [key_of(name) for name in names]
        written = tuple(event(name) for name in names)
        seq = put(store, *[lock(name) for name in names], events=written)
        for each in (store, connect()):
            assert all(found.record for found in each.read(keys).records.values())
            assert [key for key, _ in each.scan("lock/", limit=self.many + 1)] == keys
        assert [each.job for each in store.events(0, self.many + 1)] == names
        if store.capabilities.one_log:
            assert store.events(0, 1, newest=True)[0].seq == seq
        drop(store, *keys)
        assert connect().scan("") == []

    @pytest.mark.fault("F-035")
    @pytest.mark.promise("excl")
    def test_a_decision_of_many_records_is_void_if_any_of_them_has_changed(
        self, connect: Connect, store: Store
    ) -> None:
        names = [f"job-{number:05}" for number in range(self.many)]
        put(store, *[lock(name) for name in names])
        keys = [key_of(name) for name in names]
        absent = key_of("absent")
        other = connect()
        read = versions(store, *keys, absent)
        for at, meanwhile in (
            (0, "changed"),
            (self.many // 2, "deleted"),
            (self.many - 1, "deleted and made anew"),
            (1, "made"),
        ):
            if meanwhile.startswith("deleted"):
                drop(other, keys[at])
            if meanwhile != "deleted":
                put(other, lock("absent" if meanwhile == "made" else names[at], token=2))
            puts: dict[str, Stored | None] = {key: lock(name, token=3) for key, name in zip(keys, names, strict=True)}
            if at:  # it compares many, and writes one
                puts = {keys[2]: lock(names[2], token=3)}
            with pytest.raises(Conflict):
                store.commit(read, puts, [event("x")])
            read |= versions(other, keys[at], absent)
        assert versions(store, *keys, absent) == read
        assert store.events(0, 1) == []

    def test_listing_is_in_the_order_of_code_points_and_pages_without_gaps(self, store: Store) -> None:
        put(store, *[lock(name) for name in ODD_NAMES])
        expected = sorted(key_of(name) for name in ODD_NAMES)
        assert [key for key, _ in store.scan("lock/default/")] == expected
        paged: list[str] = []
        while page := store.scan("lock/default/", after=paged[-1] if paged else "", limit=3):
            assert len(page) <= 3
            paged += [key for key, _ in page]
        assert paged == expected

    @pytest.mark.parametrize("prefix", [*ODD_NAMES, "", "a/", "no such", "%", "_", "e"])
    def test_a_prefix_is_text_and_nothing_else(self, store: Store, prefix: str) -> None:
        put(store, *[lock(name) for name in ODD_NAMES], lock("elsewhere", ns="other"))
        expected = sorted(key_of(name) for name in ODD_NAMES if name.startswith(prefix))
        assert [key for key, _ in store.scan(key_of(prefix))] == expected

    def test_listing_shows_records_and_their_versions(self, store: Store) -> None:
        put(store, lock("x"), lock("y", token=5))
        assert dict(store.scan("lock/")) == store.read([key_of("x"), key_of("y")]).records
        assert store.scan("lock/", limit=0) == []
        assert store.scan("lock/", after=key_of("y")) == []

    def test_listing_what_is_live_passes_over_idle_jobs_and_ended_sessions(
        self, connect: Connect, store: Store
    ) -> None:
        ending = Ending(lease_id="l", owner='"holders":[', principal='"line":[', token=1, how="released", at_ms=5)
        idle = lock("b").replace(holders=(), endings=(ending,))
        put(store, lock("a"), idle, lock("c").replace(holders=(), line=(1,)), lock("d"), lock("e"))
        session = SessionRecord(
            ns="default",
            id="on",
            principal="p",
            owner="o",
            ttl_ms=1,
            since_ms=1,
            renewed_ms=1,
            expires_ms=10**15,
        )
        sessions: dict[str, Stored | None] = {
            "session/on": session,
            "session/over": session.replace(id="over", ended_ms=5),
        }
        store.commit(dict.fromkeys(sessions, 0), sessions, ())
        for each in (store, connect()):
            live = [key_of(name) for name in "acde"]
            assert [key for key, _ in each.scan("lock/", live=True)] == live
            assert [key for key, _ in each.scan("lock/", key_of("a"), 2, live=True)] == live[1:3]
            assert [key for key, _ in each.scan("session/", live=True)] == ["session/on"]
            assert [key for key, _ in each.scan("", live=True)] == [*live, "session/on"]
        put(store, idle.replace(name="a"), lock("b", token=2))
        assert [key for key, _ in connect().scan("lock/", live=True)] == [key_of(name) for name in "bcde"]

    def test_what_is_due_comes_longest_due_first(self, store: Store, pass_time: PassTime) -> None:
        now_ms = store.read(()).now_ms
        put(
            store,
            lock("third", expires_ms=now_ms + 3),
            lock("first", expires_ms=now_ms + 1),
            lock("second", expires_ms=now_ms + 2),
            lock("later", expires_ms=now_ms + 3_600_000),
        )
        pass_time(5)
        assert store.due(10).keys == [key_of("first"), key_of("second"), key_of("third")]
        assert store.due(2).keys == [key_of("first"), key_of("second")]
        assert store.due(0).next_ms == now_ms + 1

    @pytest.mark.promise("lease:never-early")
    def test_nothing_is_due_before_its_time(self, store: Store, pass_time: PassTime) -> None:
        expires_ms = store.read(()).now_ms + 60
        put(store, lock("x", expires_ms=expires_ms))
        while True:
            due = store.due(10).keys
            now_ms = store.read(()).now_ms
            if due:
                break
            pass_time(7)
        assert now_ms >= expires_ms
        assert due == [key_of("x")]

    def test_what_was_put_off_or_deleted_is_due_no_more(self, store: Store) -> None:
        assert store.due(0).next_ms is None
        put(store, lock("moved", expires_ms=1), lock("gone", expires_ms=2))
        assert store.due(10).keys == [key_of("moved"), key_of("gone")]
        put(store, lock("moved", expires_ms=10**15))
        drop(store, key_of("gone"))
        # A record that is never due.
        store.commit({pulse_key("s"): 0}, {pulse_key("s"): Pulse(server="s", at_ms=1)}, ())
        assert store.due(10).keys == []
        assert store.due(0).next_ms == 10**15

    @pytest.mark.promise("durable")
    def test_what_was_committed_is_there_when_it_is_opened_again(self, connect: Connect, store: Store) -> None:
        if not store.capabilities.durable:
            pytest.skip("it declares that it is not durable")
        seq = put(store, lock("x"), events=(event("x"),))
        store.close()
        again = connect()
        assert record_of(again, "x") == lock("x")
        assert [each.seq for each in again.events(0, 10)] == [seq]
        assert put(again, lock("y"), events=(event("y"),)) > seq

    def test_it_says_how_large_it_is_if_it_can_and_may_be_closed_twice(self, store: Store) -> None:
        put(store, lock("x"))
        if isinstance(store, Maintenance) and type(store).size_bytes is not Maintenance.size_bytes:
            assert store.size_bytes() > 0
        store.close()
        store.close()
