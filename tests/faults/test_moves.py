"""A store is moved while its servers, holders and waiters are alive, by the line that the page gives.

Every client knows the old servers and the new one, which is not up before the import is done. Nobody loses a lease or a
place, and the line is served in its order, whatever is killed and repeated in between.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.base.ids import new_id
from dibs.client.servers import SLICE_MS
from dibs.stores.registry import open_store
from tests.docs.pages import ROOT
from tests.faults.cluster import TOKEN, Cluster
from tests.faults.swarm import Swarm
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, clean_env, pass_by, reserved_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.etcd import Cluster as EtcdCluster
    from tests.postgres import Schema

pytestmark = pytest.mark.e2e

MOVES = [("sqlite", "postgresql"), ("sqlite", "etcd"), ("postgresql", "sqlite"), ("etcd", "postgresql")]
# It writes one part of what it brings, and is killed.
KILLED_IMPORT = """
import os, signal, sys
from dibs.engine import archive_import
from dibs.stores.registry import open_store
put = archive_import._Import._put
def put_once(self, puts):
    put(self, puts)
    os.kill(os.getpid(), signal.SIGKILL)
archive_import._Import._put = put_once
archive_import.import_archive(open_store(sys.argv[1]), open(sys.argv[2], "rb"))
"""


def line_of_the_page(old: str, new: str) -> list[list[str]]:
    """The two commands of the how-to, for these stores."""
    page = (ROOT / "docs/how-to/move-a-store.md").read_text()
    (line,) = re.findall(r"^dibs export --freeze .* \| dibs import .*$", page, re.MULTILINE)
    commands = [shlex.split(each) for each in line.split("|")]
    return [[*DIBS, *words[1:-1], url] for words, url in zip(commands, (old, new), strict=True)]


def type_line(env: Mapping[str, str], commands: list[list[str]]) -> None:
    first, second = commands
    with subprocess.Popen(first, env=env, stdout=subprocess.PIPE) as exports:
        done = subprocess.run(second, env=env, stdin=exports.stdout, timeout=WAIT_S_MAX, check=False)
    assert (exports.returncode, done.returncode) == (0, 0)


@pytest.fixture
def url_of(tmp_path: Path, postgres_schema: Callable[[], Schema], etcd_cluster: EtcdCluster) -> Callable[[str], str]:
    made = {
        "sqlite": lambda: f"sqlite://{tmp_path}/{new_id()}.db",
        "postgresql": lambda: postgres_schema().url,
        "etcd": lambda: etcd_cluster.url(new_id()),
    }
    return lambda name: made[name]()


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    with ExitStack() as stack:
        yield stack


@pytest.mark.promise("move:live")
@pytest.mark.promise("queue:fifo")
@pytest.mark.fault("F-405")
@pytest.mark.parametrize("killed", [False, True], ids=["calm", "killed"])
@pytest.mark.parametrize(("source", "target"), MOVES)
def test_nobody_loses_anything_by_a_move_and_the_line_keeps_its_order(
    source: str, target: str, killed: bool, url_of: Callable[[str], str], tmp_path: Path, stack: ExitStack
) -> None:
    old, new = url_of(source), url_of(target)
    (port,) = stack.enter_context(reserved_ports(1))
    cluster = Cluster(tmp_path, old, stack)
    cluster.start(2)
    urls = f"{cluster.url},http://127.0.0.1:{port}"
    env = clean_env(tmp_path / "home")
    swarm = stack.enter_context(Swarm(urls, TOKEN, tmp_path))
    export, imports = line_of_the_page(old, new)
    if killed:
        kill_in_the_middle(env, export, new, tmp_path)
    type_line(env, [export, imports])
    pass_by(steady_ms() + SLICE_MS + 1_000)  # all have met the frozen store
    for server in cluster.servers:
        server.kill() if killed else server.stop()
    (tmp_path / "new").mkdir()
    flags = ("--tokens", str(tmp_path / "tokens"))
    server = ServerProcess(tmp_path / "new", store=new, bind=f"127.0.0.1:{port}", flags=flags)
    stack.callback(server.kill)
    server.start()
    swarm.all_go_on(cluster.client(server.url), new)


def kill_in_the_middle(env: Mapping[str, str], export: list[str], new: str, folder: Path) -> None:
    """The export when the store is frozen and hardly anything is written, and the import when some of it is."""
    with subprocess.Popen(export, env=env, stdout=subprocess.PIPE) as exports:
        assert exports.stdout is not None
        assert exports.stdout.read(1)
        os.kill(exports.pid, signal.SIGKILL)
    copy = folder / "copy"
    copy.write_bytes(subprocess.run(export, env=env, capture_output=True, timeout=WAIT_S_MAX, check=True).stdout)
    words = [sys.executable, "-c", KILLED_IMPORT, new, str(copy)]
    assert subprocess.run(words, env=env, timeout=WAIT_S_MAX, check=False).returncode == -signal.SIGKILL
    store = open_store(new)
    assert store.scan("lock/", limit=1)
    store.close()
