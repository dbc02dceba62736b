"""What makes the SDK pleasant: times as people write them, types that are true, words that help."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import dibs
from dibs.base.errors import InvalidTtl
from dibs.core.durations import duration_ms
from dibs.core.limits import DONE_MS_DEFAULT
from dibs.sdk import operations
from dibs.sdk.hold import LeaseHold
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs import Client


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (2, 2_000),
        (1.5, 1_500),
        ("2m", 120_000),
        ("250ms", 250),
        ("90", 90_000),
        (timedelta(hours=1), 3_600_000),
    ],
)
def test_a_time_is_a_number_of_seconds_a_text_or_a_timedelta(given: Any, ms: int) -> None:
    assert duration_ms(given) == ms


@pytest.mark.parametrize("given", [True, -1, math.nan, math.inf, "soon", "1.5.5", None, [], timedelta(-1)])
def test_what_is_no_time_is_refused_with_its_name(given: Any) -> None:
    with pytest.raises(dibs.InvalidInput, match="ttl"):
        duration_ms(given, "ttl")


@over()
def test_every_time_of_a_claim_may_be_written_any_way(client: Client) -> None:
    with client.claim("job", ttl="2m", wait=timedelta(seconds=1), lock_delay="1s") as claim:
        assert 100 < claim.remaining() <= 120
        claim.done("r", done="1h")
    with client.claim("job", ttl=timedelta(seconds=90), again=True) as claim:
        assert 80 < claim.remaining() <= 90
    with client.claim("job", ttl=61.5, again=True) as claim:
        assert 61_000 < claim.leases[0].remaining_ms <= 61_500
    lease = client.acquire("other", ttl="1m")
    assert client.renew("other", lease.lease_id, ttl="2500ms").remaining_ms <= 2_500
    client.release("other", lease.lease_id, done=True)
    assert client.owner("other").status == "done"
    with client.session(ttl="30s") as session:
        assert session.remaining() <= 30


@over("memory")
def test_a_ttl_that_cannot_be_is_refused(client: Client) -> None:
    for ttl in (0.5, "999ms", "2d", math.nan, "soon"):
        with pytest.raises(InvalidTtl):
            client.claim("job", ttl=ttl).__enter__()


@over("memory")
def test_done_is_a_day_unless_it_is_said_for_how_long(client: Client) -> None:
    def until_ms(**said: Any) -> int:
        with client.claim("job", again=True) as claim:
            claim.done(**said)
        with pytest.raises(dibs.JobDone) as told:
            client.claim("job").__enter__()
        return round((told.value.retry_after or 0) * 1000)

    assert DONE_MS_DEFAULT - 60_000 < until_ms() <= DONE_MS_DEFAULT
    assert 3_500_000 < until_ms(done="1h") <= 3_600_000
    assert 3_500_000 < until_ms(done=3600) <= 3_600_000
    assert operations.done_fields(0.2) == {"done_seconds": 1}


@dibs.exclusive("sync", skip=True)
def skipping(number: int) -> str:
    return str(number)


@dibs.exclusive("async", skip=True)
async def skipping_async(number: int) -> str:
    return str(number)


@dibs.exclusive("plain")
def plain(number: int) -> str:
    return str(number)


def test_a_function_that_may_be_skipped_is_typed_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mypy judges these lines; that they run is seen here."""
    monkeypatch.setenv("DIBS_URL", f"sqlite://{tmp_path}/jobs.db")
    assert_type(skipping(1), str | None)
    assert_type(plain(1), str)
    assert skipping(1) == "1"
    with dibs.claim("sync"):
        assert skipping(1) is None

    async def typed() -> None:
        assert_type(await skipping_async(1), str | None)

    assert inspect.iscoroutinefunction(typed)


@over("memory")
def test_whatever_is_asked_of_a_claim_before_its_block_names_the_block(client: Client) -> None:
    async def kept_async() -> dibs.AsyncClaim:
        return dibs.AsyncClient("memory://").claim("job")

    for claim, block in ((client.claim("job"), "`with "), (asyncio.run(kept_async()), "`async with ")):
        for name in ("lost", "name", "fencing_token", "leases", "previous"):
            with pytest.raises(dibs.InvalidInput, match=block):
                getattr(claim, name)
        with pytest.raises(dibs.InvalidInput, match=block):
            claim.check()


@over("memory")
def test_a_timeout_is_refused_as_a_lock_of_threading_does(client: Client) -> None:
    for timeout, error in ((1e100, OverflowError), (-5, ValueError), (math.nan, ValueError)):
        with pytest.raises(error):
            threading.Lock().acquire(timeout=timeout)
        with pytest.raises(error):
            dibs.Lock("job", client=client).acquire(timeout=timeout)


@over("sqlite", "server")
def test_a_client_that_is_closed_inside_a_block_costs_the_block_nothing_but_the_release(
    connect: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    """What the block did counts. The job goes with its TTL, as with an event loop's client."""
    client = connect()
    with client.claim("job", ttl=60):
        client.close()
    assert "job could not be released and will expire" in caplog.text
    assert connect().owner("job").held


@over("memory")
def test_what_things_are_shows_job_owner_and_state_and_no_secret(client: Client) -> None:
    claim = client.claim("job", ttl=60)
    assert repr(claim) == "<Claim of alice: job, not taken yet>"
    assert repr(client.claim_any(["a", "b"])) == "<Claim of alice: a, b, not taken yet>"
    with claim:
        secret = claim.lease_id
        assert re.fullmatch(r"<Claim of alice: job \(token 1\), ours for 5\ds and renewed>", repr(claim))
        assert secret not in repr(claim)
    assert repr(claim) == "<Claim of alice: job (token 1), let go>"
    session = client.session()
    assert repr(session) == "<Session of alice: not open yet>"
    with session:
        assert re.fullmatch(r"<Session of alice: ours for 5\ds and renewed>", repr(session))
        with pytest.raises(dibs.LeaseLost), session.claim("job") as held:
            client.break_claim("job", "it hangs")
            with pytest.raises(dibs.LeaseLost):
                held.checkpoint("x")
            assert ", lost: " in repr(held)
    lock = dibs.Lock("job", client=client)
    assert repr(lock) == "<Lock job: not held here>"
    with lock:
        assert repr(lock).startswith("<Lock job: <Claim of alice: job (token ")
    assert repr(dibs.claim("x")) == "<dibs.claim of 'x', for a with block>"


def test_a_client_shows_where_it_goes_and_no_password() -> None:
    with dibs.Client("http://host:1234", "token-secret", "alice", "acme") as client:
        assert repr(client) == "<Client of alice at http://host:1234, namespace acme>"
    assert repr(client).endswith(", closed>")
    with dibs.Client("git+https://user:secret@host/repo.git", owner="alice") as client:
        assert repr(client) == "<Client of alice at git+https://host/repo.git>"


def test_a_claim_that_is_used_without_its_block_says_what_to_do() -> None:
    with pytest.raises(dibs.InvalidInput, match="Use it in a with block"):
        dibs.claim("x").check()
    with pytest.raises(dibs.InvalidInput, match="Use it in a with block"):
        dibs.Client("memory://").claim("x").check()
    with pytest.raises(AttributeError, match="no_such_thing"):
        dibs.claim("x").no_such_thing()


def test_a_heartbeat_that_does_not_get_through_is_logged_before_the_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with dibs.Client("memory://") as client, client.claim("job") as claim:
        hold = claim._held
        assert isinstance(hold, LeaseHold)
        with caplog.at_level(logging.INFO, "dibs"):
            hold.failed("nobody answers")
            hold.failed("nobody answers")
        claim.check()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]
    assert "A heartbeat of job failed, and is repeated for another 5" in caplog.messages[0]
    assert caplog.messages[0].endswith("nobody answers")


def public_functions() -> list[tuple[str, Callable[..., Any]]]:
    found: list[tuple[str, Callable[..., Any]]] = []
    for name in dibs.__all__:
        thing = getattr(dibs, name)
        if inspect.isfunction(thing):
            found.append((name, thing))
        elif inspect.isclass(thing) and thing.__module__.startswith("dibs.sdk."):
            methods = inspect.getmembers(thing, inspect.isfunction)
            found += [(f"{name}.{each}", method) for each, method in methods if not each.startswith("_")]
    return found


@pytest.mark.parametrize(("name", "function"), public_functions(), ids=[name for name, _ in public_functions()])
def test_help_says_what_every_parameter_means(name: str, function: Callable[..., Any]) -> None:
    about = inspect.getdoc(function) or ""
    assert about, name
    for each in inspect.signature(function).parameters:
        if each not in ("self", "text"):
            assert re.search(rf"^ *{each} +\S|`{each}`", about, re.MULTILINE), f"{name}: {each}"
