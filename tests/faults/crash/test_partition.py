"""Three members of etcd in network namespaces of their own, cut off from each other while workers claim."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs import WAIT_S_MAX, ending_with_us

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
ROUNDS = 4
NET = "10.203.77"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=WAIT_S_MAX)


class Namespaces:
    """A bridge in a namespace, and three more behind a link each: all of it is gone afterwards."""

    def __init__(self, stack: ExitStack) -> None:
        name = f"dibs-{os.getpid()}"
        self.hub, self.members = f"{name}-hub", [f"{name}-{number}" for number in range(3)]
        for each in (self.hub, *self.members):
            run("ip", "netns", "add", each)
            stack.callback(run, "ip", "netns", "del", each)
            run("ip", "-n", each, "link", "set", "lo", "up")
        run("ip", "-n", self.hub, "link", "add", "hub", "type", "bridge")
        run("ip", "-n", self.hub, "addr", "add", f"{NET}.254/24", "dev", "hub")
        run("ip", "-n", self.hub, "link", "set", "hub", "up")
        for number, each in enumerate(self.members):
            run("ip", "link", "add", f"m{number}", "netns", self.hub, "type", "veth", "peer", "eth0", "netns", each)
            run("ip", "-n", self.hub, "link", "set", f"m{number}", "master", "hub", "up")
            run("ip", "-n", each, "addr", "add", f"{NET}.{number + 1}/24", "dev", "eth0")
            run("ip", "-n", each, "link", "set", "eth0", "up")

    def start(self, namespace: str, folder: str, *words: str) -> subprocess.Popen[bytes]:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        within = ["ip", "netns", "exec", namespace, "setpriv", f"--reuid={nobody.pw_uid}"]
        within += [f"--regid={nobody.pw_gid}", "--clear-groups"]
        with open(f"{folder}/log", "ab") as log:
            return subprocess.Popen(ending_with_us(*within, *words), stdout=log, stderr=log, cwd=folder)


def etcd_words(program: str, number: int, folder: str) -> list[str]:
    own = f"http://{NET}.{number + 1}"
    peers = ",".join(f"m{each}=http://{NET}.{each + 1}:2380" for each in range(3))
    words = [program, "--name", f"m{number}", "--data-dir", f"{folder}/data", "--unsafe-no-fsync"]
    words += ["--listen-client-urls", f"{own}:2379", "--advertise-client-urls", f"{own}:2379"]
    words += ["--listen-peer-urls", f"{own}:2380", "--initial-advertise-peer-urls", f"{own}:2380"]
    words += ["--initial-cluster", peers, "--log-level", "error", "--logger", "zap"]
    return [*words, "--heartbeat-interval", "50", "--election-timeout", "500"]


@pytest.mark.slow
@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
@pytest.mark.linux("network namespaces")
@pytest.mark.usefixtures("need_root")
def test_members_of_etcd_that_do_not_reach_each_other_never_make_two_owners(
    etcd_program: str, need_program: Callable[[str], str]
) -> None:
    for each in ("ip", "bridge", "setpriv"):
        need_program(each)
    with ExitStack() as stack:
        top = stack.enter_context(tempfile.TemporaryDirectory(prefix="dibs-cut-", ignore_cleanup_errors=True))
        os.chmod(top, 0o755)
        try:
            net = Namespaces(stack)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"PARTITIONS NOT TESTED: no network namespaces here: {error.stderr.decode().strip()}")
        for number, namespace in enumerate(net.members):
            folder = f"{top}/{number}"
            os.mkdir(folder)
            member = net.start(namespace, folder, *etcd_words(etcd_program, number, folder))
            stack.callback(member.wait, WAIT_S_MAX)
            stack.callback(member.kill)
        addresses = ",".join(f"{NET}.{number + 1}:2379" for number in range(3))
        words = [sys.executable, "-m", "tests.faults.crash.partitioned", addresses, str(ROUNDS)]
        ran = subprocess.run(
            ["ip", "netns", "exec", net.hub, *words], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr[-4_000:]
        print(ran.stdout)
        *partitions, verdict = [json.loads(line) for line in ran.stdout.splitlines()]
        assert len(partitions) == ROUNDS
        assert verdict["holds"] > ROUNDS
