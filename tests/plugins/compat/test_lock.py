"""`dibs lock`: grite's words in, grite's documents, texts, codes and exit codes out."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from dibs.agents.shell_actor import RememberedLeases
from dibs.compat.grite.documents import lock_code
from dibs.core.commands import Freeze
from dibs.engine.coordinator import run_one
from dibs.wire.codes import CODES, OUTCOMES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal

EXPIRES = "2025-11-15 02:44:05 UTC"
EXPIRES_MS = 1_763_172_845_123 + 30 * 60_000


@pytest.fixture(autouse=True)
def _at_home(terminal: Terminal, tmp_path: Path) -> None:
    terminal.env.update(XDG_STATE_HOME=str(tmp_path), DIBS_ACTOR="64d15a2c")


def test_acquire_says_it_in_the_words_of_the_guide(terminal: Terminal) -> None:
    ran = terminal("lock", "acquire", "--resource", "issue:8057324b", "--ttl", "30m")
    assert ran.exit == 0
    assert ran.out == f"Lock acquired\n  Resource: issue:8057324b\n  Expires: {EXPIRES}\n"
    assert terminal("lock", "acquire", "-q", "issue:2").out == ""


def test_acquire_has_the_fields_of_the_documentation_and_of_the_program(terminal: Terminal) -> None:
    data = terminal("lock", "acquire", "path:src/api.rs", "--ttl", "1800", "--json").data
    lock = data.pop("lock")
    assert set(lock) == {"resource", "owner", "nonce", "expires_unix_ms"}
    assert {key: data[key] for key in lock} == lock
    assert (lock["resource"], lock["owner"], lock["expires_unix_ms"]) == (
        "path:src/api.rs",
        "64d15a2c",
        EXPIRES_MS,
    )
    assert data["ttl_seconds"] == 1800
    assert data["fencing_token"] == 1
    assert terminal("release", "path:src/api.rs", "--lease", lock["nonce"]).exit == 0


def test_without_a_ttl_a_lock_lasts_five_minutes(terminal: Terminal) -> None:
    assert terminal("lock", "acquire", "a", "--json").data["ttl_seconds"] == 300
    terminal.wait(299)
    assert terminal("lock", "status", "--json").data["total"] == 1
    terminal.wait(1)
    assert terminal("lock", "status", "--json").data["total"] == 0


def test_a_conflict_says_who_and_until_when_on_stderr_with_exit_4(terminal: Terminal) -> None:
    terminal("lock", "acquire", "issue:1", "--ttl", "30m", "--actor", "e5f6a7b8")
    ran = terminal("lock", "acquire", "issue:1")
    assert (ran.exit, ran.out) == (4, "")
    assert ran.err == f"Error: Lock conflict\n  Resource: issue:1\n  Owner: e5f6a7b8\n  Expires: {EXPIRES}\n"
    error = terminal("lock", "acquire", "issue:1", "--json").error
    assert error["code"] == "conflict"
    assert error["message"] == "conflict: Lock on issue:1 is held by e5f6a7b8 (expires in 1800s)"
    assert error["details"]["owner"] == "e5f6a7b8"
    assert error["details"]["expires_unix_ms"] == EXPIRES_MS
    assert error["details"]["suggestions"]


@pytest.mark.promise("tree")
def test_overlapping_paths_conflict_and_the_answer_names_the_one_in_the_way(terminal: Terminal) -> None:
    terminal("lock", "acquire", "path:src/", "--actor", "other")
    ran = terminal("lock", "acquire", "path:src/auth.rs")
    assert ran.exit == 4
    assert ran.err.endswith("  Overlaps: path:src\n")
    assert terminal("lock", "acquire", "repo:deploy").exit == 4
    assert terminal("lock", "acquire", "path:docs").exit == 0
    assert terminal("lock", "acquire", "issue:1").exit == 0


def test_what_is_done_or_parked_is_a_conflict_that_says_so(terminal: Terminal) -> None:
    lease = terminal.claim("issue:1")
    terminal("release", "issue:1", "--lease", lease, "--done=1h")
    ran = terminal("lock", "acquire", "issue:1")
    assert ran.exit == 4
    assert "issue:1 was done by " in ran.err


def test_renew_starts_the_time_anew_and_keeps_the_nonce(terminal: Terminal) -> None:
    nonce = terminal("lock", "acquire", "a", "--ttl", "1m", "--json").data["nonce"]
    terminal.wait(30)
    data = terminal("lock", "renew", "--resource", "a", "--ttl", "2h", "--json").data
    assert (data["nonce"], data["owner"], data["ttl_seconds"]) == (nonce, "64d15a2c", 7200)
    assert data["expires_unix_ms"] == 1_763_172_845_123 + 30_000 + 7_200_000
    assert terminal("lock", "renew", "a").out.startswith("Lock renewed\n  Resource: a\n  Expires: ")
    assert terminal("lock", "renew", "a", "--json").data["ttl_seconds"] == 7200


@pytest.mark.promise("proof")
def test_only_the_holder_renews_and_releases(terminal: Terminal) -> None:
    terminal("lock", "acquire", "a", "--actor", "other")
    for verb in ("renew", "release"):
        error = terminal("lock", verb, "a", "--json").error
        assert (error["code"], error["details"]["owner"]) == ("conflict", "other")
        assert error["message"] == f"conflict: Cannot {verb} lock on a - owned by other"
        assert terminal("lock", verb, "a").exit == 4
        assert terminal("lock", verb, "a", "--lease", "00000000-0000-4000-8000-000000000000").exit == 4


def test_what_ran_out_is_not_revived(terminal: Terminal) -> None:
    terminal("lock", "acquire", "a", "--ttl", "1m")
    terminal.wait(60)
    ran = terminal("lock", "renew", "a")
    assert ran.exit == 4
    assert "nobody holds it" in ran.err
    again = terminal("lock", "acquire", "a", "--json").data
    assert again["fencing_token"] == 2


def test_a_late_release_leaves_the_next_holder_alone(terminal: Terminal) -> None:
    terminal("lock", "acquire", "a", "--ttl", "1m")
    terminal.wait(60)
    terminal("lock", "acquire", "a", "--actor", "next")
    assert terminal("lock", "release", "a").exit == 4
    assert terminal("lock", "status", "--json").data["locks"][0]["owner"] == "next"
    assert terminal("lock", "acquire", "a").exit == 4


def test_release_lets_go_and_what_nobody_holds_is_released_already(terminal: Terminal) -> None:
    nonce = terminal("lock", "acquire", "a", "--json").data["nonce"]
    assert terminal("lock", "release", "--resource", "a", "--json").data == {
        "resource": "a",
        "released": True,
        "was_held": True,
        "lock": {"resource": "a", "owner": "64d15a2c", "nonce": nonce, "expires_unix_ms": 0},
    }
    again = terminal("lock", "release", "a", "--json").data
    assert (again["released"], again["was_held"]) == (True, False)


def test_status_lists_what_is_held_in_the_words_of_the_guide(terminal: Terminal) -> None:
    assert terminal("lock", "status").out == "No active locks\n"
    terminal("lock", "acquire", "issue:8057324b", "--ttl", "25m")
    terminal("lock", "acquire", "path:src/api.rs", "--ttl", "55m", "--actor", "e5f6a7b8")
    assert terminal("lock", "status").out.splitlines() == [
        "Active Locks:",
        "  issue:8057324b   64d15a2c  expires in 25m",
        "  path:src/api.rs  e5f6a7b8  expires in 55m",
    ]
    data = terminal("lock", "status", "--json").data
    assert (data["total"], data["conflicts"]) == (2, [])
    assert data["locks"][0] == {
        "resource": "issue:8057324b",
        "owner": "64d15a2c",
        "expires_unix_ms": 1_763_172_845_123 + 25 * 60_000,
        "time_remaining_seconds": 1500,
        "expired": False,
        "fencing_token": 1,
    }
    assert terminal("lock", "status", "path:./src//api.rs", "--json").data["total"] == 1


def test_no_lease_id_is_shown_to_others(terminal: Terminal) -> None:
    nonce = terminal("lock", "acquire", "a", "--json").data["nonce"]
    terminal.env["DIBS_ACTOR"] = "other"
    for words in (("status",), ("acquire", "a"), ("renew", "a"), ("release", "a")):
        assert nonce not in terminal("lock", *words, "--json").out


def test_gc_counts_what_it_put_away(terminal: Terminal) -> None:
    terminal("lock", "acquire", "a", "--ttl", "1m")
    terminal("lock", "acquire", "b", "--ttl", "1h")
    terminal.wait(60)
    assert terminal("lock", "gc", "--json").data == {"removed": 1, "kept": 1, "expired_pruned": 1}
    assert terminal("lock", "gc").out == "Removed 0 expired, kept 1.\n"


def test_several_holders_of_one_resource_are_each_listed(terminal: Terminal) -> None:
    terminal.claim("path:docs", "--shared", "--actor", "one")
    terminal.claim("path:docs", "--shared", "--actor", "two")
    locks = terminal("lock", "status", "--json").data["locks"]
    assert [lock["owner"] for lock in locks] == ["one", "two"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "lock needs one of"),
        (("acquire",), "needs a resource"),
        (("acquire", "a", "--resource", "b"), "given twice"),
        (("acquire", "a", "--ttl", "0"), "a lease lasts from 1s"),
        (("acquire", "a", "--ttl", "soon"), "is not a lease time"),
        (("acquire", "a", "--tll", "5"), "Did you mean --ttl?"),
        (("acquire", ""), "may not be empty"),
        (("acquire", "path:../x"), "may not hold '..'"),
        (("acquire", "a", "--actor", " "), "--actor"),
        (("renew", "a", "--lease", ""), "--lease is empty"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_2_and_a_reason(
    terminal: Terminal, words: tuple[str, ...], told: str
) -> None:
    ran = terminal("lock", *words)
    assert ran.exit == 2
    assert told in ran.err
    assert terminal("lock", *words, "--json").error["message"]


@pytest.mark.fault("F-769")
def test_a_store_or_server_that_cannot_be_reached_has_grites_code_and_exit(tmp_path: Path) -> None:
    from tests.programs import clean_env, dibs

    (tmp_path / "file").write_text("")
    env = clean_env(tmp_path, DIBS_ACTOR="a")
    ran = dibs(env, "lock", "acquire", "a", "--json", "--url", f"sqlite://{tmp_path}/file/x.db")
    assert (ran.exit, ran.error["code"]) == (5, "io_error")
    for verb in ("acquire", "renew", "release"):
        ran = dibs(env, "lock", verb, "a", "--json", "--url", "http://127.0.0.1:1")
        assert (verb, ran.exit, ran.error["code"]) == (verb, 6, "ipc_error")


@pytest.mark.fault("F-769")
def test_a_store_that_cannot_be_asked_says_nothing_about_who_has_the_lock(terminal: Terminal) -> None:
    terminal("lock", "acquire", "issue:77", "--actor", "me")
    run_one(terminal.store, Freeze(id="import", incomplete=True))
    for verb in ("release", "renew"):
        for who in ("me", "other"):
            answer = terminal("lock", verb, "issue:77", "--actor", who)
            assert (verb, who, answer.exit) == (verb, who, 5)
            assert "is not complete" in answer.err


def test_every_word_of_ours_has_one_of_grites() -> None:
    refusals = {row.word for row in OUTCOMES.values() if row.exit and row.word not in CODES}
    for word in {*CODES, *refusals} - {"internal_error"}:
        assert lock_code(word, server=False) != ("internal_error", 1), word


# What is remembered, and for whom.


def test_a_lock_of_one_namespace_says_nothing_about_another(terminal: Terminal) -> None:
    terminal("lock", "acquire", "a", "--namespace", "one")
    terminal("lock", "acquire", "a", "--namespace", "two", "--actor", "other")
    assert terminal("lock", "release", "a", "--namespace", "two").exit == 4
    assert terminal("lock", "release", "a", "--namespace", "one").exit == 0


def test_only_its_owner_can_read_what_is_remembered(terminal: Terminal, tmp_path: Path) -> None:
    terminal("lock", "acquire", "a")
    folder = tmp_path / "dibs" / "locks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())
    terminal("lock", "release", "a")
    assert [file.name for file in folder.iterdir()] == ["gate"]


@pytest.mark.promise("idem:acquire")
def test_a_command_that_died_before_it_heard_the_answer_finds_its_lease_again(
    terminal: Terminal, tmp_path: Path
) -> None:
    first = terminal("lock", "acquire", "a", "--json").data
    memory = RememberedLeases(terminal.env, None, None, 0)
    [entry] = memory.entries("a")
    memory.remember("a", {**entry, "lease_id": None, "token": None})  # as it was when the request was sent
    assert terminal("lock", "acquire", "a", "--json").data["nonce"] == first["nonce"]
    assert terminal("lock", "release", "a").exit == 0


def test_a_refused_acquire_leaves_nothing_behind(terminal: Terminal, tmp_path: Path) -> None:
    terminal("lock", "acquire", "a", "--actor", "other")
    terminal("lock", "acquire", "a")
    assert [entry["owner"] for entry in RememberedLeases(terminal.env, None, None, 0).entries("a")] == ["other"]


def test_where_nothing_can_be_written_the_lease_is_shown(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    terminal.env["XDG_STATE_HOME"] = str(tmp_path / "file")
    ran = terminal("lock", "acquire", "a")
    assert ran.exit == 0
    assert "pass it with --lease" in ran.out


@pytest.mark.parametrize(("folder", "left"), [("locks", 0), ("*", 1)])
def test_a_broken_file_is_as_good_as_forgotten(terminal: Terminal, tmp_path: Path, folder: str, left: int) -> None:
    terminal("lock", "acquire", "a")
    for file in (tmp_path / "dibs").glob(f"{folder}/*"):
        os.truncate(file, min(5, file.stat().st_size))
    # Where the lease is forgotten, the session of the name proves it.
    assert terminal("lock", "release", "a").exit == (4 if left else 0)
    assert terminal("lock", "status", "--json").data["total"] == left


@pytest.mark.fault("F-305")
@pytest.mark.parametrize("who", [{"DIBS_ACTOR": "me"}, {"DIBS_ACTOR": "", "GRITE_HOME": "/tmp/home-of-me"}])
def test_an_actors_own_lock_is_not_in_its_way(terminal: Terminal, who: dict[str, str]) -> None:
    terminal.env |= who
    for resource in ("path:src", "path:src/a.rs", "repo:x", "repo:y", "issue:1"):
        assert terminal("lock", "acquire", resource).exit == 0
    assert terminal("lock", "acquire", "path:src/b.rs", "--actor", "other").exit == 4
    assert terminal("lock", "renew", "repo:x", "--ttl", "2h").exit == 0
    terminal.now_ms += 60 * 60_000  # the others have run out, each by its own TTL
    assert terminal("lock", "status", "--json").data["total"] == 1
    assert terminal("lock", "release", "repo:x").exit == 0
    assert terminal("lock", "acquire", "path:src/b.rs", "--actor", "other").exit == 0


@pytest.mark.fault("F-305")
def test_a_named_actor_is_the_same_worker_in_lock_and_claim(terminal: Terminal) -> None:
    me = ("--actor", "me")
    assert terminal("claim", "path:src", *me).exit == terminal("lock", "acquire", "path:src/a.rs", *me).exit == 0
    assert terminal("lock", "acquire", "path:src", *me).exit == 0
    assert terminal("lock", "release", "path:src", *me).exit == 0
    assert terminal("release", "path:src/a.rs", *me).exit == 0
    terminal("claim", "issue:1", *me)
    assert terminal("lock", "renew", "issue:1", *me).exit == 0
    assert terminal("lock", "release", "issue:1", *me).exit == 0
    assert terminal("lock", "release", "issue:1", *me).exit == 0  # nobody has it
    terminal("lock", "acquire", "repo:x", *me)
    assert terminal("release", "--mine", *me).out == "Released repo:x. It can be claimed.\n"


def test_a_lock_that_was_taken_without_a_session_is_still_the_actors(terminal: Terminal, tmp_path: Path) -> None:
    """A version before 0.3 took them so."""
    memory = RememberedLeases(terminal.env, None, None, terminal.now_ms)
    body = terminal("claim", "path:src", "--request-key", "key-1", "--owner", "64d15a2c", "--ttl", "30m", "--json")
    assert body.exit == 0, body.err
    marks = {"marks": ["name:64d15a2c"], "parent": None, "owner": "64d15a2c", "request_key": "key-1"}
    lease = {"lease_id": body.data["lease_id"], "token": 1, "until_ms": terminal.now_ms + 30 * 60_000}
    memory.remember("path:src", marks | lease)
    assert terminal("lock", "acquire", "path:src", "--json").data["nonce"] == body.data["lease_id"]
    assert terminal("lock", "renew", "path:src").exit == terminal("lock", "release", "path:src").exit == 0


def test_inside_a_session_the_session_is_the_holder(terminal: Terminal) -> None:
    terminal.env["DIBS_SESSION"] = terminal.session("--owner", "worker-1")
    assert terminal("lock", "acquire", "path:src", "--json").data["owner"] == "worker-1"
    assert terminal("lock", "acquire", "path:src/a").exit == 0  # its own claim is not in its way
    assert terminal("lock", "release", "path:src/a", "--actor", "worker-1").exit == 4
    assert terminal("lock", "release", "path:src/a").exit == 0
    terminal("session", "end")
    assert terminal("lock", "acquire", "path:src").exit == 4
    assert terminal("lock", "status", "--json").data["total"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--actor", "a1", "--json", "lock", "acquire", "issue:1"),
        ("lock", "--actor", "a1", "--json", "acquire", "issue:1"),
        ("lock", "acquire", "--actor=a1", "issue:1", "--json"),
        ("--json", "lock", "--no-daemon", "--actor", "a1", "acquire", "issue:1"),
    ],
)
def test_flags_stand_before_or_after_the_verb(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert terminal(*words).data["owner"] == "a1"


def test_a_flag_of_lock_before_another_command_is_refused_there(terminal: Terminal) -> None:
    assert "--data-dir is not a flag of dibs list" in terminal("--data-dir", "x", "list").err


def test_a_folder_stands_for_an_actor_as_in_grite(terminal: Terminal, tmp_path: Path) -> None:
    del terminal.env["DIBS_ACTOR"]
    home = tmp_path / "agent-home"
    assert terminal("--data-dir", str(home), "lock", "acquire", "a", "--json").data["owner"] == "agent-home"
    terminal.env["GRITE_HOME"] = str(tmp_path / "other-home")
    assert terminal("lock", "release", "a").exit == 4
    assert terminal("lock", "acquire", "b", "--json").data["owner"] == "other-home"
    terminal.env["GRITE_HOME"] = str(home)
    assert terminal("lock", "acquire", "a").exit == 0
    assert terminal("lock", "release", "a").exit == 0
    assert terminal("lock", "release", "b", "--data-dir", "").exit == 2


def test_an_actor_s_folder_and_its_id_are_one_actor(terminal: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / ".git" / "grite" / "actors" / "64d15a2c"
    assert terminal("lock", "acquire", "a", "--data-dir", str(folder)).exit == 0
    assert terminal("lock", "release", "a", "--actor", "64d15a2c", "--json").data["was_held"] is True


def test_a_name_wins_over_a_folder_and_a_flag_over_a_variable(terminal: Terminal, tmp_path: Path) -> None:
    terminal.env["GRITE_HOME"] = str(tmp_path / "home")
    assert terminal("lock", "acquire", "a", "--json").data["owner"] == "64d15a2c"
    assert terminal("lock", "acquire", "b", "--data-dir", "x/y", "--json").data["owner"] == "y"
    assert terminal("lock", "acquire", "c", "--actor", "n", "--data-dir", "x/y", "--json").data["owner"] == "n"


@pytest.mark.parametrize("given", ["path:src/", "path:./src", "path:src//"])
def test_a_resource_comes_back_as_it_was_given(terminal: Terminal, given: str) -> None:
    got = terminal("lock", "acquire", "--resource", given, "--json").data
    assert (got["resource"], got["lock"]["resource"]) == (given, given)
    [listed] = terminal("lock", "status", "--json").data["locks"]
    assert listed["resource"] == given
    refused = terminal("lock", "acquire", given, "--actor", "other", "--json").error
    assert (refused["details"]["resource"], given in refused["message"]) == (given, True)
    assert terminal("lock", "renew", given, "--json").data["resource"] == given
    assert terminal("lock", "release", "path:src", "--json").data["resource"] == "path:src"


def test_metadata_cannot_make_a_lock_look_like_another(terminal: Terminal) -> None:
    terminal.claim("path:src", "--metadata", "resource=path:docs")
    terminal.claim("other", "--metadata", "resource=path:..")
    names = [lock["resource"] for lock in terminal("lock", "status", "--json").data["locks"]]
    assert names == ["other", "path:src"]
