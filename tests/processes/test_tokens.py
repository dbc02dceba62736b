"""Tokens of real servers on one file that are killed and paused: what one acknowledged holds at the other."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.core.limits import CREDENTIAL_STALE_MS_MAX
from tests.programs import DIBS, ServerProcess, clean_env, dibs, pause, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.full]

# Beyond the bound, for a machine that is busy with other things.
SLACK_MS = 3_000


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Two on one file. Each has a state folder of its own, and so a first token of its own."""
    made = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        made.append(ServerProcess(folder, store=f"sqlite://{tmp_path}/dibs.db"))
    with made[0], made[1]:
        yield made


def as_(server: ServerProcess, token: str, home: Path) -> dict[str, str]:
    return clean_env(home, DIBS_URL=server.url, DIBS_TOKEN=token)


@pytest.mark.promise("auth:revoked")
def test_a_token_made_at_one_server_works_at_the_other_until_it_is_revoked_anywhere(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    here, there = servers
    admin = as_(here, here.token, tmp_path)
    made = dibs(admin, "token", "create", "ci", "--max-held", "2", "--json")
    token = made.data["token"]
    ci = as_(there, token, tmp_path)
    began_ms = steady_ms()
    wait_until(lambda: dibs(ci, "claim", "job", "--ttl", "1h").exit == 0, "the token is known there")
    assert steady_ms() - began_ms < CREDENTIAL_STALE_MS_MAX + SLACK_MS
    here.kill()
    assert dibs(ci, "claim", "other", "--ttl", "1h").exit == 0
    here.start()
    assert dibs(as_(here, token, tmp_path), "owner", "job").exit == 0
    revoked = dibs(as_(here, here.token, tmp_path), "token", "revoke", "ci")
    assert revoked.exit == 0, revoked
    here.kill()  # what was acknowledged stays: the other server finds it in the store
    began_ms = steady_ms()
    wait_until(lambda: dibs(ci, "owner", "job").exit == 77, "the token is refused there")
    assert steady_ms() - began_ms < CREDENTIAL_STALE_MS_MAX + SLACK_MS
    here.start()
    assert dibs(as_(here, token, tmp_path), "owner", "job").exit == 77
    for log in tmp_path.glob("*/server-*.log"):
        assert token not in log.read_text()
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("dibs.db*"))
    assert token.removeprefix("dibs_").encode() not in kept


@pytest.mark.promise("auth:revoked")
def test_a_server_that_was_paused_refuses_a_token_that_was_revoked_meanwhile(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    here, there = servers
    store = ["--url", here.store_url]
    token = dibs(clean_env(tmp_path), "token", "create", "ci", *store, "--json").data["token"]
    ci = as_(there, token, tmp_path)
    wait_until(lambda: dibs(ci, "owner", "job").exit == 1, "the token is known there")
    there.pause()
    assert dibs(clean_env(tmp_path), "token", "revoke", "ci", *store).exit == 0
    pause(CREDENTIAL_STALE_MS_MAX / 1000 + 0.1)
    there.resume()
    # Refused, or told that nobody knows yet; never let in.
    answers = {dibs(ci, "claim", f"job-{number}").exit for number in range(5)}
    assert answers <= {77, 69}
    wait_until(lambda: dibs(ci, "owner", "job").exit == 77, "the token is refused there")


@pytest.mark.promise("auth:hashed")
def test_a_server_for_other_machines_starts_when_the_store_lets_somebody_in(tmp_path: Path) -> None:
    env, store = clean_env(tmp_path), f"sqlite://{tmp_path}/dibs.db"
    words = [*DIBS, "serve", "--bind", "0.0.0.0:0", "--store", store]
    refused = subprocess.run(words, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert (refused.returncode, "dibs token create NAME" in refused.stderr.replace("\n", " ")) == (
        64,
        True,
    ), refused
    made = dibs(env, "token", "create", "ops", "--role", "admin", "--url", store, "-q")
    token = made.out.strip()
    with ServerProcess(tmp_path, bind="0.0.0.0:0", store=store) as server:
        assert "tokens   in the store (1)" in server.log.read_text()
        ops = clean_env(tmp_path, DIBS_URL=server.url.replace("0.0.0.0", "127.0.0.1"), DIBS_TOKEN=token)
        assert dibs(ops, "claim", "job").exit == 0
        assert dibs(ops, "token", "list", "-q").out == "ops\n"
        arguments = server.process.args
        assert token not in str(arguments)
