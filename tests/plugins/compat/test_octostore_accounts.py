"""OctoStore's routes around the locks: registering, rotating, an admin's pages, and browsers."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from dibs.base.errors import InvalidInput
from dibs.compat.octostore.admin import MinuteSeries
from dibs.compat.octostore.callers import fixed_callers
from dibs.core.commands import Freeze, Thaw
from dibs.core.limits import ADMIN_GUESSES_MAX, MINUTES_KEPT, REGISTRATIONS_MAX
from dibs.engine.auth import TokenGuard, ensure_token_file
from dibs.engine.coordinator import run_one
from dibs.engine.tally import Tally
from dibs.server.http.listen import parse_bind
from dibs.server.run import open_guard
from dibs.server.settings import ServerSettings
from dibs.wire.parts import instant_ms
from tests.server.harness import running, wait_until
from tests.server.sse import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Response, Server

PAGE = "https://octostore.io"


@pytest.fixture(scope="module")
def open_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server at which names can be registered, and that a page may use."""
    settings = ServerSettings(local_registration=True, cors_origins=(PAGE,))
    with running(tmp_path_factory.mktemp("accounts"), settings=settings) as server:
        yield server


def register(server: Server, username: Any, namespace: Any = None) -> Response:
    body = {"username": username} if namespace is None else {"username": username, "namespace": namespace}
    return server.ask("POST", "/auth/register", body, who=None)


def test_a_name_that_nobody_has_gets_a_token(open_house: Server, name: str) -> None:
    reply = register(open_house, name)
    assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
    made = reply.json
    assert made.keys() == {"token", "user_id", "username", "namespace"}
    assert (made["username"], made["namespace"]) == (name, None)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", made["user_id"])
    assert open_house.acquire(name, who=made["token"]).json["owner"] == name


def test_a_name_is_registered_once_whatever_its_case(open_house: Server, name: str) -> None:
    assert register(open_house, name).status == 200
    for taken in (name, name.upper(), "agent", "ADMIN"):
        reply = register(open_house, taken)
        assert (reply.status, reply.json["code"]) == (409, "conflict")
        assert "token" not in reply.json


def test_of_two_who_register_one_name_at_once_one_gets_it(open_house: Server, name: str) -> None:
    replies: list[int] = []

    def ask() -> None:
        with open_house.raw() as connection:
            body = f'{{"username": "{name}"}}'
            head = f"POST /auth/register HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
            replies.append(int(connection.recv(65536).split()[1]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [200] + [409] * 7


def test_a_registered_namespace_binds_the_token(open_house: Server, name: str) -> None:
    made = register(open_house, name, "/team-x/").json
    assert made["namespace"] == "team-x"
    assert open_house.ask("GET", "/locks?namespace=other", who=made["token"]).status == 403


@pytest.mark.parametrize("bad", ["", "a" * 65, "two words", "dotted.name", "ü", 'a"b'])
def test_a_name_has_plain_characters(open_house: Server, bad: str) -> None:
    assert register(open_house, bad).status == 400


@pytest.mark.parametrize("bad", [None, 3, ["a"], {}])
def test_a_name_is_text(open_house: Server, bad: Any) -> None:
    assert register(open_house, bad).status == 422


def test_registering_is_off_unless_it_is_asked_for(fast: Server) -> None:
    reply = register(fast, "somebody")
    assert (reply.status, reply.json["code"]) == (404, "not_found")


def test_nobody_registers_from_another_machine() -> None:
    settings = ServerSettings(bind="0.0.0.0:3427", local_registration=True)
    with pytest.raises(InvalidInput, match="loopback"):
        open_guard(settings, parse_bind(settings.bind))


def test_registrations_of_one_client_are_bounded(tmp_path: Path) -> None:
    with running(tmp_path, settings=ServerSettings(local_registration=True)) as server:
        for number in range(REGISTRATIONS_MAX):
            assert register(server, f"user-{number}").status == 200
        assert register(server, "one-more").status == 429


def test_a_token_replaces_itself_at_once(open_house: Server, name: str) -> None:
    old = register(open_house, name).json
    reply = open_house.ask("POST", "/auth/token/rotate", who=old["token"])
    assert reply.headers["cache-control"] == "no-store"
    new = reply.json
    assert new.keys() == {"token", "user_id", "github_username", "namespace"}
    assert (new["user_id"], new["github_username"]) == (old["user_id"], name)
    assert open_house.ask("GET", "/locks", who=old["token"]).status == 401
    assert open_house.ask("GET", "/locks", who=new["token"]).status == 200
    assert open_house.ask("POST", "/auth/token/rotate", who=old["token"]).status == 401


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-764")
@pytest.mark.parametrize("incomplete", [False, True])
def test_a_frozen_store_makes_no_token_and_the_old_one_stays(tmp_path: Path, incomplete: bool) -> None:
    with running(tmp_path, settings=ServerSettings(local_registration=True)) as server:
        server.guard.fixed = fixed_callers([("alice", "tok-a")], None)
        old = register(server, "carol").json["token"]
        run_one(server.store, Freeze(id="move", incomplete=incomplete))
        for who in (old, "tok-a"):
            reply = server.ask("POST", "/auth/token/rotate", who=who)
            assert (reply.status, reply.json["code"]) == (503, "upstream_unavailable")
        assert register(server, "dave").status == 503
        run_one(server.store, Thaw(id="move"))
        assert server.ask("GET", "/locks", who=old).status == 200
        assert server.ask("GET", "/locks", who="tok-a").status == 200
        assert server.ask("POST", "/auth/token/rotate", who=old).status == 200


@pytest.mark.fault("F-325")
def test_a_token_of_a_file_does_not_replace_itself_and_ends_with_its_line(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for who in ("scoped", "viewer", "admin"):
            refused = server.ask("POST", "/auth/token/rotate", who=who)
            assert (refused.status, refused.json["code"]) == (409, "conflict")
            assert "your operator's file" in refused.json["details"]
        assert server.ask("GET", "/locks", who="scoped").status == 200
        with open(server.guard.path or "", "w") as file:
            file.write("admin:tok-admin:admin\n")
        server.guard.reload()
        assert server.ask("GET", "/locks", who="scoped").status == 401
        assert server.ask("GET", "/tokens", who="admin").json["tokens"] == []


@pytest.mark.fault("F-326")
@pytest.mark.parametrize("user", ["root", "Root"])
def test_a_static_user_with_the_name_of_the_servers_own_is_another(tmp_path: Path, user: str) -> None:
    path = tmp_path / "token"
    ensure_token_file(str(path), "root")
    guard = TokenGuard(str(path), own=True, fixed=fixed_callers([(user, "secret-of-the-user")], None))
    theirs = guard.caller(b"Bearer secret-of-the-user")
    for _ in range(2):
        own = guard.caller(b"Bearer " + path.read_text().strip().split(":")[1].encode())
        assert (own.role, theirs.role) == ("admin", "agent")
        assert own.principal.lower() != theirs.principal.lower()
        assert not {each.lower() for each in own.badges} & {each.lower() for each in theirs.badges}
        guard.reload()


def test_a_rotation_needs_the_token_itself(open_house: Server) -> None:
    assert open_house.ask("POST", "/auth/token/rotate", who=None).status == 401


def test_an_admin_sees_what_is_held_and_by_whom(open_house: Server, name: str) -> None:
    lease = open_house.acquire(name, {"metadata": "m", "ttl_seconds": 90}).json
    key = {"X-OctoStore-Admin-Key": "tok-admin"}
    status = open_house.ask("GET", "/admin/status", who=None, headers=key).json
    [row] = [each for each in status["locks"] if each["name"] == name]
    assert row.pop("expires_at").endswith("+00:00")
    assert row == {
        "name": name,
        "holder_username": "agent",
        "metadata": "m",
        "fencing_token": lease["fencing_token"],
        "ttl_remaining_seconds": 90,
    }
    assert status["healthy"] is True
    assert {"agent", "admin"} <= {each["github_username"] for each in status["users"]}
    assert status["total_users"] == len(status["users"])
    assert lease["lease_id"] not in str(status)


def test_an_admins_key_is_a_token_of_an_admin(open_house: Server) -> None:
    def ask(**headers: str) -> int:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return open_house.ask("GET", "/admin/status", who=None, headers=named).status

    assert ask(Authorization="Bearer admin:tok-admin") == 200
    assert ask(X_Admin_Key="tok-admin") == 200
    assert ask(X_Admin_Key="tok-agent") == 403
    assert ask(X_Admin_Key="nonsense") == 401
    assert ask() == 401


@pytest.mark.fault("F-322")
def test_guesses_at_an_admins_key_are_bounded_and_cost_the_right_one_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for number in range(ADMIN_GUESSES_MAX):
            reply = server.ask("GET", "/admin/status", who=None, headers={"X-Admin-Key": f"guess-{number}"})
            assert reply.status == 401
        assert server.ask("GET", "/admin/status", who=None, headers={"X-Admin-Key": "guess"}).status == 429
        right = {"X-Admin-Key": "tok-admin"}
        assert server.ask("GET", "/admin/status", who=None, headers=right).status == 200
        assert server.ask("GET", "/admin/status", who="admin").status == 200


def test_the_last_minutes_are_numbers_of_each_minute(open_house: Server) -> None:
    open_house.ask("GET", "/locks/x", who="admin")
    called = [getattr(each, "__self__", None) for each in open_house.api.on_close]
    [minutes] = [each for each in called if isinstance(each, MinuteSeries)]
    minutes.note()
    reply = open_house.ask("GET", "/admin/metrics/timeseries?window=12h", who="admin").json
    assert reply["window"] == "12h"
    lists = ("timestamps", "request_volume", "acquire_rates", "release_rates", "active_locks")
    (count,) = {len(reply[each]) for each in lists}
    assert count in (1, 2)  # a minute may end meanwhile, which the server notes by itself
    assert reply["request_volume"][0] > 0
    assert open_house.ask("GET", "/admin/metrics/timeseries?window=2h", who="admin").status == 400


def test_minutes_are_kept_for_a_week() -> None:
    now_ms = [1_800_000_000_000]
    series = MinuteSeries(Tally(), lambda: now_ms[0])
    for _ in range(MINUTES_KEPT + 10):
        now_ms[0] += 60_000
        series.note()
    assert len(series.since(10**9)) == MINUTES_KEPT
    assert len(series.since(3_600)) == 60
    assert all(each.at_s % 60 == 0 for each in series.since(3_600))


def test_a_browser_is_told_which_pages_may_ask(open_house: Server) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "PUT"}
    reply = open_house.ask("OPTIONS", "/locks/x", who=None, headers=asks)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-allow-methods"] == "GET,POST,PUT,DELETE"
    assert "authorization" in reply.headers["access-control-allow-headers"]
    assert reply.headers["access-control-max-age"] == "600"
    assert re.fullmatch("req_[0-9a-f]{32}", reply.headers["x-request-id"])
    reply = open_house.ask("GET", "/locks/x", headers={"Origin": PAGE})
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-expose-headers"] == "retry-after,x-request-id"
    assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://octostore.io.evil.example", ""])
def test_another_page_is_told_nothing(open_house: Server, origin: str) -> None:
    for method in ("OPTIONS", "GET"):
        reply = open_house.ask(method, "/locks/x", headers={"Origin": origin})
        assert "access-control-allow-origin" not in reply.headers


def test_without_the_setting_no_page_may_ask(fast: Server) -> None:
    reply = fast.ask("GET", "/locks/x", headers={"Origin": PAGE})
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert fast.ask("OPTIONS", "/locks/x", headers={"Origin": PAGE}).status == 405


def test_a_page_may_read_a_stream(open_house: Server) -> None:
    with StreamReader(open_house.port, "/events", head=f"Origin: {PAGE}\r\n") as stream:
        assert stream.headers["access-control-allow-origin"] == PAGE


def test_the_number_of_users_is_among_the_counts(fast: Server) -> None:
    assert cast("int", fast.ask("GET", "/status").json["total_users"]) >= 7
    assert "total_users" not in fast.ask("GET", "/status", who=None).json


@pytest.mark.fault("F-087")
def test_a_token_that_replaces_itself_keeps_its_end(tmp_path: Path) -> None:
    def rotated(token: str) -> str:
        return str(server.ask("POST", "/auth/token/rotate", who=token).json["token"])

    def end(token: str) -> int:
        return instant_ms(server.ask("GET", "/whoami", who=token).json["expires_at"])

    with running(tmp_path, real_time=True) as server:
        made = server.ask("POST", "/tokens", {"name": "ci", "role": "viewer", "expires_seconds": 600}, who="admin")
        token, first = made.json["token"], instant_ms(made.json["expires_at"])
        for _ in range(3):
            server.clock.advance(20_000)
            token = rotated(token)
            assert end(token) == first
        server.clock.advance(first - server.store.read(()).now_ms)
        wait_until(lambda: server.ask("GET", "/whoami", who=token).status == 401, "it is over")
