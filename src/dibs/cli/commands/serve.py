"""serve: the store over HTTP."""

from __future__ import annotations

import gc
import os

from dibs.cli.framework.flags import flag_of, is_number
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
        **_plain_settings(call),
        **_where(call),
        **_times(call),
        **_gateway(call),
        **_elections(call),
    }
    if "cors_origins" in chosen:
        chosen["cors_origins"] = tuple([_origin(text) for text in chosen["cors_origins"]])
    if call.values.get("gateway"):
        chosen["routes"] = ("gateway", *chosen.get("routes", ()))
    gc.enable()  # it is off for short commands
    serve_until_stopped(ServerSettings(**chosen))
    return yes({"stopped": True}, "")


# Settings of a server that need no more than their kind, by the keys of their flags.
_SWITCHES = (
    *("access_log", "traces", "open_metrics", "local_registration"),
    *("webhook_allow_private", "webhook_allow_http"),
)
_FILES = ("tls_cert", "tls_key", "tls_client_ca")
# Numbers, with the least that each may be.
_NUMBERS = {"keep_events": 1, "locks_per_principal": 1, "token_floor": 0, "connections": 0, "connections_per_client": 0}
_WORDS = {"log_format": ("text", "json"), "log_level": ("debug", "info", "warning", "error")}
# Several words with commas between, and the setting that they are.
_LISTS = {
    "mcp_host": "mcp_hosts",
    "trusted_proxy": "trusted_proxies",
    "routes": "routes",
    "cors_origin": "cors_origins",
}


def _plain_settings(call: Call) -> dict[str, Any]:
    chosen: dict[str, Any] = {key: True for key in _SWITCHES if _is_on(call, key)}
    chosen |= {key: _given(call, key) for key in _FILES}
    chosen |= {key: _number(call, key, least) for key, least in _NUMBERS.items()}
    for key, words in _WORDS.items():
        text = _given(call, key)
        if text is not None:
            chosen[key] = text.lower()
            if chosen[key] not in words:
                raise UsageError(f"{_named(key)} is one of {', '.join(words)}, not {text!a}.", "serve")
    for key, setting in _LISTS.items():
        names = _given(call, key)
        if names is not None:
            chosen[setting] = tuple([name.strip() for name in names.split(",") if name.strip()])
    chosen = {key: value for key, value in chosen.items() if value is not None}
    if not chosen.keys().isdisjoint(_FILES) and "tls_cert" not in chosen:
        raise UsageError("--tls-key and --tls-client-ca need --tls-cert (DIBS_TLS_CERT).", "serve")
    return chosen


def _where(call: Call) -> dict[str, Any]:
    """Where the server listens, and where its store and its tokens are."""
    chosen = {
        "bind": _bind(call),
        "store": _store(call),
        "tokens_file": _given(call, "tokens"),
        "group": _given(call, "group"),
        "socket_mode": _socket_mode(call),
    }
    chosen = {key: value for key, value in chosen.items() if value is not None}
    if call.values.get("system"):
        from dibs.server.settings import SYSTEM_SOCKET, SYSTEM_STORE

        return {"bind": f"unix:{SYSTEM_SOCKET}", "store": SYSTEM_STORE, "system": True, **chosen}
    if ("group" in chosen or "socket_mode" in chosen) and not str(chosen.get("bind")).startswith("unix:"):
        raise UsageError("--group and --socket-mode are for a Unix socket: --bind unix:/path.", "serve")
    return chosen


def _bind(call: Call) -> str | None:
    """The address to listen on. A port alone means 127.0.0.1."""
    port = call.values.get("port")
    if port is None:
        return _given(call, "bind")
    if call.values.get("bind") is not None:
        raise UsageError("Use --port or --bind, not both. --bind HOST:PORT has a port, too.", "serve")
    if not is_number(port, 1, 65535):
        raise UsageError(f"--port takes a number from 1 to 65535, not {port!a}.", "serve")
    return f"127.0.0.1:{port}"


def _store(call: Call) -> str | None:
    """The store to serve. DIBS_URL does not name it: that is where this user's commands ask."""
    store, url = call.values.get("store"), call.values.get("url")
    if url is None:
        return _given(call, "store")
    from dibs.client.settings import servers_at

    if servers_at(url):
        raise UsageError("--url names the store to serve, not a server. --bind names the address.", "serve")
    if store is not None and store != url:
        raise UsageError("--url names one store, and --store another. Give one of them.", "serve")
    return str(url)


def _socket_mode(call: Call) -> int | None:
    text = _given(call, "socket_mode")
    if text is None:
        return None
    digits = text.removeprefix("0o").lstrip("0")
    # The server's own user must get in.
    if len(digits) != 3 or not set(digits) <= set("01234567") or int(digits, 8) & 0o600 != 0o600:
        raise UsageError(f"{_named('socket_mode')} is a mode such as 660, not {text!a}.", "serve")
    return int(digits, 8)


def _times(call: Call) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    age = _given(call, "keep_events_for")
    if age is not None:
        chosen["keep_events_ms"] = parse_duration(age)
    drain = _given(call, "drain")
    if drain is not None:
        chosen["drain_ms"] = parse_duration(drain, _named("drain"))
        if chosen["drain_ms"] > DRAIN_MS_MAX:
            raise UsageError(f"{_named('drain')} is {DRAIN_MS_MAX // 60_000}m at most, not {drain!a}.", "serve")
    return chosen


def _gateway(call: Call) -> dict[str, Any]:
    """Settings that only clients of Action Llama's gateway need."""
    chosen: dict[str, Any] = {}
    upstream = _given(call, "gateway_upstream")
    if upstream is not None:
        from dibs.client.urls import is_server

        if not is_server(upstream):
            named = _named("gateway_upstream")
            raise UsageError(f"{named} must be an http:// or https:// URL, not {upstream!a}.", "serve")
        chosen["gateway_upstream"] = upstream
    ttl = _given(call, "rlock_ttl")
    if ttl is not None:
        protocol: Any = part("gateway", _named("rlock_ttl"))
        chosen["rlock_ttl_ms"] = protocol.ttl_seconds(ttl, _named("rlock_ttl")) * 1000
    return chosen


def _octostore(call: Call) -> dict[str, Any]:
    """Answers as OctoStore's server gives them, and its variables. dibs' own flags and variables come before these."""
    if not _is_on(call, "octostore"):
        return {}
    octostore: Any = part("OctoStore", "--octostore")
    chosen: dict[str, Any] = octostore.settings_from(os.environ)
    return chosen


def _elections(call: Call) -> dict[str, Any]:
    """Elections without a token."""
    from dibs.server.settings import PublicElections

    rooms = _number(call, "public_elections_max", 1)
    if not _is_on(call, "public_elections"):
        return {}
    return {"public_elections": PublicElections() if rooms is None else PublicElections(rooms=rooms)}


def _origin(text: str) -> str:
    """An origin as browsers write it: scheme, host and port, no path."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest or not text.isascii() or not rest.isprintable():
        rest = "/"
    if any(character in rest for character in "/?#@*, "):
        raise UsageError(f"{_named('cors_origin')} takes origins such as https://example.com, not {text!a}.", "serve")
    return text.lower()


def _is_on(call: Call, key: str) -> bool:
    return _given(call, key) not in (None, "0", "false", "no")


def _number(call: Call, key: str, least: int) -> int | None:
    text = _given(call, key)
    if text is None:
        return None
    if not is_number(text, least, _NUMBER_MAX):
        raise UsageError(f"{_named(key)} takes a whole number, at least {least}, not {text!a}.", "serve")
    return int(text)


def _given(call: Call, key: str) -> str | None:
    """The value that a flag has, or its variable."""
    return call.settings.pick(key, _VARIABLES[key])


def _named(key: str) -> str:
    """A flag and its variable, for a message."""
    return f"{flag_of(key)} ({_VARIABLES[key]})"


OPTIONS = (
    Option("--bind WHERE", "where to listen: HOST:PORT or unix:/path (default 127.0.0.1:3427)"),
    Option("--port N", "the same as --bind 127.0.0.1:N"),
    Option("--store URL", "the store to serve, the same as --url (default: your own store)"),
    Option(
        "--tokens FILE",
        "the tokens file, which `dibs token new` writes; only you may be able to read it",
        completes="file",
    ),
    Option("--tls-cert FILE", "serve over TLS with this certificate and its chain, in PEM form", completes="file"),
    Option("--tls-key FILE", "the key of the certificate (default: it is in the same file)", completes="file"),
    Option(
        "--tls-client-ca FILE", "clients need a certificate of this authority, besides their token", completes="file"
    ),
    Option(
        "--trusted-proxy WHERE",
        "proxies whose X-Forwarded-For and X-Forwarded-Proto count: addresses and networks with commas between, or "
        "unix",
    ),
    Option("--keep-events N", f"how many events of history to keep (default {EVENTS_KEPT_MAX})"),
    Option("--keep-events-for TIME", "how long to keep events of history (default 30d)"),
    Option(
        "--locks-per-principal N",
        f"how many jobs one token may hold that has no limit of its own (default {LOCKS_PER_PRINCIPAL_MAX})",
    ),
    Option("--token-floor N", "make all fencing tokens higher than this number; see dibs token-floor"),
    Option("--connections N", f"how many connections at once; 0 for no limit (default {CONNECTIONS_MAX})"),
    Option(
        "--connections-per-client N",
        "how many connections from one address, or of one user on a Unix socket; 0 for no limit. A trusted proxy "
        f"has none (default {CONNECTIONS_PER_CLIENT_MAX})",
    ),
    Option(
        "--drain TIME",
        "how long SIGTERM lets those who hold something go on, with no new claims; 0 to end at once "
        f"(default {DRAIN_MS_DEFAULT // 1000}s while other servers stand on the store, else 0)",
    ),
    Option(
        "--mcp-host NAMES",
        "host names that MCP clients, and clients without a token on a loopback address, may use for this machine, "
        "with commas between (default: localhost, its own name, and the address it listens on)",
    ),
    Option("--access-log", "print a line to stderr for every request"),
    Option("--log-format FORMAT", "how to write the log: text, or json for one object per line (default text)"),
    Option(
        "--log-level LEVEL",
        "which lines to write: debug, info, warning or error (default warning); SIGUSR1 is for more, SIGUSR2 for less",
    ),
    Option("--traces", "send spans of OpenTelemetry, as the variables OTEL_* say; needs the otel extra"),
    Option("--open-metrics", "answer /metrics without a token"),
    Option("--public-elections", "let callers without a token take part in elections, in a namespace of their own"),
    Option("--public-elections-max N", f"how many of these may have a leader at a time (default {PUBLIC_ROOMS_MAX})"),
    Option(
        "--local-registration",
        "let anybody on this machine make a token for a name that nobody has (POST /auth/register); only "
        "on a loopback address",
    ),
    Option(
        "--cors-origin ORIGINS",
        "origins of web pages that may use this server with a token, with commas between (default none)",
    ),
    Option(
        "--system",
        "serve all users of this machine, on /run/dibs/dibs.sock, with the store in /var/lib/dibs; "
        "there are no tokens, because the kernel says who the caller is",
    ),
    Option("--group GROUP", "of a Unix socket: let the members of this group connect; with --system, only them"),
    Option(
        "--socket-mode MODE",
        "of a Unix socket: who may connect, as in 660 (default 600; with --group 660, with --system 666)",
    ),
    Option(
        "--webhook-allow-private",
        "let webhooks lead to private and local addresses, which only this server may be able to reach",
    ),
    Option("--webhook-allow-http", "let webhooks lead to http:// URLs: their deliveries can be read on the way"),
    Option(
        "--octostore",
        "answer as OctoStore's own server does, and read its variables (STATIC_TOKENS, ADMIN_KEY and so on)",
    ),
    Option("--routes WORDS", "also serve the routes of an installed package, by their words, with commas between"),
    Option("--gateway", "also serve Action Llama's lock routes, below /gateway"),
    Option(
        "--gateway-upstream URL",
        "the URL of Action Llama's own gateway, to which signals, calls and shutdown are forwarded",
    ),
    Option("--rlock-ttl TIME", "how long a lock made through the gateway lasts without a heartbeat (default 30m)"),
)
for _option in OPTIONS:  # each has a variable of its name, but for those that stand for others
    if _option.key not in ("port", "system", "gateway"):
        _option.env = f"DIBS_{'TOKENS_FILE' if _option.key == 'tokens' else _option.key.upper()}"
_VARIABLES = {option.key: option.env for option in OPTIONS if option.env is not None}

COMMANDS = {
    "serve": Command(
        serve,
        about="Started without a tokens file, it makes one token, in a file that only you can read. Your own dibs "
        "commands on this machine find that token by themselves. The tokens of the store let in as well: `dibs token "
        "create` makes them. To listen for other machines the server needs those, or --tokens. SIGHUP reads the "
        "tokens file and the TLS files again, SIGTERM drains the server and ends it, SIGINT ends it. It needs the "
        "server extra: pip install 'dibs-lease[server]'. It answers MCP clients at /mcp, under the same tokens.",
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
    )
}
