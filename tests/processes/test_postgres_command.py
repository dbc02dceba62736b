"""The command on a PostgreSQL store: claims, doctor, migrate, and what is said when psycopg is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dibs.stores.postgres import PostgresLocation
from dibs.stores.postgres.store import PostgresStore
from dibs.testing.contract_base import key_of, lock, put
from tests.programs import clean_env, dibs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.postgres import Schema

pytestmark = pytest.mark.e2e


@pytest.fixture
def schema(postgres_schema: Callable[[], Schema]) -> Schema:
    return postgres_schema()


def test_a_claim_goes_around_and_history_shows_it(schema: Schema, tmp_path: Path) -> None:
    env = clean_env(tmp_path, DIBS_URL=schema.url)
    claimed = dibs(env, "claim", "issue-1842", "--json")
    assert claimed.exit == 0, claimed
    assert dibs(env, "claim", "issue-1842", "--owner", "other").exit == 1
    assert dibs(env, "release", "issue-1842", "--lease", claimed.data["lease_id"]).exit == 0
    again = dibs(env, "claim", "issue-1842", "--json")
    assert again.data["fencing_token"] > claimed.data["fencing_token"]
    assert "claimed it for 1m (token 2)" in dibs(env, "history", "issue-1842").out


def test_migrate_makes_a_schema_once_and_doctor_finds_all_well(schema: Schema, tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    off = f"{schema.url}&migrate=off"
    assert dibs(env, "claim", "job", "--url", off).exit == 69
    assert dibs(env, "migrate", off).out == "The store is of format 10 now. It was made just now.\n"
    assert dibs(env, "migrate", off).out == "The store is of format 10 already.\n"
    checked = dibs(env, "doctor", off)
    assert checked.exit == 0, checked
    assert "waiters are notified (LISTEN)" in checked.out


def test_without_psycopg_it_is_said_what_to_install() -> None:
    """In a process of its own: here psycopg is imported already."""
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from dibs.stores.registry import open_store\n"
        "try: open_store('postgresql://dibs@127.0.0.1:1/dibs')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith("MissingExtra "), said
    assert "pip install 'psycopg[binary]'" in said


def test_a_forked_child_uses_connections_of_its_own(schema: Schema) -> None:
    store = PostgresStore(PostgresLocation(schema.url))
    put(store, lock("x"))
    store.watch(0, 1)  # a thread of the parent's, that the child does not have
    child = os.fork()
    if not child:
        code = 1
        try:
            put(store, lock("x", token=2))
            store.watch(0, 1)
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read([key_of("x")]).records[key_of("x")].record == lock("x", token=2)
    put(store, lock("x", token=3))
    store.close()
