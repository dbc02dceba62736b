"""A server is killed and started again while a Python program waits in line, for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dibs import AsyncClient, Client
from dibs.agents.mcp.backend import ConnectionSession, ToolBackend
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, JobHeld, Unavailable
from dibs.sdk.async_transport import open_transport
from dibs.sdk.claims import settings_of
from dibs.sdk.operations import ClaimTerms
from tests.faults.standing import check_nothing_left, left_behind
from tests.programs import WAIT_S_MAX, ServerProcess, pause, reserved_ports, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

LONG_WAIT_S = 3.0  # to stand in line on a busy machine, and to be there when the server dies


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """One of its own, on a port that it has again after a restart."""
    with reserved_ports(1) as (port,), ServerProcess(tmp_path, bind=f"127.0.0.1:{port}") as server:
        yield server


class Waiter(threading.Thread):
    """Waits for the job in a session (or without one), holds it until told, and notes the result."""

    def __init__(self, face: str, server: ServerProcess, wait: float, *, session: bool = True) -> None:
        super().__init__()
        self._face = face
        self._server = server
        self._wait = wait
        self._session = session
        self.came: list[Any] = []
        self.enough = threading.Event()
        self.over = threading.Event()

    def run(self) -> None:
        try:
            if self._face == "sync":
                self._threads()
            else:
                asyncio.run(self._loop())
        except BaseException as error:
            self.came.append(error)

    def _threads(self) -> None:
        with Client(self._server.url, self._server.token, "waiter", timeout=2) as client:
            if not self._session:
                with client.claim("job", wait=self._wait, ttl=10) as claim:
                    self._have(claim)
                return
            with client.session(ttl=10) as session:
                try:
                    with session.claim("job", wait=self._wait) as claim:
                        self._have(claim)
                except DibsError as error:
                    self.came.append(error)
                self.over.wait(WAIT_S_MAX)

    async def _loop(self) -> None:
        client = AsyncClient(self._server.url, self._server.token, "waiter", timeout=2)
        async with client:
            if not self._session:
                async with client.claim("job", wait=self._wait, ttl=10) as claim:
                    await asyncio.to_thread(self._have, claim)
                return
            async with client.session(ttl=10) as session:
                try:
                    async with session.claim("job", wait=self._wait) as claim:
                        await asyncio.to_thread(self._have, claim)
                except DibsError as error:
                    self.came.append(error)
                await asyncio.to_thread(self.over.wait, WAIT_S_MAX)

    def _have(self, claim: Any) -> None:
        claim.check()
        self.came.append(claim.fencing_token)
        self.enough.wait(WAIT_S_MAX)

    def stop(self) -> None:
        self.enough.set()
        self.over.set()
        self.join(WAIT_S_MAX)
        assert not self.is_alive()


def in_line(server: ServerProcess, who: str = "waiter") -> Callable[[], bool]:
    return lambda: f"{who} waits for job" in left_behind(server.store_url, "job")


@contextmanager
def killed_when_in_line(server: ServerProcess, who: str) -> Iterator[None]:
    """The server is killed as soon as `who` stands in line, while the block waits there."""

    def kill() -> None:
        wait_until(in_line(server, who), "it stands in line")
        server.kill()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        yield
        killing.result(WAIT_S_MAX)


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize(
    ("session", "pause_s"),
    [
        pytest.param(True, 0.0, id="in a session, at once"),
        pytest.param(False, 1.2, id="without a session, with its place"),
        pytest.param(True, 1.2, id="in a session, with its place", marks=pytest.mark.slow),
        pytest.param(False, 0.0, id="without a session, at once", marks=pytest.mark.slow),
    ],
)
def test_a_wait_rides_out_a_restart_of_the_server(
    server: ServerProcess, face: str, session: bool, pause_s: float
) -> None:
    with Client(server.url, server.token, "owner", timeout=2) as owner:
        lease = owner.acquire("job", ttl=60)
        waiter = Waiter(face, server, 20, session=session)
        waiter.start()
        try:
            wait_until(in_line(server), "it stands in line")
            pause(pause_s)
            server.kill()
            pause(0.7)
            assert waiter.came == []
            server.start()
            owner.release("job", lease.lease_id)
            wait_until(lambda: waiter.came, "it gets the job")
            assert waiter.came == [2]
        finally:
            waiter.stop()
    assert waiter.came == [2]
    check_nothing_left(server.store_url, "job")


def test_a_place_that_could_not_be_given_up_is_left_when_the_server_is_back(server: ServerProcess, face: str) -> None:
    """The session lives on. Its heartbeat must not keep a job that none of its blocks has."""
    with Client(server.url, server.token, "owner", timeout=2) as owner:
        lease = owner.acquire("job", ttl=60)
        waiter = Waiter(face, server, LONG_WAIT_S)
        waiter.start()
        try:
            wait_until(in_line(server), "it stands in line")
            server.kill()
            wait_until(lambda: waiter.came, "its wait is over")
            assert isinstance(waiter.came[0], Unavailable)
            server.start()
            owner.release("job", lease.lease_id)
            with owner.claim("job", wait=10) as claim:
                claim.check()
            assert left_behind(server.store_url, "job") == ["waiter has a session"]
        finally:
            waiter.stop()
    assert len(waiter.came) == 1
    check_nothing_left(server.store_url, "job")


def test_a_session_whose_claim_was_lost_in_an_outage_can_claim_again(server: ServerProcess) -> None:
    with Client(server.url, server.token, "waiter", timeout=1) as client, client.session(ttl=10) as session:
        with Client(server.url, server.token, "owner") as owner:
            lease = owner.acquire("job", ttl=60)
            with killed_when_in_line(server, "waiter"), pytest.raises(Unavailable):
                session.claim("job", wait=LONG_WAIT_S).__enter__()
            with pytest.raises(Unavailable):
                session.claim("job").__enter__()
            server.start()
            client._transports.timeout_ms = int(WAIT_S_MAX * 1000)
            with pytest.raises(JobHeld):
                session.claim("job").__enter__()
            owner.release("job", lease.lease_id)
        with session.claim("job", wait=10) as claim:
            pause(1.5)  # a heartbeat goes by
            claim.check()
    check_nothing_left(server.store_url, "job")


@pytest.mark.parametrize("wait", [0.3, 1.5])
def test_a_wait_lasts_as_long_as_it_says(server: ServerProcess, face: str, wait: float) -> None:
    with Client(server.url, server.token, "owner") as owner:
        owner.acquire("job", ttl=60)
        waiter = Waiter(face, server, wait)
        begun_ms = steady_ms()
        waiter.start()
        wait_until(lambda: waiter.came, "its wait is over")
        assert steady_ms() - begun_ms >= wait * 1000
        assert isinstance(waiter.came[0], JobHeld)
        waiter.stop()


def test_an_mcp_connection_gives_back_what_its_call_could_not_give_up(server: ServerProcess) -> None:
    """It never answers "not yours" about a job that the agent's own session keeps."""

    async def go() -> None:
        transport = open_transport(settings_of(server.url, server.token, "agent", None))
        backend = ToolBackend(transport, "agent", ConnectionSession(transport))
        with Client(server.url, server.token, "owner") as owner:
            lease = owner.acquire("job", ttl=60)
            await backend.claim("acquire", ["another"])  # the session is open
            with killed_when_in_line(server, "agent"), pytest.raises(Unavailable):
                await backend.claim("acquire", ["job"], ClaimTerms(wait=LONG_WAIT_S))
            server.start()
            owner.release("job", lease.lease_id)
            found = owner.owner("job")
            before = found.previous.owner if found.previous else None  # its heartbeat may have given it back already
            assert "agent" in (found.owner, before), "the place in line became a claim"
            status = await backend.status("job")
            assert (status.held, backend.has("job")) == (False, False)
            await backend.claim("acquire", ["job"], ClaimTerms(wait=5))
            assert backend.has("job")
            assert (await backend.status("job")).owner == "agent"
        await backend.close()
        transport.close()

    asyncio.run(go())
    check_nothing_left(server.store_url, "job")
