"""export, import: as typed, and with real pipes, kills and full disks."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.cli.main import run
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask
from dibs.core.commands import Freeze
from dibs.engine.coordinator import Coordinator, run_one
from tests.cli.conftest import Screen
from tests.programs import WAIT_S_MAX, environment_without_dibs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Ran, Terminal

pytestmark = pytest.mark.full


def dibs(*words: str, home: Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    env = {
        **environment_without_dibs(),
        "XDG_STATE_HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "HOME": str(home),
    }
    return subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        input=stdin,
        capture_output=True,
        env=env,
        timeout=WAIT_S_MAX,
        check=False,
    )


SESSION = "df5857f9-d9e5-b365-6232-094043c5c5bc"  # of nobody


def archive_of(terminal: Terminal, *words: str) -> bytes:
    ran = terminal("export", *words)
    assert ran.exit == 0, ran.err
    return ran.out.encode()


def refused(ran: Ran, *, exit_code: int = 64) -> str:
    assert ran.exit == exit_code
    assert ran.out == ""
    assert ran.err.startswith("dibs: ")
    return ran.err


def test_a_store_is_exported_and_what_is_in_it_is_said(terminal: Terminal) -> None:
    terminal.claim("issue-1842")
    ran = terminal("export")
    assert "wrote 1 job, 0 sessions, 0 places in line and 1 event" in ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert lines[0]["dibs_archive"] == 10
    assert lines[1]["key"] == "lock/default/issue-1842"
    assert lines[-1]["end"]["records"] == len(lines) - 3
    assert terminal("export", "-q").err == ""


@pytest.mark.parametrize(
    "words", [("export",), ("export", "--freeze"), ("export", "--unfreeze"), ("backup", "copy.db")]
)
def test_a_store_that_is_not_there_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = dibs(*words, "--url", "sqlite:mistyped.db", home=tmp_path)
    assert ran.returncode == 64
    assert b"There is no store at " in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_is_shown_no_copy_unless_it_is_asked_for(terminal: Terminal) -> None:
    terminal.claim("job")
    for words, code in ((("export",), 64), (("export", "--to", "-"), 0)):
        screen = Screen()
        assert run(words, terminal.env, screen, None, None, terminal._open) == code
        assert ("lease_id" in screen.getvalue()) == (code == 0)


def test_nothing_to_import_is_reported(terminal: Terminal) -> None:
    assert "There is nothing to import: the input is empty." in refused(terminal("import"))


def test_doctor_says_that_a_store_is_frozen_and_how_that_ends(terminal: Terminal) -> None:
    terminal("export", "--freeze")
    ran = terminal("doctor")
    assert ran.exit == 69
    assert "BAD  frozen     dibs export froze it" in ran.out
    assert "run: dibs export --unfreeze" in ran.out
    terminal("export", "--unfreeze")
    assert "frozen" not in terminal("doctor").out


def test_nothing_is_claimed_in_a_store_that_was_exported_with_freeze_until_it_is_unfrozen(
    terminal: Terminal,
) -> None:
    archive_of(terminal, "--freeze")
    said = refused(terminal("claim", "issue-1842"), exit_code=69)
    assert "being moved" in said
    assert terminal("export", "--unfreeze").out == "The store can be used again.\n"
    assert terminal("export", "--unfreeze").out == "The store was not frozen.\n"
    terminal.claim("issue-1842")


@pytest.mark.fault("F-737")
def test_a_list_of_a_frozen_store_has_what_its_owners_have(terminal: Terminal) -> None:
    """Nothing in it expires."""
    terminal.claim("issue-1842", "--ttl", "10s")
    terminal("export", "--freeze")
    terminal.wait(60)
    assert "has issue-1842" in terminal("owner", "issue-1842").out
    assert [each["name"] for each in terminal("list", "--json").data["locks"]] == ["issue-1842"]


def test_an_import_into_a_store_that_is_not_empty_changes_nothing(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1842")
    copy = archive_of(terminal)
    said = refused(terminal("import", stdin=copy))
    assert "not empty" in said
    assert "a namespace that the store has as well: default" in refused(terminal("import", "--add", stdin=copy))
    assert terminal("heartbeat", "issue-1842", "--lease", lease).exit == 0


@pytest.mark.parametrize("more", [("--freeze",), ("--to", "copy.jsonl")], ids=str)
def test_a_store_is_unfrozen_without_a_copy(terminal: Terminal, more: tuple[str, ...]) -> None:
    terminal("export", "--freeze")
    assert "--unfreeze makes no copy" in refused(terminal("export", "--unfreeze", *more))
    refused(terminal("claim", "issue-1842"), exit_code=69)


@pytest.mark.fault("F-338")
def test_a_move_that_fails_says_how_to_unfreeze_the_store(terminal: Terminal, tmp_path: Path) -> None:
    terminal.claim("issue-1842")
    copy = archive_of(terminal, "--freeze")
    assert "`dibs export --unfreeze` lets its store be used again" in refused(terminal("import", stdin=copy))
    old = f"sqlite:{tmp_path}/old store.db"
    assert dibs("claim", "a", "--url", old, home=tmp_path).returncode == 0
    told = dibs("export", "--freeze", "--url", old, home=tmp_path).stderr.decode()
    assert f"dibs export --unfreeze --url '{old}'" in told
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "dibs", "export", "--freeze", "--url", old]
        env = {**environment_without_dibs(), "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, env=env, timeout=WAIT_S_MAX, check=False, text=True
        )
    assert done.returncode == 69
    assert f"dibs export --unfreeze --url '{old}'" in done.stderr


@pytest.mark.fault("F-374")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_move_that_is_interrupted_says_how_to_unfreeze_the_store(tmp_path: Path, number: int) -> None:
    old = f"sqlite:{tmp_path}/old.db"
    jobs = [f"job-{index}" for index in range(16)]
    assert dibs("claim-all", *jobs, "--metadata", "m" * 1000, "--url", old, home=tmp_path).returncode == 0
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # it does not take all
    words = [sys.executable, "-m", "dibs", "export", "--freeze", "--url", old]
    env = {**environment_without_dibs(), "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(words, stdout=writing, stderr=subprocess.PIPE, env=env, text=True) as child:
        os.close(writing)
        assert os.read(reading, 1) == b"{"
        child.send_signal(number)
        _, told = child.communicate(timeout=WAIT_S_MAX)
    os.close(reading)
    assert child.returncode == 128 + number
    assert f"The store is frozen; to use it again: dibs export --unfreeze --url {old}" in told


def test_an_import_says_what_came_in(terminal: Terminal, tmp_path: Path) -> None:
    terminal.claim("issue-1842")
    copy = tmp_path / "claims.jsonl"
    assert terminal("export", "--freeze", "--to", str(copy)).exit == 0
    assert copy.stat().st_mode & 0o777 == 0o600
    assert "is there already" in refused(terminal("export", "--to", str(copy)))
    done = dibs("import", f"sqlite:{tmp_path}/new.db", "--from", str(copy), "--json", home=tmp_path)
    assert json.loads(done.stdout)["data"]["records"] == 1
    again = dibs("owner", "issue-1842", "--url", f"sqlite:{tmp_path}/new.db", home=tmp_path)
    assert b"ann" in again.stdout


@pytest.mark.fault("F-751")
def test_an_import_into_a_new_store_says_so_and_does_not_ask_whether_another_was_meant(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.claim("issue-1842")
    copy = tmp_path / "claims.jsonl"
    assert terminal("export", "--to", str(copy)).exit == 0
    url = f"sqlite:{tmp_path}/new.db"
    done = dibs("import", url, "--from", str(copy), home=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"Imported 1 record into a new store, {tmp_path}/new.db." in done.stdout.decode()
    again = dibs("import", url, "--from", str(copy), home=tmp_path)
    assert b"The store is not empty. Import into an empty one, or with --add" in again.stderr


@pytest.mark.fault("F-744")
def test_an_export_that_fails_says_whether_the_store_is_frozen(terminal: Terminal, tmp_path: Path) -> None:
    copy = tmp_path / "claims.jsonl"
    copy.touch()
    assert "The store is not frozen." in refused(terminal("export", "--freeze", "--to", str(copy)))
    assert terminal("export", "--freeze", "--to", str(tmp_path / "new.jsonl")).exit == 0
    said = refused(terminal("export", "--freeze", "--to", str(copy)))
    assert "The store is frozen; to use it again: dibs export --unfreeze" in said


def test_a_server_is_not_exported_through(terminal: Terminal, tmp_path: Path) -> None:
    ran = dibs("export", "http://127.0.0.1:9", home=tmp_path)
    assert ran.returncode == 64
    assert b"works on a store" in ran.stderr


@pytest.mark.promise("move:whole")
def test_a_pipe_moves_a_store_and_a_cut_pipe_moves_nothing(terminal: Terminal, tmp_path: Path) -> None:
    for number in range(30):
        terminal.claim(f"issue-{number}")
    copy = archive_of(terminal)
    url = f"sqlite:{tmp_path}/new.db"
    cut = dibs("import", url, home=tmp_path, stdin=copy[: len(copy) // 2])
    assert (cut.returncode, b"cut off" in cut.stderr or b"not JSON" in cut.stderr) == (64, True)
    done = dibs("import", url, home=tmp_path, stdin=copy)
    assert done.returncode == 0, done.stderr
    assert dibs("list", "--url", url, home=tmp_path).stdout.count(b"issue-") == 30


def test_a_new_file_that_the_shell_made_is_for_its_owner_alone(terminal: Terminal, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/old.db"
    dibs("claim", "issue-1842", "--url", url, home=tmp_path)
    with open(tmp_path / "claims.jsonl", "wb") as out:
        os.fchmod(out.fileno(), 0o644)
        subprocess.run([sys.executable, "-m", "dibs", "export", url], stdout=out, timeout=WAIT_S_MAX, check=True)
    assert (tmp_path / "claims.jsonl").stat().st_mode & 0o777 == 0o600


def test_an_export_to_a_full_disk_fails(terminal: Terminal, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/old.db"
    dibs("claim", "issue-1842", "--url", url, home=tmp_path)
    with open("/dev/full", "wb") as out:
        ran = subprocess.run(
            [sys.executable, "-m", "dibs", "export", url],
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=WAIT_S_MAX,
            check=False,
        )
    assert ran.returncode == 69
    assert b"not complete" in ran.stderr


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-743")
@pytest.mark.fault("F-746")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_an_import_that_is_killed_leaves_a_store_that_says_so_and_the_same_import_completes_it(
    terminal: Terminal, tmp_path: Path, signal_number: int
) -> None:
    for number in range(40):
        terminal.claim(f"issue-{number}")
    copy = tmp_path / "claims.jsonl"
    copy.write_bytes(archive_of(terminal))
    url = f"sqlite:{tmp_path}/new.db"
    program = (
        "import os, sys\n"
        "from dibs.engine import archive_import\n"
        "from dibs.stores.sqlite import SqliteStore\n"
        "archive_import.PART_RECORDS = 5\n"
        "real, count = SqliteStore.commit, [0]\n"
        "def commit(*given):\n"
        "    count[0] += 1\n"
        f"    if count[0] == 5: os.kill(os.getpid(), {int(signal_number)})\n"
        "    return real(*given)\n"
        "SqliteStore.commit = commit\n"
        "from dibs.cli.main import entry\n"
        "sys.argv[0] = 'dibs'\n"
        "sys.exit(entry())\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, "import", url, "--from", str(copy)],
        capture_output=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert killed.returncode in (-signal.SIGKILL, 130), killed.stderr
    refused = dibs("claim", "issue-1", "--url", url, home=tmp_path)
    assert refused.returncode == 69
    assert b"is not complete" in refused.stderr
    # What is not there yet looks free, and as if it had never run.
    for words in (
        ("list",),
        ("owner", "issue-1"),
        ("agents",),
        ("history", "issue-1"),
        ("overdue", "issue-1"),
        ("session", "show", SESSION),
    ):
        looked = dibs(*words, "--url", url, home=tmp_path)
        assert looked.returncode == 69, looked
        assert b"is not complete" in looked.stderr
    assert dibs("export", "--unfreeze", url, home=tmp_path).returncode == 64
    assert dibs("export", url, home=tmp_path).returncode == 64
    done = dibs("import", url, "--from", str(copy), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert dibs("list", "--url", url, home=tmp_path).stdout.count(b"issue-") == 40


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-768")
def test_no_list_is_shown_and_nothing_is_unknown_while_an_import_is_not_complete(terminal: Terminal) -> None:
    run_one(terminal.store, Freeze(id="import", incomplete=True))
    for words in (
        ("session", "list"),
        ("run-secret", "list"),
        ("run-secret", "end", "dev-7"),
        ("token", "list"),
        ("token", "revoke", "ghost"),
        ("token", "rotate", "ghost"),
        ("webhook", "list"),
        ("webhook", "remove", SESSION),
    ):
        looked = terminal(*words)
        assert (words, looked.exit) == (words, 69)
        assert "is not complete" in looked.err
    transport = EmbeddedTransport(lambda: Coordinator(terminal.store))
    assert transport.ask(Ask("events", "", {"after": 12, "limit": 9})).status == 503


@pytest.mark.fault("F-696")
@pytest.mark.parametrize(
    "content", [b"", b"nonsense\n", b'{"dibs_archive": 10, "at_ms": 1}\n', b"SQLite format 3\0" + b"x" * 90]
)
def test_an_import_that_is_refused_leaves_no_store_where_there_was_none(tmp_path: Path, content: bytes) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(content)
    for words in (("--from", str(copy)), ("--from", str(tmp_path / "missing"))):
        ran = dibs("import", "--url", f"sqlite:{tmp_path}/new/dibs.db", *words, home=tmp_path / "home")
        assert ran.returncode == 64, ran.stderr
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_place_of_the_store_is_said_to_be_one(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "octostore.db").write_text("x")
    assert "--from" in refused(terminal("import", str(tmp_path / "octostore.db")))
