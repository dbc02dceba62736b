"""What a store on etcd can do, and what it cannot."""

from __future__ import annotations

from dibs.core.limits import ETCD_KEYS_MAX
from dibs.stores.port import Capabilities

CAPABILITIES = Capabilities(
    name="etcd",
    clock="the seconds that etcd's leader counts, and each process's steady clock between them; no wall clock",
    reach="network",
    watch="native",
    durable=True,
    commit_keys_max=ETCD_KEYS_MAX,
    gapless=False,
    cannot=(
        "number events without gaps: numbers come from revisions of the cluster",
        "carry more than 100 records or 1.5 MiB in one change: etcd accepts no more in a transaction",
        "compact or defragment itself: that is for the operator of etcd",
    ),
)
