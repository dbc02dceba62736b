"""Blocks and exceptions of a claim, for threads: what a block has, how it ends, and which exception says why not."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidName
from dibs.client.transport import Ask
from tests.programs import wait_until
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.client import Client


@over()
def test_a_block_has_the_job_and_lets_it_go(client: Client) -> None:
    with client.claim("job", ttl=30, metadata="runner=1") as claim:
        status = client.owner("job")
        assert (status.owner, status.metadata, status.status) == ("alice", "runner=1", "held")
        assert claim.fencing_token == status.fencing_token == 1
        assert 25 < claim.remaining() < 30
        claim.check()
    assert client.owner("job").status == "free"


@over()
@pytest.mark.promise("excl:same-token")
def test_the_second_block_is_told_who_has_the_job(client: Client) -> None:
    with client.claim("job"), pytest.raises(dibs.JobHeld) as refused, client.claim("job", owner="bob"):
        pytest.fail("two owners")
    assert refused.value.owner == "alice"
    assert refused.value.retry_after is not None
    assert "alice has " in str(refused.value)


@over()
def test_a_block_that_fails_lets_go_as_well(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.claim("job"):
        raise ZeroDivisionError
    assert not client.owner("job").held


@over()
def test_whoever_takes_over_sees_where_the_last_one_stopped(client: Client) -> None:
    with client.claim("job") as claim:
        claim.checkpoint("step 3 of 5")
    with client.claim("job", owner="bob") as claim:
        assert claim.previous is not None
        assert (claim.previous.owner, claim.previous.how) == ("alice", "released")
        assert claim.previous.checkpoint == "step 3 of 5"


@over()
def test_done_is_reported_to_the_next_one_with_the_result(client: Client) -> None:
    with client.claim("job") as claim:
        claim.done("PR 77", done=60)
        with pytest.raises(dibs.LeaseLost, match="released"):
            claim.check()
    with pytest.raises(dibs.JobDone) as refused, client.claim("job", owner="bob"):
        pytest.fail("done twice")
    assert (refused.value.owner, refused.value.result) == ("alice", "PR 77")
    with client.claim("job", again=True):
        pass


@over()
def test_any_of_several_is_the_first_that_is_free(client: Client) -> None:
    with client.claim("a"), client.claim_any(["a", "b", "c"]) as claim:
        assert claim.name == "b"
        with (
            client.claim("c"),
            pytest.raises(dibs.JobHeld, match="a \\(held by alice\\)"),
            client.claim_any(["a", "b", "c"]),
        ):
            pytest.fail("none was free")


def make_done(client: Client, name: str) -> None:
    with client.claim(name) as claim:
        claim.done(f"result of {name}", done=60)


def park(client: Client, name: str) -> None:
    with client.claim(name, max_attempts=1) as claim:
        claim.fail("it does not build")


@over()
@pytest.mark.fault("F-171")
def test_a_loop_over_a_backlog_ends_when_all_is_done(client: Client) -> None:
    backlog, worked = ["a", "b", "c"], []

    def work() -> None:
        for _ in range(len(backlog) + 1):
            with client.claim_any(backlog) as claim:
                worked.append(claim.name)
                claim.done()

    with pytest.raises(dibs.JobDone) as told:
        work()
    assert [(each.name, each.code) for each in told.value.refusals] == [(name, "done") for name in backlog]
    assert worked == backlog


@over()
def test_a_claim_on_any_of_several_says_why_none_was_free(client: Client) -> None:
    for name in ("d1", "d2"):
        make_done(client, name)
    for name in ("p1", "p2"):
        park(client, name)

    def refused(*names: str) -> dibs.NotClaimed:
        with pytest.raises(dibs.NotClaimed) as told, client.claim_any(names):
            pytest.fail("claimed")
        return told.value

    parked = refused("p1", "p2")
    assert type(parked) is dibs.JobParked
    assert (parked.code, parked.retry_after, parked.owner) == ("parked", None, None)
    done, other = refused("p1", "d1").refusals[1], refused("p1", "d1")
    assert type(other) is dibs.JobParked, "what is done does not come free either"
    assert isinstance(done, dibs.JobDone)
    assert (done.name, done.result, done.owner) == ("d1", "result of d1", "alice")
    with client.claim("h", ttl=30):
        mixed = refused("d1", "h", "p1")
        assert type(mixed) is dibs.NoneFree
        assert mixed.retry_after is not None
        assert 0 < mixed.retry_after <= 30, "the owner's time, not that of the done mark"
        assert [type(each) for each in mixed.refusals] == [dibs.JobDone, dibs.JobHeld, dibs.JobParked]
        assert [each.owner for each in mixed.refusals] == ["alice", "alice", None]
        assert "p1 (parked), d1 (done), h (held by alice)" in str(mixed)
        held, parked = mixed.refusals[1:]
        assert isinstance(held, dibs.JobHeld)
        assert held.expires_in is not None
        assert held.expires_in <= 30
        assert isinstance(parked, dibs.JobParked)
        assert parked.failures == 1


@over()
def test_a_claim_on_all_of_several_says_whether_waiting_helps(client: Client) -> None:
    make_done(client, "done")
    park(client, "parked")
    with client.claim("held"):
        for names, kind in (
            (("held", "free"), dibs.NoneFree),
            (("held", "parked", "free"), dibs.JobParked),
            (("held", "parked", "done"), dibs.JobParked),
            (("done", "free"), dibs.NoneFree),
            (("done",), dibs.JobDone),
        ):
            with pytest.raises(dibs.NotClaimed) as told, client.claim_all(names):
                pytest.fail("claimed")
            assert type(told.value) is kind
            assert {each.name for each in told.value.refusals} == {*names} - {"free"}


@over()
@pytest.mark.promise("all-or-nothing")
def test_all_of_several_are_had_and_let_go_together(client: Client) -> None:
    with client.claim_all(["a", "b"]) as claim:
        assert claim.names == ("a", "b")
        assert claim.fencing_tokens == {"a": 1, "b": 1}
        claim.checkpoint("both")
        with pytest.raises(dibs.JobHeld), client.claim_all(["b", "c"]):
            pytest.fail("b was held")
        assert [status.name for status in client.list()] == ["a", "b"]
    assert client.list() == []


@over()
@pytest.mark.promise("queue:fifo")
def test_a_block_can_wait_in_line(client: Client) -> None:
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with client.claim("job"):
            entered.set()
            assert leave.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(60)

    def let_in() -> None:
        wait_until(lambda: client.owner("job").document["waiting"], "one waits")
        leave.set()

    waiting = threading.Thread(target=let_in)
    waiting.start()
    with client.claim("job", wait=60, ttl=60) as claim:
        # The time counts from the renewal after the wait, not from before it.
        assert claim.remaining() > 40
        assert claim.fencing_token == 2
    thread.join(60)
    waiting.join(60)


@over()
def test_a_wait_that_is_over_leaves_the_line(client: Client) -> None:
    with client.claim("job"):
        for wait in (0.1, 1):
            with pytest.raises(dibs.JobHeld), client.claim("job", wait=wait):
                pytest.fail("two owners")
        assert client.owner("job").document["waiting"] == 0


@over("sqlite", "server")
def test_heartbeats_keep_the_job_for_longer_than_its_ttl(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.claim("job", ttl=5) as claim:  # the first heartbeat comes after a third of it
        born = client.owner("job").expires_at
        wait_until(lambda: (client.owner("job").expires_at or "") > (born or "") or None, "it was renewed")
        claim.check()


@over()
@pytest.mark.promise("loss:told")
def test_a_broken_claim_is_reported_with_the_reason_and_ends_the_block(client: Client, due: Callable[[], None]) -> None:
    told: list[dibs.LeaseLost] = []
    with pytest.raises(dibs.LeaseLost) as lost, client.claim("job", ttl=60, on_lost=told.append) as claim:
        client.break_claim("job", "it hangs")
        due()
        assert claim.lost.wait(60)
        with pytest.raises(dibs.LeaseLost):
            claim.check()
        assert claim.remaining() == 0
    assert "it hangs" in lost.value.why
    wait_until(lambda: told, "on_lost is called")
    assert [str(each) for each in told] == [str(lost.value)]
    assert (lost.value.name, lost.value.fencing_token) == ("job", 1)


@over("memory", "sqlite")
@pytest.mark.promise("loss:told")
def test_an_owner_that_slept_past_its_deadline_knows_before_it_asks_anybody(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(dibs.LeaseLost, match="no heartbeat was answered in time"),
        client.claim("job", ttl=60) as claim,
    ):
        monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 58_000)
        assert claim.lost.is_set()
        with pytest.raises(dibs.LeaseLost):
            claim.check()
        assert client.owner("job").held  # for the store it is not over yet


@over("memory")
def test_the_error_of_a_block_is_not_hidden_by_the_loss(client: Client, due: Callable[[], None]) -> None:
    with pytest.raises(ZeroDivisionError) as failed, client.claim("job", ttl=60) as claim:
        client.break_claim("job", "it hangs")
        due()
        assert claim.lost.wait(60)
        raise ZeroDivisionError
    assert "it hangs" in failed.value.__notes__[0]


@over("memory")
def test_a_claim_is_for_one_block(client: Client) -> None:
    claim = client.claim("job")
    with pytest.raises(dibs.InvalidInput, match="not taken yet"):
        claim.check()
    with claim:
        pass
    with pytest.raises(dibs.InvalidInput, match="for one block"), claim:
        pytest.fail("entered twice")


@over()
def test_handing_over_ends_the_claim_and_gives_the_new_owner_its_lease(client: Client) -> None:
    with client.claim("job") as claim:
        lease = claim.transfer(to_owner="bob", checkpoint="half")
        with pytest.raises(dibs.LeaseLost):
            claim.check()
    assert client.owner("job").owner == "bob"
    assert client.renew("job", lease.lease_id).fencing_token == lease.fencing_token
    client.release("job", lease.lease_id)


@over()
def test_a_session_holds_several_jobs_with_one_heartbeat(client: Client) -> None:
    with client.session(ttl=10, owner="worker") as session:
        with session.claim("a") as a, session.claim_all(["b", "c"]) as rest:
            a.checkpoint("x")
            assert {status.owner for status in client.list()} == {"worker"}
            assert rest.remaining() == pytest.approx(session.remaining(), abs=1)
        assert client.list() == []
        left = session.claim("left").__enter__()
    assert client.list() == []
    with pytest.raises(dibs.LeaseLost):
        left.check()
    with pytest.raises(dibs.LeaseLost):
        session.check()


@over("sqlite")
@pytest.mark.promise("loss:told")
def test_a_claim_that_is_taken_out_of_a_session_is_reported(client: Client) -> None:
    with client.session(ttl=10) as session, session.claim("keep") as keep:
        with pytest.raises(dibs.LeaseLost, match="taken away"), session.claim("job") as claim:
            client.break_claim("job", "it hangs")
            session._grip.heart.beat()  # type: ignore[union-attr]  # which comes by itself after a third of the TTL
            assert claim.lost.is_set()
        keep.check()


@over()
@pytest.mark.promise("excl")
def test_a_session_does_not_get_twice_what_it_has(client: Client) -> None:
    with client.session() as session, session.claim("job") as claim:
        with pytest.raises(dibs.JobHeld, match="this very session"), session.claim("job"):
            pytest.fail("two owners")
        with pytest.raises(dibs.JobHeld), session.claim_all(["job", "other"]):
            pytest.fail("two owners")
        claim.check()
        assert client.owner("job").held
        assert not client.owner("other").held


@over()
@pytest.mark.fault("F-264")
@pytest.mark.promise("excl")
def test_a_session_that_has_one_of_two_jobs_does_not_give_back_what_another_process_of_it_has(client: Client) -> None:
    with client.session() as session, session.claim("job"):
        with client._transports.one() as transport:
            transport.ask(
                Ask("acquire", "other", {"session_id": session.session_id, "request_key": "of another process"})
            )
        with pytest.raises(dibs.JobHeld), session.claim_all(["job", "other"]):
            pytest.fail("two owners")
        assert client.owner("other").held


@over("sqlite")
def test_a_lost_session_loses_all_that_was_claimed_in_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    session = client.session(ttl=10)
    with pytest.raises(dibs.LeaseLost), session, session.claim("job") as claim:
        monkeypatch.setattr("dibs.sdk.hold.steady_ms", lambda: steady_ms() + 10_000)
        with pytest.raises(dibs.LeaseLost):
            session.check()
        assert claim.lost.is_set()


@over()
def test_history_and_list_are_typed(client: Client) -> None:
    with client.claim("dir/a") as claim:
        assert [status.name for status in client.list("dir/")] == ["dir/a"]
        assert client.list("other/") == []
        (event,) = client.history("dir/a")
        assert (event.event, event.owner, event.fencing_token) == ("acquired", "alice", claim.fencing_token)


@over()
def test_by_hand_a_lease_is_renewed_released_and_said_to_be_lost(client: Client) -> None:
    lease = client.acquire("job", ttl=30)
    assert "lease_id" not in repr(lease)
    assert client.renew("job", lease.lease_id, checkpoint="x").fencing_token == lease.fencing_token
    client.release("job", lease.lease_id, done=60, result="r")
    client.release("job", lease.lease_id)  # again is fine
    with pytest.raises(dibs.LeaseLost):
        client.renew("job", lease.lease_id)


@over()
@pytest.mark.promise("idem:acquire")
def test_the_same_request_key_gives_the_same_lease(client: Client) -> None:
    first = client.acquire("job", request_key="k")
    assert client.acquire("job", request_key="k").lease_id == first.lease_id


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 513}, "512"),
        ({"name": "job", "ttl": 0}, "at least one second"),
        ({"name": "job", "ttl": 0.5}, "from 1 to 86400"),
        ({"name": "job", "ttl": math.inf}, "number of seconds"),
        ({"name": "job", "wait": -1}, "not negative"),
        ({"name": "job", "wait": math.nan}, "not negative"),
        ({"name": "job", "metadata": "x" * 2000}, "metadata"),
        ({"name": "job", "shared": True, "slots": 2}, "slots"),
    ],
)
@over("memory")
def test_what_cannot_be_is_refused_with_what_to_do(client: Client, wish: dict[str, object], says: str) -> None:
    with pytest.raises(dibs.InvalidInput, match=f"(?i){says}"), client.claim(**wish):  # type: ignore[arg-type]
        pytest.fail("claimed")
    assert client.list() == []


def test_a_server_that_is_not_there_is_said_so() -> None:
    client = dibs.connect("http://127.0.0.1:1")
    with pytest.raises(dibs.Unavailable, match="No server answers"), client.claim("job"):
        pytest.fail("claimed")


@over("memory")
def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    with pytest.raises(dibs.Unavailable, match="was closed"):
        client.owner("job")


@over("sqlite")
@pytest.mark.parametrize("given", [5, None, b"job", ["job"]], ids=repr)
def test_a_name_that_is_not_text_is_refused_in_the_same_words_by_all_that_take_one(
    client: Client, given: object
) -> None:
    name: Any = given
    takers: list[Callable[[], object]] = [
        lambda: client.claim(name),
        lambda: client.claim_any(["job", name]),
        lambda: client.claim_all([name]),
        lambda: client.acquire(name),
        lambda: client.owner(name),
        lambda: client.owner(name=name),
        lambda: client.history(name),
        lambda: client.release(name, "id"),
    ]
    for take in takers:
        with pytest.raises(InvalidName, match="A job name is text; this is "):
            take()
    if given is not None:
        for prefixed in (client.list, client.events):
            with pytest.raises(dibs.InvalidInput, match="prefix is text"):
                prefixed(name)


@over("sqlite", "server")
@pytest.mark.promise("queue:newest")
def test_of_a_group_only_the_newest_waits(connect: Callable[..., Client]) -> None:
    client, told = connect(), list[object]()

    def older() -> None:
        try:
            with connect("older").claim("deploy", wait=60, replaces="main"):
                pytest.fail("it was replaced")
        except dibs.JobSuperseded as error:
            told.append((error.code, error.by, error.name))

    with client.claim("deploy"):
        thread = threading.Thread(target=older)
        thread.start()
        wait_until(lambda: client.owner("deploy").document["waiting"] == 1, "it does not wait")
        with pytest.raises(dibs.JobHeld), connect("newer").claim("deploy", wait=1, replaces="main"):
            pytest.fail("two owners")
        thread.join(60)
    assert told == [("superseded", "newer", "deploy")]
    with pytest.raises(dibs.InvalidInput, match="wait, too"):
        client.claim("deploy", replaces="main")
    with pytest.raises(dibs.InvalidInput, match="512 bytes"), client.claim("deploy", wait=1, replaces="é" * 257):
        pytest.fail("too long")


@over()
@pytest.mark.promise("overdue")
def test_a_program_can_ask_whether_a_job_ran_in_time(client: Client) -> None:
    told = client.overdue("nightly", within="26h")
    assert told
    assert (told.at, told.owner, told.overdue_by) == (None, None, None)
    with client.claim("nightly") as claim:
        claim.done("ok")
    told = client.overdue("nightly", within="26h")
    assert not told
    assert (told.owner, told.result, told.overdue_by) == ("alice", "ok", 0.0)
