"""An identity belongs to a store, a namespace to a name: an actor is one worker, whatever names its jobs have."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import digest, new_id
from dibs.cli.commands import wait as waits
from tests.cli.conftest import Terminal
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.full

HAL, ANN = ("--actor", "hal"), ("--actor", "ann")
FILE, BRANCH, PLAIN = "path:src/a.py", "branch:fix-1", "issue-7"


def repository(folder: Path, name: str) -> Path:
    made = folder / name
    subprocess.run(["git", "init", "-q", str(made)], check=True, timeout=WAIT_S_MAX)
    words = ["git", "-C", str(made), "remote", "add", "origin", f"https://example.org/acme/{name}.git"]
    subprocess.run(words, check=True, timeout=WAIT_S_MAX)
    return made


@pytest.fixture
def app(tmp_path: Path, need_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work tree, which is the current folder."""
    need_program("git")
    made = repository(tmp_path, "app")
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def terminal(tmp_path: Path, app: Path) -> Terminal:
    made = Terminal()
    made.env |= {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    return made


def sessions(terminal: Terminal) -> list[list[str]]:
    """What each open session holds."""
    found = terminal("session", "list", "--json").data["sessions"]
    return sorted(sorted(hold["name"] for hold in each["holds"]) for each in found)


def namespace_of(terminal: Terminal, name: str) -> str:
    return str(terminal("owner", name, "--json").everything["namespace"])


# One session, whatever the namespace.


@pytest.mark.fault("F-300")
@pytest.mark.parametrize("first", [FILE, PLAIN])
def test_an_actor_has_one_session_for_paths_and_other_jobs(terminal: Terminal, first: str) -> None:
    for job in (first, FILE, BRANCH, PLAIN):
        assert terminal("claim", job, *HAL).exit == 0
    assert terminal("claim", "elsewhere", *HAL, "--namespace", "other").exit == 0
    assert sessions(terminal) == [sorted([FILE, BRANCH, PLAIN, "elsewhere"])]


@pytest.mark.fault("F-300")
@pytest.mark.parametrize(("held", "worked_on"), [(FILE, PLAIN), (PLAIN, FILE)])
def test_a_claim_does_not_run_out_while_its_actor_works_on_another_kind_of_job(
    terminal: Terminal, held: str, worked_on: str
) -> None:
    terminal("claim", held, *HAL)
    terminal("claim", worked_on, *HAL)
    for _ in range(3):
        terminal.wait(10 * 60)
        assert terminal("heartbeat", worked_on, *HAL).exit == 0
    assert terminal("claim", held, *ANN).exit == 1
    assert terminal("release", held, *HAL).exit == 0


@pytest.mark.fault("F-300")
@pytest.mark.parametrize("command", [("claim", "busy", "--wait", "1m"), ("wait", "busy", "--for", "1m")])
def test_a_path_does_not_run_out_while_its_actor_waits_for_a_plain_job(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    lease = terminal.claim("busy", "--owner", "agent-7", "--ttl", "1h")
    terminal("claim", FILE, *HAL)
    end_ms = terminal.now_ms + 40 * 60_000

    def time_passes(*_: object) -> str:
        terminal.wait(4 * 60)
        if terminal.now_ms >= end_ms:
            terminal("release", "busy", "--lease", lease)
        return ""

    monkeypatch.setattr(waits, "waiting", time_passes)
    monkeypatch.setattr(waits, "watching", time_passes)
    monkeypatch.setattr(waits, "PAUSE_MS_MAX", waits.PAUSE_MS_MIN)
    monkeypatch.setattr(waits, "BEAT_MS", 1)
    assert terminal(*command, *HAL).exit == 0
    assert terminal("heartbeat", FILE, *HAL).exit == 0


@pytest.mark.fault("F-300")
def test_mine_is_what_the_actor_holds_in_every_namespace(terminal: Terminal) -> None:
    for job in (FILE, BRANCH, PLAIN):
        terminal("claim", job, *HAL)
    terminal("claim", "c", *HAL, "--namespace", "other")
    terminal("claim", "path:docs", *ANN)
    # Who names a namespace means what is held there.
    assert terminal("release", "--mine", *HAL, "--namespace", "other").out == "Released c. It can be claimed.\n"
    assert terminal("release", "--mine", *HAL, "--namespace", "other").out == "You hold nothing in namespace other.\n"
    assert terminal("release", "--mine", *HAL).exit == 0
    assert sessions(terminal) == [[], ["path:docs"]]
    assert terminal("release", "--mine", *ANN).out == "Released path:docs. It can be claimed.\n"
    assert terminal("release", "--mine", *ANN).out == "You hold nothing here.\n"


@pytest.mark.fault("F-300")
def test_a_deadlock_between_a_path_and_a_plain_job_of_two_actors_is_noticed(terminal: Terminal) -> None:
    terminal("claim", FILE, *HAL)
    terminal("claim", PLAIN, *ANN)
    assert terminal("claim", PLAIN, *HAL, "--wait", "1s", "--keep-place").exit == 1
    assert terminal("claim", FILE, *ANN, "--wait", "1s").exit == 3


def test_an_actor_that_had_a_session_for_each_namespace_goes_on_after_an_upgrade(terminal: Terminal) -> None:
    repository_namespace = namespace_of(terminal, FILE)
    older = {}
    for job, namespace in ((PLAIN, "default"), (FILE, repository_namespace)):
        terminal.env["DIBS_SESSION"] = session = terminal.session("--owner", "hal", "--ttl", "15m")
        assert terminal("claim", job).exit == 0
        older[namespace] = session
    del terminal.env["DIBS_SESSION"]
    folder = Path(terminal.env["XDG_STATE_HOME"]) / "dibs" / "actors"
    folder.mkdir(parents=True)
    for namespace, session in older.items():
        (folder / digest("", namespace, "hal")).write_text(f"{session} 900000 -\n")
    assert terminal("heartbeat", PLAIN, *HAL).exit == 0
    released = terminal("release", "--mine", *HAL)
    assert released.out == f"Released {PLAIN}. It can be claimed.\nReleased {FILE}. It can be claimed.\n"
    assert terminal("release", "--mine", *HAL).out == "You hold nothing here.\n"
    (folder / digest("", repository_namespace, "hal")).write_text(f"{new_id()} 900000 -\n")  # long forgotten
    assert terminal("release", "--mine", *HAL).out == "You hold nothing here.\n"


def test_an_actor_that_had_only_paths_before_an_upgrade_goes_on_in_that_session(terminal: Terminal) -> None:
    repository_namespace = namespace_of(terminal, FILE)
    terminal.env["DIBS_SESSION"] = session = terminal.session("--owner", "hal", "--ttl", "15m")
    assert terminal("claim", FILE).exit == 0
    del terminal.env["DIBS_SESSION"]
    folder = Path(terminal.env["XDG_STATE_HOME"]) / "dibs" / "actors"
    folder.mkdir(parents=True)
    (folder / digest("", repository_namespace, "hal")).write_text(f"{session} 900000 -\n")
    assert terminal("heartbeat", FILE, *HAL).exit == 0
    assert terminal("claim", FILE, *HAL).exit == terminal("claim", PLAIN, *HAL).exit == 0
    assert sessions(terminal) == [[PLAIN, FILE]]
    assert terminal("release", "--mine", *HAL).exit == 0
    assert sessions(terminal) == [[]]


# A claim stays what it is when its owner goes to another folder.


class Place:
    """Folders to go to: the clone, outside of any, another clone whose paths have the same names."""

    def __init__(self, tmp_path: Path, app: Path) -> None:
        (tmp_path / "outside").mkdir()
        self.folders = {"outside": tmp_path / "outside", "other": repository(tmp_path, "other"), "app": app}


@pytest.fixture
def place(tmp_path: Path, app: Path) -> Place:
    return Place(tmp_path, app)


def in_run(terminal: Terminal, job: str) -> str:
    """The environment inside `dibs run JOB`. Returns the session."""
    session = terminal.session("--owner", "runner")
    terminal.env["DIBS_SESSION"] = session
    namespace = terminal("claim", job, "--json").data["namespace"]
    terminal.env |= {"DIBS_JOB": job, "DIBS_JOB_NAMESPACE": namespace}
    return session


@pytest.mark.fault("F-303")
@pytest.mark.parametrize("where", ["outside", "other", "app"])
@pytest.mark.parametrize("job", [FILE, "repo:app", BRANCH])
def test_inside_a_run_its_job_is_meant_in_every_folder(
    terminal: Terminal, place: Place, monkeypatch: pytest.MonkeyPatch, where: str, job: str
) -> None:
    session = in_run(terminal, job)
    monkeypatch.chdir(place.folders[where])
    assert terminal("heartbeat", job).exit == 0
    assert "runner" in terminal("owner", job).out
    assert terminal("history", job).exit == 0
    again = terminal("claim", job, "--json").data
    assert again["namespace"] == terminal.env["DIBS_JOB_NAMESPACE"]
    assert terminal("wait", job, "--for", "1s").exit == 1
    assert terminal("claim", job, *ANN).exit == 1
    held = terminal("session", "show", session, "--json").data["holds"]
    assert [hold["name"] for hold in held] == [job]
    assert terminal("release", job).exit == 0
    assert terminal("owner", job).exit == 1


@pytest.mark.fault("F-303")
@pytest.mark.parametrize("who", ["session", "actor"])
@pytest.mark.parametrize("where", ["outside", "other"])
def test_whoever_holds_a_path_can_prove_it_in_every_folder(
    terminal: Terminal, place: Place, monkeypatch: pytest.MonkeyPatch, where: str, who: str
) -> None:
    flags = HAL if who == "actor" else ("--session", terminal.session("--owner", "hal"))
    assert terminal("claim", FILE, *flags).exit == 0
    monkeypatch.chdir(place.folders[where])
    assert terminal("heartbeat", FILE, *flags).exit == 0
    assert terminal("heartbeat", FILE, *ANN).exit == 64
    assert terminal("release", FILE, *flags).exit == 0
    monkeypatch.chdir(place.folders["app"])
    assert terminal("owner", FILE).exit == 1


def test_a_path_in_another_clone_is_another_file_for_who_claims_or_looks(
    terminal: Terminal, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal("claim", FILE, *HAL)
    monkeypatch.chdir(place.folders["other"])
    assert terminal("owner", FILE).exit == 1
    assert terminal("claim", FILE, *ANN).exit == 0
    assert terminal("claim", FILE, *HAL).exit == 1
    # Outside of both, only its holder can mean it, and who holds both must say which.
    monkeypatch.chdir(place.folders["outside"])
    terminal.env["DIBS_ACTOR"] = "hal"
    assert "hal" in terminal("owner", FILE).out
    monkeypatch.chdir(place.folders["other"])
    terminal("release", FILE, *ANN)
    terminal("claim", FILE)
    assert terminal("heartbeat", FILE).exit == 0
    monkeypatch.chdir(place.folders["outside"])
    assert "Name one: --namespace" in terminal("heartbeat", FILE).err


def test_names_of_a_run_and_of_another_clone_are_not_taken_for_one_namespace(
    terminal: Terminal, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_run(terminal, FILE)
    assert terminal("claim-all", FILE, "path:docs").exit == 0
    monkeypatch.chdir(place.folders["other"])
    ran = terminal("claim-all", FILE, "path:docs")
    assert (ran.exit, "is the job of the run around" in ran.err) == (64, True)
