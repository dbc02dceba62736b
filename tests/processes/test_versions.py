"""Stores of this version under the code of the last release, and the other way round."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs import __version__
from dibs.base.ids import new_token
from dibs.stores.codec import FORMAT
from dibs.stores.etcd.transaction import end_of
from dibs.stores.formats import FORMATS, KINDS, table
from tests.releases import code_of, last_release
from tests.stores.git.harness import git

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.etcd import Cluster
    from tests.postgres import Schema

ROOT = Path(__file__).parents[2]
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
REFUSED = 69
JOB = "issue-1"


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.exit = done.returncode
        self.said = " ".join((done.stdout + done.stderr).split())
        self.out = done.stdout


class Versions:
    """`new` and `old` run a command with the code of this version, and of the last release."""

    def __init__(self, old: Path, home: Path) -> None:
        self._old = old
        self._home = home

    def new(self, *words: str) -> Ran:
        return self._run(ROOT / "src", words)

    def old(self, *words: str) -> Ran:
        return self._run(self._old, words)

    def _run(self, source: Path, words: tuple[str, ...]) -> Ran:
        env = {"PATH": os.environ["PATH"], "HOME": str(self._home), "PYTHONPATH": str(source), "DIBS_OWNER": "w"}
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "dibs", *words],
            env=env,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done)

    def owners(self, run: Callable[..., Ran], url: str) -> dict[str, str]:
        listed = run("list", "--json", "--url", url)
        assert listed.exit == 0, listed.said
        return {each["name"]: each["owner"] for each in json.loads(listed.out)["data"]["locks"]}


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return code_of(last_release(), tmp_path_factory.mktemp("release"))


@pytest.fixture
def versions(old_code: Path, tmp_path: Path) -> Versions:
    return Versions(old_code, tmp_path)


def contents(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    try:
        return [*db.iterdump(), str(db.execute("PRAGMA user_version").fetchone())]
    finally:
        db.close()


def test_each_format_has_a_number_of_its_own_and_the_newest_is_that_of_all() -> None:
    rows = [(row.kind, row.number) for row in FORMATS]
    assert len(rows) == len(set(rows))
    for kind in KINDS:
        assert max(number for of, number in rows if of == kind) == FORMAT


def test_the_page_about_upgrades_has_the_table_of_formats() -> None:
    page = ROOT / "docs" / "how-to" / "upgrade.md"
    text, made = page.read_text(encoding="utf-8"), "\n".join(table())
    if REWRITE:
        text = re.sub(r"\| kind \| format \|.*\n(\|.*\n)*", made + "\n", text)
        page.write_text(text, encoding="utf-8")
    assert f"\n{made}\n" in text


def test_the_code_of_the_last_release_is_another(versions: Versions) -> None:
    assert versions.old("--version").out == f"dibs {last_release()}\n"
    assert versions.new("--version", "--quiet").out == f"{__version__}\n"


@pytest.mark.fault("F-430")
def test_a_file_of_the_last_release_goes_on_here_and_is_then_refused_there(versions: Versions, tmp_path: Path) -> None:
    path = tmp_path / "dibs.db"
    url = f"sqlite://{path}"
    assert versions.old("claim", JOB, "--ttl", "10m", "--url", url).exit == 0
    assert versions.owners(versions.new, url) == {JOB: "w"}
    assert versions.new("claim", JOB, "--url", url).exit == 1
    assert versions.new("claim", "issue-2", "--url", url).exit == 0
    before = contents(path)
    for words in (("claim", "issue-3"), ("list",), ("doctor",)):
        refused = versions.old(*words, "--url", url)
        assert refused.exit == REFUSED, refused.said
        assert f"written by a newer dibs: its format is version {FORMAT}" in refused.said
    assert contents(path) == before


@pytest.mark.full
@pytest.mark.fault("F-430")
def test_a_schema_of_the_last_release_goes_on_here_and_is_then_refused_there(
    versions: Versions, postgres_schema: Callable[[], Schema]
) -> None:
    schema = postgres_schema()
    assert versions.old("claim", JOB, "--ttl", "10m", "--url", schema.url).exit == 0
    assert versions.owners(versions.new, schema.url) == {JOB: "w"}
    assert versions.new("claim", JOB, "--url", schema.url).exit == 1
    before = schema.run("SELECT * FROM {s}.records ORDER BY key") + schema.run("SELECT * FROM {s}.state")
    refused = versions.old("claim", "issue-3", "--url", schema.url)
    assert refused.exit == REFUSED, refused.said
    assert f"needs a dibs of version {FORMAT}" in refused.said
    assert schema.run("SELECT * FROM {s}.records ORDER BY key") + schema.run("SELECT * FROM {s}.state") == before


@pytest.mark.full
@pytest.mark.fault("F-476")
def test_a_prefix_of_the_last_release_goes_on_here_and_is_then_refused_there(
    versions: Versions, etcd_cluster: Cluster
) -> None:
    """The last release looks at no number on etcd. It would drop pools and closures, and count units as one."""
    (host, port), *_ = etcd_cluster.location("x").endpoints
    prefix = f"versions/{new_token()}"
    url = f"etcd://{host}:{port}/{prefix}"
    assert versions.old("claim", JOB, "--ttl", "10m", "--url", url).exit == 0
    assert versions.owners(versions.new, url) == {JOB: "w"}
    assert versions.new("claim", JOB, "--url", url).exit == 1
    assert versions.new("pool", "set", "gpu", "--slots", "4", "--url", url).exit == 0
    client = etcd_cluster.client()

    def contents() -> list[tuple[bytes, bytes]]:
        root = f"{prefix}//".encode()
        return [(kv.key, kv.value) for kv in client.range(root, end_of(root)) if b"boot/" not in kv.key]

    before = contents()
    for words in (("claim", "gpu"), ("claim", "issue-3"), ("list",), ("gc",)):
        refused = versions.old(*words, "--url", url)
        assert refused.exit == REFUSED, refused.said
        assert "The store's keys in etcd were deleted" in refused.said
    assert contents() == before
    client.close()
    assert versions.owners(versions.new, url) == {JOB: "w"}


@pytest.mark.full
@pytest.mark.fault("F-430")
def test_a_remote_of_the_last_release_goes_on_here_and_what_is_written_here_is_refused_there(
    versions: Versions, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    need_program("git")
    remote = tmp_path / "claims.git"
    git(tmp_path, "init", "--bare", "-q", str(remote))
    url = f"git+file://{remote}"
    assert versions.old("claim", JOB, "--ttl", "10m", "--url", url).exit == 0
    assert versions.owners(versions.new, url) == {JOB: "w"}
    assert versions.new("claim", "issue-2", "--ttl", "10m", "--url", url).exit == 0
    before = git(remote, "for-each-ref")
    refused = versions.old("claim", "issue-2", "--url", url)
    assert refused.exit == REFUSED, refused.said
    assert "a newer dibs wrote it; update this one" in refused.said
    assert git(remote, "for-each-ref") == before


@pytest.mark.full
@pytest.mark.fault("F-430")
def test_a_copy_of_the_last_release_is_imported_here_and_one_of_here_is_refused_there(
    versions: Versions, tmp_path: Path
) -> None:
    old, new, copy = (tmp_path / name for name in ("old.db", "new.db", "copy"))
    assert versions.old("claim", JOB, "--ttl", "10m", "--url", f"sqlite://{old}").exit == 0
    assert versions.old("export", "--to", str(copy), "--url", f"sqlite://{old}").exit == 0
    assert versions.new("import", "--from", str(copy), "--url", f"sqlite://{new}").exit == 0
    assert versions.owners(versions.new, f"sqlite://{new}") == {JOB: "w"}
    copy.unlink()
    assert versions.new("export", "--to", str(copy), "--url", f"sqlite://{new}").exit == 0
    refused = versions.old("import", "--from", str(copy), "--url", f"sqlite://{tmp_path / 'third.db'}")
    assert refused.exit == 64
    assert f"A newer dibs made this file: its format is {FORMAT}" in refused.said


@pytest.mark.full
@pytest.mark.fault("F-430")
def test_a_backup_of_the_last_release_is_restored_here(versions: Versions, tmp_path: Path) -> None:
    old, copy = tmp_path / "old.db", tmp_path / "backup.db"
    assert versions.old("claim", JOB, "--ttl", "10m", "--url", f"sqlite://{old}").exit == 0
    assert versions.old("backup", str(copy), "--url", f"sqlite://{old}").exit == 0
    assert versions.old("claim", "later", "--url", f"sqlite://{old}").exit == 0
    restored = versions.new("restore", str(copy), "--url", f"sqlite://{old}")
    assert restored.exit == 0, restored.said
    assert versions.owners(versions.new, f"sqlite://{old}") == {JOB: "w"}
