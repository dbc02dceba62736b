"""--actor: a name proves the claims made under it, from every shell."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from dibs.cli.commands import wait as waits
from dibs.cli.framework import actor_session
from dibs.client.pending import PendingClaim
from dibs.client.settings import Settings
from dibs.client.transport import Ask
from dibs.wire.documents import Reply

if TYPE_CHECKING:
    from dibs.client.embedded import EmbeddedTransport
    from tests.cli.conftest import Terminal

ACTOR = ("--actor", "7c1e-fix-login")


@pytest.fixture(autouse=True)
def own_folder(terminal: Terminal, tmp_path: Path) -> None:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path)


def test_the_name_is_enough_to_heartbeat_and_release(terminal: Terminal) -> None:
    ran = terminal("claim", "issue-7", *ACTOR)
    assert ran.out.splitlines() == [
        "Claimed issue-7 for 15m after each command of yours, as 7c1e-fix-login.",
        "  fencing token  1",
        "When it is done:  dibs release --actor 7c1e-fix-login issue-7",
    ]
    assert terminal("heartbeat", "issue-7", *ACTOR, "--checkpoint", "half way").exit == 0
    assert terminal("release", "issue-7", *ACTOR, "--done=1h").exit == 0
    assert terminal("claim", "issue-7").exit == 4


def test_mine_is_all_that_the_actor_or_the_session_holds(terminal: Terminal) -> None:
    for job, namespace in (("a", "default"), ("b", "default"), ("c", "other")):
        terminal("claim", job, *ACTOR, "--namespace", namespace)
    terminal("claim", "d", "--actor", "another")
    assert terminal("release", "--mine", *ACTOR, "--namespace", "other").out == "Released c. It can be claimed.\n"
    assert (
        terminal("release", "--mine", *ACTOR).out == "Released a. It can be claimed.\nReleased b. It can be claimed.\n"
    )
    assert terminal("release", "--mine", *ACTOR).out == "You hold nothing here.\n"
    assert terminal("owner", "d").exit == 0
    lease = terminal.claim("e")
    assert terminal("release", "--mine", "--lease", lease).exit == terminal("release", *ACTOR).exit == 64


@pytest.mark.promise("excl:same-token")
def test_another_actor_and_nobody_in_particular_are_kept_out(terminal: Terminal) -> None:
    terminal("claim", "issue-7", *ACTOR)
    assert terminal("claim", "issue-7", "--actor", "another").exit == 1
    assert terminal("claim", "issue-7").exit == 1
    assert terminal("release", "issue-7", "--actor", "another").exit == 2
    assert "7c1e-fix-login" in terminal("owner", "issue-7").out


def test_an_actor_that_claims_again_gets_the_same_lease(terminal: Terminal) -> None:
    first = terminal("claim", "issue-7", *ACTOR, "--json").data
    again = terminal("claim", "issue-7", *ACTOR, "--json").data
    assert again["lease_id"] == first["lease_id"]


def test_the_variable_names_the_actor_unless_there_is_a_session(terminal: Terminal) -> None:
    terminal.env["DIBS_ACTOR"] = "by-variable"
    assert terminal("claim", "a").exit == 0
    assert terminal("heartbeat", "a").exit == 0
    terminal.env["DIBS_SESSION"] = terminal.session("--owner", "in-session")
    assert terminal("claim", "b", "--json").data["owner"] == "in-session"
    # A name on the command line says more than what is inherited.
    assert terminal("release", "a", "--actor", "by-variable").exit == 0


def test_every_command_of_an_actor_keeps_all_that_it_holds(terminal: Terminal) -> None:
    terminal("claim", "a", *ACTOR)
    terminal("claim", "b", *ACTOR)
    for _ in range(3):
        terminal.now_ms += 10 * 60_000
        assert terminal("heartbeat", "b", *ACTOR).exit == 0
    assert terminal("release", "a", *ACTOR).exit == 0


@pytest.mark.fault("F-265")
def test_a_wait_that_lasts_longer_than_the_session_keeps_place_and_claims(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = terminal.claim("job", "--owner", "agent-7", "--ttl", "1h")
    terminal("claim", "mine", *ACTOR)
    end_ms = terminal.now_ms + 40 * 60_000

    def time_passes(*_: object) -> str:
        terminal.now_ms += 10_000
        if terminal.now_ms == end_ms:
            terminal("release", "job", "--lease", lease)
        return ""

    monkeypatch.setattr(waits, "waiting", time_passes)
    monkeypatch.setattr(waits, "BEAT_MS", 1, raising=False)
    ran = terminal("claim", "job", *ACTOR, "--wait", "1m", "--json")
    assert (ran.exit, ran.everything.get("owner")) == (0, ACTOR[1])
    assert terminal("heartbeat", "mine", *ACTOR).exit == 0


@pytest.mark.fault("F-790")
@pytest.mark.parametrize("named", ["flag", "variable"])
def test_an_actor_whose_name_has_the_job_at_another_address_is_told_so(terminal: Terminal, named: str) -> None:
    actor = ACTOR if named == "flag" else ()
    terminal("claim", "theirs", "--actor", "bob")
    if named == "variable":
        terminal.env["DIBS_ACTOR"] = ACTOR[1]
    terminal("claim", "job", *actor)
    terminal.env["DIBS_URL"] = "http://127.0.0.1:3427"  # a server on the same store
    says = "That is your own name: it was claimed at another address (--url), or in another session of that name."
    assert says in terminal("claim", "job", *actor).out
    assert terminal("claim", "other", *actor).exit == 0
    for command in ("heartbeat", "release"):
        ran = terminal(command, "job", *actor)
        assert (ran.exit, ran.err.rstrip()) == (
            2,
            f"dibs: This lease does not hold the job. {ACTOR[1]} has the job now. {says}",
        )
        assert "your own name" not in terminal(command, "theirs", *actor).err


def test_an_actor_is_not_taken_for_the_user_that_it_works_for(terminal: Terminal) -> None:
    terminal.claim("job")
    assert "own owner name" in terminal("claim", "job").out
    assert "own " not in terminal("claim", "job", *ACTOR).out


@pytest.mark.fault("F-791")
@pytest.mark.parametrize("words", [("claim", "job"), ("claim-all", "job", "other")], ids=["one", "several"])
def test_the_time_of_a_claim_that_was_waited_for_starts_when_it_is_granted(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    lease = terminal.claim("job", "--owner", "agent-7", "--ttl", "1h")

    def time_passes(*_: object) -> str:
        terminal.now_ms += 40_000
        terminal("release", "job", "--lease", lease)
        return ""

    monkeypatch.setattr(waits, "waiting", time_passes)
    ran = terminal(*words, *ACTOR, "--wait", "1m")
    assert " for 15m after each command of yours" in ran.out
    assert terminal("owner", "job", "--json").data["remaining_ms"] == 15 * 60_000


@pytest.mark.parametrize("named", ["flag", "variable"])
def test_a_wait_for_others_that_lasts_longer_than_the_session_keeps_the_claims(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    lease = terminal.claim("job", "--owner", "agent-7", "--ttl", "1h")
    terminal("claim", "mine", *ACTOR)
    end_ms = terminal.now_ms + 40 * 60_000

    def time_passes(*_: object) -> str:
        terminal.now_ms += 4 * 60_000
        if terminal.now_ms == end_ms:
            terminal("release", "job", "--lease", lease)
        return ""

    monkeypatch.setattr(waits, "watching", time_passes)
    monkeypatch.setattr(waits, "PAUSE_MS_MAX", waits.PAUSE_MS_MIN)
    monkeypatch.setattr(waits, "BEAT_MS", 1)
    if named == "variable":
        terminal.env["DIBS_ACTOR"] = ACTOR[1]
    assert terminal("wait", "job", "--for", "1m", *(ACTOR if named == "flag" else ())).exit == 0
    assert terminal("heartbeat", "mine", *ACTOR).exit == 0


def test_whoever_has_claimed_nothing_only_waits(terminal: Terminal) -> None:
    assert terminal("wait", "job", *ACTOR).exit == 0
    terminal.claim("job", "--ttl", "1h")
    assert terminal("wait", "job", *ACTOR, "--for", "1s").exit == 1


class StandsStill:
    """A transport to a server that answers no more from some time on. Only its own clock moves."""

    TIMEOUT_MS = 10_000

    def __init__(self, inner: EmbeddedTransport, still_ms: int) -> None:
        self._inner = inner
        self._still_ms = still_ms
        self.now_ms = 0

    def ask(self, asked: Ask) -> Reply:
        document = dict(asked.document or {})
        waits_ms = int(document.get("wait_seconds", 0) * 1000)
        self.now_ms += waits_ms
        if self.now_ms >= self._still_ms:
            self.now_ms += self.TIMEOUT_MS
            return Reply(503, {"code": "upstream_unavailable", "error": "Nobody", "details": "Nobody answers."})
        return self._inner.ask(Ask(asked.verb, asked.name, document | ({"wait_seconds": 0.001} if waits_ms else {})))

    def news(self, within_ms: int) -> None:
        self.now_ms += within_ms

    def close(self) -> None:
        pass


@pytest.mark.parametrize("command", ["claim", "wait"])
def test_a_server_that_stands_still_lengthens_a_wait_by_one_timeout_at_most(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    terminal.claim("job", "--owner", "agent-7", "--ttl", "1h")
    terminal("claim", "mine", *ACTOR)
    wait_ms = 65_000
    terminal.screen = True  # each request waits for a second only
    # At a request's beginning and in its middle; at the end of the wait, each of both.
    for still_ms in (*range(1_000, wait_ms - 5_000, 3_500), *range(wait_ms - 5_000, wait_ms + 1_000, 500)):
        transport = StandsStill(terminal._open(Settings({}, terminal.env)), still_ms)
        with monkeypatch.context() as patch:
            patch.setattr(terminal, "_open", lambda settings, transport=transport: transport)
            patch.setattr(waits, "steady_ms", lambda transport=transport: transport.now_ms)
            patch.setitem(
                PendingClaim.__init__.__kwdefaults__ or {}, "steady", lambda transport=transport: transport.now_ms
            )
            words = (command, "job", *ACTOR, "--wait" if command == "claim" else "--for", f"{wait_ms // 1000}s")
            assert terminal(*words, "--timeout", f"{transport.TIMEOUT_MS // 1000}s").exit in (1, 69)
        assert transport.now_ms <= wait_ms + transport.TIMEOUT_MS + 500, still_ms


def test_an_actor_that_went_silent_is_told_that_it_lost_and_may_begin_anew(terminal: Terminal) -> None:
    terminal("claim", "a", *ACTOR)
    terminal.now_ms += 15 * 60_000
    lost = terminal("heartbeat", "a", *ACTOR)
    assert lost.exit == 2
    assert terminal("claim", "a", *ACTOR).exit == 0


def test_a_longer_ttl_makes_the_actor_live_longer(terminal: Terminal) -> None:
    terminal("claim", "a", *ACTOR)
    terminal("claim", "b", *ACTOR, "--ttl", "2h")
    terminal.now_ms += 90 * 60_000
    assert terminal("release", "b", *ACTOR).exit == 0


@pytest.mark.fault("F-301")
def test_a_heartbeat_with_a_longer_ttl_makes_the_actor_live_longer(terminal: Terminal) -> None:
    terminal("claim", "a", *ACTOR)
    assert terminal("heartbeat", "a", *ACTOR, "--ttl", "2h", "--json").data["remaining_ms"] == 2 * 3_600_000
    terminal("claim", "b", *ACTOR)  # does not shorten it
    terminal.now_ms += 90 * 60_000
    assert terminal("release", "a", *ACTOR).exit == 0


def test_an_actor_that_claimed_nothing_is_told_so(terminal: Terminal) -> None:
    ran = terminal("release", "a", "--actor", "stranger")
    assert ran.exit == 64
    assert "The actor 'stranger' has claimed nothing here. Name the --actor and the --url of the claim" in ran.err
    assert terminal("claim", "a", "--actor", " ").exit == 64


def test_an_actor_claims_and_releases_several_jobs_by_name(terminal: Terminal) -> None:
    ran = terminal("claim-all", "a", "b", *ACTOR)
    assert ran.out.splitlines()[0] == f"Claimed all 2 for 15m after each command of yours, as {ACTOR[1]}."
    assert ran.out.splitlines()[-1] == f"When they are done:  dibs release a b {' '.join(ACTOR)}"
    assert terminal("release", "a", "b", *ACTOR).exit == 0


def test_what_is_remembered_can_be_read_by_nobody_else(terminal: Terminal) -> None:
    terminal("claim", "a", *ACTOR)
    folder = os.path.join(terminal.env["XDG_STATE_HOME"], "dibs", "actors")
    assert os.stat(folder).st_mode & 0o077 == 0
    for name in os.listdir(folder):
        assert os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0
        assert "fix-login" not in name


def test_damaged_memory_is_as_good_as_none(terminal: Terminal) -> None:
    terminal("claim", "a", *ACTOR)
    folder = os.path.join(terminal.env["XDG_STATE_HOME"], "dibs", "actors")
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"\xff\xfe soon")
    assert terminal("heartbeat", "a", *ACTOR).exit == 64
    assert terminal("claim", "b", *ACTOR).exit == 0


@pytest.mark.fault("F-373")
def test_an_actor_that_cannot_be_remembered_is_told_so(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(actor_session, "replace_file", full)
        ran = terminal("claim", "a", *ACTOR)
    assert ran.exit == 64
    assert "cannot be written (No space left on device), so dibs cannot remember the actor" in ran.err
    assert terminal("owner", "a").out.startswith("Nobody has a")


@pytest.mark.parametrize(("url", "is_here"), [(None, True), ("http://127.0.0.1:3427", False)], ids=["own", "served"])
def test_where_the_own_store_cannot_be_written_either_the_folder_is_named(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, url: str | None, *, is_here: bool
) -> None:
    if url is not None:
        terminal.env["DIBS_URL"] = url
    monkeypatch.setattr(os, "makedirs", Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))))
    ran = terminal("claim", "a", *ACTOR)
    assert ("Claim without --actor" in ran.err, "XDG_STATE_HOME" in ran.err) == (not is_here, is_here)


# What others see as the owner.


@pytest.mark.fault("F-304")
def test_an_actors_claims_inside_a_session_show_the_actor(terminal: Terminal) -> None:
    terminal.env |= {"DIBS_SESSION": terminal.session("--owner", "agent-7")}
    terminal.env |= {"DIBS_OWNER": "agent-7", "DIBS_SESSION_OWNER": "agent-7"}  # as `dibs session run` sets them
    assert terminal("claim", "of-session", "--json").data["owner"] == "agent-7"
    for actor in ("ann", "bob"):
        assert terminal("claim", f"of-{actor}", "--actor", actor, "--json").data["owner"] == actor
    assert terminal("claim", "of-flag", "--actor", "ann", "--owner", "agent-7", "--json").data["owner"] == "agent-7"
    terminal.env["DIBS_OWNER"] = "me"  # the user's own
    assert terminal("claim", "of-user", "--actor", "ann", "--json").data["owner"] == "me"


@pytest.mark.fault("F-304")
@pytest.mark.parametrize("owner", [None, "me"])
@pytest.mark.parametrize("who", ["actor", "session", "nobody"])
def test_the_settings_show_the_owner_that_a_claim_will_have(terminal: Terminal, who: str, owner: str | None) -> None:
    if who == "actor":
        terminal.env["DIBS_ACTOR"] = "ann"
    if who == "session":
        terminal.env["DIBS_SESSION"] = terminal.session("--owner", "ann")
    if owner is not None:
        terminal.env["DIBS_OWNER"] = owner
    rows = {row["name"]: row["value"] for row in terminal("config", "--json").data["settings"]}
    claimed = terminal("claim", "job", "--json").data["owner"]
    assert claimed == ("ann" if rows["owner"] == "the session's" else rows["owner"])
