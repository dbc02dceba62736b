"""doctor: shows the settings that apply here, and what is wrong with them."""

from __future__ import annotations

import os
import sys

from dibs._version import __version__
from dibs.base import build_commit, build_kind
from dibs.base.cheap import Mapping
from dibs.base.clock import stopwatch_us, wall_ms
from dibs.base.errors import DibsError
from dibs.base.files import config_path, contexts_folder
from dibs.base.plugins import PARTS, plugin
from dibs.base.redact import without_secrets
from dibs.cli.commands.config import in_effect
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.job_names import here
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import STORE, Command, Option
from dibs.cli.text.words import plain
from dibs.client import store_admin
from dibs.client.contexts import context_names, context_path, saved_contexts
from dibs.client.embedded import EmbeddedTransport, default_store_url
from dibs.client.event_reader import why_away
from dibs.client.http import HttpTransport
from dibs.client.settings import is_heard, servers_at, socket_path
from dibs.client.transport import Ask, Transport
from dibs.client.urls import ServerAddress
from dibs.core.durations import format_duration
from dibs.core.names import DEFAULT_NAMESPACE
from dibs.wire.codes import UNREACHABLE
from dibs.wire.parts import instant_ms
from dibs.wire.sentences import few


class Findings:
    """The checks and their results, in order. `bad`: broken, the command fails. `look`: works, but do what it says."""

    def __init__(self) -> None:
        self.checks: list[Document] = []

    def good(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": True, "says": says})

    def look(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": True, "look": True, "says": says})

    def bad(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": False, "says": why_away(says)})


# What is in a store that somebody should look at: parked jobs, long waits, tokens that end soon.

SHOWN_MAX = 3
WAITERS_MAX = 1_000
WAIT_MS_MAX = 600_000
TOKEN_LEFT_MS_MIN = 7 * 86_400_000


def look_at_jobs(found: Findings, transport: Transport) -> None:
    reply = transport.ask(Ask("list", "", {"limit": 1_000, "status": "parked"}))
    if reply.status < 300 and reply.body is not None:
        names = [str(job["name"]) for job in reply.body["locks"]]
        if names:
            more = " or more" if reply.body.get("next") else ""
            found.look(
                "parked",
                f"{few(names, SHOWN_MAX)}{more} failed too often. `dibs history` says why, `dibs free` lets it be "
                "claimed",
            )
    reply = transport.ask(Ask("waiters", "", {"limit": WAITERS_MAX}))
    body: Document = reply.body or {}
    waits = [each for each in body.get("waiters", ()) if each["waiting_ms"] > WAIT_MS_MAX]
    if waits:
        longest = max(waits, key=lambda each: each["waiting_ms"])
        more = f"{len(waits) - 1} {'or more' if body.get('next') else 'more'}"
        found.look(
            "waiting",
            f"{longest['owner']} has waited {format_duration(longest['waiting_ms'])} for {longest['name']}, and {more} "
            f"over {format_duration(WAIT_MS_MAX)}. `dibs owner` says who has a job, `dibs break` takes it away",
        )


def look_at_tokens(found: Findings, tokens: list[Document], now_ms: int) -> None:
    """All tokens of the store, as an admin sees them."""
    ending = [each for each in tokens if each["valid"] and _ends_soon(each, now_ms)]
    if ending:
        names = [f"{each['name']} ({each['id']}, {each['expires_at']})" for each in ending]
        found.look("tokens", f"{few(names, SHOWN_MAX)} end within 7 days. Run: dibs token rotate NAME --id ID")


def _ends_soon(token: Document, now_ms: int) -> bool:
    ends = token.get("expires_at")
    return ends is not None and instant_ms(ends) - now_ms < TOKEN_LEFT_MS_MIN


# Checks of a server: its token, its version, its store, its clock, how fast it answers, and what is in its store.

SKEW_MS_MAX = 5_000
ROUND_TRIPS = 5
SLOW_US_MIN = 500_000


def check_server(found: Findings, call: Call, address: ServerAddress) -> list[str]:
    """The id of the store behind it, if it is known, and those of the stores that it goes on from."""
    source = call.settings.source("url", "DIBS_URL")
    if call.settings.named_url is None:
        source = "this machine's service, for all its users"
    found.good("server", f"{address.url} ({source})")
    _token(found, call, address)
    transport = call.another_transport(url=address.url)
    if not isinstance(transport, HttpTransport):
        return []
    try:
        health = _health(found, transport)
    except DibsError as error:
        found.bad("answers", error.details)
        return []
    finally:
        transport.close()
    return [str(health["store"]), *health["moved_from"]] if health.get("store") else []


def _health(found: Findings, transport: HttpTransport) -> Document:
    health = transport.health()
    if health.get("damaged"):
        found.bad("records", f"{health['damaged']} cannot be read. Run dibs doctor at the server's store")
    if health.get("details"):
        found.bad("answers", str(health["details"]))
    elif "dibs" not in health:
        found.bad("answers", "this is not a dibs server; nothing can be claimed there")
    else:
        schema = f", schema {health['schema']}" if health.get("schema") else ""
        found.good("answers", f"yes: dibs {health['dibs']}, on {health.get('storage', 'an unnamed store')}{schema}")
        if health["dibs"] != __version__:
            found.look(
                "versions",
                f"the server runs dibs {health['dibs']}, this is {__version__}. They work together; upgrade the older "
                "one when you can, servers first",
            )
        now_ms = _clock(found, transport) if "now" in health else wall_ms()
        reply = transport.ask(Ask("list", "", {"limit": 1}))
        if reply.status < 300:
            found.good("allowed", "the token is accepted")
            _work(found, transport, now_ms)
        else:
            found.bad("allowed", str((reply.body or {}).get("details")))
    return health


def _clock(found: Findings, transport: HttpTransport) -> int:
    """Compare the clocks, and tell how long a request takes. Returns the time of the store's clock."""
    trips: list[tuple[int, int]] = []
    for _ in range(ROUND_TRIPS):
        began_us, began_ms = stopwatch_us(), wall_ms()
        store_ms = instant_ms(str(transport.health()["now"]))
        took_us = stopwatch_us() - began_us
        trips.append((took_us, store_ms - began_ms - took_us // 2_000))
    trips.sort()
    best_us, skew_ms = trips[0]  # the quickest answer has the smallest error
    error_ms = best_us // 2_000 + 1
    median_us = trips[len(trips) // 2][0]
    if abs(skew_ms) - error_ms > SKEW_MS_MAX:
        ahead = "ahead of" if skew_ms > 0 else "behind"
        found.look(
            "clock",
            f"the store's is {format_duration(abs(skew_ms))} {ahead} this machine's, ±{error_ms} ms: set both by NTP. "
            "Leases are not affected, times that are shown are",
        )
    else:
        found.good("clock", f"{skew_ms:+d} ms, ±{error_ms} ms, from this machine's to the store's")
    took = f"{median_us / 1000:.1f} ms to connect and ask, median of {ROUND_TRIPS}"
    if median_us > SLOW_US_MIN:
        found.look("latency", f"{took}. Use TTLs of a minute or more, or a server that is nearer")
    else:
        found.good("latency", took)
    return wall_ms() + skew_ms


def _work(found: Findings, transport: HttpTransport, now_ms: int) -> None:
    reply = transport.ask(Ask("whoami"))
    caller = reply.body
    if reply.status < 300 and caller is not None:
        namespace = caller.get("namespace") or f"any namespace, {DEFAULT_NAMESPACE} unless one is named"
        found.good("caller", f"{caller.get('principal')}, {caller.get('role')}, in {namespace}")
        if _ends_soon(caller, now_ms):
            found.look(
                "expires", f"your token ends {caller['expires_at']}. An admin makes a new one: dibs token rotate"
            )
        if caller.get("role") == "admin":
            look_at_tokens(found, (transport.ask(Ask("tokens")).body or {}).get("tokens", []), now_ms)
    look_at_jobs(found, transport)


def check_one_store(found: Findings, stores: dict[str, list[str]]) -> None:
    """Servers of two stores in one list would give one job to two owners."""
    known = {url: names for url, names in stores.items() if names}
    if len(stores) < 2 or not known:
        return
    first = min(known, key=lambda url: sum(known[url][0] in names[1:] for names in known.values()))  # the newest
    if strange := [url for url in known if known[url][0] not in known[first]]:
        found.bad("one store", f"{strange[0]} serves another store than {first}: name servers of one store")
    elif old := [url for url in known if known[url][0] != known[first][0]]:
        found.look("one store", f"{old[0]} serves a store that was moved to that of {first}: stop that server")
    elif len(known) == len(stores):
        found.good("one store", f"all {len(stores)} serve the same")


def _token(found: Findings, call: Call, address: ServerAddress) -> None:
    source = call.settings.token_source(address)
    if source is None and call.settings.is_system(address):
        found.good("token", "none needed: the kernel tells the service who the caller is")
        return
    if source is None:
        where = "" if address.is_local else " (the token of your own server is used on this machine only)"
        found.bad("token", f"none: set DIBS_TOKEN or DIBS_TOKEN_FILE{where}")
        return
    if source != "DIBS_TOKEN":
        try:
            mode = os.stat(source).st_mode & 0o777
        except OSError as error:
            found.bad("token", f"{source}: {error.strerror}")
            return
        if mode & 0o077:
            found.bad("token", f"{source} can be read by others. Run: chmod 600 {source}")
            return
    found.good("token", f"from {source}")
    if address.scheme == "http" and not address.is_local:
        found.good("privacy", "the token and the job names go over the network unencrypted; use https://")


# Checks of a store that this machine opens itself.

FREE_BYTES_MIN = 64 * 1024 * 1024


def check_store(found: Findings, call: Call) -> None:
    source = call.settings.source("url", "DIBS_URL")
    source = "your own store" if source == "the default" else source
    transport = call.transport()
    if not isinstance(transport, EmbeddedTransport):
        return
    found.good("store", f"{without_secrets(call.settings.url or default_store_url())} ({source})")
    try:
        facts = store_admin.facts(transport.store())
    except DibsError as error:
        found.bad("open", error.details)
        return
    schema = f", schema {facts['format']}" if facts["format"] else ""
    found.good("open", f"{facts['kind']}{schema}, {_size(facts['size_bytes'])}")
    _store_clock(found, facts)
    _disk(found, facts["path"])
    if damaged := store_admin.damaged(transport.store()):
        found.bad("records", f"{plain(few(damaged, SHOWN_MAX))} cannot be read. {store_admin.SET_ASIDE}")
    if wrong := store_admin.miscounted(transport.store()):
        found.bad("limits", f"what {', '.join(wrong[:5])} may have is counted wrong. Run: dibs gc")
    look_at_jobs(found, transport)
    look_at_tokens(found, (transport.ask(Ask("tokens")).body or {}).get("tokens", []), facts["now_ms"])
    if facts["frozen"]:
        found.bad("frozen", facts["frozen"])
    try:
        found.checks += store_admin.probe(transport.store())
    except DibsError as error:
        found.bad("write", error.details)


def _dead_socket(found: Findings, call: Call) -> None:
    path = None if call.settings.named_url is not None else socket_path(call.env)
    if path is not None and os.path.lexists(path) and not is_heard(path):
        found.look("service", f"nobody listens on {path}. Start the machine's service again, or remove the socket")


def _store_clock(found: Findings, facts: Document) -> None:
    skew_ms = facts["now_ms"] - wall_ms()
    direction = "ahead of" if skew_ms > 0 else "behind"
    apart = f"{format_duration(abs(skew_ms))} {direction}" if abs(skew_ms) >= 1000 else "in step with"
    says = f"{facts['clock']}; {apart} the wall clock"
    # Harmless: leases are measured on the store's clock. But the times shown will look odd.
    if abs(skew_ms) > SKEW_MS_MAX:
        says += " (the wall clock was changed since the boot; leases are not affected)"
    found.good("clock", says)


def _disk(found: Findings, path: str | None) -> None:
    if path is None:
        return
    status = os.statvfs(os.path.dirname(path))
    free = status.f_bavail * status.f_frsize
    if free < FREE_BYTES_MIN:
        found.bad("disk", f"only {_size(free)} free in {os.path.dirname(path)}: make room")
    else:
        found.good("disk", f"{_size(free)} free")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


# What dibs uses if it is there.
LIBRARIES = ("httptools", "msgspec", "uvloop", "prometheus-client", "psycopg", "opentelemetry-sdk")


def build_facts(env: Mapping[str, str]) -> Document:
    """The programs and versions here, for a report: no path, no name of a person or machine."""
    import platform
    import sqlite3
    from importlib import metadata

    facts: Document = {
        "version": __version__,
        "commit": build_commit(env) or "not known: neither a clone nor installed from one",
        "build": build_kind(),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "sqlite": sqlite3.sqlite_version,
    }
    for name in LIBRARIES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    return {**facts, "store format": store_admin.STORE_FORMAT}


def _set_aside(call: Call, key: str) -> Answer:
    from dibs.cli.commands.admin import store_of

    refusal = "For a server, run this on its store: --url sqlite:///path."
    done = store_admin.set_aside(store_of(call, f"--set-aside works on a store. {refusal}"), key)
    if "token_floor" not in done:
        says = f"Set aside {plain(key)}: what it said is in {done['path']}. Followers of events are told of a gap."
        return yes(done, says, quiet=done["path"])
    says = f"Set aside {plain(key)}: what it said is in {done['path']}. What it held is free; owners are told at their "
    return yes(done, f"{says}next heartbeat.\nNew fencing tokens are above {done['token_floor']}.", quiet=done["path"])


def doctor(call: Call) -> Answer:
    if (key := call.values.get("set_aside")) is not None:
        return _set_aside(call, key)
    found = Findings()
    commit = build_commit(call.env)
    kind = build_kind() if commit is None else f"{build_kind()}, {commit}"
    found.good("version", f"dibs {__version__} ({kind}), Python {sys.version.split()[0]}")
    try:
        addresses = servers_at(call.settings.url)
        _settings(found, call)
        namespace = here(call) if call.said("namespace") is None else None
        if namespace is not None:
            found.good("repo", f"path: and repo: names are in the namespace {namespace}")
        for part in ("git-hooks", "shipped-files"):
            if (installed := plugin(PARTS, part)) is not None:
                installed.diagnose(found, call.env)
        if not addresses:
            _dead_socket(found, call)
            check_store(found, call)
        check_one_store(found, {address.url: check_server(found, call, address) for address in addresses})
    except DibsError as error:
        found.bad("url", error.details)
    return _answer(found, call)


def _settings(found: Findings, call: Call) -> None:
    settings = call.settings
    path = config_path(settings.env)
    if path is not None and os.path.exists(path):
        if os.stat(path).st_mode & 0o022:
            found.bad("config", f"{path} can be written by others. Run: chmod go-w {path}")
        else:
            found.good("config", f"{path}: {', '.join(settings.config) or 'nothing in it'}")
    _contexts(found, call)
    for key, value, source in in_effect(call):
        if key in ("namespace", "owner"):
            found.good(key, f"{value} ({source})")


def _contexts(found: Findings, call: Call) -> None:
    """The saved servers: which is used, which cannot be, and whether somebody else may say where they are."""
    settings, folder = call.settings, contexts_folder(call.env)
    name, says = settings.named_context
    if name is not None:
        found.good("context", f"{name} ({says})")
    for each, context in saved_contexts(call.env, settings.config):
        if isinstance(context, DibsError):
            (found.bad if each == name else found.look)("context", context.details)
    files = [] if folder is None else [folder, *[context_path(call.env, each) for each in context_names(call.env, {})]]
    for path in filter(None, files):
        if os.path.exists(path) and os.stat(path).st_mode & 0o022:
            found.bad("context", f"{path} can be written by others. Run: chmod go-w {path}")


def _answer(found: Findings, call: Call) -> Answer:
    width = max(len(each["check"]) for each in found.checks)
    lines = []
    for each in found.checks:
        mark = call.paint.good("ok ") if each["ok"] else call.paint.bad("BAD")
        if each.get("look"):
            mark = call.paint.wait("!! ")
        lines.append(f"{mark}  {each['check']:<{width}}  {each['says']}")
    document = {"version": __version__, "checks": found.checks}
    broken = [each for each in found.checks if not each["ok"]]
    if not broken:
        count = len([each for each in found.checks if each.get("look")])
        verdict = "All is well." if not count else f"It works. Marked !!: {count} to look at."
        return yes(document, "\n".join([*lines, "", verdict]))
    message = f"{broken[0]['check']}: {broken[0]['says']}"
    text = "\n".join([*lines, "", f"{len(broken)} of {len(lines)} checks need your attention."])
    return Answer(UNREACHABLE, document, text, quiet=message, code="upstream_unavailable", message=message)


COMMANDS = {
    "doctor": Command(
        doctor,
        STORE,
        Option(
            "--set-aside KEY", "remove this record or event, which cannot be read; a new file has its text", filled=True
        ),
        about=(
            "Shows which store or server is used and why, whether it answers, and with which token. Of a "
            "server also its version, clock and speed. Reports parked jobs, those who wait for more "
            "than ten minutes, and tokens that end within a week. For a git store it also tests what the "
            "remote allows, on refs that it deletes again, and suggests a prefix and a TTL. --set-aside "
            "removes a record or an event that cannot be read, after its text is in a new file of this folder. "
            "After a record, all new fencing tokens are above the present time in milliseconds."
        ),
        examples=(
            ("dibs doctor", "the settings of this folder"),
            ("dibs doctor --url https://dibs.example.org", "before a deployment"),
            ("dibs doctor --url git:origin", "what a git remote allows"),
        ),
        exits=(
            (0, "it works; lines marked !! say what to look at"),
            (69, "something is broken; the lines marked BAD say what"),
        ),
    ),
}
