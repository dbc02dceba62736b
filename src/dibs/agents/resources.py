"""Resources: `dibs://jobs`, `dibs://jobs/{job}` and `dibs://jobs/{job}/history`. A name is percent-encoded, including
its slashes: `dibs://jobs/path%3Asrc%2Fauth.rs`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from dibs.base.errors import InvalidName
from dibs.core.limits import HISTORY_PAGE_DEFAULT, NAME_BYTES_MAX
from dibs.core.names import check_name

if TYPE_CHECKING:
    from dibs.agents.backend import ToolBackend

ROOT = "dibs://jobs"
JOB = ROOT + "/{job}"
HISTORY = ROOT + "/{job}/history"
MIME = "application/json"


def uri_of(job: str) -> str:
    return f"{ROOT}/{quote(job, safe='')}"


async def read(backend: ToolBackend, uri: str) -> str | None:
    """The document at `uri` as JSON, or None if there is no such resource."""
    document: dict[str, Any]
    if uri == ROOT:
        document = {"jobs": [each.document for each in await backend.listing("")]}
        return json.dumps(document, ensure_ascii=False)
    parts = uri.removeprefix(ROOT + "/").split("/") if uri.startswith(ROOT + "/") else []
    if len(parts) == 1:
        document = (await backend.status(_name(parts[0]))).document
    elif len(parts) == 2 and parts[1] == "history":
        name = _name(parts[0])
        events = await backend.history(name, HISTORY_PAGE_DEFAULT)
        document = {"name": name, "events": [each.document for each in events]}
    else:
        return None
    return json.dumps(document, ensure_ascii=False)


def _name(part: str) -> str:
    if len(part) > 3 * NAME_BYTES_MAX:
        raise InvalidName(f"A job name may have at most {NAME_BYTES_MAX} bytes of UTF-8.")
    try:
        return check_name(unquote(part, errors="strict"))
    except UnicodeDecodeError:
        raise InvalidName("The percent-encoded name in the URI is not UTF-8.") from None
