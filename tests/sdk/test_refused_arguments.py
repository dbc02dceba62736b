"""What no store would take is refused where it is given: the claim goes on, and the work is not what failed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import dibs
from dibs.core.limits import CHECKPOINT_BYTES_MAX, CHECKPOINTS_BYTES_MAX
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.async_client import AsyncClient
    from dibs.sdk.client import Client

    Connect = Callable[..., Client]

LONG = "x" * 5_000
NO_CHECKPOINTS: list[dict[str, Any]] = [
    {"text": LONG},
    {"text": "é" * 2_049},
    {"text": {"page": 3}},
    {"text": b"3"},
    {"text": None},
    {"text": "\ud800"},
    {"text": "3", "metadata": "m" * 1_025},
    {"text": "3", "metadata": ["m"]},
]


def endings(client: Client, name: str) -> list[str]:
    return [event.event for event in client.history(name)]


@over()
@pytest.mark.fault("F-280")
@pytest.mark.parametrize("asked", NO_CHECKPOINTS, ids=range(len(NO_CHECKPOINTS)))
def test_a_checkpoint_that_cannot_be_stored_raises_at_once_and_the_claim_goes_on(
    client: Client, asked: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with client.claim("job", ttl=60) as claim:
        claim.checkpoint("page 2", metadata="before")
        with pytest.raises(dibs.InvalidInput, match=r"checkpoint|metadata"):
            claim.checkpoint(**asked)
        claim.checkpoint("page 3")
        claim.check()
        shown = client.owner("job")
        assert (shown.checkpoint, shown.metadata) == ("page 3", "before")
    assert endings(client, "job")[-1] == "released"
    assert caplog.records == []


@over("memory", "server")
@pytest.mark.fault("F-280")
@pytest.mark.parametrize("asked", NO_CHECKPOINTS, ids=range(len(NO_CHECKPOINTS)))
def test_the_same_in_an_event_loop_and_in_a_session(
    connect_async: Callable[..., AsyncClient], asked: dict[str, Any]
) -> None:
    async def work() -> None:
        async with connect_async() as client:
            async with client.claim("job", ttl=60) as claim:
                with pytest.raises(dibs.InvalidInput, match=r"checkpoint|metadata"):
                    await claim.checkpoint(**asked)
                await claim.checkpoint("page 3")
                assert (await client.owner("job")).checkpoint == "page 3"
            async with client.session() as session, session.claim("job") as claim:
                with pytest.raises(dibs.InvalidInput, match=r"checkpoint|metadata"):
                    await claim.checkpoint(**asked)
                await claim.checkpoint("page 4")
                assert (await client.owner("job")).checkpoint == "page 4"

    asyncio.run(work())


@over()
@pytest.mark.fault("F-280")
def test_a_renewal_whose_news_the_store_refuses_drops_them_says_so_and_renews(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may have narrower bounds than this client knows, such as those of several owners together."""
    with client.claim_all(["a", "b"], ttl=60) as claim:
        hold, grip = claim._hold, claim._grip
        assert grip is not None
        hold._news = {("a", "checkpoint"): LONG, ("a", "metadata"): "new"}
        lost_ms = hold.plan.lost_ms
        grip.heart.beat()
        assert (hold._news, hold.trouble) == ({}, None)
        assert hold.plan.lost_ms >= lost_ms
        assert [record.getMessage() for record in caplog.records if "refused" in record.getMessage()] == [
            "The checkpoint and metadata of a was refused, and is not stored: checkpoint may have 4096 bytes at most; "
            "this one has 5000."
        ]
        with pytest.raises(dibs.InvalidInput, match="4096"):
            hold.check_noted()
        claim.checkpoint("page 3")
        assert {client.owner(name).checkpoint for name in claim.names} == {"page 3"}


@over("memory")
@pytest.mark.fault("F-280")
def test_a_checkpoint_that_only_the_store_refuses_raises_too(client: Client) -> None:
    """Owners of one job share what their checkpoints may take."""
    count = CHECKPOINTS_BYTES_MAX // CHECKPOINT_BYTES_MAX
    full = "y" * (CHECKPOINT_BYTES_MAX - 10)
    with client.claim("job", slots=2 * count) as claim:
        held = [client.acquire("job", slots=2 * count, request_key=str(number)) for number in range(count + 5)]
        with pytest.raises(dibs.InvalidInput, match="store less"):
            for lease in held:
                client.renew("job", lease.lease_id, checkpoint=full)
        with pytest.raises(dibs.InvalidInput, match="store less"):
            claim.checkpoint(full)
        claim.check()
        claim.checkpoint("page 3")


ENDS: list[tuple[str, dict[str, Any]]] = [
    ("done", {"result": LONG}),
    ("done", {"result": {"rows": 3}}),
    ("done", {"result": object()}),
    ("done", {"checkpoint": LONG}),
    ("done", {"done": "a while"}),
    ("release", {"checkpoint": LONG}),
    ("transfer", {"to_owner": "b" * 300}),
    ("transfer", {"to_owner": "bob", "checkpoint": LONG}),
]


@over("memory", "server")
@pytest.mark.fault("F-281")
@pytest.mark.parametrize(("method", "asked"), ENDS, ids=range(len(ENDS)))
def test_work_that_is_finished_is_not_failed_because_its_result_is_refused(
    connect: Connect, method: str, asked: dict[str, Any]
) -> None:
    client = connect()
    with pytest.raises(dibs.InvalidInput), client.claim("job", max_attempts=2) as claim:
        getattr(claim, method)(**asked)
    assert endings(client, "job") == ["acquired", "released"]
    with client.claim("job", max_attempts=2) as claim:
        assert claim.attempt == 1
        with pytest.raises(dibs.InvalidInput):
            getattr(claim, method)(**asked)
        claim.done("short")
    assert client.owner("job").status == "done"


@over("memory")
@pytest.mark.fault("F-281")
def test_an_error_after_a_refused_end_is_a_failure_all_the_same(client: Client) -> None:
    with pytest.raises(ValueError, match="other"), client.claim("job") as claim:
        with pytest.raises(dibs.InvalidInput):
            claim.done(LONG)
        raise ValueError("other")
    assert endings(client, "job")[-1] == "failed"
    with pytest.raises(dibs.InvalidInput), client.claim("job") as claim:
        claim.fail("why", checkpoint=LONG)
    assert endings(client, "job")[-1] == "failed"
    with pytest.raises(dibs.InvalidInput), client.claim("job"):
        client.owner("")
    assert endings(client, "job")[-1] == "failed"


@over("memory")
def test_a_reason_that_is_no_text_is_reported_as_text(client: Client) -> None:
    with client.claim("job") as claim:
        claim.fail(ValueError("no route"))  # type: ignore[arg-type]  # what people hand over
    assert client.history("job")[-1].document["reason"] == "no route"
