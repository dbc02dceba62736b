"""The worker of these runs: what it asks again, and what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import RequestRefused, Unavailable
from tests.faults.schedules import prepare
from tests.faults.several.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path


def test_a_worker_asks_again_while_nobody_answers_and_not_when_its_request_key_is_spent(tmp_path: Path) -> None:
    """It would ask in vain for a minute, and not end when the run is over."""
    prepare(tmp_path)
    answers = [Unavailable("nobody answers"), RequestRefused("This request key's lease expired 2s ago.", "conflict")]
    worker = Worker("memory://", "", "w", tmp_path, "seed")

    def ask() -> None:
        raise answers.pop(0)

    with pytest.raises(RequestRefused):
        worker._until_answered(ask)
    worker.close()
    assert answers == []
