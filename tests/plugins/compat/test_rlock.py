"""rlock, runlock, rlock-heartbeat in this process: every line of Action Llama's table, on dibs and on a gateway."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask, OneNamespace
from dibs.compat.action_llama.rlock import run
from dibs.compat.action_llama.runs import ask_store
from dibs.core.limits import RUN_KEEP_MS, RUN_TTL_MS, TTL_MS_MAX
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.cli.conftest import START_MS
from tests.client.scripted import ScriptedServer, reply_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.client.settings import Settings
    from dibs.client.transport import Transport

KEY = "github://acme/app/issues/42"
COMMANDS = ("rlock", "runlock", "rlock-heartbeat")


class Shell:
    """`shell("rlock", key)` gives exit code and document. `pid` is the process that asks."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = START_MS
        self.store = MemoryStore(lambda: self.now_ms)
        self.env: dict[str, str] = {"USER": "ann", "XDG_STATE_HOME": str(folder)}
        self.pid = os.getpid()

    def transport(self, settings: Settings | None = None) -> EmbeddedTransport:
        return EmbeddedTransport(
            lambda: Coordinator(self.store), OneNamespace(settings.namespace if settings else None)
        )

    def __call__(self, name: str, *argv: str, **env: str) -> tuple[int, Any]:
        out = io.StringIO()
        opener = None if "DIBS_URL" in env else self.transport
        exit_code = run(name, argv, self.env | env, out, opener, self.pid)
        assert out.getvalue().count("\n") == 1
        document = json.loads(out.getvalue())
        assert document["ok"] is (exit_code == 0)
        if exit_code:
            assert document["reason"]
        return exit_code, document

    def run(self, holder: str) -> str:
        body = ask_store(self.transport(), Ask("run-open", "", {"holder": holder})).body or {}
        return str(body["secret"])

    def session(self, owner: str) -> str:
        body = self.transport().ask(Ask("session-open", "", {"owner": owner})).body or {}
        return str(body["session_id"])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


@pytest.fixture(params=["session", "secret"])
def identity(request: pytest.FixtureRequest, shell: Shell) -> dict[str, dict[str, str]]:
    """Two that can prove who they are, in either way."""
    if request.param == "session":
        return {owner: {"DIBS_SESSION": shell.session(owner)} for owner in ("A", "B")}
    return {owner: {"SHUTDOWN_SECRET": shell.run(owner)} for owner in ("A", "B")}


def test_success_answers_as_theirs_does(shell: Shell, identity: dict[str, dict[str, str]]) -> None:
    a = identity["A"]
    assert shell("rlock", KEY, **a) == (0, {"ok": True, "resourceKey": KEY})
    assert shell("rlock", KEY, **a) == (0, {"ok": True, "resourceKey": KEY})
    lasts_ms = 60_000 if "DIBS_SESSION" in a else 1_800_000  # a session that nobody keeps is over before its locks
    expires_ms = START_MS + lasts_ms
    assert shell("rlock-heartbeat", KEY, **a) == (0, {"ok": True, "expiresAt": expires_ms})
    assert shell("runlock", KEY, **a) == (0, {"ok": True})


@pytest.mark.promise("excl")
def test_a_lock_of_another_is_refused_with_who_and_since_when(
    shell: Shell, identity: dict[str, dict[str, str]]
) -> None:
    shell("rlock", KEY, **identity["A"])
    held = {"ok": False, "holder": "A", "heldSince": START_MS, "reason": "held by A"}
    assert shell("rlock", KEY, **identity["B"]) == (1, held)
    for name in ("runlock", "rlock-heartbeat"):
        assert shell(name, KEY, **identity["B"]) == (1, {"ok": False, "reason": "held by A"})
        assert shell(name, KEY) == (1, {"ok": False, "reason": "held by A"})


class FullDisk(io.StringIO):
    """Takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.fault("F-676")
@pytest.mark.parametrize("is_file", [False, True], ids=["memory", "file"])
def test_a_lock_whose_answer_cannot_be_written_is_given_back(shell: Shell, tmp_path: Path, is_file: bool) -> None:
    """The exit code says that it failed, so its caller does not work, and does not unlock it."""
    env = shell.env | ({"DIBS_URL": f"sqlite://{tmp_path}/locks.db"} if is_file else {})
    opener = None if is_file else shell.transport
    assert run("rlock", [KEY], env, FullDisk(), opener, shell.pid) == 12
    out = io.StringIO()
    assert run("rlock", [KEY], {**env, "DIBS_OWNER": "another"}, out, opener, shell.pid) == 0, out.getvalue()


def test_a_lock_that_was_its_own_before_stays_if_the_second_answer_cannot_be_written(
    shell: Shell, identity: dict[str, dict[str, str]]
) -> None:
    shell("rlock", KEY, **identity["A"])
    assert run("rlock", [KEY], shell.env | identity["A"], FullDisk(), shell.transport, shell.pid) == 12
    assert shell("rlock", KEY, **identity["B"])[0] == 1


def test_a_lock_that_nobody_has_is_not_found(shell: Shell, identity: dict[str, dict[str, str]]) -> None:
    for name in ("runlock", "rlock-heartbeat"):
        assert shell(name, KEY, **identity["A"]) == (2, {"ok": False, "reason": "lock not found"})
    shell("rlock", KEY, **identity["A"])
    shell("runlock", KEY, **identity["A"])
    assert shell("runlock", KEY, **identity["A"]) == (2, {"ok": False, "reason": "lock not found"})


@pytest.mark.fault("F-458")
def test_a_lock_that_cannot_be_noted_is_withdrawn_and_counts_as_no_work(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    exit_code, document = shell("rlock", KEY, XDG_STATE_HOME=str(tmp_path / "file"))
    assert (exit_code, document["error"]) == (12, "not noted")
    assert [(event.kind, event.uncounted) for event in shell.store.events(0, 9)] == [
        ("acquired", False),
        ("released", True),
    ]


@pytest.mark.promise("deadlock")
def test_a_circle_is_refused_with_the_circle(shell: Shell, identity: dict[str, dict[str, str]]) -> None:
    shell("rlock", "r:1", **identity["A"])
    shell("rlock", "r:2", **identity["B"])
    assert shell("rlock", "r:2", **identity["A"])[1]["holder"] == "B"
    assert shell("rlock", "r:1", **identity["B"]) == (
        1,
        {
            "ok": False,
            "reason": "possible deadlock: B → r:1 → A → r:2 → B",
            "deadlock": True,
            "cycle": ["B", "r:1", "A", "r:2"],
        },
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_key_the_usage_is_shown(shell: Shell, name: str) -> None:
    for argv in ((), ("",), ("--help",), ("--",)):
        exit_code, document = shell(name, *argv)
        assert (exit_code, document["error"]) == (9, f"usage: {name} <resourceKey>")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_that_is_no_uri_is_refused(shell: Shell, name: str) -> None:
    exit_code, document = shell(name, "not-a-uri")
    assert (exit_code, document["error"]) == (4, "Invalid URI format: Invalid URL")


def test_further_words_are_ignored_as_theirs_are(shell: Shell) -> None:
    assert shell("rlock", KEY, "extra", "--ttl", "5")[0] == 0


def test_w5_a_key_with_quotes_is_that_key(shell: Shell) -> None:
    odd = 'x:","ttl":86400,"z":"\\'
    assert shell("rlock", odd) == (0, {"ok": True, "resourceKey": odd})
    assert shell("rlock", "x:")[0] == 0
    assert (shell.transport().ask(Ask("inspect", odd)).body or {})["remaining_ms"] == 1_800_000


def test_a_key_that_is_not_unicode_is_refused(shell: Shell) -> None:
    assert shell("rlock", "x:\udcff")[0] == 4
    gateway = {"GATEWAY_URL": "http://127.0.0.1:1", "SHUTDOWN_SECRET": "s"}
    assert shell("rlock", "x:\udcff", **gateway)[0] == 4


def test_who_shows_a_secret_or_session_that_is_none_is_told_so(shell: Shell) -> None:
    exit_code, document = shell("rlock", KEY, SHUTDOWN_SECRET="a-secret-that-nobody-has")
    assert (exit_code, document["error"]) == (3, "invalid secret")
    assert "a-secret-that-nobody-has" not in str(document)
    assert shell("rlock", KEY, DIBS_SESSION="nope")[0] == 3
    assert shell("rlock", KEY, DIBS_SESSION="00000000-0000-4000-8000-000000000000")[0] == 3


def test_a_session_that_is_over_locks_nothing(shell: Shell) -> None:
    session = shell.session("A")
    shell.now_ms += 61_000
    assert shell("rlock", KEY, DIBS_SESSION=session)[0] == 3


def test_a_run_lives_by_its_calls_and_ends_after_long_silence(shell: Shell) -> None:
    secret = {"SHUTDOWN_SECRET": shell.run("A")}
    for _ in range(3):
        shell.now_ms += RUN_TTL_MS - 1_000
        assert shell("rlock", KEY, **secret)[0] == 0
    shell.now_ms += RUN_TTL_MS
    assert shell("rlock", KEY, **secret)[0] == 3


@pytest.mark.promise("lease:never-early")
def test_a_run_outlives_every_lock_that_it_may_take(shell: Shell) -> None:
    secret = {"SHUTDOWN_SECRET": shell.run("A")}
    shell.now_ms += RUN_KEEP_MS - 1  # the call that follows is not noted
    assert shell("rlock", KEY, **secret, DIBS_RLOCK_TTL="24h")[0] == 0
    shell.now_ms += TTL_MS_MAX - 1
    assert shell("rlock", KEY)[0] == 1
    shell.now_ms += 1
    assert shell("rlock", KEY)[0] == 0


def test_a_lock_that_ran_out_is_anybodys_though_its_run_lives(
    shell: Shell, identity: dict[str, dict[str, str]]
) -> None:
    shell("rlock", KEY, **identity["A"], DIBS_RLOCK_TTL="30")
    shell.now_ms += 30_000
    assert shell("rlock-heartbeat", KEY, **identity["A"])[0] == 2
    assert shell("rlock", KEY, **identity["B"])[0] == 0
    assert shell("runlock", KEY, **identity["A"])[0] == 1


# Nobody in particular


def test_a_shell_lets_go_by_name_of_what_it_locked(shell: Shell) -> None:
    assert shell("rlock", KEY)[0] == 0
    assert shell("rlock-heartbeat", KEY) == (0, {"ok": True, "expiresAt": START_MS + 1_800_000})
    assert shell("runlock", KEY) == (0, {"ok": True})
    assert shell("runlock", KEY)[0] == 2


@pytest.mark.promise("excl:same-token")
def test_without_an_identity_every_claim_is_a_newcomers(shell: Shell) -> None:
    assert shell("rlock", KEY)[0] == 0
    exit_code, document = shell("rlock", KEY)
    assert exit_code == 1
    assert document["holder"] == f"ann@{os.uname().nodename} (pid {shell.pid})"
    assert "dibs session run" in document["reason"]


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process beside this one: it is no ancestor of ours."""
    child = subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE)
    yield child
    child.communicate()


@pytest.mark.promise("excl:same-token")
def test_a_neighbour_can_neither_lock_nor_let_go(shell: Shell, neighbour: subprocess.Popen[bytes]) -> None:
    own = shell.pid
    shell.pid = neighbour.pid
    assert shell("rlock", KEY)[0] == 0
    shell.pid = own
    for name in COMMANDS:
        assert shell(name, KEY)[0] == 1
    shell.pid = neighbour.pid
    assert shell("runlock", KEY)[0] == 0


def test_what_a_shell_that_ended_locked_can_be_let_go_by_whoever_started_it(
    shell: Shell, neighbour: subprocess.Popen[bytes]
) -> None:
    """An agent gets a new shell for each command: one locks, another lets go."""
    own = shell.pid
    shell.pid = neighbour.pid
    assert shell("rlock", KEY)[0] == 0
    neighbour.communicate()
    shell.pid = own
    assert shell("rlock", KEY)[0] == 1  # but locking it again is a newcomer's
    assert shell("rlock-heartbeat", KEY)[0] == 0
    assert shell("runlock", KEY)[0] == 0


def test_namespaces_and_places_keep_their_notes_apart(shell: Shell) -> None:
    assert shell("rlock", KEY, DIBS_NAMESPACE="one")[0] == 0
    assert shell("rlock", KEY, DIBS_NAMESPACE="two")[0] == 0
    assert shell("runlock", KEY, DIBS_NAMESPACE="one")[0] == 0
    assert shell("rlock-heartbeat", KEY, DIBS_NAMESPACE="two")[0] == 0


def test_a_lock_that_cannot_be_noted_is_not_kept(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "dibs").write_text("a file where the state folder should be")
    exit_code, document = shell("rlock", KEY)
    assert (exit_code, document["ok"]) == (12, False)
    assert "dibs session run" in document["reason"]
    assert (shell.transport().ask(Ask("inspect", KEY)).body or {})["status"] == "free"


def test_notes_are_for_their_owner_only_and_go_with_the_lock(shell: Shell, tmp_path: Path) -> None:
    shell("rlock", KEY)
    [note] = (tmp_path / "dibs" / "locks").glob("*.json")
    assert note.stat().st_mode & 0o077 == 0
    assert note.parent.stat().st_mode & 0o077 == 0
    shell("runlock", KEY)
    assert not note.exists()


# How long


@pytest.mark.parametrize(
    ("said", "seconds"), [({}, 1800), ({"DIBS_RLOCK_TTL": "90"}, 90), ({"DIBS_RLOCK_TTL": "10m"}, 600)]
)
def test_a_lock_lasts_as_long_as_is_said(shell: Shell, said: dict[str, str], seconds: int) -> None:
    shell("rlock", KEY, **said)
    assert (shell.transport().ask(Ask("inspect", KEY)).body or {})["remaining_ms"] == seconds * 1000


def test_the_time_may_stand_in_a_config_toml(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('resourceLockTimeout = 60 # seconds\n[models]\nx = "y"\n')
    (tmp_path / "other.toml").write_text("resourceLockTimeout = 70\n")
    shell("rlock", "a:1")
    shell("rlock", "--config", str(tmp_path / "other.toml"), "a:2")
    shell("rlock", f"--config={tmp_path / 'other.toml'}", "a:3", DIBS_RLOCK_TTL="80")
    lasts = [(shell.transport().ask(Ask("inspect", f"a:{n}")).body or {})["remaining_ms"] for n in (1, 2, 3)]
    assert lasts == [60_000, 70_000, 80_000]


@pytest.mark.parametrize("value", ["0", "-5", "86401", "1.5", '"60"', "true", "[1]"])
def test_w4_a_time_that_cannot_be_is_refused_and_locks_nothing(shell: Shell, tmp_path: Path, value: str) -> None:
    """Theirs takes 0 for "over at once", so that every caller succeeds."""
    (tmp_path / "config.toml").write_text(f"resourceLockTimeout = {value}\n")
    exit_code, document = shell("rlock", KEY)
    assert (exit_code, document["error"]) == (9, "invalid_ttl")
    assert "resourceLockTimeout" in document["reason"]
    assert (shell.transport().ask(Ask("inspect", KEY)).body or {})["status"] == "free"


@pytest.mark.parametrize("value", ["0", "abc", "25h", "10ms"])
def test_a_time_in_the_environment_that_cannot_be_is_refused(shell: Shell, value: str) -> None:
    exit_code, document = shell("rlock", KEY, DIBS_RLOCK_TTL=value)
    assert (exit_code, document["error"]) == (9, "invalid_ttl")


def test_a_config_toml_of_something_else_is_none_of_ours(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("this is [no TOML at all\n")
    assert shell("rlock", "a:1")[0] == 0
    (tmp_path / "config.toml").write_text("# resourceLockTimeout is not set\n")
    assert shell("rlock", "a:2")[0] == 0
    (tmp_path / "config.toml").write_text("resourceLockTimeout = [\n")
    assert shell("rlock", "a:3")[0] == 9
    assert shell("rlock", "--config", "/nonexistent.toml", "a:4")[0] == 9
    assert shell("rlock", "--config")[0] == 9


# Over a gateway


def asked_of(shell: Shell, reply: bytes, name: str = "rlock", **env: str) -> tuple[int, Any, Any]:
    with ScriptedServer([reply]) as server:
        url = {"GATEWAY_URL": server.url + env.pop("tail", ""), "SHUTDOWN_SECRET": 'se"cret'}
        exit_code, document = shell(name, KEY, **(url | env))
        return exit_code, document, server


@pytest.mark.parametrize(
    ("name", "verb"), [("rlock", "acquire"), ("runlock", "release"), ("rlock-heartbeat", "heartbeat")]
)
def test_a_gateway_is_asked_as_their_scripts_ask_it(shell: Shell, name: str, verb: str) -> None:
    for tail in ("/base", "/base/"):
        exit_code, document, server = asked_of(shell, reply_of(200, {"ok": True}), name, tail=tail)
        assert (exit_code, document) == (0, {"ok": True})
        assert server.requests[0].startswith(f"POST /base/locks/{verb} HTTP/1.1\r\n".encode())
        assert server.body() == {"secret": 'se"cret', "resourceKey": KEY}


def test_a_time_goes_to_the_gateway_only_when_somebody_said_one(shell: Shell) -> None:
    said = asked_of(shell, reply_of(200, {"ok": True}), DIBS_RLOCK_TTL="2m")[2].body()
    assert said["ttl"] == 120


@pytest.mark.parametrize(
    ("status", "body", "exit_code"),
    [
        (409, {"ok": False, "holder": "dev-1", "heldSince": 1, "reason": "r"}, 1),
        (404, {"ok": False, "reason": "lock not found"}, 2),
        (403, {"error": "invalid secret"}, 3),
        (400, {"error": "missing secret"}, 4),
        (503, {"error": "x"}, 5),
        (502, {}, 10),
        (504, None, 11),
        (500, {"ok": False, "reason": "r"}, 12),
        (401, {"error": "Unauthorized"}, 7),
        (429, {"ok": True}, 7),
        (404, {"error": "Not Found"}, 7),  # no such route: what answered is no gateway
        (200, {"status": "fine"}, 7),
        (200, [], 7),
        (302, None, 7),
    ],
)
def test_every_status_has_its_exit_code_and_every_failure_a_reason(
    shell: Shell, status: int, body: Any, exit_code: int
) -> None:
    found, document, _ = asked_of(shell, reply_of(status, body))
    assert found == exit_code
    assert document["ok"] is False


def test_their_conflict_without_a_reason_gets_one(shell: Shell) -> None:
    _, document, _ = asked_of(shell, reply_of(409, {"ok": False, "holder": "dev-1", "heldSince": 5}))
    assert document == {"ok": False, "holder": "dev-1", "heldSince": 5, "reason": "held by dev-1"}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize(("header", "when"), [(b"", "try again later"), (b"Retry-After: 7\r\n", "try again in 7 s")])
def test_a_gateway_that_is_busy_or_not_up_is_reported_as_try_later(
    shell: Shell, status: int, header: bytes, when: str
) -> None:
    page = b"HTTP/1.1 %d X\r\n%sContent-Length: 6\r\n\r\n<html>" % (status, header)
    _, document, _ = asked_of(shell, page)
    assert when in document["reason"]
    assert "GATEWAY_URL" not in document["reason"]


def test_html_of_a_proxy_is_not_passed_on(shell: Shell) -> None:
    page = b"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\n<html>"
    exit_code, document, _ = asked_of(shell, page)
    assert (exit_code, document["error"]) == (10, "HTTP 502")


def test_unreachable_is_said_and_not_a_blank_line(shell: Shell) -> None:
    for url in (
        "http://127.0.0.1:1",
        "http://127.0.0.1:1/x/",
        "nonsense",
        "http://",
        "http://no-such-host.invalid",
    ):
        exit_code, document = shell("rlock", KEY, GATEWAY_URL=url, SHUTDOWN_SECRET="s")
        assert (exit_code, document["error"]) == (6, "gateway unreachable"), url
    exit_code, document, _ = asked_of(shell, b"")
    assert (exit_code, document["error"]) == (6, "gateway unreachable")
    exit_code, document = shell("rlock", KEY, DIBS_URL="http://127.0.0.1:1")
    assert (exit_code, document["ok"]) == (6, False)


def test_a_store_that_cannot_be_opened_is_said(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    url = f"sqlite://{tmp_path}/plain/dibs.db"
    for who in ({}, {"SHUTDOWN_SECRET": "a-secret-of-a-run"}):
        exit_code, document = shell("rlock", KEY, DIBS_URL=url, **who)
        assert exit_code != 0, document


def test_a_gateway_without_a_secret_is_not_asked(shell: Shell) -> None:
    exit_code, document = shell("rlock", KEY, GATEWAY_URL="http://127.0.0.1:1")
    assert (exit_code, document["error"]) == (4, "missing secret")


def test_with_a_server_of_dibs_a_secret_goes_to_its_gateway(shell: Shell) -> None:
    with ScriptedServer([reply_of(200, {"ok": True})]) as server:
        exit_code, _ = shell("rlock", KEY, DIBS_URL=server.url + "/", SHUTDOWN_SECRET="s")
        assert exit_code == 0
        assert server.requests[0].startswith(b"POST /gateway/locks/acquire HTTP/1.1\r\n")
        assert b"Authorization" not in server.requests[0]


def test_a_secret_goes_to_the_gateway_on_a_socket_too(shell: Shell, tmp_path: Path) -> None:
    path = str(tmp_path / "dibs.sock")
    with ScriptedServer([reply_of(200, {"ok": True})], family=socket.AF_UNIX, path=path) as server:
        assert shell("rlock", KEY, DIBS_URL=server.url, SHUTDOWN_SECRET="s")[0] == 0
        assert server.requests[0].startswith(b"POST /gateway/locks/acquire HTTP/1.1\r\n")


def test_a_server_that_wants_a_token_is_reported_with_what_to_do(shell: Shell) -> None:
    refused = {"error": "e", "code": "authentication_required", "details": "Bearer token required"}
    with ScriptedServer([reply_of(401, refused)]) as server:
        exit_code, document = shell("rlock", KEY, DIBS_URL=server.url)
    assert exit_code == 7
    assert "DIBS_TOKEN" in document["reason"]


@pytest.mark.promise("idem:acquire")
def test_a_lost_reply_of_a_server_is_no_lost_lock(shell: Shell) -> None:
    granted = {
        "status": "acquired",
        "name": KEY,
        "lease_id": "00000000-0000-4000-8000-000000000000",
        "fencing_token": 1,
        "owner": "ann",
        "expires_at": "2025-11-15T02:16:05.123Z",
        "remaining_ms": 120_000,
        "renew_after_ms": 60_000,
    }
    with ScriptedServer([b"", reply_of(200, granted)]) as server:
        assert shell("rlock", KEY, DIBS_URL=server.url)[0] == 0
        assert server.body(0)["request_key"] == server.body(1)["request_key"]


def test_a_fault_of_ours_is_one_line_too(shell: Shell) -> None:
    def broken(_: Settings) -> Transport:
        raise RuntimeError("on purpose")

    out = io.StringIO()
    assert run("rlock", [KEY], shell.env, out, broken) == 12
    assert json.loads(out.getvalue())["ok"] is False
