"""The files of deploy/ are complete, agree with the code, and are as strict as they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dibs.server.routes.operations import OPERATIONS
from dibs.server.settings import DEFAULT_BIND

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PORT = int(DEFAULT_BIND.rpartition(":")[2])
EXPOSURE_MAX = 1.5


def documents(path: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / path).read_text()) if each]


def kinds() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in documents("kubernetes/dibs.yaml")}


def container() -> dict[str, Any]:
    (found,) = kinds()["Deployment"]["spec"]["template"]["spec"]["containers"]
    made: dict[str, Any] = found
    return made


@pytest.mark.parametrize("path", [str(each.relative_to(DEPLOY)) for each in sorted(DEPLOY.rglob("*.yaml"))])
def test_every_yaml_file_can_be_read(path: str) -> None:
    assert documents(path)


def test_the_readme_lists_every_file() -> None:
    readme = (DEPLOY / "README.md").read_text()
    files = [each.relative_to(DEPLOY) for each in DEPLOY.rglob("*") if each.is_file()]
    missing = [str(each) for each in files if f"`{each}`" not in readme]
    assert sorted(missing) == ["README.md", "docker/Dockerfile.dockerignore"]


def test_everything_is_on_the_port_that_dibs_has() -> None:
    assert container()["ports"] == [{"name": "http", "containerPort": PORT}]
    assert kinds()["Service"]["spec"]["ports"][0]["port"] == PORT
    assert f"EXPOSE {PORT}" in (DEPLOY / "docker/Dockerfile").read_text()
    assert f"bind :{PORT}" in (DEPLOY / "haproxy/haproxy.cfg").read_text()


def test_what_is_asked_about_a_server_is_what_it_answers() -> None:
    text = "\n".join(each.read_text() for each in DEPLOY.rglob("*") if each.is_file())
    asked = set(re.findall(r"(?<=[ '\d])(/(?:health|ready)z?)\b", text))
    assert asked
    assert asked <= {operation.path for operation in OPERATIONS.values()}


def test_nothing_runs_as_root() -> None:
    pod = kinds()["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    user = re.search(r"^USER (\d+):(\d+)$", (DEPLOY / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert int(user[1]) == pod["securityContext"]["runAsUser"] != 0


def test_a_pod_has_time_to_drain() -> None:
    words = container()["args"]
    drain_s = int(words[words.index("--drain") + 1].removesuffix("s"))
    sleep_s = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    grace_s = kinds()["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= drain_s + sleep_s + 10


def test_selectors_find_the_pods() -> None:
    labels = kinds()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds()["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds()["Service"]["spec"]["selector"] == labels
    assert kinds()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds()["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert kinds()["PodDisruptionBudget"]["spec"]["minAvailable"] < kinds()["Deployment"]["spec"]["replicas"]


def test_the_image_holds_what_it_copies() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    ignore = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for each in copied.split():
            assert (ROOT / each).exists(), each
            assert f"!{each}" in ignore


def test_a_wheel_can_be_built_from_what_the_image_copies(tmp_path: Path) -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    sources = tmp_path / "src"
    sources.mkdir()
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for each in copied.split():
            tracked = subprocess.run(
                ["git", "ls-files", "--", each], cwd=ROOT, capture_output=True, text=True, check=True
            )
            for file in tracked.stdout.split("\n")[:-1]:
                (sources / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, sources / file)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=sources,
        env={**os.environ, "DIBS_COMPILE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {"dibs/core/decide.py", "dibs/server/dashboard/index.html"} <= set(archive.namelist())


def test_the_image_has_the_compiled_build_and_no_compiler() -> None:
    build, final = (DEPLOY / "docker/Dockerfile").read_text().split("\nFROM base\n")
    assert "gcc" in build
    assert "DIBS_COMPILE=1 /opt/build/bin/pip wheel" in build
    assert not re.search("gcc|apt-get|pip", final)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_one_and_is_as_tight_as_the_page_says(tmp_path: Path) -> None:
    unit = tmp_path / "dibs.service"
    text = (DEPLOY / "systemd/dibs.service").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("Documentation=")]
    unit.write_text("\n".join(lines).replace("/opt/dibs/bin/dibs", "/bin/true") + "\n")
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True, check=False
    )
    level = re.search(r"exposure level for dibs\.service: ([\d.]+)", judged.stdout)
    assert level is not None, judged.stdout
    assert float(level[1]) <= EXPOSURE_MAX
