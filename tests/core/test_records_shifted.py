"""Moving a record's times moves all of them, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dibs.base.record import Record
from dibs.core import records
from dibs.core.records import (
    INSTANTS,
    Done,
    Ending,
    Holder,
    LockRecord,
    Meta,
    Outage,
    Pulse,
    SessionRecord,
    Ticket,
    Want,
    shifted,
)

SPANS = {"ttl_ms", "delay_ms", "lost_ms", "longest_ms", "max_hold_ms"}
instants = st.integers(min_value=10**12, max_value=2 * 10**12)
shifts = st.integers(min_value=-(10**11), max_value=10**11)


def holders() -> st.SearchStrategy[Holder]:
    return st.builds(
        Holder,
        lease_id=st.just("l"),
        owner=st.just("o"),
        principal=st.just("p"),
        token=st.just(1),
        since_ms=instants,
        renewed_ms=instants,
        ttl_ms=st.sampled_from([0, 60_000]),
        expires_ms=instants,
        checkpoint_ms=st.none() | instants,
        delay_ms=st.sampled_from([0, 500]),
    )


def stored() -> st.SearchStrategy[records.Stored]:
    endings = st.builds(
        lambda at_ms: Ending(lease_id="l", owner="o", principal="p", token=1, how="expired", at_ms=at_ms),
        instants,
    )
    dones = st.builds(
        lambda at_ms, until_ms: Done(owner="o", token=1, at_ms=at_ms, until_ms=until_ms), instants, instants
    )
    locks = st.builds(
        LockRecord,
        ns=st.just("n"),
        name=st.just("j"),
        holders=st.lists(holders(), max_size=2).map(tuple),
        endings=st.lists(endings, max_size=2).map(tuple),
        done=st.none() | dones,
        line=st.sampled_from([(), (1, 2)]),
        delay_until_ms=st.just(0) | instants,
    )
    sessions = st.builds(
        lambda at_ms, ended_ms, until_ms: SessionRecord(
            ns="default",
            id="s",
            principal="p",
            owner="o",
            ttl_ms=60_000,
            since_ms=at_ms,
            renewed_ms=at_ms,
            expires_ms=at_ms + 60_000,
            ended_ms=ended_ms,
            want=Want(ns="n", name="j", until_ms=until_ms),
        ),
        instants,
        st.just(0) | instants,
        instants,
    )
    tickets = st.builds(
        lambda at_ms: Ticket(
            ns="n",
            name="j",
            number=3,
            lease_id="l",
            owner="o",
            principal="p",
            ttl_ms=5,
            since_ms=at_ms,
            renewed_ms=at_ms,
            expires_ms=at_ms,
        ),
        instants,
    )
    metas = st.builds(
        lambda at_ms: Meta(token_floor=7, outages=(Outage(began_ms=at_ms, ended_ms=at_ms, lost_ms=3),)),
        instants,
    )
    return locks | sessions | tickets | metas | st.builds(Pulse, at_ms=instants, server=st.just("s"))


@given(stored(), shifts)
def test_there_and_back_is_where_it_was(record: records.Stored, by_ms: int) -> None:
    assert shifted(shifted(record, by_ms), -by_ms) == record


@given(stored(), shifts)
def test_what_is_due_is_due_by_as_much_later(record: records.Stored, by_ms: int) -> None:
    due_ms = record.due_ms()
    moved_ms = shifted(record, by_ms).due_ms()
    never_used = isinstance(record, LockRecord) and not record.holders and not record.endings
    if due_ms is None:
        assert moved_ms is None
    elif not never_used:  # a job that nobody ever had is due at a fixed moment of 1970
        assert moved_ms == due_ms + by_ms


def test_every_field_in_milliseconds_is_an_instant_or_a_span() -> None:
    classes = [each for each in vars(records).values() if isinstance(each, type) and issubclass(each, Record)]
    fields = {field for each in classes for field in each._fields if field.endswith("_ms")}
    assert fields == INSTANTS | SPANS
