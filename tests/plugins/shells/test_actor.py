"""Without a lease id, commands of one shell, or with one given name, are the same caller."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.plugins.shells.conftest import finished

if TYPE_CHECKING:
    import subprocess as _subprocess

    from tests.plugins.shells.conftest import Shells

pytestmark = [pytest.mark.e2e, pytest.mark.promise("excl:same-token"), pytest.mark.full]

GET = "dibs lock acquire job --ttl 10m --json"


def first_line(child: _subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_two_shells_of_one_user_exclude_each_other(shells: Shells, shell: str) -> None:
    first = shells.start("dibs lock acquire job -q && echo mine\nread line\ndibs lock release job", shell=shell)
    assert first_line(first) == "mine"
    second = shells("dibs lock acquire job; dibs lock renew job; dibs lock release job", shell=shell)
    assert second.exit == 4
    assert second.out == ""
    assert second.err.count("Error:") == 3
    assert first.stdin is not None
    first.stdin.write("\n")
    ended = finished(first)
    assert (ended.exit, ended.out.splitlines()[0]) == (0, "Lock released")


@pytest.mark.promise("excl")
def test_of_many_shells_at_once_one_gets_it(shells: Shells) -> None:
    script = "until [ -e go ]; do sleep 0.01; done\ndibs lock acquire job -q 2>/dev/null && echo got"
    racers = [shells.start(script) for _ in range(6)]
    (shells.home / "go").touch()
    told = [finished(racer).out.split() for racer in racers]
    assert sorted(told) == [[], [], [], [], [], ["got"]]


def test_two_commands_of_one_shell_at_once_are_one_holder(shells: Shells) -> None:
    ran = shells(
        f"{GET} > 1 & {GET} > 2 & wait\nfield data.nonce < 1\nfield data.nonce < 2\ndibs lock release job | head -1"
    )
    one, two, *released = ran.out.splitlines()
    assert one == two
    assert released == ["Lock released"]


def test_the_same_shell_that_asks_again_has_the_same_lease(shells: Shells) -> None:
    ran = shells(f"{GET} | field data.nonce; {GET} | field data.nonce")
    one, two = ran.out.split()
    assert one == two


def test_a_shell_that_lost_the_lock_gets_a_new_lease(shells: Shells) -> None:
    ran = shells(f"{GET} | field data.nonce; dibs break job -q --reason test; {GET} | field data.nonce")
    one, two = ran.out.split()
    assert one != two


def test_workers_in_subshells_of_one_script_exclude_each_other(shells: Shells) -> None:
    script = "worker() { dibs lock acquire job >/dev/null 2>&1 && echo got || echo no; : > done-$1; cat; }\n"
    script += "worker 1 < /dev/null & worker 2 < /dev/null & worker 3 </dev/null & wait"
    for shell in ("sh", "bash"):
        ran = shells(script, shell=shell)
        assert sorted(ran.out.split()) == ["got", "no", "no"], ran
        shells("dibs break job --reason next")


def test_a_subshell_neither_takes_nor_releases_what_its_shell_holds(shells: Shells) -> None:
    ran = shells("dibs lock acquire job -q\n(dibs lock acquire job; echo $?; dibs lock release job; echo $?)\n:")
    assert ran.out.split() == ["4", "4"]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_loop_in_the_background_keeps_the_lock_alive(shells: Shells, shell: str) -> None:
    ran = shells(
        "dibs lock acquire job -q\n"
        "(for i in 1 2; do dibs lock renew job --ttl 2h | head -1; done) & wait\ndibs lock release job | head -1",
        shell=shell,
    )
    assert ran.out.splitlines() == ["Lock renewed", "Lock renewed", "Lock released"], ran


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_what_a_command_substitution_acquired_is_the_shells(shells: Shells, shell: str) -> None:
    ran = shells(
        f"nonce=$({GET} | field data.nonce)\ndibs lock release job --json | field data.lock.nonce\necho $nonce",
        shell=shell,
    )
    one, two = ran.out.split()
    assert one == two


def test_what_another_subshell_left_behind_is_not_a_siblings(shells: Shells) -> None:
    ran = shells("(dibs lock acquire job -q; :)\n(dibs lock acquire job -q; echo $?; dibs lock renew job; echo $?)\n:")
    assert ran.out.split() == ["4", "4"]


def test_a_script_that_a_shell_starts_is_another_caller(shells: Shells) -> None:
    (shells.home / "child").write_text("dibs lock acquire job -q; echo $?; dibs lock renew job -q; echo $?\n")
    ran = shells("dibs lock acquire job -q\nsh child\ndibs lock renew job -q; echo $?")
    assert ran.out.split() == ["4", "4", "0"]


def test_a_program_that_wraps_the_command_is_seen_through(shells: Shells) -> None:
    ran = shells("timeout 20 dibs lock acquire job -q\ndibs lock release job | head -1")
    assert ran.out == "Lock released\n"


def test_a_name_is_the_same_caller_in_every_shell(shells: Shells) -> None:
    assert shells("dibs lock acquire job --actor agent-7").exit == 0
    assert shells("dibs lock renew job", DIBS_ACTOR="agent-7").exit == 0
    assert shells("dibs lock renew job", DIBS_ACTOR="agent-8").exit == 4
    assert shells("dibs lock status --json").data["locks"][0]["owner"] == "agent-7"
    assert shells("dibs lock release job --actor agent-7").out.startswith("Lock released")


def test_without_a_shell_nothing_is_remembered_and_the_lease_is_shown(shells: Shells) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        """As a program does that starts commands itself, for whichever of its agents."""
        command = [sys.executable, "-m", "dibs", "lock", *words]
        return subprocess.run(command, env=shells.env, capture_output=True, text=True, timeout=60, check=False)

    got = run("acquire", "job")
    assert "dibs does not remember this lease" in got.stdout
    lease = got.stdout.splitlines()[3].split()[-1]
    assert run("acquire", "job").returncode == 4
    assert run("release", "job").returncode == 4
    assert run("renew", "job", "--lease", lease).returncode == 0
    assert run("release", "job", "--lease", lease).returncode == 0
    assert not (shells.folder / "state" / "dibs" / "locks").exists()


def test_a_session_is_proof_in_every_shell_inside_it(shells: Shells) -> None:
    ran = shells("dibs session run -- sh -c 'sh -c \"dibs lock acquire job; :\"; dibs lock release job | head -1; :'")
    assert ran.out.splitlines()[-1] == "Lock released"
    ran = shells("dibs session run -- sh -c 'dibs lock acquire job -q'\ndibs lock status")
    assert ran.out == "No active locks\n"


# An agent: one process that runs each of its commands in a shell of its own.
AGENT = """
import subprocess, sys
for line in sys.argv[1:]:
    done = subprocess.run(["sh", "-c", line + "; exit $?"], text=True, capture_output=True)
    print(done.returncode, done.stdout.partition("\\n")[0])
"""


def agent(shells: Shells, *lines: str) -> list[str]:
    """What an agent was told: of each command the exit code, and the first line."""
    (shells.home / "agent.py").write_text(AGENT, encoding="utf-8")
    quoted = " ".join(f"'{line}'" for line in lines)
    return shells(f"exec {sys.executable} agent.py {quoted}").out.splitlines()


def test_an_agent_undoes_by_name_what_a_shell_of_its_own_took_that_is_gone(shells: Shells) -> None:
    words = ["dibs lock acquire job", "dibs lock renew job", "dibs lock release job", "dibs lock acquire job"]
    assert agent(shells, *words) == [
        "0 Lock acquired",
        "0 Lock renewed",
        "0 Lock released",
        "0 Lock acquired",
    ]


def test_an_agent_s_next_shell_does_not_acquire_what_the_last_one_has(shells: Shells) -> None:
    told = agent(shells, "dibs lock acquire job", "dibs lock acquire job")
    assert [line.split()[0] for line in told] == ["0", "4"]


def test_another_agent_does_not_release_what_a_dead_shell_took(shells: Shells) -> None:
    assert agent(shells, "dibs lock acquire job") == ["0 Lock acquired"]
    told = agent(shells, "dibs lock release job", "dibs lock renew job")
    assert [line.split()[0] for line in told] == ["4", "4"]


def test_while_the_shell_lives_its_parent_may_not_release(shells: Shells) -> None:
    script = "dibs lock acquire job -q; sh -c 'dibs lock release job; exit $?' & wait $!; echo $?"
    assert shells(script).out.split()[-1] == "4"


def test_a_one_shot_shell_is_shown_its_lease_and_can_undo_by_it(shells: Shells) -> None:
    said = shells("dibs lock acquire job").out
    lease = said.split("Lease: ")[1].split()[0]
    assert shells(f"dibs lock release job --lease {lease}").out.splitlines()[0] == "Lock released"


# Names that overlap.


@pytest.mark.fault("F-305")
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shells_own_lock_is_not_in_its_way_and_keeps_others_out(shells: Shells, shell: str) -> None:
    first = shells.start(
        "for name in path:src path:src/a.rs repo:x; do dibs lock acquire $name -q || exit; done; echo mine\n"
        "read line\n"
        "dibs lock renew path:src -q && dibs lock release repo:x -q && echo renewed",
        shell=shell,
    )
    assert first_line(first) == "mine"
    assert shells("dibs lock acquire path:src/b.rs", shell=shell).exit == 4
    assert shells("dibs lock acquire path:docs").exit == 4  # repo:x
    first.stdin.write("go on\n")  # type: ignore[union-attr]
    ran = finished(first)
    assert (ran.exit, ran.out) == (0, "renewed\n"), ran
    assert shells("dibs lock acquire path:docs").exit == 0


@pytest.mark.fault("F-305")
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_what_an_ended_subshell_locked_is_not_in_the_way_of_its_shell(shells: Shells, shell: str) -> None:
    ran = shells(
        "lock=$(dibs lock acquire path:src --json | field data.nonce)\n"
        "dibs lock acquire path:src/a.rs -q && dibs lock acquire repo:x -q; echo $?\n"
        'dibs lock release path:src --lease "$lock" -q && echo released',
        shell=shell,
    )
    assert ran.out.splitlines()[-2:] == ["0", "released"], ran


def test_workers_of_one_script_exclude_each_other_where_names_overlap(shells: Shells) -> None:
    ran = shells(
        "worker() { dibs lock acquire path:src/$1 -q && sleep 3; }\n(worker .) & (worker a) & (worker a/b) & wait"
    )
    assert ran.err.count("Lock conflict") == 2, ran


def test_a_lock_is_released_by_name_after_its_shell_has_left_the_repository(shells: Shells) -> None:
    ran = shells(
        "git init -q app && cd app && dibs lock acquire path:src && cd / && dibs lock renew path:src "
        "&& dibs lock release path:src && cd - && dibs lock status --json | field data.total"
    )
    assert (ran.exit, ran.out.splitlines()[-1]) == (0, "0"), ran
