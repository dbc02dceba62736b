"""URLs as every message shows them: without the password or token before the host or among the options."""

from __future__ import annotations

# After the question mark of a database's URL.
_OPTIONS = ("password=", "sslpassword=", "passwd=", "oauth_client_secret=")
_ENDS = "& \t\n'\""


def without_secrets(text: str) -> str:
    """`https://user:password@host` as `https://host`, wherever it stands in `text`. The user of an ssh address stays:
    it is no secret, and the address is of no use without. `?password=secret` becomes `?password=***`."""
    parts = text.split("://")
    for index in range(1, len(parts)):
        is_ssh = parts[index - 1].endswith("ssh")
        words = parts[index].split(maxsplit=1)
        if not words or parts[index][0].isspace():
            continue
        length = _secret_length(words[0])
        if length and not (is_ssh and ":" not in words[0][:length]):
            parts[index] = parts[index][length:]
    return _without_options("://".join(parts))


def to_repeat(url: str) -> str:
    """`url` for a command that somebody may copy: with its user, and with PASSWORD in the place of a password."""
    scheme, separator, rest = url.partition("://")
    length = _secret_length(rest)
    user, colon, _ = rest[: max(0, length - 1)].partition(":")
    if colon:
        rest = f"{user}:PASSWORD@{rest[length:]}"
    elif length and not scheme.endswith("ssh") and not scheme.startswith("postgres"):
        rest = f"PASSWORD@{rest[length:]}"  # a token stands alone
    return _without_options(scheme + separator + rest)


def _without_options(text: str) -> str:
    for option in _OPTIONS:
        for mark in ("?", "&"):
            begin = 0
            while (found := text.lower().find(mark + option, begin)) >= 0:
                begin = found + len(mark + option)
                end = next((at for at in range(begin, len(text)) if text[at] in _ENDS), len(text))
                text = text[:begin] + "***" + text[end:]
    return text


def _secret_length(address: str) -> int:
    """Return how much of `user:password@host/path` comes before the host."""
    authority = address.split("/", 1)[0]
    if "@" in authority:
        return authority.rindex("@") + 1
    # A slash in a password, which should have been written %2F: what follows the colon is no port.
    _, colon, port = authority.rpartition(":")
    if colon and "]" not in port and not port.rstrip("'\".,;)").isdecimal() and "@" in address:
        return address.rindex("@") + 1
    return 0
