"""The servers of one store that a client may ask, and which of them it asks first. Pure: time and chance are arguments.

A client begins with a server picked at random and stays with it for a while, so that many clients spread over all
servers, also those that come up again later. A server that did not answer is asked last for a while. No server is
ever left out: when all of them failed lately, all of them are tried.

Servers of two different stores in one list would give one job to two owners. Every answer says which store it is from,
and a request says which store it is for, so that the wrong server refuses it and does nothing.

A store that is moved gets another name, and names those that it goes on from. So a client that knows the old one goes
on with the new one, and does not go back. It never goes to a copy of a store that lives on: a copy names nobody.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Callable, Mapping
from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import InvalidInput
from dibs.base.files import replace_file, state_folder
from dibs.base.ids import new_fraction
from dibs.base.reply import Reply
from dibs.client.urls import ServerAddress

AWAY_MS = 15_000  # how long a server that failed is asked last
STAYS_MS = 300_000  # how long a client stays with one before it picks again
PATIENCE_MS = 2_000  # how long one is waited for while there is another to ask, beside what it is asked to wait
SLICE_MS = 4_000  # how long one of several is asked to wait in line: one that hangs must be noticed in time
STORE_MS = 600_000  # how long the id of the store is held to without hearing it again: stores are replaced, too
MISDIRECTED = 421
OUT_OF_ORDER = 500  # and above


class Servers:
    """For all transports of one client. `changed` is called when something is learned that the next process can use."""

    def __init__(self, addresses: tuple[ServerAddress, ...], chance: float = 0.0) -> None:
        self.addresses = addresses
        self.is_one = len(addresses) == 1
        self._chance = chance
        self._first: ServerAddress | None = None
        self._picked_ms = 0
        self.store: tuple[str, str, int] | None = None  # its id, who said so, when
        self.moved_from: tuple[str, ...] = ()  # the ids of the stores that it goes on from
        self.away: dict[str, int] = {}  # until when, by URL
        self.changed: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.addresses)

    def order(self, now_ms: int) -> list[ServerAddress]:
        """All of them, the one to ask first at the front."""
        if self.is_one:
            return list(self.addresses)
        if self._first is None or now_ms - self._picked_ms >= STAYS_MS:
            # Each time another part of the chance: what was drawn once is spread enough.
            chance, self._chance = divmod(self._chance * len(self), 1.0)
            self._first, self._picked_ms = self.addresses[min(int(chance), len(self) - 1)], now_ms
        at = self.addresses.index(self._first)
        turned = self.addresses[at:] + self.addresses[:at]
        return sorted(turned, key=lambda each: max(0, self.away.get(each.url, 0) - now_ms))

    def answered(self, address: ServerAddress, now_ms: int) -> None:
        """Note that a server answered: the client stays with it."""
        if address is not self._first:
            self._first, self._picked_ms = address, now_ms
        self.away.pop(address.url, None)

    def failed(self, address: ServerAddress, now_ms: int) -> None:
        self.away[address.url] = now_ms + AWAY_MS
        self.changed()

    def store_id(self, now_ms: int) -> str | None:
        """The store that requests are for, as far as that is known. One server alone is asked whatever it serves."""
        if self.is_one or self.store is None or now_ms - self.store[2] >= STORE_MS:
            return None
        return self.store[0]

    def heard(self, address: ServerAddress, status: int, headers: Mapping[str, str], now_ms: int) -> bool:
        """Note the store that an answer is from. False: nothing was done, because that store was moved to the one that
        is known. Raises InvalidInput when it has nothing to do with the one of the others."""
        if self.is_one or status >= OUT_OF_ORDER:
            return True  # who cannot answer did nothing, and may not know yet what was moved into its store
        store_id, known = headers.get("x-dibs-store"), self.store_id(now_ms)
        if store_id is None and status != MISDIRECTED:
            return True
        moved_from = tuple(filter(None, headers.get("x-dibs-moved-from", "").split(",")))
        is_new = known is None or known in moved_from
        if is_new and store_id is not None:
            self.store, self.moved_from = (store_id, address.url, now_ms), moved_from
            self.changed()
        elif store_id == known and self.store is not None and store_id is not None:
            at_ms, self.store = self.store[2], (store_id, self.store[1], now_ms)
            has_more = len(moved_from) > len(self.moved_from)  # fewer: that server has not heard of it yet
            self.moved_from = moved_from if has_more else self.moved_from
            if has_more or now_ms - at_ms > STORE_MS // 10:
                self.changed()
        elif self.store is not None and store_id not in self.moved_from:
            raise InvalidInput(
                f"{address.url} serves another store than {self.store[1]}, so nothing was done there.\nName servers "
                f"of one store only. If the store was replaced, this ends within {STORE_MS // 60_000} minutes."
            )
        return known is None or status != MISDIRECTED


def moved_away(address: ServerAddress) -> Reply:
    """The refusal of a server whose store was moved, as it is meant: not here, and not now."""
    details = f"{address.url} serves a store that was moved. Nothing was done there; the servers of the new one do it."
    return Reply(503, {"code": "upstream_unavailable", "details": details})


# What one process learned of several servers, for the next: a small file in the user's state folder.
#
# A command is a process of its own. Without this, every second command would try the server that the one before found
# away, and two commands could claim one job from servers of two stores without either of them noticing.

_BYTES_MAX = 64 * 1024
_FORMAT = "dibs servers 2"


def remembered(addresses: tuple[ServerAddress, ...], env: Mapping[str, str]) -> Servers:
    """The servers, with what an earlier process noted of them. What is learned from now on is noted."""
    servers = Servers(addresses, new_fraction())
    path = note_path(addresses, env)
    _read(path, servers)
    servers.changed = lambda: _write(path, servers)
    return servers


def note_path(addresses: tuple[ServerAddress, ...], env: Mapping[str, str]) -> str:
    from binascii import crc32

    urls = "\n".join(sorted(each.url for each in addresses))
    return os.path.join(state_folder(env), f"servers-{crc32(urls.encode()):08x}")


def _read(path: str, servers: Servers) -> None:
    """Instants in the file are of the wall clock, which may be stepped: what lies too far ahead is not believed."""
    try:
        with open(path, "rb") as file:
            first, *lines = file.read(_BYTES_MAX).decode("utf-8", "replace").splitlines() or [""]
    except OSError:
        return
    if first != _FORMAT:
        return
    ahead_ms = steady_ms() - wall_ms()
    urls = {each.url for each in servers.addresses}
    for line in lines:
        kind, _, rest = line.partition(" ")
        at, _, what = rest.partition(" ")
        if not at.isdecimal() or len(at) > 15:
            continue
        age_ms = wall_ms() - int(at)
        url, _, names = what.partition(" ")
        if url not in urls:
            continue
        if kind == "away" and 0 <= age_ms < AWAY_MS:
            servers.away[url] = int(at) + ahead_ms + AWAY_MS
        elif kind == "store" and 0 <= age_ms < STORE_MS and names:
            store_id, *before = names.split(" ")
            servers.store, servers.moved_from = (store_id, url, int(at) + ahead_ms), tuple(before)


def _write(path: str, servers: Servers) -> None:
    ahead_ms = steady_ms() - wall_ms()
    lines = [_FORMAT]
    for url, until_ms in servers.away.items():
        lines.append(f"away {until_ms - AWAY_MS - ahead_ms} {url}")
    if servers.store is not None:
        store_id, said_by, at_ms = servers.store
        lines.append(" ".join(["store", str(at_ms - ahead_ms), said_by, store_id, *servers.moved_from]))
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, "\n".join(lines) + "\n")
    except OSError:
        pass  # the next process learns it anew
