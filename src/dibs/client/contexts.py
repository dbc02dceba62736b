"""Contexts: the saved servers, each with a name.

A context is a file `contexts/NAME.toml` beside config.toml, which has the `url` of a server and perhaps a `namespace`.
The `url` of config.toml is a context, too, where it is a server's: its name is made of the address. Tokens are not in
these files, but in `logins`, each for one context and one server. Which context is used is in `client/settings.py`.
"""

from __future__ import annotations

import os

from dibs.base.cheap import Mapping
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.files import config_path, contexts_folder, read_toml
from dibs.client.urls import server_addresses
from dibs.core.limits import CONTEXT_NAME_CHARACTERS_MAX, SETTINGS_BYTES_MAX

_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_LETTERS = _FIRST | frozenset("-_.")
_ENDING = ".toml"
KEYS = ("url", "namespace")
_SHOWN_MAX = 10  # of the names, in an error


class Context:
    """A saved server. `path` is its file; that of config.toml, if the address is the `url` there."""

    __slots__ = ("name", "namespace", "path", "url")

    def __init__(self, name: str, url: str, namespace: str | None, path: str) -> None:
        self.name = name
        self.url = url
        self.namespace = namespace
        self.path = path


def check_context(name: str) -> str:
    """Return the name. Raises InvalidInput if a context cannot have it: it is the name of a file, and a word."""
    if name[:1] not in _FIRST or not _LETTERS.issuperset(name) or len(name) > CONTEXT_NAME_CHARACTERS_MAX:
        raise InvalidInput(
            f"{name[: 2 * CONTEXT_NAME_CHARACTERS_MAX]!a} cannot be the name of a context: it takes letters, digits, "
            f"-, _ and . , {CONTEXT_NAME_CHARACTERS_MAX} at most, and begins with a letter or digit."
        )
    return name


def name_of(url: str) -> str:
    """Make a name for a server that the user did not name: its host, with port and path if it has some. Of several
    servers the first counts."""
    address = server_addresses(url)[0]
    text = address.path if address.scheme == "unix" else f"{address.authority.lower()}{address.path}"
    made = "".join([letter if letter in _LETTERS else "-" for letter in text]).strip("-_.")
    return made[:CONTEXT_NAME_CHARACTERS_MAX] or "server"


def context_path(env: Mapping[str, str], name: str) -> str | None:
    """The file of a context, whether there is one or not. None where no home is named."""
    folder = contexts_folder(env)
    return None if folder is None else os.path.join(folder, check_context(name) + _ENDING)


def own_context(env: Mapping[str, str], config: Mapping[str, str]) -> Context | None:
    """The context that the `url` of config.toml makes; None if that is a store."""
    url, path = config.get("url"), config_path(env)
    try:
        return Context(name_of(url), url, None, path) if url and path and server_addresses(url) else None
    except InvalidInput:
        return None  # a command that uses it says what is wrong


def context_called(name: str, env: Mapping[str, str], config: Mapping[str, str]) -> Context | None:
    """The context of this name; None if there is none. Raises InvalidInput if it cannot be understood: to go on
    without it would be another store."""
    path = context_path(env, name)
    try:
        table = None if path is None else _read(path)
    except InvalidInput as error:
        more = f"`dibs login URL --context {name}` writes it anew, `dibs logout {name}` removes it."
        raise InvalidInput(f"{error.details}\n{more}") from None
    if path is None or table is None:
        own = own_context(env, config)
        return own if own is not None and own.name == name else None
    return Context(name, table["url"], table.get("namespace"), path)


def _read(path: str) -> dict[str, str] | None:
    table = read_toml(path, SETTINGS_BYTES_MAX)
    if table is None:
        return None
    for key, value in table.items():
        if key not in KEYS:
            raise InvalidInput(f"{path}: a context has no {key!a}, only {' and '.join(KEYS)}.")
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"{path}: {key!a} must be a text that is not empty, not {value!a}.")
    if "url" not in table:
        raise InvalidInput(f"{path} names no server: it has no url.")
    return table


def used_context(name: str, env: Mapping[str, str], config: Mapping[str, str], says: str) -> Context:
    """The context of this name. `says` is the variable or file that names it; empty: the caller did. Raises
    InvalidInput."""
    found = context_called(name, env, config)
    if found is not None:
        return found
    names = context_names(env, config)
    more = ", …" if len(names) > _SHOWN_MAX else ""
    saved = f"Saved: {', '.join(names[:_SHOWN_MAX])}{more}." if names else "None is saved."
    raise InvalidInput(
        f"There is no context {name!a}{f', which {says} names' if says else ''}. {saved}\n"
        f"`dibs login URL --context {name}` saves one, `dibs config use NAME` chooses another."
    )


def context_names(env: Mapping[str, str], config: Mapping[str, str]) -> list[str]:
    """The names of all contexts, sorted. Files that cannot have been made for one are passed over."""
    folder = contexts_folder(env)
    try:
        files = [] if folder is None else os.listdir(folder)
    except OSError:
        files = []  # whoever uses one is told what is wrong
    names = {file.removesuffix(_ENDING) for file in files if file.endswith(_ENDING)}
    names = {name for name in names if name[:1] in _FIRST and _LETTERS.issuperset(name)}
    own = own_context(env, config)
    return sorted(names if own is None else names | {own.name})


def saved_contexts(env: Mapping[str, str], config: Mapping[str, str]) -> list[tuple[str, Context | DibsError]]:
    """All contexts by name; for one that cannot be understood, what is wrong with it."""
    found: list[tuple[str, Context | DibsError]] = []
    for name in context_names(env, config):
        try:
            context = context_called(name, env, config)
            if context is not None:  # it may have vanished since
                found.append((name, context))
        except DibsError as error:
            found.append((name, error))
    return found
