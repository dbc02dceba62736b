"""The house stands without its plugins, and takes in commands, routes and stores of other packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PLUGINS = ("agents", "compat", "contrib", "testing")
EACH_AND_ALL = [(each,) for each in PLUGINS] + [PLUGINS]

# Makes plugins as if they were not installed.
WITHOUT = """
import sys
GONE = tuple(f"dibs.{{each}}" for each in {gone!r})
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in GONE or name.startswith(tuple(f"{{each}}." for each in GONE)):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""

EMBEDDED = """
import dibs
with dibs.Client("memory://", owner="ann") as client:
    lease = client.acquire("issue-1", ttl=60)
    renewed = client.renew("issue-1", lease.lease_id)
    assert renewed.fencing_token == lease.fencing_token
    assert client.owner("issue-1").owner == "ann"
    client.release("issue-1", lease.lease_id)
    with client.claim("issue-2") as claim:
        assert claim.fencing_token
    with client.claim("acme/app#42") as claim:
        assert claim.name.startswith(("github://", "acme"))
assert not [name for name in sys.modules if name.startswith(GONE)]
"""

# The server runs in the main thread, until the thread that asks it has seen enough.
SERVER = """
import os, signal, socket, threading, time
import dibs
from dibs.server.run import serve
from dibs.server.settings import ServerSettings

url, trouble = f"unix://{os.getcwd()}/socket", []

def listens():
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex("socket") == 0

def ask():
    try:
        until = time.monotonic() + 30
        while not listens() and time.monotonic() < until:
            time.sleep(0.01)
        with dibs.Client(url, owner="ann") as client:
            with client.claim("issue-1"):
                assert [each.name for each in client.list()] == ["issue-1"]
        os.environ["DIBS_URL"] = url
        from dibs.cli.main import run
        assert run(["doctor"], os.environ, sys.stdout, sys.stderr, None) == 0
    except BaseException as error:
        trouble.append(error)
    finally:
        os.kill(os.getpid(), signal.SIGINT)

asking = threading.Thread(target=ask)
asking.start()
serve(ServerSettings(bind=url, store="memory://"))
asking.join()
assert not trouble, trouble
assert not [name for name in sys.modules if name.startswith(GONE)]
"""

# Runs commands one after the other, and prints the exit code and the output of each.
COMMANDS = """
import json, os
from io import StringIO
from dibs.cli.main import run
found = []
for words in {lines!r}:
    said = StringIO()
    found.append((run(words, os.environ, said, said, None), said.getvalue()))
print("answers", json.dumps(found))
"""


def python(script: str, folder: Path, *, paths: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(folder), "HOME": str(folder)}
    env["PYTHONPATH"] = os.pathsep.join([*paths, *[path for path in sys.path if path]])
    words = [sys.executable, "-c", script]
    return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def commands(
    *lines: list[str], folder: Path, gone: tuple[str, ...] = (), paths: tuple[str, ...] = ()
) -> list[tuple[int, str]]:
    done = python(WITHOUT.format(gone=gone) + COMMANDS.format(lines=lines), folder, paths=paths)
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout.rpartition("answers")[2])]


@pytest.mark.parametrize("gone", EACH_AND_ALL, ids="-".join)
def test_embedded_claims_and_the_sdk_need_no_plugin(tmp_path: Path, gone: tuple[str, ...]) -> None:
    done = python(WITHOUT.format(gone=gone) + EMBEDDED, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("gone", EACH_AND_ALL, ids="-".join)
def test_a_server_answers_without_a_plugin(tmp_path: Path, gone: tuple[str, ...]) -> None:
    done = python(WITHOUT.format(gone=gone) + SERVER, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("gone", EACH_AND_ALL, ids="-".join)
def test_the_commands_of_the_house_need_no_plugin(tmp_path: Path, gone: tuple[str, ...]) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    told = {
        "--help": "one owner per job",
        "help all": "claim-any",
        "claim issue-1 --owner ann": "Claimed issue-1",
        "claim github://acme/app/issues/42 --owner ann": "Claimed",
        "claim acme/app#43 --owner ann": "Claimed",
        "list": "issue-1",
        "doctor": "ok",
        "run issue-2 -- true": "",
    }
    found = commands(*[line.split() for line in told], folder=tmp_path, gone=gone)
    for line, (code, said) in zip(told, found, strict=True):
        assert code == 0, (line, said)
        assert told[line] in said


NEEDED = {
    "agents": ["mcp", "hook status", "hook status --help", "claim --staged", "claim path:src"],
    "compat": ["lock status", "run-secret list", "serve --octostore", "serve --gateway --bind 127.0.0.1:0"],
}


@pytest.mark.parametrize("gone", NEEDED)
def test_what_needs_a_missing_plugin_says_so(tmp_path: Path, gone: str) -> None:
    (tmp_path / ".git").mkdir()
    for code, said in commands(*[line.split() for line in NEEDED[gone]], folder=tmp_path, gone=(gone,)):
        assert code == 64, said
        assert f"needs dibs.{gone}, which is not installed" in said
        assert "Traceback" not in said


def installed(folder: Path, package: str, source: str, entry_points: str) -> tuple[str, ...]:
    """A package as pip leaves it. Returns what to put in front of the path."""
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return (str(folder),)


ACME = """
from dibs.cli.framework.result import yes
from dibs.cli.framework.spec import Command

def hello(call):
    return yes({"hello": True}, "Hello from acme.")

HELLO = Command(hello, summary="greet", about="Greets.")
FAMILY = {"acme deploy": HELLO, "acme status": Command(hello)}
"""


def test_a_package_adds_a_command(tmp_path: Path) -> None:
    paths = installed(tmp_path, "acme", ACME, "[dibs.commands]\nhello = acme:HELLO\nclaim = acme:HELLO\n")
    ran, explained, claimed = commands(
        ["hello"], ["hello", "--help"], ["claim", "issue-1"], folder=tmp_path, paths=paths
    )
    assert ran == (0, "Hello from acme.\n")
    assert (explained[0], "Greets." in explained[1]) == (0, True)
    assert "Claimed issue-1" in claimed[1]  # what dibs has cannot be replaced


def test_a_package_adds_commands_of_two_words_and_help_lists_them(tmp_path: Path) -> None:
    entries = "[dibs.commands]\nacme.deploy = acme:FAMILY\nacme.status = acme:FAMILY\nlock.more = acme:HELLO\n"
    paths = installed(tmp_path, "acme", ACME, f"{entries}bad = no_such_module:HELLO\n")
    ran, wrong, family, every, lock = commands(
        ["acme", "deploy"], ["acme", "nope"], ["acme", "--help"], ["help", "all"], ["lock", "more"],
        folder=tmp_path, paths=paths,
    )  # fmt: skip
    assert ran == (0, "Hello from acme.\n")
    assert (wrong[0], "acme needs one of: deploy, status." in wrong[1]) == (64, True)
    assert (family[0], "  acme deploy   greet" in family[1], "  acme status" in family[1]) == (0, True, True)
    listed = every[1][every[1].index("Of other packages:") :]
    assert "  acme deploy   greet" in listed
    assert "  bad           cannot be loaded" in listed
    assert lock[0] == 2  # grite's code for a wrong word: a package cannot add to what dibs has


def test_a_package_that_cannot_be_imported_breaks_its_own_command_alone(tmp_path: Path) -> None:
    entries = "[dibs.commands]\nbroken = broken:HELLO\nodd = os:sep\n"
    paths = installed(tmp_path, "broken", "import no_such_module\n", entries)
    broken, odd, claimed, unknown = commands(
        ["broken"], ["odd"], ["claim", "issue-1"], ["clame"], folder=tmp_path, paths=paths
    )
    assert broken[0] == 64
    assert "The command broken, of the package broken, cannot be loaded" in broken[1]
    assert "no_such_module" in broken[1]
    assert "Traceback" not in broken[1]
    assert "is no dibs.cli.framework.spec.Command" in odd[1]
    assert claimed[0] == 0
    assert "clame is not a dibs command" in unknown[1]


ROUTES = """
from dibs.server.http.response import answer_document
from dibs.wire.operations import Operation

class Acme:
    def __init__(self, api):
        self.api = api

    def routes(self):
        operation = Operation("GET", "/acme", "acme", "says hello", "Acme", {200: {"type": "object"}}, is_open=True)
        return [(operation, self.hello)]

    async def hello(self, call):
        return answer_document({"hello": self.api.engine.store_id})

    def close(self):
        pass
"""
OPEN_ROUTES = """
from types import SimpleNamespace
from dibs.server.plugins import open_routes
api = SimpleNamespace(engine=None)
[found] = open_routes(api, ["acme"])
assert [operation.path for operation, _ in found.routes()] == ["/acme"]
for word, told in (("nobody", "No installed package has routes called 'nobody'"), ("bad", "cannot be loaded")):
    try:
        open_routes(api, [word])
    except Exception as error:
        assert told in str(error), error
    else:
        raise AssertionError(word)
"""


def test_a_package_adds_routes(tmp_path: Path) -> None:
    entries = "[dibs.routes]\nacme = acme_routes:Acme\nbad = no_such_module:Acme\n"
    paths = installed(tmp_path, "acme_routes", ROUTES, entries)
    done = python(OPEN_ROUTES, tmp_path, paths=paths)
    assert done.returncode == 0, done.stderr


# A package of somebody else: the command of the page, and a store.
PAGE = Path(__file__).parents[2] / "docs/how-to/add-a-command-or-route.md"
STORE = """
from dibs.stores.sqlite import open_url as open_file

def open_url(url, opening):
    return open_file("sqlite:" + url.partition(":")[2], opening)
"""
ACME_ENTRIES = """
[dibs.commands]
hello = acme_dibs:HELLO
[dibs.stores]
acme = acme_dibs:open_url
[dibs.parts]
issue-tracker = acme_dibs:HELLO
"""


@pytest.mark.fault("F-531")
def test_a_wheel_that_pip_installs_brings_a_store_and_the_command_of_the_page(tmp_path: Path) -> None:
    shown = PAGE.read_text(encoding="utf-8").partition("```python run\n")[2].partition("```")[0]
    wheel, site, info = tmp_path / "acme_dibs-1.0-py3-none-any.whl", tmp_path / "site", "acme_dibs-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("acme_dibs.py", shown + STORE)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: acme-dibs\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", ACME_ENTRIES)
        file.writestr(f"{info}/RECORD", "")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, timeout=120, capture_output=True)
    claimed, greeted, wrong, listed, tracked = commands(
        ["claim", "issue-1", "--owner", "ann", "--url", "acme:jobs.db"],
        ["hello", "issue-1", "--url", "acme:jobs.db"],
        ["hello", "issue-1", "--url", "acne:jobs.db"],
        ["help", "all"],
        ["claim", "github://acme/app/issues/42", "--url", "acme:jobs.db"],
        folder=tmp_path, paths=(str(site),),
    )  # fmt: skip
    assert claimed[0] == 0, claimed
    assert "Claimed issue-1" in claimed[1]
    assert (tmp_path / "jobs.db").exists()
    assert greeted == (0, "Hello, ann.\n")
    assert (wrong[0], "acne" in wrong[1]) == (64, True)
    assert "  hello   greet an owner" in listed[1]
    assert tracked[0] == 0, tracked  # what dibs' own plugins are called cannot be replaced
