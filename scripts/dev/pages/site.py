"""Gathers what the site is made of: the README and all pages that can be reached from it, each in its folder.

.venv/bin/python -m scripts.dev.pages.site FOLDER
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from dibs.cli.framework.rank import COMPATIBILITY, PARTS, RANKS, pages_of

ROOT = Path(__file__).parents[3]
FIRST = "README.md"
TYPESCRIPT = "clients/typescript/README.md"
# What the menu says where the page itself says more.
SHORT = {TYPESCRIPT: "TypeScript"}
_LINK = re.compile(r"\]\(([^)#:\s]+)((?:#[^)\s]*)?)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def main(target: Path) -> None:
    pages = linked_pages()
    for name in pages:
        _write(target, name, pages)
    with (target / "index.md").open("a", encoding="utf-8") as index:
        for caption, names in menu().items():
            lines = [
                "",
                "```{toctree}",
                ":hidden:",
                f":caption: {caption}",
                "",
                *[_entry(name) for name in names],
                "```",
                "",
            ]
            index.write("\n".join(lines))


def linked_pages() -> list[str]:
    """The README and every page that can be reached from it, in the order in which they are found."""
    found = [FIRST]
    for name in found:  # it grows
        text = _CODE.sub("", (ROOT / name).read_text(encoding="utf-8"))
        inside = [_inside(name, link[1]) for link in _LINK.finditer(text)]
        found += dict.fromkeys(page for page in inside if page.endswith(".md") and page not in found)
    return found


def menu() -> dict[str, list[str]]:
    """The pages by caption: those of the documentation by kind, the how-tos by task, then the others."""
    reference = _ranked("reference")
    reference.insert(reference.index("docs/reference/python.md") + 1, TYPESCRIPT)
    groups = {
        "Tutorial": _ranked("tutorial"),
        **_tasks(),
        "Reference": reference,
        "Explanation": _ranked("explanation"),
    }
    listed = {FIRST, *[name for names in groups.values() for name in names]}
    return {**groups, "Beside them": [name for name in linked_pages() if name not in listed]}


def _tasks() -> dict[str, list[str]]:
    """The how-tos by the part of dibs that they are about. Those for users of other systems are together."""
    found: dict[str, list[str]] = {}
    for part in PARTS:
        caption = "Coming from other systems" if part.rank == COMPATIBILITY else part.title
        pages = [f"docs/{page}" for page in part.pages if page.startswith("how-to/")]
        if pages:
            found.setdefault(f"How-to: {caption}", []).extend(pages)
    return found


def _entry(name: str) -> str:
    """A line of a menu."""
    return f"{SHORT[name]} <{name[:-3]}>" if name in SHORT else name[:-3]


def _docs(rank: str, folder: str) -> list[str]:
    return [f"docs/{name}" for name in pages_of(rank, folder)]


def _ranked(folder: str) -> list[str]:
    return [name for rank in RANKS for name in _docs(rank, folder)]


def _inside(page: str, link: str) -> str:
    return str(((ROOT / page).parent / link).resolve().relative_to(ROOT))


def _write(target: Path, name: str, pages: list[str]) -> None:
    """Copy a page, and the files that it links to. The README is the first page."""
    made = target / ("index.md" if name == FIRST else name)
    made.parent.mkdir(parents=True, exist_ok=True)

    def linked(found: re.Match[str]) -> str:
        inside = _inside(name, found[1])
        if (ROOT / inside).is_dir():
            raise SystemExit(f"{name} links to the folder {found[1]}: a site has none. Link to a page in it.")
        if inside == FIRST:
            return f"]({found[1].removesuffix(FIRST)}index.md{found[2]})"
        if inside not in pages:
            copied = target / inside
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / inside, copied)
        return found[0]

    made.write_text(_LINK.sub(linked, (ROOT / name).read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
