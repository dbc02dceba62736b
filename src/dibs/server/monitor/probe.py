"""One look at a time at something that may hang, however many callers ask."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


class SharedProbe(Generic[Found]):
    """Has a thread of its own, so that nothing else can delay it. Belongs to one event loop."""

    def __init__(self, look: Callable[[], Found], name: str) -> None:
        self._look = look
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._under_way: asyncio.Future[Found] | None = None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, within_ms: int) -> Found:
        """What a look finds. Callers that ask meanwhile share it. Raises TimeoutError if it takes too long."""
        if self._under_way is None:
            self._under_way = asyncio.get_running_loop().run_in_executor(self._thread, self._look)
            self._under_way.add_done_callback(self._done)
        return await asyncio.wait_for(asyncio.shield(self._under_way), within_ms / 1000)

    def _done(self, looked: asyncio.Future[Found]) -> None:
        self._under_way = None
        if not looked.cancelled():
            looked.exception()  # those who waited for it were told
