"""Faults on record, each put back once: the few lines that take its fix away, in today's code.

A change is text in a file of the repository and what stands there instead. It is made in a copy of the tree
(`workshop.py`), so it reaches whatever the fault was in: a rule, a command that a test starts, a page's script. A
change whose text is gone fails: the fault must be put back in another way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Change(NamedTuple):
    """Put `new` in the place of `old`, which stands once in the file at `path`."""

    path: str
    old: str
    new: str

    def made_in(self, text: str) -> str:
        count = text.count(self.old)
        assert count == 1, f"{self.path} has this {count} times: put the fault back in another way: {self.old!r}"
        return text.replace(self.old, self.new)


class PutBack(NamedTuple):
    """`what` happens once more with the changes. `worlds`: settings of the simulation that make it likely."""

    id: str
    what: str
    changes: tuple[Change, ...]
    worlds: dict[str, Any]

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys([change.path for change in self.changes]))

    def text_of(self, root: Path, path: str) -> str:
        """The text of a file with the changes that concern it."""
        text = (root / path).read_text(encoding="utf-8")
        for change in self.changes:
            if change.path == path:
                text = change.made_in(text)
        return text


def put_back(id: str, what: str, *changes: Change, **worlds: Any) -> PutBack:
    return PutBack(id, what, changes, worlds)
