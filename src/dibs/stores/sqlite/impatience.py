"""A thread that does not wait for others: it gets Busy where another thread would wait for its turn, or for the write
lock of another process."""

from __future__ import annotations

from _thread import get_ident

from dibs.stores.port import Busy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import RLock

IMPATIENT_MS = 5  # long enough for another process's usual commit


class Impatience:
    """While it is entered, the entering thread is impatient. `turn` is the connection's lock as it takes it."""

    def __init__(self) -> None:
        self._thread = 0

    def __enter__(self) -> None:
        self._thread = get_ident()

    def __exit__(self, *error: object) -> None:
        self._thread = 0

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is the impatient one."""
        return self._thread != 0 and self._thread == get_ident()


class ShortTurn:
    """A lock that is not waited for."""

    def __init__(self, lock: RLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=IMPATIENT_MS / 1000):
            raise busy()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def busy() -> Busy:
    return Busy("The store is in use. Try again.")
