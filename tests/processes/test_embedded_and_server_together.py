"""A server and commands without one, on the same file at the same time: one set of jobs, one history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.client.transport import Ask
from dibs.stores.registry import open_store
from tests.models.history import all_events, broken_promises
from tests.processes.racing import Place, Racers, only_winner
from tests.programs import Ran, ServerProcess, clean_env, dibs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.e2e, pytest.mark.full]

RACERS = 8
ROUNDS = 40
LATE_MS = (0, 0, 1, 3, 8)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """On the store that commands without a server use as well."""
    with ServerProcess(tmp_path) as server:
        yield server


class Both:
    """The same user, once with DIBS_URL and once without."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def served(self, *words: str) -> Ran:
        return dibs(clean_env(self._server.folder, DIBS_URL=self._server.url), *words, "--json")

    def embedded(self, *words: str) -> Ran:
        return dibs(clean_env(self._server.folder), *words, "--json")


@pytest.fixture
def both(server: ServerProcess) -> Both:
    return Both(server)


def told_by(refused: Ran) -> dict[str, Any]:
    assert refused.exit == 1, refused
    details: dict[str, Any] = refused.error["details"]
    return details


@pytest.mark.promise("excl")
@pytest.mark.promise("same-answer")
def test_what_one_claims_the_other_is_refused_at_once(both: Both) -> None:
    for number in range(5):  # the server's memory of a job is out of date every time
        claimed = both.embedded("claim", "job", "--owner", "embedded").data
        told = told_by(both.served("claim", "job", "--owner", "served"))
        assert (told["owner"], told["fencing_token"]) == ("embedded", claimed["fencing_token"])
        assert both.embedded("release", "job", "--lease", claimed["lease_id"]).exit == 0

        claimed = both.served("claim", "job", "--owner", "served").data
        assert claimed["fencing_token"] == 2 * number + 2
        told = told_by(both.embedded("claim", "job", "--owner", "embedded"))
        assert (told["owner"], told["fencing_token"]) == ("served", claimed["fencing_token"])
        assert both.served("release", "job", "--lease", claimed["lease_id"]).exit == 0


@pytest.mark.promise("same-answer")
@pytest.mark.promise("audit")
def test_both_see_the_same_jobs_the_same_progress_and_the_same_history(both: Both) -> None:
    mine = both.embedded("claim", "a", "--owner", "embedded", "--metadata", "m").data
    yours = both.served("claim", "b", "--owner", "served", "--ttl", "5m").data
    assert both.embedded("heartbeat", "a", "--lease", mine["lease_id"], "--checkpoint", "half").exit == 0
    assert both.served("heartbeat", "b", "--lease", yours["lease_id"], "--checkpoint", "all").exit == 0

    moving = {"held_ms", "silent_ms", "remaining_ms", "retry_after_ms"}

    def still(job: dict[str, Any]) -> dict[str, Any]:
        return {field: value for field, value in job.items() if field not in moving}

    for words in (("owner", "a"), ("owner", "b")):
        assert still(both.embedded(*words).data) == still(both.served(*words).data)
    lists = [[still(job) for job in ask("list").data["locks"]] for ask in (both.embedded, both.served)]
    assert lists[0] == lists[1]
    assert [(job["name"], job["checkpoint"]) for job in lists[0]] == [("a", "half"), ("b", "all")]

    assert both.served("release", "b", "--lease", yours["lease_id"], "--done=1h").exit == 0
    assert both.embedded("claim", "b").exit == 4
    for name, kinds in (("a", ["acquired", "progress"]), ("b", ["acquired", "progress", "released"])):
        history = both.embedded("history", name).data
        assert history == both.served("history", name).data
        assert [event["event"] for event in history["events"]] == kinds


@pytest.mark.promise("lease:never-early")
def test_the_server_notes_when_a_claim_made_without_it_runs_out(both: Both, server: ServerProcess) -> None:
    assert both.embedded("claim", "short", "--owner", "embedded", "--ttl", "1s").exit == 0
    transport = server.transport()

    def kinds() -> list[str]:
        return [
            event["event"] for event in (transport.ask(Ask("history", "short", {"limit": 10})).body or {})["events"]
        ]

    wait_until(lambda: kinds() == ["acquired", "expired"], "the server notes the end")
    successor = both.embedded("claim", "short", "--owner", "next").data
    assert (successor["attempt"], successor["previous"]["how"]) == (2, "expired")


@pytest.mark.promise("excl")
@pytest.mark.promise("token:rises")
def test_of_racers_with_and_without_a_server_one_wins_every_round(server: ServerProcess, tmp_path: Path) -> None:
    places = (Place(server.store_url), Place(server.url, server.token))
    transport = server.transport()
    winners, tokens = set(), []
    with Racers(RACERS, tmp_path / "racers.log") as racers:
        for number in range(ROUNDS):
            late = LATE_MS[number % len(LATE_MS)]
            # The way through a server is the longer one: those without it start late, mostly.
            answers = racers.race(
                lambda racer: places[racer % 2],
                f"job-{number % 4}",
                late_ms=lambda racer, late=late: 0 if racer % 2 else late,  # type: ignore[misc]
                ttl_seconds=60,
            )
            winner = only_winner(answers)
            winners.add(winner.racer % 2)
            tokens.append(winner.token)
            # Whoever won lets go the way it came.
            lease = {"lease_id": winner.body["lease_id"]}
            if winner.racer % 2:
                assert transport.ask(Ask("release", f"job-{number % 4}", lease)).status == 200
            else:
                freed = dibs(
                    clean_env(tmp_path),
                    *("release", f"job-{number % 4}", "--lease", lease["lease_id"]),
                )
                assert freed.exit == 0, freed
    assert winners == {0, 1}, "one side never won: this was no race"
    assert tokens == [number // 4 + 1 for number in range(ROUNDS)]
    store = open_store(server.store_url)
    events = all_events(store)
    store.close()
    assert broken_promises(events) == []
    assert [event.kind for event in events if event.job].count("acquired") == ROUNDS


@pytest.mark.promise("proof")
def test_a_lease_can_be_kept_and_released_on_the_other_side(both: Both) -> None:
    claimed = both.embedded("claim", "here-first")
    lease = claimed.data["lease_id"]
    assert both.served("heartbeat", "here-first", "--lease", lease, "--checkpoint", "half").exit == 0
    assert both.served("release", "here-first", "--lease", lease).exit == 0
    claimed = both.served("claim", "there-first")
    assert both.embedded("release", "there-first", "--lease", claimed.data["lease_id"]).exit == 0
    assert both.served("owner", "there-first").exit == 1
