"""A server that cannot be reached: no message suggests to work anyway, or to leave the shared store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import dibs
from tests.programs import DIBS, clean_env, dibs_here

if TYPE_CHECKING:
    from pathlib import Path

PLACES = ["http://127.0.0.1:1", "http://no-such-host.invalid:1", "unix:///nowhere/at/all"]
LEADS_AWAY = ("unset", "leave out", "without --url", "store of this machine", "check dibs_url", "dibs serve")


def check(told: str) -> None:
    assert "Do not begin the work; try again later." in told, told
    assert not [words for words in LEADS_AWAY if words in told.lower()], told


@pytest.mark.parametrize("url", PLACES)
def test_a_command_says_not_to_begin(tmp_path: Path, url: str) -> None:
    env = {**clean_env(tmp_path), "DIBS_URL": url}
    ran = subprocess.run([*DIBS, "claim", "x"], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 69
    check(ran.stderr)


@pytest.mark.parametrize("words", [("list",), ("owner", "x"), ("status", "x"), ("doctor",), ("token", "list")])
def test_who_only_looks_is_not_told_to_begin_no_work(tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = dibs_here({**clean_env(tmp_path), "DIBS_URL": PLACES[0], "DIBS_TOKEN": "x"}, tmp_path, *words)
    assert (ran.returncode, "Do not begin" in ran.stdout + ran.stderr) == (69, False)


def test_a_saved_address_is_said_to_be_one(tmp_path: Path) -> None:
    env = clean_env(tmp_path, XDG_CONFIG_HOME=str(tmp_path))
    dibs_here(env, tmp_path, "config", "set", "url", PLACES[0])
    looked = dibs_here(env, tmp_path, "list").stderr
    by = "saved by `dibs login` or `dibs config set url`"
    assert f"The address was {by}; `dibs logout` ends that." in looked
    worked = dibs_here(env, tmp_path, "claim", "x").stderr
    assert f"The address was {by}.\n" in worked
    check(worked)
    assert "saved" not in dibs_here({**env, "DIBS_URL": PLACES[0]}, tmp_path, "list").stderr


@pytest.mark.fault("F-792")
def test_an_address_that_is_typed_for_a_login_is_not_said_to_be_saved(tmp_path: Path) -> None:
    env = clean_env(tmp_path, XDG_CONFIG_HOME=str(tmp_path))
    dibs_here(env, tmp_path, "config", "set", "url", PLACES[0])
    told = dibs_here(env, tmp_path, "login", PLACES[0]).stderr
    assert told.rstrip().endswith("Nothing was saved.")


@pytest.mark.parametrize("url", PLACES)
def test_the_sdk_says_not_to_begin(url: str) -> None:
    with pytest.raises(dibs.Unavailable) as told, dibs.Client(url).claim("x"):
        pass
    check(str(told.value))

    async def over_asyncio() -> None:
        async with dibs.AsyncClient(url) as client, client.claim("x"):
            pass

    with pytest.raises(dibs.Unavailable) as told:
        asyncio.run(over_asyncio())
    check(str(told.value))


@pytest.mark.parametrize("url", PLACES)
@pytest.mark.parametrize("gateway", [True, False])
def test_rlock_says_not_to_go_on(tmp_path: Path, url: str, gateway: bool) -> None:
    env = {**clean_env(tmp_path), "GATEWAY_URL" if gateway else "DIBS_URL": url, "SHUTDOWN_SECRET": "s" * 20}
    code = "import sys; from dibs.compat.action_llama.rlock import rlock; sys.exit(rlock())"
    ran = subprocess.run([sys.executable, "-c", code, "x"], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode not in (0, 1)
    told = ran.stdout + ran.stderr
    assert "Do not go on without the lock." in told or "Do not begin the work" in told, told
    assert not [words for words in LEADS_AWAY if words in told.lower()], told
