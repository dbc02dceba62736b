"""A store in front of another: every call goes to `inner` unless a subclass says otherwise."""

from __future__ import annotations

from dibs.stores.port import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dibs.base.errors import DibsError
    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.port import Due, Snapshot, Versioned


class StoreProxy(Store):
    """Also forwards the methods that have a default in the port, because the inner store may have its own. Two keep the
    default. `recall` is `read`: a subclass that replaces `read` means every way to get records. `at_once` is None: what
    a subclass does may take long."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities

    def read(self, keys: Iterable[str]) -> Snapshot:
        return self.inner.read(keys)

    def commit(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> int:
        return self.inner.commit(expect, puts, events)

    def scan(
        self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False
    ) -> list[tuple[str, Versioned]]:
        return self.inner.scan(prefix, after, limit, live=live)

    def due(self, limit: int) -> Due:
        return self.inner.due(limit)

    def events(
        self, after: int, limit: int, job: tuple[str, str] | None = None, *, newest: bool = False
    ) -> list[Event]:
        return self.inner.events(after, limit, job, newest=newest)

    def newest_seq(self) -> int:
        return self.inner.newest_seq()

    def watch(self, after: int, timeout_ms: int) -> bool:
        return self.inner.watch(after, timeout_ms)

    def until_gone(self, key: str, timeout_ms: int) -> bool:
        return self.inner.until_gone(key, timeout_ms)

    def prune(self, *, keep: int, before_ms: int) -> int:
        return self.inner.prune(keep=keep, before_ms=before_ms)

    def notices(self) -> list[str]:
        return self.inner.notices()

    def trouble(self) -> DibsError | None:
        return self.inner.trouble()

    def close(self) -> None:
        self.inner.close()
