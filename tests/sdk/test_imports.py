"""Imports decide how long a program waits for its first claim. What only event loops need is imported by them alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
import dibs
with dibs.claim("issue-1"):
    pass
client = dibs.Client()
with client.session() as session, session.claim("issue-2"):
    pass
print(*sys.modules)
"""
# Each of them costs more than a claim.
FOR_OTHERS = {"asyncio", "concurrent.futures", "importlib.metadata", "json", "socket", "ssl", "subprocess"}


def test_a_with_block_imports_nothing_that_only_event_loops_or_servers_need(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    env["DIBS_URL"] = f"sqlite:///{tmp_path}/dibs.db"
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ran.stdout.split())
    assert not loaded & FOR_OTHERS
    assert not [name for name in loaded if name.startswith("dibs.sdk.async_")]


def test_async_with_works_where_nobody_imported_asyncio_before_dibs(tmp_path: Path) -> None:
    script = """
import dibs
lock = dibs.claim("issue-1")
import asyncio
async def work():
    async with lock as claim:
        return claim.name
print(asyncio.run(work()))
"""
    env = {**os.environ, "DIBS_URL": f"sqlite:///{tmp_path}/dibs.db"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "issue-1\n"
