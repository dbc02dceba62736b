"""The differences between systems: Linux, macOS, and what every Unix has."""

from __future__ import annotations

from dibs.base import platforms
from dibs.system.processes import LinuxProcesses, ProcessTable

_chosen: list[ProcessTable] = []


def table() -> ProcessTable:
    """The table of processes of this system, chosen once."""
    if not _chosen:
        _chosen.append(_table())
    return _chosen[0]


def _table() -> ProcessTable:
    if platforms.IS_LINUX:
        return LinuxProcesses()
    if platforms.IS_MACOS:
        from dibs.system.macos_processes import loaded

        found = loaded()
        if found is not None:
            return found
    if platforms.IS_MACOS or platforms.IS_PORTABLE:
        from dibs.system.ps_processes import PsProcesses

        return PsProcesses()
    return ProcessTable()
