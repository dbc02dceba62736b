"""A store is moved while webhooks wait and followers are away: each goes on where it was, or is told of a gap."""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.base.ids import new_id
from dibs.core.caller_rights import LOCAL
from dibs.core.events import Event
from dibs.core.limits import METADATA_CHARS_MAX
from dibs.engine.archive import export
from dibs.engine.archive_import import import_archive
from dibs.engine.event_log import EventFilter, read_page
from dibs.engine.webhooks import WebhookAdmin
from dibs.engine.webhooks.dispatcher import WebhookDispatcher
from dibs.engine.webhooks.sender import DeliveryResult, Sender
from dibs.stores.registry import open_store
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dibs.stores.port import Store
    from tests.etcd import Cluster
    from tests.postgres import Schema

NS = "default"
MOVES = ["sqlite sqlite", "sqlite postgresql", "sqlite etcd", "etcd sqlite", "etcd etcd"]


class Target(Sender):
    """Takes deliveries, and refuses those about jobs in `refused`."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.refused = refused
        self.told: list[int] = []  # the tokens of events, which are different here
        self.gaps: list[dict[str, Any]] = []
        self.tried: set[str] = set()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        document = json.loads(body)
        if document["event"] == "gap":
            self.gaps.append(document)
        elif document["lock"] in self.refused:
            self.tried.add(document["lock"])
            return DeliveryResult(status=500, error="answered 500")
        else:
            self.told.append(document["fencing_token"])
        return DeliveryResult(status=200)

    def close(self) -> None:
        pass


def deliver(store: Store, target: Target, until: Callable[[], bool]) -> None:
    """Let a server deliver, and end."""
    server = WebhookDispatcher(store, lambda: target)
    server.changed()
    end = time.monotonic() + WAIT_S_MAX
    while not until() and time.monotonic() < end:
        time.sleep(0.005)
    server.stop()
    assert until(), (len(target.told), target.gaps)


def told(token: int) -> Event:
    return Event(at_ms=wall_ms(), kind="acquired", ns=NS, owner="w", token=token)


def tell(store: Store, tokens: range, jobs: int = 10) -> None:
    """Events in commits of several sizes."""
    events = [told(token).replace(job=f"job-{token % jobs}") for token in tokens]
    while events:
        size = 1 + events[0].token % 7
        store.commit({}, {}, events[:size])
        events = events[size:]


def text_of(store: Store) -> io.BytesIO:
    lines: list[str] = []
    export(store, lines.append, freeze=True)
    return io.BytesIO("".join(lines).encode())


@pytest.fixture(params=MOVES)
def stores(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres_schema: Callable[[], Schema],
    etcd_cluster: Cluster,
) -> Iterator[tuple[Store, Store]]:
    urls = {
        "sqlite": lambda number: f"sqlite:{tmp_path}/{number}.db",
        "postgresql": lambda number: postgres_schema().url,
        "etcd": lambda number: etcd_cluster.url(new_id()),
    }
    first, second = [open_store(urls[name](number)) for number, name in enumerate(str(request.param).split())]
    yield first, second
    first.close()
    second.close()


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-073")
def test_what_a_webhook_was_not_sent_before_the_move_is_sent_after_it_and_nothing_twice(
    stores: tuple[Store, Store],
) -> None:
    old, new = stores
    tell(old, range(1, 101))
    old.prune(keep=40, before_ms=0)
    WebhookAdmin(old, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
    tell(old, range(101, 151))
    before = Target(refused=frozenset(f"job-{number}" for number in range(5)))
    deliver(old, before, lambda: len(before.told) == 25 and before.tried == before.refused)
    tell(old, range(151, 201))  # not looked at by any server
    import_archive(new, text_of(old))
    after = Target()
    deliver(new, after, lambda: len(after.told) == 75 and bool(after.gaps))
    assert sorted(before.told + after.told) == list(range(101, 201))
    assert [gap["oldest"] for gap in after.gaps] == [after.gaps[0]["id"] + 1]
    for job in range(10):
        assert [token for token in after.told if token % 10 == job] == sorted(
            token for token in after.told if token % 10 == job
        )


@pytest.mark.promise("webhook:gap")
@pytest.mark.fault("F-073")
def test_what_was_pruned_before_it_was_sent_is_reported_as_a_gap_after_the_move(
    stores: tuple[Store, Store],
) -> None:
    old, new = stores
    tell(old, range(1, 11))
    WebhookAdmin(old, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
    tell(old, range(11, 111))
    old.prune(keep=40, before_ms=0)
    import_archive(new, text_of(old))
    target = Target()
    deliver(new, target, lambda: len(target.told) == 40 and bool(target.gaps))
    assert sorted(target.told) == list(range(71, 111))


@pytest.mark.promise("events:told")
@pytest.mark.fault("F-073")
@pytest.mark.parametrize("job", [None, "job-3"])
@pytest.mark.parametrize("own", [0, 7])
def test_a_follower_gets_what_follows_its_position_or_is_told_of_a_gap(
    stores: tuple[Store, Store], job: str | None, own: int
) -> None:
    old, new = stores
    tell(old, range(1, 61))
    old.prune(keep=30, before_ms=0)
    positions = {event.seq: event.token for event in old.events(0, 100)}
    tell(new, range(1_000, 1_000 + own))
    import_archive(new, text_of(old))
    last = new.newest_seq()
    wanted = None if job is None else EventFilter(ns=NS, name=job)
    gaps = 0
    for at, token in [(min(positions) - 20, 0), *positions.items()]:
        page = read_page(new, at, 1_000, wanted)
        told = [event.token for event in page.events if event.token and event.token < 1_000]
        jobs = [each for each in range(token + 1, 61) if job is None or f"job-{each % 10}" == job]
        if page.oldest is None:
            assert told == jobs, at
        else:
            gaps += 1
            assert page.oldest > at + 1
        assert last >= at  # it never looks as if it were ahead
    kept = old.capabilities.gapless and new.capabilities.gapless and own < 30
    # Whoever has read all is told that the other store may have gone on. Of this job the last is eight before the end.
    assert gaps == ((2 if job is None else 9) if kept else 31)


@pytest.mark.promise("events:told")
@pytest.mark.fault("F-073")
def test_numbers_go_on_after_the_move_of_a_store_whose_history_is_all_pruned(
    stores: tuple[Store, Store],
) -> None:
    old, new = stores
    tell(old, range(1, 31))
    WebhookAdmin(old, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
    tell(old, range(31, 41))
    position = old.newest_seq()
    old.prune(keep=0, before_ms=0)
    import_archive(new, text_of(old))
    tell(new, range(41, 51))
    assert read_page(new, position - 1, 100).oldest is not None
    page = read_page(new, position, 100)
    assert page.oldest is not None or [event.token for event in page.events if event.job] == list(range(41, 51))
    target = Target()
    deliver(new, target, lambda: len(target.told) == 10 and bool(target.gaps))


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.fault("F-137")
def test_a_webhook_goes_on_at_the_right_event_however_many_bytes_the_texts_of_events_have(
    stores: tuple[Store, Store],
) -> None:
    old, new = stores
    WebhookAdmin(old, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
    long = "\U0001f600" * METADATA_CHARS_MAX
    for first in range(1, 241, 20):
        tokens = range(first, first + 20)
        old.commit({}, {}, [told(token).replace(job=f"job-{token}", metadata=long) for token in tokens])
    before = Target(refused=frozenset(["job-7", "job-100"]))
    deliver(old, before, lambda: len(before.told) == 238)
    import_archive(new, text_of(old))
    after = Target()
    deliver(new, after, lambda: len(after.told) >= 2 and bool(after.gaps))
    assert sorted(after.told) == [7, 100]
