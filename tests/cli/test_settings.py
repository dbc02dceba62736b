"""Flags win over the environment, the environment over defaults; a token goes only where it belongs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dibs.base.errors import InvalidInput
from dibs.base.files import state_folder, token_path
from dibs.client.settings import Settings, read_token
from dibs.client.urls import server_address


def test_a_flag_wins_over_a_variable_and_an_empty_variable_is_none() -> None:
    env = {"DIBS_URL": "http://env", "DIBS_NAMESPACE": "", "DIBS_OWNER": "env-owner"}
    settings = Settings({"url": "http://flag"}, env)
    assert settings.url == "http://flag"
    assert settings.namespace is None
    assert settings.owner == "env-owner"
    assert Settings({}, env).url == "http://env"


def test_the_owner_is_the_user_at_the_host_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    host = os.uname().nodename
    assert Settings({}, {"USER": "ann"}).owner == f"ann@{host}"
    assert Settings({"owner": "x"}, {"USER": "ann"}).owner == "x"
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert Settings({}, {}).owner == f"uid-4000000001@{host}"


def test_a_timeout_is_a_duration_above_zero() -> None:
    assert Settings({}, {}).timeout_ms == 10_000
    assert Settings({"timeout": "250ms"}, {}).timeout_ms == 250
    for text in ("0", "x", "-1"):
        with pytest.raises(InvalidInput):
            _ = Settings({"timeout": text}, {}).timeout_ms


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which a server of this user has made its token."""
    env = {"XDG_STATE_HOME": str(tmp_path)}
    path = Path(token_path(env))
    path.parent.mkdir()
    path.write_text("# mine\n\nann:own-token:admin\n")
    return env


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:3427", "http://localhost:1", "http://[::1]:9", "unix:///run/x", "https://127.9.9.9"],
)
def test_the_own_token_goes_to_this_machine(env: dict[str, str], url: str) -> None:
    assert Settings({}, env).token(server_address(url)) == "own-token"


@pytest.mark.parametrize(
    "url", ["http://example.org", "http://127.0.0.1.example.org", "http://127.example", "https://10.0.0.1"]
)
def test_the_own_token_goes_nowhere_else(env: dict[str, str], url: str) -> None:
    assert Settings({}, env).token(server_address(url)) is None


def test_the_environment_names_a_token_for_any_server(env: dict[str, str], tmp_path: Path) -> None:
    place = server_address("https://example.org")
    file = tmp_path / "file"
    file.write_text("bare-token\n")
    env["DIBS_TOKEN_FILE"] = str(file)
    assert Settings({}, env).token(place) == "bare-token"
    env["DIBS_TOKEN"] = " given \n"
    assert Settings({}, env).token(place) == "given"
    env["DIBS_TOKEN"] = "root:dibs_of_the_file:admin\n"  # DIBS_TOKEN=$(cat ~/.local/state/dibs/token)
    assert Settings({}, env).token(place) == "dibs_of_the_file"


def test_a_token_file_that_holds_none_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "empty"
    file.write_text("# nothing\n")
    with pytest.raises(InvalidInput, match="holds no token"):
        read_token(str(file))
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_token(str(tmp_path / "missing"))


def test_the_state_folder_follows_the_xdg_rules() -> None:
    assert state_folder({"XDG_STATE_HOME": "/x"}) == "/x/dibs"
    assert state_folder({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == "/h/.local/state/dibs"
    assert state_folder({"HOME": "/h"}) == "/h/.local/state/dibs"
