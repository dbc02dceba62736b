"""The transport to a store: errors are replies, and an invalid request opens no store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.client.embedded import EmbeddedTransport
from dibs.client.transport import Ask, OneNamespace
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.transports import connect

if TYPE_CHECKING:
    from pathlib import Path


def never() -> Coordinator:
    raise AssertionError("opened")


@pytest.mark.parametrize(
    ("verb", "name", "document", "code"),
    [
        ("acquire", "", {}, "invalid_lock_name"),
        ("acquire", "a", {"ttl_seconds": 0}, "invalid_ttl"),
        ("acquire", "a", {"owner": 5}, "invalid_input"),
        ("renew", "a", {}, "invalid_input"),
        ("break", "a", {}, "invalid_input"),
    ],
)
def test_what_cannot_be_is_answered_without_opening_the_store(
    verb: str, name: str, document: dict[str, object], code: str
) -> None:
    reply = EmbeddedTransport(never).ask(Ask(verb, name, document))
    assert reply.body is not None
    assert reply.body["code"] == code


def test_a_store_that_cannot_be_opened_is_a_reply() -> None:
    def fail() -> Coordinator:
        raise StoreUnavailable("The disk is gone.")

    transport = EmbeddedTransport(fail)
    for reply in (
        transport.ask(Ask("inspect", "a")),
        transport.ask(Ask("list", "", {"limit": 1})),
        transport.ask(Ask("history", "a", {"limit": 1})),
    ):
        assert reply.status == 503
        assert reply.body is not None
        assert reply.body["details"] == "The disk is gone."
    transport.close()


def test_a_fault_of_ours_is_not_dressed_up_as_an_answer() -> None:
    with pytest.raises(AssertionError):
        EmbeddedTransport(never).ask(Ask("inspect", "a"))


def test_the_namespace_is_checked_and_keeps_names_apart() -> None:
    store = MemoryStore(lambda: 1_000_000)
    assert EmbeddedTransport(lambda: Coordinator(store), OneNamespace("one")).ask(Ask("acquire", "a")).status == 200
    other = EmbeddedTransport(lambda: Coordinator(store), OneNamespace("two")).ask(Ask("inspect", "a")).body
    assert other is not None
    assert other["status"] == "free"
    assert EmbeddedTransport(lambda: Coordinator(store), OneNamespace("not one")).ask(Ask("inspect", "a")).status == 400


def test_a_file_is_opened_by_its_url_and_two_transports_share_it(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'dibs.db'}"
    first = connect(url, namespace=None, token=None, timeout_ms=1000)
    second = connect(url, namespace=None, token=None, timeout_ms=1000)
    granted = first.ask(Ask("acquire", "a", {"owner": "x"})).body
    held = second.ask(Ask("acquire", "a", {"owner": "y"})).body
    assert granted is not None
    assert held is not None
    assert (granted["status"], held["status"], held["owner"]) == ("acquired", "held", "x")
    first.close()
    first.close()
    second.close()


def test_an_unknown_store_is_reported_with_what_a_server_looks_like() -> None:
    reply = connect("nonsense", namespace=None, token=None, timeout_ms=1000).ask(Ask("inspect", "a"))
    assert reply.status == 400
    assert reply.body is not None
    assert "http://HOST:PORT" in reply.body["details"]
