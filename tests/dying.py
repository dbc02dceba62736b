"""A store whose process is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.stores.port import Store, StoreProxy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dibs.core.events import Event
    from dibs.core.records import Stored


class Dying(StoreProxy):
    """Ends like a killed process after some commits."""

    def __init__(self, inner: Store, commits: int) -> None:
        super().__init__(inner)
        self._left = commits

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        return self.inner.commit(expect, puts, events)
