"""Check first: a command with one bad word is refused as a whole, and has changed nothing in the store.

Every command stands in a line that would act. Each of its flags and arguments is then given a word that cannot be, as
the last one, and what the store holds is compared with before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.cli.framework.registry import load, shipped_names
from dibs.cli.framework.spec import ANY, MANY, REST, Command
from dibs.wire import codes
from tests.cli.conftest import Terminal

if TYPE_CHECKING:
    from pathlib import Path

ANN = ("--actor", "ann")
LONG = "x" * 5_000
# A line for each command that would do something: `ann` holds `a` and `b`, `c` is free, `parked` is parked.
LINES: dict[str, tuple[str, ...]] = {
    "run": ("c",),
    "elect": ("cron",),
    "claim": ("c", *ANN),
    "claim-any": ("c", "d", *ANN),
    "claim-all": ("c", "d", *ANN),
    "heartbeat": ("a", "b", *ANN),
    "once": ("a", "tag", *ANN),
    "next": ("c",),
    "release": ("a", "b", *ANN),
    "transfer": ("a", "--to", "bob", *ANN),
    "wait": ("c", *ANN),
    "hold": ("c",),
    "session run": (),
    "session open": (),
    "session keep": ("{session}",),
    "session end": ("{session}",),
    "session show": ("{session}",),
    "owner": ("a", "b"),
    "overdue": ("a", "b"),
    "break": ("a", "b", "--reason", "stuck"),
    "free": ("parked", "a"),
    "close": ("a", "c", "--reason", "migration", "--for", "1h"),
    "open": ("closed", "a"),
    "pool set": ("c", "d", "--slots", "2"),
    "pool remove": ("pool", "c"),
    "backup": ("{folder}/copy.db",),
    "restore": ("{folder}/copy.db",),
    "name": ("a",),
    "webhook add": ("https://hooks.example.com/x", "--unsigned"),
    "webhook show": ("{session}",),
    "webhook remove": ("{session}",),
    "webhook replay": ("{session}",),
    "webhook test": ("{session}",),
    "config use": ("prod",),
    "config get": ("url",),
    "config set": ("owner", "ann"),
    "config unset": ("owner",),
    "completion": ("bash",),
    "login": ("http://127.0.0.1:9",),
    "token create": ("bob", "--role", "agent"),
    "token rotate": ("ci",),
    "token revoke": ("ci",),
    "token limit": ("ci", "--max-held", "3"),
    "hook run": ("pre-push",),
    "lock acquire": ("c", *ANN),
    "lock renew": ("locked", *ANN),
    "lock release": ("locked", *ANN),
    "lock status": ("locked",),
    "run-secret end": ("bob",),
    "identity check": ("{folder}/identity.toml",),
}
WRONG = {
    "TIME": ("1w", "", "-1s", "999999999d", "tomorrow"),
    "N": ("x", "", "-1", "1.5", "99999999999999"),
    "PID": ("x", "-1"),
    "N/s": ("x",),
    "CODES": ("x",),
    "TEXT": (LONG,),
}
# Commands that only look, or that work on something other than the store, are tried with what no command takes.
ACTING = (
    "run elect claim claim-any claim-all heartbeat release transfer hold session break free close open pool webhook"
    " lock token"
).split()


# Every number is one of an event; a hook never fails its agent.
TAKEN = {("webhook replay", "--after=99999999999999")}
NEVER_FAILS = ("agent hook",)


def bad_words(name: str, command: Command) -> list[tuple[str, ...]]:
    """What may be appended to a good line to make it a bad one."""
    found: list[tuple[str, ...]] = [("--nonsense",), ("--json=yes",)]
    for option in command.options if name.split(" ")[0] in ACTING else ():
        for word in WRONG.get(option.value or "", ()):
            found.append((f"{option.flag}={word}",))
        if option.choices:
            found.append((f"{option.flag}=nonsense",))
        if option.value is None:
            found.append((f"{option.flag}=yes",))
        elif option.bare is None:
            found.append((option.flag,))
    last = command.arguments[-1] if command.arguments else None
    if last is not None and last.takes in (MANY, ANY) and last.name in ("JOB", "NAME"):
        found += [("a\nb",), ("",), ("n" * 600,)]
    elif last is None or last.takes not in (MANY, ANY, REST):
        found.append(("one", "too", "many"))
    return found


def dump(terminal: Terminal) -> object:
    return dict(terminal.store.scan("")), terminal.store.events(0, 9_999)


@pytest.fixture
def filled(tmp_path: Path) -> Terminal:
    terminal = Terminal()
    terminal.env |= {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    for words in (
        ("claim-all", "a", "b", *ANN),
        ("lock", "acquire", "locked", *ANN),
        ("pool", "set", "pool", "--slots", "2"),
        ("close", "closed", "--for", "1h", "--reason", "x"),
        ("token", "create", "ci", "--role", "agent"),
        ("claim", "parked", "--max-attempts", "1", "--session", terminal.session()),
        ("break", "parked", "--reason", "stuck"),
    ):
        assert terminal(*words).exit == 0, words
    terminal.env["SESSION"] = terminal.session()
    terminal.wait(2)  # so that a renewal shows
    return terminal


def test_every_command_with_arguments_has_its_line() -> None:
    needed = {
        name for name in shipped_names() if any(each.takes not in ("maybe", ANY, REST) for each in load(name).arguments)
    }
    assert needed - set(LINES) == set()


@pytest.mark.fault("F-331")
@pytest.mark.parametrize("name", shipped_names())
def test_a_command_with_a_bad_last_word_changes_nothing(filled: Terminal, tmp_path: Path, name: str) -> None:
    command = load(name)
    facts = {"session": filled.env["SESSION"], "folder": str(tmp_path)}
    words = [word.format(**facts) for word in LINES.get(name, ())]
    before = dump(filled)
    program = ["--", "true"] if command.arguments and command.arguments[-1].takes == REST else []
    wrong = []
    for bad in [each for each in bad_words(name, command) if (name, each[0]) not in TAKEN]:
        ran = filled(*name.split(" "), *words, *bad, *program)
        is_refused = ran.exit in (codes.USAGE, command.usage_exit) or name in NEVER_FAILS
        if not is_refused or dump(filled) != before:
            wrong.append((bad[0][:40], ran.exit, dump(filled) != before, ran.err[:100]))
            before = dump(filled)
    assert not wrong, "\n".join(map(str, wrong))
