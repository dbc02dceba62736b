"""serve: the store over HTTP."""

from __future__ import annotations

import gc
import os

from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.registry import part
from dibs.cli.framework.result import yes
from dibs.cli.framework.spec import Command, Option
from dibs.core.durations import parse_duration
from dibs.core.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_CLIENT_MAX,
    DRAIN_MS_DEFAULT,
    DRAIN_MS_MAX,
    EVENTS_KEPT_MAX,
    LOCKS_PER_PRINCIPAL_MAX,
    PUBLIC_ROOMS_MAX,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.cli.framework.result import Answer


_NUMBER_MAX = 10**12


def serve(call: Call) -> Answer:
    from dibs.server.run import serve as serve_until_stopped
    from dibs.server.settings import ServerSettings

    chosen = {
        **_octostore(call),
        **_places(call),
        **_tls(call),
        **_numbers(call),
        **_times(call),
        **_gateway(call),
        **_elections(call),
        **_web(call),
        **_webhooks(call),
        **_logs(call),
    }
    for key, flag in (("mcp_hosts", "mcp_host"), ("trusted_proxies", "trusted_proxy"), ("routes", "routes")):
        names = call.settings.pick(flag, f"DIBS_{flag.upper()}")
        if names is not None:
            chosen[key] = tuple(name.strip() for name in names.split(",") if name.strip())
    if call.values.get("gateway"):
        chosen["routes"] = ("gateway", *chosen.get("routes", ()))
    gc.enable()  # it is off for short commands
    serve_until_stopped(ServerSettings(**chosen))
    return yes({"stopped": True}, "")


def _logs(call: Call) -> dict[str, Any]:
    """Return what the server tells about itself."""
    chosen: dict[str, Any] = {
        "access_log": _is_on(call, "access_log", "DIBS_ACCESS_LOG"),
        "traces": _is_on(call, "traces", "DIBS_TRACES"),
        "open_metrics": _is_on(call, "open_metrics", "DIBS_OPEN_METRICS"),
    }
    for key, variable, words in (
        ("log_format", "DIBS_LOG_FORMAT", ("text", "json")),
        ("log_level", "DIBS_LOG_LEVEL", ("debug", "info", "warning", "error")),
    ):
        text = call.settings.pick(key, variable)
        if text is not None:
            chosen[key] = text.lower()
            if chosen[key] not in words:
                flag = f"--{key.replace('_', '-')}"
                raise UsageError(f"{flag} ({variable}) is one of {', '.join(words)}, not {text!a}.", "serve")
    return chosen


def _places(call: Call) -> dict[str, Any]:
    """Return where the server listens, and where its store and its tokens are."""
    chosen = {
        "bind": _bind(call),
        "store": _store(call),
        "tokens_file": call.settings.pick("tokens", "DIBS_TOKENS_FILE"),
        "group": call.settings.pick("group", "DIBS_GROUP"),
        "socket_mode": _socket_mode(call),
    }
    chosen = {key: value for key, value in chosen.items() if value is not None}
    if call.values.get("system"):
        from dibs.server.settings import SYSTEM_SOCKET, SYSTEM_STORE

        return {"bind": f"unix:{SYSTEM_SOCKET}", "store": SYSTEM_STORE, "system": True, **chosen}
    if ("group" in chosen or "socket_mode" in chosen) and not str(chosen.get("bind")).startswith("unix:"):
        raise UsageError("--group and --socket-mode are for a Unix socket: --bind unix:/path.", "serve")
    return chosen


def _store(call: Call) -> str | None:
    """The store to serve. DIBS_URL does not name it: that is where this user's commands ask."""
    store, url = call.values.get("store"), call.values.get("url")
    if url is None:
        return call.settings.pick("store", "DIBS_STORE")
    from dibs.client.connect import servers_at

    if servers_at(url):
        raise UsageError("--url names the store to serve, not a server. --bind names the address.", "serve")
    if store is not None and store != url:
        raise UsageError("--url names one store, and --store another. Give one of them.", "serve")
    return str(url)


def _socket_mode(call: Call) -> int | None:
    text = call.settings.pick("socket_mode", "DIBS_SOCKET_MODE")
    if text is None:
        return None
    digits = text.removeprefix("0o").lstrip("0")
    # The server's own user must get in.
    if len(digits) != 3 or not set(digits) <= set("01234567") or int(digits, 8) & 0o600 != 0o600:
        raise UsageError(f"--socket-mode (DIBS_SOCKET_MODE) is a mode such as 660, not {text!a}.", "serve")
    return int(digits, 8)


def _tls(call: Call) -> dict[str, Any]:
    chosen = {
        "tls_cert": call.settings.pick("tls_cert", "DIBS_TLS_CERT"),
        "tls_key": call.settings.pick("tls_key", "DIBS_TLS_KEY"),
        "tls_client_ca": call.settings.pick("tls_client_ca", "DIBS_TLS_CLIENT_CA"),
    }
    chosen = {key: value for key, value in chosen.items() if value is not None}
    if chosen and "tls_cert" not in chosen:
        raise UsageError("--tls-key and --tls-client-ca need --tls-cert (DIBS_TLS_CERT).", "serve")
    return chosen


def _numbers(call: Call) -> dict[str, Any]:
    chosen = {
        "keep_events": _count(call, "keep_events", "DIBS_KEEP_EVENTS"),
        "locks_per_principal": _count(call, "locks_per_principal", "DIBS_LOCKS_PER_PRINCIPAL"),
        "token_floor": _count(call, "token_floor", "DIBS_TOKEN_FLOOR", least=0),
        "connections": _count(call, "connections", "DIBS_CONNECTIONS", least=0),
        "connections_per_client": _count(call, "connections_per_client", "DIBS_CONNECTIONS_PER_CLIENT", least=0),
    }
    return {key: value for key, value in chosen.items() if value is not None}


def _times(call: Call) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    age = call.settings.pick("keep_events_for", "DIBS_KEEP_EVENTS_FOR")
    if age is not None:
        chosen["keep_events_ms"] = parse_duration(age)
    drain = call.settings.pick("drain", "DIBS_DRAIN")
    if drain is not None:
        chosen["drain_ms"] = parse_duration(drain, "--drain (DIBS_DRAIN)")
        if chosen["drain_ms"] > DRAIN_MS_MAX:
            raise UsageError(f"--drain (DIBS_DRAIN) is {DRAIN_MS_MAX // 60_000}m at most, not {drain!a}.", "serve")
    return chosen


def _gateway(call: Call) -> dict[str, Any]:
    """Return what only clients of Action Llama's gateway need."""
    chosen: dict[str, Any] = {}
    upstream = call.settings.pick("gateway_upstream", "DIBS_GATEWAY_UPSTREAM")
    if upstream is not None:
        chosen["gateway_upstream"] = _gateway_url(upstream)
    ttl = call.settings.pick("rlock_ttl", "DIBS_RLOCK_TTL")
    if ttl is not None:
        protocol: Any = part("gateway", "--rlock-ttl (DIBS_RLOCK_TTL)")
        chosen["rlock_ttl_ms"] = protocol.ttl_seconds(ttl, "--rlock-ttl (DIBS_RLOCK_TTL)") * 1000
    return chosen


def _octostore(call: Call) -> dict[str, Any]:
    """Answers as OctoStore's server gives them, and its variables. dibs' own flags and variables come before these."""
    if not _is_on(call, "octostore", "DIBS_OCTOSTORE"):
        return {}
    octostore: Any = part("OctoStore", "--octostore")
    chosen: dict[str, Any] = octostore.settings_from(os.environ)
    return chosen


def _elections(call: Call) -> dict[str, Any]:
    """Elections without a token."""
    from dibs.server.settings import PublicElections

    rooms = _count(call, "public_elections_max", "DIBS_PUBLIC_ELECTIONS_MAX")
    if not _is_on(call, "public_elections", "DIBS_PUBLIC_ELECTIONS"):
        return {}
    return {"public_elections": PublicElections() if rooms is None else PublicElections(rooms=rooms)}


def _web(call: Call) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if _is_on(call, "local_registration", "DIBS_LOCAL_REGISTRATION"):
        chosen["local_registration"] = True
    origins = call.settings.pick("cors_origin", "DIBS_CORS_ORIGIN")
    if origins is not None:
        chosen["cors_origins"] = tuple(_origin(text.strip()) for text in origins.split(",") if text.strip())
    return chosen


def _origin(text: str) -> str:
    """An origin as browsers write it: scheme, host and port, no path."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest or not text.isascii() or not rest.isprintable():
        rest = "/"
    if any(character in rest for character in "/?#@*, "):
        raise UsageError(
            f"--cors-origin (DIBS_CORS_ORIGIN) takes origins such as https://example.com, not {text!a}.",
            "serve",
        )
    return text.lower()


def _is_on(call: Call, key: str, variable: str) -> bool:
    return call.settings.pick(key, variable) not in (None, "0", "false", "no")


def _webhooks(call: Call) -> dict[str, Any]:
    """Return where webhooks may lead, besides where OctoStore's variable lets them."""
    keys = ("webhook_allow_private", "webhook_allow_http")
    return {key: True for key in keys if _is_on(call, key, f"DIBS_{key.upper()}")}


def _gateway_url(text: str) -> str:
    from dibs.client.urls import is_server

    if not is_server(text):
        raise UsageError(
            f"--gateway-upstream (DIBS_GATEWAY_UPSTREAM) must be an http:// or https:// URL, not {text!a}.",
            "serve",
        )
    return text


def _bind(call: Call) -> str | None:
    """The address to listen on. A port alone means 127.0.0.1."""
    port = call.values.get("port")
    if port is None:
        return call.settings.pick("bind", "DIBS_BIND")
    if call.values.get("bind") is not None:
        raise UsageError("Use --port or --bind, not both. --bind HOST:PORT has a port, too.", "serve")
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and 1 <= int(port) <= 65535):
        raise UsageError(f"--port takes a number from 1 to 65535, not {port!a}.", "serve")
    return f"127.0.0.1:{port}"


def _count(call: Call, key: str, variable: str, *, least: int = 1) -> int | None:
    text = call.settings.pick(key, variable)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 13 and least <= int(text) <= _NUMBER_MAX):
        flag = f"--{key.replace('_', '-')}"
        raise UsageError(f"{flag} ({variable}) takes a whole number, at least {least}, not {text!a}.", "serve")
    return int(text)


# The options of `dibs serve`.

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

COMMANDS = {
    "serve": Command(
        "serve",
        serve,
        about=(
            "Started without a tokens file, it makes one token, in a file that only you can read. Your own "
            "dibs commands on this machine find that token by themselves. The tokens of the store let in as "
            "well: `dibs token create` makes them. To listen for other machines the server needs those, or --tokens. "
            "SIGHUP reads the tokens file and the TLS files again, SIGTERM drains the server and ends it, SIGINT ends "
            "it. "
            "It needs the server extra: pip install '.[server]' in a clone; with the mcp extra it answers MCP clients "
            "at /mcp, under the same tokens."
        ),
        options=OPTIONS,
        examples=(
            ("for this machine", "dibs serve"),
            ("and to use it", "DIBS_URL=http://127.0.0.1:3427 dibs claim issue-1842"),
            ("for agents of Action Llama", "dibs serve --gateway"),
            ("for other machines, with tokens in the store", "dibs serve --bind 0.0.0.0:3427"),
        ),
        exits=(
            (0, "stopped by a signal"),
            (64, "invalid setting"),
            (69, "the store cannot be opened, or the address is in use"),
        ),
    ),
}
