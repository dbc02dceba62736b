"""What headers and query of a request mean for several routes: names, parts of names, states, the request key. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.agents.repository.job_names import JobNames
from dibs.base.errors import InvalidInput, InvalidName
from dibs.core.limits import NAME_BYTES_MAX
from dibs.core.records import ENDINGS, HELD, STATES
from dibs.server.http.request import header_text, unquote_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Headers = Mapping[bytes, bytes]

SEQ_MAX = 2**63 - 1
NAMES_HEADER = b"x-dibs-names"


def add_key(document: dict[str, Any], header: bytes) -> None:
    """The Idempotency-Key header is the request key."""
    key = unquote_key(header_text(header, "Idempotency-Key"))
    if document.setdefault("request_key", key) != key:
        raise InvalidInput("The header Idempotency-Key and the field request_key differ.")


def one_name(name: str, headers: Headers) -> str:
    """The name; its one name if the header asks for that. A server knows no clone."""
    return JobNames({}, None).of(name) if wants_one_name(headers) else name


def wants_one_name(headers: Headers) -> bool:
    asked = headers.get(NAMES_HEADER)
    if asked not in (None, b"one"):
        raise InvalidInput("The header X-Dibs-Names is one: turn names into their one name. Or leave it out.")
    return asked is not None


def name_part(asked: Mapping[str, str], field: str) -> str:
    text = asked.get(field, "")
    if len(text.encode()) > NAME_BYTES_MAX or any(character < " " for character in text):
        raise InvalidName(f"{field} may have {NAME_BYTES_MAX} bytes at most, and no control characters.")
    return text


def states_asked(asked: Mapping[str, str]) -> tuple[str, ...]:
    """Which jobs a list shows: held ones, unless `status` says otherwise."""
    text = asked.get("status", HELD)
    states = STATES if text == "all" else tuple(text.split(","))
    if not set(states) <= set(STATES):
        raise InvalidInput(f"status is all, or some of {', '.join(STATES)} with commas between.")
    return states


def endings_asked(asked: Mapping[str, str]) -> tuple[str, ...]:
    """Which jobs a list shows: those whose last hold ended so. All, unless `ended` says otherwise."""
    if "ended" not in asked:
        return ()
    endings = tuple(asked["ended"].split(","))
    if not set(endings) <= set(ENDINGS):
        raise InvalidInput(f"ended is some of {', '.join(ENDINGS)} with commas between.")
    return endings
