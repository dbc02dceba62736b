"""Work that fails, in Python: what counts as an attempt, what does not, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.client.flow import Flow
from dibs.client.transport import Ask
from dibs.sdk.claim import Claim
from dibs.sdk.claim_state import failures_in, reason_of
from dibs.sdk.heart import Grip
from dibs.sdk.hold import SessionHold
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.pool import TransportPool
    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.client import Client
    from dibs.sdk.hold import LeaseHold

    Connect = Callable[..., Client]


def last_of(client: Client, name: str) -> tuple[str, str | None]:
    event = client.history(name)[-1]
    return event.event, event.document.get("reason")


def attempt_of(client: Client, name: str) -> int:
    with client.claim(name) as claim:
        return claim.attempt


@over()
@pytest.mark.promise("attempts")
def test_a_block_that_raises_counts_as_failed_and_its_text_stays_at_home(connect: Connect) -> None:
    client = connect()
    for attempt in (1, 2, 3):
        with pytest.raises(ValueError, match="hunter2"), client.claim("job", max_attempts=3) as claim:
            assert claim.attempt == attempt
            raise ValueError("the password is hunter2")
    with pytest.raises(dibs.JobParked), client.claim("job"):
        pass
    kinds = [event.event for event in client.history("job")]
    assert kinds == ["acquired", "failed"] * 3 + ["parked"]
    assert "hunter2" not in str([event.document for event in client.history("job")])
    assert client.free("job")
    with client.claim("job") as claim:
        previous = claim.previous
    assert previous is not None
    assert (previous.how, previous.reason, previous.attempt) == ("failed", "raised ValueError", 3)


@over("memory", "server")
@pytest.mark.promise("attempts")
def test_claim_fail_says_why_and_until_when_nobody_is_to_try_again(connect: Connect) -> None:
    client = connect()
    with client.claim("job") as claim:
        claim.fail("registry away", retry_after=60, checkpoint="half")
    with pytest.raises(dibs.JobResting, match="registry away") as refused, client.claim("job"):
        pass
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after <= 60
    with client.claim_any(["job", "other"]) as claim:
        assert claim.name == "other"
    assert client.free("job")
    with client.claim("job") as claim:
        assert claim.previous is not None
        assert (claim.previous.how, claim.previous.checkpoint) == ("failed", "half")


@over("memory")
@pytest.mark.parametrize("step", ["_taken", "_keep"])
def test_an_interrupt_after_a_step_of_the_claim_leaves_nothing_claimed(
    connect: Connect, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = getattr(Claim, step)

    def interrupted(self: Claim, *about: object) -> None:
        done(self, *about)
        raise KeyboardInterrupt

    client = connect()
    monkeypatch.setattr(Claim, step, interrupted)
    with pytest.raises(KeyboardInterrupt), client.claim("job"):
        pass
    assert client.owner("job").status == "free"


@over("memory")
def test_an_interrupt_before_a_claim_refers_to_its_grip_leaves_nothing_claimed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(hold: LeaseHold, transports: TransportPool) -> None:
        Grip(hold, transports)
        raise KeyboardInterrupt

    client = connect()
    monkeypatch.setattr("dibs.sdk.claim.Grip", interrupted)
    with pytest.raises(KeyboardInterrupt), client.claim("job"):
        pass
    assert client.owner("job").status == "free"
    Grip.__new__(Grip).__del__()  # an interrupt came before its first step


@over("memory")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_is_no_verdict_and_leaves_the_count_as_it_is(
    connect: Connect, interrupt: type[BaseException]
) -> None:
    client = connect()
    with pytest.raises(OSError, match="disk"), client.claim("job") as claim:
        claim.checkpoint("half")
        raise OSError("disk")
    with pytest.raises(interrupt), client.claim("job"):
        raise interrupt
    assert last_of(client, "job") == ("released", None)
    with client.claim("job") as claim:
        assert (claim.attempt, claim.previous and claim.previous.checkpoint) == (2, "half")


@over("memory")
def test_another_job_that_is_held_or_lost_is_no_failure_of_this_one(connect: Connect) -> None:
    client = connect()
    taken = client.acquire("inner")
    with pytest.raises(dibs.JobHeld), client.claim("outer"), client.claim("inner"):
        pass
    assert last_of(client, "outer") == ("released", None)
    with pytest.raises(dibs.LeaseLost), client.claim("outer"):
        client.renew("inner", "00000000-0000-4000-8000-000000000000")
    assert last_of(client, "outer") == ("released", None)
    client.release("inner", taken.lease_id)


@over("memory")
def test_told_otherwise_a_block_that_raises_releases(connect: Connect) -> None:
    client = connect()
    with pytest.raises(ValueError, match="x"), client.claim("job", fail_on_error=False):
        raise ValueError("x")
    with pytest.raises(ValueError, match="x"), client.claim_any(["job"], fail_on_error=False):
        raise ValueError("x")
    with pytest.raises(ValueError, match="x"), client.claim_all(["job"], fail_on_error=False):
        raise ValueError("x")
    assert [event.event for event in client.history("job")] == ["acquired", "released"] * 3
    assert attempt_of(client, "job") == 1


@over("memory")
def test_what_was_ended_before_the_error_stays_as_it_was(connect: Connect) -> None:
    client = connect()
    with pytest.raises(ValueError, match="x"), client.claim("job") as claim:
        claim.done("all of it")
        raise ValueError("x")
    assert last_of(client, "job") == ("released", None)
    with pytest.raises(dibs.JobDone), client.claim("job"):
        pass


@over("memory", "server")
def test_several_and_claims_of_a_session_fail_together_and_a_lock_only_releases(connect: Connect) -> None:
    client = connect()
    with pytest.raises(ValueError, match="x"), client.claim_all(["a", "b"]):
        raise ValueError("x")
    assert last_of(client, "a") == last_of(client, "b") == ("failed", "raised ValueError")
    with client.session() as session, pytest.raises(ValueError, match="x"), session.claim("c"):
        raise ValueError("x")
    assert last_of(client, "c") == ("failed", "raised ValueError")
    with client.session() as session, session.claim("d") as claim:
        claim.fail("why")
    assert last_of(client, "d") == ("failed", "why")
    with pytest.raises(ValueError, match="x"), dibs.Lock("e", client=client):
        raise ValueError("x")
    assert last_of(client, "e") == ("released", None)


@over("memory")
def test_a_reason_is_cut_and_cleaned_and_a_retry_time_may_not_be_nonsense(connect: Connect) -> None:
    client = connect()
    with client.claim("job") as claim:
        for wrong in (-1, float("nan"), 8 * 86_400):
            with pytest.raises(dibs.InvalidInput, match="retry_after"):
                claim.fail("why", retry_after=wrong)
        claim.check()
        claim.fail("\udcff" * 5_000, retry_after=0.2)
    event, reason = last_of(client, "job")
    assert event == "failed"
    assert reason is not None
    assert (len(reason), reason[:6]) == (1024, "\\udcff")


def test_fail_job_stands_beside_release_job(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("DIBS_URL", f"sqlite://{tmp_path}/dibs.db")
    lease = dibs.claim_job("job", "alice")
    dibs.fail_job("job", lease.lease_id, "no disk", retry_after=60)
    with pytest.raises(dibs.JobResting):
        dibs.claim_job("job", "bob")


@over("memory", "server")
@pytest.mark.promise("attempts")
def test_async_blocks_fail_too_and_cancellation_is_no_failure(
    connect_async: Callable[..., AsyncClient],
) -> None:
    async def main() -> None:
        async with connect_async() as client:
            with pytest.raises(ValueError, match="x"):
                async with client.claim("job"):
                    raise ValueError("x")
            async with client.claim("job") as claim:
                assert claim.attempt == 2
                await claim.fail("why", retry_after=0)

            async def work() -> None:
                async with client.claim("job"):
                    inside.set()
                    await asyncio.sleep(60)

            inside = asyncio.Event()
            task = asyncio.ensure_future(work())
            await asyncio.wait_for(inside.wait(), 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            kinds = [(event.event, event.document.get("reason")) for event in await client.history("job")]
            assert kinds[1::2] == [("failed", "raised ValueError"), ("failed", "why"), ("released", None)]
            lease = await client.acquire("job")
            assert lease.attempt == 3
            await client.fail("job", lease.lease_id, "again")
            assert (await client.history("job"))[-1].event == "failed"

    asyncio.run(main())


@pytest.mark.parametrize("why", ["It expired 2s ago. Stop the work. Nobody has the job now.", "It was broken."])
def test_a_lost_lease_says_once_to_stop_the_work(why: str) -> None:
    assert str(dibs.LeaseLost("issue-7", 3, why)).count("Stop the work.") == 1


class Unanswered:
    """A claim whose withdrawal is answered at the second try."""

    def __init__(self) -> None:
        self.tries = 0

    def withdraw(self) -> Flow[bool]:
        self.tries += 1
        yield Ask("withdraw")
        return self.tries > 1


@pytest.mark.fault("F-261")
def test_a_withdrawal_without_an_answer_is_sent_with_the_next_heartbeat_and_nobody_waits_for_it() -> None:
    session = SessionHold({"owner": "me", "remaining_ms": 60_000, "session_id": "s"}, 0)
    session.say_later(Unanswered().withdraw)
    one, other = session.say_again(), session.say_again()  # two threads: the same request twice
    assert isinstance(next(one), Ask)
    assert isinstance(next(other), Ask)
    assert list(one) == []
    assert list(other) == []
    assert list(session.say_again()) == []


def kinds_of(*names: str) -> list[Exception]:
    return [type(name, (Exception,), {})("a secret") for name in names]


REFUSED, LOST = dibs.JobHeld("bob has other"), dibs.LeaseLost("other", 1, "it was broken.")
VERDICTS: list[tuple[BaseException, str | None]] = [
    (ExceptionGroup("g", [REFUSED]), None),
    (ExceptionGroup("g", [REFUSED, LOST, dibs.JobDone("done")]), None),
    (ExceptionGroup("g", [ExceptionGroup("g", [LOST]), ExceptionGroup("g", [ExceptionGroup("g", [REFUSED])])]), None),
    (BaseExceptionGroup("g", [asyncio.CancelledError(), REFUSED]), None),
    (BaseExceptionGroup("g", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()]), None),
    (ValueError("a secret"), "raised ValueError"),
    (dibs.InvalidInput("a secret"), "raised InvalidInput"),
    (ExceptionGroup("a secret", [ValueError("a secret"), REFUSED]), "raised ExceptionGroup of ValueError"),
    (
        ExceptionGroup("g", [ValueError(), ExceptionGroup("g", [KeyError(), ValueError()])]),
        "raised ExceptionGroup of ValueError, KeyError",
    ),
    (BaseExceptionGroup("g", [KeyboardInterrupt(), OSError()]), "raised BaseExceptionGroup of OSError"),
    (ExceptionGroup("g", kinds_of(*"ABCDEFG")), "raised ExceptionGroup of A, B, C, D, E and 2 more"),
]


@over("memory")
@pytest.mark.promise("attempts")
@pytest.mark.fault("F-342")
@pytest.mark.parametrize(("error", "reason"), VERDICTS, ids=str)
def test_a_group_has_failed_if_something_in_it_has_and_the_reason_names_that(
    connect: Connect, error: BaseException, reason: str | None
) -> None:
    client = connect()
    with pytest.raises(OSError, match="disk"), client.claim("job"):
        raise OSError("disk")
    with pytest.raises(type(error)), client.claim("job"):
        raise error
    assert last_of(client, "job") == ("released" if reason is None else "failed", reason)
    assert "secret" not in str([event.document for event in client.history("job")])
    assert attempt_of(client, "job") == (2 if reason is None else 3)


@over("memory")
@pytest.mark.fault("F-342")
def test_a_job_is_not_parked_because_its_neighbours_are_busy(connect: Connect) -> None:
    client = connect()
    for _ in range(3):
        with client.claim("busy"), contextlib.suppress(dibs.JobHeld):
            try:
                with client.claim("job", max_attempts=2):
                    try:
                        with client.claim("busy"):
                            pytest.fail("two owners")
                    except* dibs.JobHeld:
                        raise  # as a group, from here on
            except* dibs.JobHeld as group:
                raise group.exceptions[0] from None
    assert client.owner("job").status == "free"
    assert [event.event for event in client.history("job")] == ["acquired", "released"] * 3


@pytest.mark.fault("F-342")
def test_the_reason_of_a_group_is_bounded_however_much_is_in_it() -> None:
    deep: Exception = ValueError()
    for _ in range(100_000):
        deep = ExceptionGroup("g", [deep])
    assert reason_of(deep) == "raised ExceptionGroup of ValueError"
    wide = ExceptionGroup("g", [*kinds_of("E" * 5_000), *([ValueError()] * 100_000)])
    assert len(failures_in(wide)) == 100_001
    while isinstance(deep, ExceptionGroup):  # Python frees what is so deep by recursion
        deep = deep.exceptions[0]


@over("memory", "server")
@pytest.mark.fault("F-343")
def test_a_block_of_a_lock_that_raises_is_no_failure_of_threads_or_of_loops(
    connect: Connect, connect_async: Callable[..., AsyncClient]
) -> None:
    def blocks(error: BaseException, client: Client) -> None:
        for lock in (dibs.Lock("job", client=client), dibs.RLock("job", client=client)):
            with pytest.raises(type(error)), lock:
                raise error

    async def blocks_of_loops(error: BaseException) -> list[str]:
        async with connect_async() as own:
            with pytest.raises(type(error)):
                async with dibs.AsyncLock("job", client=own):
                    raise error
            return [event.event for event in await own.history("job")]

    client = connect()
    for error in (ValueError(), REFUSED, ExceptionGroup("g", [ValueError()]), asyncio.CancelledError()):
        blocks(error, client)
        assert set(asyncio.run(blocks_of_loops(error))) == {"acquired", "released"}
    assert {event.event for event in client.history("job")} == {"acquired", "released"}
    assert attempt_of(client, "job") == 1


@over("memory")
def test_a_loss_that_a_release_finds_out_is_noted_on_the_blocks_own_error(connect: Connect) -> None:
    client = connect()
    for block in (client.claim("job"), dibs.Lock("job", client=client)):
        with pytest.raises(ValueError, match="own") as raised, block:
            client.break_claim("job", "an outage")
            raise ValueError("own")
        assert "By then the claim was lost" in raised.value.__notes__[0]
