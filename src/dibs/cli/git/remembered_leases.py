"""The leases of actors, remembered between commands for users of grite's recipes.

These recipes acquire, renew and release without passing a lease id. So the id is kept in a file below `locks` in the
state folder, readable by its owner only. `dibs lock` and `dibs claim --staged` write it; they and the hooks read it;
no other command does. `cli/git/actor.py` decides whose an entry is.

An entry proves nothing by itself: the store decides, by the lease id in it, whether the lease is current.
"""

from __future__ import annotations

import os

from dibs.base.files import lock_file, replace_file
from dibs.base.jsontext import decode, encode
from dibs.base.paths import state_folder
from dibs.core.limits import LOCK_MEMORY_MS
from dibs.core.names import DEFAULT_NAMESPACE

_GATE_MS = 5_000

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Entry = dict[str, Any]
    Change = Callable[[list[Entry]], list[Entry]]


class RememberedLeases:
    """The remembered leases of one namespace in one store. `now_ms` is wall time."""

    def __init__(self, env: Mapping[str, str], url: str | None, namespace: str | None, now_ms: int) -> None:
        self._folder = os.path.join(state_folder(env), "locks")
        self._where = [url or "", namespace or DEFAULT_NAMESPACE]
        self._now_ms = now_ms

    def entries(self, resource: str) -> list[Entry]:
        """The entries of a resource, newest first. A file that cannot be read counts as empty."""
        key = [*self._where, resource]
        return [entry for entry in _read(self._file(resource)) if entry["key"] == key]

    def remember(self, resource: str, entry: Entry) -> bool:
        """Keep `entry`, replacing the same actor's entry. False if the file cannot be written."""
        key = [*self._where, resource]
        made: Entry = {"key": key, **entry}

        def change(entries: list[Entry]) -> list[Entry]:
            others = [each for each in entries if (each["key"], each["marks"]) != (key, made["marks"])]
            return [made, *others]

        return self._change(self._file(resource), change)

    def begin(self, resource: str, entry: Entry) -> Entry | None:
        """Keep `entry` unless the same actor has one: two commands of one actor use one request key. Returns the entry
        that is kept; None if the file cannot be written."""
        key = [*self._where, resource]
        found: Entry = {"key": key, **entry}

        def change(entries: list[Entry]) -> list[Entry]:
            nonlocal found
            same = [each for each in entries if (each["key"], each["marks"]) == (key, found["marks"])]
            if same:
                found = same[0]
                return entries
            return [found, *entries]

        return found if self._change(self._file(resource), change) else None

    def forget(self, resource: str, request_key: str) -> None:
        """Drop the entry with this request key: its lease has ended, or was never granted."""
        self._change(
            self._file(resource), lambda all_: [each for each in all_ if each["request_key"] != request_key]
        )

    def tidy(self) -> None:
        """Drop entries that ended long ago."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(".json")]
        except OSError:
            return
        for name in names:
            self._change(os.path.join(self._folder, name), lambda entries: entries)

    def _file(self, resource: str) -> str:
        import binascii

        # Several keys may share a file, so each entry has its own key.
        digest = binascii.crc32("\0".join([*self._where, resource]).encode("utf-8", "surrogatepass"))
        return os.path.join(self._folder, f"{digest:08x}.json")

    def _change(self, path: str, change: Change) -> bool:
        """One writer at a time, and readers see the old file or the new one."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            gate = os.open(os.path.join(self._folder, "gate"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            if not lock_file(gate, _GATE_MS):
                return False
            left = [
                entry for entry in change(_read(path)) if self._now_ms < entry["until_ms"] + LOCK_MEMORY_MS
            ]
            _write(path, left)
        except OSError:
            return False
        finally:
            os.close(gate)
        return True


def _read(path: str) -> list[Entry]:
    try:
        with open(path, encoding="utf-8") as file:
            entries: list[Entry] = decode(file.read())
    except (OSError, ValueError):
        return []
    return entries


def _write(path: str, entries: list[Entry]) -> None:
    if not entries:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        return
    replace_file(path, encode(entries))
