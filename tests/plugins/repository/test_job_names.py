"""What is written in several ways has one name: files of a work tree, and what the clone and its settings tell."""

from __future__ import annotations

import os
import subprocess
import unicodedata
from typing import TYPE_CHECKING

import pytest

from dibs.agents.repository.file_paths import parts_below, path_from_top, spelled_as_on_disk
from dibs.base.errors import InvalidInput, InvalidName
from dibs.client.naming import Naming
from dibs.wire.issue_names import is_plain
from tests.programs import clean_env

if TYPE_CHECKING:
    from pathlib import Path

ISSUE = "github://acme/app/issues/42"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in clean_env(tmp_path / "state").items() if not key.startswith("GIT_")}
    return kept | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


@pytest.fixture
def clone(tmp_path: Path, env: dict[str, str]) -> Path:
    top = tmp_path / "clone"
    (top / "src" / "deep").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(top)], env=env, check=True, timeout=60)
    origin = ["remote", "add", "origin", "git@github.com:Acme/App.git"]
    subprocess.run(["git", "-C", str(top), *origin], env=env, check=True, timeout=60)
    return top


def one(env: dict[str, str], folder: Path | None, name: str) -> str:
    return Naming(env, None if folder is None else str(folder)).of(name)


@pytest.mark.parametrize("folder", ["", "src", "src/deep"])
@pytest.mark.parametrize("name", ["#42", "GH-42", "acme/app#42", "https://github.com/Acme/App/pull/42", ISSUE])
def test_an_issue_has_one_name_in_its_clone(env: dict[str, str], clone: Path, folder: str, name: str) -> None:
    assert one(env, clone / folder, name) == ISSUE


@pytest.mark.parametrize("name", ["#42", "GH-42", "!42", "PROJ-42", "./src/a", "/etc/passwd", "deploy/web"])
def test_outside_of_a_clone_a_look_alike_stays(env: dict[str, str], tmp_path: Path, name: str) -> None:
    assert one(env, tmp_path, name) == name
    assert one(env, None, name) == name


def test_a_clone_of_an_unknown_host_keeps_short_forms_as_they_are(env: dict[str, str], clone: Path) -> None:
    words = ["git", "-C", str(clone), "remote", "set-url", "origin", "https://code.example.net/acme/app"]
    subprocess.run(words, env=env, check=True, timeout=60)
    found = Naming(env, str(clone)).explained("acme/app#42")
    assert found.name == "acme/app#42"
    assert "code.example.net/acme/app" in found.why
    (clone / ".dibs.toml").write_text('[names]\ngitlab = ["code.example.net"]\n', encoding="utf-8")
    assert one(env, clone, "acme/app#42") == "gitlab://code.example.net/acme/app/issues/42"
    assert one(env, clone, "#42") == "gitlab://code.example.net/acme/app/issues/42"


@pytest.mark.parametrize("address", ["upstream/app", "https://github.com/Upstream/App", "github.com/upstream/app"])
def test_a_fork_s_settings_name_the_repository_that_numbers_mean(
    env: dict[str, str], clone: Path, address: str
) -> None:
    (clone / ".dibs.toml").write_text(f'[names]\nrepository = "{address}"\n', encoding="utf-8")
    assert one(env, clone / "src", "#42") == "github://upstream/app/issues/42"


def test_bare_keys_count_only_for_projects_that_the_settings_name(env: dict[str, str], clone: Path) -> None:
    assert one(env, clone, "PROJ-42") == "PROJ-42"
    settings = '[names]\njira = {"acme.atlassian.net" = ["PROJ"]}\nlinear = {acme = ["ENG"]}\n'
    (clone / ".dibs.toml").write_text(settings, encoding="utf-8")
    assert one(env, clone, "PROJ-42") == "jira://acme.atlassian.net/PROJ-42"
    assert one(env, clone, "ENG-42") == "linear://acme/ENG-42"
    assert one(env, clone, "UTF-8") == "UTF-8"


@pytest.mark.parametrize(
    "settings",
    [
        "names = 3",
        "[names]\njira = 3",
        "[names]\ngithub = 'x'",
        "[names]\nlinear = {acme = 'ENG'}",
        "[names]\nrepo = 'a'",
    ],
)
def test_settings_that_cannot_be_meant_are_named(env: dict[str, str], clone: Path, settings: str) -> None:
    (clone / ".dibs.toml").write_text(settings, encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"\.dibs\.toml"):
        one(env, clone, "PROJ-42")
    assert one(env, clone, "issue-1842") == "issue-1842"


FILE_FORMS = [
    ("", "path:src/auth.rs"),
    ("", "path:./src//auth.rs"),
    ("", "./src/auth.rs"),
    ("", "path:link/auth.rs"),
    ("src", "path:src/auth.rs"),
    ("src", "path:./auth.rs"),
    ("src", "./auth.rs"),
    ("src/deep", "../auth.rs"),
    ("src/deep", "path:../auth.rs"),
    ("src/deep", "../../link/auth.rs"),
    ("src", "path:alias.rs/../auth.rs"),
]


@pytest.mark.parametrize(("folder", "name"), FILE_FORMS)
def test_a_file_has_one_name_from_every_folder(env: dict[str, str], clone: Path, folder: str, name: str) -> None:
    (clone / "link").symlink_to("src")
    if name.endswith("alias.rs/../auth.rs"):  # `..` in a path from the top is refused, as ever
        assert one(env, clone / folder, name) == name
        return
    assert one(env, clone / folder, name) == "path:src/auth.rs"


def test_absolute_forms_are_the_same_file(env: dict[str, str], clone: Path, tmp_path: Path) -> None:
    (clone / "src" / "auth.rs").touch()
    (tmp_path / "elsewhere").symlink_to(clone)
    (clone / "alias.rs").symlink_to("src/auth.rs")
    for name in (
        f"path:{clone}/src/auth.rs",
        f"{clone}/src/auth.rs",
        f"file://{clone}/src/auth%2Ers",
        f"file://localhost{clone}/src/auth.rs",
        f"{tmp_path}/elsewhere/src/auth.rs",
        f"{clone}/alias.rs",
        "path:alias.rs",
    ):
        assert one(env, clone, name) == "path:src/auth.rs", name


@pytest.mark.parametrize(
    "name",
    [
        "path:/etc/passwd",
        "/etc/passwd",
        "../../../../etc/passwd",
        "path:../../x",
        "file://otherhost/x",
        "file:///x%00",
        "file:///x%ff",
        "./a\0b",
        "./\ud800",
        ".",
        "./",
        "path:./",
        "/" + "x" * 100_000,
    ],
    ids=lambda name: ascii(name[:30]),
)
def test_what_is_no_file_of_the_work_tree_stays(env: dict[str, str], clone: Path, name: str) -> None:
    assert one(env, clone, name) == name


def test_a_loop_of_links_ends(env: dict[str, str], clone: Path) -> None:
    (clone / "a").symlink_to("b")
    (clone / "b").symlink_to("a")
    found = one(env, clone, "path:a/x")
    assert found.startswith("path:")
    assert one(env, clone, found) == found


def test_a_link_out_of_the_work_tree_is_not_followed(env: dict[str, str], clone: Path) -> None:
    (clone / "vendor").symlink_to("/usr")
    assert one(env, clone, "path:vendor/lib") == "path:vendor/lib"


def test_two_work_trees_of_one_clone_have_the_same_names(env: dict[str, str], clone: Path, tmp_path: Path) -> None:
    words = ["-c", "user.name=a", "-c", "user.email=a@b"]
    git = ["git", "-C", str(clone)]
    subprocess.run([*git, *words, "commit", "-q", "--allow-empty", "-m", "x"], env=env, check=True, timeout=60)
    subprocess.run([*git, "worktree", "add", "-q", str(tmp_path / "tree")], env=env, check=True, timeout=60)
    assert one(env, tmp_path / "tree", f"{tmp_path}/tree/src/a") == "path:src/a"
    assert one(env, tmp_path / "tree", "#42") == ISSUE


def test_case_and_unicode_form_stay_where_the_file_system_tells_them_apart(env: dict[str, str], clone: Path) -> None:
    composed = unicodedata.normalize("NFC", "caf\u00e9")
    apart = unicodedata.normalize("NFD", composed)
    (clone / composed).touch()
    (clone / "README").touch()
    assert one(env, clone, f"./{apart}") == f"path:{apart}"
    assert one(env, clone, "./readme") == "path:readme"


def test_where_the_file_system_folds_names_are_spelled_as_on_disk() -> None:
    apart = unicodedata.normalize("NFD", "caf\u00e9")
    folders = {"/App": ["Src", apart, "README"], "/App/Src": ["Auth.rs"]}

    def listed(folder: str) -> list[str]:
        if folder not in folders:
            raise FileNotFoundError(folder)
        return folders[folder]

    assert spelled_as_on_disk("/App", ["src", "AUTH.rs"], listed) == ["Src", "Auth.rs"]
    assert spelled_as_on_disk("/App", ["readme"], listed) == ["README"]
    assert spelled_as_on_disk("/App", ["CAF\u00c9"], listed) == ["caf\u00e9"]
    assert spelled_as_on_disk("/App", ["src", "New", "File.rs"], listed) == ["Src", "New", "File.rs"]
    assert parts_below("/Vol/Me/App", "/vol/me/app/Src", folds=True) == ["Src"]
    assert parts_below("/Vol/Me/App", "/vol/me/app/Src", folds=False) is None
    assert parts_below("/a/app", "/a/app2/x", folds=False) is None
    assert parts_below("/a/app", "/a/app", folds=False) is None


def test_a_path_can_be_told_for_a_hook_that_knows_the_top(clone: Path) -> None:
    assert path_from_top(str(clone), str(clone / "src"), "deep/x") == "src/deep/x"
    assert path_from_top(str(clone), "/", f"{clone}/src/deep/x") == "src/deep/x"
    assert path_from_top(str(clone), "/", "/etc/passwd") is None


def test_an_address_with_a_secret_is_refused_and_not_repeated(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidName) as refused:
        one(env, tmp_path, "https://ann:hunter2@ci.example/job/7")
    assert "hunter2" not in str(refused.value)
    exact = Naming(env, str(tmp_path), exact=True)
    assert exact.of("https://ann:hunter2@ci.example/job/7").endswith("job/7")


def test_plain_names_are_recognised_by_their_characters() -> None:
    assert all(is_plain(name) for name in ("issue-1842", "deploy:production", "", 3, None, "repo:app"))
    assert not any(is_plain(name) for name in ("a/b", "#1", "!1", "PROJ-1", "path:x"))
