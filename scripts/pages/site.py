"""Gathers what the site is made of: the Markdown of the repository where it is, and the API as a server describes it.

.venv/bin/python -m scripts.pages.site FOLDER
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
# The parts of the documentation, in the order of the menu.
PARTS = ("tutorial", "how-to", "reference", "explanation")
OTHERS = ("CONTRIBUTING", "SECURITY", "CHANGELOG", "examples/README", "deploy/README", "bench/README", "scripts/README")
_LINK = re.compile(r"\]\(([^)#:\s]+)((?:#[^)\s]*)?)\)")


def main(target: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    others = {"README.md", *[f"{name}.md" for name in OTHERS]}
    pages = [name for name in listed.stdout.splitlines() if name.startswith("docs/") or name in others]
    for name in pages:
        _write(target, name, (ROOT / name).read_text(encoding="utf-8"), set(pages))
    with (target / "index.md").open("a", encoding="utf-8") as index:
        index.write(_menu(pages))
    _describe(target / "extra")


def _write(target: Path, name: str, text: str, pages: set[str]) -> None:
    """Copy a page, and the files that it links to. The README is the first page."""
    made = target / ("index.md" if name == "README.md" else name)
    made.parent.mkdir(parents=True, exist_ok=True)

    def linked(found: re.Match[str]) -> str:
        path = (ROOT / name).parent / found[1]
        inside = str(path.resolve().relative_to(ROOT))
        if path.is_dir():
            raise SystemExit(f"{name} links to the folder {found[1]}: a site has none. Link to a page in it.")
        if inside == "README.md":
            return f"]({found[1].removesuffix('README.md')}index.md{found[2]})"
        if inside not in pages:
            copied = target / inside
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)
        return found[0]

    made.write_text(_LINK.sub(linked, text), encoding="utf-8")


def _menu(pages: list[str]) -> str:
    groups = {part.capitalize(): [name for name in pages if name.startswith(f"docs/{part}/")] for part in PARTS}
    groups["More"] = ["docs/README.md", *[f"{name}.md" for name in OTHERS]]
    lines = ["", '<p>The <a href="api.html">API of a server</a>, as it describes itself.</p>', ""]
    for caption, names in groups.items():
        lines += ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *[name[:-3] for name in names]]
        lines += ["```", ""]
    return "\n".join(lines)


def _describe(folder: Path) -> None:
    """Write the page and the document that a server has at /docs and /openapi.json."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as home:
        words = [sys.executable, "-m", "dibs", "serve", "--url", f"sqlite:{home}/dibs.db", "--bind", "127.0.0.1:0"]
        env = {**os.environ, "HOME": home, "XDG_STATE_HOME": home}
        server = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            for path, name in (("/docs", "api.html"), ("/openapi.json", "openapi.json")):
                with urlopen(address + path, timeout=60) as reply:
                    (folder / name).write_bytes(reply.read())
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
