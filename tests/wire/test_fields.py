"""The tables that programs read when they start are those that the declarations make."""

from __future__ import annotations

import os
from pathlib import Path

from dibs.core.records import Terms
from dibs.wire import fields
from scripts.dev.pages.fields import fields_source

FILE = Path(__file__).parents[2] / "src" / "dibs" / "wire" / "fields.py"
# Read when the tests are collected: while they run, no DIBS_ variable of whoever runs them is set.
REWRITE = os.environ.get("DIBS_REWRITE") == "1"


def test_the_tables_are_those_that_are_declared() -> None:
    if REWRITE:
        FILE.write_text(fields_source(), encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == fields_source()


def test_a_field_that_goes_into_the_command_unchanged_is_one_that_the_command_has() -> None:
    assert set(fields.PLAIN_TERMS) <= set(Terms._fields)
    assert {"metadata", "max_attempts"} <= set(fields.PLAIN_TERMS)
