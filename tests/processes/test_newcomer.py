"""What somebody does on the first day, typed as they would type it: the loop, then a server, then what goes wrong."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from dibs.base.clock import steady_ms
from tests.programs import DIBS, WAIT_S_MAX, ServerProcess, clean_env, dibs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.e2e, pytest.mark.full]

JOB = "issue-1842"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return clean_env(tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """As `dibs serve` starts for somebody who has set nothing up, but for the port."""
    with ServerProcess(tmp_path) as server:
        yield server


def play_the_loop(env: dict[str, str]) -> None:
    claimed = dibs(
        env,
        *("claim", JOB, "--ttl", "2m", "--owner", "agent-7", "--metadata", "repo=acme/app", "--json"),
    )
    assert claimed.exit == 0, claimed
    assert claimed.data["metadata"] == "repo=acme/app"
    lease = claimed.data["lease_id"]

    held = dibs(env, "claim", JOB, "--ttl", "2m", "--owner", "agent-8")
    assert held.exit == 1, held
    assert "agent-7 has issue-1842" in held.out
    assert lease not in held.out + held.err, "a lease id is its owner's secret"

    owner = dibs(env, "owner", JOB)
    assert owner.exit == 0
    assert "agent-7" in owner.out
    assert JOB in dibs(env, "list", "--prefix", "issue-").out

    beat = dibs(env, "heartbeat", JOB, "--lease", lease, "--checkpoint", "tests pass")
    assert beat.exit == 0, beat
    assert dibs(env, "owner", JOB, "--json").data["checkpoint"] == "tests pass"

    assert dibs(env, "release", JOB, "--lease", lease, "--done=1h", "--result", "PR 77").exit == 0
    done = dibs(env, "claim", JOB, "--ttl", "2m", "--owner", "agent-8")
    assert done.exit == 4, done
    assert "agent-7" in done.out
    assert "PR 77" in done.out

    history = dibs(env, "history", JOB, "--json").data["events"]
    assert [event["event"] for event in history] == ["acquired", "progress", "released"]
    shown = dibs(env, "history", JOB)
    assert shown.exit == 0
    assert shown.out.count("agent-7") == 3
    assert "PR 77" in shown.out


def test_the_loop_works_with_nothing_set_up(env: dict[str, str], tmp_path: Path) -> None:
    play_the_loop(env)
    assert [each.name for each in tmp_path.iterdir()] == ["dibs"]
    mode = (tmp_path / "dibs" / "dibs.db").stat().st_mode
    assert not mode & 0o077, f"others can read the store: {stat.filemode(mode)}"


@pytest.mark.promise("same-answer")
def test_the_loop_works_through_a_server_that_was_just_started(server: ServerProcess, tmp_path: Path) -> None:
    play_the_loop(clean_env(tmp_path, DIBS_URL=server.url))


def test_a_first_start_makes_a_token_for_its_owner_only_and_keeps_it(server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "dibs" / "token"
    status = path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert str(path) in server.log.read_text()
    token = server.token
    assert token not in server.log.read_text()
    server.stop()
    server.start()
    assert server.token == token


def ask(server: ServerProcess, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
    """What curl would do."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S_MAX)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None
    finally:
        connection.close()


def test_the_token_opens_the_server_to_anything_that_speaks_http(server: ServerProcess, tmp_path: Path) -> None:
    claim = {"ttl_seconds": 120, "owner": "agent-7", "metadata": "repo=acme/app"}
    status, claimed = ask(server, "POST", f"/locks/{JOB}/acquire", claim, server.token)
    assert (status, claimed["status"], claimed["owner"]) == (200, "acquired", "agent-7")
    status, held = ask(server, "POST", f"/locks/{JOB}/acquire", {"owner": "agent-8"}, server.token)
    assert (status, held["status"], held["owner"]) == (200, "held", "agent-7")
    assert dibs(clean_env(tmp_path, DIBS_URL=server.url), "claim", JOB, "--owner", "agent-9").exit == 1
    status, renewed = ask(server, "POST", f"/locks/{JOB}/renew", {"lease_id": claimed["lease_id"]}, server.token)
    assert (status, renewed["fencing_token"]) == (200, claimed["fencing_token"])
    status, _ = ask(server, "POST", f"/locks/{JOB}/release", {"lease_id": claimed["lease_id"]}, server.token)
    assert status == 200
    status, shown = ask(server, "GET", f"/locks/{JOB}", None, server.token)
    assert (status, shown["status"], shown["previous"]["owner"]) == (200, "free", "agent-7")
    status, health = ask(server, "GET", "/health")
    assert (status, health["status"]) == (200, "ok")


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_the_right_token_nothing_is_shown_or_changed(
    server: ServerProcess, tmp_path: Path, token: str | None
) -> None:
    status, body = ask(server, "POST", f"/locks/{JOB}/acquire", {}, token)
    assert (status, body["code"]) == (
        401,
        "authentication_failed" if token else "authentication_required",
    )
    assert ask(server, "GET", f"/locks/{JOB}", None, token)[0] == 401
    elsewhere = tmp_path / "of somebody else"
    more = {"DIBS_TOKEN": token} if token else {}
    refused = dibs(clean_env(elsewhere, DIBS_URL=server.url, **more), "claim", JOB)
    assert refused.exit == 77, refused
    assert "DIBS_TOKEN" in refused.err or "doctor" in refused.err
    assert dibs(clean_env(tmp_path, DIBS_URL=server.url), "history", JOB).exit == 1


def test_a_server_that_is_gone_is_reported_with_exit_69_and_what_to_do(server: ServerProcess, tmp_path: Path) -> None:
    env = clean_env(tmp_path, DIBS_URL=server.url)
    assert dibs(env, "claim", JOB).exit == 0
    server.kill()
    gone = dibs(env, "claim", JOB)
    assert gone.exit == 69, gone
    assert "Do not begin the work" in gone.err
    assert dibs(env, "claim", JOB, "--json").error["code"] == "upstream_unavailable"


def test_a_token_whose_line_is_removed_is_refused_after_sighup(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    env = clean_env(tmp_path)
    of_stays, of_goes = [
        dibs(env, "token", "create", name, "--tokens", str(tokens), "-q").out.strip() for name in ("stays", "goes")
    ]
    with ServerProcess(tmp_path, flags=("--tokens", str(tokens))) as server:
        reached = {**env, "DIBS_URL": server.url}
        for token in (of_stays, of_goes):
            assert dibs({**reached, "DIBS_TOKEN": token}, "list").exit == 0
        assert dibs(env, "token", "revoke", "goes", "--tokens", str(tokens)).exit == 0
        assert dibs({**reached, "DIBS_TOKEN": of_goes}, "list").exit == 0, "nobody has told the server yet"
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: ask(server, "GET", "/locks", None, of_goes)[0] == 401, "the token is revoked")
        assert dibs({**reached, "DIBS_TOKEN": of_goes}, "list").exit == 77
        assert dibs({**reached, "DIBS_TOKEN": of_stays}, "list").exit == 0

        # A file that cannot be read changes nothing: nobody is locked out by a slip, and nobody let in.
        tokens.write_text("no colon in this line\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "NOT reloaded" in server.log.read_text(), "the server says so")
        assert dibs({**reached, "DIBS_TOKEN": of_stays}, "list").exit == 0
        assert dibs({**reached, "DIBS_TOKEN": of_goes}, "list").exit == 77


def test_sigterm_ends_the_server_within_five_seconds_and_with_0(server: ServerProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    # Neither a client that says nothing nor one that stops in the middle of a request holds it up.
    with (
        socket.create_connection((host, int(port)), WAIT_S_MAX),
        socket.create_connection((host, int(port)), WAIT_S_MAX) as slow,
    ):
        slow.sendall(b"POST /locks/a/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert ask(server, "GET", "/health")[0] == 200
        asked_ms = steady_ms()
        assert server.stop() == 0
        assert steady_ms() - asked_ms < 5_000
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0"])
def test_a_server_for_other_machines_needs_tokens(env: dict[str, str], tmp_path: Path, bind: str) -> None:
    refused = dibs(env, "serve", "--bind", bind)
    assert refused.exit == 64, refused
    assert "--tokens" in refused.err
    assert not (tmp_path / "dibs").exists(), "it was refused, and made something"


def test_a_tokens_file_that_others_can_read_is_refused(env: dict[str, str], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    assert dibs(env, "token", "create", "ci", "--tokens", str(tokens)).exit == 0
    tokens.chmod(0o644)
    refused = dibs(env, "serve", "--bind", "127.0.0.1:0", "--tokens", str(tokens))
    assert refused.exit == 64, refused
    assert "chmod 600" in refused.err


def test_an_address_in_use_is_reported_with_exit_69(server: ServerProcess, env: dict[str, str]) -> None:
    refused = dibs(env, "serve", "--bind", server.url.removeprefix("http://"))
    assert refused.exit == 69, refused
    assert "in use" in refused.err


def test_a_state_folder_that_cannot_be_made_is_reported_with_exit_69(tmp_path: Path) -> None:
    in_the_way = tmp_path / "a file"
    in_the_way.write_text("")
    for words in (("claim", JOB), ("owner", JOB), ("list",)):
        refused = dibs(clean_env(in_the_way), *words)
        assert refused.exit == 69, refused
        assert str(in_the_way) in refused.err
        assert "Traceback" not in refused.err


# `step NAME COMMAND...` keeps what the command said, and its exit code. "$@" is the dibs command.
SMALL_DISK = """
mount -t tmpfs -o size=1m,mode=700 none "$XDG_STATE_HOME" || exit 99
step() { name=$1; shift; "$@" > "$STEPS/$name" 2>&1; echo $? > "$STEPS/$name.exit"; }
"""
FULL = """
step before "$@" claim before
head -c 2m /dev/zero > "$XDG_STATE_HOME/filler" 2> /dev/null
step full "$@" claim during
step look "$@" owner before
rm "$XDG_STATE_HOME/filler"
step after "$@" claim during
step history "$@" history during --json
"""
READ_ONLY = """
step before "$@" claim before
mount -o remount,ro "$XDG_STATE_HOME"
step look "$@" owner before
step write "$@" claim during
"""
READ_ONLY_AND_EMPTY = """
mount -o remount,ro "$XDG_STATE_HOME"
step write "$@" claim during
"""


class Step(NamedTuple):
    exit: int
    said: str


def on_a_small_disk(tmp_path: Path, script: str) -> dict[str, Step]:
    """Runs a shell script with a state folder on a disk of one megabyte, which nobody else sees."""
    unshare = shutil.which("unshare")
    apart = [unshare or "", "--map-root-user", "--mount"]
    if unshare is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("there are no mount namespaces here, so no small disk")
    steps, state = tmp_path / "steps", tmp_path / "state"
    steps.mkdir()
    state.mkdir()
    done = subprocess.run(
        [*apart, "sh", "-c", SMALL_DISK + script, "sh", *DIBS],
        env={**clean_env(state), "STEPS": str(steps)},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S_MAX,
        check=False,
    )
    if done.returncode == 99:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr}")
    return {each.stem: Step(int(each.read_text()), each.with_suffix("").read_text()) for each in steps.glob("*.exit")}


def test_a_full_disk_is_reported_changes_nothing_and_is_over_when_there_is_room(tmp_path: Path) -> None:
    steps = on_a_small_disk(tmp_path, FULL)
    assert steps["before"].exit == 0, steps
    assert steps["full"].exit == 69, steps
    assert "is full. Make room" in steps["full"].said
    # To look, SQLite needs a little room beside the file as well.
    assert steps["look"].exit == 0 or "is full. Make room" in steps["look"].said, steps
    assert steps["after"].exit == 0, steps
    events = json.loads(steps["history"].said)["data"]["events"]
    assert [(event["event"], event["fencing_token"]) for event in events] == [("acquired", 1)]


def test_a_disk_that_cannot_be_written_is_reported_and_can_still_be_read(tmp_path: Path) -> None:
    steps = on_a_small_disk(tmp_path, READ_ONLY)
    assert steps["before"].exit == 0, steps
    assert steps["look"].exit == 0, steps
    assert steps["write"].exit == 69, steps
    assert "cannot be written" in steps["write"].said


def test_a_state_folder_that_cannot_be_written_is_reported_with_exit_69(tmp_path: Path) -> None:
    if os.geteuid() == 0:  # who may write everywhere, but for a disk that nobody can write
        refused = on_a_small_disk(tmp_path, READ_ONLY_AND_EMPTY)["write"]
    else:
        state = tmp_path / "state"
        state.mkdir(mode=0o500)
        ran = dibs(clean_env(state), "claim", JOB)
        refused = Step(ran.exit, ran.err)
    assert refused.exit == 69, refused
    assert str(tmp_path / "state") in refused.said
    assert "Traceback" not in refused.said


def test_the_command_is_installed_beside_its_python(env: dict[str, str]) -> None:
    script = shutil.which("dibs", path=os.path.dirname(sys.executable))
    if script is None:
        pytest.skip("dibs is not installed in this environment")
    done = subprocess.run(
        [script, "--version"], env=env, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
    )
    assert done.returncode == 0
    assert done.stdout == dibs(env, "--version").out
