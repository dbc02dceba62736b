"""rlock and the gateway as processes: shells, a server that is killed, their scripts, forty at once."""

from __future__ import annotations

import json
import subprocess
import tomllib
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugins.compat.lock_scripts import (
    OURS,
    TIMEOUT_S,
    at_once,
    install_ours,
    install_theirs,
    on_path,
    typed,
)
from tests.programs import ServerProcess, clean_env, dibs, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.full]

ROOT = Path(__file__).parents[3]
KEY = "github://acme/app/issues/42"
WORKERS = 40


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """One user's machine, with our commands on its PATH."""
    return on_path(clean_env(tmp_path), install_ours(tmp_path / "bin"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, flags=("--gateway", "--access-log")) as server:
        yield server


def secret_of(env: dict[str, str], holder: str, *words: str) -> str:
    begun = dibs(env, "run-secret", "create", "-q", "--holder", holder, *words)
    assert begun.exit == 0, begun
    return begun.out.strip()


def test_the_commands_are_installed_under_their_names() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, function in OURS.items():
        assert scripts[name] == f"dibs.compat.action_llama.rlock:{function}"


@pytest.mark.promise("excl")
def test_of_forty_at_once_exactly_one_gets_the_lock(env: dict[str, str], tmp_path: Path) -> None:
    """All of them children of one process, which is the only thing that tells who they are."""
    codes = at_once([env] * WORKERS, tmp_path, "rlock", KEY)
    assert sorted(codes) == [0] + [1] * (WORKERS - 1)


@pytest.mark.parametrize(
    "script",
    [
        'rlock "$K" && rlock-heartbeat "$K" && runlock "$K"',
        'ok=$(rlock "$K" | cat) && ( rlock-heartbeat "$K" ) && [ "$(runlock "$K" | cat)" = \'{"ok":true}\' ]',
        "sh -c 'rlock \"$K\" && true' && sh -c 'true && runlock \"$K\"'",
        "sh -c 'rlock \"$K\"' && sh -c 'runlock \"$K\"'",
    ],
    ids=["one shell", "subshells and pipes", "a shell for each command", "a shell that becomes the command"],
)
def test_a_script_locks_and_lets_go_by_name(env: dict[str, str], tmp_path: Path, script: str) -> None:
    code, said = typed({**env, "K": 'x:"quoted" \\ key'}, tmp_path, "sh", "-c", script)
    assert code == 0, said


@pytest.mark.promise("excl:same-token")
def test_of_two_scripts_only_the_one_that_locked_lets_go(env: dict[str, str], tmp_path: Path) -> None:
    first = subprocess.Popen(
        ["sh", "-c", f"rlock {KEY}; read go; runlock {KEY}"],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        assert json.loads(first.stdout.readline())["ok"] is True
        other = f"rlock {KEY}; echo $?; rlock-heartbeat {KEY}; echo $?; runlock {KEY}; echo $?"
        _, said = typed(env, tmp_path, "sh", "-c", other)
        assert said.splitlines()[1::2] == ["1", "1", "1"]
        assert first.communicate("go\n", timeout=TIMEOUT_S)[0] == '{"ok":true}\n'
    finally:
        first.kill()
        first.communicate()


def test_inside_a_session_everything_goes_by_name_and_is_let_go_at_the_end(env: dict[str, str], tmp_path: Path) -> None:
    inside = f"rlock {KEY} && rlock {KEY} && rlock-heartbeat {KEY}"
    code, said = typed(env, tmp_path, "dibs", "session", "run", "--owner", "dev-1", "--", "sh", "-c", inside)
    assert code == 0, said
    assert typed(env, tmp_path, "rlock", KEY)[0] == 0


def test_their_scripts_work_on_our_gateway(
    server: ServerProcess, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    need_program("curl")
    base = on_path(server.env, install_theirs(tmp_path / "theirs"))
    url = {"GATEWAY_URL": f"{server.url}/gateway"}
    over_http = {**server.env, "DIBS_URL": server.url}
    one = {**base, **url, "SHUTDOWN_SECRET": secret_of(over_http, "dev-1")}
    two = {**base, **url, "SHUTDOWN_SECRET": secret_of(over_http, "dev-2")}

    def said(env: dict[str, str], *words: str) -> tuple[int, object]:
        code, text = typed(env, tmp_path, *words)
        return code, json.loads(text)

    assert said(one, "rlock", KEY) == (0, {"ok": True, "resourceKey": KEY})
    assert said(one, "rlock", KEY)[0] == 0
    code, refused = said(two, "rlock", KEY)
    assert isinstance(refused, dict)
    assert (code, refused["ok"], refused["holder"]) == (1, False, "dev-1")
    assert said(two, "runlock", KEY) == (1, {"ok": False, "reason": "held by dev-1"})
    assert said(one, "rlock-heartbeat", KEY)[0] == 0
    assert said(one, "runlock", KEY) == (0, {"ok": True})
    assert said(one, "runlock", KEY) == (2, {"ok": False, "reason": "lock not found"})
    assert said({**one, "SHUTDOWN_SECRET": "nobodys"}, "rlock", KEY)[0] == 3
    for words in (("rlock", "nope"), ("rlock", 'x:"quoted"'), ("rlock", f'{KEY}","ttl":86400,"z":"')):
        assert said(one, *words)[0] == 4
    assert said({**one, "SHUTDOWN_SECRET": ""}, "rlock", KEY)[0] == 4
    assert said({**one, "GATEWAY_URL": f"{server.url}/gateway/"}, "rlock", KEY)[0] == 0
    assert typed({**one, "GATEWAY_URL": "http://127.0.0.1:1"}, tmp_path, "rlock", KEY)[0] == 6


@pytest.mark.promise("excl")
def test_of_many_runs_at_once_exactly_one_gets_the_lock_through_the_gateway(
    server: ServerProcess, env: dict[str, str], tmp_path: Path
) -> None:
    secrets = [secret_of({**server.env, "DIBS_URL": server.url}, f"dev-{n}") for n in range(4)]
    url = {"GATEWAY_URL": f"{server.url}/gateway/"}
    runs = [{**env, **url, "SHUTDOWN_SECRET": secret} for secret in secrets]
    codes = at_once(runs * 5, tmp_path, "rlock", KEY)
    # Each run asks five times: the one that has it is told so five times, and nobody else once.
    assert sorted(codes) == [0] * 5 + [1] * 15


@pytest.mark.promise("durable")
def test_a_lock_and_its_run_survive_the_server_and_no_log_holds_the_secret(
    server: ServerProcess, env: dict[str, str], tmp_path: Path
) -> None:
    secret = secret_of({**server.env, "DIBS_URL": server.url}, "dev-1")
    run = {**env, "DIBS_URL": server.url, "SHUTDOWN_SECRET": secret}
    assert typed(run, tmp_path, "rlock", KEY)[0] == 0
    listed = f"{server.url}/gateway/locks/list?secret={secret}"
    with urllib.request.urlopen(listed, timeout=TIMEOUT_S) as reply:
        assert [lock["resourceKey"] for lock in json.load(reply)] == [KEY]
    wait_until(lambda: "/gateway/locks/list?secret=..." in server.log.read_text(), "the log has it")
    server.kill()
    code, said = typed(run, tmp_path, "rlock-heartbeat", KEY)
    assert (code, json.loads(said)["ok"]) == (6, False)
    # The same run without the server, on the file itself.
    assert typed({**env, "SHUTDOWN_SECRET": secret}, tmp_path, "rlock-heartbeat", KEY)[0] == 0
    server.start()
    run["DIBS_URL"] = server.url
    assert typed(run, tmp_path, "rlock-heartbeat", KEY)[0] == 0
    code, said = typed(env, tmp_path, "rlock", KEY)
    assert (code, json.loads(said)["holder"]) == (1, "dev-1")
    assert dibs({**server.env, "DIBS_URL": server.url}, "run-secret", "end", "dev-1").exit == 0
    assert typed(env, tmp_path, "rlock", KEY)[0] == 0
    logs = "".join(file.read_text() for file in tmp_path.glob("server-*.log"))
    assert secret not in logs
    assert secret.encode() not in (tmp_path / "dibs" / "dibs.db").read_bytes()
