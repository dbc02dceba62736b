"""The options of `dibs serve`."""

from __future__ import annotations

from dibs.cli.framework.spec import Option
from dibs.core.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_CLIENT_MAX,
    DRAIN_MS_DEFAULT,
    EVENTS_KEPT_MAX,
    LOCKS_PER_PRINCIPAL_MAX,
    PUBLIC_ROOMS_MAX,
)

OPTIONS = (
    Option(
        "--bind",
        "where to listen: HOST:PORT or unix:/path (default 127.0.0.1:3427)",
        value="WHERE",
        env="DIBS_BIND",
    ),
    Option("--port", "the same as --bind 127.0.0.1:N", value="N"),
    Option(
        "--store",
        "the store to serve, the same as --url (default: your own store)",
        value="URL",
        env="DIBS_STORE",
    ),
    Option(
        "--tokens",
        "the tokens file, which `dibs token new` writes; only you may be able to read it",
        value="FILE",
        env="DIBS_TOKENS_FILE",
        completes="file",
    ),
    Option(
        "--tls-cert",
        "serve over TLS with this certificate and its chain, in PEM form",
        value="FILE",
        env="DIBS_TLS_CERT",
        completes="file",
    ),
    Option(
        "--tls-key",
        "the key of the certificate (default: it is in the same file)",
        value="FILE",
        env="DIBS_TLS_KEY",
        completes="file",
    ),
    Option(
        "--tls-client-ca",
        "clients need a certificate of this authority, besides their token",
        value="FILE",
        env="DIBS_TLS_CLIENT_CA",
        completes="file",
    ),
    Option(
        "--trusted-proxy",
        "proxies whose X-Forwarded-For and X-Forwarded-Proto count: addresses and networks with commas between, or "
        "unix",
        value="WHERE",
        env="DIBS_TRUSTED_PROXY",
    ),
    Option(
        "--keep-events",
        f"how many events of history to keep (default {EVENTS_KEPT_MAX})",
        value="N",
        env="DIBS_KEEP_EVENTS",
    ),
    Option(
        "--keep-events-for",
        "how long to keep events of history (default 30d)",
        value="TIME",
        env="DIBS_KEEP_EVENTS_FOR",
    ),
    Option(
        "--locks-per-principal",
        f"how many jobs one token may hold that has no limit of its own (default {LOCKS_PER_PRINCIPAL_MAX})",
        value="N",
        env="DIBS_LOCKS_PER_PRINCIPAL",
    ),
    Option(
        "--token-floor",
        "make all fencing tokens higher than this number; see dibs token-floor",
        value="N",
        env="DIBS_TOKEN_FLOOR",
    ),
    Option(
        "--connections",
        f"how many connections at once; 0 for no limit (default {CONNECTIONS_MAX})",
        value="N",
        env="DIBS_CONNECTIONS",
    ),
    Option(
        "--connections-per-client",
        "how many connections from one address, or of one user on a Unix socket; 0 for no limit. A trusted proxy "
        f"has none (default {CONNECTIONS_PER_CLIENT_MAX})",
        value="N",
        env="DIBS_CONNECTIONS_PER_CLIENT",
    ),
    Option(
        "--drain",
        "how long SIGTERM lets those who hold something go on, with no new claims; 0 to end at once "
        f"(default {DRAIN_MS_DEFAULT // 1000}s while other servers stand on the store, else 0)",
        value="TIME",
        env="DIBS_DRAIN",
    ),
    Option(
        "--mcp-host",
        "host names that MCP clients, and clients without a token on a loopback address, may use for this machine, "
        "with commas between (default: localhost, its own name, and the address it listens on)",
        value="NAMES",
        env="DIBS_MCP_HOST",
    ),
    Option("--access-log", "print a line to stderr for every request", env="DIBS_ACCESS_LOG"),
    Option(
        "--log-format",
        "how to write the log: text, or json for one object per line (default text)",
        value="FORMAT",
        env="DIBS_LOG_FORMAT",
    ),
    Option(
        "--log-level",
        "which lines to write: debug, info, warning or error (default warning); SIGUSR1 is for more, SIGUSR2 for less",
        value="LEVEL",
        env="DIBS_LOG_LEVEL",
    ),
    Option(
        "--traces",
        "send spans of OpenTelemetry, as the variables OTEL_* say; needs the otel extra",
        env="DIBS_TRACES",
    ),
    Option("--open-metrics", "answer /metrics without a token", env="DIBS_OPEN_METRICS"),
    Option(
        "--public-elections",
        "let callers without a token take part in elections, in a namespace of their own",
        env="DIBS_PUBLIC_ELECTIONS",
    ),
    Option(
        "--public-elections-max",
        f"how many of these may have a leader at a time (default {PUBLIC_ROOMS_MAX})",
        value="N",
        env="DIBS_PUBLIC_ELECTIONS_MAX",
    ),
    Option(
        "--local-registration",
        "let anybody on this machine make a token for a name that nobody has (POST /auth/register); only "
        "on a loopback address",
        env="DIBS_LOCAL_REGISTRATION",
    ),
    Option(
        "--cors-origin",
        "origins of web pages that may use this server with a token, with commas between (default none)",
        value="ORIGINS",
        env="DIBS_CORS_ORIGIN",
    ),
    Option(
        "--system",
        "serve all users of this machine, on /run/dibs/dibs.sock, with the store in /var/lib/dibs; "
        "there are no tokens, because the kernel says who the caller is",
    ),
    Option(
        "--group",
        "of a Unix socket: let the members of this group connect; with --system, only them",
        value="GROUP",
        env="DIBS_GROUP",
    ),
    Option(
        "--socket-mode",
        "of a Unix socket: who may connect, as in 660 (default 600; with --group 660, with --system 666)",
        value="MODE",
        env="DIBS_SOCKET_MODE",
    ),
    Option(
        "--webhook-allow-private",
        "let webhooks lead to private and local addresses, which only this server may be able to reach",
        env="DIBS_WEBHOOK_ALLOW_PRIVATE",
    ),
    Option(
        "--webhook-allow-http",
        "let webhooks lead to http:// URLs: their deliveries can be read on the way",
        env="DIBS_WEBHOOK_ALLOW_HTTP",
    ),
    Option(
        "--octostore",
        "answer as OctoStore's own server does, and read its variables (STATIC_TOKENS, ADMIN_KEY and so on)",
        env="DIBS_OCTOSTORE",
    ),
    Option(
        "--routes",
        "also serve the routes of an installed package, by their words, with commas between",
        value="WORDS",
        env="DIBS_ROUTES",
    ),
    Option("--gateway", "also serve Action Llama's lock routes, below /gateway"),
    Option(
        "--gateway-upstream",
        "the URL of Action Llama's own gateway, to which signals, calls and shutdown are forwarded",
        value="URL",
        env="DIBS_GATEWAY_UPSTREAM",
    ),
    Option(
        "--rlock-ttl",
        "how long a lock made through the gateway lasts without a heartbeat (default 30m)",
        value="TIME",
        env="DIBS_RLOCK_TTL",
    ),
)
