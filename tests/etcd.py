"""Starts an etcd for tests: in a temporary folder, on free ports of this machine, never as root, removed
afterwards."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.base.errors import DibsError
from dibs.stores.etcd import EtcdLocation
from dibs.stores.etcd.client import COMPACT, RANGE, STATUS, EtcdClient
from dibs.stores.etcd.messages import StatusAnswer, fields, message, one, put_op, range_request
from tests.programs import WAIT_S_MAX, ending_with_us, reserved_ports, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USERS = ("etcd", "nobody")  # whom root becomes


def _somebody() -> dict[str, Any]:
    """Arguments for subprocess: a server of a test does not run as root."""
    if os.getuid() != 0:
        return {}
    known = {each.pw_name: each for each in pwd.getpwall()}
    user = next(known[name] for name in USERS if name in known)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Member:
    """One server of a cluster. It may be killed, paused and started again."""

    def __init__(self, words: list[str], folder: str, endpoint: tuple[str, int]) -> None:
        self.endpoint = endpoint
        self._words = words
        self._folder = folder
        self._who = _somebody()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {"PATH": os.environ.get("PATH", ""), "HOME": self._folder}
        if platform.machine() in ("aarch64", "arm64"):
            env["ETCD_UNSUPPORTED_ARCH"] = "arm64"  # etcd 3.4 wants to be told
        with open(f"{self._folder}/log", "ab") as log:
            self._process = subprocess.Popen(
                ending_with_us(*self._words), stdout=log, stderr=log, cwd=self._folder, env=env, **self._who
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return Path(f"{self._folder}/log").read_text(errors="replace")[-4_000:]

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_S_MAX)


class Cluster:
    """Members, and how to reach them."""

    def __init__(self, members: list[Member], **how: Any) -> None:
        self.members = members
        self._how = how

    def location(self, prefix: str = "dibs", **how: Any) -> EtcdLocation:
        endpoints = tuple(member.endpoint for member in self.members)
        return EtcdLocation(endpoints=endpoints, prefix=prefix, **(self._how | how))

    def url(self, prefix: str = "dibs") -> str:
        return self.location(prefix).shown()

    def client(self, **how: Any) -> EtcdClient:
        return EtcdClient(self.location(**how))

    def answers(self) -> bool:
        """Whether the cluster takes writes, by asking all members together."""
        for member in self.members:
            assert member.is_running(), member.log()
        client = self.client()
        try:
            client.txn([put_op(b"ready", b"1")])
        except DibsError:
            return False
        finally:
            client.close()
        return True

    def compact(self) -> None:
        """Forget all older revisions, as an operator would."""
        client = self.client()
        header = one(fields(client.read(RANGE, range_request(b"ready"), bytes)), 1, b"")
        try:
            client.read(COMPACT, message(one(fields(header), 3)), bytes, refusals=True)
        finally:
            client.close()

    def leader(self) -> Member:
        for member in self.members:
            client = EtcdClient(self.location().replace(endpoints=(member.endpoint,)))
            status = client.read(STATUS, b"", StatusAnswer)
            client.close()
            if status.is_leader:
                return member
        raise AssertionError("there is no leader")


@contextmanager
def running(
    program: str, count: int = 1, *, options: Sequence[str] = (), tls: Path | None = None, **how: Any
) -> Iterator[Cluster]:
    """A cluster that runs while the block does. `tls` is a folder with server.crt and server.key."""
    temporary = tempfile.TemporaryDirectory(prefix="dibs-etcd-", ignore_cleanup_errors=True)
    with temporary as top, reserved_ports(2 * count) as ports:
        os.chmod(top, 0o755)
        names = [f"m{number}" for number in range(count)]
        peers = {name: f"http://127.0.0.1:{port}" for name, port in zip(names, ports[count:], strict=True)}
        cluster = ",".join(f"{name}={url}" for name, url in peers.items())
        scheme = "https" if tls else "http"
        members = []
        for name, port in zip(names, ports, strict=False):
            folder = f"{top}/{name}"
            os.mkdir(folder, 0o700)
            who = _somebody()
            if who:
                os.chown(folder, who["user"], who["group"])
            client = f"{scheme}://127.0.0.1:{port}"
            words = [program, "--name", name, "--data-dir", f"{folder}/data", "--unsafe-no-fsync"]
            words += ["--listen-client-urls", client, "--advertise-client-urls", client]
            words += ["--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]]
            words += ["--initial-cluster", cluster, "--log-level", "error", "--logger", "zap"]
            words += ["--heartbeat-interval", "50", "--election-timeout", "500", *options]
            members.append(Member(words, folder, ("127.0.0.1", port)))
        made = Cluster(members, tls=tls is not None, **how)
        try:
            for member in members:
                member.start()
            wait_until(made.answers, "etcd answers")
            yield made
        finally:
            for member in members:
                member.kill()


def program() -> str | None:
    return shutil.which("etcd")
