"""What `dibs doctor` finds out about a store on etcd: every member, the rights of the user, the clock."""

from __future__ import annotations

from functools import partial

from dibs.base.errors import DibsError, StoreUnavailable
from dibs.stores.etcd.errors import NO_ROOM
from dibs.stores.etcd.gateway import EtcdGateway
from dibs.stores.etcd.location import shown_endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.stores.etcd.location import EtcdLocation
    from dibs.stores.port import Store

VERSION_MIN = (3, 4)


def probe(location: EtcdLocation, store: Store) -> list[dict[str, Any]]:
    """One line for each member, one for writing, one for the clock."""
    found = [
        _said(shown_endpoint(each), partial(_member, location.replace(endpoints=(each,))))
        for each in location.endpoints
    ]
    found.append(_said("write", lambda: _write(store)))
    found.append(_said("clock", lambda: _clock(store)))
    return found


def _said(check: str, look: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": check, "ok": True, "says": look()}
    except DibsError as error:
        return {"check": check, "ok": False, "says": error.details}


def _member(location: EtcdLocation) -> str:
    gateway = EtcdGateway(location)
    try:
        status = gateway.read("/v3/maintenance/status", {})
    finally:
        gateway.close()
    version = str(status.get("version", "?"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < VERSION_MIN:
        raise StoreUnavailable(f"is etcd {version}; dibs needs 3.4 or newer")
    if any("NOSPACE" in str(each) for each in status.get("errors", ())):
        raise StoreUnavailable(f"is etcd {version} and takes no writes: {NO_ROOM}")
    return f"etcd {version}, {int(status.get('dbSize', 0)) // 1024} KiB"


def _write(store: Store) -> str:
    store.commit({}, {}, ())
    return "can be written"


def _clock(store: Store) -> str:
    store.read(())
    return "runs like etcd's"
