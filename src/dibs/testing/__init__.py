"""Tools for tests of code that uses dibs, and for tests of stores.

    MemoryDibs, memory_client   dibs in memory, for tests of your own code; `fixtures.py` has it as a fixture of pytest
    ManualClock                 time that moves when you say so
    FaultyStore                 a store that fails when you say so
    StoreContract               what every store must do: subclass it to test a store of your own; it needs pytest

They are imported at their first use.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.testing.clients import MemoryDibs, memory_client
    from dibs.testing.clock import ManualClock
    from dibs.testing.contract import StoreContract
    from dibs.testing.faulty import FaultyStore

__all__ = ["FaultyStore", "ManualClock", "MemoryDibs", "StoreContract", "memory_client"]
_PLACES = {
    "FaultyStore": "faulty",
    "ManualClock": "clock",
    "MemoryDibs": "clients",
    "StoreContract": "contract",
    "memory_client": "clients",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'dibs.testing' has no attribute {name!r}")
    module = __import__(f"dibs.testing.{_PLACES[name]}", fromlist=("",))
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"])


del TYPE_CHECKING  # it would be offered as if it were ours
