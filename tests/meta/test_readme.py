"""The README is true: two commands set everything up, and both exist."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import dibs
from dibs.cli.framework.parse import parse, split_command
from dibs.cli.framework.registry import load

ROOT = Path(__file__).parents[2]


def code_lines(page: Path) -> list[str]:
    blocks = re.findall(r"^```[\w ]*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines()]


def scripts() -> set[str]:
    files = [file for folder in ("scripts", "scripts/dev") for file in (ROOT / folder).iterdir() if file.is_file()]
    return {file.relative_to(ROOT).as_posix() for file in files if file.suffix in ("", ".sh", ".py")}


def test_the_readme_sets_up_with_exactly_two_commands() -> None:
    commands = [line for line in code_lines(ROOT / "README.md") if line.startswith("scripts/")]
    assert commands == ["scripts/try", "scripts/test"]


def test_every_script_can_be_run() -> None:
    runnable = {name for name in scripts() if os.access(ROOT / name, os.X_OK)}
    assert runnable == {name for name in scripts() if not name.endswith(".sh")}
    assert {"scripts/try", "scripts/test"} <= runnable
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_five_scripts_are_for_everybody_and_the_rest_is_in_dev() -> None:
    top = ROOT / "scripts"  # a folder that was moved leaves its bytecode behind
    there = {path.relative_to(top).parts[0] for path in top.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert there == {"README.md", "bench", "dev", "format", "release", "test", "try"}


def test_the_page_of_scripts_lists_each_of_them() -> None:
    page = (ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(scripts/[\w./-]+)", page, re.MULTILINE)) == scripts()


def test_a_link_inside_the_repository_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "scripts").glob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not dead, "\n".join(dead)


def test_every_command_of_the_readme_can_be_typed() -> None:
    typed = [
        words
        for line in code_lines(ROOT / "README.md")
        for words in (shlex.split(part, comments=True) for part in line.split(";"))
        if words and words[0] == "dibs"
    ]
    assert len(typed) > 6
    for words in typed:
        name, rest = split_command(words[1:])
        assert name is not None, words
        parse(load(name), rest)  # raises UsageError for what does not exist


def test_what_the_readme_shows_in_python_is_there() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    compile(block, "README.md", "exec")
    used = set(re.findall(r"claim\.(\w+)", block)) - {"previous"}
    assert used <= set(dir(dibs.Claim))
