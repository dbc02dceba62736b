"""No text of a store or a server acts on the terminal. Tests all commands and every field."""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.terminal import log_lines
from dibs.cli.framework.registry import shipped_names
from dibs.cli.main import run
from dibs.cli.text.words import Paint
from dibs.compat.action_llama import rlock
from dibs.wire.documents import Reply
from tests.cli.conftest import Screen, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs.client.settings import Settings

    Tell = Callable[[Reply], Reply]

FAKE = "FAKE-LINE"
BAD = f"\x1b[2J\x1b]0;title\x07\x9b8m\x1b[8mhidden\r\u202egnp\u2066x\u200f\x00\x7f\ud800\n{FAKE}: Claimed"
KEPT = BAD.replace("\ud800", "")  # what a store of ours takes
ID = "0a1b2c3d-0000-4000-8000-000000000000"
# What tells a command which words to use. Hostile too, in the test of a store that lies about everything.
STRUCTURE = {
    "status",
    "event",
    "mode",
    "how",
    "code",
    "expires_at",
    "since",
    "at",
    "until",
    "done_at",
    "available_at",
}
STRUCTURE |= {"expires_unix_ms", "opened_at"}

WORDS: dict[str, list[str]] = {
    "claim": ["job"],
    "claim-any": ["job", "other"],
    "claim-all": ["job", "other"],
    "heartbeat": ["job", "--lease", ID],
    "once": ["job", "tag", "--lease", ID, "--", "true"],
    "next": ["job"],
    "release": ["job", "--lease", ID],
    "transfer": ["job", "--to", "ann", "--lease", ID],
    "wait": ["job", "--for", "1s"],
    "hold": ["job", "--for", "1s"],
    "run": ["job", "--", "true"],
    "elect": ["job", "--no-wait", "--once", "--", "true"],
    "session run": ["--", "true"],
    "session open": [],
    "session keep": ["--session", ID],
    "session end": ["--session", ID],
    "session show": ["--session", ID],
    "session list": [],
    "owner": ["job"],
    "list": [],
    "agents": [],
    "top": [],
    "history": ["job"],
    "overdue": ["job"],
    "watch": ["--since", "1h", "--for", "0s"],
    "name": ["job"],
    "gh next": ["--repo", "acme/app"],
    "break": ["job", "--reason", "r"],
    "free": ["job"],
    "close": ["job", "--for", "1h", "--reason", "stop"],
    "open": ["job"],
    "pool set": ["job", "--slots", "2"],
    "pool list": [],
    "pool remove": ["job"],
    "gc": [],
    "doctor": [],
    "export": ["--to", "copy.jsonl"],
    "import": ["--from", "copy.jsonl"],
    "backup": ["copy.db"],
    "restore": ["copy.db", "--url", "sqlite:store.db"],
    "token create": ["ann"],
    "token rotate": ["ann"],
    "token limit": ["ann", "--max-held", "1"],
    "webhook add": ["https://hook.test/"],
    "webhook list": [],
    "webhook show": [ID],
    "webhook remove": [ID],
    "webhook replay": [ID],
    "webhook test": [ID],
    "lock acquire": ["--resource", "job"],
    "lock renew": ["--resource", "job", "--lease", ID],
    "lock release": ["--resource", "job", "--lease", ID],
    "lock status": [],
    "lock gc": [],
    "run-secret create": ["ann"],
    "run-secret list": [],
    "run-secret end": ["ann"],
    "hook run": ["pre-commit"],
    "git push": ["job", "origin", "main"],
    "identity list": [],
}
# These ask no store, or say what it says to programs only.
NOTHING_FOREIGN = {
    *("config show", "config contexts", "config use", "config get", "config set", "config unset", "logout"),
    "login",  # tests/cli/test_login.py has a server that lies
    "demo",
    "simulate",
    "verify",
    "serve",
    "completion",
    "migrate",
    "mcp",
    "skill show",
    "skill install",
    "hook install",
    "hook status",
    "hook uninstall",
    "trust",
    "agent install",
    "agent uninstall",
    "agent status",
    "token show",  # what it prints is this user's own
    "identity check",  # tests/plugins/oidc has hostile tokens
    "agent hook",  # tests/plugins/harness has its own test of hostile owners
}


# What these say with --tokens comes from a tokens file, whose name and lines somebody else may have written.
TOKEN_WORDS: dict[str, list[str]] = {
    "token create": ["ann", "--tokens"],
    "token list": ["--tokens"],
    "token revoke": ["ann", "--tokens"],
    "token import": ["--tokens"],
}
TOKEN_LINES = {
    "good lines": "ann:tok-ann:admin\nbob:tok-bob\n",
    "a hostile name": f"{KEPT}:tok\n",
    "a hostile token": f"ann:{KEPT}\n",
    "a hostile hash": f"ann:sha256={KEPT}\n",
    "a hostile role": f"ann:tok:{KEPT}\n",
    "a hostile namespace": f"ann:tok:agent:{KEPT}\n",
    "a hostile end": f"ann:tok:agent::{KEPT}\n",
    "a hostile remark": f"# {KEPT}\nann:tok\n",
    "nothing": "",
}


def spoiled(value: Any, spare: set[str], key: str = "") -> Any:
    """The same document with hostile text in every field but those to spare."""
    if isinstance(value, dict):
        return {name: spoiled(each, spare, name) for name, each in value.items()}
    if isinstance(value, list):
        return [spoiled(each, spare, key) for each in value]
    return f"{value}{BAD}" if isinstance(value, str) and key not in spare else value


class Liar:
    """A transport whose replies pass through `tell`."""

    def __init__(self, transport: Any, tell: Tell) -> None:
        self._transport = transport
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._transport, name, None)

        def call(*args: Any) -> Any:
            said = real(*args) if real is not None else Reply(status=200, body={"runs": [], "secret": "s"})
            return self._tell(said) if isinstance(said, Reply) else said

        return call


def refusing(reply: Reply) -> Reply:
    body = {"error": BAD, "code": "conflict", "details": f"Broken: {BAD}", "cycle": [BAD, BAD], "ended": BAD}
    return Reply(status=409, body=body)


def deadlocked(reply: Reply) -> Reply:
    return Reply(status=409, body={"error": BAD, "code": "deadlock", "details": BAD, "cycle": [BAD, BAD]})


LIES: dict[str, Tell] = {
    "hostile text in every field": lambda reply: Reply(status=reply.status, body=spoiled(reply.body, STRUCTURE)),
    "everything hostile": lambda reply: Reply(status=reply.status, body=spoiled(reply.body, set())),
    "an error": refusing,
    "a deadlock": deadlocked,
}


@pytest.fixture
def filled(terminal: Terminal) -> Terminal:
    """A store with something of every kind in it."""
    job = terminal.claim("job", "--owner", f"bob{KEPT}", "--metadata", KEPT, "--max-attempts", "3")
    terminal("heartbeat", "job", "--lease", job, "--checkpoint", KEPT)
    terminal.claim("broken", "--owner", "bob")
    terminal("break", "broken", "--reason", KEPT)
    session = terminal.session("--owner", f"bob{KEPT}", "--metadata", KEPT)
    terminal.claim("in-session", "--session", session)
    terminal("release", "other", "--lease", terminal.claim("other"), "--done=1h", "--result", KEPT)
    return terminal


def check(text: str) -> None:
    assert "\x1b[8m" not in text
    ours = re.sub(r"\x1b\[(?:[0-9;]*m|K)|\r", "", text)
    assert [each for each in ours if not each.isprintable() and each not in "\n\t"] == [], ascii(text)
    assert [line for line in ours.splitlines() if line.startswith(FAKE)] == [], ascii(text)


def test_every_command_is_tried() -> None:
    assert set(shipped_names()) == {*WORDS, *TOKEN_WORDS, *NOTHING_FOREIGN}


@pytest.mark.parametrize("name", WORDS)
def test_no_command_lets_a_store_act_on_the_terminal(
    filled: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"USER": "ann", "HOME": str(tmp_path), "TERM": "xterm"}
    for tell, flag in itertools.product(LIES.values(), ["", "--json", "--quiet"]):

        def opener(settings: Settings, tell: Tell = tell) -> Any:
            return Liar(filled._open(settings), tell)

        out, err = Screen(), Screen()
        argv = [*name.split(), *([flag] if flag else []), *WORDS[name]]
        run(argv, env, out, err, io.BytesIO(), opener)
        check(err.getvalue())
        check(out.getvalue())
        if flag == "--json":
            for line in out.getvalue().splitlines():
                assert line.isascii()
                json.loads(line)


COPIES = {
    "no copy": KEPT,
    "a hostile kind": json.dumps({"dibs": KEPT, "version": KEPT}),
    "hostile counts": json.dumps({"dibs": "export", "version": 1, "store": KEPT, "made_ms": KEPT, KEPT: KEPT}),
    "nothing": "",
}


@pytest.mark.parametrize("name", ["import", "restore", "backup", "export"])
@pytest.mark.parametrize("copy", COPIES)
def test_neither_does_a_copy_of_a_store(terminal: Terminal, tmp_path: Path, name: str, copy: str) -> None:
    path = tmp_path / f"co{KEPT}py".replace("\x00", "")
    path.write_text(COPIES[copy])
    words = {
        "import": ["--from", str(path)],
        "restore": [str(path), "--url", f"sqlite:{tmp_path}/store.db"],
        "backup": [str(path)],
        "export": ["--to", str(path)],
    }
    for flag in ("", "--json", "--quiet"):
        out, err = Screen(), Screen()
        argv = [name, *([flag] if flag else []), *words[name]]
        assert run(argv, {"TERM": "xterm"}, out, err, io.BytesIO(), terminal._open) != 0
        check(out.getvalue())
        check(err.getvalue())


@pytest.mark.parametrize("name", TOKEN_WORDS)
@pytest.mark.parametrize("lines", TOKEN_LINES)
@pytest.mark.parametrize("is_there", [True, False])
def test_neither_does_a_tokens_file(terminal: Terminal, tmp_path: Path, name: str, lines: str, is_there: bool) -> None:
    path = tmp_path / f"to{KEPT}kens".replace("\x00", "")
    for flag, who in itertools.product(["", "--json", "--quiet"], [None, f"{KEPT}", "ann"]):
        if is_there:
            path.touch(mode=0o600)
            path.write_text(TOKEN_LINES[lines])
        words = [*TOKEN_WORDS[name], str(path)]
        if words[0] == "ann" and who is not None:
            words[0] = who
        out, err = Screen(), Screen()
        run([*name.split(), *([flag] if flag else []), *words], {"TERM": "xterm"}, out, err, io.BytesIO())
        check(out.getvalue())
        check(err.getvalue())
        assert out.getvalue() or err.getvalue() or flag
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ["rlock", "runlock", "rlock-heartbeat"])
def test_neither_do_the_commands_of_action_llama(filled: Terminal, name: str, lie: str) -> None:
    def opener(settings: Settings) -> Any:
        return Liar(filled._open(settings), LIES[lie])

    out = io.StringIO()
    rlock.run(name, ["job"], {"USER": "ann", "DIBS_SESSION": ID}, out, opener)
    check(out.getvalue())
    assert out.getvalue().isascii()
    json.loads(out.getvalue())


def test_colours_are_ours_alone() -> None:
    paint = Paint(True)
    assert paint.shown(paint.good(f"yes{BAD}"))[:9] == "\x1b[32myes\\"
    check(paint.shown(paint.good("yes\x1b[8mno")))
    check(paint.shown("\x1b[31mred\x1b[0m"))


def test_a_log_line_is_harmless() -> None:
    record = logging.LogRecord("dibs", 30, "", 0, "it failed: %s", (BAD.replace("\n", " "),), None)
    check(log_lines("%(message)s").format(record))


@pytest.mark.fault("F-109")
def test_a_command_to_paste_takes_no_name_for_a_flag() -> None:
    terminal = Terminal()
    name = "--url=http://127.0.0.1:9"
    lease = terminal.claim(name, "--max-attempts", "1")
    told = terminal("release", "--lease", lease, "--failed", "--", name).out
    told += terminal("owner", "--", name).out
    assert told.count("dibs free -- --url") == 2
