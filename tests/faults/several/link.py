"""TCP links that can be cut, held up and slowed down, for any protocol.

`Proxy` beside this folder knows HTTP and spoils one exchange at a time. A link does not look at the bytes: it works
between a server and PostgreSQL as well as between a client and a server.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Self

from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

CHUNK = 65536


class Links:
    """All links of a test, in one thread with one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: list[Link] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S_MAX)
        self._loop.close()

    async def _end(self) -> None:
        # asyncio leaves a connection open if its server is closed, or its task cancelled, before the task has begun.
        for link in self._links:
            link.accept_no_more()
        for _ in range(5):
            await asyncio.sleep(0)
        for link in self._links:
            link.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S_MAX)

    def link(self, where: Callable[[], tuple[str, int]]) -> Link:
        """A port that leads to the present result of `where`."""
        made = Link(where, self._run)
        self._run(made.open())
        self._links.append(made)
        return made


class Link:
    """One way to one place. `cut`, `hold` and `slow` last until `heal`."""

    def __init__(self, where: Callable[[], tuple[str, int]], run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._where = where
        self._run = run
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._is_cut = False
        self._delay_s = 0.0
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def accept_no_more(self) -> None:
        assert self._server is not None
        for each in self._server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    def cut(self) -> None:
        """Reset every connection, and every new one."""
        self._run(self._set(cut=True))

    def hold(self) -> None:
        """Nothing passes, without an error. Bytes sent meanwhile arrive after `heal`."""
        self._run(self._set(flows=False))

    def slow(self, seconds: float) -> None:
        """Everything arrives that much later."""
        self._run(self._set(delay_s=seconds))

    def heal(self) -> None:
        self._run(self._set())

    async def _set(self, *, cut: bool = False, flows: bool = True, delay_s: float = 0.0) -> None:
        self._is_cut, self._delay_s = cut, delay_s
        if flows:
            self._flows.set()
        else:
            self._flows.clear()
        if cut:
            for writer in list(self._writers):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self._is_cut:
                return
            await self._flows.wait()
            far_reader, far = await asyncio.open_connection(*self._where())
            self._writers.add(far)
            await asyncio.gather(self._pump(reader, far), self._pump(far_reader, writer))
        except OSError:
            pass  # one side is gone; the close below tells the other
        finally:
            for each in (writer, far):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # ends the other direction, too: no peer here writes to a side that has closed
