"""close, open and --max-hold: what a person types and reads."""

from __future__ import annotations

import os
import threading
import time
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import InvalidInput
from dibs.cli.framework.flags import until_ms
from dibs.cli.framework.parse import UsageError
from dibs.core.commands import Close, Open
from dibs.core.limits import CLOSURES_MAX
from dibs.core.records import META_KEY, Meta
from dibs.engine.archive_import import import_archive
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.wire.parts import moment_ms, timestamp

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

WHY = ("--reason", "migration")


@pytest.mark.promise("closed")
def test_who_claims_a_closed_job_reads_why_and_until_when(terminal: Terminal) -> None:
    closed = terminal("close", "deploy/", "--for", "2h", *WHY)
    assert closed.out == (
        "Closed: nobody is granted deploy/, with all below it, for 2h, until 2025-11-15 04:14Z. Owners keep theirs.\n"
        "To end it early:  dibs open deploy/\n"
    )
    refused = terminal("claim", "deploy/web")
    assert refused.exit == 75
    why = "for another 2h, until 2025-11-15 04:14Z, by local: migration."
    assert refused.out == f"Not yet: deploy/web is closed, with deploy/, {why}\n"
    assert terminal("claim", "deploy/web", "--wait", "0s").exit == 75
    assert terminal("claim", "deploy/web", "--json").error["code"] == "closed"
    assert terminal("claim-any", "deploy/web", "--json").error["code"] == "held"
    assert terminal("owner", "deploy/web").out == f"deploy/web is closed, with deploy/, {why}\n"
    assert terminal("list").out == f"No job is claimed.\nClosed: deploy/ is closed {why}\n"
    assert terminal("list", "--json").data["closures"][0]["name"] == "deploy/"
    assert terminal("open", "deploy/web").out == (
        f"Nothing is closed under this name, but deploy/web is closed, with deploy/, {why}\n"
    )
    assert terminal("open", "deploy/").out == "Open: deploy/ is not closed any more.\n"
    assert terminal("open", "deploy/").out == "deploy/ is not closed. Nothing was changed.\n"
    assert terminal("claim", "deploy/web").exit == 0
    told = terminal("history", "deploy/").out
    assert "local closed it until 2025-11-15 04:14Z: migration" in told
    assert "local opened it" in told


@pytest.mark.promise("closed")
def test_an_import_brings_closures_and_leaves_a_name_that_is_closed_there_already(terminal: Terminal) -> None:
    terminal("close", "deploy/", "other", "--for", "2h", *WHY)
    copy = terminal("export").out.encode()
    store = MemoryStore(lambda: moment_ms("2025-11-15T02:20"))
    Coordinator(store).one(Close(ns="default", name="deploy/", principal="op", reason="its own", length_ms=60_000))
    import_archive(store, BytesIO(copy), wall_ms=lambda: 0)
    meta = store.read((META_KEY,)).records[META_KEY].record
    assert isinstance(meta, Meta)
    assert [(each.name, each.reason) for each in meta.closures] == [("deploy/", "its own"), ("other", "migration")]


@pytest.mark.promise("closed")
def test_an_import_does_not_bring_more_closures_than_a_store_may_have(terminal: Terminal) -> None:
    terminal("close", *[f"job-{number}" for number in range(CLOSURES_MAX)], "--for", "2h", *WHY)
    copy = terminal("export").out.encode()
    store = MemoryStore(lambda: moment_ms("2025-11-15T02:20"))
    Coordinator(store).one(Close(ns="default", name="own", principal="op", reason="why", length_ms=60_000))
    with pytest.raises(InvalidInput, match="have 51 closures, and a store may have 50"):
        import_archive(store, BytesIO(copy), wall_ms=lambda: 0)
    Coordinator(store).one(Open(ns="default", name="own", principal="op"))
    import_archive(store, BytesIO(copy), wall_ms=lambda: 0)


@pytest.mark.promise("closed")
def test_the_end_of_a_closure_is_in_history_once_somebody_sweeps(terminal: Terminal) -> None:
    terminal("close", "job", "--for", "1m", *WHY)
    terminal.wait(60)
    assert terminal("claim", "job", "-q").exit == 0
    terminal("gc")
    assert "it is open again: its time was over" in terminal("history", "job").out


@pytest.mark.promise("closed")
def test_an_embedded_waiter_gets_the_job_when_it_is_opened(terminal: Terminal) -> None:
    terminal("close", "deploy/", "--for", "2h", *WHY)
    ran: list[int] = []
    thread = threading.Thread(target=lambda: ran.append(terminal("claim", "deploy/web", "--wait", "50s").exit))
    thread.start()
    terminal.until_in_line("deploy/web", 1)
    terminal("open", "deploy/")
    thread.join(50)
    assert ran == [0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("job", *WHY), "Say until when"),
        (("job", "--for", "2h", "--until", "18:00", *WHY), "one of the two"),
        (("job", "--until", "25:00", *WHY), "--until takes 18:00"),
        (("job", "--until", "2020-01-01", *WHY), "over already, by the store's clock"),
        (("job", "--for", "40d", *WHY), "from 1s to 30d"),
        (("job", "--for", "2h"), "--reason"),
        (("job", "--for", "2h", "--reason", "x" * 201), "200 characters"),
    ],
)
def test_what_is_wrong_with_a_closure_is_said(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    ran = terminal("close", *words)
    assert (ran.exit, says in ran.err) == (64, True), ran.err


def test_a_time_of_the_day_is_today_or_tomorrow_on_this_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        now_ms = moment_ms("2026-03-28T16:30Z")  # 17:30 there; the clocks go forward in the night
        assert timestamp(until_ms("18:00", now_ms)) == "2026-03-28T17:00:00.000Z"
        assert timestamp(until_ms("17:30", now_ms)) == "2026-03-29T15:30:00.000Z"
        assert timestamp(until_ms("2026-03-28T18:00", now_ms)) == "2026-03-28T18:00:00.000Z"
        assert timestamp(until_ms("2026-03-28 18:00+01:00", now_ms)) == "2026-03-28T17:00:00.000Z"
        for text in ("1800", "18:60", "", "tomorrow", "\u0661\u0668:00"):
            with pytest.raises(UsageError):
                until_ms(text, now_ms)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "TZ" not in os.environ or os.environ["TZ"] != "Europe/Berlin"


@pytest.mark.promise("max-hold")
def test_a_ceiling_is_shown_wherever_the_claim_is(terminal: Terminal) -> None:
    most = "  ends at most   in 2h, at 2025-11-15 04:14Z, whatever is renewed\n"
    claimed = terminal("claim", "job", "--ttl", "1h", "--max-hold", "2h", "--json").data
    assert claimed["ends_in_ms"] == 7_200_000
    assert most in terminal("owner", "job").out
    assert most in terminal("heartbeat", "job", "--lease", claimed["lease_id"]).out
    assert "1h, 2h at most" in terminal("list").out
    assert most in terminal("claim", "other", "--max-hold", "2h").out
    for _ in range(3):
        terminal.wait(3_599)
        terminal("heartbeat", "job", "--lease", claimed["lease_id"], "--ttl", "1h")
    late = terminal("heartbeat", "job", "--lease", claimed["lease_id"])
    assert (late.exit, "reached the longest time that it may last" in late.err) == (2, True)
    assert "claim reached the longest time that it may last" in terminal("claim", "job").out
    assert "reached the longest time that it may last" in terminal("history", "job").out


def test_a_ceiling_that_leaves_no_time_to_stop_the_command_is_refused(terminal: Terminal) -> None:
    ran = terminal("run", "job", "--max-hold", "5s", "--", "true")
    assert ran.exit == 64
    assert "Use 12s or more, or less for --kill-after." in ran.err
