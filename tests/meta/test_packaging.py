"""What is said about a release beside the code: description, bill of materials, and how MCP clients start it."""

from __future__ import annotations

import re
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dibs._version import __version__
from native.description import addresses, described, registry_name
from scripts.dev.packaging import choice
from scripts.dev.packaging.contents import strays
from scripts.dev.packaging.documents import DESCRIPTION, bill_of_materials, server_document

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
URL = "https://github.com/acme/dibs"


def test_without_an_address_a_description_has_no_link_into_the_repository() -> None:
    text = described(README, "", __version__)
    assert re.findall(r"\]\((?!https?://)", text) == []
    assert "mcp-name" not in text
    assert "[CONTRIBUTING.md]" not in text
    assert "CONTRIBUTING.md" in text


def test_with_an_address_every_link_leads_to_a_file_of_this_version() -> None:
    text = described(README, URL, "0.2.0")
    assert re.findall(r"\]\((?!https://)", text) == []
    assert f"another takes over]({URL}/raw/v0.2.0/docs/demo.svg)" in text
    inside = re.findall(rf"\]\({URL}/(?:blob|raw)/v0\.2\.0/([^)#]+)", text)
    assert len(inside) > 20
    assert not [path for path in inside if not (ROOT / path).exists()]
    assert all(each.startswith(URL) for each in addresses(URL, "0.2.0").values())


def test_the_registry_of_mcp_servers_finds_its_name_in_the_description() -> None:
    document = server_document(URL, __version__)
    assert document is not None
    assert document["name"] == registry_name(URL) == "io.github.acme/dibs"
    assert f"<!-- mcp-name: {document['name']} -->\n" in described(README, URL, __version__)
    assert len(DESCRIPTION) <= 100
    (package,) = document["packages"]
    assert (package["identifier"], package["version"]) == ("dibs-lease", document["version"])


def test_an_address_that_is_not_of_github_is_not_listed() -> None:
    assert registry_name("https://gitlab.com/acme/dibs") is None
    assert server_document("", __version__) is None


@pytest.mark.full
def test_a_bill_of_materials_names_dibs_and_what_it_needs(tmp_path: Path) -> None:
    wheel = tmp_path / "dibs.whl"
    wheel.write_bytes(b"a wheel")
    bill = bill_of_materials(list(distributions()), wheel, 0)
    assert bill == bill_of_materials(list(distributions()), wheel, 0)
    main = bill["metadata"]["component"]
    assert (main["name"], main["licenses"]) == ("dibs-lease", [{"expression": "MIT"}])
    assert "pkg:pypi/dibs-lease" not in str(bill["components"])
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert any(each.startswith("pkg:pypi/httptools@") for each in needs[main["bom-ref"]])


def test_what_git_does_not_know_does_not_belong_into_a_wheel_or_an_sdist() -> None:
    tracked = {"src/dibs/core/claims/acquire.py", "README.md"}
    fine = [
        "dibs/core/claims/acquire.py",
        "dibs/core/claims/acquire.cpython-313-x86_64-linux-gnu.so",
        "dibs__mypyc.cpython-313-x86_64-linux-gnu.so",
        "dibs_lease-0.2.0.dist-info/METADATA",
        "dibs_lease-0.2.0.data/data/share/man/man1/dibs.1",
    ]
    wrong = ["dibs/left.py", "dibs/core/__pycache__/claims.pyc", "tests/x.py", "dibs_lease-0.2.0.data/scripts/x"]
    assert strays([*fine, *wrong], tracked, is_wheel=True) == wrong
    assert strays(["README.md", "PKG-INFO", "notes.txt"], tracked, is_wheel=False) == ["notes.txt"]


@pytest.mark.fault("F-430")
def test_the_version_is_that_of_a_dated_section_or_a_later_one_that_ends_in_dev() -> None:
    """What is between two releases must not call itself by the name of either."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## ")[0].strip()
    number, _, is_dev = __version__.partition(".dev")
    if is_dev:
        assert number not in dated
        assert [int(part) for part in number.split(".")] > [int(part) for part in dated[0].split(".")]
    else:
        assert (number, unreleased) == (dated[0], ""), "after a release the version ends in .dev"


def semantic(version: str) -> str:
    """As npm and the plugins of agents want it."""
    return version.replace(".dev", "-dev.")


def test_everything_that_names_the_version_names_this_one() -> None:
    for path in ("plugin/.claude-plugin/plugin.json", "plugin/.codex-plugin/plugin.json"):
        assert f'"version": "{semantic(__version__)}"' in (ROOT / path).read_text(encoding="utf-8")
    assert f"/dibs:{__version__}\n" in (ROOT / "deploy/kubernetes/dibs.yaml").read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found


def test_a_release_has_a_compiled_wheel_for_each_python_of_the_classifiers() -> None:
    said = "\n".join(project()["project"]["classifiers"])
    pythons = re.findall(r"Python :: (3\.\d+)$", said, re.MULTILINE)
    assert len(pythons) > 1
    built = project()["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{each.replace('.', '')}-manylinux_*" for each in pythons]
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    steps = yaml.safe_load(workflow)["jobs"]["build"]["steps"]
    (setup,) = [step for step in steps if step.get("uses", "").startswith("actions/setup-python@")]
    assert setup["with"]["python-version"].split() == pythons
    programs = " ".join(f"python{each}" for each in pythons)
    assert f'PYTHONS="{programs}" scripts/release --check' in workflow
    assert f"${{PYTHONS-{programs}}}" in (ROOT / "scripts/release").read_text(encoding="utf-8")


def test_a_compiled_wheel_is_made_for_both_processors() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["wheels"]["strategy"]["matrix"]["runs-on"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert jobs["build"]["needs"] == "wheels"
    assert project()["tool"]["cibuildwheel"]["environment"] == {"DIBS_COMPILE": "1"}


def empty_wheel(folder: Path, tag: str) -> str:
    name = f"dibs_lease-1.0-{tag}.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("dibs_lease-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: dibs-lease\nVersion: 1.0\n")
        wheel.writestr("dibs_lease-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
    return name


@pytest.mark.full
def test_pip_takes_the_compiled_wheel_where_it_fits_and_the_pure_one_elsewhere(tmp_path: Path) -> None:
    """The names are those that cibuildwheel gives."""
    pure = empty_wheel(tmp_path, "py3-none-any")
    intel = empty_wheel(tmp_path, "cp313-cp313-manylinux_2_26_x86_64.manylinux_2_28_x86_64")
    arm = empty_wheel(tmp_path, "cp313-cp313-manylinux_2_26_aarch64.manylinux_2_28_aarch64")
    expected = choice.wanted([pure, intel, arm])
    assert expected[:2] == [("3.13", "manylinux_2_28_x86_64", intel), ("3.13", "manylinux_2_28_aarch64", arm)]
    places = [*expected[:4], ("3.12", "manylinux_2_28_x86_64", pure)]  # no compiled one for that Python here
    assert [choice.chosen(tmp_path, python, platform) for python, platform, _ in places] == [
        name for _, _, name in places
    ]
