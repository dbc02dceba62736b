"""Finds plugins: those of dibs' own wheel (`agents`, `compat`, `contrib`, `testing`), and those of other packages.

Both are registered by entry points: a group such as `dibs.commands`, a word, and the object that stands for it. No
other part of dibs imports a plugin: a word is looked up when it is used. Those of dibs' own wheel are in
`base/shipped.py`, made from pyproject.toml, because to read the entry points of all installed packages takes longer
than a whole claim. That is done only for a word that the table does not have: a package cannot replace what dibs has.
"""

from __future__ import annotations

from dibs.base.cheap import Any
from dibs.base.errors import InvalidInput, MissingExtra

PARTS = "dibs.parts"  # the group of what our own plugins do inside commands and clients


def plugin(group: str, word: str, what: str | None = None) -> Any | None:
    """The object that is registered for a word; None if there is none. `what` says what the word stands for, in the
    messages. Raises InvalidInput if the object cannot be loaded, or if several packages have the word.

    A word of dibs' own wheel may lack its package. Then this is None without `what`, and MissingExtra with it: whoever
    says what it is for cannot do without."""
    from dibs.base.shipped import ENTRY_POINTS

    own = ENTRY_POINTS.get(group, {}).get(word)
    if own is not None:
        found = _loaded(own)
        if found is not None:
            return found[0]
        if what is None:
            return None
        package = ".".join(own.split(".")[:2])
        needs = f"{what[:1].upper()}{what[1:]} needs {package}, which is not installed. Install dibs as a whole."
        raise MissingExtra(needs)
    what = f"{word} ({group})" if what is None else what
    from importlib.metadata import entry_points

    entries = list(entry_points(group=group, name=word))
    if not entries:
        return None
    if len({each.value for each in entries}) > 1:
        names = ", ".join(sorted(each.value for each in entries))
        raise InvalidInput(f"Several packages register {what} ({names}). Uninstall all but one.")
    entry = entries[0]
    dist = entry.dist.name if entry.dist is not None else entry.value
    try:
        return entry.load()
    except Exception as error:
        raise InvalidInput(
            f"{what[:1].upper()}{what[1:]}, of the package {dist}, cannot be loaded ({error!r}). Repair or upgrade "
            "that package."
        ) from error


def registered(group: str, first: str | None = None) -> list[str]:
    """The words of a group that are `first` or begin with it and a dot: of dibs' own wheel, else of other packages.
    Without `first`: all of other packages."""
    from dibs.base.shipped import ENTRY_POINTS

    own = ENTRY_POINTS.get(group, {})
    found = [word for word in own if first in (word, word.partition(".")[0])]
    if found:
        return found
    from importlib.metadata import entry_points

    words = dict.fromkeys(each.name for each in entry_points(group=group) if each.name not in own)
    return [word for word in words if first is None or first in (word, word.partition(".")[0])]


def _loaded(target: str) -> tuple[Any] | None:
    """The object that an entry point of dibs' own wheel names; None if its part is not installed. One that cannot
    be imported for another reason raises."""
    module, _, attribute = target.partition(":")
    try:
        found = __import__(module, fromlist=("",))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        return None
    return (getattr(found, attribute) if attribute else found,)
