"""The default name of a repository's namespace. Pure, except that it resolves links in folder names. It is made from
the address of `origin`, in one spelling for all its forms, or without an `origin` from the git folder that all work
trees share.
"""

from __future__ import annotations

import os

from dibs.base.digest import digest
from dibs.core.limits import NAMESPACE_CHARS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.agents.repository.work_tree import Repository

_DIGITS = 12


def namespace_of(repository: Repository) -> str:
    """`acme-app.1f2e3d4c5b6a`: two readable words, and a number that makes it unique."""
    origin = repository.origin()
    place = normalised(origin, repository.top) if origin else os.path.realpath(repository.common)
    if not origin and os.path.basename(place) == ".git":
        place = os.path.dirname(place)
    words = "-".join(place.strip("/").split("/")[-2:])
    readable = "".join(
        [each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in words]
    )
    return f"{readable[-(NAMESPACE_CHARS_MAX - _DIGITS - 1) :]}.{digest(place)[:_DIGITS]}"


def normalised(address: str, top: str) -> str:
    """`host/path` for an address of any form: `git@host:path.git`, `ssh://user@host:22/path`, `https://host/path/`. A
    folder stays one, whole."""
    scheme, mark, rest = address.partition("://")
    if mark and scheme.lower() != "file":
        authority, _, path = rest.partition("/")
    elif not mark and _is_scp(address):
        authority, _, path = _scp_parts(address)
    else:
        folder = os.path.realpath(os.path.join(top, rest if mark else address))
        return folder.removesuffix("/.git").removesuffix(".git")
    return f"{_host(authority)}/{path.strip('/').removesuffix('.git').rstrip('/')}"


def _is_scp(address: str) -> bool:
    return ":" in address.partition("/")[0] if not address.startswith("[") else "]:" in address


def _scp_parts(address: str) -> tuple[str, str, str]:
    end = address.find("]:") + 1 if "]:" in address else address.index(":")
    return address[:end], ":", address[end + 1 :]


def _host(authority: str) -> str:
    host = authority.rpartition("@")[2].lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and not name.endswith(":") else host
