"""Flags of the commands that open a session."""

from __future__ import annotations

from dibs.base.errors import InvalidTtl
from dibs.cli.framework.flag_values import given_ms
from dibs.cli.framework.flags import put
from dibs.cli.framework.spec import Option
from dibs.core.durations import format_duration
from dibs.core.limits import SESSION_OWN_TTL_MS_MAX, SESSION_OWN_TTL_MS_MIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]

TTL = Option("--ttl", field="session-open.ttl_ms", value="TIME")


def open_request(call: Call) -> Document:
    document: Document = {"owner": call.settings.owner}
    put(document, "ttl_ms", _ttl_ms(call))
    put(document, "metadata", call.values.get("metadata"))
    return document


def _ttl_ms(call: Call) -> int | None:
    ttl_ms = given_ms(call, "ttl", "session time", InvalidTtl)
    if ttl_ms is None:
        return None
    if not SESSION_OWN_TTL_MS_MIN <= ttl_ms <= SESSION_OWN_TTL_MS_MAX or ttl_ms % 1000:
        least, most = format_duration(SESSION_OWN_TTL_MS_MIN), format_duration(SESSION_OWN_TTL_MS_MAX)
        raise InvalidTtl(f"--ttl {call.values['ttl']}: a session lives from {least} to {most}, in whole seconds.")
    return ttl_ms
