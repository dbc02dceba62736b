"""What the end of a command says about its job: done, failed, or nothing. For `run`, and for `release --failed`.

An exit code other than 0 is a failure, as cron and systemd have it, unless --ok-codes names it. A command that somebody
stopped has not failed: a signal that `dibs run` was sent and passed on (Ctrl-C, `systemctl stop`, a hang-up), or that
the terminal sent to the command itself. Its job is given back, and its count of attempts stays as it is.
"""

from __future__ import annotations

from dibs.cli.framework.flags import put, seconds
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

OK_CODES = Option(
    "--ok-codes", "exit codes besides 0 that are no failure, such as 1,2; all for every one", value="CODES"
)


def failure_fields(call: Call) -> Document:
    """What a release says that failed; empty when that was not asked for."""
    values = call.values
    retry_after = seconds(call, "retry_after", RETRY_MS_MAX)
    if not values.get("failed"):
        for key, value in (("--reason", values.get("reason")), ("--retry-after", retry_after)):
            if value is not None:
                raise UsageError(f"{key} is for work that failed: add --failed.", call.command)
        return {}
    if values.get("done") is not None or values.get("result") is not None:
        raise UsageError("--failed or --done: work that failed is not done.", call.command)
    fields: Document = {"failed": True}
    put(fields, "reason", values.get("reason"))
    put(fields, "retry_after_seconds", retry_after)
    return fields


class Verdict:
    """How the end of a command is judged, as it was asked for."""

    def __init__(self, call: Call) -> None:
        self._retry_after = seconds(call, "retry_after", RETRY_MS_MAX)
        self._ok = _codes(call)

    def of(self, code: int, why: str, *, interrupted: bool) -> Document:
        """What to say with the release; nothing, when it is a clean one."""
        if code == 0 or self._ok is None or code in self._ok:
            return {}
        if interrupted:
            return dict(UNCOUNTED)
        fields: Document = {"failed": True, "reason": why[:REASON_CHARS_MAX]}
        put(fields, "retry_after_seconds", self._retry_after)
        return fields


def _codes(call: Call) -> frozenset[int] | None:
    """The codes that are no failure; None: all of them."""
    text = call.values.get("ok_codes")
    if text is None:
        return frozenset()
    if text == ALL:
        return None
    codes = text.split(",")
    if not all(code.isascii() and code.isdecimal() and len(code) < 4 and int(code) < 256 for code in codes):
        raise UsageError(
            f"--ok-codes is numbers from 0 to 255 with commas between them, or all; not {text!a}.",
            call.command,
        )
    return frozenset([int(code) for code in codes])
