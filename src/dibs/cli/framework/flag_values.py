"""What the value of a flag may be: durations, counts, exit codes. Each refusal names the flag."""

from __future__ import annotations

from dibs.base.errors import InvalidInput, InvalidTtl
from dibs.cli.framework.parse import UsageError
from dibs.core.durations import format_duration, parse_duration
from dibs.core.limits import TTL_MS_MAX, TTL_MS_MIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.cli.framework.context import Call


def given_ms(call: Call, key: str, what: str = "duration", refusal: type[InvalidInput] = InvalidInput) -> int | None:
    """The duration that a flag gives; None if the flag is not given."""
    text = call.values.get(key)
    if text is None:
        return None
    try:
        return parse_duration(text, what)
    except InvalidInput as error:
        raise refusal(f"--{key.replace('_', '-')}: {error.details}") from None


def ttl_seconds(call: Call) -> int | None:
    ttl_ms = given_ms(call, "ttl", "lease time", InvalidTtl)
    if ttl_ms is None:
        return None
    text = call.values["ttl"]
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        least, most = format_duration(TTL_MS_MIN), format_duration(TTL_MS_MAX)
        raise InvalidTtl(f"--ttl {text}: a lease lasts from {least} to {most}.")
    if ttl_ms % 1000:
        raise InvalidTtl(f"--ttl {text}: a lease lasts a whole number of seconds.")
    return ttl_ms // 1000


def seconds(call: Call, key: str, most_ms: int) -> int | None:
    length_ms = given_ms(call, key)
    if length_ms is None:
        return None
    if length_ms > most_ms or length_ms % 1000:
        flag = f"--{key.replace('_', '-')}"
        raise InvalidInput(f"{flag} {call.values[key]}: use whole seconds, {format_duration(most_ms)} at most.")
    return length_ms // 1000


def milliseconds(call: Call, key: str, default_ms: int, most_ms: int) -> int:
    """A duration from a flag, which need not be whole seconds."""
    length_ms = given_ms(call, key)
    if length_ms is None:
        return default_ms
    if length_ms > most_ms:
        flag = f"--{key.replace('_', '-')}"
        raise InvalidInput(f"{flag} {call.values[key]}: the most is {format_duration(most_ms)}.")
    return length_ms


def count(call: Call, key: str, most: int) -> int | None:
    """A whole number from 1 up."""
    text = call.values.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        flag = f"--{key.replace('_', '-')}"
        raise UsageError(f"{flag} takes a whole number from 1 to {most}, not {text!a}.", call.command)
    return int(text)


def exit_code(call: Call, key: str, default: int) -> int:
    """An exit code from a flag."""
    text = call.values.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) < 256):
        flag = f"--{key.replace('_', '-')}"
        raise UsageError(f"{flag} takes a number from 0 to 255, not {text!a}.", call.command)
    return int(text)
