"""Clients of two and three servers on one store, whose server is killed, stands still or is told to end.

No claim is lost, no job has two owners, and every waiter keeps its place. The store is a parameter: on one machine
several servers may share one SQLite file.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from dibs import AsyncClient, Client, JobHeld
from dibs.base.clock import steady_ms
from dibs.client.servers import PATIENCE_MS
from tests.faults.cluster import TOKEN, Cluster, end
from tests.programs import ServerProcess, dibs, pause, slowness, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs import Lease

FAULTS = ["killed", "paused", "told to end"]
# Every fault is tried on a claim. After that the hardest one runs every time, the others in scripts/dev/soak.
HARDEST = ["paused", *[pytest.param(fault, marks=pytest.mark.slow) for fault in ("killed", "told to end")]]
WAIT_S = 40


@pytest.fixture(params=["sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"sqlite": f"sqlite://{tmp_path}/several.db"}[request.param]


@pytest.fixture
def cluster(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dibs.client.servers.new_fraction", lambda: 0.0)
    with ExitStack() as stack:
        yield Cluster(tmp_path, store_url, stack)


class Waiter(threading.Thread):
    """Claims a job in a thread of its own, and notes when it got it."""

    def __init__(self, client: Client, name: str, got: list[str], **more: Any) -> None:
        super().__init__(daemon=True)
        self._claim: Callable[[], Lease] = lambda: client.acquire("job", owner=name, wait=WAIT_S, ttl=30, **more)
        self._got = got
        self.lease: Lease | None = None
        self.trouble: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.lease = self._claim()
            self._got.append(self.lease.owner)
        except BaseException as error:
            self.trouble = error

    def result(self) -> Lease:
        self.join(WAIT_S)
        assert self.trouble is None, self.trouble
        assert self.lease is not None, "it still waits"
        return self.lease


def waiting(client: Client) -> int:
    return int(client.owner("job").document.get("waiting") or 0)


def kinds(client: Client, job: str = "job") -> list[str]:
    return [event.event for event in client.history(job)]


@pytest.mark.promise("servers:failover")
@pytest.mark.parametrize("fault", HARDEST)
def test_what_is_held_is_kept_and_let_go_through_another_server(cluster: Cluster, fault: str) -> None:
    cluster.start(2)
    client = cluster.client()
    ttl_s = 3 * slowness()
    with client.claim("job", ttl=ttl_s) as claim:
        cluster.hit(fault)
        until_ms = steady_ms() + 1_500 * ttl_s
        while steady_ms() < until_ms:
            claim.check()
            pause(0.1)
        with pytest.raises(JobHeld):
            cluster.client(cluster.servers[1].url).acquire("job")
    assert client.owner("job").status == "free"
    assert kinds(client).count("acquired") == 1


@pytest.mark.promise("servers:failover")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_claim_is_made_once_and_in_time(cluster: Cluster, fault: str) -> None:
    cluster.start(2)
    client = cluster.client()
    client.owner("job")  # it is at the first now
    cluster.hit(fault)
    began_ms = steady_ms()
    lease = client.acquire("job")
    assert steady_ms() - began_ms < PATIENCE_MS + 3_000
    client.release("job", lease.lease_id)
    if fault == "paused":
        cluster.servers[0].resume()  # now it reads the request whose client has gone
        there = cluster.client(cluster.servers[0].url)
        wait_until(lambda: there.owner("job").status, "it answers again")
    assert client.owner("job").status == "free"
    assert kinds(client) == ["acquired", "released"]


@pytest.mark.promise("servers:failover")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("fault", HARDEST)
def test_a_waiter_keeps_its_place_at_another_server(cluster: Cluster, fault: str) -> None:
    cluster.start(3)
    there = cluster.client(cluster.servers[1].url)
    held = there.acquire("job", ttl=60)
    got: list[str] = []
    first = Waiter(cluster.client(), "first", got)
    wait_until(lambda: waiting(there) == 1, "the first waits")
    second = Waiter(cluster.client(cluster.servers[2].url), "second", got)
    wait_until(lambda: waiting(there) == 2, "the second waits")
    cluster.hit(fault)
    pause(8)  # long enough for a hung server to be left, not long enough to lose a place by silence
    if fault == "paused":
        cluster.servers[0].resume()  # it notices only now that its waiter has gone
        pause(2)
    assert waiting(there) == 2
    there.release("job", held.lease_id)
    first_lease = first.result()
    assert got == ["first"]
    there.release("job", first_lease.lease_id)
    assert second.result().fencing_token == first_lease.fencing_token + 1
    assert got == ["first", "second"]
    assert kinds(there).count("left") == 0


@pytest.mark.promise("servers:failover")
@pytest.mark.promise("loss:told")
def test_a_lease_got_elsewhere_is_not_cut_short_by_a_server_that_wakes_up(cluster: Cluster) -> None:
    cluster.start(2)
    there = cluster.client(cluster.servers[1].url)
    held = there.acquire("job", ttl=60)
    got: list[str] = []
    waiter = Waiter(cluster.client(), "first", got)
    wait_until(lambda: waiting(there) == 1, "it waits")
    cluster.pause()
    pause(8)
    there.release("job", held.lease_id)
    lease = waiter.result()
    cluster.servers[0].resume()
    here = cluster.client(cluster.servers[0].url)
    wait_until(lambda: here.owner("job").owner == "first", "it answers again")
    pause(1)
    status = there.owner("job")
    assert status.remaining_ms is not None
    assert status.remaining_ms > 20_000, "30 s were given, and 15 s would be left of a lease that nobody took"
    there.release("job", lease.lease_id)


@pytest.mark.promise("servers:failover")
@pytest.mark.parametrize(
    "waits", [pytest.param(False, id="at once", marks=pytest.mark.slow), pytest.param(True, id="in line")]
)
def test_a_claim_that_was_refused_elsewhere_is_not_granted_by_a_server_that_wakes_up(
    cluster: Cluster, waits: bool
) -> None:
    cluster.start(2)
    there = cluster.client(cluster.servers[1].url)
    held = there.acquire("job", ttl=60)
    client = cluster.client()
    client.owner("job")  # it is at the first now
    cluster.pause()
    with pytest.raises(JobHeld):
        client.acquire("job", ttl=60, wait=1 if waits else None)
    there.release("job", held.lease_id)
    cluster.servers[0].resume()  # now it reads the requests whose clients have gone
    here = cluster.client(cluster.servers[0].url)
    here.release("other", here.acquire("other").lease_id)  # behind them
    pause(2.5)
    assert kinds(there).count("acquired") == 1
    assert there.owner("job").status == "free"


@pytest.mark.promise("servers:failover")
def test_a_command_is_not_lost_and_the_next_one_does_not_try_the_hung_server_first(cluster: Cluster) -> None:
    cluster.start(2)
    env = cluster.env()
    cluster.pause()
    took = []
    for number in range(6):
        began_ms = steady_ms()
        ran = dibs(env, "claim", f"job-{number}", "--json")
        took.append(steady_ms() - began_ms)
        assert ran.exit == 0, ran
    assert len([ms for ms in took if ms >= PATIENCE_MS]) <= 1, took


@pytest.mark.promise("servers:failover")
@pytest.mark.parametrize("fault", HARDEST)
def test_a_command_under_a_claim_runs_on(cluster: Cluster, fault: str) -> None:
    cluster.start(2)
    env = cluster.env()
    ran: list[Any] = []
    words = ("run", "job", "--ttl", "3s", "--", "sleep", "5")
    thread = threading.Thread(target=lambda: ran.append(dibs(env, *words)))
    thread.start()
    there = cluster.client(cluster.servers[1].url)
    wait_until(lambda: there.owner("job").status == "held", "the command has begun")
    cluster.hit(fault)
    thread.join(WAIT_S)
    assert ran[0].exit == 0, ran
    assert kinds(there) == ["acquired", "released"]


@pytest.mark.promise("servers:failover")
@pytest.mark.parametrize("fault", HARDEST)
def test_event_loops_fail_over_too(cluster: Cluster, fault: str) -> None:
    cluster.start(2)

    async def work() -> None:
        async with AsyncClient(cluster.url, TOKEN) as client, client.claim("job", ttl=6) as claim:
            await asyncio.to_thread(cluster.hit, fault)
            for _ in range(16):
                await asyncio.sleep(0.5)
                claim.check()

    asyncio.run(work())
    there = cluster.client(cluster.servers[1].url)
    assert kinds(there) == ["acquired", "released"]


@pytest.mark.promise("servers:failover")
def test_a_rolling_restart_is_noticed_by_nobody(cluster: Cluster) -> None:
    cluster.start(3)
    client = cluster.client()
    over = threading.Event()
    counts: list[int] = []
    troubles: list[BaseException] = []

    def work(name: str) -> None:
        done = 0
        try:
            while not over.is_set():
                with client.claim("job", wait=WAIT_S, ttl=10, owner=name):
                    done += 1
                    pause(0.02)
                client.renew("kept", kept.lease_id)
        except BaseException as error:
            troubles.append(error)
        counts.append(done)

    kept = client.acquire("kept", ttl=30)
    workers = [threading.Thread(target=work, args=(f"w-{number}",)) for number in range(3)]
    for worker in workers:
        worker.start()
    for at in range(3):
        server = cluster.servers[at]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT_S) == 0
        assert "draining" in server.log.read_text()
        server._words[server._words.index("--bind") + 1] = server.url.removeprefix("http://")
        server.start()
    over.set()
    for worker in workers:
        worker.join(WAIT_S)
    assert not troubles
    assert len(counts) == 3
    assert min(counts) > 0
    events = [event for event in client.history("job", 1_000) if event.event in ("acquired", "released")]
    events = events[events[0].event == "released" :]  # the page is full
    assert [event.event for event in events[::2]] == ["acquired"] * ((len(events) + 1) // 2)
    assert [event.event for event in events[1::2]] == ["released"] * (len(events) // 2)
    tokens = [event.fencing_token or 0 for event in events if event.event == "acquired"]
    assert tokens == sorted(set(tokens))


@pytest.mark.promise("servers:one-store")
def test_servers_of_two_stores_in_one_list_are_found_out_before_anything_is_done(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start(1)
    (tmp_path / "server-9").mkdir()
    words = ("--tokens", str(tmp_path / "tokens"))
    stranger = ServerProcess(tmp_path / "server-9", store=f"sqlite://{tmp_path}/other.db", flags=words)
    cluster.stack.callback(end, stranger)
    stranger.start()
    url = f"{cluster.servers[0].url},{stranger.url}"
    env = {**cluster.env(), "DIBS_URL": url}
    exits = set()
    for number in range(12):  # each begins with a server at random
        ran = dibs(env, "claim", f"job-{number}", "--json")
        exits.add(ran.exit)
        if ran.exit:
            assert "serves another store than" in ran.error["message"]
    assert exits == {0, 64}
    held = [cluster.client(each).list() for each in url.split(",")]
    assert sorted(map(bool, held)) == [False, True], "one of the two never took anything"
    doctor = dibs(env, "doctor")
    assert doctor.exit == 69
    assert "serves another store than" in doctor.out
