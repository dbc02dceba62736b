"""claim --keep: a process sends heartbeats for its caller, and ends with the caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.client.transport import Ask
from dibs.system.session_mark import process_mark
from tests.processes.machine import Machine, finished
from tests.programs import pause, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Terminal

pytestmark = pytest.mark.e2e


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    """A caller that is busy."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        yield agent
        agent.kill()


def keepers(job: str) -> list[int]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"--keep-for" in words and job.encode() in words and process_mark(int(name)):
            found.append(int(name))
    return found


def expiry(machine: Machine, job: str) -> object:
    return machine.look(job).get("expires_at")


def test_the_claim_outlives_its_ttl_and_goes_with_the_process(machine: Machine, agent: subprocess.Popen[bytes]) -> None:
    job = f"kept-{os.getpid()}"
    code, out = machine.run("claim", job, "--ttl", "3s", "--keep-for", str(agent.pid))
    assert code == 0
    assert f"kept for       process {agent.pid}, until it ends" in out
    token, first = machine.look(job)["fencing_token"], expiry(machine, job)
    second = wait_until(lambda: (now := expiry(machine, job)) != first and now, "it is renewed")
    wait_until(lambda: (now := expiry(machine, job)) != second and now, "it is renewed again")
    machine.until(lambda: bool(machine.look(job)["held_ms"] > 3_000))
    assert machine.look(job)["fencing_token"] == token
    (keeper,) = keepers(job)
    assert os.readlink(f"/proc/{keeper}/cwd") == "/"
    assert {os.readlink(f"/proc/{keeper}/fd/{number}") for number in (0, 1, 2)} == {"/dev/null"}
    assert os.getsid(keeper) != os.getsid(0)
    # It opens the store for each question, and has it open for no longer.
    wait_until(lambda: not _open_store_files(keeper), "the store is closed again")
    agent.kill()
    agent.wait()
    machine.until(lambda: machine.look(job)["status"] == "free")
    wait_until(lambda: not keepers(job), "the keeper has gone")
    assert machine.transport.ask(Ask("history", job, {"limit": 9})).body["events"][-1]["event"] == "released"  # type: ignore[index]


def _open_store_files(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    return [name for name in os.listdir(folder) if "dibs.db" in _link(f"{folder}/{name}")]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_a_release_ends_the_keeper_and_a_checkpoint_goes_beside_it(
    machine: Machine, agent: subprocess.Popen[bytes]
) -> None:
    job = f"released-{os.getpid()}"
    code, lease = machine.run("claim", job, "-q", "--ttl", "3s", "--keep-for", str(agent.pid))
    assert code == 0
    flags = ("--lease", lease.strip())
    assert machine.run("heartbeat", job, *flags, "--checkpoint", "half way")[0] == 0
    first = expiry(machine, job)
    wait_until(lambda: (now := expiry(machine, job)) != first and now, "it is renewed")
    assert machine.look(job)["checkpoint"] == "half way"
    assert machine.run("release", job, *flags)[0] == 0
    wait_until(lambda: not keepers(job), "the keeper has gone")


@pytest.mark.fault("F-371")
@pytest.mark.promise("overdue")
def test_the_end_of_its_process_is_no_success_of_the_job(machine: Machine, agent: subprocess.Popen[bytes]) -> None:
    lease = machine.run("claim", "job", "-q")[1].strip()
    assert machine.run("release", "job", "--failed", "--lease", lease)[0] == 0
    assert machine.run("claim", "job", "-q", "--keep-for", str(agent.pid))[0] == 0
    agent.kill()
    agent.wait()
    machine.until(lambda: machine.look("job")["status"] == "free")
    assert machine.look("job")["previous"]["how"] == "released"
    assert machine.run("overdue", "job")[0] != 0
    assert "attempt        2" in machine.run("claim", "job")[1]  # the count stays


def test_by_default_it_is_the_caller_whose_life_counts(machine: Machine) -> None:
    script = 'LEASE=$($DIBS claim -q job --keep) && echo "$LEASE" && read line'
    caller = subprocess.Popen(
        ["/bin/sh", "-c", script], env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    assert len(caller.stdout.readline()) == 37  # it came, so nobody holds on to the output
    assert machine.look("job")["status"] == "held"
    caller.communicate("go\n", timeout=50)
    machine.until(lambda: machine.look("job")["status"] == "free")


def test_inside_a_session_that_is_kept_as_well_and_not_ended(machine: Machine, agent: subprocess.Popen[bytes]) -> None:
    session = machine.run("session", "open", "-q", "--ttl", "10s")[1].strip()
    job = f"inside-{os.getpid()}"
    words = ("claim", job, "-q", "--session", session, "--keep-for", str(agent.pid))
    assert machine.run(*words)[0] == 0

    def session_expiry() -> object:
        return (machine.transport.ask(Ask("session-show", session)).body or {}).get("expires_at")

    first = session_expiry()
    wait_until(lambda: (now := session_expiry()) != first and now, "the session is kept")
    agent.kill()
    agent.wait()
    machine.until(lambda: machine.look(job)["status"] == "free")
    assert machine.run("session", "show", session)[0] == 0


def test_a_claim_that_got_nothing_leaves_nobody_behind(machine: Machine) -> None:
    job = f"held-{os.getpid()}"
    machine.run("claim", job)
    assert machine.run("claim", job, "--keep-for", str(os.getpid()))[0] == 1
    assert keepers(job) == []


@pytest.mark.parametrize("pid", ["x", "0", "-1", "99999999999", str(2**22 + 5)])
def test_a_process_that_is_not_there_cannot_be_kept_for(terminal: Terminal, pid: str) -> None:
    ran = terminal("claim", "job", f"--keep-for={pid}")
    assert ran.exit == 64
    assert "--keep-for" in ran.err
    assert sys.executable not in ran.err
    assert terminal("owner", "job").exit == 1


@pytest.fixture
def clone(machine: Machine, tmp_path: Path, need_program: Callable[[str], str]) -> Path:
    """A clone of a repository of one's own, as `git:origin` wants it."""
    git = need_program("git")
    remote, clone = tmp_path / "remote.git", tmp_path / "clone"
    subprocess.run([git, "init", "-q", "--bare", str(remote)], check=True)
    subprocess.run([git, "clone", "-q", str(remote), str(clone)], check=True, capture_output=True)
    machine.env["DIBS_URL"] = "git:origin"
    return clone


def in_folder(machine: Machine, folder: Path, *words: str) -> tuple[int, str]:
    return finished(machine.start(*words, cwd=folder, stderr=subprocess.STDOUT))


def test_a_claim_at_a_git_remote_named_from_the_folder_is_kept(
    machine: Machine, agent: subprocess.Popen[bytes], clone: Path
) -> None:
    job = f"git-kept-{os.getpid()}"
    code, out = in_folder(machine, clone, "claim", job, "--ttl", "4s", "--keep-for", str(agent.pid), "--json")
    assert code == 0, out
    token = json.loads(out)["data"]["fencing_token"]
    pause(6)  # longer than the TTL: there is no clock here to be moved
    code, out = in_folder(machine, clone, "owner", job, "--json")
    assert (code, json.loads(out)["data"]["fencing_token"]) == (0, token)


def test_a_claim_in_a_file_named_from_the_folder_is_kept(
    machine: Machine, agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    job, folder = f"file-kept-{os.getpid()}", tmp_path / "here"
    folder.mkdir()
    machine.env["DIBS_URL"] = "sqlite:claims.db"
    assert in_folder(machine, folder, "claim", job, "--ttl", "1s", "--keep-for", str(agent.pid))[0] == 0
    pause(2)
    assert in_folder(machine, folder, "owner", job)[0] == 0


CANNOT_KEEP = """
import sys
from dibs.cli import main
from dibs.cli.supervise import background_heartbeat as keeping
from dibs.client.embedded import EmbeddedTransport
real = EmbeddedTransport.ask
def ask(self, asked):
    if asked.verb == "renew":
        {fault}
    return real(self, asked)
EmbeddedTransport.ask = ask
sys.exit(main.entry())
"""


@pytest.mark.parametrize(
    ("fault", "says"), [("raise OSError('no way')", "no way"), ("import os; os._exit(1)", "ended at once")]
)
def test_a_keeper_that_cannot_keep_says_so_and_the_claim_is_given_back(fault: str, says: str, machine: Machine) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CANNOT_KEEP.format(fault=fault), "claim", "job", "--keep"],
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 69
    assert says in ran.stderr
    assert "no background process can renew job" in ran.stderr
    assert machine.look("job")["status"] == "free"


def test_all_that_were_claimed_together_are_kept_and_what_is_released_is_kept_no_more(
    machine: Machine, agent: subprocess.Popen[bytes]
) -> None:
    one, other = f"one-{os.getpid()}", f"other-{os.getpid()}"
    words = ("claim-all", one, other, "--json", "--ttl", "3s", "--keep-for", str(agent.pid))
    code, out = machine.run(*words)
    grant = json.loads(out)["data"]
    assert (code, grant["kept_for"]) == (0, agent.pid)
    assert machine.run("release", one, "--lease", grant["lease_id"])[0] == 0
    first = expiry(machine, other)
    second = wait_until(lambda: (now := expiry(machine, other)) != first and now, "it is renewed")
    wait_until(lambda: (now := expiry(machine, other)) != second and now, "it is renewed again")
    assert machine.look(one)["status"] == "free"
    agent.kill()
    agent.wait()
    machine.until(lambda: machine.look(other)["status"] == "free")
    wait_until(lambda: not keepers(other), "the keeper has gone")


def test_the_text_of_claim_all_names_the_process_and_not_the_heartbeat(
    machine: Machine, agent: subprocess.Popen[bytes]
) -> None:
    code, out = machine.run("claim-all", "a", "b", "--keep-for", str(agent.pid))
    assert code == 0
    *_, kept, after = out.splitlines()
    assert kept.split() == ["kept", "for", "process", f"{agent.pid},", "until", "it", "ends"]
    assert after.startswith("When they are done:  dibs release a b --lease ")
