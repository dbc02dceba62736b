"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dibs.core import limits

if TYPE_CHECKING:
    from dibs.server.contract import Contract

DEFAULT_BIND = "127.0.0.1:3427"
SYSTEM_SOCKET = "/run/dibs/dibs.sock"
SYSTEM_STORE = "sqlite:///var/lib/dibs/dibs.db"


@dataclass(frozen=True)
class PublicElections:
    """Bounds of elections that need no token: rooms with a leader, requests of a client in a minute, streams."""

    rooms: int = limits.PUBLIC_ROOMS_MAX
    requests: int = limits.PUBLIC_REQUESTS_MAX
    streams: int = limits.PUBLIC_STREAMS_MAX
    streams_per_client: int = limits.PUBLIC_STREAMS_PER_CLIENT_MAX
    stream_ms: int = limits.PUBLIC_STREAM_MS_MAX


@dataclass(frozen=True)
class ServerSettings:
    """All that can be chosen about a server. `store` None: the user's own; `tokens_file` None: the user's own token."""

    bind: str = DEFAULT_BIND
    store: str | None = None
    tokens_file: str | None = None
    identity_file: str | None = None  # rules for signed tokens
    keep_events: int = limits.EVENTS_KEPT_MAX
    keep_events_ms: int = limits.EVENTS_AGE_MS_MAX
    locks_per_principal: int = limits.LOCKS_PER_PRINCIPAL_MAX
    max_hold_ms: int = 0  # how long a claim may last, whatever is renewed; 0: no ceiling
    log_level: str = "warning"
    log_format: str = "text"  # or json
    traces: bool = False  # spans of OpenTelemetry
    open_metrics: bool = False  # metrics need no token
    metric_jobs: tuple[tuple[str, str], ...] = ()  # namespace and name: they may be labels of metrics
    access_log: bool = False
    # Words for routes of plugins and of other packages (`server/plugins.py`).
    routes: tuple[str, ...] = ()
    gateway_upstream: str | None = None
    rlock_ttl_ms: int = limits.RLOCK_TTL_MS_DEFAULT
    token_floor: int = 0
    # For all users of the machine: the kernel says who asks. `group`, `socket_mode`: who may connect.
    system: bool = False
    group: str | None = None
    socket_mode: int | None = None
    # 0 is no bound.
    connections: int = limits.CONNECTIONS_MAX
    connections_per_client: int = limits.CONNECTIONS_PER_CLIENT_MAX
    # Files. `tls_key` None: the key is in the file of the certificate. `tls_client_ca`: clients need a certificate.
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    # Proxies whose word about a client counts: addresses, networks, "unix".
    trusted_proxies: tuple[str, ...] = ()
    # Further names of this machine in requests to /mcp.
    mcp_hosts: tuple[str, ...] = ()
    # How long a server that ends still serves those who hold something. None: the default, if there are others.
    drain_ms: int | None = None
    # None: elections need a token, as everything else does.
    public_elections: PublicElections | None = None
    # Let anybody on this machine make a token for a name that nobody has. Only on a loopback address.
    local_registration: bool = False
    # Pages of these origins may ask from a browser, with a token of their own.
    cors_origins: tuple[str, ...] = ()
    # Where webhooks may lead.
    webhook_allow_private: bool = False
    webhook_allow_http: bool = False
    webhook_ca: str | None = None  # a file with authorities that targets may have besides the system's
    # Answer as another program does. None: by dibs' rules.
    contract: Contract | None = None
