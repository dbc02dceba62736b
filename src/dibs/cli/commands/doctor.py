"""doctor: shows the settings that apply here, and what is wrong with them."""

from __future__ import annotations

import os
import sys

from dibs._version import __version__
from dibs.base import build_kind
from dibs.base.errors import DibsError
from dibs.base.files import config_path
from dibs.cli.commands.doctor_checks import Findings
from dibs.cli.framework.registry import part
from dibs.cli.framework.result import Answer, yes
from dibs.cli.framework.spec import STORE, Command
from dibs.wire.codes import UNREACHABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call


def doctor(call: Call) -> Answer:
    from dibs.cli.commands.doctor_checks import check_one_store, check_server, check_store
    from dibs.client.settings import servers_at

    found = Findings()
    found.good("version", f"dibs {__version__} ({build_kind()}), Python {sys.version.split()[0]}")
    try:
        addresses = servers_at(call.settings.url)
        _settings(found, call)
        _repository(found, call)
        if not addresses:
            check_store(found, call)
        stores = {address.url: check_server(found, call, address) for address in addresses}
        check_one_store(found, stores)
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
    from dibs.cli.framework.job_names import here

    namespace = here(call) if call.said("namespace") is None else None
    if namespace is not None:
        found.good("repo", f"path: and repo: names are in the namespace {namespace}")
    hooks = part("git hooks")
    if hooks is not None:
        hooks.diagnose(found, call.env)


def _answer(found: Findings, call: Call) -> Answer:
    width = max(len(each["check"]) for each in found.checks)
    lines = []
    for each in found.checks:
        mark = call.paint.good("ok ") if each["ok"] else call.paint.bad("BAD")
        if each.get("look"):
            mark = call.paint.wait("!! ")
        lines.append(f"{mark}  {each['check']:<{width}}  {each['says']}")
    document = {"version": __version__, "checks": found.checks}
    if not found.broken:
        count = len(found.noted)
        told = "All is well." if not count else f"It works. Marked !!: {count} to look at."
        return yes(document, "\n".join([*lines, "", told]))
    message = f"{found.broken[0]['check']}: {found.broken[0]['says']}"
    text = "\n".join([*lines, "", f"{len(found.broken)} of {len(lines)} checks need your attention."])
    return Answer(UNREACHABLE, document, text, quiet=message, code="upstream_unavailable", message=message)


COMMANDS = {
    "doctor": Command(
        "doctor",
        doctor,
        about=(
            "Shows which store or server is used and why, whether it answers, and which token is used. Of a server "
            "also its version, its clock and how fast it answers. Tells of parked jobs, of those who wait for more "
            "than ten minutes, and of tokens that end within a week. For a "
            "git store it also tests what the remote allows, on refs that it deletes again, and suggests a "
            "prefix and a TTL."
        ),
        arguments=(STORE,),
        examples=(
            ("the settings of this folder", "dibs doctor"),
            ("before a deployment", "dibs doctor --url https://dibs.example.org"),
            ("what a git remote allows", "dibs doctor --url git:origin"),
        ),
        exits=(
            (0, "it works; lines marked !! say what to look at"),
            (69, "something is broken; the lines marked BAD say what"),
        ),
    ),
}
