"""The one logger of dibs."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

    log: logging.Logger
else:

    class _Log:
        """The logger `dibs`. `logging` is imported when there is something to say: a claim that is granted says
        nothing, and the import takes as long as the claim."""

        def __getattr__(self, name: str) -> object:
            from logging import getLogger

            return getattr(getLogger("dibs"), name)

    log = _Log()
