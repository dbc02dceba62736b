"""What a store on etcd can do, and what it cannot."""

from __future__ import annotations

from dibs.core.limits import ETCD_BATCH_MAX
from dibs.stores.port import Capabilities

CAPABILITIES = Capabilities(
    name="etcd",
    clock="the seconds that etcd's leader counts, and each process's steady clock between them; no wall clock",
    reach="network",
    watch="native",
    durable=True,
    gapless=False,
    batch_max=ETCD_BATCH_MAX,
    cannot=(
        "number events without gaps: numbers come from revisions of the cluster",
        "keep a record of more than 1.4 MB: etcd accepts no more in a request",
        "compact or defragment itself: that is for the operator of etcd",
    ),
)
