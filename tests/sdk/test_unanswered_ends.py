"""A session renews all that is claimed in it, so what nobody answered when a block ended is said again."""

from __future__ import annotations

import contextlib
import logging
import threading
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.client.embedded import EmbeddedTransport
from dibs.sdk.heart import beat_once
from dibs.wire.documents import Reply
from tests.build import tries
from tests.programs import WAIT_S_MAX
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.transport import Ask
    from dibs.sdk.client import Client, Session

    Connect = Callable[..., Client]

AWAY = Reply(503, {"error": "Store unavailable", "code": "upstream_unavailable", "details": "It is away."})


class Away:
    """A store that does not answer these requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.verbs: tuple[str, ...] = ()
        self.before: Callable[[Ask], None] = lambda asked: None
        ask = EmbeddedTransport.ask

        def asked_or_away(transport: EmbeddedTransport, asked: Ask) -> Reply:
            if asked.verb in self.verbs:
                return AWAY
            self.before(asked)
            return ask(transport, asked)

        monkeypatch.setattr(EmbeddedTransport, "ask", asked_or_away)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    monkeypatch.setattr("dibs.sdk.claim_state.INSIST_MS", 0)
    return Away(monkeypatch)


def beat(session: Session) -> None:
    """The next heartbeat of the session, now."""
    beat_once(session._hold, session._transports)


@over("sqlite")
@pytest.mark.promise("session")
@pytest.mark.fault("F-748")
@pytest.mark.parametrize("work", [None, ValueError("x")])
def test_the_end_of_a_block_is_said_until_it_is_answered(
    connect: Connect, away: Away, work: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = connect(), connect("bob")
    with client.session() as session:
        away.verbs = ("release", "session-keep", "session-show", "renew")
        try:
            with caplog.at_level(logging.WARNING), session.claim("job"):
                if work is not None:
                    raise work
        except ValueError:
            pass
        assert "is released with the next heartbeat of its session" in caplog.text
        beat(session)
        assert other.owner("job").status == "held"
        away.verbs = ()
        beat(session)
        assert other.owner("job").status == "free"
        last = other.history("job")[-1]
        assert last.event == ("released" if work is None else "failed")


@over("sqlite")
@pytest.mark.promise("session")
@pytest.mark.fault("F-748")
def test_a_block_gets_a_job_anew_that_an_earlier_one_could_not_release(connect: Connect, away: Away) -> None:
    with connect().session() as session:
        away.verbs = ("release",)
        with session.claim("job") as claim:
            first = claim.fencing_token
        away.verbs = ()
        with session.claim("job") as claim:
            assert claim.fencing_token > first
            beat(session)
            claim.check()
            assert connect("bob").owner("job").status == "held"


@over("sqlite")
@pytest.mark.promise("session")
@pytest.mark.fault("F-748")
def test_no_block_gets_a_job_that_another_is_just_releasing(connect: Connect, away: Away) -> None:
    """For the store both blocks are one owner: it answers the claim of the second with the lease of the first."""
    with connect().session() as session:
        refused: list[BaseException] = []
        releasing = threading.Event()

        def another() -> None:
            try:
                with session.claim("job"):
                    pass
            except dibs.JobHeld as error:
                refused.append(error)
            releasing.set()

        def before(asked: Ask) -> None:
            if asked.verb == "release" and not releasing.is_set():
                away.before = lambda asked: None
                second = threading.Thread(target=another)
                second.start()
                second.join(WAIT_S_MAX)

        away.before = before
        with session.claim("job"):
            pass
        assert releasing.is_set()
        assert len(refused) == 1
        with session.claim("job"):
            pass


@over("sqlite")
@pytest.mark.promise("loss:told")
@pytest.mark.fault("F-749")
@pytest.mark.parametrize("in_session", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_who_lost_one_of_several_jobs_gives_the_others_back(connect: Connect, in_session: bool, told: bool) -> None:
    client, other = connect(), connect("bob")
    with client.session() as session:
        claiming: Any = session if in_session else client
        with pytest.raises(dibs.LeaseLost), claiming.claim_all(["a", "b", "c"]) as claim:
            other.break_claim("a", "operator")
            if told:
                beat_once(session._hold if in_session else claim._hold, client._transports)
                assert claim.lost.is_set()
        assert [other.owner(job).status for job in "abc"] == ["free"] * 3
        assert [other.history(job)[-1].event for job in "abc"] == ["broken", "released", "released"]


@over("sqlite")
@pytest.mark.promise("session")
@pytest.mark.fault("F-777")
def test_a_checkpoint_that_nobody_took_is_sent_with_the_next_heartbeat_of_the_session(
    connect: Connect, away: Away
) -> None:
    client, other = connect(), connect("bob")
    with client.session() as session, session.claim("job") as claim:
        away.verbs = ("renew",)
        claim.checkpoint("page 7")
        beat(session)
        assert other.owner("job").checkpoint is None
        away.verbs = ()
        beat(session)
        assert other.owner("job").checkpoint == "page 7"


@over("sqlite")
@pytest.mark.fault("F-777")
@pytest.mark.parametrize("in_session", [True, False])
def test_a_checkpoint_that_nobody_took_is_sent_before_the_block_ends(
    connect: Connect, away: Away, in_session: bool
) -> None:
    client, other = connect(), connect("bob")
    with client.session() as session:
        claiming: Any = session if in_session else client
        with claiming.claim("job") as claim:
            away.verbs = ("renew",)
            claim.checkpoint("page 7")
            away.verbs = ()
        with other.claim("job") as claim:
            assert claim.previous is not None
            assert claim.previous.checkpoint == "page 7"


@over("sqlite")
@pytest.mark.promise("max-hold")
@pytest.mark.fault("F-778")
def test_the_wait_in_line_does_not_count_for_the_longest_time(
    connect: Connect, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    late: list[int] = []

    def before(asked: Ask) -> None:
        if asked.verb == "renew":  # before this is answered, the session's heart looks at the clock
            session._hold.lost()
            late.append(1)

    with client.session() as session:
        away.before = before
        sent = "dibs.client.pending.PendingClaim.sent_ms"
        monkeypatch.setattr(sent, property(lambda pending: pending._sent - 6_000, _set_sent), raising=False)
        with session.claim("job", wait=5, max_hold="5s") as claim:
            claim.check()
            assert claim.remaining() > 3
    assert late


def _set_sent(pending: Any, ms: int) -> None:
    pending._sent = ms


@over("sqlite")
@pytest.mark.promise("session")
@pytest.mark.fault("F-748")
@pytest.mark.fault("F-749")
@pytest.mark.fault("F-777")
def test_whatever_nobody_answers_a_session_ends_up_with_what_its_blocks_have(connect: Connect, away: Away) -> None:
    """Claims of one or several jobs, blocks that end well or fail, checkpoints, breaks by an operator, and a store that
    answers now and then. After it has answered for two heartbeats, the store has what the blocks think they have."""
    client, other, jobs = connect(), connect("bob"), ("a", "b", "c", "d")
    for seed in range(tries(30, 500)):
        chance = Random(seed)
        with client.session() as session:
            blocks: list[Any] = []
            noted: dict[str, str] = {}

            def end(block: Any, error: Exception | None) -> None:
                with contextlib.suppress(dibs.LeaseLost):
                    block.__exit__(type(error), error, None)

            for turn in range(40):
                away.verbs = chance.choice([(), (), ("release",), ("renew",), ("release", "renew", "session-keep")])
                step = chance.choice(["claim", "all", "end", "end", "checkpoint", "break", "beat"])
                block = chance.choice(blocks) if blocks else None
                if step in ("claim", "all"):
                    names = chance.sample(jobs, 1 if step == "claim" else 2)
                    asked = session.claim(names[0]) if step == "claim" else session.claim_all(names)
                    with contextlib.suppress(dibs.NotClaimed, dibs.Unavailable):
                        blocks.append(asked.__enter__())
                elif step == "end" and block is not None:
                    blocks.remove(block)
                    end(block, chance.choice([None, ValueError("x")]))
                elif step == "checkpoint" and block is not None:
                    with contextlib.suppress(dibs.LeaseLost):
                        block.checkpoint(f"{turn}")
                        noted |= {lease.lease_id: f"{turn}" for lease in block.leases}
                elif step == "break":
                    with contextlib.suppress(dibs.DibsError):
                        other.break_claim(chance.choice(jobs), "operator")
                elif step == "beat":
                    beat(session)
            away.verbs = ()
            beat(session)
            beat(session)
            ours = {lease.name: lease for each in blocks if not each.lost.is_set() for lease in each.leases}
            for block in [each for each in blocks if each.lost.is_set()]:
                end(block, None)
            held = {job: state for job in jobs if (state := other.owner(job)).status == "held"}
            assert held.keys() == ours.keys(), seed
            for job, lease in ours.items():
                assert held[job].fencing_token == lease.fencing_token, seed
                assert held[job].checkpoint == noted.get(lease.lease_id), seed
            for block in blocks:
                end(block, None)
