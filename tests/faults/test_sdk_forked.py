"""A program that forks while it holds: the child holds nothing, releases nothing, and may claim for itself."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from dibs import AsyncClient, Client, JobHeld, LeaseLost, Unavailable
from tests.faults.standing import left_behind
from tests.programs import WAIT_S_MAX, ServerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["embedded", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str | None, str]]:
    """URL and token to connect with, and the URL of the store behind."""
    url = f"sqlite://{tmp_path}/jobs.db"
    if request.param == "embedded":
        yield url, None, url
    else:
        with ServerProcess(tmp_path, store=url) as server:
            yield server.url, server.token, url


def in_a_fork(work: Callable[[], None]) -> int:
    """The exit code of a child that does `work` and leaves as a program does: through its `finally` blocks."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return wait_for_exit(pid)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_for_exit(pid: int) -> int:
    found: list[int] = []

    def ended() -> bool:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            found.append(os.waitstatus_to_exitcode(status))
        return bool(done)

    wait_until(ended, "the child ends")
    return found[0]


def check_that_the_child_has_nothing(claim: Any) -> None:
    with pytest.raises(LeaseLost, match="forked"):
        claim.check()
    assert claim.remaining() == 0
    with pytest.raises(LeaseLost):
        claim.checkpoint("from the child")
    with pytest.raises(LeaseLost):
        claim.release()
    with pytest.raises(LeaseLost):
        claim.done()


@pytest.mark.promise("proof")
@pytest.mark.promise("excl")
def test_a_forked_child_holds_nothing_and_claims_for_itself(place: tuple[str, str | None, str]) -> None:
    url, token, store_url = place
    lost: list[LeaseLost] = []
    with Client(url, token, owner="parent") as client:
        with client.claim("job", ttl=4, on_lost=lost.append) as claim:

            def child() -> None:
                check_that_the_child_has_nothing(claim)
                with pytest.raises(JobHeld), client.claim("job", owner="child"):
                    pytest.fail("the parent has it")
                with client.claim("another", owner="child", ttl=3) as own:
                    assert own.owner == "child"
                    wait_until(lambda: own.remaining() < 2.1, "its first heartbeat is due")
                    wait_until(lambda: own.remaining() > 2.1, "the child has a heart of its own")
                claim.__exit__(None, None, None)  # leaves the parent's block

            assert in_a_fork(child) == 0
            claim.check()
            assert left_behind(store_url) == [f"parent holds job (token {claim.fencing_token})"]
            wait_until(lambda: claim.remaining() < 2.8, "the next heartbeat is due")
            wait_until(lambda: claim.remaining() > 2.8, "the parent's heart goes on")
        assert left_behind(store_url) == []
    assert lost == []


def test_a_forked_child_of_a_loop_renews_in_a_loop_of_its_own(place: tuple[str, str | None, str]) -> None:
    url, token, store_url = place

    async def main() -> None:
        async with AsyncClient(url, token, owner="parent") as client, client.claim("job", ttl=4) as claim:

            async def own() -> None:
                async with client.claim("another", owner="child", ttl=2) as own:
                    wait_until(lambda: own.remaining() < 1.4, "its first heartbeat is due")
                    wait_until(lambda: own.remaining() > 1.4, "the child has a heart of its own")

            def child() -> None:
                with pytest.raises(LeaseLost, match="forked"):
                    claim.check()
                asyncio.run(own())

            assert in_a_fork(child) == 0
            wait_until(lambda: claim.remaining() < 2.8, "the next heartbeat is due")
            wait_until(lambda: claim.remaining() > 2.8, "the parent's heart goes on")

    asyncio.run(main())
    assert left_behind(store_url) == []


def work_of_a_process(client: Client, claim: Any, done: Any) -> None:
    check_that_the_child_has_nothing(claim)
    with client.claim("of-the-child"):
        done.put("done")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_multiprocessing_with_fork_does_the_same(place: tuple[str, str | None, str]) -> None:
    url, token, store_url = place
    context = multiprocessing.get_context("fork")
    with Client(url, token, owner="parent") as client, client.claim("job") as claim:
        done = context.SimpleQueue()
        process = context.Process(target=work_of_a_process, args=(client, claim, done))
        process.start()
        process.join(WAIT_S_MAX)
        assert process.exitcode == 0
        assert done.get() == "done"
        claim.check()
        assert len(left_behind(store_url)) == 1
    assert left_behind(store_url) == []


def test_a_session_is_not_inherited(place: tuple[str, str | None, str]) -> None:
    url, token, store_url = place
    with Client(url, token) as client, client.session() as session, session.claim("job") as claim:

        def child() -> None:
            with pytest.raises(LeaseLost):
                session.check()
            check_that_the_child_has_nothing(claim)
            claim.__exit__(None, None, None)
            session.__exit__(None, None, None)

        assert in_a_fork(child) == 0
        session.check()
        claim.check()
        assert len(left_behind(store_url)) == 2


def test_an_event_loop_in_the_child_uses_the_client_for_itself(place: tuple[str, str | None, str]) -> None:
    import asyncio

    url, token, store_url = place
    client = AsyncClient(url, token)

    async def claim_once(job: str) -> None:
        async with client.claim(job) as claim:
            claim.check()

    asyncio.run(claim_once("job"))
    assert in_a_fork(lambda: asyncio.run(claim_once("job"))) == 0
    asyncio.run(claim_once("job"))
    asyncio.run(client.close())
    assert left_behind(store_url) == []


def test_a_store_in_memory_does_not_cross_a_fork(capfd: pytest.CaptureFixture[str]) -> None:
    with Client("memory://") as client, client.claim("job") as claim:

        def child() -> None:
            with pytest.raises(LeaseLost):
                claim.check()
            with pytest.raises(Unavailable, match="cannot be used after a fork"):
                client.owner("job")

        assert in_a_fork(child) == 0
        claim.check()


@pytest.mark.promise("excl")
@pytest.mark.promise("durable")
def test_a_child_that_outlives_its_parent_is_no_second_world(tmp_path: Path) -> None:
    """SQLite's locks belong to a process. A child that used its parent's open file would have no lock: the next
    process to close the file would take itself for the last one, and the child's later writes would be lost."""
    url = f"sqlite://{tmp_path}/jobs.db"
    go, going = os.pipe()
    told, telling = os.pipe()

    def daemon() -> None:
        client = Client(url, owner="daemon")
        with client.claim("warm-up"):
            pass
        if os.fork():
            os._exit(0)  # the usual way of a daemon: the parent leaves
        os.close(going)  # so that the end of the test is seen
        first = client.acquire("before")
        os.write(telling, b"1")
        os.read(go, 1)
        client.release("before", first.lease_id)
        client.acquire("after", ttl=600)
        os.write(telling, b"2")

    try:
        assert in_a_fork(daemon) == 0
        check_the_daemon(url, told, going)
    finally:
        os.close(going)


def heard(told: int) -> bytes:
    assert select.select([told], [], [], WAIT_S_MAX)[0], "the child says nothing"
    return os.read(told, 1)


def check_the_daemon(url: str, told: int, going: int) -> None:
    assert heard(told) == b"1"
    # Another process opens the file, reads, and closes it as the last user it can see.
    assert left_behind(url) == ["daemon holds before (token 1)"]
    with Client(url, owner="passer-by") as passer_by, passer_by.claim("else"):
        pass
    os.write(going, b"1")
    assert heard(told) == b"2"
    assert left_behind(url) == ["daemon holds after (token 1)"]


def test_a_fork_in_the_middle_of_the_work_of_other_threads(tmp_path: Path) -> None:
    """Parent and child go on, whatever another thread does during the fork."""
    import threading

    over = threading.Event()
    with Client(f"sqlite://{tmp_path}/jobs.db") as client:

        def work(number: int) -> None:
            while not over.is_set():
                with client.claim(f"job-{number}"):
                    pass

        def child() -> None:
            with client.claim("of-the-child"):
                pass

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                assert in_a_fork(child) == 0
        finally:
            over.set()
            for thread in threads:
                thread.join(WAIT_S_MAX)
        assert not any(thread.is_alive() for thread in threads)
