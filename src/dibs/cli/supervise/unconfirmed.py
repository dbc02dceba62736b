"""What a command claimed, or may have claimed, until whoever typed it has been told.

From the moment a claim is asked for until its answer is printed, SIGINT, SIGTERM and SIGHUP become exceptions, and the
way out gives back what was got: an exit code of 128+n means that nothing is held. Once the answer is printed the
signals wait, and the exit code is that of the answer. A claim with a request key of the caller's own is left alone: the
caller can ask for it again with the same key.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C part of `signal`, whose import costs more than a claim

from dibs.cli.supervise.signals import ENDING, StopSignals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.door import Door
    from dibs.client.queueing import PendingClaim

DOOR_MS = 2_000  # how long a server may take to answer to a give-back


class UnconfirmedClaims:
    def __init__(self) -> None:
        self._claims: list[tuple[PendingClaim, Callable[[], Door]]] = []
        self._stops: StopSignals | None = None
        self._before: set[int] | None = None  # the signals that were blocked before the answer was printed

    def begin(self, pending: PendingClaim, open_door: Callable[[], Door]) -> None:
        """A claim is about to be asked for. `open_door` gives a way to let go of it, which is closed afterwards."""
        if self._stops is None:
            self._stops = StopSignals().__enter__()
        self._claims.append((pending, open_door))

    def __bool__(self) -> bool:
        """Whether there is something of which nobody was told."""
        return bool(self._claims)

    def give_back(self) -> None:
        """Let go of whatever was got. A second signal waits until that is done, or cannot be done."""
        if not self._claims:
            return
        from dibs.client.queueing import drive

        self._hold_signals()
        claims, self._claims = self._claims, []
        for pending, open_door in claims:
            door = open_door()
            try:
                drive(door, pending.give_up())
            except Exception:  # what cannot be given back goes with its TTL
                pass
            finally:
                door.close()

    def confirm(self) -> None:
        """The answer was printed: from now on nothing is given back, and nothing interrupts the way out."""
        if self._claims:
            self._hold_signals()
            self._claims = []

    def close(self) -> None:
        """Signals as they were before. One that waited comes now."""
        if self._stops is not None:
            self._stops.__exit__(None, None, None)
            self._stops = None
        if self._before is not None:
            before, self._before = self._before, None
            _signal.pthread_sigmask(_signal.SIG_SETMASK, before)

    def _hold_signals(self) -> None:
        if self._before is None:
            self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ENDING)
