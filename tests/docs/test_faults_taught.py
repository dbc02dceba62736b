"""The tables of the page about what the faults taught are counted from the record. DIBS_REWRITE=1 counts them anew."""

from __future__ import annotations

import os
import re
from collections import Counter

from tests.put_back.record import NOT_RUN, ROOT, Row, ideas, rows

PAGE = ROOT / "docs" / "explanation" / "what-the-faults-taught.md"
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
ROWS = rows()


def cells(kind: str) -> list[tuple[str, int, int]]:
    """Each value with its faults, and those of them that broke a promise."""
    found: Counter[str] = Counter(str(getattr(row, kind)) for row in ROWS)
    broke: Counter[str] = Counter(str(getattr(row, kind)) for row in ROWS if row.promises)
    return [(value, count, broke[value]) for value, count in found.most_common()]


def how(row: Row) -> str:
    if not row.is_put_back:
        return f"no: {row.found[0]}"
    found = [each for each in row.found if each != NOT_RUN]
    return f"found by {', '.join(found)}" if found else "yes, and not run yet"


def tables() -> dict[str, list[str]]:
    """The lines of each table below its head."""
    by_idea = sorted(cells("idea"), key=lambda each: (-each[1], ideas().index(each[0])))
    return {
        "idea": [f"| {value} | {count} | {broke} |" for value, count, broke in by_idea],
        "found by": [f"| {value} | {count} | {broke} |" for value, count, broke in cells("who")],
        "put back": [f"| {value} | {count} |" for value, count in Counter(how(row) for row in ROWS).most_common()],
    }


def test_the_page_counts_what_is_on_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in tables().items():
        table = re.compile(rf"(\| {name} \|[^\n]*\n\| ---[^\n]*\n)((?:\|[^\n]*\n)*)")
        heads = table.findall(text)
        assert len(heads) == 1, name
        made = text.replace("".join(heads[0]), "".join([heads[0][0], *[f"{line}\n" for line in lines]]))
        if REWRITE:
            text = made
        assert text == made, f"{name}: run it with DIBS_REWRITE=1"
    if REWRITE:
        PAGE.write_text(text, encoding="utf-8")


def test_the_faults_that_it_names_are_on_record() -> None:
    assert set(re.findall(r"F-\d{3}", PAGE.read_text(encoding="utf-8"))) <= {row.id for row in ROWS}
