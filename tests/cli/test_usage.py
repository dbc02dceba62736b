"""Typing errors are reported with a suggestion; with --json as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs._version import __version__
from dibs.cli.framework.parse import UsageError, parse, split_command
from dibs.cli.framework.registry import load, shipped_names
from dibs.core.durations import format_duration
from dibs.core.limits import DONE_MS_DEFAULT
from dibs.wire import codes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Terminal


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("get", "x"), "You may mean: dibs owner JOB, or dibs list"),
        (("logs",), "You may mean: dibs history JOB"),
        (("stop", "x"), "You may mean: dibs release JOB"),
        (("clam", "x"), "Did you mean claim?"),
        (("clame", "x"), "Did you mean claim?"),
        (("import", "nofile"), "There is no file nofile"),
        (("frobnicate",), "`dibs --help` lists them"),
        (("claim", "x", "--tll", "5"), "Did you mean --ttl?"),
        (("claim",), "claim needs JOB"),
        (("claim", "a", "b"), "b is one argument too many"),
        (("claim", "a", "--ttl"), "--ttl needs a value"),
        (("claim", "a", "--owner", "--again"), "--owner=--again"),
        (("claim", "a", "--again=yes"), "--again is a switch and takes no value"),
        (("--jsn", "claim", "a"), "Did you mean --json?"),
        (("--ttl", "5", "claim", "a"), "Put a command's flags after its name"),
        (("token",), "token needs one of: create"),
        (("token", "nwe", "x"), "token needs one of: create"),
        (("token", "create", "x", "--role", "king"), "--role must be one of viewer, agent, operator, admin"),
        (("completion", "tcsh"), "SHELL must be one of bash, zsh, fish"),
        (("webhook", "list", "x"), "takes no arguments"),
        (("webhook", "list", "sqlite:x.db"), "To name a store or server: --url sqlite:x.db"),
        (("claim", "a", "--owner", "\udcff"), "A word of the command is not UTF-8"),
        (("release",), "release needs JOB"),
        (("hisotry", "x"), "Did you mean history?"),
        (("heart", "x"), "Did you mean heartbeat?"),
        (("claimany", "x"), "Did you mean claim-any?"),
        (("claim", "a", "--owner", ""), "--owner is empty"),
        (("claim", "a", "--owner", "  "), "--owner is empty"),
        (("claim", "a", "--namespace", ""), "--namespace is empty"),
        (("session", "open", "--owner="), "--owner is empty"),
        (("run", "a", "--owner", "", "--", "true"), "--owner is empty"),
        (("claim", "a", "-x", "-s"), "--exclusive means one owner"),
        (("claim", "a", "-n", "-w", "5"), "--no-wait or --wait"),
        ((), "Which command?"),
    ],
)
def test_a_mistake_is_reported_with_what_helps(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    ran = terminal(*words)
    assert ran.exit == codes.USAGE
    assert ran.out == ""
    assert ran.err.startswith("dibs: ")
    assert says in ran.err
    assert terminal("--json", *words).error["code"] == "invalid_input"


def test_flags_stand_before_or_after_the_command_and_with_an_equals_sign(terminal: Terminal) -> None:
    before = terminal("--json", "--namespace", "n", "claim", "a").data
    after = terminal("claim", "b", "--namespace=n", "--json").data
    assert before.keys() == after.keys()
    assert terminal("list", "-q", "--namespace", "n").out == "a\nb\n"


def test_the_last_of_two_equal_flags_counts(terminal: Terminal) -> None:
    assert terminal("claim", "a", "--ttl", "5", "--ttl", "9", "--json").data["remaining_ms"] == 9000


def test_words_after_two_dashes_are_arguments(terminal: Terminal) -> None:
    assert terminal("claim", "--json", "--", "--json").data["name"] == "--json"


def test_a_value_may_look_like_a_number_with_a_sign() -> None:
    assert parse(load("claim"), ["a", "--ttl", "-5"])["ttl"] == "-5"


def test_a_lone_dash_is_an_argument() -> None:
    assert parse(load("claim"), ["-"])["job"] == "-"


def test_the_command_is_found_behind_global_flags() -> None:
    assert split_command(["--url", "claim", "list", "-q"]) == ("list", ["--url", "claim", "-q"])
    assert split_command(["-q"]) == (None, ["-q"])
    assert split_command(["--", "list"]) == ("list", [])
    with pytest.raises(UsageError):
        split_command(["nope"])


def test_version_and_help_work_everywhere(terminal: Terminal) -> None:
    said = terminal("--version", "--json").data
    commit = f" ({said['commit']})" if said["commit"] else ""
    assert terminal("--version").out == f"dibs {__version__}{commit}\n"
    assert terminal("--version", "--quiet").out == f"{__version__}\n"
    assert said["version"] == __version__
    assert terminal("-V", "--verbose").out.startswith(f"version            {__version__}\ncommit ")
    assert {"python", "system", "sqlite", "psycopg", "store format"} < {
        *terminal("version", "--verbose", "--json").data
    }
    assert terminal("help", "claim").out == terminal("claim", "--help").out
    assert terminal("help").out == terminal("-h").out
    assert "Usage: dibs token create" in terminal("token", "create", "--help").out
    assert "help" in terminal("list", "--help", "--json").data


@pytest.mark.fault("F-495")
@pytest.mark.parametrize("first", sorted({name.split(" ")[0] for name in shipped_names() if " " in name}))
def test_the_help_of_a_family_names_all_its_commands(terminal: Terminal, first: str) -> None:
    commands = [name for name in shipped_names() if name.startswith(f"{first} ")]
    for words in ((first, "--help"), ("help", first)):
        if words == ("help", "git"):  # the group, which has more
            continue
        said = terminal(*words).out
        assert said.startswith(f"Usage: dibs {first} COMMAND")
        assert [name for name in commands if f"  {name} " not in said] == []


def test_the_overview_is_one_screen_and_names_a_way_to_every_command(terminal: Terminal) -> None:
    assert len(terminal("--help").out.splitlines()) <= 40
    every = terminal("help", "all").out
    assert [name for name in shipped_names() if f"  {name} " not in every] == []
    assert "lock acquire" in terminal("help", "compatibility").out
    assert "run-secret end" in terminal("help", "compatibility").out
    assert "claim-any" not in terminal("help", "compatibility").out


@pytest.mark.parametrize(("word", "meant"), [("kill", "dibs break"), ("done", "--done"), ("fail", "--failed")])
def test_a_word_that_people_try_names_the_command_that_does_it(terminal: Terminal, word: str, meant: str) -> None:
    seen = terminal(word, "issue-1842")
    assert seen.exit == 64
    assert meant in seen.err


@pytest.mark.parametrize("name", shipped_names())
def test_every_command_has_help_with_examples_and_exit_codes(terminal: Terminal, name: str) -> None:
    command = load(name)
    assert command.name == name
    assert command.examples
    assert all(f"dibs {name}" in line for line, _ in command.examples[:1])
    assert command.exits[0][0] == 0
    out = terminal(*name.split(" "), "--help").out
    assert all(option.flag in out for option in command.options)
    assert max(map(len, out.splitlines()[1:])) <= 110


def test_a_fault_of_ours_is_one_line_and_70_and_a_traceback_only_when_asked_for(terminal: Terminal) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("two\nlines")

    terminal._open = fail  # type: ignore[method-assign, assignment]
    ran = terminal("list")
    assert ran.exit == codes.INTERNAL
    assert ran.err.count("\n") == 1
    assert "RuntimeError: two lines" in ran.err
    assert terminal("list", "--json").error["code"] == "internal_error"
    terminal.env["DIBS_DEBUG"] = "1"
    assert "Traceback" in terminal("list").err


@pytest.mark.parametrize(
    "words",
    [("session-like",), ("verison-of",), ("unlok-all",), ("statistics",), ("claim", "a", "--hots", "x")],
)
def test_a_word_that_only_looks_alike_is_not_suggested(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert "Did you mean" not in terminal(*words).err


def test_whoever_types_lock_for_claim_is_told_the_word(terminal: Terminal) -> None:
    assert "To claim a job: dibs claim issue-1." in terminal("lock", "issue-1").err


def test_words_that_people_type_for_a_command_work(terminal: Terminal) -> None:
    for version in ("version", "-V"):
        assert terminal(version).out == terminal("--version").out
    assert terminal("acquire", "a", "--owner", "ann").exit == 0
    assert terminal("status").out == terminal("list").out == terminal("ls").out
    assert terminal("status", "a").out == terminal("owner", "a").out
    assert terminal("status", "--prefix", "a").out.startswith("JOB")
    lease = terminal.claim("b")
    assert terminal("renew", "b", "--lease", lease).exit == 0
    assert terminal("unlock", "b", "--lease", lease).exit == 0
    assert terminal("unlock", "--help").out == terminal("release", "--help").out


@pytest.mark.parametrize(
    ("words", "names"),
    [((), "DIBS_LEASE must be"), (("--lease", "nonsense"), "--lease must be")],
    ids=["variable", "flag"],
)
def test_a_lease_id_that_is_none_is_named_by_where_it_was_given(
    terminal: Terminal, words: tuple[str, ...], names: str
) -> None:
    terminal.env["DIBS_LEASE"] = "nonsense"
    ran = terminal("release", "a", *words)
    assert (ran.exit, ran.err.startswith(f"dibs: {names} an id as dibs gave it")) == (64, True), ran


def test_flags_mean_what_they_mean_in_flock(terminal: Terminal) -> None:
    assert terminal("claim", "a", "-n", "-x").exit == 0
    assert terminal("claim", "a", "-w0").exit == 1
    assert terminal("claim", "a", "-w", "1").exit == 1
    for reader in ("one", "two"):
        assert terminal("claim", "docs", "-s", "--owner", reader).exit == 0
    assert terminal("claim", "docs", "-x").exit == 1


def test_claiming_again_under_the_same_name_says_what_proves_it(terminal: Terminal) -> None:
    terminal.claim("a")
    ran = terminal("claim", "a")
    assert ran.exit == 1
    assert ran.out.splitlines()[-2:] == [
        "That is your own owner name, which proves nothing: another process of yours may have the job.",
        "If you claimed it by hand, the claim printed a lease id, for --lease. With --actor NAME you need none.",
    ]
    assert "which proves nothing" in terminal("claim", "a", "--json").error["message"]
    assert "which proves nothing" not in terminal("claim", "a", "--owner", "bob").out


@pytest.mark.parametrize("words", [("heartbeat", "a"), ("release", "a"), ("transfer", "a", "--to", "bob")])
def test_whoever_gives_no_proof_is_told_each_that_the_claim_may_have(
    terminal: Terminal, words: tuple[str, ...]
) -> None:
    terminal("claim", "a", "--actor", "agent-7")  # which shows no lease id
    ran = terminal(*words)
    assert ran.exit == 64
    assert ran.err.splitlines()[:2] == [
        f"dibs: {words[0]} must know that the claim is yours: name yourself as in the claim, with --actor or "
        "--session.",
        "A claim without either printed a lease id: --lease ID.",
    ]
    assert terminal(*words, "--actor", "agent-7").exit == 0


@pytest.mark.parametrize("command", ["export", "import", "migrate", "doctor"])
def test_a_store_is_named_by_url_and_the_argument_is_another_way_to_write_it(terminal: Terminal, command: str) -> None:
    one, other = "sqlite:///srv/one.db", "sqlite:///srv/other.db"
    ran = terminal(command, "--url", one, other)
    assert ran.exit == 64
    assert "--url names one store, and the argument URL another. Give one of them." in ran.err
    for words in (["--url", one], [one], ["--url", one, one]):
        assert parse(load(command), words)["url"] == one


def test_the_store_to_serve_may_be_named_by_url(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # a server's token is made before its store is opened
    two = terminal("serve", "--url", "sqlite:///srv/one.db", "--store", "sqlite:///srv/other.db")
    assert two.exit == 64
    assert "--url names one store, and --store another. Give one of them." in two.err
    server = terminal("serve", "--url", "http://127.0.0.1:3427")
    assert server.exit == 64
    assert "--url names the store to serve, not a server. --bind names the address." in server.err
    opened = terminal("serve", "--url", "nonsense://x")
    assert "nonsense" in opened.err


def test_a_usage_error_is_two_lines_within_a_terminal(terminal: Terminal) -> None:
    shown = terminal("claim", "a", "--tll", "5").err.splitlines()
    assert len(shown) == 2
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize("name", shipped_names())
def test_help_fits_a_terminal_of_80_columns(terminal: Terminal, name: str) -> None:
    lines = terminal(*name.split(" "), "--help").out.splitlines()
    examples = {line for line, _ in load(name).examples}
    assert [line for line in lines if len(line) > 80 and line.strip() not in examples] == []


@pytest.mark.parametrize(
    ("words", "done", "jobs"),
    [
        (("--done", "issue-1"), "1d", ["issue-1"]),
        (("issue-1", "--done"), "1d", ["issue-1"]),
        (("--done=1h", "issue-1"), "1h", ["issue-1"]),
        (("--done", "issue-1", "issue-2"), "1d", ["issue-1", "issue-2"]),
        (("issue-1", "--done", "--result", "x"), "1d", ["issue-1"]),
        (("--done", "--", "42"), "1d", ["42"]),
        (("42", "43", "--done"), "1d", ["42", "43"]),
    ],
)
def test_done_alone_means_a_day_and_does_not_take_the_job_for_a_time(
    words: tuple[str, ...], done: str, jobs: list[str]
) -> None:
    values = parse(load("release"), words)
    assert (values["done"], values["job"]) == (done, jobs)


@pytest.mark.fault("F-331")
@pytest.mark.parametrize(
    "words",
    [
        ("release", "--done", "42", "43"),
        ("release", "43", "--done", "42"),
        ("release", "issue-1", "--done", "1h"),
        ("run", "nightly", "--done", "20h", "--", "true"),
        ("run", "--done", "20h", "--", "true"),
        ("run", "nightly", "--done", "tomorrow", "--", "true"),
    ],
)
def test_a_flag_with_an_optional_value_takes_it_by_an_equals_sign_only(
    terminal: Terminal, words: tuple[str, ...]
) -> None:
    ran = terminal(*words)
    assert ran.exit == codes.USAGE
    assert "--done takes a time with = only" in ran.err


@pytest.mark.fault("F-331")
@pytest.mark.parametrize("word", ["1w", "tomorrow", "forever"])
def test_a_word_behind_done_that_is_no_job_of_the_callers_releases_nothing(terminal: Terminal, word: str) -> None:
    session = terminal.session()
    terminal("claim", "a", "--session", session)
    before = terminal.store.events(0, 99)
    ran = terminal("release", "a", "--session", session, "--done", word)
    assert ran.exit == codes.USAGE
    assert f"{word} stands behind --done and is no job of yours" in ran.err
    assert terminal.store.events(0, 99) == before
    assert terminal("release", "--done", "a", word, "--session", session).exit == codes.NOT_YOURS  # `a` is named first
    assert terminal("claim", "a").exit == codes.DONE


def test_a_job_behind_done_that_was_lost_does_not_keep_the_others(terminal: Terminal) -> None:
    session = terminal.session()
    for name in ("a", "b"):
        terminal("claim", name, "--session", session)
    terminal("break", "a", "--reason", "stuck")
    assert terminal("release", "--done", "a", "b", "--session", session).exit == codes.NOT_YOURS
    assert terminal("claim", "b").exit == codes.DONE


def test_run_takes_done_without_a_time_before_its_job() -> None:
    values = parse(load("run"), ("--done", "nightly", "--", "true"))
    assert (values["done"], values["job"]) == (format_duration(DONE_MS_DEFAULT), "nightly")


def test_a_time_that_is_none_is_refused_after_an_equals_sign(terminal: Terminal) -> None:
    ran = terminal("release", "issue-1", "--done=soon", "--lease", "x")
    assert ran.exit == 64
    assert "--done" in ran.err


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("break", "issue-1"), "--reason TEXT"),
        (("transfer", "issue-1"), "(--to OWNER | --to-session ID)"),
        (("git", "push"), "--job JOB"),
        (("run-secret", "create"), "--holder NAME"),
    ],
)
def test_a_flag_that_is_required_is_shown_as_such_and_asked_for(
    terminal: Terminal, words: tuple[str, ...], needed: str
) -> None:
    ran = terminal(*words)
    assert ran.exit == 64
    first, usage = ran.err.splitlines()
    assert f" needs {needed.strip('()').replace(' | ', ' or ')}: " in first
    assert needed in usage
    assert f" {needed}" in " ".join(terminal(*words[:2], "--help").out.split())


def test_a_hold_without_a_job_says_so(terminal: Terminal) -> None:
    assert terminal("hold").err.startswith("dibs: hold needs JOB: ")
