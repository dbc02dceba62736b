"""Opens the store that a URL means. A store's module is imported only when its URL is opened.

The text before the first `:` or `+` selects the store. A package of your own adds one by an entry point of the group
`dibs.stores`, named like the scheme; docs/how-to/write-a-store.md has an example.
"""

from __future__ import annotations

from dibs.base.cheap import Callable
from dibs.base.files import store_path
from dibs.stores.codec import names_no_store
from dibs.stores.port import Opening, Store

Opener = Callable[[str, Opening], Store]

GROUP = "dibs.stores"
# The module whose `open_url` opens the URLs of each scheme.
SHIPPED = {
    "memory": "dibs.stores.memory",
    "sqlite": "dibs.stores.sqlite",
    "git": "dibs.stores.git",
    "postgresql": "dibs.stores.postgres",
    "postgres": "dibs.stores.postgres",
    "etcd": "dibs.stores.etcd",
    "etcds": "dibs.stores.etcd",
}
_FOR_ANYBODY = Opening()


def default_url() -> str:
    """The user's own store: a file in the state folder."""
    return "sqlite://" + store_path()


def open_store(url: str, opening: Opening = _FOR_ANYBODY) -> Store:
    """Open the store that `url` names. `opening` says who opens it."""
    module = SHIPPED.get(_scheme(url))
    opener: Opener = _plugged(url) if module is None else __import__(module, fromlist=["open_url"]).open_url
    return opener(url, opening)


def check_store_url(url: str) -> None:
    """Raise InvalidInput if there is no store for such a URL. Opens none."""
    if _scheme(url) not in SHIPPED:
        _plugged(url)


def _scheme(url: str) -> str:
    before, colon, _ = url.partition(":")
    if not colon:
        raise names_no_store(url)
    return before.partition("+")[0]


def _plugged(url: str) -> Opener:
    from dibs.base.plugins import plugin

    scheme = _scheme(url)
    opener: Opener | None = plugin(GROUP, scheme, f"the store for {scheme}: URLs")
    if opener is None:
        raise names_no_store(url)
    return opener
