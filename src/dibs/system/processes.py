"""The table of processes of this system, chosen once."""

from __future__ import annotations

from dibs.system import ways
from dibs.system.process_table import ProcessTable

_chosen: list[ProcessTable] = []


def table() -> ProcessTable:
    """The table of this system."""
    if not _chosen:
        _chosen.append(_table())
    return _chosen[0]


def _table() -> ProcessTable:
    if ways.IS_LINUX:
        from dibs.system.linux_processes import LinuxProcesses

        return LinuxProcesses()
    if ways.IS_MACOS:
        from dibs.system.macos_processes import loaded

        library = loaded()
        if library is not None:
            from dibs.system.macos_processes import MacosProcesses

            return MacosProcesses(library)
    if ways.IS_MACOS or ways.IS_PORTABLE:
        from dibs.system.ps_processes import PsProcesses

        return PsProcesses()
    return ProcessTable()
