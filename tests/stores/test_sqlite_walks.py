"""Two connections to one file, in random walks: every answer is that of the reference store."""

from __future__ import annotations

import pytest

from tests.walks import statements


@pytest.mark.parametrize("name", statements.WALKS)
def test_two_connections_answer_as_the_reference_store(name: str) -> None:
    assert len(statements.walked(name)) == statements.STEPS
