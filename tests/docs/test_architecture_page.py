"""The walk of a claim in docs/explanation/architecture.md is the way that a claim really takes."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

from dibs.cli.main import run
from tests.docs.pages import DOCS, ROOT, read, section

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

SOURCE = ROOT / "src" / "dibs"
PAGE = read(DOCS / "explanation" / "architecture.md")
# Before the one that can be called here; it hands over sys.argv.
ENTRY = "cli/main.py:entry"


def test_a_claim_goes_through_the_functions_of_the_walk_in_their_order(tmp_path: Path) -> None:
    walk = [
        f"{path}:{name}"
        for path, name in re.findall(r"^\d+\. `([\w/]+\.py):([\w.]+)`", section(PAGE, "The walk of a claim"), re.M)
    ]
    called: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            called.setdefault(f"{code.co_filename.removeprefix(f'{SOURCE}/')}:{code.co_qualname}")

    env = {"DIBS_URL": f"sqlite://{tmp_path}/dibs.db", "HOME": str(tmp_path), "DIBS_SYSTEM_SOCKET": "off"}
    printed = io.StringIO()
    sys.setprofile(note)
    try:
        exit_code = run(["claim", "issue-1842"], env, printed, printed, None)
    finally:
        sys.setprofile(None)
    assert exit_code == 0, printed.getvalue()
    assert [step for step in called if step in walk] == [step for step in walk if step != ENTRY]


def test_every_file_and_folder_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`((?:[\w]+/)+(?:\w+\.py)?)[`:]", PAGE))
    assert len(named) > 20
    assert not {path for path in named if not (SOURCE / path).exists() and not (ROOT / path).exists()}
