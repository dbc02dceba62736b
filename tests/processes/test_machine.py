"""One store for all users of a machine: found by itself, trusted with care, and never a second one in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dibs as package
from dibs.client.settings import distrust, note_path
from tests.programs import DIBS, ServerProcess, clean_env, dibs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NOBODY = 65534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can look into, as /run is."""
    folder = Path(tempfile.mkdtemp(prefix="dibs-machine-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def service(open_folder: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    path = open_folder / "dibs.sock"
    with ServerProcess(tmp_path, bind=f"unix:{path}", flags=["--system"]) as server:
        yield server


def env_of(server: ServerProcess, home: Path) -> dict[str, str]:
    return {**clean_env(home), "DIBS_SYSTEM_SOCKET": server.url.removeprefix("unix://")}


def as_nobody(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    setpriv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run([*setpriv, *words], env=env, capture_output=True, text=True, check=False)


def test_users_of_one_machine_exclude_each_other(service: ServerProcess, tmp_path: Path, open_folder: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to be two users")
    python = Path(sys.executable).resolve()
    if as_nobody({}, str(python), "-c", "").returncode != 0:
        pytest.skip("another user cannot run this Python")
    code = open_folder / "code"
    shutil.copytree(Path(package.__file__).parent, code / "dibs", ignore=shutil.ignore_patterns("__pycache__"))
    mine = env_of(service, tmp_path)
    theirs = {**env_of(service, open_folder), "PYTHONPATH": str(code), "HOME": "/nonexistent"}
    theirs["XDG_STATE_HOME"] = theirs["XDG_CONFIG_HOME"] = "/nonexistent"
    assert dibs(mine, "claim", "deploy").exit == 0
    refused = as_nobody(theirs, str(python), "-S", "-m", "dibs", "claim", "deploy")
    assert (refused.returncode, "Held:" in refused.stdout) == (1, True), refused
    assert as_nobody(theirs, str(python), "-S", "-m", "dibs", "claim", "other").returncode == 0
    held = dibs(mine, "claim", "other", "--json")
    assert held.exit == 1
    broken = as_nobody(theirs, str(python), "-S", "-m", "dibs", "break", "deploy", "--reason", "mine")
    assert broken.returncode == 77, broken
    assert dibs(mine, "break", "other", "--reason", "root may").exit == 0


def test_the_command_the_sdk_and_rlock_find_the_service_and_doctor_says_so(
    service: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = env_of(service, tmp_path)
    assert dibs(env, "claim", "a").exit == 0
    assert "this machine's service, for all its users" in dibs(env, "doctor").out
    for variable in ("DIBS_URL", "DIBS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    with package.Client() as client:
        assert client.owner("a") is not None
    code = "import sys; from dibs.compat.action_llama.rlock import rlock; sys.exit(rlock())"
    locked = subprocess.run(
        [sys.executable, "-c", code, "file:///a"], env=env, capture_output=True, text=True, check=False
    )
    assert locked.returncode == 0, locked
    assert dibs(env, "owner", "file:///a").exit == 0
    assert dibs({**env, "DIBS_SYSTEM_SOCKET": "off"}, "claim", "b").exit == 0


def test_a_header_proves_nothing_there(service: ServerProcess, tmp_path: Path) -> None:
    env = {**env_of(service, tmp_path), "DIBS_TOKEN": "whatever"}
    assert dibs(env, "claim", "a").exit == 0
    assert dibs(env, "claim", "a").exit == 1


def test_who_has_claims_of_their_own_is_not_split_from_them(service: ServerProcess, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    own = {**clean_env(home), "DIBS_SYSTEM_SOCKET": "off"}
    lease = dibs(own, "claim", "mine", "--json").data["lease_id"]
    env = env_of(service, home)
    told = dibs(env, "claim", "other")
    assert told.exit == 64
    assert "has live claims" in told.err
    assert dibs(own, "release", "mine", "--lease", lease).exit == 0
    assert dibs(env, "claim", "other").exit == 0


def test_who_used_the_service_does_not_fall_back_to_a_store_of_their_own(
    service: ServerProcess, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = env_of(service, home)
    assert dibs(env, "claim", "a").exit == 0
    service.stop()
    told = dibs(env, "claim", "a")
    assert told.exit == 69
    assert "Do not begin the work" in told.err
    os.unlink(note_path(env))
    assert dibs(env, "claim", "a").exit == 0


@pytest.mark.fault("F-336")
def test_a_socket_that_nobody_listens_on_is_no_service(open_folder: Path, tmp_path: Path) -> None:
    import socket

    path = open_folder / "dibs.sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))  # as a server leaves it that could not start, or was killed
    env = {**clean_env(tmp_path), "DIBS_SYSTEM_SOCKET": str(path)}
    lease = dibs(env, "claim", "a", "--json").data["lease_id"]
    assert not os.path.exists(note_path(env))
    assert dibs(env, "heartbeat", "a", "--lease", lease).exit == 0
    told = dibs(env, "doctor")
    assert (told.exit, f"nobody listens on {path}" in told.out) == (0, True)


@pytest.mark.fault("F-336")
def test_what_is_about_a_claim_goes_where_it_was_made_when_a_service_appears(
    service: ServerProcess, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = env_of(service, home)
    own = {**env, "DIBS_SYSTEM_SOCKET": "off"}
    lease = dibs(own, "claim", "leased", "--json").data["lease_id"]
    assert dibs(own, "claim", "named", "--actor", "ann").exit == 0
    session = dibs(own, "session", "open", "-q").out.strip()
    assert dibs(own, "claim", "kept", "--session", session).exit == 0
    assert dibs(env, "heartbeat", "leased", "--lease", lease).exit == 0
    assert dibs(env, "heartbeat", "named", "--actor", "ann", "--checkpoint", "half").exit == 0
    assert dibs(env, "session", "keep", session).exit == 0
    assert dibs(env, "claim", "more", "--actor", "ann").exit == 64  # nobody works in two stores unasked
    assert dibs(env, "release", "--mine", "--actor", "ann").exit == 0
    assert dibs(env, "release", "leased", "--lease", lease, "--done").exit == 0
    assert dibs(own, "claim", "leased").exit == 4
    assert dibs(env, "session", "end", session).exit == 0
    assert dibs(env, "claim", "named", "--actor", "ann").exit == 0
    assert os.path.exists(note_path(env))
    assert dibs(env, "release", "named", "--actor", "ann").exit == 0


@pytest.mark.parametrize("fault", ["writable folder", "file", "another's socket"])
def test_a_socket_that_others_may_have_made_is_not_used(open_folder: Path, tmp_path: Path, fault: str) -> None:
    import socket

    path = open_folder / "dibs.sock"
    with socket.socket(socket.AF_UNIX) as made:
        if fault == "file":
            path.touch()
        else:
            made.bind(str(path))
        assert fault == "file" or distrust(str(path)) is None
        if fault == "writable folder":
            open_folder.chmod(0o777)
        elif fault == "another's socket":
            if os.geteuid() != 0:
                pytest.skip("needs root")
            os.chown(path, NOBODY, NOBODY)
        assert distrust(str(path)) is not None
        told = dibs({**clean_env(tmp_path), "DIBS_SYSTEM_SOCKET": str(path)}, "claim", "a")
    assert told.exit == 64
    assert "cannot be trusted" in told.err


def test_a_group_may_be_all_that_is_let_in(open_folder: Path, tmp_path: Path) -> None:
    path = open_folder / "dibs.sock"
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with ServerProcess(tmp_path, bind=f"unix:{path}", flags=["--system", "--group", "root"]):
        assert path.stat().st_mode & 0o777 == 0o660
    store = f"sqlite://{tmp_path}/dibs.db"
    refused = subprocess.run(
        [*DIBS, "serve", "--system", "--store", store, "--bind", f"unix:{path}", "--group", "none-such"],
        env=clean_env(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 64, refused.stderr
    assert "no group" in refused.stderr
