"""An extension of Sphinx: the search shows excerpts also where no server is.

Sphinx fetches each page that was found, and browsers let no page of a folder fetch another one. A script of that
folder they do load: `page-texts.js` has the text of all pages, section by section, and only the search loads it.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_texts: dict[str, str] = {}


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _note)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": False}


def _note(app: Sphinx, page: str, template: str, context: object, doctree: nodes.document | None) -> None:
    if doctree is not None:
        _texts[page] = "".join(_html(each) for each in doctree.children)
    elif page == "search":
        app.add_js_file("page-texts.js", priority=100)
        app.add_js_file("excerpts.js", priority=101)


def _html(node: nodes.Node) -> str:
    """Its text. A section keeps its id: an excerpt is of the section that was found."""
    if not isinstance(node, nodes.section):
        return f" {escape(node.astext(), quote=False)}"
    inside = "".join(_html(each) for each in node.children)
    return f'<section id="{escape(node["ids"][0])}">{inside}</section>'


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        text = f"const PAGE_TEXTS = {json.dumps(_texts, separators=(',', ':'))};\n"
        (Path(app.outdir) / "_static" / "page-texts.js").write_text(text, encoding="utf-8")
