"""Words and exit codes of claim, heartbeat and release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.core.limits import CHECKPOINT_BYTES_MAX

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

NO_LEASE = "00000000-0000-4000-8000-000000000000"


def test_a_claim_prints_the_lease_on_a_line_of_its_own_and_the_next_command(terminal: Terminal) -> None:
    ran = terminal("claim", "issue-1", "--ttl", "2m", "--owner", "agent-7")
    head, lease, token, after = ran.out.splitlines()
    assert ran.exit == 0
    assert head == "Claimed issue-1 for 2m, as agent-7."
    assert lease.split()[0] == "lease"
    assert token.split() == ["fencing", "token", "1"]
    assert after == f"Send a heartbeat within 1m:  dibs heartbeat issue-1 --lease {lease.split()[1]}"


def test_the_next_command_names_the_flags_that_it_needs_too(terminal: Terminal) -> None:
    ran = terminal("--namespace", "acme", "claim", "a b")
    assert "dibs heartbeat --namespace acme 'a b' --lease " in ran.out


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@db/dibs?schema=a", "'postgresql://ann:PASSWORD@db/dibs?schema=a'"),
        ("postgresql://ann@db/dibs", "postgresql://ann@db/dibs"),
        ("postgresql://db/dibs?user=ann&password=hunter2", "'postgresql://db/dibs?user=ann&password=***'"),
        ("etcds://ann:x/hunter2@e1,e2/dibs", "etcds://ann:PASSWORD@e1,e2/dibs"),
        ("git+https://hunter2@host/repo.git", "git+https://PASSWORD@host/repo.git"),
        ("git+ssh://git@host/repo.git", "git+ssh://git@host/repo.git"),
        ("sqlite:/x@y:z.db", "sqlite:/x@y:z.db"),
    ],
)
def test_the_next_command_names_a_store_without_its_password(terminal: Terminal, url: str, shown: str) -> None:
    ran = terminal("claim", "job", "--url", url)
    assert f"dibs heartbeat --url {shown} job --lease " in ran.out
    assert "hunter2" not in ran.out


def test_quiet_prints_the_lease_id_and_nothing_else(terminal: Terminal) -> None:
    ran = terminal("claim", "-q", "issue-1")
    assert len(ran.out.strip()) == 36
    assert terminal("claim", "-q", "issue-1").out == ""


def test_json_carries_the_reply_as_it_is(terminal: Terminal) -> None:
    data = terminal("claim", "issue-1", "--json", "--metadata", "repo=acme/app").data
    assert data["status"] == "acquired"
    assert data["owner"].startswith("ann@")
    assert data["metadata"] == "repo=acme/app"
    assert data["remaining_ms"] == 60_000


def test_a_held_job_says_who_has_it_and_exits_with_1(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1", "--owner", "agent-7", "--ttl", "2m", "--metadata", "m")
    terminal("heartbeat", "issue-1", "--lease", lease, "--checkpoint", "half way")
    terminal.wait(30)
    ran = terminal("claim", "issue-1")
    assert ran.exit == 1
    assert ran.err == ""
    assert ran.out.splitlines()[0] == "Held: agent-7 has issue-1 for another 1m 30s."
    assert "half way" in ran.out
    assert "30 seconds ago" in ran.out
    error = terminal("claim", "issue-1", "--json").error
    assert error["code"] == "held"
    assert error["details"]["owner"] == "agent-7"
    assert lease not in ran.out
    assert lease not in str(error)


def test_whoever_takes_over_is_told_where_the_last_one_stopped(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1", "--owner", "agent-7")
    terminal("heartbeat", "issue-1", "--lease", lease, "--checkpoint", "tests pass")
    terminal.wait(300)
    out = terminal("claim", "issue-1").out
    assert "agent-7 went silent; its claim ran out 4 minutes ago" in out
    assert "got to         tests pass" in out
    assert "attempt        2" in out


def test_a_done_job_says_by_whom_and_exits_with_4_unless_claimed_again(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1", "--owner", "agent-7")
    assert terminal("release", "issue-1", "--lease", lease, "--done=1h", "--result", "PR 77").exit == 0
    terminal.wait(240)
    ran = terminal("claim", "issue-1")
    assert ran.exit == 4
    assert (
        ran.out.splitlines()[0]
        == "Done: issue-1 was done by agent-7, 4 minutes ago. It counts as done for another 56m."
    )
    assert "PR 77" in ran.out
    assert terminal("claim", "issue-1", "--json").error["code"] == "done"
    assert terminal("claim", "issue-1", "--again").exit == 0


def test_a_job_that_rests_after_a_loss_exits_with_75(terminal: Terminal) -> None:
    terminal.claim("issue-1", "--ttl", "10", "--lock-delay", "30s")
    terminal.wait(15)
    ran = terminal("claim", "issue-1")
    assert ran.exit == 75
    assert "It can be claimed in 25s." in ran.out
    assert terminal("claim", "issue-1", "--json").error["code"] == "delayed"
    assert terminal("owner", "issue-1").exit == 1


def test_the_same_request_key_gives_the_same_lease(terminal: Terminal) -> None:
    first = terminal.claim("issue-1", "--request-key", "k")
    assert terminal.claim("issue-1", "--request-key", "k") == first
    terminal("release", "issue-1", "--lease", first)
    again = terminal("claim", "issue-1", "--request-key", "k")
    assert again.exit == 2
    assert "use a new request key" in again.err


def test_a_heartbeat_starts_the_ttl_anew(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1", "--ttl", "2m")
    terminal.wait(100)
    ran = terminal("heartbeat", "issue-1", "--lease", lease)
    assert ran.out == "Still yours: issue-1, for another 2m.\n"
    assert terminal("heartbeat", "issue-1", "--lease", lease, "--ttl", "5s", "-q").out == ""
    terminal.wait(6)
    late = terminal("heartbeat", "issue-1", "--lease", lease)
    assert late.exit == 2
    assert "expired 1s ago" in late.err
    assert late.out == ""


def test_the_lease_may_come_from_the_environment(terminal: Terminal) -> None:
    terminal.env["DIBS_LEASE"] = terminal.claim("issue-1")
    assert terminal("heartbeat", "issue-1").exit == 0
    assert terminal("release", "issue-1", "--json").data == {"name": "issue-1", "released": True}


def test_an_empty_lease_is_reported_even_when_the_environment_has_one(terminal: Terminal) -> None:
    terminal.env["DIBS_LEASE"] = terminal.claim("issue-1")
    ran = terminal("heartbeat", "issue-1", "--lease", "")
    assert ran.exit == 64
    assert "Did the claim before it succeed?" in ran.err


@pytest.mark.parametrize(("lease", "exit_code"), [(NO_LEASE, 2), ("not-one", 64)])
def test_a_lease_that_is_not_yours_and_one_that_is_none(terminal: Terminal, lease: str, exit_code: int) -> None:
    terminal.claim("issue-1")
    for command in ("heartbeat", "release"):
        ran = terminal(command, "issue-1", "--lease", lease)
        assert ran.exit == exit_code
        assert ran.out == ""


def test_releasing_twice_is_fine(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1")
    assert terminal("release", "issue-1", "--lease", lease).out == "Released issue-1. It can be claimed.\n"
    assert terminal("release", "issue-1", "--lease", lease).exit == 0


def test_a_checkpoint_may_come_from_stdin(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1")
    ran = terminal("heartbeat", "issue-1", "--lease", lease, "--checkpoint", "-", "--json", stdin=b"line 1\nline 2\n")
    assert ran.data["checkpoint"] == "line 1\nline 2"


@pytest.mark.parametrize(
    ("stdin", "word"),
    [(b"\xff\xfe", "UTF-8"), (b"x" * (CHECKPOINT_BYTES_MAX + 1), "longer than"), (None, "closed")],
)
def test_stdin_that_is_no_checkpoint_is_refused(terminal: Terminal, stdin: bytes | None, word: str) -> None:
    lease = terminal.claim("issue-1")
    ran = terminal("heartbeat", "issue-1", "--lease", lease, "--checkpoint", "-", stdin=stdin)
    assert ran.exit == 64
    assert word in ran.err


def test_stdin_is_for_one_flag_only(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1")
    both = ("--checkpoint", "-", "--done=1h", "--result", "-")
    assert terminal("release", "issue-1", "--lease", lease, *both, stdin=b"text").exit == 64
    assert terminal("owner", "issue-1").exit == 0


def test_stdin_may_be_as_long_as_a_checkpoint_with_a_newline_after_it(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1")
    full = b"x" * CHECKPOINT_BYTES_MAX + b"\n"
    assert terminal("heartbeat", "issue-1", "--lease", lease, "--checkpoint", "-", stdin=full).exit == 0


def test_a_result_without_done_is_a_mistake(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1")
    ran = terminal("release", "issue-1", "--lease", lease, "--result", "PR 77")
    assert ran.exit == 64
    assert "--result needs --done" in ran.err


@pytest.mark.parametrize("ttl", ["0", "-5", "1.5", "abc", "", "1500ms", "25h", "99999999999999999999", "NaN", "٣"])
def test_a_ttl_that_cannot_be_is_refused_as_one_and_claims_nothing(terminal: Terminal, ttl: str) -> None:
    ran = terminal("claim", "issue-1", "--ttl", ttl, "--json")
    assert ran.exit == 64
    assert ran.error["code"] == "invalid_ttl"
    assert ran.error["message"].startswith("--ttl")
    assert terminal("owner", "issue-1").exit == 1


@pytest.mark.parametrize(
    "flags",
    [("--lock-delay", "2m"), ("--lock-delay", "500ms"), ("--lock-delay", "x"), ("--owner", "o" * 257)],
)
def test_other_values_that_cannot_be_are_refused(terminal: Terminal, flags: tuple[str, str]) -> None:
    ran = terminal("claim", "issue-1", *flags, "--json")
    assert ran.exit == 64
    assert ran.error["code"] == "invalid_input"


@pytest.mark.parametrize("name", ["", "n" * 513, "a\nb", "a\x1b[2J", " a", "\udcff\udcfe", "a\u202eb"])
def test_a_name_that_cannot_be_is_refused_as_one(terminal: Terminal, name: str) -> None:
    for words in (("claim",), ("owner",), ("history",), ("break", "--reason", "x")):
        ran = terminal("--json", *words, "--", name)
        assert ran.exit == 64
        assert ran.error["code"] == "invalid_lock_name"


def test_text_that_is_not_unicode_is_refused_wherever_it_comes(terminal: Terminal) -> None:
    lease = terminal.claim("issue-1")
    assert terminal("claim", "b", "--owner", "\udcff", "--json").error["code"] == "invalid_input"
    ran = terminal("heartbeat", "issue-1", "--lease", lease, "--checkpoint", "\udcff", "--json")
    assert ran.error["code"] == "invalid_input"


def test_a_name_that_begins_with_a_dash_goes_after_two(terminal: Terminal) -> None:
    wrong = terminal("claim", "-y")
    assert wrong.exit == 64
    assert "dibs claim -- -y" in wrong.err
    ran = terminal("claim", "--", "-y")
    assert ran.exit == 0
    assert ran.out.rstrip().endswith(" -- -y")


def test_namespaces_keep_names_apart(terminal: Terminal) -> None:
    terminal.claim("issue-1")
    assert terminal("claim", "issue-1", "--namespace", "other").exit == 0
    terminal.env["DIBS_NAMESPACE"] = "other"
    assert terminal("owner", "issue-1").exit == 0
    assert terminal("claim", "x", "--namespace", "no spaces", "--json").error["code"] == "invalid_lock_name"
