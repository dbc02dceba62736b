"""What is public, and that both faces have it under the same names."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base import errors
from dibs.core.limits import TTL_MS_DEFAULT
from dibs.sdk import answers, default
from dibs.sdk.async_client import AsyncClient
from tests.sdk.conftest import over

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.sdk.client import Client

SDK = Path(default.__file__).parent


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("kind", "twin"),
    [
        (dibs.Client, dibs.AsyncClient),
        (dibs.Claim, dibs.AsyncClaim),
        (dibs.Session, dibs.AsyncSession),
        (dibs.Fence, dibs.AsyncFence),
    ],
)
def test_the_two_faces_have_the_same_names_with_the_same_parameters(kind: type, twin: type) -> None:
    ours, theirs = public(kind), public(twin)
    assert set(ours) == set(theirs)
    for name, signature in ours.items():
        assert list(signature.parameters.values()) == list(theirs[name].parameters.values()), name


@pytest.mark.parametrize("verb", ["claim", "claim_any", "claim_all"])
def test_the_functions_take_what_the_methods_take(verb: str) -> None:
    method = inspect.signature(getattr(dibs.Client, verb)).parameters
    assert list(inspect.signature(getattr(dibs, verb)).parameters) == [name for name in method if name != "self"]


def test_everything_that_is_listed_is_there() -> None:
    for name in dibs.__all__:
        assert getattr(dibs, name) is not None
    assert set(dibs.__all__) <= set(dir(dibs))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dibs.nonsense  # noqa: B018


def test_completion_offers_what_is_public_and_nothing_else() -> None:
    assert {name for name in dir(dibs) if not name.startswith("__")} == set(dibs.__all__) - {"__version__"}
    for stray in ("annotations", "TYPE_CHECKING"):
        assert not hasattr(dibs, stray)


# Errors of programs other than the caller's: of operators, git, and stores that answer through their base classes.
NOT_FOR_CALLERS = {
    *("NotOnRecord", "Unprocessable", "HookRefused", "RequestFailed"),
    *("ServerUnreachable", "ServerDraining", "Overloaded", "StoreUnavailable", "StoreFull", "StoreReplaced"),
    *("StoreBroken", "StoreCorrupt", "StoreDenied", "StoreTooNew", "StoreTooOld"),
}


def test_every_exception_is_public_or_of_a_public_kind_and_says_when_it_is_raised_and_what_to_do() -> None:
    kinds = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, dibs.DibsError)]
    assert {each.__name__ for each in kinds} - set(dibs.__all__) == NOT_FOR_CALLERS
    for each in kinds:
        assert "__doc__" in vars(each), f"{each.__name__} has no help of its own"
        if each.__name__ in dibs.__all__ and each is not dibs.DibsError:
            assert str(each.__doc__).startswith("Raised ")
    raised = set(re.findall(r"raise (?:errors\.)?(\w+)\(", "".join(path.read_text() for path in SDK.glob("*.py"))))
    ours = {each.__name__ for each in kinds} & (raised | {each.__name__ for each in refusals()})
    assert ours - {"StoreUnavailable"} <= set(dibs.__all__), "a caller gets it, and cannot name it"


def refusals() -> list[type[dibs.DibsError]]:
    """What the replies of a server are raised as."""
    return [*answers._BY_CODE.values(), *answers._NOT_CLAIMED.values()]


def test_help_says_what_a_decorator_gives() -> None:
    assert inspect.signature(dibs.exclusive).return_annotation == "Callable[[F], F] | SkippingDecorator"


def test_there_is_one_ttl_for_a_claim_however_it_is_made() -> None:
    asked: list[Callable[..., object]] = [dibs.Client.acquire, dibs.Lock]
    assert {inspect.signature(each).parameters["ttl"].default for each in asked} == {TTL_MS_DEFAULT / 1000}


def test_importing_dibs_imports_nothing_more() -> None:
    script = "import sys; import dibs; print(*[name for name in sys.modules if name.startswith('dibs.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which the default store is this test's own."""
    for variable in ("DIBS_URL", "DIBS_TOKEN", "DIBS_NAMESPACE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DIBS_OWNER", "alice")


# The five functions as dibs was first described. What is optional here may come after.
FIRST = """
claim_job(job_id, owner, metadata, ttl=120)
heartbeat_job(job_id, lease_id)
release_job(job_id, lease_id)
get_job_owner(job_id)
list_claimed_jobs(prefix=None)
"""


@pytest.mark.fault("F-296")
@pytest.mark.parametrize("written", FIRST.split("\n")[1:-1])
def test_the_job_functions_have_the_signatures_that_they_were_first_described_with(written: str) -> None:
    name, _, asked = written[:-1].partition("(")
    parameters = list(inspect.signature(getattr(dibs, name)).parameters.values())
    words = asked.split(", ")
    assert [each.name for each in parameters[: len(words)]] == [word.partition("=")[0] for word in words]
    for word, parameter in zip(words, parameters, strict=False):
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if "=" in word:
            assert str(parameter.default) == word.partition("=")[2]
    assert all(each.default is not inspect.Parameter.empty for each in parameters[len(words) :])


@pytest.mark.fault("F-296")
@pytest.mark.usefixtures("at_home")
def test_an_owner_is_a_name_that_says_whether_it_is_live_and_its_metadata() -> None:
    lease = dibs.claim_job("job", "agent-7", "runner=1")
    assert 60_000 < (lease.remaining_ms or 0) <= 120_000
    owner = dibs.get_job_owner("job")
    assert owner is not None
    assert (str(owner), f"{owner}", owner == "agent-7") == ("agent-7", "agent-7", True)
    assert (owner.live, owner.metadata, owner.status.fencing_token) == (True, "runner=1", 1)
    for twin in (copy.deepcopy(owner), pickle.loads(pickle.dumps(owner))):
        assert (twin, twin.live, twin.metadata) == ("agent-7", True, "runner=1")
    dibs.release_job("job", lease.lease_id)
    assert dibs.get_job_owner("job") is None


@pytest.mark.usefixtures("at_home")
def test_the_job_functions_are_those_of_the_seed() -> None:
    lease = dibs.claim_job("job", "agent-7", "runner=1", ttl=120)
    assert dibs.get_job_owner("job") == "agent-7"
    assert [status.name for status in dibs.list_claimed_jobs()] == ["job"]
    assert dibs.list_claimed_jobs(prefix="x") == []
    with pytest.raises(dibs.JobHeld):
        dibs.claim_job("job", "agent-8", None)
    assert dibs.heartbeat_job("job", lease.lease_id).fencing_token == lease.fencing_token
    dibs.release_job("job", lease.lease_id)
    assert dibs.get_job_owner("job") is None


@pytest.mark.usefixtures("at_home")
def test_one_claim_works_in_both_kinds_of_block() -> None:
    with dibs.claim("job", ttl=120, metadata="m") as claim:
        assert claim.owner == "alice"

    async def main() -> None:
        async with (
            dibs.claim("job") as claim,
            dibs.claim_any(["job", "b"]) as other,
            dibs.claim_all(["c", "d"]),
        ):
            assert (claim.name, other.name) == ("job", "b")

    asyncio.run(main())
    with dibs.claim_any(["job"]), dibs.claim_all(["c"]):
        pass


@pytest.mark.usefixtures("at_home")
def test_a_program_that_changes_its_environment_gets_another_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = default.default_client()
    assert default.default_client() is first
    monkeypatch.setenv("DIBS_NAMESPACE", "other")
    assert default.default_client() is not first


@pytest.mark.usefixtures("at_home")
def test_an_exclusive_function_runs_once_at_a_time() -> None:
    calls: list[int] = []

    @dibs.exclusive(lambda shard: f"rebuild-{shard}", done=60)
    def rebuild(shard: int) -> int:
        calls.append(shard)
        with pytest.raises(dibs.JobHeld):
            rebuild(shard)
        return shard * 2

    @dibs.exclusive("fixed", skip=True)
    def skipping() -> str | None:
        return skipping() or "outer"

    @dibs.exclusive("fixed", skip=True)
    async def waiting() -> str | None:
        return await waiting() or "outer"

    assert rebuild(4) == 8
    with pytest.raises(dibs.JobDone):
        rebuild(4)
    assert calls == [4]
    assert skipping() == "outer"
    assert asyncio.run(waiting()) == "outer"
    assert rebuild.__name__ == "rebuild"


@pytest.mark.usefixtures("at_home")
def test_an_exclusive_function_does_not_swallow_what_its_body_raises() -> None:
    @dibs.exclusive("outer", skip=True)
    def outer() -> None:
        with dibs.claim("inner"), dibs.claim("inner"):
            pytest.fail("two owners")

    with pytest.raises(dibs.JobHeld):
        outer()


@over()
def test_a_lock_behaves_like_the_one_of_threading(client: Client) -> None:
    lock = dibs.Lock("name", client=client)
    assert not lock.locked()
    with pytest.raises(RuntimeError):
        lock.release()
    with lock as got:
        assert got is True
        assert lock.locked()
        assert lock.acquire(blocking=False) is False
        assert lock.acquire(timeout=0.05) is False
        lock.check()
        assert lock.claim.fencing_token > 0
    assert not lock.locked()
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(False, 1)
    with pytest.raises(ValueError, match="non-negative"):
        lock.acquire(True, -2)
    assert lock.acquire()
    lock.release()
    assert not lock.locked()


@over("memory")
def test_a_lock_that_was_lost_says_so_at_the_end(client: Client) -> None:
    lock = dibs.Lock("name", client=client, ttl=3)
    with pytest.raises(dibs.LeaseLost, match="it hangs"), lock:
        client.break_claim("name", "it hangs")
    assert not lock.locked()


@over("memory")
def test_a_lock_does_not_mind_that_its_name_counts_as_done(client: Client) -> None:
    with client.claim("name") as claim:
        claim.done(done=60)
    with dibs.Lock("name", client=client):
        pass


@over()
def test_an_async_lock_behaves_like_the_one_of_asyncio(connect_async: Callable[..., AsyncClient]) -> None:
    async def main() -> None:
        async with connect_async() as client:
            lock, other = dibs.AsyncLock("name", client=client), dibs.AsyncLock("name", client=client)
            with pytest.raises(RuntimeError):
                lock.release()
            assert await lock.acquire() is True
            assert lock.locked()
            assert not other.locked()
            waiter = asyncio.create_task(other.acquire())
            lock.release()  # not awaited, as with that one
            assert await asyncio.wait_for(waiter, 20)
            await other.release()
            async with lock:
                lock.check()
            assert not (await client.owner("name")).held

    asyncio.run(main())


@pytest.mark.usefixtures("at_home")
def test_locks_need_no_client() -> None:
    with dibs.Lock("name"):
        pass

    async def main() -> None:
        async with dibs.AsyncLock("name"):
            pass

    asyncio.run(main())
