"""Imports decide how fast a claim starts. This test fixes their list, so that it grows only on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.client.scripted import ScriptedServer, reply_of

if TYPE_CHECKING:
    from pathlib import Path

# The claim runs in a bare interpreter, and afterwards says what was loaded that was not there before.
SCRIPT = """
import sys
import os  # site does this at every start
before = set(sys.modules)
from dibs.cli.main import entry
def tell(code):
    print(code, *sorted(set(sys.modules) - before), file=sys.stderr)
os._exit = tell  # which is how a claim ends
sys.argv = ["dibs", "claim", "issue-1", "--ttl", "2m", "--owner", "agent-7", "--metadata", "m"]
entry()
"""

# What Python itself has, that both ways need. Names of 3.11 to 3.13; none of them is slow.
SHARED = {"__future__", "_json", "gc", "pwd", "time"}
EMBEDDED = SHARED | {
    "_bisect",
    "_functools",
    "_sqlite3",
    "_thread",
    "bisect",
    "itertools",
}  # no functools: see base/cheap.py
SERVER = SHARED | {"_socket", "array", "math"}

# Parts of dibs that a job which is free, in the user's own store, does not need: each is imported where it is.
NOT_FOR_A_FREE_JOB = {
    "dibs.client.urls",
    "dibs.core.upkeep.freeze",
    "dibs.core.upkeep.sweep",
    "dibs.core.lease_outcomes",
    "dibs.core.claims.leases",
    "dibs.core.claims.sessions",
    "dibs.core.claims.several",
    "dibs.base.redact",
    "dibs.wire.lease_documents",
    "dibs.wire.refusals",
}

GRANTED = reply_of(
    200,
    {
        "status": "acquired",
        "name": "issue-1",
        "lease_id": "00000000-0000-4000-8000-000000000000",
        "fencing_token": 1,
        "owner": "agent-7",
        "expires_at": "2025-11-15T02:16:05.123Z",
        "remaining_ms": 120_000,
        "renew_after_ms": 60_000,
        "metadata": "m",
        "attempt": 1,
    },
)

# Each of them would cost more than everything that dibs does for a claim.
NEVER = {
    "argparse",
    "asyncio",
    "collections",
    "dataclasses",
    "email",
    "enum",
    "functools",
    "gettext",
    "hashlib",
    "http.client",
    "inspect",
    "json",
    "logging",
    "msgspec",
    "pathlib",
    "random",
    "re",
    "rich",
    "secrets",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "typing",
    "urllib.parse",
    "uuid",
}


def modules_of_a_claim(env: dict[str, str]) -> set[str]:
    # Without site: what an environment's .pth files load at every start is not ours.
    paths = [path for path in sys.path if path]
    script = f"import sys; sys.path[:] = {paths!r}\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], env=env, capture_output=True, timeout=60, check=True
    )
    code, *modules = done.stderr.decode().split()
    assert code == "0", done.stderr
    assert b"Claimed issue-1 for 2m, as agent-7." in done.stdout
    return set(modules)


BLOCK = """
import sys
import os
before = set(sys.modules)
import dibs
with dibs.claim("issue-1", ttl=120, owner="agent-7"):
    pass
print(0, *sorted(set(sys.modules) - before), file=sys.stderr)
"""
HOOK = """
import sys
import os
before = set(sys.modules)
from dibs.cli.main import entry
def tell(code):
    print(code, *sorted(set(sys.modules) - before), file=sys.stderr)
os._exit = tell
sys.argv = ["dibs", "agent", "hook", "--client", "claude"]
entry()
"""
# What threads and their events need, which renew a claim.
THREADS = set(
    """
    _collections _functools _heapq _operator _queue _weakrefset atexit collections functools heapq itertools keyword
    math operator queue reprlib threading types weakref
    """.split()
)
if sys.version_info >= (3, 13):
    THREADS.add("warnings")  # `threading` imports it there


def modules_of(script: str, env: dict[str, str], folder: Path, given: str = "") -> set[str]:
    paths = [path for path in sys.path if path]
    words = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {paths!r}\n{script}"]
    done = subprocess.run(
        words, env=env, input=given, capture_output=True, text=True, timeout=60, check=True, cwd=folder
    )
    code, *modules = done.stderr.split()
    assert code == "0", done.stderr
    assert done.stdout == ""
    return set(modules)


def test_a_block_of_the_sdk_on_the_own_store_imports_only_this(env: dict[str, str], tmp_path: Path) -> None:
    modules = modules_of(BLOCK, env, tmp_path)
    assert not modules & (NEVER - THREADS)
    assert not_ours(modules) <= EMBEDDED | THREADS
    others = ("dibs.server", "dibs.client.http", "dibs.client.connection", "dibs.client.event_reader", "dibs.cli.")
    assert not {name for name in modules if name.startswith(others)}


def test_a_block_of_the_sdk_through_a_server_opens_no_store(env: dict[str, str], tmp_path: Path) -> None:
    with ScriptedServer([GRANTED, reply_of(200, {"released": True})]) as server:
        modules = modules_of(BLOCK, env | {"DIBS_URL": server.url, "DIBS_TOKEN": "t"}, tmp_path)
    assert not modules & (NEVER - THREADS)
    assert not_ours(modules) <= SERVER | THREADS | {"_thread"}
    inside = ("dibs.stores", "dibs.engine", "dibs.core.decide", "dibs.wire.requests", "dibs.client.embedded")
    assert not {name for name in modules if name.startswith(inside)}


# What a hook needs only if it has something to say, or to remember for a shell.
NOT_FOR_A_SILENT_HOOK = {"dibs.agents.hook_sentences", "dibs.agents.shell_actor", "dibs.wire.sentences"}
EVENTS = {
    "before an edit": {
        "hook_event_name": "PreToolUse",
        "tool_name": "Edit",
        "tool_input": {"file_path": "FOLDER/a.txt", "old_string": "a", "new_string": "b"},
    },
    "before a command": {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}},
    "after a command": {
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
        "tool_response": {},
    },
}


@pytest.mark.fault("F-550")
def test_the_hook_of_an_agent_imports_only_this(env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    subprocess.run(["git", "init", "-q", str(folder)], check=True, timeout=60)
    for event, about in EVENTS.items():
        given = json.dumps({"session_id": "s", "cwd": str(folder), **about}).replace("FOLDER", str(folder))
        modules = modules_of(HOOK, env, folder, given)
        if "before a command" in event:
            continue  # what a command writes is read from its text with `re`, which imports much of this
        assert not modules & NEVER, event
        assert not_ours(modules) <= EMBEDDED | {"_blake2", "binascii", "fcntl", "select"}, event
        assert not {name for name in modules if name.startswith(("dibs.server", "dibs.client.http", "dibs.sdk."))}
        assert not modules & NOT_FOR_A_SILENT_HOOK, event


def not_ours(modules: set[str]) -> set[str]:
    return {name for name in modules if not name.startswith("dibs")}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}


RLOCK = """
import sys
import os
before = set(sys.modules)
from dibs.compat.action_llama.rlock import rlock
def tell(code):
    print(code, *sorted(set(sys.modules) - before), file=sys.stderr)
os._exit = tell
sys.argv = ["rlock", "github://acme/app/issues/42"]
rlock()
"""


def modules_of_rlock(env: dict[str, str], folder: Path) -> set[str]:
    paths = [path for path in sys.path if path]
    script = f"import sys; sys.path[:] = {paths!r}\n{RLOCK}"
    words = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(words, env=env, capture_output=True, timeout=60, check=True, cwd=folder)
    code, *modules = done.stderr.decode().split()
    assert code == "0", (done.stdout, done.stderr)
    assert done.stdout.startswith(b'{"ok":true')
    return set(modules)


def test_rlock_on_the_own_store_imports_little_more_than_a_claim(env: dict[str, str], tmp_path: Path) -> None:
    modules = modules_of_rlock(env, tmp_path)
    assert not modules & NEVER
    assert not_ours(modules) <= EMBEDDED | {"binascii", "fcntl"}  # to remember the lease
    assert not {name for name in modules if name.startswith(("dibs.server", "dibs.client.http"))}


def test_rlock_through_a_gateway_opens_no_store(env: dict[str, str], tmp_path: Path) -> None:
    with ScriptedServer([reply_of(200, {"ok": True, "resourceKey": "x"})]) as server:
        more = {"GATEWAY_URL": f"{server.url}/gateway", "SHUTDOWN_SECRET": "s"}
        modules = modules_of_rlock(env | more, tmp_path)
    assert not modules & NEVER
    assert not_ours(modules) <= SERVER
    inside = ("dibs.stores", "dibs.engine", "dibs.core.decide", "dibs.wire.requests", "dibs.client.settings")
    assert not {name for name in modules if name.startswith(inside)}


def test_a_claim_on_the_own_store_imports_only_this(env: dict[str, str]) -> None:
    modules = modules_of_a_claim(env)
    assert not modules & NEVER
    assert not_ours(modules) <= EMBEDDED
    assert not {
        name for name in modules if name.startswith(("dibs.server", "dibs.client.http", "dibs.client.connection"))
    }


def test_a_claim_of_a_free_job_imports_no_rule_for_others(env: dict[str, str]) -> None:
    modules_of_a_claim(env | {"DIBS_NAMESPACE": "first"})  # it makes the file
    assert not modules_of_a_claim(env) & NOT_FOR_A_FREE_JOB


def test_a_claim_through_a_server_imports_only_this(env: dict[str, str]) -> None:
    before = threading.active_count()
    with ScriptedServer([GRANTED]) as server:
        modules = modules_of_a_claim(env | {"DIBS_URL": server.url, "DIBS_TOKEN": "t"})
    assert not modules & NEVER
    assert not_ours(modules) <= SERVER
    rules = ("dibs.core.claims.acquire", "dibs.core.decide", "dibs.core.outcomes", "dibs.core.records")
    inside = ("dibs.stores", "dibs.engine", "dibs.wire.requests", *rules)
    assert not {name for name in modules if name.startswith(inside)}
    assert threading.active_count() <= before


WITHOUT_EXTRAS = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in sys.argv:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from dibs.cli.framework.registry import NAMES, load
from dibs.cli.main import run
for name in NAMES:
    load(name)
print(run(["simulate", "--operations", "20"], {}, sys.stdout, sys.stderr, None))
"""


@pytest.mark.fault("F-486")
def test_every_command_is_there_and_the_simulation_runs_without_the_extras() -> None:
    extras = "httptools msgspec prometheus_client uvloop psycopg hpack opentelemetry celery apscheduler django tooz"
    words = [sys.executable, "-c", WITHOUT_EXTRAS, *extras.split()]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert said.stdout.endswith("\n0\n"), said
