"""A second pair of hands, for commands that take their time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from tests.cli.conftest import Ran, Terminal


class Typing(threading.Thread):
    """A command typed at a second terminal of the same machine. It runs from now on."""

    def __init__(self, terminal: Terminal, *words: str) -> None:
        super().__init__(daemon=True)
        self._terminal = terminal
        self._words = words
        self._ran: Ran | None = None
        self.start()

    def run(self) -> None:
        self._ran = self._terminal(*self._words)

    def ran(self) -> Ran:
        self.join(WAIT_S_MAX)
        assert self._ran is not None, "it still waits"
        return self._ran
