"""The tables that programs read when they start are those that the declarations make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dibs.core.records import Terms
from dibs.wire import fields
from scripts.dev.pages.fields import fields_source, texts_source

WIRE = Path(__file__).parents[2] / "src" / "dibs" / "wire"
WRITTEN = {"fields.py": fields_source, "parameter_texts.py": texts_source}
# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"


@pytest.mark.parametrize("file", WRITTEN)
def test_the_tables_are_those_that_are_declared(file: str) -> None:
    if REWRITE:
        (WIRE / file).write_text(WRITTEN[file](), encoding="utf-8")
    assert (WIRE / file).read_text(encoding="utf-8") == WRITTEN[file]()


def test_a_field_that_goes_into_the_command_unchanged_is_one_that_the_command_has() -> None:
    assert set(fields.PLAIN_TERMS) <= set(Terms._fields)
    assert {"metadata", "max_attempts"} <= set(fields.PLAIN_TERMS)
