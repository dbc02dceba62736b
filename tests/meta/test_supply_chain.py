"""What is downloaded to build, test and publish is named so that nobody can change it: by commit, hash or checksum."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "requirements"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# The lock file of each way to install, with the extras that it is for.
EXTRAS = {"image.txt": ("server", "postgres", "etcd", "oidc"), "dev.txt": ("dev", "site")}


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found


def wanted(extra: str) -> list[Requirement]:
    """What an extra asks for, with what the extras that it names ask for."""
    found = []
    for each in map(Requirement, project()["project"]["optional-dependencies"][extra]):
        if each.name == project()["project"]["name"]:
            found += [one for other in each.extras for one in wanted(other)]
        else:
            found.append(each)
    return found


def locked(name: str) -> dict[str, list[str]]:
    """The versions of each package in a lock file. Python versions may have different ones."""
    found: dict[str, list[str]] = {}
    for line in (LOCKS / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith((" ", "#")):
            package, version = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==([^ ;]+)", line).groups()  # type: ignore[union-attr]
            found.setdefault(canonicalize_name(package), []).append(version)
    return found


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_file_has_what_its_extras_ask_for(name: str) -> None:
    """If it fails: scripts/dev/lock."""
    versions = locked(name)
    for each in [one for extra in EXTRAS[name] for one in wanted(extra)]:
        found = versions.get(canonicalize_name(each.name), [])
        assert found, f"{each} is not in requirements/{name}"
        assert all(each.specifier.contains(version, prereleases=True) for version in found), (str(each), found)


def test_what_builds_the_wheel_is_locked() -> None:
    asked = [Requirement(text) for text in project()["build-system"]["requires"]]
    for name in ("build.txt", "dev.txt"):
        for each in asked:
            assert all(each.specifier.contains(version) for version in locked(name)[canonicalize_name(each.name)])


def test_what_compiles_the_wheel_is_locked() -> None:
    hook = (ROOT / "native/hook.py").read_text(encoding="utf-8")
    tools = re.findall(r'"(.+?)"', hook.partition("TOOLS = [")[2].partition("]\n")[0])
    assert len(tools) == 2
    for each in map(Requirement, tools):
        assert all(each.specifier.contains(version) for version in locked("build.txt")[canonicalize_name(each.name)])


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.name)
def test_every_package_of_a_lock_file_has_hashes_and_no_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert not re.search(r"://|--index|--find-links|--extra-index| @ ", text)


def test_the_base_of_the_image_is_named_where_the_updater_looks() -> None:
    """Dependabot changes FROM, and no ARG that FROM names."""
    image = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    bases = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", image, re.MULTILINE)
    stages = {stage for _, stage in bases}
    (outside,) = [base for base, _ in bases if base not in stages]
    assert re.match(r"[a-z]+:\d", outside)


def test_the_image_and_ci_install_by_the_lock_files() -> None:
    image = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip (?:install|wheel) (.*?) \\$", image, re.MULTILINE)
    assert len(installs) == 4
    assert [
        each for each in installs if "--require-hashes -r requirements/" not in each and "--no-deps" not in each
    ] == []
    assert '--require-hashes -r "$ROOT/requirements/dev.txt"' in (ROOT / "scripts/dev/lib.sh").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_named_by_its_commit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, remark in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.match(r" # v\d", remark), f"{action}: of which version?"


def test_a_release_installs_packages_by_the_lock_files_only() -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    settings = project()["tool"]["cibuildwheel"]
    installs = [*re.findall(r"pip install .*", workflow), settings["before-build"], settings["before-test"]]
    assert len(installs) == 3
    assert [each for each in installs if "pip install --require-hashes -r " not in each] == []
    assert settings["build-frontend"]["args"] == ["--no-build-isolation"]


def test_what_a_workflow_downloads_is_checked_before_it_is_run() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert "releases/latest" not in text
    assert not re.search(r"curl [^\n]*\| *(?:tar|sh|bash)", text)
    downloads = [match.start() for match in re.finditer("curl ", text)]
    checks = [match.start() for match in re.finditer("sha256sum --check --strict", text)]
    assert len(downloads) == len(checks)
    assert all(
        download < check < text.index("tar -x", download) for download, check in zip(downloads, checks, strict=True)
    )


def test_a_release_is_attested_before_it_is_published() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    steps = [step.get("uses", step.get("run", "")) for step in jobs["build"]["steps"]]
    attests = next(index for index, step in enumerate(steps) if step.startswith("actions/attest-build-provenance@"))
    uploads = next(index for index, step in enumerate(steps) if step.startswith("actions/upload-artifact@"))
    assert attests < uploads
    assert jobs["build"]["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}


def test_an_updater_knows_everything_that_is_pinned() -> None:
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text(encoding="utf-8"))["updates"]
    places = {(each["package-ecosystem"], each["directory"]) for each in updates}
    assert ("github-actions", "/") in places
    assert ("pip", "/requirements") in places
    assert {("docker", "/deploy/docker"), ("docker-compose", "/deploy/docker")} <= places
    assert {("npm", "/clients/typescript"), ("npm", "/models")} <= places
    assert all((ROOT / place.lstrip("/")).is_dir() for _, place in places)
