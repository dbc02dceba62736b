"""The user's config.toml: what it may say, what wins over it, and what a repository's file may not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput
from dibs.cli.framework.context import Call
from dibs.cli.text.words import Paint
from dibs.client.settings import Settings
from dibs.client.urls import server_address

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".config" / "dibs").mkdir(parents=True)
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".config" / "dibs" / "config.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def settings(home: Path, env: dict[str, str] | None = None, **values: str) -> Settings:
    return Settings(values, {"HOME": str(home), "USER": "ann", **(env or {})})


def test_the_file_says_what_neither_flag_nor_variable_says(home: Path) -> None:
    path = write(home, 'url = "http://10.0.0.1:3427"\nnamespace = "team"\nowner = "ann"\ntimeout = "3s"\n')
    found = settings(home)
    assert (found.url, found.namespace, found.owner) == ("http://10.0.0.1:3427", "team", "ann")
    assert found.timeout_ms == 3000
    assert found.source("url", "DIBS_URL") == str(path)
    by_variable = settings(home, {"DIBS_URL": "sqlite:///x", "DIBS_OWNER": "bob", "DIBS_NAMESPACE": "other"})
    assert (by_variable.url, by_variable.namespace, by_variable.owner) == ("sqlite:///x", "other", "bob")
    by_flag = settings(home, {"DIBS_URL": "sqlite:///x"}, url="sqlite:///y", timeout="1s")
    assert (by_flag.url, by_flag.timeout_ms) == ("sqlite:///y", 1000)
    assert by_flag.source("url", "DIBS_URL") == "--url"


def test_xdg_config_home_says_where_it_is_if_it_is_absolute(home: Path) -> None:
    write(home, 'owner = "ann"\n')
    elsewhere = home / "elsewhere"
    assert settings(home, {"XDG_CONFIG_HOME": str(elsewhere)}).owner.startswith("ann@")
    assert settings(home, {"XDG_CONFIG_HOME": str(home / ".config")}).owner == "ann"
    assert settings(home, {"XDG_CONFIG_HOME": "relative"}).owner == "ann"
    assert Settings({}, {"USER": "ann"}).config == {}


def test_a_token_file_may_be_named_from_home_and_a_variable_wins(home: Path) -> None:
    write(home, f'token_file = "{home}/secret"\n')
    (home / "secret").write_text("from-the-file\n", encoding="utf-8")
    place = server_address("https://dibs.example.org")
    assert settings(home).token(place) == "from-the-file"
    assert settings(home, {"DIBS_TOKEN": "other"}).token(place) == "other"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('ulr = "x"\n', "there is no setting 'ulr'"),
        ("url = 5\n", "'url' must be a text"),
        ('owner = " "\n', "'owner' must be a text that is not empty"),
        ("[", "is not TOML"),
        ("a" * 70_000, "more than"),
        ('token_file = "secret"\n', "absolute path"),
    ],
)
def test_a_file_that_cannot_be_meant_is_reported_with_its_name(home: Path, text: str, says: str) -> None:
    path = write(home, text)
    with pytest.raises(InvalidInput, match=says) as told:
        _ = settings(home).url
    assert str(path) in told.value.details


def test_a_link_to_a_device_is_refused_and_not_read(home: Path) -> None:
    (home / ".config" / "dibs" / "config.toml").symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match="no ordinary file"):
        _ = settings(home).url


def test_a_session_s_owner_wins_over_the_file(terminal: Terminal, home: Path) -> None:
    terminal.env["HOME"] = str(home)
    write(home, 'owner = "from-the-file"\n')
    assert terminal("claim", "a", "--json").data["owner"] == "from-the-file"
    session = terminal.session("--owner", "agent-7")
    assert terminal("claim", "b", "--session", session, "--json").data["owner"] == "agent-7"


def test_what_a_clone_says_wins_over_the_user_s_file(home: Path) -> None:
    write(home, 'url = "sqlite:///user.db"\n')
    call = Call("claim", {}, {"HOME": str(home)}, stdin=None, stdout=None, paint=Paint())
    call.fall_back_on({"url": "sqlite:///clone.db"})
    assert call.settings.url == "sqlite:///clone.db"


def test_doctor_says_where_each_setting_comes_from(terminal: Terminal, home: Path) -> None:
    terminal.env["HOME"] = str(home)
    path = write(home, 'owner = "ann"\n')
    out = terminal("doctor").out
    assert f"{path}: owner" in out
    assert f"ann ({path})" in out
    path.chmod(0o666)
    assert terminal("doctor").exit == 69
    assert f"chmod go-w {path}" in terminal("doctor").out


def test_without_a_file_no_toml_is_imported(tmp_path: Path) -> None:
    script = "import sys\nfrom dibs.cli.main import run\nrun(['owner', 'x'], {'HOME': sys.argv[1]}, None, None, None)\n"
    script += "assert 'tomllib' not in sys.modules\n"
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60, env=env)


@pytest.mark.fault("F-793")
def test_a_url_that_names_nothing_is_not_saved(terminal: Terminal, home: Path) -> None:
    terminal.env["HOME"] = str(home)
    for url, says in (("nonsense", "names no store"), ("redis://x", "names no store"), ("/srv/dibs.db", "is a path")):
        ran = terminal("config", "set", "url", url)
        assert (ran.exit, says in ran.err) == (64, True), ran
    assert not (home / ".config" / "dibs" / "config.toml").exists()
    for url in ("sqlite:///srv/dibs.db", "git:", "postgresql://dibs@db/dibs", "http://127.0.0.1:3427"):
        assert terminal("config", "set", "url", url).exit == 0
