"""The threads of a server's engine: how each is started, woken and ended."""

from __future__ import annotations

import threading


class EngineThread:
    """Works on a thread of its own until it is stopped. `_work` ends when `_stopping` is set; `_wake` tells it so."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Event()
        self._stopping = False
        # A daemon: a store that never answers must not keep the process from ending.
        self._works = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._works.start()

    def stop(self, timeout_ms: int) -> bool:
        """End the work that was begun, and begin no more. False if that was not finished in time."""
        self._stopping = True
        self._wake.set()
        if self._works.is_alive():
            self._works.join(timeout_ms / 1000)
        return not self._works.is_alive()

    def _work(self) -> None:
        raise NotImplementedError
