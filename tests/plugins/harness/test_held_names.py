"""Which commands name a file that another agent has and may write it, and which only read or mention it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.agents.git.present_agents import forget_holder, has_company, note_holder
from dibs.agents.harness.agent_identity import Agent
from dibs.agents.harness.held_names import candidates, named
from dibs.agents.harness.hook_transport import HookTransport
from dibs.agents.harness.shell_writes import written
from tests.programs import dibs_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.base.reply import Reply
    from dibs.client.transport import Ask
    from tests.plugins.harness.conftest import Yard

HELD = "src/a.py"
PATCH = "--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n-x\n+y\n"
HERE = "/work/app"
FILES = {"src", "src/a.py", "src/b.py", "new.py", "fix.patch", "README", "lib"}


def lines_of(name: str) -> list[str]:
    lines = (Path(__file__).parent / name).read_text().splitlines()[1:]
    return [line.replace("\\n", "\n") for line in lines]


def names_in(line: str, *held: str) -> list[str]:
    """The held files that a line is asked about: what it names, and what it surely writes."""
    found = candidates(
        line, HERE, lambda path: path in FILES, lambda path: PATCH if os.path.normpath(path) == "fix.patch" else ""
    )
    sure = [os.path.normpath(os.path.join(HERE, path)) for path in written(line)]
    wrote = [file for file in held or (HELD,) if any(f"{HERE}/{file}/".startswith(f"{path}/") for path in sure)]
    return [*dict.fromkeys([*named(found, held or (HELD,), HERE, HERE, str), *wrote])]


@pytest.mark.fault("F-600")
@pytest.mark.fault("F-656")
@pytest.mark.parametrize("line", lines_of("held.txt"))
def test_a_command_that_may_write_a_held_file_names_it(line: str) -> None:
    assert names_in(line) == [HELD]


@pytest.mark.fault("F-600")
@pytest.mark.fault("F-655")
@pytest.mark.parametrize("line", lines_of("readers.txt"))
def test_a_command_that_reads_or_mentions_a_held_file_is_not_stopped(line: str) -> None:
    assert names_in(line) == []


def test_the_tables_are_long_enough_to_mean_something() -> None:
    assert len(set(lines_of("readers.txt"))) >= 250
    assert len(set(lines_of("held.txt"))) >= 100


@pytest.mark.fault("F-654")
@pytest.mark.parametrize(
    ("line", "held", "names"),
    [
        ("prettier --write .", ("src/a.js", "src/a.py", "go.mod"), ["src/a.js"]),
        (
            "npx prettier --write 'src/**/*.ts'",
            ("src/deep/a.ts", "src/b.ts", "src/a.js"),
            ["src/deep/a.ts", "src/b.ts"],
        ),
        ("eslint . --fix", ("src/a.ts", "README.md"), ["src/a.ts"]),
        ("go fmt ./...", ("cmd/a.go", "cmd/a.py"), ["cmd/a.go"]),
        ("cargo fmt", ("src/a.rs", "Cargo.toml"), ["src/a.rs"]),
        ("cd src && cargo fmt", ("src/a.rs", "build.rs"), ["src/a.rs"]),
        ("terraform fmt", ("a.tf", "a.py"), ["a.tf"]),
        ("black src", ("src/a.py", "src/deep/b.py", "srcs/c.py", "src/d.txt"), ["src/a.py", "src/deep/b.py"]),
        ("rm app/[id]/page.tsx", ("app/[id]/page.tsx", "app/i/page.tsx"), ["app/[id]/page.tsx", "app/i/page.tsx"]),
        ("perl -pi -e s/x/y/ 'app/[id]/page.tsx'", ("app/[id]/page.tsx", "app/i/page.tsx"), ["app/[id]/page.tsx"]),
        ("perl -pi -e s/x/y/ Makefile", ("Makefile",), []),  # it is not there, so it may be any word
        ("perl -pi -e s/x/y/ README", ("README",), ["README"]),
        ("./fix $(git diff --name-only)", (HELD,), []),
        ("./fix $FILES", (HELD,), []),
        ("cd $DIR && ./fix src/a.py", (HELD,), []),
        ("cd .. && ./fix app/src/a.py", (HELD,), [HELD]),
        ("./fix /work/app/src/a.py", (HELD,), [HELD]),
        ("black /work", (HELD,), [HELD]),
        ("echo 'unfinished src/a.py", (HELD,), []),
        # A folder is held with all that is in it.
        ("./fix src/deep/a.py", ("src/deep",), ["src/deep"]),
        ("./fix src/deep/*.py", ("src/deep",), ["src/deep"]),
        ("./fix src/{deep,other}/a.py", ("src/deep",), ["src/deep"]),
        ("black src/deep/more", ("src/deep",), ["src/deep"]),
        ("python -c \"open('src/deep/a.py', 'w')\"", ("src/deep",), ["src/deep"]),
        ("./fix src/deeper/a.py src/*/a.py", ("src/deep", "src/b.py"), []),
        ("python -c \"open('/tmp/x', 'w').write(str(lib/2))\"", ("lib",), []),
    ],
)
def test_folders_patterns_and_kinds_of_files(line: str, held: tuple[str, ...], names: list[str]) -> None:
    assert names_in(line, *held) == names


def test_spellings_of_one_file_are_one_where_the_file_system_folds_case() -> None:
    found = candidates("./fix SRC/A.py", HERE, lambda path: True, lambda path: "")
    assert named(found, ("src/a.py",), HERE, HERE, str.lower) == [HELD]


@pytest.mark.parametrize("text", ["src/x.py ", "{a,b}", "[", "{", "*", "'x' ", "-C x "])
def test_a_long_command_is_compared_in_a_time_that_grows_as_it_does(text: str) -> None:
    long = "./fix " + text * (100_000 // len(text))
    held = tuple(f"src/{number}.py" for number in range(100))
    begun_ns = time.process_time_ns()
    names_in(long, *held)
    assert time.process_time_ns() - begun_ns < 5_000_000_000


# The hook.


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verbs that hooks ask the store or a server for, one after another."""
    verbs: list[str] = []
    ask_all = HookTransport.ask_all

    def counted(self: HookTransport, asks: Sequence[Ask]) -> list[Reply]:
        verbs.extend({each.verb: None for each in asks})
        return ask_all(self, asks)

    monkeypatch.setattr(HookTransport, "ask_all", counted)
    return verbs


@pytest.mark.promise("agent:guard")
@pytest.mark.fault("F-600")
def test_a_command_that_names_anothers_file_is_refused_with_whose_it_is(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    done = two.send(two.document("PreToolUse", "Bash", {"command": "perl -pi -e s/x/y/ src/a"}))
    assert done.returncode == 2
    assert done.stderr.startswith("Not run: the command names what another worker is changing")
    assert '"src/a": "claude-1111 in app@main" (for ' in done.stderr
    assert "`dibs wait path:src/a --for 5m` and then run it again" in done.stderr
    for command in ("rm src/*", "./codemod src/a", "cd src && ./codemod a", "python -c \"open('src/a','w')\""):
        assert not two.shell(command)
    for command in ("cat src/a", "./codemod src/b", "git log src/a", "rm src/z*"):
        assert two.shell(command)
    assert one.shell("perl -pi -e s/x/y/ src/a")
    assert two.edit("src/b"), "a file that was only named stays free"


@pytest.mark.fault("F-653")
def test_a_remark_on_what_a_command_writes_is_not_lost_when_it_names_another_file(yard: Yard, tmp_path: Path) -> None:
    yard.git("worktree", "add", "-q", str(tmp_path / "other"))
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    three = yard.agent("three-3333", folder=tmp_path / "other")
    assert one.edit("src/a")
    assert two.edit("src/c")
    assert three.edit("src/b")
    for command in ("echo x > src/b", "echo x > src/b; ./codemod src/c"):
        said = two.tell("PreToolUse", tool_name="Bash", tool_input={"command": command})
        assert "Another worker is changing the same file in another checkout" in said, command


@pytest.mark.fault("F-600")
def test_a_persons_claim_and_a_subagents_are_found_by_name(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert two.edit("src/c")
    dibs_here(yard.env, yard.folder, "claim", "path:src/b", "--owner", "a-person")
    assert not one.shell("./codemod src/b")
    assert one.edit("src/a", agent_id="sub-1", agent_type="x")
    assert not one.shell("./codemod src/a", agent_id="sub-2", agent_type="x")
    assert one.shell("./codemod src/a"), "a parent and its subagent are one"
    assert one.shell("./codemod src/a", agent_id="sub-1", agent_type="x")


@pytest.mark.fault("F-600")
def test_a_lone_agent_and_a_reader_ask_nobody_and_a_named_file_costs_one_read(yard: Yard, asked: list[str]) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    asked.clear()
    assert one.shell("./codemod src/a")
    assert asked == []
    assert two.shell("cat src/a; make test; git log -- src/a")
    assert asked == []
    assert two.shell("./codemod src/b")
    assert asked == ["list"]
    one.send(one.document("SessionEnd", reason="other"))
    asked.clear()
    assert two.shell("./codemod src/b")
    assert asked == []


@pytest.mark.parametrize(("guard", "worktrees", "may"), [("off", "deny", True), ("warn", "warn", True)])
def test_a_repository_that_does_not_refuse_edits_does_not_refuse_names(
    yard: Yard, guard: str, worktrees: str, *, may: bool
) -> None:
    (yard.folder / ".dibs.toml").write_text(f'[agent]\nguard = "{guard}"\nworktrees = "{worktrees}"\n')
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a")
    assert two.shell("./codemod src/a") is may


def test_another_work_tree_counts_only_where_the_repository_says_deny(yard: Yard, tmp_path: Path) -> None:
    other = tmp_path / "other"
    yard.git("worktree", "add", "-q", str(other))
    one, two = yard.agent("one-1111"), yard.agent("two-2222", folder=other)
    three = yard.agent("three-3333", folder=other)
    assert one.edit("src/a")
    assert three.edit("src/c")
    assert two.shell("./codemod src/a")
    yard.git("config", "dibs.agent.worktrees", "deny")
    assert not two.shell("./codemod src/a")


@pytest.mark.fault("F-657")
def test_who_has_claimed_here_is_noted_until_the_end_of_its_session(tmp_path: Path) -> None:
    own, one, two, sub = str(tmp_path), Agent("claude", "one"), Agent("claude", "two"), Agent("claude", "one", "sub")
    assert not has_company(own, one)
    note_holder(own, one, is_new=False)
    assert not has_company(own, two)
    note_holder(own, one)
    note_holder(own, sub)
    assert has_company(own, two)
    assert has_company(own, one)
    forget_holder(own, one)
    assert has_company(own, two), "a subagent that nobody stopped has its claims"
    forget_holder(own, sub)
    assert not has_company(own, two)
    note_holder(own, one)
    mark = next((tmp_path / "dibs" / "holders").iterdir())
    os.utime(mark, (0, 0))
    assert not has_company(own, two), "its claims have ended long ago"
    assert not mark.exists()


@pytest.mark.fault("F-657")
def test_a_name_and_an_edit_are_refused_alike_after_a_session_ended_before_its_subagent(yard: Yard) -> None:
    one, two = yard.agent("one-1111"), yard.agent("two-2222")
    assert one.edit("src/a", agent_id="sub-1", agent_type="x")
    one.send(one.document("SessionEnd", reason="other"))
    assert not two.edit("src/a")
    assert not two.shell("./codemod src/a")
    one.send(one.document("SubagentStop", agent_id="sub-1", agent_type="x"))
    assert two.shell("./codemod src/a")
    assert two.edit("src/a")
