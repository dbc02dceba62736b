"""Administration of a store: sweep, facts, probe, floor. For `gc`, `doctor` and `token-floor`.

One of the few client modules that may import stores and the engine. Everything here raises what the store raises.
"""

from __future__ import annotations

from dibs.core.commands import RaiseFloor, Sweep
from dibs.core.keys import LOCK_PREFIX, META_KEY
from dibs.core.limits import SWEEP_BATCH_MAX
from dibs.core.records import LockRecord, Meta
from dibs.core.upkeep import is_swept
from dibs.core.upkeep_outcomes import Raised
from dibs.engine.coordinator import Coordinator
from dibs.stores.port import Opening, maintenance_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.stores.port import Store

    Document = dict[str, Any]


def sweep(store: Store) -> Document:
    """Sweep all jobs: write expiries as events, delete long idle records. Then tidy the store."""
    coordinator = Coordinator(store)
    swept: Document = {"jobs": 0, "expired": 0, "forgotten": 0}
    seen: set[str] = set()
    while True:
        # A lease with outage credit may stay due for the store but not for the rules, so each key is swept once.
        found = store.due(SWEEP_BATCH_MAX)
        keys = [key for key in found.keys if key not in seen and is_swept(key)]
        if not keys and not found.has_more:
            return swept | {"recounted": recounted(store)} | maintenance_of(store).tidy()
        seen.update(keys)
        for outcome in coordinator.run([Sweep(key=key) for key in keys]):
            if isinstance(outcome, BaseException):
                raise outcome
            swept["jobs"] += 1
            swept["expired"] += getattr(outcome, "expired", 0)
            swept["forgotten"] += getattr(outcome, "forgotten", False)


def recounted(store: Store) -> list[str]:
    """Count anew for principals whose usage record does not say what they have. Returns their names."""
    from dibs.engine.usage import disagreeing, recount

    wrong = disagreeing(store) if store.capabilities.serves else []
    for payer in wrong:
        recount(store, payer)
    return [payer.partition("/")[2] for payer in wrong]


def miscounted(store: Store) -> list[str]:
    """The principals whose usage record does not say what they have."""
    from dibs.engine.usage import disagreeing

    return [payer.partition("/")[2] for payer in disagreeing(store)] if store.capabilities.serves else []


def facts(store: Store) -> Document:
    """Facts about a store for its administrator."""
    return {
        "kind": store.capabilities.name,
        "clock": store.capabilities.clock,
        "format": _format_of(store),
        "path": getattr(store, "path", None),
        "now_ms": store.read(()).now_ms,
        "size_bytes": maintenance_of(store).size_bytes(),
    }


def frozen(store: Store) -> str | None:
    """Why nothing can be claimed in a store that is frozen, and what to do. None: it is not."""
    meta = store.read((META_KEY,)).records[META_KEY].record
    mark = meta.frozen if isinstance(meta, Meta) else None
    if mark is None:
        return None
    if mark.incomplete:
        return "an import is not complete, so nothing can be claimed. Repeat the import"
    return "dibs export froze it, so nothing can be claimed. If its copy is not in use, run: dibs thaw"


def probe(store: Store) -> list[Document]:
    """The results of the store's own probe of its location."""
    return maintenance_of(store).probe()


def holds_anything(store: Store) -> bool:
    """Whether any job of any namespace is held right now."""
    after = ""
    while page := store.scan(LOCK_PREFIX, after, 1_000, live=True):
        now_ms = store.read(()).now_ms
        for _, found in page:
            held = found.record.holders if isinstance(found.record, LockRecord) else ()
            if any(each.expires_ms > now_ms or not each.ttl_ms for each in held):
                return True
        after = page[-1][0]
    return False


def raise_floor(store: Store, floor: int) -> int:
    """Raise the floor under all fencing tokens. Returns the floor that applies from now on."""
    outcome = Coordinator(store).one(RaiseFloor(floor=floor))
    assert isinstance(outcome, Raised)
    return outcome.floor


def migrate(url: str | None) -> Document:
    """Bring a store up to date, whatever its URL says about doing so by itself."""
    from dibs.stores.registry import default_url, open_store

    store = open_store(url or default_url(), Opening(migrate=True))
    try:
        was, now = maintenance_of(store).migrated() or (None, None)
        return {"store": store.capabilities.name, "was": was, "version": now}
    finally:
        store.close()


def try_write(store: Store) -> None:
    """Raise what a write would raise. Changes no record."""
    store.commit({}, {}, ())


def _format_of(store: Store) -> int | None:
    """The version of the format that an opened store has: older ones were brought up to it, newer ones refused."""
    versions = maintenance_of(store).migrated()
    return None if versions is None else versions[1]
