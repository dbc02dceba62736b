"""Which store a URL means."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.stores import registry
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Opening
from dibs.stores.sqlite import SqliteStore, sqlite_path
from tests.declared import CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "house"))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/dibs.db", "/var/lib/dibs.db"),
        ("sqlite:////var/lib/dibs.db", "/var/lib/dibs.db"),
        ("sqlite:/var/lib/dibs.db", "/var/lib/dibs.db"),
        ("sqlite:///a b%20c?d#e.db", "/a b%20c?d#e.db"),
        ("sqlite:dibs.db", "{here}/dibs.db"),
        ("sqlite:./sub/../dibs.db", "{here}/dibs.db"),
        ("sqlite:~/dibs.db", "{here}/house/dibs.db"),
        ("sqlite:///~/dibs.db", "{here}/house/dibs.db"),
    ],
)
def test_an_sqlite_url_names_a_file(url: str, path: str, tmp_path: Path) -> None:
    assert sqlite_path(url) == path.format(here=tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        *("", " ", "x", "mysql://x", "memory:", "memory://x"),
        *("sqlite", "sqlite:", "sqlite://", "sqlite:///", "sqlite://host/x.db", "sqlite::memory:"),
        *("sqlite:folder/", "sqlite:a\0b"),
    ],
)
def test_what_is_no_store_url_is_answered_with_the_forms_that_are(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"names no store.*memory://.*sqlite:///absolute/path.db"):
        registry.open_store(url)


def test_a_plain_path_is_answered_with_its_url(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean sqlite:///tmp/x\.db\?"):
        registry.open_store("/tmp/x.db")
    with pytest.raises(InvalidInput, match="Did you mean sqlite://"):
        registry.open_store("./x.db")


@pytest.mark.parametrize("url", ["htp://x", "hhtps://x", "SQLITE:///x", "postgresq://x"])
def test_a_mistyped_scheme_is_answered_with_the_one_that_was_meant(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean (https?|sqlite|postgresql)://") as refused:
        registry.open_store(url)
    assert len(refused.value.details) < 100


def test_stores_open_by_url(tmp_path: Path) -> None:
    assert isinstance(registry.open_store("memory://"), MemoryStore)
    store = registry.open_store("sqlite:x.db")
    assert isinstance(store, SqliteStore)
    assert (tmp_path / "x.db").exists()
    store.close()


def test_a_folder_that_somebody_named_is_never_made_and_a_new_file_is_noticed_once(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"teem does not exist\. Check how it is spelt"):
        registry.open_store("sqlite:teem/x.db")
    assert not (tmp_path / "teem").exists()
    for expected in (1, 0):
        store = registry.open_store("sqlite:x.db")
        notices = store.notices()
        assert len(notices) == expected
        assert all("was not there: this is a new, empty store" in each for each in notices)
        store.close()


def test_the_folder_of_the_users_own_store_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = registry.open_store(registry.default_url())
    assert (tmp_path / "state" / "dibs" / "dibs.db").exists()
    assert store.notices() == []
    store.close()


def test_the_users_own_store_is_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert registry.default_url() == "sqlite:///state/dibs/dibs.db"
    for unset in ("", "relative/path"):
        monkeypatch.setenv("XDG_STATE_HOME", unset)
        assert registry.default_url() == f"sqlite://{tmp_path}/house/.local/state/dibs/dibs.db"
    assert sqlite_path(registry.default_url()).startswith(str(tmp_path))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Have a package that registers a store, as pip leaves it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(package: str, entry: str, source: str) -> None:
        (tmp_path / f"{package}.py").write_text(source)
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry}\n")

    return install


STORE_OF_OUR_OWN = """
from dibs.stores.memory import MemoryStore

def open_url(url, opening):
    store = MemoryStore(lambda: 1)
    store.opened = (url, opening.serves)
    return store
"""


def test_a_package_registers_a_store_by_an_entry_point(install: Callable[[str, str, str], None]) -> None:
    install("acme_store", "acme = acme_store:open_url", STORE_OF_OUR_OWN)
    for url in ("acme://host/x", "acme+tls://host/x", "acme:x"):
        store = registry.open_store(url, Opening(serves=True))
        assert vars(store)["opened"] == (url, True)


def test_a_registered_store_takes_no_scheme_that_dibs_ships(
    install: Callable[[str, str, str], None], tmp_path: Path
) -> None:
    install("thief_store", "sqlite = thief_store:open_url", "raise AssertionError")
    registry.open_store("sqlite:x.db").close()


def test_a_registered_store_that_cannot_be_loaded_is_named_with_its_package(
    install: Callable[[str, str, str], None],
) -> None:
    install("broken_store", "broken = broken_store:open_url", "import no_such_module")
    with pytest.raises(InvalidInput, match=r"of the package broken_store, cannot be loaded.*no_such_module"):
        registry.open_store("broken://x")


def test_of_two_packages_with_one_scheme_none_is_taken(install: Callable[[str, str, str], None]) -> None:
    install("left_store", "twice = left_store:open_url", STORE_OF_OUR_OWN)
    install("right_store", "twice = right_store:open_url", STORE_OF_OUR_OWN)
    with pytest.raises(InvalidInput, match=r"left_store:open_url, right_store:open_url.*Uninstall"):
        registry.open_store("twice://x")


def test_every_shipped_opener_is_there() -> None:
    for named in registry.SHIPPED.values():
        assert callable(import_module(named).open_url)


@pytest.mark.promise("same-answer")
def test_every_store_declares_what_it_is() -> None:
    assert [each.name for each in CAPABILITIES] == ["memory", "sqlite", "git", "git remote", "postgresql", "etcd"]
    assert all(each.reach in ("process", "host", "network") for each in CAPABILITIES)
    assert all(each.watch in ("direct", "polling", "native") for each in CAPABILITIES)


HEAVY = "typing dataclasses enum asyncio logging uuid secrets pathlib re threading json msgspec".split()


def test_a_claim_on_the_embedded_store_imports_nothing_heavy(tmp_path: Path) -> None:
    script = f"""
import sys
from dibs.core.commands import Acquire
from dibs.engine.coordinator import Coordinator
from dibs.stores.registry import open_store
store = open_store("sqlite:{tmp_path}/dibs.db")
store = open_store("sqlite:{tmp_path}/dibs.db")
command = Acquire(ns="n", name="x", principal="p", owner="o", ttl_ms=1, fresh_lease_id="l")
print(type(Coordinator(store).one(command)).__name__, sorted({{*{HEAVY!r}, "importlib.metadata"}} & set(sys.modules)))
"""
    # -S: what a machine's own site packages import at start is not ours.
    answer = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout == "Granted []\n"
