"""The access log has a line for every request, without anything that proves an identity.

A secret may be in a query (the gateway's clients put it there) or in a path (a session's id proves the session). Names
of query parameters are compared after percent-decoding, as the server reads them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

if TYPE_CHECKING:
    import logging

HIDDEN = frozenset("secret token lease lease_id session session_id ticket request_key access_token".split())
# It looks at each letter once: strangers choose how long the text is.
_NAME = re.compile(r"(?<![a-z_])[a-z_]++(?=\s*=)")
_SESSION = re.compile(r"(?<=/sessions/)[^/?]{8,}")


def hide_secrets(record: logging.LogRecord) -> bool:
    """A filter for the access log. It lets every line pass, without its secrets."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            [without_secrets_in_path(each) if isinstance(each, str) else each for each in record.args]
        )
    return True


def without_secrets_in_path(text: str) -> str:
    path, mark, query = text.partition("?")
    path = _SESSION.sub(lambda found: found.group()[:8] + "...", path)
    return path + mark + "&".join([_parameter(part) for part in query.split("&")])


def _parameter(part: str) -> str:
    """Also finds malformed ones: `a;secret=x`, `secret%3Dx`."""
    names = _NAME.findall(unquote_plus(part).lower())
    return (
        part
        if HIDDEN.isdisjoint(names)
        else f"{part.partition('=')[0].partition('%3')[0].partition(';')[0]}=..."
    )
