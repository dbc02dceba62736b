"""What README, tutorials and how-tos tell their reader to type works, and prints what they say it prints.

The pages are typed one after the other, in the order of docs/README.md, on one machine and in one home, as somebody
would who reads them all. Each leaves the machine as it found it, but for jobs of its own and files. `-k tokens` types
one page alone.

DIBS_REWRITE=1 puts what really came out into the pages, where it differs by more than ids and times.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.stores.registry import open_store
from tests.docs.machine import NEEDS, Machine
from tests.docs.pages import DOCS, ROOT, blocks, read
from tests.docs.transcript import SAVED, Said, is_known, run_page, shape_of
from tests.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.full

# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
LINK = re.compile(r"\]\(((?:tutorial|how-to|reference)/[\w-]+\.md)\)")
# The pages that say what to do, in the order in which the documentation lists them.
PAGES = [ROOT / "README.md", *(DOCS / name for name in LINK.findall(read(DOCS / "README.md")))]
TYPED = [page for page in PAGES if any("run" in block.info.split() for block in blocks(read(page)))]
# README shows a part of a program, too.
WHOLE = [page for page in PAGES[1:] if page in TYPED or page.parent.name != "reference"]
# Why a page has commands that are not typed here.
NOT_TYPED = {
    "README": "sets up a clone, and runs the tests",
    "first-claim": "sets up a clone",
    "recipes": "terraform",
    "use-from-mcp": "a client that is not installed",
    "claim-github-issues": "GitHub: tests/plugins/tracker",
    "deploy": "systemd: booted by hand, see deploy/README.md",
    "upgrade": "under live workers: tests/faults/test_operator_pages.py",
    "several-servers": "the same",
    "several-servers-on-postgresql": "the same; the set-up asks for a password",
    "several-servers-on-etcd": "three members, with users: tests/stores/etcd",
    "move-a-store": "under live workers: tests/faults/test_moves.py and test_operator_pages.py",
    "tls": "certificates: tests/processes/test_tls.py, tests/faults/test_tls_proxy.py",
    "coming-from-action-llama": "a scheduler of Action Llama",
    "config": "servers elsewhere: tests/cli/test_contexts.py",
}
EVENTS_MAX = 100_000


def check_or_rewrite(path: Path, said: list[Said]) -> None:
    if not REWRITE:
        assert [shape_of(output) for _, output in said] == [shape_of(block.text) for block, _ in said]
        return
    page = read(path)
    for block, output in reversed(said):
        if shape_of(output) != shape_of(block.text):
            page = page[: block.start] + output + "\n" + page[block.end :]
    path.write_text(page, encoding="utf-8")


class Reader:
    """Somebody at one machine, who types pages."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._read_to = 0
        self._page_of: dict[tuple[str, str], str] = {}

    def settings(self) -> list[str]:
        """What is saved for later commands: a login, settings of the user."""
        files = [path for path in self.machine.home.glob(".config/**/*") if path.is_file()]
        lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line and not line.startswith("#")]

    def jobs_of_others(self, page: str) -> dict[str, str]:
        """The jobs that this page has used, and another one before it."""
        file = self.machine.home / ".local/state/dibs/dibs.db"
        if not file.exists():
            return {}
        store = open_store(f"sqlite://{file}")
        events = store.events(self._read_to, EVENTS_MAX)
        store.close()
        self._read_to = max((event.seq for event in events), default=self._read_to)
        used = {(event.ns, event.job) for event in events if event.kind == "acquired"}
        return {job: self._page_of[ns, job] for ns, job in used if self._page_of.setdefault((ns, job), page) != page}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> Iterator[Reader]:
    for name in NEEDS:
        need_program(name)
    try:
        machine = Machine(tmp_path_factory.mktemp("reader"))
    except OSError as error:
        missing = pytest.fail if os.environ.get("DIBS_REQUIRE_ALL") == "1" else pytest.skip
        missing(f"PAGES NOT TESTED: {error} (this takes root)")
    with machine:
        yield Reader(machine)


@pytest.mark.e2e
@pytest.mark.fault("F-682")
@pytest.mark.parametrize("path", TYPED, ids=[page.stem for page in TYPED])
def test_a_page_prints_what_it_says_after_all_before_it_and_leaves_nothing_behind(path: Path, reader: Reader) -> None:
    saved = reader.settings()
    try:
        typed = run_page(read(path), reader.machine)
        check_or_rewrite(path, typed.said)
        assert not typed.changed, "a variable is left set, or the folder is another"
        assert reader.settings() == saved
        wait_until(lambda: not reader.machine.running(), "all that the page started has ended", seconds=20)
    finally:
        left = reader.machine.running()
        reader.machine.end_all()
        others = reader.jobs_of_others(path.stem)
    assert not left
    assert not others, "another page has used these jobs"


def test_every_tutorial_and_how_to_is_among_the_pages() -> None:
    there = [*DOCS.glob("how-to/*.md"), *DOCS.glob("tutorial/*.md")]
    assert {*there} <= {*PAGES}


def test_a_command_that_is_not_typed_has_its_reason() -> None:
    untyped = {page.stem for page in PAGES if any(block.info == "sh" for block in blocks(read(page)))}
    assert untyped == {*NOT_TYPED}


@pytest.mark.fault("F-682")
@pytest.mark.parametrize("path", TYPED, ids=[page.stem for page in TYPED])
def test_a_page_that_starts_a_server_says_how_to_end_it(path: Path) -> None:
    page = read(path)
    for block in blocks(page):
        if block.info == "sh run other" and "dibs serve" in block.text:
            assert "Ctrl-C" in page[block.end :]


@pytest.mark.fault("F-683")
@pytest.mark.parametrize("path", WHOLE, ids=[page.stem for page in WHOLE])
def test_a_page_says_how_to_install_what_it_imports(path: Path) -> None:
    page = read(path)
    assert "pip install 'dibs-lease" not in page, "it is not published yet"
    files = [saved["file"] for block in blocks(page) if (saved := SAVED.fullmatch(block.info))]
    ours = {"dibs", *(file.removesuffix(".py") for file in files)}
    for block in blocks(page):
        wanted: set[str] = set()
        if block.info.startswith("python"):
            wanted = imported(block.text)
        elif block.info.startswith("sh run"):
            wanted = {*re.findall(r"python -m (\w+)", block.text)}
        told = " ".join(re.findall(r"pip install (.*)", page[: block.start]))
        assert wanted - sys.stdlib_module_names - ours <= {*re.findall(r"\w+", told)}


def imported(code: str) -> set[str]:
    """The packages that a program imports."""
    nodes = [*ast.walk(ast.parse(code))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | parts}


@pytest.mark.parametrize("path", WHOLE, ids=[page.stem for page in WHOLE])
def test_a_page_marks_its_blocks_in_a_way_that_is_known(path: Path) -> None:
    infos = {block.info for block in blocks(read(path)) if not is_known(block.info)}
    assert infos <= {"sh", "json", "toml", "nginx", "caddy", ""}


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_what_a_page_shows_in_python_is_run(path: Path) -> None:
    page = read(path)
    shown = [block for block in blocks(page) if block.info.startswith("python")]
    assert not shown or path in WHOLE
    for block in shown:
        saved = SAVED.fullmatch(block.info)
        later = [each.text for each in blocks(page) if each.start > block.end and "run" in each.info]
        assert block.info == "python run" or (saved and f"python {saved['file']}" in "\n".join(later))


def test_what_differs_from_run_to_run_is_compared_by_its_shape() -> None:
    one = "lease 0b6cc9e1-6c4f-4e0f-9c3b-3f1c9a2b7d10, for 1m 59s, until 12:30:01, 119873 ms"
    other = "lease 3f1c9a2b-6c4f-4e0f-9c3b-0b6cc9e17d10, for 2m, until 12:31:02,  120000 ms"
    assert shape_of(one) == shape_of(other)
    assert shape_of("held by agent-7") != shape_of("held by agent-8")
    assert shape_of("issue-1842") != shape_of("issue-1843")
