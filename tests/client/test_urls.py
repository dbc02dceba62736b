"""Which URL means what."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base.errors import InvalidInput
from dibs.client.settings import servers_at
from dibs.client.urls import quote, server_address


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://127.0.0.1:3427", "127.0.0.1", 3427, "", "127.0.0.1:3427"),
        ("HTTP://h", "h", 80, "", "h"),
        ("https://h/", "h", 443, "", "h"),
        ("https://h:8443/dibs/", "h", 8443, "/dibs", "h:8443"),
        ("http://[::1]:3427", "::1", 3427, "", "[::1]:3427"),
        ("http://[::1]", "::1", 80, "", "[::1]"),
        ("unix:///run/dibs.sock", "", 0, "/run/dibs.sock", "localhost"),
    ],
)
def test_a_server_url_has_these_parts(url: str, host: str, port: int, path: str, authority: str) -> None:
    place = server_address(url)
    assert (place.host, place.port, place.path, place.authority) == (host, port, path, authority)


@pytest.mark.parametrize(
    "url",
    [
        *"http:// http://:80 http://h:0 http://h:65536 http://h:x http://u:p@h http://h?a=b http://h/#f".split(),
        *"http://::1 http://[::1 http://[::1]x unix://run/x http://h\u00e9".split(),
        "http://a b",
        "http://h\r\nx",
    ],
)
def test_a_broken_server_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        server_address(url)


@pytest.mark.parametrize("url", [None, "sqlite:///x", "sqlite:x", "memory://", "nonsense"])
def test_what_names_no_server_is_left_to_the_stores(url: str | None) -> None:
    assert not servers_at(url)


@pytest.mark.parametrize(("url", "hint"), [("", "empty"), ("localhost:3427", "http://localhost:3427")])
def test_an_address_without_a_scheme_is_helped(url: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        servers_at(url)


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_a_name_is_one_segment_and_comes_out_as_it_went_in(name: str) -> None:
    quoted = quote(name)
    assert unquote(quoted) == name
    assert not set(quoted) & set("/?#%") - {"%"}
    assert quoted not in (".", "..")
