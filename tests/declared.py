"""What the stores that dibs ships declare about themselves."""

from __future__ import annotations

from dibs.stores import etcd, git, postgres
from dibs.stores.memory import MemoryStore
from dibs.stores.sqlite import SqliteStore

CAPABILITIES = (
    MemoryStore.capabilities,
    SqliteStore.capabilities,
    git.LOCAL,
    git.REMOTE,
    postgres.CAPABILITIES,
    etcd.CAPABILITIES,
)
