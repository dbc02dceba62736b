"""Looks up the addresses of targets. A lookup may hang for long, and cannot be cancelled, so each has a thread of its
own that nobody waits for at the end. A host has one lookup at a time, so hosts that hang hold up no others."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from dibs.core.limits import WEBHOOK_LOOKUPS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    Lookup = Callable[[str, int], list[str]]


class LookupFailed(Exception):
    """There is no address. The text says why."""


def look_up(host: str, port: int) -> list[str]:
    """All addresses of a host, each once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise LookupFailed("the host has no address") from None
    return list(dict.fromkeys([str(address[0]) for *_, address in found]))


class Resolver:
    """For one event loop."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._under_way: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Raises LookupFailed. The caller bounds the time."""
        key = (host, port)
        future = self._under_way.get(key)
        if future is None:
            if len(self._under_way) >= WEBHOOK_LOOKUPS_MAX:
                raise LookupFailed("too many lookups of other hosts hang")
            loop = asyncio.get_running_loop()
            future = self._under_way[key] = loop.create_future()
            threading.Thread(target=self._look, args=(loop, key), name="dibs-lookup", daemon=True).start()
        return await asyncio.shield(future)

    def _look(self, loop: asyncio.AbstractEventLoop, key: tuple[str, int]) -> None:
        found: list[str] | BaseException
        try:
            found = self._lookup(*key)
        except BaseException as error:
            found = error if isinstance(error, LookupFailed) else LookupFailed("the lookup failed")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._settle, key, found)

    def _settle(self, key: tuple[str, int], found: list[str] | BaseException) -> None:
        future = self._under_way.pop(key)
        if future.cancelled():
            return
        if isinstance(found, BaseException):
            future.set_exception(found)
            future.exception()  # perhaps nobody waits for it any more
        else:
            future.set_result(found)
