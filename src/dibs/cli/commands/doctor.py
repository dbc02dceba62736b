"""doctor: shows the settings that apply here, and what is wrong with them."""

from __future__ import annotations

import os
import sys

from dibs._version import __version__
from dibs.build import build_kind
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import MAYBE, Argument, Command
from dibs.clock import wall_ms
from dibs.core.durations import format_duration
from dibs.errors import DibsError
from dibs.paths import config_path
from dibs.redact import without_secrets
from dibs.wire.codes import UNREACHABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call
    from dibs.client.embedded import EmbeddedDoor
    from dibs.client.http import HttpDoor
    from dibs.client.urls import ServerAddress

    Document = dict[str, Any]

FREE_BYTES_MIN = 64 * 1024 * 1024
SKEW_MS_MAX = 5_000


class Findings:
    """The checks and their results, in order."""

    def __init__(self) -> None:
        self.checks: list[Document] = []

    def good(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": True, "says": says})

    def bad(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": False, "says": says})

    @property
    def broken(self) -> list[Document]:
        return [each for each in self.checks if not each["ok"]]


def doctor(call: Call) -> Answer:
    from dibs.client.connect import servers_at

    found = Findings()
    found.good("version", f"dibs {__version__} ({build_kind()}), Python {sys.version.split()[0]}")
    try:
        addresses = servers_at(call.settings.url)
        _settings(found, call)
        _repository(found, call)
        if not addresses:
            _store(found, call)
        stores = {address.url: _server(found, call, address) for address in addresses}
        _one_store(found, stores)
    except DibsError as error:
        found.bad("url", error.details)
    return _answer(found, call)


def _settings(found: Findings, call: Call) -> None:
    """The settings that apply, and where each comes from."""
    settings = call.settings
    path = config_path(settings.env)
    if path is not None and os.path.exists(path):
        mode = os.stat(path).st_mode & 0o022
        if mode:
            found.bad("config", f"{path} can be written by others. Run: chmod go-w {path}")
        else:
            found.good("config", f"{path}: {', '.join(settings.config) or 'nothing in it'}")
    namespace = settings.namespace or "default, or the one that the token is bound to"
    found.good("namespace", f"{namespace} ({settings.source('namespace', 'DIBS_NAMESPACE')})")
    found.good("owner", f"{settings.owner} ({settings.source('owner', 'DIBS_OWNER')})")


def _repository(found: Findings, call: Call) -> None:
    """In a git work tree: the namespace of its `path:` and `repo:` names."""
    from dibs.cli.git.namespace import here

    namespace = here(call) if call.said("namespace") is None else None
    if namespace is not None:
        found.good("repo", f"path: and repo: names are in the namespace {namespace}")
    _hooks(found, call)


def _hooks(found: Findings, call: Call) -> None:
    """Hooks that were installed here and do not run any more."""
    from dibs.cli.git.namespace import repository_around

    repository = repository_around(call)
    if repository is None:
        return
    from dibs.cli.git.hook_status import is_overwritten

    gone = is_overwritten(repository)
    if gone:
        found.bad(
            "hooks", f"{' and '.join(gone)} of dibs do not run here any more: `dibs hook status` says why"
        )


def _answer(found: Findings, call: Call) -> Answer:
    width = max(len(each["check"]) for each in found.checks)
    lines = []
    for each in found.checks:
        mark = call.paint.good("ok ") if each["ok"] else call.paint.bad("BAD")
        lines.append(f"{mark}  {each['check']:<{width}}  {each['says']}")
    document = {"version": __version__, "checks": found.checks}
    if not found.broken:
        return yes(document, "\n".join([*lines, "", "All is well."]))
    message = f"{found.broken[0]['check']}: {found.broken[0]['says']}"
    text = "\n".join([*lines, "", f"{len(found.broken)} of {len(lines)} checks need your attention."])
    return Answer(UNREACHABLE, document, text, quiet=message, code="upstream_unavailable", message=message)


def _store(found: Findings, call: Call) -> None:
    from dibs.client import store_admin
    from dibs.client.embedded import EmbeddedDoor

    source = call.settings.source("url", "DIBS_URL")
    source = "your own store" if source == "the default" else source
    door = call.door()
    if not isinstance(door, EmbeddedDoor):
        return
    url = call.settings.url or _default_url()
    found.good("store", f"{without_secrets(url)} ({source})")
    try:
        facts = store_admin.facts(door.store())
    except DibsError as error:
        found.bad("open", error.details)
        return
    schema = f", schema {facts['format']}" if facts["format"] else ""
    found.good("open", f"{facts['kind']}{schema}, {_size(facts['size_bytes'])}")
    _clock(found, facts)
    _disk(found, facts["path"])
    _counts(found, door)
    if why := store_admin.frozen(door.store()):
        found.bad("frozen", why)
    try:
        probed = store_admin.probe(door.store())
    except DibsError as error:
        found.bad("write", error.details)
        return
    if probed:
        found.checks += probed
    else:
        _writable(found, door)


def _default_url() -> str:
    from dibs.client.embedded import default_store_url

    return default_store_url()


def _clock(found: Findings, facts: Document) -> None:
    skew_ms = facts["now_ms"] - wall_ms()
    direction = "ahead of" if skew_ms > 0 else "behind"
    apart = f"{format_duration(abs(skew_ms))} {direction}" if abs(skew_ms) >= 1000 else "in step with"
    says = f"{facts['clock']}; {apart} the wall clock"
    # Not a fault: leases are measured on the store's clock. But the times shown will look odd.
    if abs(skew_ms) > SKEW_MS_MAX:
        says += " (the wall clock was changed since the boot; leases are not affected)"
    found.good("clock", says)


def _writable(found: Findings, door: EmbeddedDoor) -> None:
    from dibs.client.store_admin import try_write

    try:
        try_write(door.store())
    except DibsError as error:
        found.bad("write", error.details)
    else:
        found.good("write", "can be written")


def _counts(found: Findings, door: EmbeddedDoor) -> None:
    """Whether what principals with a limit have is counted right."""
    from dibs.client import store_admin

    wrong = store_admin.miscounted(door.store())
    if wrong:
        found.bad("limits", f"what {', '.join(wrong[:5])} may have is counted wrong. Run: dibs gc")


def _disk(found: Findings, path: str | None) -> None:
    if path is None:
        return
    status = os.statvfs(os.path.dirname(path))
    free = status.f_bavail * status.f_frsize
    if free < FREE_BYTES_MIN:
        found.bad("disk", f"only {_size(free)} free in {os.path.dirname(path)}: make room")
    else:
        found.good("disk", f"{_size(free)} free")


def _server(found: Findings, call: Call, address: ServerAddress) -> str | None:
    """The id of the store behind it, if it is known."""
    source = call.settings.source("url", "DIBS_URL")
    if call.settings.named_url is None:
        source = "this machine's service, for all its users"
    found.good("server", f"{address.url} ({source})")
    _token(found, call, address)
    from dibs.client.http import HttpDoor

    door = call.door_at(address.url)
    if not isinstance(door, HttpDoor):
        return None
    try:
        health = door.health()
        if health.get("details"):
            found.bad("answers", str(health["details"]))
        elif "dibs" not in health:
            found.bad("answers", "this is not a dibs server; nothing can be claimed there")
        else:
            storage = health.get("storage", "an unnamed store")
            found.good("answers", f"yes: dibs {health['dibs']}, on {storage}")
            _allowed(found, door)
    except DibsError as error:
        found.bad("answers", error.details)
        return None
    finally:
        door.close()
    return str(health["store"]) if health.get("store") else None


def _one_store(found: Findings, stores: dict[str, str | None]) -> None:
    """Servers of two stores in one list would give one job to two owners."""
    known = {url: store for url, store in stores.items() if store is not None}
    if len(stores) < 2 or not known:
        return
    first, *others = known
    if strange := [url for url in others if known[url] != known[first]]:
        found.bad("one store", f"{strange[0]} serves another store than {first}: name servers of one store")
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


def _allowed(found: Findings, door: HttpDoor) -> None:
    reply = door.claimed("", "", 1)
    if reply.status < 300:
        found.good("allowed", "the token is accepted")
    else:
        found.bad("allowed", str((reply.body or {}).get("details")))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


COMMANDS = {
    "doctor": Command(
        "doctor",
        "check the settings, and say what is wrong",
        doctor,
        about=(
            "Shows which store or server is used and why, whether it answers, and which token is used. For a "
            "git store it also tests what the remote allows, on refs that it deletes again, and suggests a "
            "prefix and a TTL."
        ),
        arguments=(
            Argument("URL", "the store or server to check (default: --url or DIBS_URL)", takes=MAYBE),
        ),
        examples=(
            ("the settings of this folder", "dibs doctor"),
            ("before a deployment", "dibs doctor --url https://dibs.example.org"),
            ("what a git remote allows", "dibs doctor git:origin"),
        ),
        exits=((0, "all is well"), (69, "something is broken; the lines marked BAD say what")),
    ),
}
