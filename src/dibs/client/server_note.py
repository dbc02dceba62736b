"""What one process learned of several servers, for the next: a small file in the user's state folder.

A command is a process of its own. Without this, every second command would try the server that the one before found
away, and two commands could claim one job from servers of two stores without either of them noticing.
"""

from __future__ import annotations

import os

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.files import state_folder
from dibs.base.ids import new_fraction
from dibs.client.servers import AWAY_MS, STORE_MS, Servers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.client.urls import ServerAddress

_BYTES_MAX = 64 * 1024
_FORMAT = "dibs servers 1"


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
        url, _, store_id = what.partition(" ")
        if url not in urls:
            continue
        if kind == "away" and 0 <= age_ms < AWAY_MS:
            servers.away[url] = int(at) + ahead_ms + AWAY_MS
        elif kind == "store" and 0 <= age_ms < STORE_MS and store_id:
            servers.know_store(store_id, url, int(at) + ahead_ms)


def _write(path: str, servers: Servers) -> None:
    from dibs.base.files import replace_file

    ahead_ms = steady_ms() - wall_ms()
    lines = [_FORMAT]
    for url, until_ms in servers.away.items():
        lines.append(f"away {until_ms - AWAY_MS - ahead_ms} {url}")
    if servers.store is not None:
        store_id, said_by, at_ms = servers.store
        lines.append(f"store {at_ms - ahead_ms} {said_by} {store_id}")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, "\n".join(lines) + "\n")
    except OSError:
        pass  # the next process learns it anew
