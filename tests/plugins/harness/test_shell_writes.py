"""What a shell command surely writes, and nothing else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from dibs.agents.harness.hook_events import patched
from dibs.agents.harness.shell_writes import written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("echo x > a.txt", ["a.txt"]),
        ("echo x >> 'a b.txt' 2>/dev/null", ["a b.txt"]),
        ("echo x >a; cat b > c && echo >| d", ["a", "c", "d"]),
        ("cat x | tee -a out.log err.log | grep y", ["out.log", "err.log"]),
        ("sed -i 's/a/b/' src/a.py src/b.py", ["src/a.py", "src/b.py"]),
        ("sed -i.bak -e s/a/b/ -e s/c/d/ src/a.py", ["src/a.py"]),
        ("sed 's/a/b/' src/a.py", []),
        ("mv old.py new.py", ["old.py", "new.py"]),
        ("cp -r from to", ["to"]),
        ("rm -rf build && touch made", ["build", "made"]),
        ("cp -t src a.py b.py", ["src/a.py", "src/b.py"]),
        ("install -m 644 a.py src/b.py; ln -sf a.py c", ["src/b.py", "c"]),
        ("rsync -a a.py b.py; rsync -a src/ lib; rsync a.py host:b", ["b.py"]),
        ("touch -d yesterday a; truncate -s 0 b", ["a", "b"]),
        ("env -C src tee a > b", ["b", "src/a"]),
        ("FOO=1 sudo tee /etc/x", ["/etc/x"]),
        ("if true; then rm a; fi", ["a"]),
        ("(cd x; rm a; rm /tmp/b); rm c", ["x/a", "/tmp/b", "c"]),
        ("echo $(rm a) > b", ["a", "b"]),
        ("cat > n <<E\nx\nE\nsed -Ei s/1/2/ b", ["n", "b"]),
        ("timeout 5 nice sed -ni p b", ["b"]),
        ('F=a.py; rm $F; for f in b c; do touch "$f"; done', ["a.py", "b", "c"]),
        ("true && apply_patch <<X\n*** Begin Patch\n*** Add File: a.py\n*** End Patch\nX\n", ["a.py"]),
        ("bash -c 'cd x && rm a'", ["x/a"]),
        ("set -e; cd src; rm a", ["src/a"]),
        ("cat > made.py <<'EOF'\nrm other\necho > third\nEOF", ["made.py"]),
        ("cat > made.py <<'EOF' && rm old.py\nrm other\nEOF", ["made.py", "old.py"]),
        ("cd src && sed -i s/2/6/ a.py; rm /tmp/b", ["src/a.py", "/tmp/b"]),
        ("cd src; cd '../other dir'\necho x > a.py", ["src/../other dir/a.py"]),
        ("pushd x; rm a; popd; rm b", ["x/a"]),
        ("for f in a b; do rm x/$f.py $f; done", ["x/a.py", "x/b.py", "a", "b"]),
        ("D=x; F=a; rm $D/$F ${D}/b $D/$G", ["x/a", "x/b"]),
        (
            "sed -i -es/x/y/ a; sed --expression=s/x/y/ -i b; sed -i -ne s/x/y/p c; sed -ie s/x/y/ d",
            ["a", "b", "c", "d"],
        ),
        ("cd /r/src && cat > a.py <<EOF\nx\nEOF", ["/r/src/a.py"]),
        ("apply_patch <<'X'\n*** Begin Patch\n*** Update File: src/a.py\n*** End Patch\nX\n", ["src/a.py"]),
        ("cd src && apply_patch <<X\n*** Begin Patch\n*** Add File: a.py\n*** End Patch\nX\n", ["src/a.py"]),
        ("echo x > /dev/shm/checkout/a.py 2> /dev/stderr", ["/dev/shm/checkout/a.py"]),
        # What cannot be known is left out.
        ("cd $DIR && rm a; cd src || exit; rm b", []),
        ("pushd +1; rm a", []),
        ("cd - && rm a", []),
        ('echo > $FILE; rm *.py; rm {a,b}; tee "$X/y"; rm ~/z', []),
        ("echo 'a > b' # > c", []),
        ('python -c \'open("a","w")\'', []),
        ("echo 'unfinished > a", []),
        ("grep rm a.py; ls -l > /dev/null; cat < a.py 2>&1", []),
        ("[ 1 -gt 0 ] && make test", []),
        ("", []),
    ],
)
@pytest.mark.fault("F-144")
@pytest.mark.fault("F-656")
def test_only_what_is_certain_is_read_from_a_command(command: str, files: list[str]) -> None:
    assert written(command) == files


def test_all_files_of_a_patch_are_found() -> None:
    patch = (
        "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n@@\n-x\n+*** Delete File: not.py\n"
        "*** Add File: c d.py\n+y\n*** Delete File: e.py\n*** End Patch\n"
    )
    assert patched(patch) == ["a.py", "b.py", "c d.py", "e.py"]


@pytest.mark.fault("F-108")
def test_a_here_document_may_hold_any_text() -> None:
    assert written("cat > a.txt <<'EOF'\nit's \"\nEOF\n") == ["a.txt"]


@pytest.mark.fault("F-108")
@pytest.mark.parametrize("text", ["x", "# y\n", "env ", "A=1 "])
@pytest.mark.parametrize("command", ["cat > a <<EOF\n{}\nEOF\n", "echo > a;{}"])
def test_a_long_command_is_read_in_a_time_that_grows_as_it_does(command: str, text: str) -> None:
    """A hook that takes too long is killed by its harness, and then the command passes unread. In a time that grows
    with the square, this took over ten seconds."""
    long = command.format(text * (400_000 // len(text)))
    begun_ns = time.process_time_ns()
    assert written(long) == ["a"]
    assert time.process_time_ns() - begun_ns < 3_000_000_000


@pytest.mark.fault("F-298")
@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("cp new.py src/", ["src/new.py"]),
        ("cp new.py src", ["src/new.py"]),
        ("cp -r a/b/ src", ["src/b"]),
        ("cp a b src", ["src/a", "src/b"]),
        ("cp new.py other", ["other"]),
        ("mv old.py src/", ["old.py", "src/old.py"]),
        ("cd src && cp ../new.py deep", ["src/deep/new.py"]),
        ("cp $X src/", []),
        ("cp . src", []),
    ],
)
def test_what_is_copied_into_a_folder_is_a_file_in_it(tmp_path: Path, command: str, names: list[str]) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    assert written(command, str(tmp_path)) == names
