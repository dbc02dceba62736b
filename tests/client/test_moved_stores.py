"""A client of several servers whose store is moved: it goes on at the new one, not back, and follows no copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.client.servers import remembered
from tests.client.test_servers import GRANTED, A, B, Network, details, raw, refused, servers

if TYPE_CHECKING:
    from pathlib import Path

    from dibs.client.servers import Servers

pytestmark = pytest.mark.promise("move:live")

NOW_MS = 1_000_000  # as the script of the network begins
FROZEN = {"error": "x", "code": "upstream_unavailable", "details": "The store is frozen"}
MISDIRECTED = {"error": "x", "code": "invalid_input", "details": "x"}


def says(name: str, *before: str) -> dict[str, str]:
    return {"x-dibs-store": name} | ({"x-dibs-moved-from": ",".join(before)} if before else {})


def told(several: Servers, at: int, name: str, *before: str, status: int = 200) -> bool:
    return several.heard(several.addresses[at], status, says(name, *before), NOW_MS)


@pytest.mark.fault("F-405")
def test_a_client_that_is_told_frozen_goes_on_at_the_new_store_and_names_it_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several = servers()
    old = [lambda: raw(200, GRANTED, **says("one")), lambda: raw(503, FROZEN, **says("one"))]
    new = raw(200, GRANTED, **says("two", "one"))
    network = Network(monkeypatch, a=old, b=[lambda: new, lambda: new])
    assert [network.ask(several).status for _ in range(3)] == [200, 200, 200]
    assert network.asked == "aabb"
    names = [b"X-Dibs-Store: two" in attempt.request for attempt in network.attempts]
    assert names == [False, False, False, True]


@pytest.mark.fault("F-405")
def test_a_server_of_the_old_store_is_passed_over_by_who_knows_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    several = servers()
    told(several, 1, "two", "one")
    misdirected = raw(421, MISDIRECTED, **says("one"))
    network = Network(monkeypatch, a=[lambda: misdirected], b=[lambda: raw(200, GRANTED, **says("two", "one"))])
    assert network.ask(several).status == 200
    assert network.asked == "ab"


def test_while_only_the_old_one_answers_it_is_not_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """So who waits goes on waiting."""
    several = servers()
    told(several, 1, "two", "one")
    network = Network(monkeypatch, a=[lambda: raw(421, MISDIRECTED, **says("one"))], b=[refused], c=[refused])
    reply = network.ask(several)
    assert (reply.status, (reply.body or {})["code"]) == (503, "upstream_unavailable")
    assert details(reply).startswith(f"{A} serves a store that was moved")
    assert network.asked == "abc"


@pytest.mark.parametrize("verb", ["acl", "break"])
def test_what_may_not_happen_twice_goes_on_at_the_new_one(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    several = servers()
    told(several, 1, "two", "one")
    no = raw(403, {"error": "x", "code": "forbidden", "details": "x"}, **says("two", "one"))
    network = Network(monkeypatch, a=[lambda: raw(421, MISDIRECTED, **says("one"))], b=[lambda: no])
    assert network.ask(several, verb, {}).status == 403


def test_a_chain_of_moves_is_followed_in_one_step() -> None:
    several = servers()
    told(several, 0, "one")
    told(several, 1, "three", "two", "one")
    assert several.store_id(NOW_MS) == "three"
    assert told(several, 2, "two", "one", status=421) is False


def test_an_answer_that_the_old_store_gave_before_it_was_frozen_is_an_answer() -> None:
    """It came late; what it says was moved, too."""
    several = servers()
    told(several, 1, "two", "one")
    assert told(several, 0, "one")
    assert several.store_id(NOW_MS) == "two"


@pytest.mark.promise("servers:one-store")
@pytest.mark.parametrize(
    ("known", "other"),
    [
        (("one",), ("copy",)),
        (("two", "one"), ("copy", "one")),
        (("thawed", "one"), ("two", "one")),
        (("two", "one"), ("thawed", "one")),
    ],
    ids=["a copy of a store that lives", "a second import", "the copy of one that was thawed", "one that was thawed"],
)
def test_a_store_that_does_not_go_on_from_the_known_one_is_not_followed(
    known: tuple[str, ...], other: tuple[str, ...]
) -> None:
    several = servers()
    told(several, 0, *known)
    for status in (200, 421):
        with pytest.raises(InvalidInput, match=f"{B} serves another store than {A}"):
            told(several, 1, *other, status=status)
    assert several.store_id(NOW_MS) == known[0]


def test_a_server_that_cannot_answer_is_neither_followed_nor_refused() -> None:
    """Its store may be frozen, because an import into it is not complete: it does not know yet what it goes on from."""
    several = servers()
    told(several, 0, "one")
    assert told(several, 1, "new", status=503)
    assert several.store_id(NOW_MS) == "one"


def test_the_next_process_knows_the_names_before(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    addresses = servers().addresses
    first = remembered(addresses, env)
    first.heard(addresses[1], 200, says("two", "one", "zero"), steady_ms())
    second = remembered(addresses, env)
    assert (second.store or ("",))[0] == "two"
    assert second.moved_from == ("one", "zero")
