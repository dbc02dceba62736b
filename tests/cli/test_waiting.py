"""Words and exit codes of claims that wait, of deadlocks and of parked jobs."""

from __future__ import annotations

import io
import shlex
import threading
from typing import TYPE_CHECKING

import pytest

from dibs.base.errors import ServerUnreachable, StoreUnavailable
from dibs.cli.commands import wait as queue_text
from dibs.cli.commands.wait import StatusLine
from dibs.cli.framework.context import Call
from dibs.cli.framework.flags import CLAIM_OWNER, CLAIM_TERMS, REPLACES
from dibs.cli.text.claim import refusal
from dibs.cli.text.words import Paint
from dibs.client import pending as places
from dibs.client.embedded import EmbeddedTransport
from dibs.client.pending import PendingClaim
from dibs.wire.documents import Reply, reply_for_error
from tests.cli.conftest import Screen
from tests.processes.typist import Typing
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.client.flow import Flow
    from dibs.stores.port import Snapshot
    from tests.cli.conftest import Terminal


def test_when_the_time_is_over_the_place_is_given_up(terminal: Terminal) -> None:
    terminal.claim("job", "--owner", "agent-7", "--ttl", "2m")
    ran = terminal("claim", "job", "--wait", "1s", "--owner", "bob")
    assert ran.exit == 1
    assert ran.err == ""
    assert ran.out.splitlines()[0] == (
        "Not yet: agent-7 has job for another 2m. You were next in line, and have left the line."
    )
    assert terminal("owner", "job", "--json").data["waiting"] == 0


def test_a_kept_place_is_gone_on_from_with_its_ticket(terminal: Terminal) -> None:
    lease = terminal.claim("job", "--owner", "agent-7", "--ttl", "2m")
    ticket = terminal("claim", "job", "-q", "--wait", "1s", "--owner", "bob", "--keep-place").out.strip()
    Typing(terminal, "claim", "job", "-q", "--wait", "60s", "--owner", "late")
    terminal.until_in_line("job", 2)
    asked = terminal("claim", "job", "--ticket", ticket, "--json")
    assert (asked.exit, asked.error["code"], asked.error["details"]["position"]) == (1, "queued", 1)
    assert f"--ticket {ticket}" in terminal("claim", "job", "--ticket", ticket).out
    terminal("release", "job", "--lease", lease)
    assert terminal("claim", "job", "--ticket", ticket, "--wait", "5s", "--json").data["owner"] == "bob"


UNITS_TERMS = ("--slots", "2", "--units", "2")


def continued(terminal: Terminal, *words: str, stdin: bytes = b"") -> list[str]:
    """The words after `dibs` that a wait which kept its place says to go on with."""
    ran = terminal(*words, "--wait", "1s", "--keep-place", stdin=stdin)
    _, _, line = ran.out.partition("To continue:  dibs ")
    assert (ran.exit, bool(line)) == (1, True)
    return shlex.split(line.splitlines()[0])


@pytest.mark.fault("F-755")
@pytest.mark.parametrize(
    ("held", "words", "stdin"),
    [
        ((), ("claim", "m1", "--shared"), b""),
        (UNITS_TERMS, ("claim", "m1", *UNITS_TERMS), b""),
        ((), ("claim-all", "m1", "m2", "--shared"), b""),
        ((), ("claim-all",), b"m1\nm2\n"),
    ],
    ids=str,
)
def test_the_line_that_goes_on_with_a_kept_place_gets_what_was_asked_for(
    terminal: Terminal, held: tuple[str, ...], words: tuple[str, ...], stdin: bytes
) -> None:
    lease = terminal.claim("m1", "--owner", "a", *held)
    command, *line = continued(terminal, *words, "--owner", "b", stdin=stdin)
    terminal("release", "m1", "--lease", lease)
    got = terminal(command, "--json", *line).data
    assert {each["owner"] for each in got.get("leases", [got])} == {"b"}
    assert terminal("owner", "m1", "--json").everything["waiting"] == 0


@pytest.mark.fault("F-755")
def test_the_line_that_goes_on_with_a_kept_place_has_every_term_of_the_claim(terminal: Terminal) -> None:
    terminal.claim("job", "--owner", "a", *UNITS_TERMS)
    terms = {
        "--ttl": "90s",
        "--owner": "b",
        "--metadata": "of a b",
        "--replaces": "main",
        "--slots": "2",
        "--units": "2",
        "--max-attempts": "3",
        "--lock-delay": "5s",
        "--request-key": "key-1",
        "--max-hold": "2h",
    }
    line = continued(terminal, "claim", "job", *[word for term in terms.items() for word in term], "--again")
    flags = [option for option in (*CLAIM_OWNER, REPLACES, *CLAIM_TERMS) if option.flag in line]
    assert {option.flag: line[line.index(option.flag) + 1] for option in flags if option.value} == terms
    assert [option.flag for option in flags if not option.value] == ["--again"]
    left = {option.flag for option in (*CLAIM_OWNER, REPLACES, *CLAIM_TERMS)} - {option.flag for option in flags}
    assert left == {"--session", "--actor", "--shared", "--exclusive"}  # none of which goes with the others


@pytest.mark.promise("queue:no-dead-grant")
def test_a_job_that_comes_at_the_very_end_of_the_wait_goes_to_the_next_and_is_not_lost(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = terminal.claim("job", "--owner", "agent-7")
    end_wait = PendingClaim.end_wait

    def late(self: PendingClaim, reply: Reply) -> Flow[Reply]:
        terminal("release", "job", "--lease", lease)  # between the last answer and the leaving
        return end_wait(self, reply)

    monkeypatch.setattr(PendingClaim, "end_wait", late)
    assert terminal("claim", "job", "--wait", "1s", "--owner", "bob", "--json").exit == 1
    assert terminal("claim", "job", "--owner", "next", "--json").data["owner"] == "next"


@pytest.mark.promise("queue:no-dead-grant")
@pytest.mark.parametrize("got_it", [False, True])
def test_ctrl_c_gives_up_the_place_or_the_job_that_it_became(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, got_it: bool
) -> None:
    lease = terminal.claim("job", "--owner", "agent-7")

    def interrupted(*_: object) -> None:
        if got_it:
            terminal("release", "job", "--lease", lease)
        raise KeyboardInterrupt

    monkeypatch.setattr(queue_text, "waiting", interrupted)
    with pytest.raises(KeyboardInterrupt):
        terminal("claim", "job", "--wait", "20s", "--owner", "bob")
    found = terminal("owner", "job", "--json").everything
    assert (found["owner"], found["waiting"]) == ((None, 0) if got_it else ("agent-7", 0))


def test_a_terminal_shows_one_line_that_is_gone_at_the_end(terminal: Terminal) -> None:
    terminal.claim("job", "--owner", "agent-7", "--ttl", "2m")
    terminal.screen = True
    ran = terminal("claim", "job", "--wait", "1s", "--owner", "bob")
    line = "Waiting for job, next in line: agent-7 has it for another 2m (1s of 1s)"
    assert ran.err == f"\r{line}\x1b[K\r\x1b[K"


@pytest.mark.parametrize(
    ("values", "env", "stderr"),
    [
        ({"json": True}, {}, Screen()),
        ({"quiet": True}, {}, Screen()),
        ({}, {"TERM": "dumb"}, Screen()),
        ({}, {}, io.StringIO()),
        ({}, {}, None),
    ],
)
def test_nothing_is_drawn_where_nobody_looks(
    values: dict[str, object], env: dict[str, str], stderr: io.StringIO | None
) -> None:
    call = Call("claim", values, env, stdin=None, stdout=None, stderr=stderr, paint=Paint())
    with StatusLine(call) as live:
        live.show("Waiting")
    assert not live.on
    assert stderr is None or stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"position": 3}, "number 3 in line: agent-7 has it for another 30s"),
        ({"conflict": "path:src"}, "next in line: agent-7 has path:src for another 30s"),
        ({"owner": None, "remaining_ms": None}, "next in line: it is delayed, or others come first"),
        ({"owner": "a\x1b[2Jb"}, "a\\u001b[2Jb has it"),
    ],
)
def test_the_line_says_who_is_in_the_way(change: dict[str, object], says: str) -> None:
    queued = {"name": "job", "position": 1, "owner": "agent-7", "remaining_ms": 30_000}
    assert says in queue_text.waiting(queued | change, 1_000, 60_000)


@pytest.mark.fault("F-758")
@pytest.mark.parametrize(("within", "says"), [("job/a", "it is closed for"), ("job/", "it is closed, with job/, for")])
def test_the_line_says_what_is_closed(within: str, says: str) -> None:
    closure = {"name": within, "by": "ann", "reason": "migration", "until": "2026-11-19T18:00:00.000Z"}
    queued = {"name": "job/a", "position": 1, "owner": None, "closed": closure | {"remaining_ms": 30_000}}
    assert f"next in line: {says} another 30s" in queue_text.waiting(queued, 1_000, 60_000)


def flaky(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, after: int, count: int) -> None:
    """The `after`th ask of a place and the following are not answered, `count` of them."""
    asked = iter(range(1_000))
    real = PendingClaim.ask_once

    def ask_once(self: PendingClaim, wait_seconds: int = 0) -> Flow[Reply]:
        if after <= next(asked) < after + count:
            return reply_for_error(ServerUnreachable("It restarts."))
        return (yield from real(self, wait_seconds))

    monkeypatch.setattr(PendingClaim, "ask_once", ask_once)
    monkeypatch.setattr(places, "RETRY_MS", 1)


@pytest.mark.promise("queue:fifo")
def test_a_server_that_is_gone_for_a_moment_does_not_cost_the_place(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = terminal.claim("job")
    flaky(terminal, monkeypatch, after=1, count=3)
    waiter = Typing(terminal, "claim", "job", "-q", "--wait", "60s", "--owner", "bob")
    terminal.until_in_line("job", 1)
    terminal("release", "job", "--lease", lease)
    assert waiter.ran().exit == 0


def test_a_server_that_was_never_there_is_reported_at_once(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky(terminal, monkeypatch, after=0, count=99)
    assert terminal("claim", "job", "--wait", "60s").exit == 69


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--wait", "x"), "--wait"),
        (("--wait", "1500ms"), "whole seconds"),
        (("--wait", "25h"), "1d at most"),
        (("--wait", "5s", "--ticket", ""), "--ticket is empty"),
        (("--wait", "5s", "--ticket", "nonsense"), "not one that dibs gave out"),
        (("--keep-place",), "needs --wait"),
        (("--slots", "0"), "--slots takes a whole number from 1"),
        (("--slots", "10001"), "10000"),
        (("--slots", "2", "--shared"), "--shared or --slots"),
        (("--max-attempts", "1000001"), "--max-attempts takes a whole number from 0 to 1000000"),
        (("--session", "nonsense"), "not a session id"),
        (("--session", ""), "Did opening it succeed?"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(terminal: Terminal, flags: tuple[str, ...], says: str) -> None:
    ran = terminal("claim", "job", *flags)
    assert ran.exit == 64
    assert says in ran.err
    assert terminal.store.events(0, 10) == []


def test_a_ticket_of_another_job_is_refused(terminal: Terminal) -> None:
    terminal.claim("a")
    terminal.claim("b")
    ticket = terminal("claim", "a", "-q", "--wait", "1s", "--keep-place").out.strip()
    ran = terminal("claim", "b", "--wait", "5s", "--ticket", ticket)
    assert ran.exit == 64
    assert "This ticket is for another job than b." in ran.err
    assert terminal("owner", "b", "--json").data["waiting"] == 0


@pytest.mark.promise("deadlock")
def test_a_wait_that_would_never_end_is_refused_with_the_circle_as_a_path(terminal: Terminal) -> None:
    one, two = terminal.session("--owner", "one"), terminal.session("--owner", "two")
    terminal.claim("a", "--session", one)
    terminal.claim("b", "--session", two)
    waiter = Typing(terminal, "claim", "b", "-q", "--session", one, "--wait", "60s")
    terminal.until_in_line("b", 1)
    ran = terminal("claim", "a", "--session", two, "--wait", "60s")
    assert ran.exit == 3
    assert ran.err.splitlines() == [
        "dibs: Waiting would deadlock:",
        "  two → a → one → b → two",
        "  two waits for a, which one has;",
        "  one waits for b, which two has.",
        "Release something and try again later.",
    ]
    error = terminal("claim", "a", "--session", two, "--json").error
    assert (error["code"], error["details"]["cycle"]) == ("deadlock", ["two", "a", "one", "b"])
    terminal("release", "b", "--session", two)
    assert waiter.ran().exit == 0


@pytest.mark.fault("F-754")
def test_a_claim_of_any_job_is_refused_only_if_the_run_around_it_has_too_many_of_them(terminal: Terminal) -> None:
    around = terminal.session("--owner", "around")
    terminal.claim("a", "--session", around)
    terminal.env["DIBS_OUTER_SESSIONS"] = around
    assert terminal("claim-any", "a", "b", "--wait", "1s", "--json").data["name"] == "b"
    ran = terminal("claim-any", "a", "c", "--count", "2", "--wait", "1s")
    assert (ran.exit, "a is held by the `dibs run` around this command" in ran.err) == (3, True)
    terminal.claim("c", "--session", around)
    ran = terminal("claim-any", "a", "c", "--wait", "1s")
    assert (ran.exit, "a, c are held by the `dibs run` around this command" in ran.err) == (3, True)
    assert terminal("claim-any", "a", "c", "d", "--wait", "1s", "--json").data["name"] == "d"


@pytest.mark.fault("F-759")
@pytest.mark.parametrize(("job", "waits_for"), [("a", ("a",)), ("a", ("b", "a")), ("path:src", ("path:src/b",))])
@pytest.mark.parametrize("is_innermost", [True, False])
def test_a_look_that_waits_for_the_run_around_it_is_refused(
    terminal: Terminal, job: str, waits_for: tuple[str, ...], is_innermost: bool
) -> None:
    around = terminal.session("--owner", "around")
    terminal.claim(job, "--session", around)
    terminal.env |= {"DIBS_SESSION": around, "DIBS_JOB": job} if is_innermost else {"DIBS_OUTER_SESSIONS": around}
    assert terminal("wait", "--for", "1s", *waits_for).exit == 1  # that ends by itself
    ran = terminal("wait", *waits_for)
    assert (ran.exit, ran.out) == (3, "")
    assert ran.err == (
        f"dibs: {job} is held by the `dibs run` around this command, so waiting for it would never end. "
        "The job is already yours: do not wait for it.\n"
    )


def test_a_look_waits_for_what_a_session_without_a_run_has_because_others_in_it_may_release_it(
    terminal: Terminal,
) -> None:
    terminal.env["DIBS_SESSION"] = terminal.session("--owner", "ann")
    terminal.claim("a")
    assert terminal("wait", "a", "--for", "1s").exit == 1
    terminal.claim("b")
    terminal.env["DIBS_JOB"] = "b"
    assert terminal("wait", "a", "--for", "1s").exit == 1


def test_a_job_that_too_many_lost_is_parked_until_somebody_frees_it(terminal: Terminal) -> None:
    for _ in range(2):
        terminal.claim("job", "--max-attempts", "2", "--ttl", "5s", "--owner", "agent-7")
        terminal.wait(6)
    ran = terminal("claim", "job")
    assert ran.exit == 75
    assert ran.out.splitlines()[0] == "Parked: job is parked: 2 owners in a row failed at it or were lost."
    assert ran.out.splitlines()[-1].endswith("then free it:  dibs free job")
    assert terminal("claim", "job", "--wait", "5s").exit == 75
    assert terminal("claim", "job", "--json").error["code"] == "parked"
    assert "`dibs free job`" in terminal("owner", "job").out
    assert terminal("wait", "job", "-q").out == "parked\n"
    assert terminal("free", "job").out.startswith("Freed: job can be claimed again")
    assert terminal("free", "job").out == "job is not parked. Nothing was changed.\n"
    assert terminal("claim", "job").exit == 0
    history = terminal("history", "job").out
    assert "parked after the last attempt, by agent-7, failed or was lost" in history
    assert "local freed it" in history


def test_a_newcomer_is_told_that_others_come_first() -> None:
    document = {"status": "held", "name": "job", "owner": None, "remaining_ms": None, "waiting": 2}
    assert refusal(document, Paint()).splitlines() == [
        "Held: Nobody has job now, but others in line come first.",
        "  waiting        2 in line",
    ]


@pytest.mark.promise("queue:newest")
def test_of_a_group_only_the_newest_waits_and_the_older_one_ends_with_a_code_of_its_own(terminal: Terminal) -> None:
    lease = terminal.claim("deploy", "--owner", "agent-7")
    older = Typing(terminal, "claim", "deploy", "--wait", "60s", "--owner", "older", "--replaces", "main")
    terminal.until_in_line("deploy", 1)
    newer = Typing(terminal, "claim", "deploy", "-q", "--wait", "60s", "--owner", "newer", "--replaces", "main")
    ran = older.ran()
    assert (ran.exit, ran.err) == (5, "")
    assert ran.out == (
        "Superseded: This claim of deploy waits no longer: newer asked later and waits for the group main.\n"
    )
    assert terminal("release", "deploy", "--lease", lease).exit == 0
    assert newer.ran().exit == 0
    assert "superseded by newer" in terminal("history", "deploy").out


def test_a_group_is_for_claims_that_wait(terminal: Terminal) -> None:
    ran = terminal("claim", "deploy", "--replaces", "main")
    assert (ran.exit, "give --wait, too" in ran.err) == (64, True)
    ran = terminal("claim", "deploy", "--wait", "1s", "--replaces", "")
    assert (ran.exit, "--replaces may not be empty" in ran.err) == (64, True)


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a command lets time pass."""
    event, news = threading.Event(), EmbeddedTransport.news

    def told(transport: EmbeddedTransport, timeout_ms: int) -> None:
        event.set()
        news(transport, min(timeout_ms, 20))

    monkeypatch.setattr(EmbeddedTransport, "news", told)
    return event


@pytest.mark.fault("F-282")
@pytest.mark.parametrize("words", [("claim", "job"), ("claim-all", "job", "b"), ("claim-any", "job", "b")], ids=str)
def test_who_waits_goes_on_while_the_store_is_frozen(
    terminal: Terminal, paused: threading.Event, words: tuple[str, ...]
) -> None:
    terminal("export", "--freeze")
    waiter = Typing(terminal, *words, "-q", "--wait", "60s", "--owner", "w")
    assert paused.wait(WAIT_S_MAX)
    terminal("export", "--unfreeze")
    assert waiter.ran().exit == 0
    assert terminal("owner", "job", "-q").out == "w\n"


@pytest.mark.fault("F-365")
@pytest.mark.parametrize("words", [("claim", "job"), ("claim-all", "job", "b"), ("claim-any", "job", "b")], ids=str)
def test_an_actor_goes_on_while_the_store_is_frozen(
    terminal: Terminal, paused: threading.Event, words: tuple[str, ...]
) -> None:
    terminal("export", "--freeze")
    waiter = Typing(terminal, *words, "-q", "--wait", "60s", "--actor", "w")
    assert paused.wait(WAIT_S_MAX)
    terminal("export", "--unfreeze")
    assert waiter.ran().exit == 0
    assert terminal("owner", "job", "-q").out == "w\n"


@pytest.mark.fault("F-282")
def test_a_wait_that_is_over_while_the_store_is_frozen_says_so(terminal: Terminal) -> None:
    terminal("export", "--freeze")
    for words in ((), ("--actor", "w")):
        ran = terminal("claim", "job", "--wait", "1s", *words)
        assert (ran.exit, "frozen" in ran.err) == (69, True)
    assert (terminal("wait", "job").exit, terminal("hold", "job", "--for", "1s").exit) == (0, 69)


@pytest.mark.fault("F-282")
def test_a_look_goes_on_while_the_store_is_away(
    terminal: Terminal, paused: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = terminal.claim("job", "--owner", "ann")
    waiter = Typing(terminal, "wait", "job", "--for", "60s")
    assert paused.wait(WAIT_S_MAX)
    read = terminal.store.read
    asked = threading.Event()

    def away(keys: Sequence[str]) -> Snapshot:
        asked.set()
        raise StoreUnavailable("The store does not answer.")

    monkeypatch.setattr(terminal.store, "read", away)
    monkeypatch.setattr(terminal.store, "recall", away)
    assert asked.wait(WAIT_S_MAX)
    monkeypatch.setattr(terminal.store, "read", read)
    monkeypatch.delattr(terminal.store, "recall")
    assert terminal("release", "job", "--lease", lease).exit == 0
    ran = waiter.ran()
    assert (ran.exit, ran.err.count("Waiting goes on")) == (0, 1)


def test_a_look_at_a_store_that_was_never_there_is_reported_at_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Snapshot:
        raise StoreUnavailable("The store does not answer.")

    monkeypatch.setattr(terminal.store, "read", away)
    monkeypatch.setattr(terminal.store, "recall", away)
    assert terminal("wait", "job", "--for", "60s").exit == 69
    assert terminal("claim", "job", "--wait", "60s").exit == 69
