"""A setting has an author: what a repository says of address, namespace and tokens counts only where the user said
`dibs trust`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.agents.repository import settings as repository_settings
from dibs.agents.repository.settings import policy_of
from dibs.agents.repository.work_tree import Repository
from dibs.client import setting_sources
from dibs.client.setting_sources import ALWAYS, CLONE, NEVER, SETTINGS, TRACKED, TRUSTED, USER
from dibs.client.settings import Settings
from dibs.client.urls import server_address
from tests.programs import DIBS, WAIT_S_MAX, Ran, clean_env, dibs_here

if TYPE_CHECKING:
    from collections.abc import Callable

ELSEWHERE = "https://elsewhere.example"


class Home:
    """A user with a home of their own, and repositories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config"
        self.env = clean_env(
            folder / "state",
            HOME=str(folder),
            XDG_CONFIG_HOME=str(self.config),
            GIT_CONFIG_GLOBAL=str(folder / "gitconfig"),
            GIT_CONFIG_NOSYSTEM="1",
        )

    def git(self, *words: str, cwd: Path) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "protocol.file.allow=always")
        subprocess.run(
            ["git", *identity, *words], cwd=cwd, env=self.env, check=True, capture_output=True, timeout=WAIT_S_MAX
        )

    def repository(self, name: str = "app", *flags: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        self.git("init", "-q", "-b", "main", *flags, cwd=folder)
        (folder / "a").write_text("a\n")
        self.git("add", "-A", cwd=folder)
        self.git("commit", "-q", "-m", "m", cwd=folder)
        self.git("config", "dibs.url", ELSEWHERE, cwd=folder)
        return folder

    def dibs(self, folder: Path, *words: str, **env: str) -> Ran:
        return Ran(words, dibs_here({**self.env, **env}, folder, *words))

    def trusts(self, folder: Path, **env: str) -> bool:
        """Whether the repository's own words on the address count, seen from its folder, and as a hook sees it."""
        everything = {**self.env, **env}
        found = policy_of(Repository.here(everything, str(folder)))
        assert ("url" in found.place) is not ("url" in found.ignored)
        if not env:
            again = policy_of(Repository.at(everything, Repository.here(everything, str(folder)).top))
            assert again.place == found.place
        return "url" in found.place


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


# The table.


@pytest.mark.parametrize("name", SETTINGS)
def test_only_the_user_says_where_claims_and_tokens_go_or_who_trusts_the_repository(name: str) -> None:
    setting = SETTINGS[name]
    of_address = {"url", "token", "token_file", "namespace", "tracker.writes"}
    for author in (CLONE, TRACKED):
        assert not (name in of_address and setting.may_come_from(author, is_trusted=False))
        assert not ("token" in name and setting.may_come_from(author, is_trusted=True))
    assert not SETTINGS["url"].may_come_from(TRACKED, is_trusted=True)
    assert setting.may_come_from(USER, is_trusted=False)
    assert {setting.clone, setting.tracked} <= {NEVER, TRUSTED, ALWAYS}


def test_every_setting_that_a_repository_s_file_may_have_is_in_the_table() -> None:
    tables = {
        "": repository_settings._KEYS,
        "agent": tuple(repository_settings._AGENT),
        "tracker": (*repository_settings._TRACKER, "writes"),
        "names": tuple(job_names_keys()),
    }
    for table, keys in tables.items():
        assert set(keys) == set(setting_sources.keys_of(table)) - {"prefix"}, table


def job_names_keys() -> list[str]:
    from dibs.agents.repository import job_names

    return list(job_names._MEANT)


@pytest.mark.parametrize("author", [USER, CLONE, TRACKED])
@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("name", ["url", "namespace", "policy", "unreachable"])
def test_a_repository_s_settings_count_as_the_table_says(home: Home, author: str, is_trusted: bool, name: str) -> None:
    values = {"url": ELSEWHERE, "namespace": "chosen", "policy": "require", "unreachable": "block"}
    folder = home.repository()
    home.git("config", "--unset", "dibs.url", cwd=folder)
    if is_trusted:
        assert home.dibs(folder, "trust").exit == 0
    if author == USER:
        home.git("config", "--global", f"dibs.{name}", values[name], cwd=folder)
    elif author == CLONE:
        home.git("config", f"dibs.{name}", values[name], cwd=folder)
    elif SETTINGS[name].tracked == NEVER:
        return  # an error of its own
    else:
        (folder / ".dibs.toml").write_text(f'{name} = "{values[name]}"\n')
    found = policy_of(Repository.here(home.env, str(folder)))
    said = found.place.get(name) if name in ("url", "namespace") else getattr(found, name)
    assert (said == values[name]) is SETTINGS[name].may_come_from(author, is_trusted=is_trusted)


def test_the_file_in_the_git_folder_is_the_repository_s_too(home: Home) -> None:
    folder = home.repository()
    home.git("config", "--unset", "dibs.url", cwd=folder)
    (folder / ".git" / "dibs").mkdir()
    (folder / ".git" / "dibs" / "config.toml").write_text(f'url = "{ELSEWHERE}"\npolicy = "require"\n')
    found = policy_of(Repository.here(home.env, str(folder)))
    assert (found.place.get("url"), found.policy) == (None, "require")
    assert home.dibs(folder, "trust").exit == 0
    assert policy_of(Repository.here(home.env, str(folder))).place["url"] == ELSEWHERE


def test_settings_that_nobody_reads_from_a_repository_are_not_shown(home: Home) -> None:
    folder = home.repository()
    home.git("config", "dibs.token", "dibs_secret", cwd=folder)
    home.git("config", "dibs.owner", "root", cwd=folder)
    assert policy_of(Repository.here(home.env, str(folder))).ignored == {"url": ELSEWHERE}


# Which repository is trusted.


def test_trust_is_given_listed_and_taken_back(home: Home) -> None:
    folder = home.repository()
    assert not home.trusts(folder)
    assert home.dibs(folder, "trust", "--list").out == "No repository is trusted.\n"
    ran = home.dibs(home.folder, "trust", "app")
    assert ELSEWHERE in ran.out
    assert home.trusts(folder)
    path = home.config / "dibs" / "trusted"
    assert path.read_text() == f"{folder}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert home.dibs(folder, "trust").exit == 0  # again: nothing changes
    assert home.dibs(folder, "trust", "--list").out == f"{folder}\n"
    assert home.dibs(folder, "trust", "--remove").exit == 0
    assert not home.trusts(folder)
    assert home.dibs(folder, "trust", "--remove").exit == 1


@pytest.mark.e2e
@pytest.mark.fault("F-361")
def test_trust_that_is_given_and_taken_back_at_once_is_all_noted(home: Home) -> None:
    old, new = [[home.repository(f"{kind}-{number}") for number in range(4)] for kind in ("old", "new")]
    for folder in old:
        assert home.dibs(folder, "trust").exit == 0
    commands = [[*DIBS, "trust", str(folder)] for folder in new]
    commands += [[*DIBS, "trust", "--remove", str(folder)] for folder in old]
    running = [subprocess.Popen(words, env=home.env, stdout=subprocess.DEVNULL) for words in commands]
    assert [each.wait(WAIT_S_MAX) for each in running] == [0] * len(running)
    assert home.dibs(new[0], "trust", "--list").out.split() == [str(folder) for folder in new]


def test_a_subfolder_and_a_linked_work_tree_are_trusted_with_their_repository(home: Home) -> None:
    folder = home.repository()
    (folder / "src").mkdir()
    home.git("worktree", "add", "-q", str(home.folder / "linked"), cwd=folder)
    assert not home.trusts(home.folder / "linked")
    assert home.dibs(folder / "src", "trust").exit == 0
    assert home.trusts(folder / "src")
    assert home.trusts(home.folder / "linked")
    assert home.dibs(home.folder / "linked", "trust", "--remove").exit == 0
    assert not home.trusts(folder)
    assert home.dibs(home.folder / "linked", "trust").exit == 0
    assert home.trusts(folder)


def test_a_submodule_is_a_repository_of_its_own(home: Home) -> None:
    inner, outer = home.repository("inner"), home.repository("outer")
    home.git("submodule", "add", "-q", str(inner), "lib", cwd=outer)
    home.git("config", "dibs.url", ELSEWHERE, cwd=outer / "lib")
    assert home.dibs(outer, "trust").exit == 0
    assert home.trusts(outer)
    assert not home.trusts(outer / "lib")
    assert home.dibs(outer / "lib", "trust").exit == 0
    assert home.trusts(outer / "lib")


def test_a_git_folder_elsewhere_is_trusted_with_the_work_tree_that_was_meant(home: Home) -> None:
    folder = home.repository("app", f"--separate-git-dir={home.folder}/apart.git")
    assert home.dibs(folder, "trust").exit == 0
    assert home.trusts(folder)
    stranger = home.folder / "stranger"
    stranger.mkdir()
    (stranger / ".git").write_text(f"gitdir: {home.folder}/apart.git\n")
    assert not home.trusts(stranger)


def _points_by_file(stranger: Path, trusted: Path) -> None:
    (stranger / ".git").write_text(f"gitdir: {trusted}/.git\n")


def _points_by_link(stranger: Path, trusted: Path) -> None:
    (stranger / ".git").symlink_to(trusted / ".git")


def _points_as_a_linked_tree(stranger: Path, trusted: Path) -> None:
    (stranger / ".git").write_text(f"gitdir: {trusted}/.git/worktrees/linked\n")


def _has_a_common_folder(stranger: Path, trusted: Path) -> None:
    (stranger / ".git").mkdir()
    (stranger / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (stranger / ".git" / "commondir").write_text(f"{trusted}/.git\n")
    (stranger / ".git" / "gitdir").write_text(f"{stranger}/.git\n")


@pytest.mark.parametrize("points", [_points_by_file, _points_by_link, _points_as_a_linked_tree, _has_a_common_folder])
def test_a_folder_that_points_at_a_trusted_repository_is_not_trusted(
    home: Home, points: Callable[[Path, Path], None]
) -> None:
    trusted = home.repository()
    home.git("worktree", "add", "-q", str(home.folder / "linked"), cwd=trusted)
    assert home.dibs(trusted, "trust").exit == 0
    stranger = home.folder / "stranger"
    stranger.mkdir()
    points(stranger, trusted)
    (stranger / ".dibs.toml").write_text('namespace = "victim"\n')
    found = policy_of(Repository.at(home.env, str(stranger)))
    assert found.place["namespace"] != "victim"
    assert home.trusts(trusted)


def test_a_trusted_path_that_was_moved_or_is_a_link_now_is_not_trusted_there(home: Home) -> None:
    folder, other = home.repository(), home.repository("other")
    assert home.dibs(folder, "trust").exit == 0
    folder.rename(home.folder / "moved")
    assert not home.trusts(home.folder / "moved")
    folder.symlink_to(other)
    assert not home.trusts(folder)
    assert home.dibs(home.folder, "trust", "--remove", "nowhere").exit == 1
    folder.unlink()
    assert home.dibs(home.folder, "trust", "--remove", "app").exit == 0
    assert home.dibs(home.folder, "trust", "--list").out == "No repository is trusted.\n"


def test_the_repository_that_git_dir_names_is_the_one_that_is_trusted(home: Home) -> None:
    folder, other = home.repository(), home.repository("other")
    assert home.dibs(folder, "trust").exit == 0
    assert not home.trusts(other, GIT_DIR=str(other / ".git"), GIT_WORK_TREE=str(folder))
    assert not home.trusts(other, GIT_DIR=str(folder / ".git"), GIT_WORK_TREE=str(other))
    assert home.trusts(other, GIT_DIR=str(folder / ".git"), GIT_WORK_TREE=str(folder))
    # A hook means the folder of its event, whatever the environment says.
    named = Repository.at({**home.env, "GIT_DIR": str(other / ".git")}, str(folder))
    assert policy_of(named).place["url"] == ELSEWHERE


def test_a_bare_repository_and_no_repository_cannot_be_trusted(home: Home) -> None:
    home.git("init", "-q", "--bare", "bare.git", cwd=home.folder)
    for place in ("bare.git", ".", "nowhere"):
        assert home.dibs(home.folder, "trust", place).exit == 64
    assert not (home.config / "dibs" / "trusted").exists()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_list_that_others_can_write_trusts_nothing(home: Home, mode: int) -> None:
    folder = home.repository()
    assert home.dibs(folder, "trust").exit == 0
    path = home.config / "dibs" / "trusted"
    path.chmod(mode)
    assert not home.trusts(folder)
    ran = home.dibs(folder, "trust", "--list")
    assert ran.exit == 64
    assert "others can write it" in ran.err
    assert home.dibs(folder, "trust").exit == 64  # it would bring in what others wrote


def test_a_list_of_another_user_trusts_nothing(home: Home, need_root: None) -> None:
    folder = home.repository()
    assert home.dibs(folder, "trust").exit == 0
    os.chown(home.config / "dibs" / "trusted", 65534, 65534)
    assert not home.trusts(folder)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_list_that_is_no_file_is_an_error_and_no_trust(home: Home, make: Callable[[Path], None]) -> None:
    folder = home.repository()
    (home.config / "dibs").mkdir(parents=True)
    make(home.config / "dibs" / "trusted")
    assert home.dibs(folder, "trust", "--list").exit == 64
    assert "ordinary" in home.dibs(folder, "hook", "run", "pre-commit").err


def test_without_a_home_nothing_is_trusted(home: Home) -> None:
    folder = home.repository()
    for name in ("HOME", "XDG_CONFIG_HOME"):
        home.env.pop(name)
    assert not home.trusts(folder)
    ran = home.dibs(folder, "trust")
    assert ran.exit == 64
    assert "Set HOME" in ran.err


def test_a_folder_with_any_bytes_in_its_name_can_be_trusted_but_for_line_breaks(home: Home) -> None:
    odd = home.repository(os.fsdecode(b"caf\xe9 \xf0\x9f\xa6\x8a"))
    assert home.dibs(odd, "trust").exit == 0
    assert home.trusts(odd)
    broken = home.repository("two\nlines")
    assert home.dibs(broken, "trust").exit == 64
    assert "lines" not in home.dibs(odd, "trust", "--list").out


@pytest.mark.parametrize("sign", ["CLAUDE_CODE_SESSION_ID", "GEMINI_CLI"])
def test_a_coding_agent_cannot_trust(home: Home, sign: str) -> None:
    folder = home.repository()
    ran = home.dibs(folder, "trust", **{sign: "0b3a7f52-9c1e-4b7a-8f36-2d1c5e9a4b60"})
    assert ran.exit == 64
    assert "for a person to say" in ran.err
    assert not home.trusts(folder)


# What the user is told, and who gets a token.


@pytest.mark.fault("F-310")
def test_an_untrusted_url_is_said_once_with_the_step_and_the_user_s_own_store_is_used(home: Home) -> None:
    folder = home.repository()
    (folder / "b").write_text("b\n")
    home.git("add", "-A", cwd=folder)
    first, again = (home.dibs(folder, "hook", "run", "pre-commit") for _ in range(2))
    assert (first.exit, again.exit) == (0, 0)
    assert ELSEWHERE in first.err
    assert "dibs trust" in first.err
    assert again.err == ""
    assert ELSEWHERE in home.dibs(folder, "hook", "install").out
    assert ELSEWHERE in home.dibs(folder, "hook", "status").out


@pytest.mark.fault("F-312")
@pytest.mark.parametrize("source", ["DIBS_TOKEN", "DIBS_TOKEN_FILE", "token_file"])
def test_a_token_without_a_server_goes_only_where_the_user_said(home: Home, source: str) -> None:
    (home.folder / "token").write_text("dibs_secret\n")
    (home.config / "dibs").mkdir(parents=True)
    env = dict(home.env)
    if source == "token_file":
        (home.config / "dibs" / "config.toml").write_text(f'token_file = "{home.folder}/token"\n')
    else:
        env[source] = "dibs_secret" if source == "DIBS_TOKEN" else str(home.folder / "token")
    there = server_address(ELSEWHERE)
    of_repository: Any = {"url": ELSEWHERE}
    assert Settings({}, env, of_repository).token(there) is None
    assert Settings({"url": ELSEWHERE}, env, of_repository).token(there) == "dibs_secret"
    assert Settings({}, {**env, "DIBS_URL": ELSEWHERE}, of_repository).token(there) == "dibs_secret"
    (home.config / "dibs" / "logins").write_text(f"{there.origin} dibs_saved\n")
    assert Settings({}, env, of_repository).token(there) == "dibs_saved"


def test_a_second_transport_of_a_command_has_the_same_author(home: Home) -> None:
    settings = Settings({}, {**home.env, "DIBS_TOKEN": "dibs_secret"}, {"url": ELSEWHERE, "namespace": "team"})
    other = settings.but_with({"timeout": "1s"})
    assert (other.url, other.namespace, other.has_url_of_repository) == (ELSEWHERE, "team", True)
    assert other.token(server_address(ELSEWHERE)) is None
    assert settings.but_with({"namespace": None}).namespace is None


@pytest.mark.fault("F-314")
@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_tracked_file_chooses_a_foreign_namespace_only_if_the_user_trusts_it(home: Home, is_trusted: bool) -> None:
    folder = home.repository()
    home.git("config", "--unset", "dibs.url", cwd=folder)
    (folder / ".dibs.toml").write_text(
        'namespace = "default"\n[[agent.command]]\nmatch = "ls"\nclaim = "deploy-production"\n'
    )
    if is_trusted:
        assert home.dibs(folder, "trust").exit == 0
    for tool, given in (("Bash", {"command": "ls"}), ("Edit", {"file_path": str(folder / "a")})):
        event = {"hook_event_name": "PreToolUse", "cwd": str(folder), "tool_name": tool, "tool_input": given}
        done = dibs_here(
            home.env,
            folder,
            "agent",
            "hook",
            stdin=json.dumps({**event, "session_id": "one-1111", "transcript_path": "/t"}),
        )
        assert (done.returncode, done.stderr) == (0, "")
    held = [name for name in home.dibs(home.folder, "list", "-q").out.split() if "@" not in name]
    assert held == (["deploy-production", "path:a"] if is_trusted else [])
