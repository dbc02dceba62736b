"""A store that a newer dibs has written, and the commands of the page about upgrades."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.client.settings import connect_as
from dibs.stores.codec import FORMAT

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
