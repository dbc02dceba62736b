"""`serve` as a process: what it refuses, what it says, how it ends."""

from __future__ import annotations

import grp
import http.client
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import DibsError, InvalidInput, MissingExtra, Unavailable
from dibs.server import run
from dibs.server.http import listen
from dibs.server.http.listen import (
    BindAddress,
    check_address,
    draft_of,
    open_socket,
    parse_bind,
    publish,
    url_of,
    withdraw,
)
from dibs.server.run import serve
from dibs.server.settings import ServerSettings
from tests.programs import WAIT_S_MAX, slowness, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.full

PROGRAM = """
import sys
from dibs.server.run import serve
from dibs.server.settings import ServerSettings
serve(ServerSettings(bind=sys.argv[1], store=sys.argv[2], tokens_file=sys.argv[3] if len(sys.argv) > 3 else None))
"""


class Process:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = [self._line()]
        while self.said[-1] and not self.said[-1].startswith("  try "):
            self.said.append(self._line())
        self.url = self.said[0].split()[-1]

    def _line(self) -> str:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        # The tokens of these tests are written in the clear, about which the server warns each time.
        return self._line() if "that can be read" in line else line

    def ask(self, token: str, path: str = "/locks/job") -> int:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=WAIT_S_MAX)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status
        finally:
            connection.close()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=WAIT_S_MAX)
        return self.process.returncode, rest


@contextmanager
def serving(state: Path, bind: str, store: str = "memory://", *more: str) -> Iterator[Process]:
    env = {**os.environ, "XDG_STATE_HOME": str(state)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, bind, store, *more], stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        yield Process(process)
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)
        if process.stderr is not None:
            process.stderr.close()


def tokens_file(folder: Path, text: str) -> Path:
    path = folder / "tokens"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


@pytest.mark.e2e
def test_a_first_start_makes_a_token_says_where_and_lets_its_owner_in(tmp_path: Path) -> None:
    with serving(tmp_path, "127.0.0.1:0") as server:
        file = tmp_path / "dibs" / "token"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        token = file.read_text().split(":")[1]
        assert str(file) in server.said[2]
        assert server.said[3] == f"  board    {server.url}/ (sign in with: dibs token show)\n"
        assert "dibs claim" in server.said[4]
        assert token not in "".join(server.said)
        assert server.ask(token) == 200
        assert server.ask("nobody") == 401
        code, rest = server.end()
        assert code == 0
        assert token not in rest
    with serving(tmp_path, "127.0.0.1:0") as again:
        assert again.ask(token) == 200
        assert again.end(signal.SIGINT)[0] == 0


@pytest.mark.e2e
def test_sighup_reads_the_tokens_again_and_a_broken_file_keeps_the_old(tmp_path: Path) -> None:
    file = tokens_file(tmp_path, "a:one\nb:two\n")
    with serving(tmp_path, "127.0.0.1:0", "memory://", str(file)) as server:
        assert (server.ask("one"), server.ask("two")) == (200, 200)
        file.write_text("b:two\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.ask("one") == 401, "the file is read again")
        assert server.ask("two") == 200
        file.write_text("nonsense\n")
        server.process.send_signal(signal.SIGHUP)
        said = server._line()
        assert "NOT reloaded" in said
        assert "line 1" in said
        assert server.ask("two") == 200
        assert server.end()[0] == 0


@pytest.mark.e2e
def test_signals_change_how_much_is_logged_and_a_storm_of_them_hurts_nobody(tmp_path: Path) -> None:
    file = tokens_file(tmp_path, "a:one\n")
    with serving(tmp_path, "127.0.0.1:0", "memory://", str(file)) as server:
        assert f"  board    {server.url}/ (sign in with a token)\n" in server.said
        for number, level in (
            (signal.SIGUSR1, "info"),
            (signal.SIGUSR1, "debug"),
            (signal.SIGUSR1, "debug"),
            (signal.SIGUSR2, "info"),
        ):
            server.process.send_signal(number)
            assert server._line().endswith(f"the log level is now {level}\n")
        for _ in range(200):
            server.process.send_signal(signal.SIGUSR1)
            server.process.send_signal(signal.SIGUSR2)
        assert server.ask("one") == 200
        assert server.end()[0] == 0


@pytest.mark.e2e
def test_a_server_listens_on_a_unix_socket_for_its_owner_only_and_takes_it_away(tmp_path: Path) -> None:
    path = tmp_path / "dibs.sock"
    with serving(tmp_path, f"unix:{path}") as server:
        assert server.url == f"unix://{path}"
        assert not any("board" in line for line in server.said)
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_S_MAX)
            connection.connect(str(path))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert server.end()[0] == 0
    assert not path.exists()


@pytest.mark.e2e
def test_a_server_whose_log_cannot_be_written_serves(tmp_path: Path) -> None:
    path = tmp_path / "dibs.sock"
    with open("/dev/full", "w") as full:
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM, f"unix:{path}", "memory://"]
        process = subprocess.Popen(command, stderr=full, env=env)
    try:
        until = time.monotonic() + WAIT_S_MAX
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_S_MAX)
            while connection.connect_ex(str(path)) and time.monotonic() < until:
                time.sleep(0.01)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)


@pytest.mark.e2e
def test_a_server_with_idle_connections_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "127.0.0.1:0") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with (
            socket.create_connection((host, int(port)), WAIT_S_MAX),
            socket.create_connection((host, int(port)), WAIT_S_MAX) as half,
        ):
            half.sendall(b"POST /locks/x/acquire HT")
            began = time.monotonic()
            assert server.end()[0] == 0
            assert time.monotonic() - began < 5 * slowness()


@pytest.mark.e2e
@pytest.mark.promise("lease:outage-credit")
def test_a_stopped_process_does_not_give_away_what_it_could_not_renew(tmp_path: Path) -> None:
    file = tokens_file(tmp_path, "a:one\n")
    with serving(tmp_path, "127.0.0.1:0", f"sqlite://{tmp_path}/d.db", str(file)) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S_MAX)
        headers = {"Authorization": "Bearer one", "Content-Type": "application/json"}

        def acquire() -> bytes:
            connection.request("POST", "/locks/job/acquire", b'{"ttl_seconds":2}', headers)
            return connection.getresponse().read()

        assert b"acquired" in acquire()
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(3)  # the outage itself: longer than the lease and than what counts as one
        server.process.send_signal(signal.SIGCONT)
        assert b"held" in acquire()
        connection.close()
        assert server.end()[0] == 0


def test_a_port_in_use_is_said_in_words(tmp_path: Path) -> None:
    with open_socket(BindAddress(host="127.0.0.1")) as taken:
        port = taken.getsockname()[1]
        file = tokens_file(tmp_path, "a:one\n")
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port} is in use"):
            serve(ServerSettings(bind=f"127.0.0.1:{port}", store="memory://", tokens_file=str(file)))


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:3427", "example.org:80"])
def test_an_address_that_others_can_reach_needs_tokens(bind: str) -> None:
    with pytest.raises(InvalidInput, match="--tokens"):
        serve(ServerSettings(bind=bind, store="memory://"))


@pytest.mark.parametrize(
    "bind",
    [
        "",
        "3427",
        "127.0.0.1",
        "127.0.0.1:",
        ":3427",
        "127.0.0.1:99999",
        "::1:3427",
        "127.0.0.1:x",
        "unix:",
        "unix:relative",
    ],
)
def test_what_is_no_address_is_refused(bind: str) -> None:
    with pytest.raises(InvalidInput):
        parse_bind(bind)


@pytest.mark.parametrize(
    ("bind", "local"),
    [
        ("127.0.0.1:3427", True),
        ("[::1]:3427", True),
        ("localhost:0", True),
        ("unix:/tmp/x", True),
        ("unix:///tmp/x", True),
        ("0.0.0.0:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_it_is_known_which_addresses_are_this_machines_own(bind: str, local: bool) -> None:
    assert parse_bind(bind).is_local is local


def test_a_client_on_this_machine_can_use_the_url_that_is_shown() -> None:
    with open_socket(parse_bind("0.0.0.0:0")) as everywhere:
        assert url_of(parse_bind("0.0.0.0:0"), everywhere) == f"http://127.0.0.1:{everywhere.getsockname()[1]}"


def test_a_socket_left_by_a_crash_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    address = parse_bind(f"unix:{tmp_path}/s")
    open_socket(address).close()  # the file stays, as after kill -9
    with open_socket(address), pytest.raises(Unavailable, match="in use"):
        open_socket(address)


@pytest.mark.parametrize(
    ("mode", "group", "seen"),
    [(None, None, 0o600), (0o666, None, 0o666), (None, "own", 0o660), (0o620, "own", 0o620)],
)
def test_a_socket_is_for_whom_its_mode_and_group_say(
    tmp_path: Path, mode: int | None, group: str | None, seen: int
) -> None:
    own = grp.getgrgid(os.getgid()).gr_name if group else None
    address = parse_bind(f"unix:{tmp_path}/s")
    with open_socket(address, mode=mode, group=own):
        publish(address)
        found = (tmp_path / "s").stat()
    assert (found.st_mode & 0o777, found.st_gid) == (seen, os.getgid())


def test_a_group_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no group 'no-such'"):
        open_socket(parse_bind(f"unix:{tmp_path}/s"), group="no-such")


@pytest.mark.fault("F-323")
@pytest.mark.parametrize("fails", ["chown", "chmod", "listen", "rename"])
def test_a_socket_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if fails == "listen":
        monkeypatch.setattr(listen, "BACKLOG", "none")
    else:
        monkeypatch.setattr(os, fails, refuse)
    address = parse_bind(f"unix:{tmp_path}/s")
    own = grp.getgrgid(os.getgid()).gr_name

    def start() -> None:
        with open_socket(address, group=own):
            assert not (tmp_path / "s").exists()  # no client finds it before all is ready
            publish(address)

    with pytest.raises((InvalidInput, TypeError)):
        start()
    withdraw(address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F-323")
def test_a_socket_has_its_name_when_all_is_ready_and_only_its_server_takes_it_away(tmp_path: Path) -> None:
    address, path = parse_bind(f"unix:{tmp_path}/s"), f"{tmp_path}/s"
    first = open_socket(address)
    with pytest.raises(Unavailable, match="in use"):
        open_socket(address)  # another is about to be ready
    withdraw(address)  # of the one that failed
    assert os.path.exists(draft_of(path))
    publish(address)
    assert os.listdir(tmp_path) == ["s"]
    for refused in (check_address, open_socket, publish):
        with pytest.raises(Unavailable, match="in use"):
            refused(address)
    first.close()
    second = open_socket(address)  # the first was killed
    publish(address)
    withdraw(address)  # of the first, late
    assert os.listdir(tmp_path) == ["s"]
    second.close()
    withdraw(address)
    assert os.listdir(tmp_path) == []


@pytest.mark.fault("F-323")
@pytest.mark.parametrize(
    "settings",
    [
        {"group": "no-such"},
        {"store": "sqlite:///no/such/folder/dibs.db"},
        {"trusted_proxies": ("nobody",)},
        {"tls_cert": "/no/such/file"},
    ],
)
def test_a_server_that_cannot_start_has_changed_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    given = {"store": f"sqlite://{tmp_path}/dibs.db", **settings}
    with pytest.raises(DibsError):
        serve(ServerSettings(bind=f"unix:{tmp_path}/dibs.sock", system=True, **given))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F-366")
def test_servers_that_start_together_in_one_folder_have_their_own_names(tmp_path: Path) -> None:
    addresses = [BindAddress(path=str(tmp_path / name)) for name in ("1", "2", "s1", "s2", "sock~", "sock-", "n" * 20)]
    opened = [open_socket(address) for address in addresses]
    for address in addresses:
        publish(address)
    assert sorted(os.listdir(tmp_path)) == sorted(os.path.basename(address.path) for address in addresses)
    for each in opened:
        each.close()


@pytest.mark.fault("F-366")
@pytest.mark.parametrize("length", [2, 8, 9, 60, 66, 90])
def test_a_draft_is_never_longer_than_the_system_allows_nor_shorter_than_its_path(length: int) -> None:
    for folder in ("/run", "/" + "f" * (102 - length - 1), "/" + "f" * 120):
        path = f"{folder}/{'é' * (length // 2)}{'n' * (length % 2)}"
        size, of_path = len(os.fsencode(draft_of(path))), len(os.fsencode(path))
        assert draft_of(path) != path
        assert of_path <= size <= max(of_path, 103)


def test_a_path_that_cannot_be_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Cannot listen"):
        open_socket(parse_bind(f"unix:{tmp_path}/{'x' * 200}"))
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="in use"):
        open_socket(parse_bind(f"unix:{tmp_path}/file"))


def test_a_log_level_that_is_not_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="log level"):
        serve(ServerSettings(log_level="loud"))


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)
    monkeypatch.delitem(sys.modules, "dibs.server.run")
    with pytest.raises(MissingExtra, match=r"pip install 'dibs-lease\[server\]'"):
        importlib.import_module("dibs.server.run")


def test_a_server_that_is_stopped_while_it_opens_its_store_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("dibs.server.run.open_store", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    file = tokens_file(tmp_path, "a:one\n")
    with pytest.raises(SystemExit) as ended:
        serve(ServerSettings(bind="127.0.0.1:0", store="memory://", tokens_file=str(file)))
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_store_url_that_is_not_one_is_refused(tmp_path: Path) -> None:
    file = tokens_file(tmp_path, "a:one\n")
    with pytest.raises(InvalidInput):
        serve(ServerSettings(bind="127.0.0.1:0", store="ftp://x", tokens_file=str(file)))


@pytest.mark.linux("a compiled wheel is for Linux")
def test_a_server_of_the_pure_build_offers_the_compiled_one_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(build: str, file: str) -> bool:
        monkeypatch.setattr(run, "build_kind", lambda: build)
        monkeypatch.setattr(run, "__file__", file)
        text = run.greeting(ServerSettings(), "http://127.0.0.1:3427", "memory:", "tokens", has_own_token=True)
        return "DIBS_COMPILE=1" in text

    assert told("pure Python", "/opt/dibs/lib/python3.13/site-packages/dibs/server/run.py")
    assert not told("compiled", "/opt/dibs/lib/python3.13/site-packages/dibs/server/run.py")
    assert not told("pure Python", "/srv/dibs/src/dibs/server/run.py")
