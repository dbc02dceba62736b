"""Real commands and real servers on a real etcd."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_token
from dibs.client.transport import Ask
from tests import etcd
from tests.programs import ServerProcess, clean_env, dibs, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from dibs.client.transport import Transport
    from tests.etcd import Cluster

pytestmark = pytest.mark.e2e


def asked(transport: Transport, verb: str, **document: object) -> tuple[int, dict[str, Any]]:
    reply = transport.ask(Ask(verb, "job", document))
    return reply.status, reply.body or {}


@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
def test_commands_without_a_server_share_jobs_through_etcd(etcd_cluster: Cluster, tmp_path: Path) -> None:
    url = etcd_cluster.url(f"e2e/{new_token()}")
    env = clean_env(tmp_path) | {"DIBS_URL": url}
    mine = dibs(env, "claim", "issue-1", "--owner", "a", "--json").data
    assert dibs(env, "claim", "issue-1", "--owner", "b").exit == 1
    assert dibs(env, "release", "issue-1", "--lease", mine["lease_id"]).exit == 0
    again = dibs(env, "claim", "issue-1", "--owner", "b", "--ttl", "1s", "--json").data
    assert again["fencing_token"] > mine["fencing_token"]
    taken = dibs(env, "claim", "issue-1", "--owner", "c", "--wait", "10s", "--json").data
    assert taken["fencing_token"] > again["fencing_token"]
    assert dibs(env, "history", "issue-1").out.count("\n") >= 5
    assert dibs(env, "doctor").exit == 0


@pytest.mark.promise("queue:fifo")
def test_a_job_goes_on_at_another_server_when_one_is_killed(etcd_cluster: Cluster, tmp_path: Path) -> None:
    url = etcd_cluster.url(f"e2e/{new_token()}")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with ServerProcess(folders[0], store=url) as one, ServerProcess(folders[1], store=url) as two:
        _, mine = asked(one.transport(), "acquire", owner="a", ttl_ms=60_000)
        one.kill()
        assert asked(two.transport(), "acquire", owner="b")[1]["owner"] == "a"
        assert asked(two.transport(), "renew", lease_id=mine["lease_id"])[0] == 200


@pytest.mark.promise("lease:outage-credit")
def test_a_lease_that_was_live_when_etcd_went_is_live_when_it_is_back(etcd_program: str, tmp_path: Path) -> None:
    with etcd.running(etcd_program) as cluster, ServerProcess(tmp_path, store=cluster.url()) as server:
        _, mine = asked(server.transport(), "acquire", owner="a", ttl_ms=3_000)
        member = cluster.members[0]
        member.signal(signal.SIGSTOP)
        until = dibs(clean_env(tmp_path), "doctor", cluster.url())
        assert until.exit != 0  # it takes two seconds to say so, or more
        wait_until(lambda: asked(server.transport(2_000), "inspect")[0] == 503, "the server says so")
        member.signal(signal.SIGCONT)

        def renewed() -> bool:
            return asked(server.transport(), "renew", lease_id=mine["lease_id"])[0] == 200

        wait_until(renewed, "the lease is renewed")
