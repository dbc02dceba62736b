"""serve: the store over HTTP."""

from __future__ import annotations

import os
from typing import Any

from dibs.base.plugins import PARTS, plugin
from dibs.cli.framework.context import Call
from dibs.cli.framework.flags import is_number
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import Command, Option
from dibs.client.settings import servers_at
from dibs.core import limits
from dibs.core.durations import parse_duration
from dibs.core.names import check_name, check_namespace
from dibs.wire.issue_names import job_name

_NUMBER_MAX = 10**12
PORT_MAX = 65535


def serve(call: Call) -> Answer:
    from dibs.server.run import serve as serve_until_stopped
    from dibs.server.settings import ServerSettings

    settings = ServerSettings(**_chosen(call))
    serve_until_stopped(settings)
    return yes({"stopped": True}, "")


# Settings that are not called as their flags.
_SETTINGS = {
    "tokens": "tokens_file",
    "identity": "identity_file",
    "keep_events_for": "keep_events_ms",
    "drain": "drain_ms",
    "mcp_host": "mcp_hosts",
    "trusted_proxy": "trusted_proxies",
    "cors_origin": "cors_origins",
    "rlock_ttl": "rlock_ttl_ms",
    "max_hold": "max_hold_ms",
}
_LISTS = ("mcp_host", "trusted_proxy", "routes", "cors_origin", "metric_jobs")
_MAY_BE_ZERO = ("token_floor", "connections", "connections_per_client")
_WORDS = {"log_format": ("text", "json"), "log_level": ("debug", "info", "warning", "error")}


def _chosen(call: Call) -> dict[str, Any]:
    """The settings that differ from their defaults. dibs' own flags and variables come before OctoStore's."""
    given = {option.key: value for option in OPTIONS if (value := _value(call, option)) is not None}
    chosen: dict[str, Any] = {}
    if given.pop("octostore", False):
        octostore: Any = plugin(PARTS, "octostore", "--octostore")
        chosen |= octostore.settings_from(os.environ)
    if given.get("system"):
        from dibs.server.settings import SYSTEM_SOCKET, SYSTEM_STORE

        chosen |= {"bind": f"unix:{SYSTEM_SOCKET}", "store": SYSTEM_STORE}
    given |= _where(call, given.pop("port", None))
    rooms = given.pop("public_elections_max", None)
    if given.pop("public_elections", False):
        from dibs.server.settings import PublicElections

        chosen["public_elections"] = PublicElections() if rooms is None else PublicElections(rooms=rooms)
    given["metric_jobs"] = _metric_jobs(given.get("metric_jobs", ()))
    is_gateway = given.pop("gateway", False)
    chosen |= {_SETTINGS.get(key, key): value for key, value in given.items()}
    chosen["cors_origins"] = tuple([_origin(text) for text in chosen.get("cors_origins", ())])
    if is_gateway:
        chosen["routes"] = ("gateway", *chosen.get("routes", ()))
    is_socket = "system" in chosen or str(chosen.get("bind")).startswith("unix:")
    if ("group" in chosen or "socket_mode" in chosen) and not is_socket:
        raise UsageError("--group and --socket-mode are for a Unix socket: --bind unix:/path.")
    if ("tls_key" in chosen or "tls_client_ca" in chosen) and "tls_cert" not in chosen:
        raise UsageError("--tls-key and --tls-client-ca need --tls-cert (DIBS_TLS_CERT).")
    return chosen


def _value(call: Call, option: Option) -> Any:
    """The value that a flag has, or its variable; None if neither is given."""
    key, text = option.key, call.settings.pick(option.key, option.env or "")
    if text is None:
        return None
    named = option.flag if option.env is None else f"{option.flag} ({option.env})"
    if option.value is None:
        return text not in ("0", "false", "no") or None
    if option.value == "N":
        least = 0 if key in _MAY_BE_ZERO else 1
        most = {"token_floor": limits.TOKEN_FLOOR_MAX, "port": PORT_MAX}.get(key, _NUMBER_MAX)
        if not is_number(text, least, most):
            raise UsageError(f"{named} takes a whole number from {least} to {most}, not {text!a}.")
        return int(text)
    if key == "rlock_ttl":
        protocol: Any = plugin(PARTS, "gateway", named)
        return protocol.ttl_seconds(text, named) * 1000
    if option.value == "TIME":
        length_ms = parse_duration(text, named)
        if key == "drain" and length_ms > limits.DRAIN_MS_MAX:
            raise UsageError(f"{named} is {limits.DRAIN_MS_MAX // 60_000}m at most, not {text!a}.")
        if key == "max_hold" and not 1_000 <= length_ms <= limits.HOLD_MS_MAX:
            raise UsageError(f"{named} is from 1s to {limits.HOLD_MS_MAX // 86_400_000}d, not {text!a}.")
        return length_ms
    if key in _LISTS:
        return tuple([name.strip() for name in text.split(",") if name.strip()])
    if key in _WORDS and text.lower() not in _WORDS[key]:
        raise UsageError(f"{named} is one of {', '.join(_WORDS[key])}, not {text!a}.")
    if key == "socket_mode":
        digits = text.removeprefix("0o").lstrip("0")
        # The server's own user must get in.
        if len(digits) != 3 or not set(digits) <= set("01234567") or int(digits, 8) & 0o600 != 0o600:
            raise UsageError(f"{named} is a mode such as 660, not {text!a}.")
        return int(digits, 8)
    if key == "gateway_upstream":
        from dibs.client.urls import is_server

        if not is_server(text):
            raise UsageError(f"{named} must be an http:// or https:// URL, not {text!a}.")
    return text.lower() if key in _WORDS else text


def _where(call: Call, port: int | None) -> dict[str, str]:
    """The address to listen on, and the store to serve. DIBS_URL does not name that store: it is where this user's
    commands ask."""
    chosen: dict[str, str] = {}
    store, url = call.values.get("store"), call.values.get("url")
    if port is not None:
        if call.values.get("bind") is not None:
            raise UsageError("Use --port or --bind, not both. --bind HOST:PORT has a port, too.")
        chosen["bind"] = f"127.0.0.1:{port}"
    if call.values.get("context") is not None:
        raise UsageError("--context names a server. --store names the store to serve, --bind the address.")
    if url is not None:
        if servers_at(url):
            raise UsageError("--url names the store to serve, not a server. --bind names the address.")
        if store is not None and store != url:
            raise UsageError("--url names one store, and --store another. Give one of them.")
        chosen["store"] = url
    return chosen


def _metric_jobs(given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    named = "--metric-jobs (DIBS_METRIC_JOBS)"
    if len(given) > limits.METRIC_JOBS_MAX:
        raise UsageError(f"{named} takes {limits.METRIC_JOBS_MAX} jobs at most: each is a label that Prometheus keeps.")
    found = []
    for text in given:
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name):
            raise UsageError(f"{named} takes jobs as NAMESPACE/NAME, such as default/nightly-report, not {text!a}.")
        check_namespace(namespace)
        found.append((namespace, check_name(job_name(name).name)))
    return tuple(found)


def _origin(text: str) -> str:
    """An origin as browsers write it: scheme, host and port, no path."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest or not text.isascii() or not rest.isprintable():
        rest = "/"
    if any(character in rest for character in "/?#@*, "):
        named = "--cors-origin (DIBS_CORS_ORIGIN)"
        raise UsageError(f"{named} takes origins such as https://example.com, not {text!a}.")
    return text.lower()


OPTIONS = (
    Option("--bind WHERE", "where to listen: HOST:PORT or unix:/path (default 127.0.0.1:3427)", env="DIBS_BIND"),
    Option("--port N", "the same as --bind 127.0.0.1:N"),
    Option("--store URL", "the store to serve, the same as --url (default: your own store)", env="DIBS_STORE"),
    Option(
        "--tokens FILE",
        "the tokens file, which `dibs token create --tokens` writes; only you may be able to read it",
        env="DIBS_TOKENS_FILE",
        completes="file",
    ),
    Option(
        "--identity FILE",
        "rules that let machines in by tokens that others sign (OpenID Connect); needs the oidc extra",
        env="DIBS_IDENTITY",
        completes="file",
    ),
    Option(
        "--tls-cert FILE",
        "serve over TLS with this certificate and its chain, in PEM form",
        env="DIBS_TLS_CERT",
        completes="file",
    ),
    Option(
        "--tls-key FILE",
        "the key of the certificate (default: it is in the same file)",
        env="DIBS_TLS_KEY",
        completes="file",
    ),
    Option(
        "--tls-client-ca FILE",
        "clients need a certificate of this authority, besides their token",
        env="DIBS_TLS_CLIENT_CA",
        completes="file",
    ),
    Option(
        "--trusted-proxy WHERE",
        "proxies whose X-Forwarded-For and X-Forwarded-Proto count: addresses and networks with commas "
        "between, or unix",
        env="DIBS_TRUSTED_PROXY",
    ),
    Option(
        "--keep-events N",
        f"how many events of history to keep (default {limits.EVENTS_KEPT_MAX})",
        env="DIBS_KEEP_EVENTS",
    ),
    Option("--keep-events-for TIME", "how long to keep events of history (default 30d)", env="DIBS_KEEP_EVENTS_FOR"),
    Option(
        "--locks-per-principal N",
        f"how many jobs one token may hold that has no limit of its own (default {limits.LOCKS_PER_PRINCIPAL_MAX})",
        env="DIBS_LOCKS_PER_PRINCIPAL",
    ),
    Option(
        "--max-hold TIME", "how long each claim may last, whatever is renewed (default: for ever)", env="DIBS_MAX_HOLD"
    ),
    Option(
        "--token-floor N",
        "make all fencing tokens higher than this number: the highest that another lock service gave out, or that was "
        "given out since an old copy was made",
        env="DIBS_TOKEN_FLOOR",
    ),
    Option(
        "--connections N",
        f"how many connections at once; 0 for no limit (default {limits.CONNECTIONS_MAX})",
        env="DIBS_CONNECTIONS",
    ),
    Option(
        "--connections-per-client N",
        "how many connections from one address, or of one user on a Unix socket; 0 for no limit. A trusted "
        f"proxy has none (default {limits.CONNECTIONS_PER_CLIENT_MAX})",
        env="DIBS_CONNECTIONS_PER_CLIENT",
    ),
    Option(
        "--drain TIME",
        "how long SIGTERM lets those who hold something go on, with no new claims; 0 to end at once (default "
        f"{limits.DRAIN_MS_DEFAULT // 1000}s while other servers share the store, else 0)",
        env="DIBS_DRAIN",
    ),
    Option(
        "--mcp-host NAMES",
        "host names that MCP clients, and clients without a token on a loopback address, may use for this "
        "machine, with commas between (default: localhost, its own name, and the address it listens on)",
        env="DIBS_MCP_HOST",
    ),
    Option("--access-log", "print a line to stderr for every request", env="DIBS_ACCESS_LOG"),
    Option(
        "--log-format FORMAT",
        "how to write the log: text, or json for one object per line (default text)",
        env="DIBS_LOG_FORMAT",
    ),
    Option(
        "--log-level LEVEL",
        "which lines to write: debug, info, warning or error (default warning); SIGUSR1 is for more, SIGUSR2 for less",
        env="DIBS_LOG_LEVEL",
    ),
    Option(
        "--traces", "send spans of OpenTelemetry, as the variables OTEL_* say; needs the otel extra", env="DIBS_TRACES"
    ),
    Option("--open-metrics", "answer /metrics without a token", env="DIBS_OPEN_METRICS"),
    Option(
        "--metric-jobs NAMES",
        "jobs whose last success metrics show, as NAMESPACE/NAME with commas between, "
        f"{limits.METRIC_JOBS_MAX} at most (default none)",
        env="DIBS_METRIC_JOBS",
    ),
    Option(
        "--public-elections",
        "let callers without a token take part in elections, in a namespace of their own",
        env="DIBS_PUBLIC_ELECTIONS",
    ),
    Option(
        "--public-elections-max N",
        f"how many of these may have a leader at a time (default {limits.PUBLIC_ROOMS_MAX})",
        env="DIBS_PUBLIC_ELECTIONS_MAX",
    ),
    Option(
        "--local-registration",
        "let anybody on this machine make a token for a name that nobody has (POST /auth/register); only on a "
        "loopback address",
        env="DIBS_LOCAL_REGISTRATION",
    ),
    Option(
        "--cors-origin ORIGINS",
        "origins of web pages that may use this server with a token, with commas between (default none)",
        env="DIBS_CORS_ORIGIN",
    ),
    Option(
        "--system",
        "serve all users of this machine, on /run/dibs/dibs.sock, with the store in /var/lib/dibs; there are "
        "no tokens, because the kernel says who the caller is",
    ),
    Option(
        "--group GROUP",
        "of a Unix socket: let the members of this group connect; with --system, only them",
        env="DIBS_GROUP",
    ),
    Option(
        "--socket-mode MODE",
        "of a Unix socket: who may connect, as in 660 (default 600; with --group 660, with --system 666)",
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
        "--routes WORDS",
        "also serve the routes of an installed package, by their words, with commas between",
        env="DIBS_ROUTES",
    ),
    Option("--gateway", "also serve Action Llama's lock routes, below /gateway"),
    Option(
        "--gateway-upstream URL",
        "the URL of Action Llama's own gateway, to which signals, calls and shutdown are forwarded",
        env="DIBS_GATEWAY_UPSTREAM",
    ),
    Option(
        "--rlock-ttl TIME",
        "how long a lock made through the gateway lasts without a heartbeat (default 30m)",
        env="DIBS_RLOCK_TTL",
    ),
)

COMMANDS = {
    "serve": Command(
        serve,
        *OPTIONS,
        about=(
            "Started without a tokens file, it makes one token, in a file that only you can read. Your own "
            "dibs commands on this machine find that token by themselves. The tokens of the store let in as "
            "well: `dibs token create` makes them. To listen for other machines the server needs those, or "
            "--tokens. SIGHUP reads the tokens file and the TLS files again, SIGTERM drains the server and "
            "ends it, SIGINT ends it. It needs the server extra: pip install 'dibs-lease[server]'. It "
            "answers MCP clients at /mcp, under the same tokens."
        ),
        examples=(
            ("dibs serve", "for this machine"),
            ("DIBS_URL=http://127.0.0.1:3427 dibs claim issue-1842", "and to use it"),
            ("dibs serve --gateway", "for agents of Action Llama"),
            ("dibs serve --bind 0.0.0.0:3427", "for other machines, with tokens in the store"),
        ),
        exits=(
            (0, "stopped by a signal"),
            (64, "invalid setting"),
            (69, "the store cannot be opened, or the address is in use"),
        ),
    ),
}
