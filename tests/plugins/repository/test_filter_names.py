"""A filter of the repository's own configuration never runs, whatever its name is and wherever git finds it."""

from __future__ import annotations

import os
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from dibs.agents.repository.work_tree import Repository
from tests.build import tries
from tests.programs import WAIT_S_MAX, clean_env

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.fault("F-311"), pytest.mark.promise("repo:runs-nothing")]

NAMES = 24
_SPACES = b" \t\r\n\v\f\0"
# Bytes that mean something to a locale, to git's configuration, or to a pattern.
_ODD = [
    b"\xff",
    b"e\xff",
    b"\xc3",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"a=b",
    b"a.b",
    b".",
    b"..",
    b"=",
    b"*",
    b"[",
    b"\\",
    b'"',
    b"-c",
    b"#",
    b";",
]
_ODD += [b"lfs", b"LFS", b"clean", b"x.clean", b"\xe2\x80\xa8", b"$(id)", b"%f", b"filter.a"]


def _name(chance: random.Random) -> bytes:
    parts = [chance.choice(_ODD) if chance.random() < 0.5 else bytes([chance.randrange(1, 256)]) for _ in range(3)]
    made = bytes([each for each in b"".join(parts[: chance.randint(1, 3)]) if each not in _SPACES])
    return made or b"plain"


def _section(name: bytes, key: bytes, program: bytes, chance: random.Random) -> bytes:
    quoted = name.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    word = chance.choice([b"filter", b"Filter", b"FILTER"])
    return b'[%s "%s"]\n\t%s = %s\n\trequired = %s\n' % (word, quoted, key, program, chance.choice([b"true", b"false"]))


class Folder:
    """A repository in which each file has a filter, whose name somebody chose with care."""

    def __init__(self, folder: Path, chance: random.Random, locale: str) -> None:
        self.folder, self.mark = folder, folder.parent / "mark"
        folder.mkdir()
        self.env = clean_env(
            folder.parent / "state", GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1", LC_ALL=locale
        )
        program = folder.parent / "evil"
        program.write_text(f'#!/bin/sh\necho "$1" >>"{self.mark}"\ncat\n')
        program.chmod(0o755)
        self.git("init", "-q", "-b", "main")
        names = list({_name(chance): None for _ in range(NAMES)})
        for at in range(len(names)):
            (folder / f"f{at}.txt").write_text("one\n")
        self.git("add", "-A")
        self.git("-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q", "-m", "one")
        self.git("config", "extensions.worktreeConfig", "true")
        attributes, sections = b"", {"config": b"", "config.worktree": b"", "included": b"", "deep": b""}
        for at, name in enumerate(names):
            attributes += b"f%d.txt filter=%s\n" % (at, name)
            key = chance.choice([b"clean", b"clean", b"Clean", b"process"])
            sections[chance.choice(list(sections))] += _section(
                name, key, b"%s %d" % (os.fsencode(program), at), chance
            )
        git = folder / ".git"
        (folder / ".gitattributes").write_bytes(attributes)
        (git / "config.worktree").write_bytes(sections["config.worktree"])
        (git / "included").write_bytes(sections["included"] + b"[include]\n\tpath = deep\n")
        (git / "deep").write_bytes(sections["deep"])
        with (git / "config").open("ab") as file:
            file.write(sections["config"] + b'[includeIf "gitdir:**/app/"]\n\tpath = included\n')
        self.count = len(names)
        self.touch("six\n")

    def touch(self, text: str) -> None:
        for at in range(self.count):
            (self.folder / f"f{at}.txt").write_text(text)  # of the same size: git must read it to know

    def git(self, *words: str) -> None:
        subprocess.run(
            ["git", *words], cwd=self.folder, env=self.env, check=False, capture_output=True, timeout=WAIT_S_MAX
        )

    def ran(self) -> set[str]:
        return set(self.mark.read_text().split()) if self.mark.exists() else set()


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize("seed", range(tries(3, 60)))
def test_no_filter_of_the_repository_runs_whatever_its_name(tmp_path: Path, seed: int, locale: str) -> None:
    made = Folder(tmp_path / "app", random.Random(seed), locale)
    repository = Repository.here(made.env, str(made.folder))
    changed = repository.changed()
    assert made.ran() == set()
    assert {f"f{at}.txt" for at in range(made.count)} <= set(changed)
    made.git("status")  # git itself does run them: the test means something
    assert made.ran()


def test_the_user_s_own_filter_of_a_name_that_the_repository_uses_too_is_the_one_that_runs(tmp_path: Path) -> None:
    made = Folder(tmp_path / "app", random.Random(0), "C.UTF-8")
    (made.folder / ".gitattributes").write_text("*.txt filter=lfs\n")
    with (made.folder / ".git" / "config").open("a") as file:
        file.write(f'[filter "lfs"]\n\tclean = {tmp_path}/evil 1\n\trequired = true\n')
    settings = tmp_path / "gitconfig"
    settings.write_text('[filter "lfs"]\n\tclean = sed s/six/one/\n')
    made.env["GIT_CONFIG_GLOBAL"] = str(settings)
    changed = Repository.here(made.env, str(made.folder)).changed()
    assert (made.ran(), changed) == (set(), [".gitattributes"])
