"""A store that a newer dibs has written, and the commands of the page about upgrades."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.client.settings import connect_as
from dibs.stores.codec import FORMAT
from dibs.stores.sqlite.backup import sole_use

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal


@pytest.fixture
def outside(terminal: Terminal, tmp_path: Path) -> Terminal:
    terminal._open = connect_as  # type: ignore[method-assign, assignment]
    terminal.env["XDG_STATE_HOME"] = str(tmp_path)
    return terminal


def claimed(terminal: Terminal, url: str, job: str = "idle") -> int:
    ran = terminal("claim", job, "--url", url, "--json")
    assert ran.exit == 0, ran.err
    return int(json.loads(ran.out)["data"]["fencing_token"])


def test_a_file_of_a_newer_version_is_refused_and_the_way_back_is_a_backup(outside: Terminal, tmp_path: Path) -> None:
    path, backup = tmp_path / "dibs.db", tmp_path / "backup.db"
    url = f"sqlite://{path}"
    assert claimed(outside, url) == 1
    assert outside("backup", str(backup), "--url", url).exit == 0
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    db.close()
    for command in (("claim", "job"), ("doctor",), ("migrate", url)):
        ran = outside(*command, *(() if command[0] == "migrate" else ("--url", url)))
        assert ran.exit == 69, (command, ran.out)
        assert "newer dibs" in ran.out + ran.err, command
    assert outside("restore", str(backup), "--url", url).exit == 0
    assert [*tmp_path.glob("dibs.db.replaced-*")], "the newer file is kept"
    assert claimed(outside, url, "another") > 1


@pytest.mark.fault("F-422")
@pytest.mark.parametrize("old", ["there", "lost"])
def test_a_restore_says_which_tokens_came_back(outside: Terminal, tmp_path: Path, old: str) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    url = ("--url", f"sqlite:{path}")
    assert outside("claim", "job", *url).exit == 0
    ids = {}
    for name in ("ann", "bob", "carl", "dora", "eve"):
        ids[name] = outside("token", "create", name, *url, "--json").data["id"]
    assert outside("backup", str(copy), *url).exit == 0
    assert outside("token", "revoke", "ann", *url).exit == 0
    if old == "lost":
        path.unlink()
    ran = outside("restore", str(copy), *url)
    assert ran.exit == 0
    last = ran.out.splitlines()[-1]
    if old == "there":
        assert last.startswith("The old file is kept as")
        return
    named = ", ".join(f"{name} ({ids[name]})" for name in ("ann", "bob", "carl"))
    assert last == (
        f"Valid again: bearer tokens that may have been revoked since the backup: {named} and 2 others. "
        "Look at `dibs token list`."
    )


@pytest.mark.fault("F-739")
def test_a_restore_says_what_of_the_backup_cannot_be_read(outside: Terminal, tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    url = ("--url", f"sqlite:{path}")
    assert outside("claim", "job", *url).exit == 0
    assert outside("backup", str(copy), *url).exit == 0
    with closing(sqlite3.connect(copy)) as db:
        db.execute("UPDATE records SET body = '{' WHERE key = 'lock/default/job'")
        db.commit()
    ran = outside("restore", str(copy), *url)
    assert ran.exit == 0
    assert "1 record(s) cannot be read, and are damaged in the store: lock/default/job. See `dibs doctor`." in ran.out


def test_a_store_in_the_place_of_a_backup_is_named_with_the_right_order(outside: Terminal, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    said = outside("restore", store, str(tmp_path / "copy.db")).err
    assert f"{store} is a store, not a backup. Name the file: dibs restore FILE --url {store}" in said


@pytest.mark.fault("F-738")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_restore_over_a_store_of_another_user_says_whose_it_is() -> None:
    """In a folder that everybody may write to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        path.touch(0o600)
        path.parent.chmod(0o777)
        os.seteuid(65534)
        try:
            with pytest.raises(StoreUnavailable) as told, sole_use(str(path)):
                pass
        finally:
            os.seteuid(0)
    assert told.value.details == (
        f"{path} belongs to another user, who may be using it. Restore as that user. Nothing was changed."
    )


@pytest.mark.e2e
@pytest.mark.fault("F-736")
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_copy_that_is_stopped_leaves_no_part_of_it(outside: Terminal, command: str, tmp_path: Path) -> None:
    """As `timeout` and a shutdown stop it."""
    path, made = tmp_path / "store.db", tmp_path / "made.db"
    url = ("--url", f"sqlite://{path}")
    assert outside("claim", "job", *url).exit == 0
    assert outside("backup", str(made), *url).exit == 0
    step = "copy" if command == "backup" else "sync"
    stops = f"import os, signal; from dibs.stores.sqlite import backup; backup.{step} = "
    stops += (
        "lambda *a: os.kill(os.getpid(), signal.SIGTERM); import runpy; runpy.run_module('dibs', run_name='__main__')"
    )
    words = ["backup", str(tmp_path / "new.db")] if command == "backup" else ["restore", str(made)]
    before = {each.name for each in tmp_path.iterdir()}
    ended = subprocess.run([sys.executable, "-c", stops, *words, *url], check=False, capture_output=True, timeout=60)
    assert ended.returncode == 128 + signal.SIGTERM, ended
    is_now = f"there is no {tmp_path}/new.db" if command == "backup" else f"{path} is as it was"
    assert f"dibs: The {command} was stopped: {is_now}." in ended.stderr.decode()
    assert {each.name for each in tmp_path.iterdir()} - {"store.db-wal", "store.db-shm"} == before
