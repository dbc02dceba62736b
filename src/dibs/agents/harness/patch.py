"""Which files a patch in Codex's format (`apply_patch`) writes."""

from __future__ import annotations

_MARKS = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")


def patched(text: str) -> list[str]:
    """The paths, each once. A line of content begins with `+`, `-` or a blank, so it is never taken for one."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        for mark in _MARKS:
            if line.startswith(mark) and line[len(mark) :].strip():
                found[line[len(mark) :].strip()] = None
    return list(found)
