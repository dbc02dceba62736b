"""Moving a store: what an archive keeps, what it notices, and that half of one is never used."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.core.caller_rights import LOCAL
from dibs.core.commands import (
    Acquire,
    Freeze,
    Inspect,
    InspectSession,
    OpenSession,
    Release,
    Renew,
    SetAcl,
    Thaw,
)
from dibs.core.events import IMPORTED, OUTAGE
from dibs.core.lease_outcomes import Frozen, Renewed
from dibs.core.outcomes import AlreadyDone, Granted, Queued, Status
from dibs.core.records import META_KEY, Meta, lock_key
from dibs.core.service.credentials import CreateToken
from dibs.core.session_outcomes import SessionState
from dibs.engine.archive import export
from dibs.engine.archive_import import import_archive
from dibs.engine.coordinator import Coordinator
from dibs.engine.credentials import CredentialDirectory, credentials
from dibs.engine.webhooks import WebhookAdmin
from dibs.engine.webhooks.dispatcher import WebhookLedger
from dibs.stores.codec import encode
from dibs.stores.memory import MemoryStore
from dibs.stores.port import CommitTooLarge, StoreProxy
from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock
from tests.dying import Dying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.core.records import Stored
    from dibs.stores.port import Store

NS = "default"


def acquire(name: str, **changes: Any) -> Acquire:
    made = Acquire(ns=NS, name=name, principal="team", owner="a1", ttl_ms=60_000, fresh_lease_id=f"lease-{name}")
    return made.replace(**changes)


def ask(store: Store, command: Any) -> Outcome:
    return Coordinator(store).one(command)


def text_of(store: Store, *, freeze: bool = True) -> str:
    out = io.StringIO()
    export(store, out.write, freeze=freeze)
    return out.getvalue()


def file_of(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode("ascii"))


def remade(text: str, change: Callable[[list[dict[str, Any]]], object]) -> str:
    """The archive with its lines changed, and a checksum that fits them."""
    from hashlib import sha256

    lines = [json.loads(line) for line in text.splitlines()][:-1]
    change(lines)
    body = "".join(json.dumps(line) + "\n" for line in lines)
    records, events = (sum(kind in line for line in lines) for kind in ("record", "event"))
    end = {"records": records, "events": events, "checksum": sha256(body.encode()).hexdigest()}
    return body + json.dumps({"end": end}) + "\n"


@pytest.fixture
def source() -> MemoryStore:
    """A store with something of everything."""
    clock = ManualClock(wall_ms=1_800_000_000_000)
    store = MemoryStore(clock)
    ask(store, OpenSession(fresh_id="s1", principal="team", owner="a1", ttl_ms=60_000, ns=NS))
    ask(store, acquire("in-session", session="s1", ttl_ms=0))
    ask(store, acquire("held", request_key="key-1", metadata="näme\x07"))
    ask(store, acquire("held", owner="a2", wait=True, fresh_lease_id="ticket-1"))
    ask(store, acquire("path:src/a.py"))
    ask(store, acquire("finished"))
    ask(store, Release(ns=NS, name="finished", principal="team", lease_id="lease-finished", done_ms=3_600_000))
    ask(store, acquire("fails", max_attempts=1))
    ask(store, Release(ns=NS, name="fails", principal="team", lease_id="lease-fails", failed=True))
    ask(store, SetAcl(ns=NS, name="listed", principal="team", acl=("agent-7",), admin=True))
    clock.advance(10_000)
    return store


@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore(ManualClock(wall_ms=1_700_000_000_000))


@pytest.fixture(params=["memory", "sqlite"])
def any_target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Store]:
    clock = ManualClock(wall_ms=1_700_000_000_000)
    if request.param == "memory":
        yield MemoryStore(clock)
        return
    store = SqliteStore(
        str(tmp_path / "dibs.db"), steady_ms=clock.steady_ms, wall_ms=clock.wall_ms, boot_id=clock.boot_id
    )
    yield store
    store.close()


def kinds_of(store: Store) -> list[str]:
    """What happened to jobs and sessions, in order."""
    return [event.kind for event in store.events(0, 100) if event.kind not in (OUTAGE, IMPORTED)]


def clock_of(store: MemoryStore) -> ManualClock:
    clock = store._clock
    assert isinstance(clock, ManualClock)
    return clock


@pytest.mark.promise("move:whole")
def test_what_was_held_waited_for_done_and_noted_is_the_same_in_the_other_store(
    source: MemoryStore, any_target: Store
) -> None:
    done = import_archive(any_target, file_of(text_of(source)))
    assert done.events == len(source.events(0, 100))
    status = ask(any_target, Inspect(ns=NS, name="held"))
    assert isinstance(status, Status)
    (holder,) = status.lock.holders
    assert (holder.owner, holder.token, holder.request_key) == ("a1", 1, "key-1")
    assert holder.metadata == "näme\x07"
    assert isinstance(ask(any_target, Renew(ns=NS, name="held", principal="team", lease_id="lease-held")), Renewed)
    again = ask(
        any_target,
        acquire("held", owner="a2", wait=True, ticket=1, ticket_id="ticket-1", fresh_lease_id="f2"),
    )
    assert isinstance(again, Queued)
    assert again.position == 1
    session = ask(any_target, InspectSession(session="s1", principal="team"))
    assert isinstance(session, SessionState)
    assert isinstance(ask(any_target, acquire("finished", fresh_lease_id="f3")), AlreadyDone)
    assert kinds_of(any_target) == kinds_of(source)
    for name in ("fails", "listed", "path:src/a.py"):
        mine, theirs = (ask(store, Inspect(ns=NS, name=name)) for store in (source, any_target))
        assert isinstance(mine, Status)
        assert isinstance(theirs, Status)
        for field in ("token", "parked", "failures", "acl"):
            assert getattr(theirs.lock, field) == getattr(mine.lock, field), (name, field)


def test_a_lease_has_its_chance_after_the_move_and_not_more(source: MemoryStore, target: MemoryStore) -> None:
    text = text_of(source)
    clock_of(source).advance(10**9)  # the file lies about for as long as it likes
    import_archive(target, file_of(text))
    clock_of(target).advance(50_000 - 1)
    held = ask(target, Inspect(ns=NS, name="held"))
    assert isinstance(held, Status)
    assert held.lock.holders
    clock_of(target).advance(60_000)
    late = ask(target, acquire("held", owner="a3", fresh_lease_id="other", ticket=1, ticket_id="ticket-1"))
    assert isinstance(late, Granted)


def test_the_same_archive_comes_out_again(source: MemoryStore, target: MemoryStore) -> None:
    first = text_of(source)
    import_archive(target, file_of(first))
    keys = [
        [line["key"] for line in map(json.loads, text.splitlines()) if "key" in line and line["key"] != META_KEY]
        for text in (first, text_of(target))
    ]
    assert keys[0] == keys[1]


@pytest.mark.promise("token:rises")
def test_tokens_rise_from_a_source_that_went_on_after_the_copy(source: MemoryStore, target: MemoryStore) -> None:
    text = text_of(source, freeze=False)
    assert isinstance(granted := ask(source, acquire("new")), Granted)
    import_archive(target, file_of(text))
    there = ask(target, acquire("new"))
    assert isinstance(there, Granted)
    assert there.lease.token > max(granted.lease.token, 1_700_000_000_000)


@pytest.mark.promise("token:rises")
@pytest.mark.fault("F-070")
def test_tokens_rise_if_the_copy_of_a_frozen_store_is_imported_a_second_time(source: MemoryStore) -> None:
    text, given = text_of(source), list[int]()
    assert isinstance(ask(source, acquire("new")), Frozen)
    for day in range(2):  # the first new store is lost, and the copy is used again
        target = MemoryStore(ManualClock(wall_ms=1_700_000_000_000))
        import_archive(target, file_of(text), wall_ms=partial(int, 1_800_000_100_000 + day * 86_400_000))
        for number in range(5):
            granted = ask(target, acquire("new", fresh_lease_id=f"lease-{number}"))
            assert isinstance(granted, Granted)
            given.append(granted.lease.token)
            ask(target, Release(ns=NS, name="new", principal="team", lease_id=f"lease-{number}"))
    assert given == sorted(set(given))


@pytest.mark.promise("auth:revoked")
@pytest.mark.fault("F-071")
def test_tokens_end_when_they_were_to_end_however_late_a_copy_is_imported() -> None:
    day_ms = 86_400_000
    clock = ManualClock(wall_ms=1_800_000_000_000)
    source = MemoryStore(clock)
    for name, life_ms in (("short", 30 * day_ms), ("long", 200 * day_ms), ("endless", 0)):
        ask(source, CreateToken(digest=name * 12, name=name, by="root", life_ms=life_ms))
    text = text_of(source)
    clock.advance(100 * day_ms)
    target = MemoryStore(ManualClock(wall_ms=clock.wall_ms()))
    import_archive(target, file_of(text))
    now_ms = target.read(()).now_ms
    assert {each.name for each in credentials(target) if not each.is_over(now_ms)} == {"long", "endless"}
    assert credentials(target) == credentials(source)


@pytest.mark.fault("F-072")
@pytest.mark.parametrize("adds", [False, True])
def test_a_store_with_webhooks_and_tokens_of_its_own_gets_those_of_the_file_as_well(
    source: MemoryStore, target: MemoryStore, adds: bool
) -> None:
    hook = {"url": "https://hook.test/"}
    for store, ns in ((source, NS), (target, "theirs")):
        WebhookAdmin(store, LOCAL, ns).ask("webhook-create", "", hook)
        ask(store, CreateToken(digest=ns.encode().hex(), name=ns, by="root"))
    directory = CredentialDirectory(target)
    directory.look()
    import_archive(target, file_of(text_of(source)), adds=adds)
    for shown in (WebhookAdmin(target, LOCAL, NS).mine(), WebhookLedger(target, "server").webhooks()):
        assert len(shown) == 2
    directory.look()
    assert {each.name for each in credentials(target)} == {NS, "theirs"}
    assert directory.principals() == {NS, "theirs"}


@pytest.mark.fault("F-072")
def test_more_webhooks_than_a_store_may_have_are_refused_before_it_is_touched(
    source: MemoryStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.engine.archive_import.WEBHOOKS_MAX", 2)
    for store, count in ((source, 2), (target, 1)):
        for _ in range(count):
            WebhookAdmin(store, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
    text = text_of(source)
    with pytest.raises(InvalidInput, match="3 webhooks"):
        import_archive(target, file_of(text))
    assert isinstance(ask(target, acquire("mine")), Granted)


@pytest.mark.promise("webhook:gap")
@pytest.mark.fault("F-073")
def test_a_webhook_that_is_added_begins_at_the_end_and_reports_what_it_is_not_sent(
    source: MemoryStore, target: MemoryStore
) -> None:
    WebhookAdmin(source, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
    for number in range(20):
        ask(source, acquire(f"more-{number}"))
        ask(target, acquire(f"mine-{number}", ns="theirs"))
    import_archive(target, file_of(text_of(source)), adds=True)
    ((_, progress, _),) = WebhookLedger(target, "server").webhooks()
    assert progress.at == target.newest_seq() - 2  # before the import, and the outage that it was
    assert [(lane.job, lane.last) for lane in progress.lanes] == [("", progress.at)]


class Small(StoreProxy):
    """Takes few bytes in one commit, as etcd does."""

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        texts = [encode(record) for record in (*puts.values(), *events) if record is not None]
        if sum(len(text.encode()) for text in texts) > 20_000:
            raise CommitTooLarge("too large")
        return self.inner.commit(expect, puts, events)


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-079")
def test_an_import_goes_in_smaller_parts_into_a_store_that_takes_less_at_once(target: MemoryStore) -> None:
    source = MemoryStore(ManualClock())
    for number in range(100):
        ask(source, acquire(f"job-{number}", metadata="\N{PARROT}" * 1_000))
    done = import_archive(Small(target), file_of(text_of(source)))
    assert (done.records, done.events) == (100, 100)
    told = [event.job for event in source.events(0, 200)]
    assert [event.job for event in target.events(0, 200)] == [*told, "", ""]


def test_a_frozen_source_can_be_used_again_after_it_was_thawed(source: MemoryStore) -> None:
    text_of(source)
    ask(source, Thaw(id=None))
    assert isinstance(ask(source, acquire("new")), Granted)


@pytest.mark.promise("move:whole")
def test_a_file_that_was_cut_off_anywhere_changes_nothing(source: MemoryStore, target: MemoryStore) -> None:
    text = text_of(source)
    for end in (0, 1, len(text) // 3, len(text) // 2, len(text) - 2, text.rindex("\n", 0, -1) + 1):
        with pytest.raises(InvalidInput, match=r"cut off|not JSON|input is empty"):
            import_archive(target, file_of(text[:end]))
    assert not target.scan("")


def test_a_file_that_was_changed_is_refused(source: MemoryStore, target: MemoryStore) -> None:
    text = text_of(source)
    with pytest.raises(InvalidInput, match="changed or damaged"):
        import_archive(target, file_of(text.replace('"a1"', '"b1"', 1)))
    with pytest.raises(InvalidInput, match="continues after its end"):
        import_archive(target, file_of(text + text))
    with pytest.raises(InvalidInput, match="newer dibs"):
        import_archive(target, file_of(text.replace('"dibs_archive":10', '"dibs_archive":11', 1)))
    with pytest.raises(InvalidInput, match="not made by dibs export"):
        import_archive(target, file_of('{"hello": 1}\n'))
    assert not target.scan("")


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line["record"].update(token="1"),
        lambda line: line["record"].update(token=2**70),
        lambda line: line["record"].update(token=True),
        lambda line: line["record"].update(holders=[{"owner": "x"}]),
        lambda line: line["record"].update(holders="abc"),
        lambda line: line["record"].update(name="other"),
        lambda line: line["record"].update(ns="a/b"),
        lambda line: line.update(key="lock/default/x\n"),
        lambda line: line.update(key="nothing/known"),
        lambda line: line.update(key=7),
        lambda line: line.update(record=[]),
        lambda line: line["record"].update(line=["1"]),
        lambda line: line["record"].update(acl=["\ud800"]),
        lambda line: line.pop("record"),
    ],
)
def test_a_record_that_dibs_cannot_have_written_is_refused(
    source: MemoryStore, target: MemoryStore, change: Callable[[dict[str, Any]], object]
) -> None:
    def one(lines: list[dict[str, Any]]) -> None:
        change(next(line for line in lines if line.get("key") == lock_key(NS, "held")))

    with pytest.raises(InvalidInput, match=r"Line \d+ of the file|changed or damaged"):
        import_archive(target, file_of(remade(text_of(source), one)))
    assert not target.scan("")


def test_a_file_with_one_key_twice_is_refused(source: MemoryStore, target: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="its key does not come after the one before it"):
        import_archive(target, file_of(remade(text_of(source), lambda lines: lines.insert(2, lines[1]))))
    assert not target.scan("")


def test_a_store_that_is_not_empty_is_left_alone(source: MemoryStore, target: MemoryStore) -> None:
    ask(target, acquire("mine", ns="theirs"))
    before = target.scan("lock/")
    with pytest.raises(InvalidInput, match="not empty"):
        import_archive(target, file_of(text_of(source)))
    assert target.scan("lock/") == before
    assert isinstance(ask(target, acquire("more", ns="theirs")), Granted)


def test_namespaces_are_added_to_a_store_that_has_none_of_them(source: MemoryStore, target: MemoryStore) -> None:
    ask(target, acquire("mine", ns="theirs"))
    done = import_archive(target, file_of(text_of(source)), adds=True)
    assert done.events == 0
    for ns, name in (("theirs", "mine"), (NS, "held")):
        status = ask(target, Inspect(ns=ns, name=name))
        assert isinstance(status, Status)
        assert status.lock.holders
    with pytest.raises(InvalidInput, match="in the store already, and complete"):
        import_archive(target, file_of(text_of(source)), adds=True)
    other = MemoryStore(ManualClock(wall_ms=1_700_000_000_000))
    ask(other, acquire("else"))
    with pytest.raises(InvalidInput, match="jobs in a namespace that the store has as well: default"):
        import_archive(target, file_of(text_of(other)), adds=True)
    assert isinstance(ask(target, acquire("more", ns="theirs")), Granted)


@pytest.mark.promise("move:whole")
@pytest.mark.parametrize("adds", [False, True])
def test_an_import_that_was_killed_is_noticed_and_can_be_repeated(
    source: MemoryStore, adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.engine.archive_import.PART_RECORDS", 3)
    text = text_of(source)
    for commits in range(20):
        target = MemoryStore(ManualClock(wall_ms=1_700_000_000_000))
        if adds:
            ask(target, acquire("mine", ns="theirs"))
        try:
            import_archive(Dying(target, commits), file_of(text), adds=adds)
        except KeyboardInterrupt:
            meta = target.read((META_KEY,)).records[META_KEY].record
            mark = meta.frozen if isinstance(meta, Meta) else None
            assert mark is not None or commits == 0
            if mark is not None:
                assert isinstance(ask(target, acquire("held")), Frozen)
            import_archive(target, file_of(text), adds=adds)
        else:
            assert commits > 4
        held = ask(target, Inspect(ns=NS, name="held"))
        assert isinstance(held, Status)
        assert held.lock.holders
        if not adds:
            assert kinds_of(target) == kinds_of(source)


def test_after_a_killed_import_another_file_begins_with_an_empty_store(
    source: MemoryStore, target: MemoryStore
) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_archive(Dying(target, 3), file_of(text_of(source)))
    other = MemoryStore(ManualClock())
    ask(other, acquire("only"))
    import_archive(target, file_of(text_of(other)))
    assert [key for key, _ in target.scan("lock/")] == [lock_key(NS, "only")]


def test_a_killed_import_that_added_is_repeated_with_its_own_file_only(
    source: MemoryStore, target: MemoryStore
) -> None:
    ask(target, acquire("mine", ns="theirs"))
    with pytest.raises(KeyboardInterrupt):
        import_archive(Dying(target, 3), file_of(text_of(source)), adds=True)
    other = MemoryStore(ManualClock())
    ask(other, acquire("only", ns="third"))
    for adds in (True, False):
        with pytest.raises(InvalidInput, match="Repeat that one first"):
            import_archive(target, file_of(text_of(other)), adds=adds)
    with pytest.raises(InvalidInput, match="not complete"):
        text_of(target)
    assert isinstance(ask(target, Thaw(id=None)), Frozen)
    import_archive(target, file_of(text_of(source)), adds=True)
    assert isinstance(ask(target, Inspect(ns="theirs", name="mine")), Status)


def test_of_two_imports_at_once_one_goes_on(source: MemoryStore, target: MemoryStore) -> None:
    text = text_of(source)

    class Overtaken(StoreProxy):
        commits = 0

        def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
            self.commits += 1
            if self.commits == 4:
                import_archive(target, file_of(text))
            return self.inner.commit(expect, puts, events)

    with pytest.raises(InvalidInput, match="Another import"):
        import_archive(Overtaken(target), file_of(text))
    assert kinds_of(target) == kinds_of(source)
    assert isinstance(ask(target, acquire("new")), Granted)


class Plain(StoreProxy):
    """A store that cannot show itself as of one moment, in which something happens while it is read."""

    def __init__(self, inner: Store, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self._meanwhile = meanwhile

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Any:
        found = self.inner.scan(prefix, after, limit, live=live)
        if not after:
            self._meanwhile()
        return found


def test_a_store_that_changes_while_it_is_read_is_read_again_or_not_copied(source: MemoryStore) -> None:
    changes = iter(range(3))

    def some() -> None:
        for number in changes:
            ask(source, acquire(f"new-{number}"))
            break

    text = text_of(Plain(source, some), freeze=False)
    assert "new-2" in text
    written: list[str] = []

    def always() -> None:
        ask(source, Renew(ns=NS, name="held", principal="team", lease_id="lease-held"))

    with pytest.raises(StoreUnavailable, match="freeze the store"):
        export(Plain(source, always), written.append)
    assert not written
    export(Plain(source, always), written.append, freeze=True)
    assert written


def test_a_server_that_writes_while_the_file_is_read_does_not_show_in_it(tmp_path: Path) -> None:
    store, other = (SqliteStore(str(tmp_path / "dibs.db")) for _ in range(2))
    for number in range(1_500):
        ask(store, acquire(f"job-{number:04}"))
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) == 10:
            ask(other, acquire("zzz-later"))
            ask(other, Release(ns=NS, name="job-1400", principal="team", lease_id="lease-job-1400"))

    export(store, write)
    text = "".join(lines)
    assert "zzz-later" not in text
    target = MemoryStore(ManualClock())
    done = import_archive(target, file_of(text))
    assert (done.records, done.events) == (1_500, 1_500)
    store.close()
    other.close()


def test_the_mark_of_a_source_is_not_moved(source: MemoryStore, target: MemoryStore) -> None:
    ask(source, Freeze(id="mine"))
    import_archive(target, file_of(text_of(source)))
    meta = target.read((META_KEY,)).records[META_KEY].record
    assert isinstance(meta, Meta)
    assert meta.frozen is None
