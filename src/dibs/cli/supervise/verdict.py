"""Whether the end of a command means that its job is done or failed. For `run`, and for `release --failed`.

An exit code other than 0 is a failure, as for cron and systemd, unless --ok-codes lists it. A command that somebody
stopped has not failed: by a signal to `dibs run` that was passed on (Ctrl-C, `systemctl stop`, a hang-up), or by a
signal from its terminal. Its job is released, and its count of attempts does not change.
"""

from __future__ import annotations

from dibs.cli.framework.flag_values import seconds
from dibs.cli.framework.flags import put
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.spec import Option
from dibs.core.limits import REASON_CHARS_MAX, RETRY_MS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.framework.context import Call

    Document = dict[str, Any]

ALL = "all"
UNCOUNTED = {"uncounted": True}

OK_CODES = Option("--ok-codes", "exit codes besides 0 that are no failure, such as 1,2; or all", value="CODES")


def failure_fields(call: Call) -> Document:
    """The fields of a release for failed work; empty without --failed."""
    values = call.values
    retry_after = seconds(call, "retry_after", RETRY_MS_MAX)
    if not values.get("failed"):
        for key, value in (("--reason", values.get("reason")), ("--retry-after", retry_after)):
            if value is not None:
                raise UsageError(f"{key} needs --failed.", call.command)
        return {}
    if values.get("done") is not None or values.get("result") is not None:
        raise UsageError("Use --failed or --done, not both.", call.command)
    fields: Document = {"failed": True}
    put(fields, "reason", values.get("reason"))
    put(fields, "retry_after_seconds", retry_after)
    return fields


class Verdict:
    """Judges the end of a command by the flags."""

    def __init__(self, call: Call) -> None:
        self._retry_after = seconds(call, "retry_after", RETRY_MS_MAX)
        self._ok = _codes(call)

    def of(self, code: int, why: str, *, interrupted: bool) -> Document:
        """The fields of the release; empty for a success."""
        if code == 0 or self._ok is None or code in self._ok:
            return {}
        if interrupted:
            return dict(UNCOUNTED)
        fields: Document = {"failed": True, "reason": why[:REASON_CHARS_MAX]}
        put(fields, "retry_after_seconds", self._retry_after)
        return fields


def _codes(call: Call) -> frozenset[int] | None:
    """The exit codes that are no failure; None means all."""
    text = call.values.get("ok_codes")
    if text is None:
        return frozenset()
    if text == ALL:
        return None
    codes = text.split(",")
    if not all(code.isascii() and code.isdecimal() and len(code) < 4 and int(code) < 256 for code in codes):
        raise UsageError(
            f"--ok-codes takes numbers from 0 to 255 with commas between them, or all; not {text!a}.",
            call.command,
        )
    return frozenset([int(code) for code in codes])
