"""URLs as they may be shown: without the password or token that stands before the host. Every message goes by this."""

from __future__ import annotations


def without_secrets(text: str) -> str:
    """`https://user:password@host` as `https://host`, wherever it stands in `text`. The user of an ssh address stays:
    it is no secret, and the address is of no use without."""
    parts = text.split("://")
    for index in range(1, len(parts)):
        is_ssh = parts[index - 1].endswith("ssh")
        words = parts[index].split(maxsplit=1)
        if not words or parts[index][0].isspace():
            continue
        length = _secret_length(words[0])
        if length and not (is_ssh and ":" not in words[0][:length]):
            parts[index] = parts[index][length:]
    return "://".join(parts)


def _secret_length(address: str) -> int:
    """How much of `user:password@host/path` comes before the host."""
    authority = address.split("/", 1)[0]
    if "@" in authority:
        return authority.rindex("@") + 1
    # A slash in a password, which should have been written %2F: what follows the colon is no port.
    _, colon, port = authority.rpartition(":")
    if colon and "]" not in port and not port.rstrip("'\".,;)").isdecimal() and "@" in address:
        return address.rindex("@") + 1
    return 0
