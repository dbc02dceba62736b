"""login, logout, config: what is saved, for whom, and what wins over it."""

from __future__ import annotations

import io
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from dibs.cli.commands.config import _save
from dibs.cli.framework.context import Call
from dibs.cli.main import run
from dibs.cli.text.words import Paint
from dibs.client.settings import Settings
from dibs.client.urls import server_address
from tests.cli.conftest import Ran
from tests.client.scripted import ScriptedServer, reply_of
from tests.programs import reserved_ports
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server


class User:
    """Somebody with a home of their own, who types commands."""

    def __init__(self, home: Path) -> None:
        self.env = {"HOME": str(home), "USER": "ann", "DIBS_SYSTEM_SOCKET": "off"}
        self.folder = home / ".config" / "dibs"

    def __call__(self, *words: str, stdin: str = "") -> Ran:
        out, err = io.StringIO(), io.StringIO()
        exit_code = run(words, self.env, out, err, io.BytesIO(stdin.encode()))
        return Ran(exit_code, out.getvalue(), err.getvalue())

    def token(self, url: str) -> str | None:
        return Settings({}, self.env).token(server_address(url))

    def in_effect(self, name: str) -> tuple[str, str]:
        (found,) = [each for each in self("config", "--json").data["settings"] if each["name"] == name]
        return found["value"], found["source"]


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("served")) as found:
        yield found


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.mark.promise("login:own-server")
def test_a_login_saves_server_and_token_for_the_user_alone_and_logout_forgets_both(user: User, server: Server) -> None:
    url = url_of(server)
    ran = user("login", url, stdin=f"{TOKENS['agent']}\n")
    assert (ran.exit, ran.out.startswith(f"Logged in to {url} as agent (agent).")) == (0, True)
    assert stat.S_IMODE(os.stat(user.folder / "logins").st_mode) == 0o600
    assert user("claim", "logged-in").exit == 0
    assert user.in_effect("store") == (url, str(user.folder / "config.toml"))
    assert user.in_effect("token") == ("saved by dibs login", str(user.folder / "logins"))
    # The token is for this server: neither for another port, nor for another scheme.
    assert [user.token(other) for other in ("http://127.0.0.1:1", "http://example.org", url.replace("p:", "ps:"))] == [
        None,
        None,
        None,
    ]
    out = user("logout")
    assert (out.exit, "Commands use your own store now." in out.out) == (0, True)
    assert TOKENS["agent"] not in (user.folder / "logins").read_text(encoding="utf-8")
    assert user.in_effect("store")[0].endswith("/dibs/dibs.db, your own")
    assert user("logout").exit == 64


def test_a_token_that_is_refused_and_a_server_that_is_away_save_nothing(user: User, server: Server) -> None:
    refused = user("login", url_of(server), stdin="wrong\n")
    assert (refused.exit, refused.err) == (77, "dibs: The token is unknown or was revoked. Nothing was saved.\n")
    assert user("login", url_of(server)).exit == 77
    assert user("login", "http://127.0.0.1:1", stdin="x\n").exit == 69
    assert user("login", "sqlite:x.db", stdin="x\n").exit == 64
    assert user("login", url_of(server), "--token-file", "/nope").exit == 64
    assert not user.folder.exists()


def test_a_server_cannot_act_on_the_terminal(user: User) -> None:
    caller = {"principal": "\x1b[8mann\nLogged out", "role": "agent\u202e", "namespace": None}
    with ScriptedServer([None, reply_of(200, caller)]) as server:  # no proof, then the lie
        ran = user("login", server.url, stdin="token\n")
    assert ran.exit == 0
    assert [line[:9] for line in ran.out.splitlines()] == ["Logged in"]
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out


def test_several_servers_are_changed_between_without_their_tokens(user: User, server: Server, tmp_path: Path) -> None:
    first = url_of(server)
    (tmp_path / "t").write_text(f"{TOKENS['agent']}\n", encoding="utf-8")
    assert user("login", first, "--token-file", str(tmp_path / "t")).exit == 0
    with running(tmp_path) as other:
        second = url_of(other)
        assert user("login", second, stdin=TOKENS["admin"]).exit == 0
        assert user.in_effect("store")[0] == second
        assert user("login", first).exit == 0  # standard input is empty: the saved one is used
        assert user.in_effect("store")[0] == first
        assert user("logout", second).exit == 0
        assert user("logout", second).exit == 1
    assert user.in_effect("store")[0] == first
    assert user.token(first) == TOKENS["agent"]


def test_flag_and_variables_win_over_what_is_saved(user: User, server: Server) -> None:
    user("login", url_of(server), stdin=TOKENS["agent"])
    user.env |= {"DIBS_URL": "sqlite:///x", "DIBS_TOKEN": "mine"}
    assert user.in_effect("store") == ("sqlite:///x", "DIBS_URL")
    assert user("config", "get", "url", "--url", "sqlite:///y").out == "sqlite:///y\n"
    assert user.token(url_of(server)) == "mine"
    again = user("login", url_of(server), stdin=TOKENS["agent"])
    assert "But DIBS_URL is set in this shell, and wins." in again.out


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_ports(1) as (port,):
        yield port


@pytest.mark.promise("login:own-server")
def test_whoever_took_the_port_of_a_saved_server_does_not_get_the_token(user: User, tmp_path: Path, port: int) -> None:
    with running(tmp_path, port=port) as server:
        url = url_of(server)
        assert user("login", url, stdin=TOKENS["agent"]).exit == 0
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", port)) as listening:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    heard.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        threading.Thread(target=listen, daemon=True).start()
        ran = user("list")
        listening.shutdown(socket.SHUT_RDWR)
    assert (ran.exit, "is not your own server" in ran.err) == (69, True)
    assert heard
    assert TOKENS["agent"].encode() not in b"".join(heard)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("set", "nonsense", "x"), "KEY must be one of url, context, token_file"),
        (("set", "url", "http://a b"), "is not a server URL"),
        (("set", "namespace", "a/b"), "namespace"),
        (("set", "timeout", "soon"), "time-out"),
        (("set", "token_file", "relative"), "absolute path"),
        (("set", "owner", " "), "VALUE is empty"),
        (("sett", "owner", "x"), "Did you mean set?"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(user: User, words: tuple[str, ...], says: str) -> None:
    ran = user("config", *words)
    assert (ran.exit, says in ran.err) == (64, True), ran.err
    assert not user.folder.exists()


def test_settings_are_set_and_unset_and_other_lines_stay(user: User) -> None:
    user.folder.mkdir(parents=True)
    kept = user.folder / "kept-elsewhere.toml"
    kept.write_text('# mine\ntimeout = "3s"  # long enough\n', encoding="utf-8")
    (user.folder / "config.toml").symlink_to(kept)
    hostile = 'a "quoted" \\ é\n[x]'
    assert user("config", "set", "owner", hostile).exit == 0
    assert Settings({}, user.env).owner == hostile
    assert user("config", "set", "owner", "ann").exit == 0
    assert kept.read_text(encoding="utf-8") == '# mine\ntimeout = "3s"  # long enough\nowner = "ann"\n'
    assert user("config", "get", "timeout").out == "3s\n"
    assert user("config", "unset", "timeout").out == "timeout was removed.\n"
    assert user("config", "unset", "timeout").out == "timeout was not set.\n"
    assert user("config", "get", "timeout").exit == 1
    kept.write_text('owner = """\nann\n"""\n', encoding="utf-8")
    ran = user("config", "set", "owner", "x")
    assert (ran.exit, "by hand" in ran.err) == (64, True)


def test_many_logins_at_once_lose_none(user: User) -> None:
    call = Call("login", {}, user.env, stdin=None, stdout=None, paint=Paint())
    threads = [
        threading.Thread(target=_save, args=(call, (), {(f"http://h{each}", ""): ("t", False)})) for each in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(Settings({}, user.env).logins) == 8


KILLED = """
import os, signal, sys
from dibs.cli.main import entry
real, left = os.replace, [int(sys.argv.pop(1))]
def replace(*paths):
    left[0] -= "/.config/dibs/" in paths[1]
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*paths)
os.replace = replace
sys.exit(entry())
"""


@pytest.mark.fault("F-752")
@pytest.mark.parametrize(
    "number", [1, 2], ids=["the token is not in place", "the token is in place, and the server not"]
)
def test_a_login_that_was_killed_leaves_no_token_that_logout_does_not_find(
    user: User, server: Server, number: int
) -> None:
    words = [sys.executable, "-c", KILLED, str(number), "login", url_of(server)]
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | user.env
    done = subprocess.run(words, input=TOKENS["agent"].encode(), env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done

    def is_left() -> bool:
        return any(TOKENS["agent"] in path.read_text() for path in user.folder.iterdir() if path.is_file())

    assert is_left()
    ran = user("logout")
    assert ran.exit == 64
    if number == 2:
        assert f"A token is saved for {url_of(server)} all the same: dibs logout {url_of(server)}" in ran.err
        assert user("logout", url_of(server)).exit == 0
    assert not is_left()


def test_a_file_of_logins_that_is_damaged_or_huge_does_no_harm(user: User) -> None:
    user.folder.mkdir(parents=True)
    path = user.folder / "logins"
    path.write_bytes(b"\xff\xfe\nonly-one-word\n# a comment\nhttp://a:1 tok extra words\n")
    assert Settings({}, user.env).logins == {("http://a:1", ""): ("tok", False)}
    path.write_bytes(b"x" * 100_000)
    assert user("config").exit == 64
    path.unlink()
    os.mkfifo(path)
    assert "no ordinary file" in user("config").err


def test_without_a_home_nothing_is_saved(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run(["config", "set", "owner", "x"], {"USER": "u"}, out, err, None) == 64
    assert "There is no HOME" in err.getvalue()
