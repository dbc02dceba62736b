"""The formats that dibs has written, with the version that wrote each, and whether this dibs reads it.

Every kind of store and the copies of `dibs export` have one number in common, `codec.FORMAT`. It stands for the layout
of all of them: tables and keys, and the fields of records. It is raised when an older dibs would misread or lose what
this one writes, and never used twice: before format 10 each kind had numbers of its own, and a number could mean two
layouts. CONTRIBUTING.md says when to raise it.

A store with a higher number is refused, and so is one with a number that is not in the table. The page
docs/how-to/upgrade.md has the table, and a test compares it.
"""

from __future__ import annotations

from dibs._version import __version__
from dibs.base.errors import DibsError, StoreTooNew, StoreTooOld
from dibs.stores.codec import FORMAT

SQLITE, POSTGRESQL, ETCD, GIT, COPY = KINDS = ("SQLite", "PostgreSQL", "etcd", "git", "dibs export")


class Format:
    """A row of the table: these versions wrote `kind` with this number."""

    def __init__(self, kind: str, number: int, versions: str, *, is_read: bool = True) -> None:
        self.kind = kind
        self.number = number
        self.versions = versions
        self.is_read = is_read


FORMATS = (
    *[Format(SQLITE, number, "0.1.0", is_read=False) for number in (2, 3, 4)],
    Format(SQLITE, 1, "0.2.0"),
    Format(POSTGRESQL, 1, "0.2.0"),  # of 0.1.0, too, whose schema lacks a column (`postgres/schema.py`)
    Format(POSTGRESQL, 2, "0.3.0.dev0"),
    Format(ETCD, 1, "0.1.0, 0.2.0"),  # they wrote no number
    Format(GIT, 1, "0.1.0, 0.2.0"),
    Format(COPY, 1, "0.1.0, 0.2.0"),
    # Units of slots, pools, ceilings, closures, groups, pages of trees, notes of steps.
    *[Format(kind, 10, "0.3.0") for kind in KINDS],
)
_BY_NUMBER = {(row.kind, row.number): row for row in FORMATS}


def refuse_unread(kind: str, number: int, where: str) -> None:
    """Raise StoreTooNew or StoreTooOld, with what to do, unless this dibs reads that format."""
    row = _BY_NUMBER.get((kind, number))
    if row is not None and row.is_read:
        return
    raise _too_new(number, where) if row is None else too_old(row.versions, where)


def _too_new(number: int, where: str) -> DibsError:
    what = "a newer dibs" if number > FORMAT else "a version of dibs that was never released"
    return StoreTooNew(
        f"{where} was written by {what}: its format is {number}, and dibs {__version__} reads formats up to {FORMAT}. "
        "Upgrade dibs; nothing was changed."
    )


def too_old(versions: str, where: str) -> DibsError:
    """The refusal of what these versions wrote."""
    return StoreTooOld(
        f"{where} was written by dibs {versions}, and dibs {__version__} does not read it. Nothing was changed.\n"
        f"Run `dibs export --to FILE` with dibs {versions}, then `dibs import --from FILE` with this one."
    )


def table() -> list[str]:
    """The table as lines of a page."""
    lines = ["| kind | format | written by | this version |", "| --- | --- | --- | --- |"]
    for kind in KINDS:
        for row in FORMATS:
            if row.kind == kind:
                does = "writes it" if row.number == FORMAT else "reads it" if row.is_read else "refuses it"
                lines.append(f"| {kind} | {row.number} | {row.versions} | {does} |")
    return lines
