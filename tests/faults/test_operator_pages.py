"""What the pages tell an operator to do is done under live workers: an upgrade, a restart of each server, a restore, a
promotion, a full disk. The commands are those of the pages. (A move is in test_moves.py.)

Nobody loses a lease or a place in line, and the line is served in its order; where a page says that somebody does, that
one is told.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dibs import Client, DibsError, JobHeld, __version__
from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from tests import postgres, postgres_pair
from tests.faults.cluster import TOKEN
from tests.faults.page_operator import Operator, block_of
from tests.faults.swarm import Swarm
from tests.programs import ROOT, pass_by, reserved_ports, wait_until
from tests.releases import code_of, last_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.etcd import Cluster as EtcdCluster
    from tests.postgres import Schema

pytestmark = pytest.mark.e2e

NEW = ROOT / "src"
SERVERS = ("a", "b", "c")
STORE = "sqlite:///var/lib/dibs/dibs.db"


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return code_of(last_release(), tmp_path_factory.mktemp("release"))


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[str, str]:
    """The flags of a server that lets the workers in."""
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text(f"agent:{TOKEN}:admin\n")
    return "--tokens", str(file)


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with reserved_ports(len(SERVERS)) as found:
        yield found


def health(url: str, path: str = "/health") -> tuple[int, dict[str, Any]]:
    asked = urllib.request.Request(f"{url}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def is_away(url: str) -> bool:
    return health(url)[0] == 503


def version_of(url: str) -> str:
    return str(health(url)[1]["dibs"])


@pytest.mark.promise("servers:upgrade")
@pytest.mark.promise("lease:outage-credit")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("workers", ["old", "new"])
def test_an_upgrade_of_the_only_server_costs_nobody_a_lease_or_a_place_and_there_is_a_way_back(
    workers: str, old_code: Path, tmp_path: Path, ports: list[int], tokens: tuple[str, str]
) -> None:
    url = f"sqlite://{tmp_path}/dibs.db"
    here = {STORE: url, "/var/backups": str(tmp_path), "/srv/dibs": str(NEW)}
    with Operator(tmp_path, here, old_code) as operator:
        server = operator.serve("one", url, ports[0], *tokens)
        assert version_of(server.url) == last_release()
        with Swarm(server.url, TOKEN, tmp_path, old_code if workers == "old" else NEW) as swarm:
            done = operator.paste(block_of("upgrade.md", "systemctl stop"))
            assert done.returncode == 0, done
            assert version_of(server.url) == __version__
            with Client(server.url, TOKEN) as client:
                swarm.all_go_on(client, url)
        # Back to the older version: it does not open the file, so the backup is put in its place.
        back = f"systemctl stop dibs; pip install --upgrade {old_code}"
        assert operator.paste(back).returncode == 0
        refused = operator.paste(f"dibs list --url {STORE}")
        assert "written by a newer dibs" in refused.stderr, refused
        back = f"dibs restore /var/backups/dibs-before.db --url {STORE}; systemctl start dibs"
        done = operator.paste(back)
        assert done.returncode == 0, done
        assert version_of(server.url) == last_release()
        with Client(server.url, TOKEN) as client:
            assert client.owner("held-0").fencing_token == swarm.tokens[0]


@pytest.mark.promise("servers:upgrade")
@pytest.mark.promise("servers:failover")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize(
    ("kind", "servers", "workers"),
    [
        ("sqlite", "new", "new"),
        ("postgresql", "old", "old"),
        ("postgresql", "old", "new"),
        ("etcd", "old", "old"),
        ("etcd", "old", "new"),
    ],
)
def test_servers_are_restarted_one_after_the_other_and_no_worker_notices(
    kind: str,
    servers: str,
    workers: str,
    old_code: Path,
    tmp_path: Path,
    ports: list[int],
    tokens: tuple[str, str],
    need_program: Callable[[str], str],
    postgres_schema: Callable[[], Schema],
    etcd_cluster: EtcdCluster,
) -> None:
    """Between two restarts, servers of both versions run on one store."""
    need_program("curl")
    made = {"sqlite": f"sqlite://{tmp_path}/dibs.db", "etcd": etcd_cluster.url(new_id())}
    url = postgres_schema().url if kind == "postgresql" else made[kind]
    code = {"old": old_code, "new": NEW}
    here = {"http://$server.example.org:3427": '$(cat "$UNITS/url-$server")', "/srv/dibs": str(NEW)}
    with Operator(tmp_path, here, code[servers]) as operator, contextlib.ExitStack() as stack:
        running = [operator.serve(*of, *tokens) for of in zip(SERVERS, [url] * 3, ports, strict=True)]
        clients = [stack.enter_context(Client(server.url, TOKEN)) for server in running]
        swarm = Swarm(",".join(server.url for server in running), TOKEN, tmp_path, code[workers])
        probed: list[str] = []

        def exclude_each_other(restarted: str) -> None:
            """A job that is claimed at one server is refused at each other, whatever their versions."""
            if kind == "etcd" and servers == "old":
                for server in running[SERVERS.index(restarted) + 1 :]:
                    wait_until(partial(is_away, server.url), "an old server on etcd is out of use")
                return
            for at in clients:
                job = f"probe-{len(probed)}"
                probed.append(job)
                lease = at.acquire(job)
                for other in clients:
                    if other is not at:
                        with pytest.raises(JobHeld):
                            other.acquire(job)
                at.release(job, lease.lease_id)

        operator.after_start = exclude_each_other
        with swarm:
            if servers == "old":
                [install] = [line for line in block_of("upgrade.md", "pip install").splitlines() if "pip" in line]
                assert operator.paste(install).returncode == 0
            done = operator.paste(block_of("several-servers.md", "systemctl restart"))
            assert done.returncode == 0, done
            assert {version_of(server.url) for server in running} == {__version__}
            swarm.all_go_on(clients[0], url, more=len(probed))


@pytest.mark.promise("token:rises")
def test_a_restored_backup_goes_on_with_those_it_has_and_the_others_are_told(
    tmp_path: Path, ports: list[int], tokens: tuple[str, str]
) -> None:
    url = f"sqlite://{tmp_path}/dibs.db"
    backup, restore = block_of("move-a-store.md", "dibs restore").splitlines()
    with Operator(tmp_path, {STORE: url, "/var/backups/dibs.db": f"{tmp_path}/backup.db"}) as operator:
        server = operator.serve("one", url, ports[0], *tokens)
        with Swarm(server.url, TOKEN, tmp_path) as swarm, Client(server.url, TOKEN) as client:
            assert operator.paste(backup).returncode == 0
            since = swarm.worker("since")
            given_out = since.token()
            assert operator.paste(restore).returncode != 0, "a server has the store open"
            done = operator.paste(f"systemctl stop dibs; {restore}; systemctl start dibs")
            assert done.returncode == 0, done
            taken = client.acquire("since")
            assert taken.fencing_token > given_out
            assert since.finish().startswith("lost LeaseLost"), since.said
            client.release("since", taken.lease_id)
            swarm.all_go_on(client, url, more=1)


@pytest.mark.promise("durable")
@pytest.mark.promise("token:rises")
def test_a_promoted_standby_goes_on_with_every_lease_and_place(
    tmp_path: Path, ports: list[int], tokens: tuple[str, str], postgres_programs: tuple[str, str]
) -> None:
    psql = postgres.program("psql")
    assert psql is not None
    with postgres_pair.pair(*postgres_programs, synchronous=False) as pair:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in pair.nodes)
        url = f"postgresql://dibs@{hosts}/postgres"
        here = {"psql ": f"{psql} -h 127.0.0.1 -p {pair.primary.port} -U dibs postgres ", "(db2)": "(walreceiver)"}
        with Operator(tmp_path, here) as operator:
            done = operator.paste(block_of("several-servers-on-postgresql.md", "ALTER SYSTEM"))
            assert done.returncode == 0, done
            wait_until(pair.is_safe, "commits wait for the standby")
            running = [operator.serve(*of, *tokens) for of in zip("ab", [url] * 2, ports, strict=False)]
            with (
                Swarm(",".join(server.url for server in running), TOKEN, tmp_path) as swarm,
                Client(running[0].url, TOKEN) as client,
            ):
                before = client.acquire("between")
                client.release("between", before.lease_id)
                pair.primary.kill()
                pair.promote()
                after = wait_until(lambda: claimed(client, "between"), "the new primary answers")
                assert after > before.fencing_token
                swarm.all_go_on(client, url, more=2)


def claimed(client: Client, job: str) -> int:
    """Its fencing token, or 0 without an answer. Gives it back."""
    try:
        lease = client.acquire(job, request_key=f"key-{job}")
        client.release(job, lease.lease_id)
    except DibsError:
        return 0
    return lease.fencing_token


@pytest.mark.promise("damage:told")
@pytest.mark.promise("lease:outage-credit")
def test_a_disk_that_is_full_for_a_while_is_reported_and_costs_nobody_a_lease_or_a_place(
    small_disk: Path, tmp_path: Path, ports: list[int], tokens: tuple[str, str]
) -> None:
    url = f"sqlite://{small_disk}/dibs.db"
    ballast = small_disk / "ballast"
    with Operator(tmp_path, {}) as operator:
        server = operator.serve("one", url, ports[0], *tokens)
        with Swarm(server.url, TOKEN, tmp_path) as swarm, Client(server.url, TOKEN, timeout=2) as client:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(b"x" * 512):
                    pass
            with pytest.raises(DibsError, match="is full"):
                client.acquire("new")
            status, told = health(server.url, "/ready")
            assert (status, "is full" in told["details"]) == (503, True)
            pass_by(steady_ms() + min(500 * swarm.ttl_s, 55_000))  # every owner tried to renew
            ballast.unlink()
            wait_until(lambda: health(server.url, "/ready")[0] == 200, "the server can write again")
            swarm.all_go_on(client, url)
