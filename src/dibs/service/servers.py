"""Which servers stand on this store, known from their pulses (`core/outages.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.keys import LOCK_PREFIX, PULSE_KEY, SESSION_PREFIX
from dibs.core.limits import LIST_PAGE_DEFAULT
from dibs.core.outages import accounted_ms, gone_servers
from dibs.core.records import Pulse

if TYPE_CHECKING:
    from dibs.core.commands import Beat
    from dibs.stores.port import Store


def pulses_of(store: Store) -> list[Pulse]:
    """All pulses, that of a server of an older version included."""
    found = store.scan(PULSE_KEY, limit=LIST_PAGE_DEFAULT)
    return [versioned.record for _, versioned in found if isinstance(versioned.record, Pulse)]


def after_gap(store: Store, beat: Beat) -> Beat:
    """The beat of a server that does not know what was meanwhile, with what the store can tell it."""
    pulses = pulses_of(store)
    return beat.replace(
        heard_ms=accounted_ms(pulses),
        idle=_is_idle(store),
        gone=gone_servers([pulse for pulse in pulses if pulse.server != beat.server], beat.alive_since_ms),
    )


def _is_idle(store: Store) -> bool:
    """Servers write no pulse while nobody has or waits for anything, and so none of them is missed then."""
    return not any(store.scan(prefix, limit=1, live=True) for prefix in (LOCK_PREFIX, SESSION_PREFIX))
