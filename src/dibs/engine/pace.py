"""The pace of commits and decisions on this machine, which says whether an event loop may wait for them."""

from __future__ import annotations

QUICK_US_MAX = 2_000
STUCK_US_MIN = 20_000
COMMAND_US = 200  # what the decision of one command may take
_WEIGHT = 8


class Pace:
    """A moving mean. A single commit that is very slow counts at once, and so does a batch on the loop: the next ones
    are likely to be slow, too. Some twenty quick commits make up for it."""

    def __init__(self) -> None:
        self._mean_us: float | None = None

    @property
    def is_quick(self) -> bool:
        return self._mean_us is not None and self._mean_us <= QUICK_US_MAX

    def took(self, us: int) -> None:
        if self._mean_us is None or us >= STUCK_US_MIN:
            self._mean_us = us
        else:
            self._mean_us += (us - self._mean_us) / _WEIGHT

    def kept_loop(self, us: int, commands: int) -> None:
        """A batch of this many commands was decided and committed on the event loop."""
        if us - commands * COMMAND_US >= STUCK_US_MIN:
            self.took(us)
