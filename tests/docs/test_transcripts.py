"""What the tutorial and the how-tos tell their reader to type works, and prints what they say it prints.

DIBS_REWRITE=1 puts what really came out into the pages, where it differs by more than ids and times.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, read
from tests.docs.transcript import SAVED, Said, is_known, run_page, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.full

# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
TUTORIALS = [DOCS / "tutorial/first-claim.md", DOCS / "tutorial/in-python.md"]
APART = [*sorted((DOCS / "how-to").glob("*.md")), DOCS / "reference" / "python.md"]
PAGES = [*TUTORIALS, *APART]


def check_or_rewrite(path: Path, said: list[Said]) -> None:
    if not REWRITE:
        assert [shape_of(output) for _, output in said] == [shape_of(block.text) for block, _ in said]
        return
    page = read(path)
    for block, output in reversed(said):
        if shape_of(output) != shape_of(block.text):
            page = page[: block.start] + output + "\n" + page[block.end :]
    path.write_text(page, encoding="utf-8")


@pytest.mark.e2e
@pytest.mark.parametrize("path", APART, ids=[page.stem for page in APART])
def test_a_page_that_can_be_typed_prints_what_it_says(
    path: Path, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    need_program("bash")
    page = read(path)
    if "curl" in page:
        need_program("curl")
    if "| jq" in page:
        need_program("jq")
    check_or_rewrite(path, run_page(page, tmp_path))


@pytest.mark.e2e
def test_the_first_pages_can_be_typed_one_after_another_in_one_home(
    tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    need_program("bash")
    readme = next(block.text for block in blocks(read(ROOT / "README.md")) if "--done" in block.text)
    run_page(f"```sh run\n{readme}```\n", tmp_path)
    for path in TUTORIALS:
        check_or_rewrite(path, run_page(read(path), tmp_path))


@pytest.mark.parametrize("path", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_marks_its_blocks_in_a_way_that_is_known(path: Path) -> None:
    infos = {block.info for block in blocks(read(path)) if not is_known(block.info)}
    assert infos <= {"sh", "json", "nginx", "caddy", ""}


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_what_a_page_shows_in_python_is_run(path: Path) -> None:
    page = read(path)
    shown = [block for block in blocks(page) if block.info.startswith("python")]
    assert not shown or path in PAGES
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
