"""Tokens files, doctor, completion, and the settings of serve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.base.errors import AuthenticationFailed
from dibs.cli.commands import serve
from dibs.cli.framework.registry import load, shipped_names
from dibs.cli.framework.spec import GLOBAL
from dibs.client.settings import connect_as
from dibs.engine.auth import TokenGuard, read_tokens
from dibs.wire.refusals import KEY_SPENT
from tests.client.scripted import ScriptedServer, reply_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal


def test_a_new_token_is_a_line_that_the_server_reads(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = terminal("token", "create", "ci", "--tokens", str(file), "-q").out.strip()
    assert token not in file.read_text()
    (entry,) = read_tokens(str(file))
    assert (entry.name, entry.role, entry.namespace, entry.is_clear) == ("ci", "agent", None, False)
    assert TokenGuard(str(file)).caller(f"Bearer {token}".encode()).principal == "ci"


def test_a_token_for_a_file_makes_a_private_file_and_adds_to_it(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    first = terminal("token", "create", "a", "--tokens", str(file))
    assert "shown this once" in first.out
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(file.read_text().rstrip("\n"))  # as some editors leave it
    quiet = terminal("token", "create", "b", "--role", "admin", "--namespace", "acme", "--tokens", str(file), "-q")
    assert quiet.out.startswith("dibs_")
    callers = {line.name: line for line in read_tokens(str(file))}
    assert quiet.out.strip() not in file.read_text()
    assert set(callers) == {"a", "b"}
    assert (callers["b"].role, callers["b"].namespace) == ("admin", "acme")


def test_a_token_ends_when_it_was_said_to(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = terminal("token", "create", "a", "--expires", "30d", "--tokens", str(file), "-q").out.strip()
    (line,) = read_tokens(str(file))
    assert line.expires_ms is not None
    assert 29 * 86_400_000 < line.expires_ms - wall_ms() <= 30 * 86_400_000
    now = [line.expires_ms - 1]
    guard = TokenGuard(str(file), wall=lambda: now[0])
    assert guard.caller(f"Bearer {token}".encode()).principal == "a"
    now[0] += 1
    with pytest.raises(AuthenticationFailed, match="has expired"):
        guard.caller(f"Bearer {token}".encode())


def test_tokens_are_listed_and_revoked(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    tokens = [terminal("token", "create", name, "--tokens", str(file), "-q").out.strip() for name in ("a", "b", "b")]
    with file.open("a") as more:
        more.write("# by hand\nold:in-the-clear:operator:acme\n")
    where = ("--tokens", str(file))
    listed = terminal("token", "list", *where)
    assert "in clear text. Make new ones: dibs token create NAME --tokens FILE" in listed.out
    assert "in-the-clear" not in listed.out
    entries = terminal("token", "list", *where, "--json").data["tokens"]
    assert [(each["name"], each["clear"]) for each in entries] == [
        ("a", False), ("b", False), ("b", False), ("old", True),
    ]  # fmt: skip

    assert terminal("token", "revoke", "b", "--id", entries[1]["id"], *where).exit == 0
    assert "# by hand" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    guard = TokenGuard(str(file))
    assert guard.caller(b"Bearer in-the-clear").namespace == "acme"
    assert guard.caller(f"Bearer {tokens[2]}".encode()).principal == "b"
    with pytest.raises(AuthenticationFailed):
        guard.caller(f"Bearer {tokens[1]}".encode())
    assert terminal("token", "revoke", "b", *where).exit == 0
    assert terminal("token", "revoke", "b", *where).exit == 1
    assert [line.name for line in read_tokens(str(file))] == ["a", "old"]
    assert terminal("token", "hash").exit == 64


def test_a_tokens_file_that_others_can_read_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("")
    file.chmod(0o644)
    ran = terminal("token", "create", "a", "--tokens", str(file))
    assert ran.exit == 64
    assert "chmod 600" in ran.err
    assert file.read_text() == ""
    assert terminal("token", "create", "a", "--tokens", str(tmp_path / "no" / "such")).exit == 64


@pytest.mark.parametrize("name", ["", "a:b", "a b", "n" * 65, "é"])
def test_a_name_that_a_tokens_file_cannot_hold_is_refused(terminal: Terminal, tmp_path: Path, name: str) -> None:
    assert terminal("token", "create", name, "--tokens", str(tmp_path / "tokens")).exit == 64
    assert not (tmp_path / "tokens").exists()


def test_a_tokens_file_has_no_limits(terminal: Terminal, tmp_path: Path) -> None:
    ran = terminal("token", "create", "ci", "--max-held", "3", "--tokens", str(tmp_path / "tokens"))
    assert (ran.exit, "--max-held is for tokens of a store" in ran.err) == (64, True)
    assert not (tmp_path / "tokens").exists()


@pytest.fixture
def outside(terminal: Terminal, tmp_path: Path) -> Terminal:
    """A terminal whose commands go where the settings say."""
    terminal._open = connect_as  # type: ignore[method-assign, assignment]
    terminal.env["XDG_STATE_HOME"] = str(tmp_path)
    return terminal


def test_doctor_finds_a_store_in_order(outside: Terminal, tmp_path: Path) -> None:
    ran = outside("doctor", "--url", f"sqlite://{tmp_path / 'x.db'}")
    assert ran.exit == 0
    assert "schema " in ran.out
    assert ran.out.endswith("All is well.\n")
    checks = outside("doctor", "--json", "--url", f"sqlite://{tmp_path / 'x.db'}").data["checks"]
    assert {"version", "store", "open", "clock", "write", "disk"} <= {each["check"] for each in checks}


def test_doctor_says_what_is_broken_and_exits_with_69(outside: Terminal, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is no database" * 100)
    for url in (f"sqlite://{tmp_path / 'x.db'}", "nonsense", "http://127.0.0.1:1", "http://"):
        ran = outside("doctor", "--url", url)
        assert ran.exit == 69
        assert "BAD" in ran.out
        assert outside("doctor", "--url", url, "--json").error["code"] == "upstream_unavailable"


def test_doctor_asks_the_server_and_names_the_token_file(outside: Terminal, tmp_path: Path) -> None:
    token = tmp_path / "dibs" / "token"
    token.parent.mkdir()
    token.touch(mode=0o600)
    token.write_text("ann:secret:admin\n")
    with ScriptedServer([reply_of(200, {"proof": None})]) as server:
        ran = outside("doctor", "--url", server.url)
    assert ran.exit == 69
    assert f"from {token}" in ran.out
    assert "is not your own server" in ran.out
    assert "secret" not in ran.out
    assert b"secret" not in b"".join(server.requests)


def test_doctor_sees_a_token_that_is_not_accepted(outside: Terminal) -> None:
    outside.env["DIBS_TOKEN"] = "wrong"
    refused = reply_of(401, {"error": "x", "code": "authentication_failed", "details": "No such token."})
    with ScriptedServer([reply_of(200, {"status": "ok", "dibs": "1"}), refused]) as server:
        ran = outside("doctor", "--url", server.url)
    assert ran.exit == 69
    assert "BAD  allowed    No such token." in ran.out


@pytest.mark.parametrize("body", [{"status": "ok", "storage": "wal", "db_size_bytes": 4096}, {"it": "works"}])
def test_doctor_says_that_a_server_is_not_dibs(outside: Terminal, body: dict[str, Any]) -> None:
    outside.env["DIBS_TOKEN"] = "some"
    with ScriptedServer([reply_of(200, body)]) as server:
        ran = outside("doctor", "--url", server.url)
    assert ran.exit == 69
    assert "BAD  answers    this is not a dibs server; nothing can be claimed there" in ran.out
    assert "All is well" not in ran.out


def test_a_lost_claim_says_how_to_ask_for_it(outside: Terminal) -> None:
    with ScriptedServer([None] * 3) as server:
        ran = outside("claim", "a", "--url", server.url)
    assert ran.exit == 69
    key = server.body()["request_key"]
    assert ran.err.rstrip().endswith(f"repeat the claim with --request-key {key}")


def test_a_lost_claim_under_a_new_key_names_that_key(outside: Terminal) -> None:
    """Its turn came and went while it was paused, so it asks under another key, and that answer is lost."""
    spent = {"error": "x", "code": "conflict", "details": f"{KEY_SPENT} expired 3s ago."}
    with ScriptedServer([reply_of(409, spent)] + [None] * 30) as server:
        ran = outside("claim", "a", "--wait", "1s", "--url", server.url)
    keys = [json.loads(request.partition(b"\r\n\r\n")[2])["request_key"] for request in server.requests]
    assert len(set(keys)) == 2
    assert ran.err.rstrip().endswith(f"repeat the claim with --request-key {keys[-1]}")


def test_a_refused_token_says_what_to_set(outside: Terminal) -> None:
    refused = reply_of(401, {"error": "x", "code": "authentication_required", "details": "Bearer token required"})
    with ScriptedServer([refused]) as server:
        ran = outside("claim", "a", "--url", server.url)
    assert ran.exit == 77
    assert ran.err == (
        "dibs: Bearer token required. Set DIBS_TOKEN, or DIBS_TOKEN_FILE to a file that holds the token.\n"
    )


def test_a_busy_server_says_when_to_come_back(outside: Terminal) -> None:
    busy = reply_of(429, {"error": "x", "code": "rate_limited", "details": "Too many."}, "Retry-After: 3")
    with ScriptedServer([busy]) as server:
        ran = outside("claim", "a", "--url", server.url)
    assert ran.exit == 75
    assert "Try again in 3s." in ran.err


def test_the_token_of_your_own_server_can_be_shown(outside: Terminal, tmp_path: Path) -> None:
    none = outside("token", "show")
    assert (none.exit, none.out) == (64, "")
    assert "dibs serve" in none.err
    token = tmp_path / "dibs" / "token"
    token.parent.mkdir()
    token.touch(mode=0o600)
    token.write_text("ann:dibs_secret:admin\n")
    assert outside("token", "show").out == "dibs_secret\n"
    assert outside("token", "show", "--json").data["token"] == "dibs_secret"


@pytest.mark.parametrize(
    "flags",
    [
        ("--group", "team"),
        ("--socket-mode", "660"),
        ("--bind", "unix:/x", "--socket-mode", "66"),
        ("--bind", "unix:/x", "--socket-mode", "466"),
        ("--bind", "unix:/x", "--socket-mode", "rw"),
        ("--tls-key", "k"),
        ("--tls-client-ca", "c"),
    ],
)
def test_serve_refuses_flags_that_mean_nothing(terminal: Terminal, flags: tuple[str, ...]) -> None:
    assert terminal("serve", *flags).exit == 64


def test_serve_reads_who_may_connect(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pytest.importorskip("dibs.server.run")
    seen: list[Any] = []
    monkeypatch.setattr(run, "serve", seen.append)
    flags = ("--bind", "unix:/x", "--group", "team", "--socket-mode", "0660")
    assert terminal("serve", *flags, "--trusted-proxy", "10.0.0.2, unix").exit == 0
    (settings,) = seen
    assert (settings.group, settings.socket_mode, settings.system) == ("team", 0o660, False)
    assert settings.trusted_proxies == ("10.0.0.2", "unix")


def test_gc_is_for_stores(outside: Terminal) -> None:
    assert outside("gc", "--url", "http://127.0.0.1:1").exit == 64


def test_serve_takes_its_settings_from_flags_and_environment(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pytest.importorskip("dibs.server.run")
    seen: list[Any] = []
    monkeypatch.setattr(run, "serve", seen.append)
    terminal.env |= {"DIBS_BIND": "127.0.0.1:1", "DIBS_STORE": "memory://", "DIBS_KEEP_EVENTS": "5"}
    flags = ("--bind", "127.0.0.1:2", "--keep-events-for", "2d", "--locks-per-principal", "7", "--access-log")
    assert terminal("serve", *flags, "--tokens", "t").exit == 0
    (settings,) = seen
    assert (settings.bind, settings.store, settings.tokens_file) == ("127.0.0.1:2", "memory://", "t")
    assert (settings.keep_events, settings.keep_events_ms) == (5, 172_800_000)
    assert (settings.locks_per_principal, settings.access_log) == (7, True)
    for wrong in (("--keep-events", "x"), ("--keep-events-for", "x"), ("--url", "http://x")):
        assert terminal("serve", *wrong).exit == 64
    assert len(seen) == 1


def test_serve_takes_a_port_of_this_machine(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pytest.importorskip("dibs.server.run")
    seen: list[Any] = []
    monkeypatch.setattr(run, "serve", seen.append)
    assert terminal("serve", "--port", "8080", "--store", "memory://").exit == 0
    assert seen[0].bind == "127.0.0.1:8080"
    for wrong in (("--port", "0"), ("--port", "70000"), ("--port", "x"), ("--port", "1", "--bind", "h:2")):
        assert terminal("serve", *wrong).exit == 64
    assert "--port takes a whole number from 1 to 65535, not '0'" in terminal("serve", "--port", "0").err
    assert len(seen) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_the_hidden_command(terminal: Terminal, shell: str) -> None:
    assert "dibs __complete -- " in terminal("completion", shell).out
    assert "__complete" not in terminal("--help").out


def test_every_command_and_every_flag_is_offered_with_what_it_does(terminal: Terminal) -> None:
    def offered(*words: str) -> dict[str, str]:
        ran = terminal("__complete", "--", *words)
        assert (ran.exit, ran.err) == (0, "")
        return dict(line.split("\t") for line in ran.out.splitlines())

    for name in shipped_names():
        words = name.split(" ")
        assert offered(*words[:-1], words[-1])[words[-1]]
        assert offered(*words, "--") == {each.flag: each.help for each in (*load(name).options, *GLOBAL)}


@pytest.mark.fault("F-762")
def test_the_topics_of_help_and_the_forms_of_an_answer_are_offered(terminal: Terminal) -> None:
    def offered(*words: str) -> list[str]:
        return [line.split("\t")[0] for line in terminal("__complete", "--", *words).out.splitlines()]

    topics = offered("help", "")
    assert len(topics) == len(set(topics))
    for topic in topics:
        assert terminal("help", topic).exit == 0
    assert {"claim", "pool", "operate", "core", "all"} <= set(topics)
    assert offered("help", "pool", "") == offered("pool", "")
    assert offered("help", "claim", "") == []
    assert offered("list", "-o", "") == ["json", "name", "wide"]
    assert offered("list", "-o", "n") == ["name"]
    assert offered("list", "-o", "json", "--lim") == ["--limit"]
    assert offered("run", "x", "--", "-o", "") == offered("run", "x", "--", "")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--",),
        ("--", "--url"),
        ("--", "--url", "nonsense:", "release", ""),
        ("--", "claim", "\x1b[31m", ""),
        ("--", "--json", "--help", "x", "y", ""),
        ("--", "run", "x", "--", "--json", ""),
    ],
)
def test_completing_never_fails_and_never_complains(terminal: Terminal, words: tuple[str, ...]) -> None:
    ran = terminal("__complete", *words)
    assert (ran.exit, ran.err) == (0, "")
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("text", ["", "=4000", "PORT=x", "PORT=-1", "a b=1", "DIBS_URL=1", "1A=2"])
def test_a_variable_for_the_slot_that_is_none_is_refused_before_anything_runs(terminal: Terminal, text: str) -> None:
    refused = terminal("run", "ports", "--slot-as", text, "--", "true")
    assert refused.exit == 64
    assert "such as PORT=4000" in refused.err


@pytest.mark.fault("F-775")
def test_a_job_in_the_metrics_is_the_one_that_a_claim_of_the_same_words_takes() -> None:
    given = ("default/https://github.com/acme/app/issues/5", "team/path:./src//c", "team/nightly")
    found = [("default", "github://acme/app/issues/5"), ("team", "path:src/c"), ("team", "nightly")]
    assert list(serve._metric_jobs(given)) == found
