"""Builds `shim.c`, and steers it: processes that were started with `environment` share one `Shim`."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path

FIELDS = ("armed", "count", "at", "error", "lasts", "kinds", "group", "sync_us", "whole")
WRITES, SYNCS, NAMES, NETWORK = 1, 2, 4, 8
ANY = WRITES | SYNCS | NAMES | NETWORK
FOR_EVER = 1 << 40
SOURCE = Path(__file__).with_name("shim.c")


def build(cc: str, folder: Path) -> Path:
    """Compile it into this folder."""
    library = folder / "shim.so"
    words = [cc, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(words, check=True, timeout=120)
    return library


def environment(library: Path, folder: Path, *, log: Path | None = None, under: Path | None = None) -> dict[str, str]:
    """What a process needs in its environment to be steered by `Shim(folder / "shim")`."""
    control = folder / "shim"
    control.write_bytes(bytes(8 * len(FIELDS)))
    made = {"LD_PRELOAD": str(library), "DIBS_SHIM": str(control)}
    if log is not None:
        log.touch()
        made |= {"DIBS_SHIM_LOG": str(log), "DIBS_SHIM_UNDER": str(under)}
    return made


class Shim:
    """The numbers that all processes of a test share; `shim.c` says what each means."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8 * len(FIELDS))

    def arm(self, **numbers: int) -> None:
        """From now on calls count. What is not given is 0."""
        values = {**dict.fromkeys(FIELDS, 0), "kinds": ANY, **numbers}
        packed = struct.pack(f"{len(FIELDS)}q", *(values[name] for name in FIELDS))
        self._memory[8 : len(packed)] = packed[8:]
        self._memory[:8] = struct.pack("q", 1)

    def disarm(self) -> None:
        self._memory[:8] = bytes(8)

    @property
    def count(self) -> int:
        """How many calls were counted since it was armed."""
        return int(struct.unpack_from("q", self._memory, 8)[0])


def of_this_process() -> Shim:
    return Shim(os.environ["DIBS_SHIM"])
