"""One word per idea: the names of classes and modules, the glossary in CONTRIBUTING.md, and the walk on the page."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from dibs.stores.port import Store

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dibs"
# Nouns that happen to end so.
NOUNS = {"listing", "naming", "testing", "pending", "ceiling"}
WALK = "## The walk of a claim"


@cache
def trees() -> dict[str, ast.Module]:
    """Every source file, by its path. To parse them all takes seconds."""
    return {
        file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for file in SOURCE.rglob("*.py")
    }


def test_no_public_class_has_the_name_of_another() -> None:
    found = defaultdict(list)
    for file, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(file)
    assert not {name: files for name, files in found.items() if len(files) > 1}


def test_a_module_is_named_by_a_noun() -> None:
    names = {file.stem for file in SOURCE.rglob("*.py")}
    assert not {name for name in names if name.endswith("ing")} - NOUNS


def test_a_line_is_no_connection_and_a_place_no_address() -> None:
    names = set()
    for file in SOURCE.rglob("*.py"):
        names |= set(re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name for name in names if re.search(r"(Line|Place)$", name)} <= {
        "StatusLine",
        "TokenLine",
        "TreeEntry",
    }


# What the field calls otherwise: transport, plugin, related sessions, fix, quota, report or notify.
NOT_OURS = r"(^|_)(doors?|annex(es)?|kin|kinship|mend(s|ed|ing)?|charged|recharged?|tell(s|ing)?|told)($|_)"


def test_a_docstring_begins_with_what_is_done_or_what_it_is() -> None:
    found = []
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                if re.match(r"(What|Whether|Which|How|Who|Why|When|Where)\b", text):
                    found.append(f"{file}: {text[:40]}")
    assert not found


def test_names_are_words_of_the_field() -> None:
    """Two stay, because they are stored: `Holder.told`, the last ticket that was reported to an owner, and `charge`."""
    found = set()
    for file, tree in trees().items():
        for node in ast.walk(tree):
            name = getattr(node, "name", None) or getattr(node, "arg", None) or getattr(node, "id", None)
            if isinstance(name, str) and re.search(NOT_OURS, name):
                found.add(f"{file}: {name}")
    assert found == {f"core/{rule}.py: told" for rule in ("claims/leases", "records", "waiting/tickets")}


def test_names_of_tests_are_words_of_the_field() -> None:
    """A caller may be told something, and a test tell two things apart. Otherwise as above."""
    found = set()
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for name in re.findall(r"\b(?:def|class) (\w+)", file.read_text(encoding="utf-8")):
            if re.search(NOT_OURS.replace("|tell(s|ing)?|told", ""), name):
                found.add(f"{file.relative_to(ROOT)}: {name}")
    assert not found


def test_the_glossary_says_each_word_once() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Words\n")[1].split("\n## ")[0]
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert len(words) > 15
    assert len(words) == len(set(words))


def test_every_function_of_the_walk_is_there() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8").split(WALK)[1]
    steps = re.findall(r"^\d+\. `([\w/]+\.py):([\w.]+)`", page, re.MULTILINE)
    assert len(steps) > 15
    missing = [f"{path}:{name}" for path, name in steps if name not in _functions(SOURCE / path)]
    assert not missing


def _functions(file: Path) -> set[str]:
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def test_the_port_has_as_many_methods_as_its_text_and_the_page_say() -> None:
    assert len(Store.__abstractmethods__) == 8
    assert "must have eight methods" in (inspect.getdoc(inspect.getmodule(Store)) or "")
    assert "eight methods" in (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
