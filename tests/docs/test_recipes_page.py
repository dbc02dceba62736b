"""The recipes for programs that are not installed here: their code is Python, and what it asks of the SDK is there."""

from __future__ import annotations

import ast
import inspect

import pytest

import dibs
from tests.docs.pages import DOCS, blocks, read

SHOWN = [block.text for block in blocks(read(DOCS / "how-to" / "recipes.md")) if "import dibs" in block.text]


@pytest.mark.parametrize("library", ["airflow", "temporalio"])
def test_a_recipe_calls_the_sdk_as_it_is(library: str) -> None:
    [code] = [ast.parse(text) for text in SHOWN if f"from {library}" in text]
    calls = [each for each in ast.walk(code) if isinstance(each, ast.Call)]
    [claim] = [each for each in calls if ast.unparse(each.func) == "dibs.claim"]
    inspect.signature(dibs.claim).bind(*claim.args, **{str(each.arg): each.value for each in claim.keywords})
    for used in [each for each in ast.walk(code) if isinstance(each, ast.Attribute)]:
        owner = {"dibs": dibs, "claim": dibs.Claim, "held": dibs.JobHeld}.get(ast.unparse(used.value))
        assert owner is None or hasattr(owner, used.attr), ast.unparse(used)
