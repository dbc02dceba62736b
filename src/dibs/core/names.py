"""Rules for job names.

A name is any printable text of 1 to 512 UTF-8 bytes: slashes, colons, spaces inside, emoji. It is never changed,
except that a `path:` is normalised: two names are the same job exactly if they have the same characters. Characters
that look alike on a screen or cannot be sent are refused: control characters, line and paragraph separators, lone
surrogates, unassigned code points, direction overrides, and blanks at either end.
"""

from __future__ import annotations

from dibs.base.errors import InvalidInput, InvalidName
from dibs.core.limits import NAME_BYTES_MAX, NAMESPACE_CHARS_MAX, PRINCIPAL_CHARS_MAX

DEFAULT_NAMESPACE = "default"
# An election is a job with this in front of its name: whoever has the job leads.
ELECTION_PREFIX = "election:"
_NAMESPACE_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
PRINCIPAL_CHARACTERS = _NAMESPACE_CHARACTERS | frozenset("@+")
# Characters that change the order of what is shown: "job\u202e24-eussi" looks like another name.
_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_principal(name: str) -> str:
    """The principal's name, or InvalidInput. The error does not repeat the text, which may be a secret."""
    if not 1 <= len(name) <= PRINCIPAL_CHARS_MAX or not PRINCIPAL_CHARACTERS.issuperset(name):
        raise InvalidInput(f"a name is 1 to {PRINCIPAL_CHARS_MAX} letters, digits or . _ @ + -.")
    return name


def check_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidName("A job name is text.")
    if not name:
        raise InvalidName("A job name may not be empty. Give the stable name of the work, such as issue-1842.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName("A job name must be text in UTF-8; this one is not.") from None
    if size > NAME_BYTES_MAX:
        raise InvalidName(f"A job name may have {NAME_BYTES_MAX} bytes of UTF-8 at most; this one has {size}.")
    if name[0].isspace() or name[-1].isspace():
        raise InvalidName("A job name may not begin or end with a blank.")
    if not name.isprintable():
        _check_unprintable(name)
    return _tree_name(name) if in_tree(name) else name


def election_job(election: object) -> str:
    """The job of an election. An empty name, perhaps of a variable that is not set, is a mistake."""
    if not isinstance(election, str) or not election:
        raise InvalidName("An election's name is text, and may not be empty. Give all candidates the same one.")
    if election[0].isspace():
        raise InvalidName("An election's name may not begin with a blank.")
    return ELECTION_PREFIX + election


def _check_unprintable(name: str) -> None:
    # Joiners inside emoji and some scripts are "format" characters, which isprintable() refuses and people need.
    import unicodedata  # imported here, because it takes half a millisecond and ordinary names do not need it

    for position, character in enumerate(name):
        category = unicodedata.category(character)
        if category == "Cf" and position in (0, len(name) - 1):
            raise InvalidName(
                f"A job name may not begin or end with a character that cannot be seen (U+{ord(character):04X})."
            )
        if category in ("Cc", "Cs", "Cn", "Zl", "Zp") or character in _OVERRIDES:
            raise InvalidName(
                f"A job name may not hold control characters; character {position + 1} is U+{ord(character):04X}."
            )


# A name has one kind. These begin the names of resources: what they name is there before and after every owner, so it
# can be held, and nothing else. Done, failed and parked are for jobs, which all other names are. A resource is part of
# one repository: in a git work tree its name is in the repository's own namespace (`client/naming.py`).
RESOURCES = ("path:", "repo:", "branch:")


def is_resource(name: str) -> bool:
    return in_tree(name) or (name[6:7] == ":" and name[:7] == "branch:")


def in_tree(name: str) -> bool:
    # Every rule asks. A slice of one character makes no new text; compiled, both are much quicker than `startswith`.
    return name[4:5] == ":" and name[:5] in ("path:", "repo:")


def _tree_name(name: str) -> str:
    """The normalised name: `path:./src//auth/` is `path:src/auth`."""
    kind, rest = name[:5], name[5:]
    if kind == "repo:":
        if not rest:
            raise InvalidName("repo: needs a name after it, such as repo:deploy.")
        return name
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidName("A path: name may not hold '..': it could lead out of its tree.")
    if not parts and not rest.startswith("/"):
        raise InvalidName("path: needs a path after it; to claim everything, claim repo:NAME.")
    return kind + ("/" if rest.startswith("/") else "") + "/".join(parts)


def check_namespace(namespace: object) -> str:
    if (
        not isinstance(namespace, str)
        or not 1 <= len(namespace) <= NAMESPACE_CHARS_MAX
        or not _NAMESPACE_CHARACTERS.issuperset(namespace)
    ):
        raise InvalidName(f"A namespace is 1 to {NAMESPACE_CHARS_MAX} letters, digits, dots, dashes or underscores.")
    return namespace
