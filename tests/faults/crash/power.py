"""What a disk may hold after a power cut: what was synced, and any part of what was not.

A log of `shim.c` says what was done. A file is durable up to its last sync; of later writes each may be there, or not,
or in part, whatever their order. A name is durable when its folder was synced; of later changes of names the first ones
may be there. That is less than what most file systems promise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

SECTOR = 512


@dataclass
class Call:
    """One call, or (`ack`) what was acknowledged by then."""

    what: str
    first: int
    path: str
    to: str
    data: bytes = b""


def read_log(path: Path) -> list[Call]:
    text = path.read_bytes()
    found: list[Call] = []
    at = 0
    while at < len(text):
        end = text.index(b"\n", at)
        numbers, path_, to = text[at:end].decode().split("\t")
        what, first, second = numbers.split(" ")
        size = int(second) if what == "write" else 0
        found.append(Call(what, int(first), path_, to, text[end + 1 : end + 1 + size]))
        at = end + 1 + size
    return found


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    later: list[Call] = field(default_factory=list)

    def sync(self) -> None:
        for call in self.later:
            _apply(self.synced, call)
        self.later.clear()

    def after_cut(self, keep: float, chance: random.Random) -> bytes:
        content = bytearray(self.synced)
        for call in self.later:
            if chance.random() < keep:
                _apply(content, call)
            elif call.what == "write" and len(call.data) > SECTOR and chance.random() < keep:
                first = SECTOR * chance.randrange(len(call.data) // SECTOR)
                part = call.data[first : first + SECTOR]
                _apply(content, Call("write", call.first + first, call.path, "", part))
        return bytes(content)


def _apply(content: bytearray, call: Call) -> None:
    if call.what == "truncate":
        del content[call.first :]
        content.extend(bytes(call.first - len(content)))
    else:
        content.extend(bytes(max(0, call.first - len(content))))
        content[call.first : call.first + len(call.data)] = call.data


class Disk:
    """The files of one folder. `cuts` are the moments at which the power may fail."""

    def __init__(self, calls: list[Call], folder: str) -> None:
        self._calls = calls
        self._folder = folder
        self._names: dict[str, _File] = {}  # as programs see them
        self._durable: dict[str, _File] = {}
        self._later: list[Call] = []  # changes of names
        self._made: dict[int, _File] = {}  # by the call that made them
        self.acknowledged: dict[str, Any] = {"seq": 0, "renewed": {}}

    def cuts(self) -> Iterator[int]:
        """Replay the log; before each call the power may fail."""
        for number, call in enumerate(self._calls):
            yield number
            self._do(call)
        yield len(self._calls)

    def _do(self, call: Call) -> None:
        if call.what == "ack":
            self.acknowledged = json.loads(call.path)
        elif call.what in ("write", "truncate"):
            self._names[call.path].later.append(call)
        elif call.what == "sync" and call.path.rstrip("/") == self._folder.rstrip("/"):
            for each in self._later:
                _rename(self._durable, each, self._made)
            self._later.clear()
        elif call.what == "sync":
            if call.path in self._names:
                self._names[call.path].sync()
        else:
            if call.what == "make":
                self._made[id(call)] = _File()
            self._later.append(call)
            _rename(self._names, call, self._made)

    def write_out(self, target: Path, keep: float, chance: random.Random) -> None:
        """Make the folder as it may be after a cut at this moment. `keep`: how likely an unsynced write is there."""
        names = dict(self._durable)
        count = round(keep * len(self._later)) if keep in (0, 1) else chance.randint(0, len(self._later))
        for call in self._later[:count]:
            _rename(names, call, self._made)
        for path, file in names.items():
            if not path.endswith("-shm"):  # it is memory; a reboot leaves anything in it, and nobody reads it
                (target / path.removeprefix(self._folder).lstrip("/")).write_bytes(file.after_cut(keep, chance))


def _rename(names: dict[str, _File], call: Call, made: dict[int, _File]) -> None:
    if call.what == "make":
        names[call.path] = made[id(call)]
    elif call.what == "unlink":
        names.pop(call.path, None)
    elif call.path in names:
        names[call.to] = names[call.path]
        if call.what == "rename":
            del names[call.path]
