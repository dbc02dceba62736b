"""One table ranks what dibs has: help, menus, the README and the page of promises follow it, and so do plugins."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from dibs.base.shipped import ENTRY_POINTS, SUMMARIES
from dibs.cli.framework.help import overview
from dibs.cli.framework.rank import CORE, PARTS, RANKS, TEN_PROMISES, first_words, pages_of
from dibs.cli.framework.registry import NAMES, load, shipped_names, summary_of
from scripts.dev.pages import shipped, site

REWRITE = os.environ.get("DIBS_REWRITE") == "1"
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("tutorial", "how-to", "reference", "explanation")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_every_command_has_one_place_in_the_ranks() -> None:
    ranked = [name for part in PARTS for name in part.commands]
    assert sorted(ranked) == sorted(shipped_names())
    assert len({part.word for part in PARTS}) == len(PARTS) == len({part.title for part in PARTS})
    assert not {part.word for part in PARTS} & {*first_words(shipped_names())} - {"agents", "git", "serve", "verify"}


def test_the_parts_stand_in_the_order_of_their_ranks() -> None:
    ranks = [part.rank for part in PARTS]
    assert ranks == sorted(ranks, key=list(RANKS).index)


def test_every_page_has_one_place_in_the_ranks() -> None:
    ranked = [page for part in PARTS for page in part.pages]
    there = [str(path.relative_to(DOCS)) for folder in FOLDERS for path in (DOCS / folder).glob("*.md")]
    assert sorted(ranked) == sorted(there)


def test_help_shows_the_core_first_and_one_line_for_every_other_part() -> None:
    lines = [line.split("   ")[0].strip() for line in overview().splitlines() if line.startswith("  ")]
    core = first_words(name for part in PARTS if part.rank == CORE for name in part.commands)
    assert lines[: len(core)] == core
    for part in PARTS:
        assert part.rank != "more" or not part.commands or part.word in lines
    assert "compatibility" in lines


def test_the_page_of_the_documentation_lists_the_pages_in_the_order_of_the_ranks() -> None:
    page = text_of(DOCS / "README.md")
    linked = re.findall(r"\]\(((?:tutorial|how-to|reference|explanation)/[\w-]+\.md)\)", page)
    assert linked == [name for folder in FOLDERS for rank in RANKS for name in pages_of(rank, folder)]
    how_to = page[page.index("## How-to") : page.index("## Reference")]
    assert re.findall(r"^### (.*)", how_to, re.MULTILINE) == list(RANKS.values())


@pytest.mark.fault("F-497")
def test_the_site_has_every_page_that_is_linked_and_its_menu_too() -> None:
    pages = site.linked_pages()
    assert {"clients/typescript/README.md", "models/README.md"} <= {*pages}
    assert sorted([site.FIRST, *(page for names in site.menu().values() for page in names)]) == sorted(pages)


def test_the_menu_of_the_site_has_every_page_in_the_order_of_the_ranks() -> None:
    menu = site.menu()
    for folder in FOLDERS:
        shown = [page for pages in menu.values() for page in pages if page.startswith(f"docs/{folder}/")]
        assert shown == [f"docs/{name}" for rank in RANKS for name in pages_of(rank, folder)]


def test_the_menu_of_the_site_has_how_tos_by_task_and_typescript_beside_python() -> None:
    menu = site.menu()
    tasks = [caption.removeprefix("How-to: ") for caption in menu if caption.startswith("How-to: ")]
    with_pages = [part.title for part in PARTS if any(page.startswith("how-to/") for page in part.pages)]
    assert tasks[:-1] == with_pages[: len(tasks) - 1]
    assert {*menu[f"How-to: {tasks[-1]}"]} == {f"docs/{page}" for page in pages_of("compatibility", "how-to")}
    python = menu["Reference"].index("docs/reference/python.md")
    assert menu["Reference"][python + 1] == "clients/typescript/README.md"


def sections(page: str) -> list[tuple[str, list[str]]]:
    """The headings of the second level, each with the ids of its promises."""
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return [
        (title, re.findall(r"^- `([^`]+)`: ", text, re.MULTILINE))
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    ]


def test_ten_promises_come_first_and_the_others_by_rank() -> None:
    (_, ten), *others = sections(text_of(DOCS / "reference" / "promises.md"))
    assert ten == list(TEN_PROMISES)
    wanted = [part for part in PARTS if part.promises]
    assert [title for title, _ in others] == [part.title for part in wanted if part.title in dict(others)]
    for part in wanted:
        found = dict(others).get(part.title, [])
        assert {name.partition(":")[0] for name in found} <= {name.partition(":")[0] for name in part.promises}


def test_every_promise_stands_below_the_part_that_it_belongs_to() -> None:
    page = text_of(DOCS / "reference" / "promises.md")
    firsts = [name for part in PARTS for name in part.promises]
    assert len(firsts) == len(set(firsts))
    used = {name.partition(":")[0] for _, names in sections(page) for name in names}
    assert used == set(firsts)


def test_the_readme_has_the_core_before_the_rest() -> None:
    page = text_of(ROOT / "README.md")
    titles = re.findall(r"^## (.*)", page, re.MULTILINE)
    places = [titles.index(title) for title in ("Core", RANKS["more"], RANKS["compatibility"])]
    assert places == sorted(places)
    more = page[page.index(f"## {RANKS['more']}") : page.index(f"## {RANKS['compatibility']}")]
    compatible = page[page.index(f"## {RANKS['compatibility']}") :]
    for name in pages_of("compatibility", "how-to"):
        assert name not in more
        assert f"docs/{name}" in compatible


def test_the_table_of_our_own_plugins_is_what_pyproject_says() -> None:
    if REWRITE:
        shipped.FILE.write_text(shipped.text(), encoding="utf-8")
    assert text_of(shipped.FILE) == shipped.text()
    assert shipped.declared() == ENTRY_POINTS
    points = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["entry-points"]
    assert {group for group in points if group.startswith("dibs.")} == {*ENTRY_POINTS}


def test_no_command_of_a_plugin_is_declared_in_the_house() -> None:
    assert not {*NAMES} & {*SUMMARIES}
    for name in SUMMARIES:
        assert load(name).summary == summary_of(name) != ""
    registry = text_of(ROOT / "src/dibs/cli/framework/registry.py")
    assert not re.findall(r"dibs\.(?:agents|compat|contrib|testing)\.", registry)


@pytest.mark.parametrize("group", ENTRY_POINTS)
def test_every_entry_point_of_ours_leads_somewhere(group: str) -> None:
    from dibs.base.plugins import plugin

    for word in ENTRY_POINTS[group]:
        assert plugin(group, word, word) is not None
