"""Completion as a user meets it: bash, zsh and fish ask the real `dibs __complete`."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugins.shells.conftest import Clone, Shells

pytestmark = pytest.mark.e2e

BASH = r"""
source <(dibs completion bash)
complete_as() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dibs
    printf '%s\n' "${COMPREPLY[@]}" --
}
"""
# A shell in a shell: only an interactive zsh completes. Tab, then a key that prints the line as it is now.
ZSH = r"""
zmodload zsh/zpty
zpty inner zsh -f -i
until_marked() { local all= line; while zpty -r inner line '*MARK*'; do all+=$line; [[ $all == *MARK* ]] && break; done
                 print -r -- "$all" }
zpty -w inner 'fpath=('$PWD' $fpath); autoload -Uz compinit; compinit -u -D; setopt no_beep; LISTMAX=9999
               show() { print -r -- "<$BUFFER>MA""RK" }; zle -N show; bindkey "^X" show; print MA""RK'
until_marked >/dev/null
for typed in "$@"; do
    zpty -w -n inner "$typed"$'\t\x18'
    until_marked
    zpty -w -n inner $'\x15'
done
zpty -d inner
"""


def bash(shells: Shells, *lines: str) -> list[list[str]]:
    """What is offered for each line, whose words stand as bash splits them."""
    ran = shells(BASH + "\n".join(f"complete_as {line}" for line in lines), shell="bash")
    assert (ran.exit, ran.err) == (0, ""), ran
    return [part.split() for part in ran.out.split("--\n")[:-1]]


def test_bash_completes_commands_flags_jobs_and_sessions(shells: Shells) -> None:
    session = shells("dibs session open -q").out.strip()
    shells("dibs claim issue-1; dibs claim issue-2; dibs claim other; dibs claim github://acme/app/42")
    lines = {
        "dibs he": ["heartbeat"],
        "dibs claim-a": ["claim-any", "claim-all"],
        "dibs release iss": ["issue-1", "issue-2"],
        "dibs --json owner o": ["other"],
        "dibs session s": ["show"],
        "dibs session open --pi": ["--pid"],
        f"dibs session show {session[:3]}": [session],
        f"dibs transfer other --to-session {session[:3]}": [session],
        "dibs token create x --role a": ["agent", "admin"],
        "dibs token create x --role = a": ["agent", "admin"],
        "dibs completion z": ["zsh"],
        "dibs ls --par": ["--parked"],
        "dibs release github : //acme": ["//acme/app/42"],
        "dibs release github :": ["//acme/app/42"],
        "dibs token list --tokens /etc/passw": ["/etc/passwd"],
        "dibs run x -- /etc/passw": ["/etc/passwd"],
        "dibs claim x --ttl ''": [],
        "dibs nonsense ''": [],
        "dibs --url memory:// release iss": [],
    }
    offered = dict(zip(lines, bash(shells, *lines), strict=True))
    assert {line: [each for each in found if not each.endswith("-")] for line, found in offered.items()} == lines


def test_a_job_whose_name_is_shell_code_is_offered_as_a_word(shells: Shells) -> None:
    shells("dibs claim 'x $(touch pwned)'")
    assert bash(shells, "dibs release x") == [["x\\", "\\$\\(touch\\", "pwned\\)"]]
    assert not (shells.home / "pwned").exists()


@pytest.mark.fault("F-109")
def test_a_job_whose_name_looks_like_a_flag_is_not_offered(shells: Shells) -> None:
    """`dibs history --url=…` would send the token where the name says."""
    shells("dibs claim -- --url=http://127.0.0.1:9; dibs claim -- -x; dibs claim ordinary")
    assert bash(shells, "dibs history ''") == [["ordinary"]]
    offered = bash(shells, "dibs history --u")
    assert not any("127.0.0.1" in word for word in offered[0])


def test_the_paths_of_a_repository_are_offered_in_it(clone: Clone) -> None:
    clone.must("dibs claim -q --owner somebody path:src/auth.rs >/dev/null")
    assert bash(clone.shells, "dibs owner path : src") == [["src/auth.rs"]]


def test_completing_makes_no_store_and_says_nothing_when_it_cannot_ask(shells: Shells) -> None:
    ran = shells("dibs __complete -- release ''; dibs __complete -- --url http://127.0.0.1:9 release ''")
    assert (ran.exit, ran.out, ran.err) == (0, "", "")
    assert not list((shells.folder / "state").rglob("*.db"))


def test_a_server_that_does_not_answer_holds_nobody_up(shells: Shells) -> None:
    """It accepts, and says nothing: the names are given up after the time that is allowed."""
    serving = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    kept = "kept = [s.accept() for _ in range(9)]"  # a connection that nobody keeps is closed at once
    shells.program("silent", f'exec {sys.executable} -c "{serving}; {kept}"')
    script = """
    silent >port & pid=$!
    until [ -s port ]; do sleep 0.05; done
    dibs __complete -- --url "http://127.0.0.1:$(cat port)" release ''; code=$?
    kill $pid
    exit $code
    """
    ran = shells(script)
    assert (ran.exit, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("dibs heartb", "dibs heartbeat "),
        ("dibs release iss", "dibs release issue-1842 "),
        ("dibs --json owner iss", "dibs --json owner issue-1842 "),
        ("dibs release github:", "dibs release github://acme/app/42 "),
        ("dibs token create x --role=op", "dibs token create x --role=operator "),
        ("dibs token list --tokens /etc/passw", "dibs token list --tokens /etc/passwd"),
        ("dibs claim x --metad", "dibs claim x --metadata "),
    ],
)
def test_zsh_completes_a_line(shells: Shells, typed: str, line: str) -> None:
    need_shell("zsh")
    shells("dibs claim issue-1842; dibs claim github://acme/app/42; dibs completion zsh >_dibs")
    ran = shells(f"set -- '{typed}'\n{ZSH}", shell="zsh")
    assert f"<{line}" in ran.out, ran


def test_fish_completes_a_line_and_says_what_it_offers(shells: Shells) -> None:
    need_shell("fish")
    shells("dibs claim issue-1842; dibs claim github://acme/app/42")
    lines = {
        "dibs heartb": "heartbeat\trenew a claim, and record how far the work has come",
        "dibs release iss": "issue-1842",
        "dibs --json owner iss": "issue-1842",
        "dibs release github:": "github://acme/app/42",
        "dibs token create x --role=op": "--role=operator",
        "dibs token list --tokens /etc/passwd": "/etc/passwd",
        "dibs claim x --ttl ": "",
    }
    asked = "\n".join(f"complete -C '{line}' | head -1; echo ==" for line in lines)
    ran = shells(f"dibs completion fish | source\n{asked}", shell="fish")
    assert ran.err == "", ran
    assert [part.strip() for part in ran.out.split("==\n")[:-1]] == list(lines.values())


def need_shell(name: str) -> None:
    """Few machines have all three; bash is always there."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
