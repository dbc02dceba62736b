"""A store of each earlier format, upgraded and restored by the commands of the page about upgrades."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.cli.framework.context import open_door
from dibs.stores.sqlite import driver as fileformat

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

FORMATS = Path(__file__).parents[1] / "stores" / "formats"
LAST_TOKEN = 4  # of the job `idle` in these files


@pytest.fixture(params=range(1, fileformat.VERSION))
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file that a process of an earlier version left."""
    path = tmp_path / "old.db"
    db = sqlite3.connect(path)
    db.executescript((FORMATS / f"version-{request.param}.sql").read_text(encoding="utf-8"))
    db.close()
    path.chmod(0o600)
    return path


@pytest.fixture
def outside(terminal: Terminal, tmp_path: Path) -> Terminal:
    terminal._open = open_door  # type: ignore[method-assign, assignment]
    terminal.env["XDG_STATE_HOME"] = str(tmp_path)
    return terminal


def claimed(terminal: Terminal, url: str, job: str = "idle") -> int:
    ran = terminal("claim", job, "--url", url, "--json")
    assert ran.exit == 0, ran.err
    return int(json.loads(ran.out)["data"]["fencing_token"])


@pytest.mark.promise("token:rises")
def test_an_old_file_is_brought_up_to_date_and_its_tokens_rise(outside: Terminal, old: Path) -> None:
    url = f"sqlite://{old}"
    moved = outside("migrate", url, "--json").data
    assert moved["was"] < moved["version"] == fileformat.VERSION
    assert "already" in outside("migrate", url).out
    assert f"schema {fileformat.VERSION}" in outside("doctor", url).out
    assert claimed(outside, url) == LAST_TOKEN + 1


@pytest.mark.promise("token:rises")
def test_a_backup_in_an_old_format_is_restored_and_tokens_rise_beyond_those_given_since(
    outside: Terminal, old: Path, tmp_path: Path
) -> None:
    backup, url = tmp_path / "backup.db", f"sqlite://{old}"
    backup.write_bytes(old.read_bytes())
    since = claimed(outside, url)
    ran = outside("restore", str(backup), "--url", url)
    assert ran.exit == 0, ran.err
    assert claimed(outside, url) > since


def test_a_file_of_a_newer_version_is_refused_and_the_way_back_is_a_backup(
    outside: Terminal, tmp_path: Path
) -> None:
    path, backup = tmp_path / "dibs.db", tmp_path / "backup.db"
    url = f"sqlite://{path}"
    assert claimed(outside, url) == 1
    assert outside("backup", str(backup), "--url", url).exit == 0
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {fileformat.VERSION + 1}")
    db.close()
    for command in (("claim", "job"), ("doctor",), ("migrate", url)):
        ran = outside(*command, *(() if command[0] == "migrate" else ("--url", url)))
        assert ran.exit == 69, (command, ran.out)
        assert "newer dibs" in ran.out + ran.err, command
    assert outside("restore", str(backup), "--url", url).exit == 0
    assert [*tmp_path.glob("dibs.db.replaced-*")], "the newer file is kept"
    assert claimed(outside, url, "another") > 1
