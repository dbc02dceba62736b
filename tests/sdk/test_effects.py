"""`claim.once(key)`: what a block is told of a step, what is noted when it ends, and which exception says why not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base.errors import StoreUnavailable
from dibs.client.embedded import EmbeddedTransport
from dibs.core.limits import EFFECT_RESULT_BYTES_MAX
from dibs.wire.documents import Reply, reply_for_error
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.transport import Ask
    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.client import Client

    Connect = Callable[..., AsyncClient]

pytestmark = pytest.mark.promise("effect:once", "effect:doubt-told")


class Killed(BaseException):
    """As little as is left of a process that is killed: nothing handles it."""


@over()
def test_what_an_owner_did_is_not_done_again(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.claim("job") as claim:
        with claim.once("comment") as effect:
            assert (effect.done, effect.in_doubt, effect.failed) == (False, False, False)
            effect.result = "comment 7"
        raise ZeroDivisionError
    with client.claim("job", owner="bob") as claim:
        with claim.once("comment") as effect:
            assert (effect.done, effect.result, effect.owner) == (True, "comment 7", "alice")
        with claim.once("comment") as effect:
            assert effect.done
    with client.claim("job") as claim, claim.once("comment") as effect:
        assert not effect.done  # the work was finished: this is other work


@over()
def test_what_an_owner_began_and_did_not_end_is_in_doubt(client: Client) -> None:
    with pytest.raises(Killed), client.claim("job") as claim, claim.once("mail"):
        raise Killed
    with client.claim("job", owner="bob") as claim:
        assert claim.previous is not None
        assert [(each.key, each.in_doubt, each.owner) for each in claim.previous.effects] == [("mail", True, "alice")]
        with claim.once("mail") as effect:
            assert (effect.in_doubt, effect.owner, effect.fencing_token) == (True, "alice", 1)
            effect.result = "found"
    assert client.owner("job").document.get("effects") is None


@over()
@pytest.mark.parametrize(
    ("raised", "told"), [(ValueError, "failed"), (TimeoutError, "in_doubt"), (ConnectionResetError, "in_doubt")]
)
def test_an_exception_is_noted(client: Client, raised: type[Exception], told: str) -> None:
    with pytest.raises(raised), client.claim("job") as claim, claim.once("mail"):
        raise raised("secret")
    with client.claim("job") as claim:
        assert claim.previous is not None
        (effect,) = claim.previous.effects
        assert (effect.status, effect.reason) == (told, f"raised {raised.__name__}")
        claim.fail()


@over("memory")
def test_who_calls_says_which_exceptions_leave_a_doubt(client: Client) -> None:
    with pytest.raises(ValueError), client.claim("job") as claim, claim.once("mail", unsure=(ValueError,)):  # noqa: PT011
        raise ValueError
    with client.claim("job") as claim, claim.once("mail") as effect:
        assert effect.in_doubt


@over("memory")
def test_two_tries_at_once_are_refused_and_a_step_within_a_step_is_not(client: Client) -> None:
    with client.claim("job") as claim, claim.once("outer"):
        with claim.once("inner"):
            pass
        with pytest.raises(dibs.RequestRefused, match="One try at a time"), claim.once("outer"):
            pytest.fail("two at once")


@over("memory")
@pytest.mark.parametrize("result", [7, "x" * (EFFECT_RESULT_BYTES_MAX + 1)])
def test_a_result_that_cannot_be_kept_does_not_undo_the_step(client: Client, result: object) -> None:
    with client.claim("job") as claim:
        with pytest.raises(dibs.InvalidInput, match="noted as done, without its result"), claim.once("mail") as effect:
            effect.result = result  # type: ignore[assignment]
        with claim.once("mail") as effect:
            assert (effect.done, effect.result) == (True, None)


@over()
def test_a_lost_claim_notes_nothing_and_says_so(client: Client) -> None:
    with pytest.raises(dibs.LeaseLost), client.claim("job") as claim, claim.once("mail") as effect:
        client.break_claim("job", "why")
        effect.result = "sent"
    with client.claim("job") as claim, claim.once("mail") as effect:
        assert effect.in_doubt


@over()
def test_a_block_of_an_event_loop_notes_the_same(connect_async: Connect) -> None:
    async def main() -> None:
        async with connect_async() as client:
            with pytest.raises(asyncio.CancelledError):
                async with client.claim("job") as claim:
                    async with claim.once("done") as effect:
                        effect.result = "r"
                    async with claim.once("cancelled"):
                        raise asyncio.CancelledError
            async with client.claim("job") as claim:
                assert claim.previous is not None
                told = {each.key: (each.status, each.result) for each in claim.previous.effects}
                assert told == {"done": ("done", "r"), "cancelled": ("in_doubt", None)}

    asyncio.run(main())


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`lose(3)`: nobody answers the next three notes, although they arrive."""
    ask, left = EmbeddedTransport.ask, [0, True]

    def asked(transport: EmbeddedTransport, step: Ask) -> Reply:
        if not left[0] or "effect_key" not in step.document:
            return ask(transport, step)
        left[0] -= 1
        if left[1]:
            ask(transport, step)
        return reply_for_error(StoreUnavailable("Nobody answers."))

    def lose(count: int, *, arrive: bool = True) -> None:
        left[:] = [count, arrive]

    monkeypatch.setattr(EmbeddedTransport, "ask", asked)
    monkeypatch.setattr("dibs.sdk.claim_state.PAUSE_MS", 1)
    return lose


@over("memory")
def test_a_note_whose_reply_is_lost_is_sent_again(client: Client, lose: Callable[..., None]) -> None:
    with client.claim("job") as claim:
        lose(2)
        with claim.once("mail") as effect:
            assert effect.status == "new"
            effect.result = "sent"
            lose(2)
        with claim.once("mail") as effect:
            assert (effect.done, effect.result) == (True, "sent")


@pytest.mark.fault("F-634")
@over("memory")
@pytest.mark.parametrize("arrive", [True, False])
def test_a_step_whose_notes_nobody_answered_goes_on_in_the_same_claim(
    client: Client, lose: Callable[..., None], arrive: bool
) -> None:
    with client.claim("job") as claim:
        lose(3, arrive=arrive)
        with pytest.raises(dibs.Unavailable), claim.once("mail"):
            pytest.fail("it has not begun")
        with pytest.raises(dibs.Unavailable), claim.once("mail") as effect:
            assert effect.status == ("failed" if arrive else "new")  # it was not run
            effect.result = "sent"
            lose(3, arrive=arrive)
        with claim.once("mail") as effect:
            assert (effect.done, effect.result) == (True, "sent")


@pytest.mark.fault("F-635")
@over("memory")
def test_a_client_that_is_closed_inside_the_block_does_not_hide_the_error_of_the_block(client: Client) -> None:
    with pytest.raises(ZeroDivisionError) as raised, client.claim("job") as claim, claim.once("mail"):
        client.close()
        raise ZeroDivisionError
    assert (
        "The step mail is in doubt for the next owner: This client was closed. Connect again." in raised.value.__notes__
    )


@pytest.mark.fault("F-635")
@over("sqlite")
def test_a_client_of_an_event_loop_that_is_closed_inside_the_block_does_not_hide_its_error(
    connect_async: Connect,
) -> None:
    async def main() -> None:
        client = connect_async()
        async with client.claim("job") as claim, claim.once("mail"):
            await client.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        asyncio.run(main())
    assert any("The step mail is in doubt for the next owner" in note for note in raised.value.__notes__)


@pytest.mark.fault("F-636")
@over("memory")
def test_of_several_names_the_first_job_has_the_notes(client: Client) -> None:
    with client.claim_all(["path:a", "release", "tag"]) as claim, claim.once("mail"):
        pass
    with client.claim_all(["path:a"]) as claim, pytest.raises(dibs.RequestRefused, match="no work"), claim.once("mail"):
        pass


@over()
@pytest.mark.parametrize("end", ["release", "fail", "done", "transfer"])
def test_a_claim_that_is_ended_inside_the_block_notes_nothing_and_says_so(client: Client, end: str) -> None:
    with client.claim("job") as claim:
        with pytest.raises(dibs.LeaseLost) as raised, claim.once("mail") as effect:
            getattr(claim, end)(**({"to_owner": "bob"} if end == "transfer" else {}))
            effect.result = "sent"
        assert raised.value.__notes__ == ["The step mail was finished, and is in doubt for the next owner."]


@over("memory")
def test_an_error_whose_words_cannot_be_made_is_noted_by_its_kind(client: Client) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(Odd), client.claim("job") as claim, claim.once("mail"):
        raise Odd
    with client.claim("job") as claim, claim.once("mail") as effect:
        assert (effect.failed, effect.reason) == (True, "raised Odd")


@pytest.mark.fault("F-635")
@over("memory")
def test_a_note_that_is_refused_does_not_hide_the_error_of_the_block(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = reply_for_error(dibs.RequestRefused("Not now.", "conflict"))
    with pytest.raises(ZeroDivisionError) as raised, client.claim("job") as claim, claim.once("mail"):
        monkeypatch.setattr(EmbeddedTransport, "ask", lambda transport, step: refused)
        raise ZeroDivisionError
    assert "The step mail is in doubt for the next owner: Not now." in raised.value.__notes__
