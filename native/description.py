"""The wheel's metadata hook: the README as it reads outside of the repository, and the project's addresses.

`DIBS_PROJECT_URL` says where the source is to be had, such as https://github.com/OWNER/dibs. With it, links lead to the
files of this version there, and a GitHub address also gives the name under which the MCP registry lists dibs. Without
it, nothing is invented: links to files of the repository become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+://|#)([^)\s]+)\)")


class ProjectMetadata(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        url = os.environ.get("DIBS_PROJECT_URL", "").rstrip("/") or _of_sdist(root / "PKG-INFO")
        if url and not re.fullmatch(r"https://[\w.-]+/[\w./-]+", url):
            raise ValueError(
                f"DIBS_PROJECT_URL is {url!r}: give the address of a page, such as https://github.com/OWNER/dibs."
            )
        found: dict[str, str] = {}
        exec((root / "src/dibs/_version.py").read_text(encoding="utf-8"), found)
        text = described((root / "README.md").read_text(encoding="utf-8"), url, found["__version__"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = addresses(url, found["__version__"]) if url else {}


def _of_sdist(info: Path) -> str:
    """The address that the sdist was made with, so that a wheel of it says the same."""
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    found = re.search(r"^Project-URL: Source, (\S+)$", text, re.MULTILINE)
    return found[1] if found else ""


def described(readme: str, url: str, version: str) -> str:
    """The README with links that lead somewhere, wherever it is shown."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if not url:
            return "" if picture else text
        return f"{picture}[{text}]({_at(url, version, 'raw' if picture else 'blob')}/{target})"

    name = registry_name(url)
    marker = f"\n<!-- mcp-name: {name} -->\n" if name else ""
    return _LINK.sub(absolute, readme) + marker


def addresses(url: str, version: str) -> dict[str, str]:
    files = _at(url, version, "blob")
    return {
        "Source": url,
        "Documentation": f"{files}/docs/README.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Security": f"{files}/SECURITY.md",
    }


def registry_name(url: str) -> str | None:
    """The MCP registry lists a server under an account that its publisher proves to have: here one of GitHub."""
    found = re.fullmatch(r"https://github\.com/([\w-]+)/([\w.-]+)", url)
    return f"io.github.{found[1]}/{found[2]}" if found else None


def _at(url: str, version: str, kind: str) -> str:
    """GitHub's form; GitLab understands it as well."""
    return f"{url}/{kind}/v{version}"
