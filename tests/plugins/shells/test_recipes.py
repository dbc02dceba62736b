"""The shell recipes of grite's guide, unchanged but for the program's name: each in a real shell.

`grite issue ...` is not ours: dibs tracks no issues. A small program of that name stands in and notes what it was told.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.plugins.shells.conftest import finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.plugins.shells.conftest import Shells

pytestmark = [pytest.mark.e2e, pytest.mark.full]

CLAIMING_AN_ISSUE = r"""
# Check for existing lock
if dibs lock acquire --resource "issue:$ID" --ttl 30m --json | jq -e '.ok'; then
  echo "Claimed issue $ID"

  # Do work...
  grite issue comment $ID --body "Working on this"

  # Release when done
  grite issue close $ID
  dibs lock release --resource "issue:$ID"
else
  echo "Issue already claimed"
fi
"""

FILE_EDITING = r"""
# Lock file before editing
dibs lock acquire --resource "path:config/settings.json" --ttl 15m

# Edit file...
mkdir -p config && echo '{}' > config/settings.json

# Release after commit
git add config/settings.json
git commit -m "Update settings"
dibs lock release --resource "path:config/settings.json"
"""

LONG_RUNNING_TASK = r"""
# Acquire with longer TTL
dibs lock acquire --resource "repo:migration" --ttl 2h

# Periodically renew during long task
while migration_in_progress; do
  sleep 300  # 5 minutes
  dibs lock renew --resource "repo:migration" --ttl 2h
done

dibs lock release --resource "repo:migration"
"""

COORDINATOR = r"""
# Coordinator creates task and assigns
grite issue create --title "Process batch" --label "todo" --json
dibs lock acquire --resource "issue:$ID" --ttl 30m
"""

WORKER = r"""
# Worker agent checks for available work
for id in $(grite issue list --label todo --json | jq -r '.data.issues[].issue_id'); do
  if dibs lock acquire --resource "issue:$id" --ttl 30m 2>/dev/null; then
    # Got the lock, do the work
    process_issue "$id"
    dibs lock release --resource "issue:$id"
    break
  fi
done
"""

WORK_STEALING = r"""
# Lock expired? Acquire it
if ! dibs lock status --json | jq -e ".data.locks[] | select(.resource == \"$RESOURCE\")"; then
  dibs lock acquire --resource "$RESOURCE" --ttl 30m
fi
"""

ALWAYS_RELEASE = r"""
# Use trap to ensure release on exit
trap 'dibs lock release --resource "issue:$ID"' EXIT

dibs lock acquire --resource "issue:$ID" --ttl 30m
# Do work...
"""

RENEW_BEFORE_EXPIRY = r"""
# 30 minute lock, renew every 15 minutes
dibs lock acquire --resource "..." --ttl 30m

while working; do
  sleep 900  # 15 minutes
  dibs lock renew --resource "..." --ttl 30m
done
"""

HANDLE_FAILURES = r"""
if ! dibs lock acquire --resource "..." --ttl 30m; then
  echo "Could not acquire lock, trying later"
  exit 0  # Don't fail, just skip
fi
"""


@pytest.fixture(autouse=True)
def _stand_ins(shells: Shells, need_program: Callable[[str], str]) -> None:
    need_program("jq")
    log = shells.folder / "issues.log"
    issues = json.dumps({"data": {"issues": [{"issue_id": "1"}, {"issue_id": "2"}, {"issue_id": "3"}]}})
    shells.program("grite", f'echo "$@" >> {log}\ncase "$2" in list) echo \'{issues}\';; esac')
    shells.program("process_issue", f'echo "process $1" >> {log}\ndibs lock status > {shells.folder}/during')


def log(shells: Shells) -> list[str]:
    file = shells.folder / "issues.log"
    return file.read_text().splitlines() if file.exists() else []


def locked(shells: Shells) -> dict[str, str]:
    """What is held now, and by whom."""
    locks = shells("dibs lock status --json").data["locks"]
    return {lock["resource"]: lock["owner"] for lock in locks}


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_claiming_an_issue(shells: Shells, shell: str) -> None:
    ran = shells(CLAIMING_AN_ISSUE, shell=shell, ID="8057324b")
    assert ran.exit == 0
    assert ran.out.splitlines() == [
        "true",
        "Claimed issue 8057324b",
        "Lock released",
        "  Resource: issue:8057324b",
    ]
    assert log(shells) == ["issue comment 8057324b --body Working on this", "issue close 8057324b"]
    assert locked(shells) == {}


def test_an_issue_that_another_shell_claimed_is_left_alone(shells: Shells) -> None:
    first = shells.start('dibs lock acquire --resource "issue:$ID" --ttl 30m\nread line\n:', ID="1")
    assert first.stdout is not None
    assert first.stdout.readline() == "Lock acquired\n"
    ran = shells(CLAIMING_AN_ISSUE, ID="1")
    assert ran.out.splitlines() == ["false", "Issue already claimed"]
    assert log(shells) == []
    first.communicate("\n")


def test_file_editing_coordination(shells: Shells) -> None:
    ran = shells("git init -q && dibs hook install -q && git config dibs.policy require && git config dibs.own true")
    assert ran.exit == 0, ran
    ran = shells(FILE_EDITING)
    assert ran.exit == 0
    assert "Lock released" in ran.out
    assert shells("git log --format=%s").out == "Update settings\n"
    assert locked(shells) == {}


def twice(shells: Shells, program: str) -> None:
    """A program that says yes two times, and time that does not pass."""
    shells.program("sleep", "true")
    shells.program(program, f"echo x >> {shells.folder}/n; [ $(wc -l < {shells.folder}/n) -lt 3 ]")


def test_a_long_running_task_is_renewed(shells: Shells) -> None:
    twice(shells, "migration_in_progress")
    ran = shells(LONG_RUNNING_TASK)
    assert ran.exit == 0, ran
    words = [line for line in ran.out.splitlines() if line.startswith("Lock")]
    assert words == ["Lock acquired", "Lock renewed", "Lock renewed", "Lock released"]
    assert locked(shells) == {}


def test_a_lock_is_renewed_before_it_runs_out(shells: Shells) -> None:
    twice(shells, "working")
    ran = shells(f"{RENEW_BEFORE_EXPIRY}\ndibs lock status --json", shell="bash")
    assert ran.exit == 0, ran
    assert ran.out.count("Lock renewed\n  Resource: ...\n") == 2
    assert json.loads(ran.out.splitlines()[-1])["data"]["locks"][0]["time_remaining_seconds"] > 1700


def test_a_coordinator_and_its_workers(shells: Shells) -> None:
    # The coordinator lives on, as it would; its lock is its own, also for workers that it starts itself.
    ran = shells(f"{COORDINATOR}\ncat > worker <<'END'\n{WORKER}\nEND\nsh worker\ndibs lock status", ID="1")
    assert ran.exit == 0, ran
    assert log(shells) == [
        "issue create --title Process batch --label todo --json",
        "issue list --label todo --json",
        "process 2",
    ]
    during = (shells.folder / "during").read_text()
    assert "issue:1" in during
    assert "issue:2" in during
    assert "issue:1" in ran.out.splitlines()[-1]
    assert "issue:2" not in ran.out.splitlines()[-1]


def test_workers_at_the_same_time_take_different_issues(shells: Shells) -> None:
    here, go = shells.folder / "here", shells.folder / "go"
    shells.program(
        "process_issue",
        f'echo "process $1" >> {shells.folder}/issues.log; echo > {here}-$1; until [ -e {go} ]; do sleep 0.05; done',
    )
    workers = [shells.start(WORKER) for _ in range(3)]
    ran = shells(
        f"until [ -e {here}-1 ] && [ -e {here}-2 ] && [ -e {here}-3 ]; do sleep 0.05; done; dibs lock status --json"
    )
    owners = {lock["owner"] for lock in ran.data["locks"]}
    assert len(owners) == 3
    go.touch()  # all of them may go on
    assert all(finished(worker).exit == 0 for worker in workers)
    assert sorted(line for line in log(shells) if line.startswith("process")) == [
        "process 1",
        "process 2",
        "process 3",
    ]


def test_work_is_stolen_only_when_the_lock_is_over(shells: Shells) -> None:
    assert shells("dibs lock acquire issue:9 --ttl 30m").exit == 0
    held = shells(WORK_STEALING, RESOURCE="issue:9")
    assert "Lock acquired" not in held.out
    lease = json.loads(held.out)
    assert lease["resource"] == "issue:9"
    assert shells("dibs break issue:9 --reason test").exit == 0
    assert "Lock acquired" in shells(WORK_STEALING, RESOURCE="issue:9").out


def test_the_trap_releases_on_exit(shells: Shells) -> None:
    ran = shells(f"{ALWAYS_RELEASE}\ndibs lock status\nexit 3", ID="7")
    assert ran.exit == 3
    assert "issue:7" in ran.out
    assert locked(shells) == {}


def test_the_trap_of_who_did_not_get_it_leaves_the_owners_lock_alone(shells: Shells) -> None:
    (shells.home / "other").write_text(ALWAYS_RELEASE)
    ran = shells("dibs lock acquire issue:7\nsh other\ndibs lock status --json", ID="7")
    assert "Error: Lock conflict" in ran.err
    assert "Cannot release lock on issue:7 - owned by" in ran.err
    assert '"resource": "issue:7"' in ran.out


def test_a_failure_is_handled_gracefully(shells: Shells) -> None:
    ran = shells(f"dibs lock acquire ... --actor other\n{HANDLE_FAILURES}\necho got it")
    assert ran.exit == 0
    assert "Could not acquire lock, trying later" in ran.out
    assert "got it" not in ran.out


@pytest.mark.fault("F-305")
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_recipes_in_the_order_of_the_guide_in_one_shell(shells: Shells, shell: str) -> None:
    """The guide begins with a lock on a file that it never releases, and locks the whole repository later."""
    shells.program("migration_in_progress", "false")
    shells("git init -q")
    begin = 'set -e\ndibs lock acquire --resource "path:src/api.rs" --ttl 1h\n'
    parts = (CLAIMING_AN_ISSUE, FILE_EDITING, LONG_RUNNING_TASK, COORDINATOR, "echo all")
    ran = shells(begin + "".join(parts), shell=shell, ID="8057324b")
    assert (ran.exit, ran.out.splitlines()[-1]) == (0, "all"), ran
    assert sorted(locked(shells)) == ["issue:8057324b", "path:src/api.rs"]
