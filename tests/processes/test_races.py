"""Forty processes want one job, at the same moment. One gets it, every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_token
from dibs.client.transport import Ask
from dibs.stores.registry import open_store
from tests.build import tries
from tests.models.history import all_events, broken_promises
from tests.processes.racing import Place, Racers, only_winner
from tests.programs import ServerProcess, wait_until
from tests.transports import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dibs.client.transport import Transport
    from dibs.core.events import Event

pytestmark = [pytest.mark.e2e, pytest.mark.full]

RACERS = 40
ROUNDS = tries(8, 40)
SHORTEST_TTL_S = 1


@pytest.fixture(scope="module")
def racers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racers]:
    with Racers(RACERS, tmp_path_factory.mktemp("racers") / "log") as racers:
        yield racers


class Ground:
    """A store, how to reach it, and what happened on it."""

    def __init__(self, place: Place, store_url: str) -> None:
        self.place = place
        self._store_url = store_url

    def transport(self) -> Transport:
        return connect(self.place.url, namespace=None, token=self.place.token, timeout_ms=10_000)

    def events(self) -> list[Event]:
        store = open_store(self._store_url)
        try:
            return all_events(store)
        finally:
            store.close()


@pytest.fixture(params=["one SQLite file", "one server", "PostgreSQL", pytest.param("etcd", marks=pytest.mark.slow)])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    if request.param == "PostgreSQL":
        schema = request.getfixturevalue("postgres_schema")()
        yield Ground(Place(schema.url), schema.url)
        return
    if request.param == "etcd":
        url = request.getfixturevalue("etcd_cluster").url(f"race/{new_token()}")
        yield Ground(Place(url), url)
        return
    url = f"sqlite://{tmp_path}/race.db"
    if request.param == "one SQLite file":
        yield Ground(Place(url), url)
    else:
        with ServerProcess(tmp_path, store=url) as server:
            yield Ground(Place(server.url, server.token), url)


def leave_behind(ground: Ground, names: list[str], log: Path) -> list[int]:
    """A process claims all of `names` for the shortest time there is, and is killed. The tokens it had."""
    with Racers(1, log) as victim:
        answers = []
        for name in names:
            answers += victim.race(ground.place, name, owner="victim", ttl_seconds=SHORTEST_TTL_S)
        victim.processes[0].kill()
    assert {answer.status for answer in answers} == {"acquired"}
    return [answer.token for answer in answers]


@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
@pytest.mark.promise("same-answer")
def test_of_forty_processes_that_race_for_a_free_name_one_wins_every_round(racers: Racers, ground: Ground) -> None:
    transport = ground.transport()
    tokens: list[int] = []
    winners: set[int] = set()
    for _ in range(ROUNDS):
        winner = only_winner(racers.race(ground.place, "one-name", ttl_seconds=600))
        assert winner.owner == f"racer-{winner.racer}"
        tokens.append(winner.token)
        winners.add(winner.racer)
        assert transport.ask(Ask("release", "one-name", {"lease_id": winner.body["lease_id"]})).status == 200
    transport.close()
    assert tokens == sorted(set(tokens))
    assert len(winners) > 1, "a race that always the same one wins is no race"
    events = ground.events()
    assert broken_promises(events) == []
    assert [event.token for event in events if event.kind == "acquired"] == tokens


@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
@pytest.mark.promise("lease:never-early")
@pytest.mark.promise("same-answer")
def test_of_forty_processes_that_race_for_an_expired_name_one_wins_every_round(
    racers: Racers, ground: Ground, tmp_path: Path
) -> None:
    names = [f"left-{number:03}" for number in range(ROUNDS)]
    left = leave_behind(ground, names, tmp_path / "victim.log")
    transport = ground.transport()
    wait_until(
        lambda: (transport.ask(Ask("list", "left-", {"limit": ROUNDS})).body or {})["total"] == 0,
        "all of them are over",
    )
    transport.close()
    for name, token in zip(names, left, strict=True):
        winner = only_winner(racers.race(ground.place, name, ttl_seconds=600))
        assert winner.token > token
        assert winner.body["attempt"] == 2
        assert winner.body["previous"]["how"] == "expired"
        assert winner.body["previous"]["owner"] == "victim"
    events = ground.events()
    assert broken_promises(events) == []
    assert [event.kind for event in events].count("acquired") == 2 * ROUNDS


@pytest.mark.promise("excl")
@pytest.mark.promise("lease:never-early")
def test_forty_processes_that_ask_all_the_while_get_nothing_before_the_time_is_over(
    racers: Racers, ground: Ground, tmp_path: Path
) -> None:
    (token,) = leave_behind(ground, ["wanted"], tmp_path / "victim.log")
    winner = only_winner(racers.race(ground.place, "wanted", while_owner="victim", ttl_seconds=600))
    assert winner.token > token
    events = [event for event in ground.events() if event.job == "wanted"]
    assert broken_promises(events) == []
    assert [event.kind for event in events] == ["acquired", "expired", "acquired"]
    assert events[2].at_ms - events[0].at_ms >= SHORTEST_TTL_S * 1000
