"""What an etcd URL means."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput, MissingExtra
from dibs.stores.etcd import etcd_location, open_url
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.port import Opening
from dibs.stores.registry import open_store

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_url_means() -> None:
    found = etcd_location("etcd://a:1,[::1]:2,b/team/x?ca=/ca.pem&cert=/c&key=/k%20")
    assert found.endpoints == (("a", 1), ("::1", 2), ("b", 2379))
    assert (found.prefix, found.tls, found.ca, found.key) == ("team/x", True, "/ca.pem", "/k ")
    assert found.shown() == "etcds://a:1,[::1]:2,b:2379/team/x"
    assert etcd_location("etcd://h").prefix == "dibs"
    assert etcd_location("etcds://h//a//b/").prefix == "a/b"
    named = etcd_location("etcd://us%40er:p%3a@h/x")
    assert (named.user, named.password, named.tls) == ("us@er", "p:", False)
    store = open_url("etcd://h", Opening())
    assert isinstance(store, EtcdStore)
    assert store.location.endpoints == (("h", 2379),)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "etcd:",
            "etcd:h",
            "etcd://",
            "etcd:///x",
            "etcd://h:0",
            "etcd://h:99999",
            "etcd://h:x",
            "etcd://h:",
        ),
        *("etcd://a,,b", "etcd://user@h", "etcd://h?colour=red", "etcd://h?ca=", "etcd://h?cert=/x"),
        *(
            "etcd://h?tls=maybe",
            "etcds://h?tls=no",
            "etcd://h/%zz",
            "etcd://h/%ff",
            "etcd://h/a%00b",
            "etcd://[::1",
        ),
        "etcd://u:p/w@h/x",
    ],
)
def test_what_is_no_url_of_etcd_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert "p/w" not in caught.value.details


def test_a_file_that_cannot_be_used_is_named_when_the_store_is_opened(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for words, says in (
        (
            f"ca={tmp_path}/none",
            f"ca={tmp_path}/none in the etcd URL cannot be read: No such file or directory.",
        ),
        (f"ca={empty}", f"ca={empty} in the etcd URL cannot be used: "),
        (f"cert={empty}&key={empty}", f"cert={empty} with key={empty} in the etcd URL cannot be used: "),
    ):
        with pytest.raises(InvalidInput) as caught:
            open_store(f"etcds://127.0.0.1:1/x?{words}")
        assert caught.value.details.startswith(says)


def test_without_the_extra_an_etcd_url_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hpack", None)
    with pytest.raises(MissingExtra, match="pip install hpack"):
        open_url("etcd://h", Opening())
