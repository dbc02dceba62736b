"""Parts that dibs does without: its plugins (`agents`, `compat`, `contrib`, `testing`), and packages of others.

No other part of dibs imports them. A table names the module for a word, such as a command or a flag of `dibs serve`,
and the module is imported when the word is used. A word that no table has is looked up among the entry points of
installed packages, which takes longer than a whole claim: so only then.
"""

from __future__ import annotations

from dibs.base.cheap import Any
from dibs.base.errors import InvalidInput, MissingExtra


def own_plugin(module: str) -> Any | None:
    """The module of a plugin; None if the plugin is not installed. A plugin that cannot be imported raises."""
    try:
        return __import__(module, fromlist=("",))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        return None


def needed(module: str, what: str) -> Any:
    """The module of a plugin. Raises MissingExtra, which says `what` needs it."""
    found = own_plugin(module)
    if found is None:
        package = ".".join(module.split(".")[:2])
        raise MissingExtra(f"{what} needs {package}, which is not installed. Install dibs as a whole.")
    return found


def plugin(group: str, word: str, what: str) -> Any | None:
    """The object that an installed package registers for a word; None if there is none. Raises InvalidInput if it
    cannot be loaded, or if several packages have the word. `what` says what the word stands for."""
    from importlib.metadata import entry_points

    found = list(entry_points(group=group, name=word))
    if not found:
        return None
    if len({each.value for each in found}) > 1:
        names = ", ".join(sorted(each.value for each in found))
        raise InvalidInput(f"Several packages register {what} ({names}). Uninstall all but one.")
    entry = found[0]
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        return entry.load()
    except Exception as error:
        raise InvalidInput(
            f"{what[:1].upper()}{what[1:]}, of the package {package}, cannot be loaded ({error!r}). Repair or upgrade "
            "that package."
        ) from error
