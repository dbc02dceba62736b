"""Errors are short, and in the words of the command line: every sentence that the code can raise, and every refusal."""

from __future__ import annotations

import ast
import io
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base import errors
from dibs.cli.framework.help import _around_flags, _bracketed, page, short_usage, usage_line
from dibs.cli.framework.parse import UsageError, parse
from dibs.cli.framework.registry import load, shipped_names
from dibs.cli.framework.result import failure
from dibs.cli.main import _of_error, run
from dibs.wire.documents import Reply
from tests.cli.conftest import Screen

if TYPE_CHECKING:
    from tests.cli.conftest import Terminal

SOURCE = Path(dibs.__file__).parent
# What a command may call. Servers, the SDK and the agents' tools have readers of their own.
REACHED = ("agents", "cli", "client", "core", "engine", "stores", "wire")
LINES_MAX, LINE_CHARS_MAX = 2, 160
VALUE = "x" * 10  # stands for a value that is put into a sentence
# A request's parts, and fields that have a flag: `--lease` is what the command line calls `lease_id`.
HTTP_WORDS = re.compile(
    r"\b(GET|POST|PUT|PATCH|DELETE) /|/(locks|sessions|status|events)\b|\bthe field\b|\bquery parameter\b"
    r"|\bstatus code\b"
    r"|\b(lease_id|session_id|ttl_seconds|ttl_ms|request_key|wait_seconds|lock_delay_seconds|max_attempts"
    r"|done_seconds|retry_after_seconds|to_owner|to_session)\b"
)


def _error_names(bases: set[tuple[str, str]]) -> set[str]:
    """The names of all classes of errors, of pairs of a class and a base of it."""
    names = {errors.DibsError.__name__, "UsageError"}
    while new := {name for name, base in bases if base in names} - names:
        names |= new
    return names


def _text(node: ast.expr) -> str | None:
    """The text of a string, with a value of usual length for every field; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [_text(each) if isinstance(each, ast.Constant) else VALUE for each in node.values]
        return "".join(part or "" for part in parts)
    if isinstance(node, ast.BinOp):
        return (_text(node.left) or VALUE) + (_text(node.right) or VALUE)
    return None


@cache
def raised() -> list[tuple[str, str]]:
    """Where each error is made, and its sentence. The source is read, so that nothing need be imported."""
    bases, calls = set(), []
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases |= {(node.name, base.id) for base in node.bases if isinstance(base, ast.Name)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and path.parts[0] in REACHED:
                calls.append((f"{path}:{node.lineno}", node.func.id, node.args[:1]))
    names = _error_names(bases)
    texts = [(where, _text(given)) for where, name, first in calls if name in names for given in first]
    return [(where, text) for where, text in texts if text is not None and " " in text]


def spoken(file: str) -> list[tuple[str, str]]:
    """All sentences in a file: strings with blanks, except docstrings."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    quiet |= {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
    return [
        (f"{file}:{node.lineno}", text)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        and id(node) not in quiet
        and (text := _text(node)) is not None
        and " " in text
    ]


@cache
def refused() -> list[tuple[str, str]]:
    return spoken("wire/refusals.py") + spoken("wire/sentences.py")


def test_the_walk_finds_the_sentences() -> None:
    assert len(raised()) > 250
    assert len(refused()) > 25
    assert "Give JOB or --staged, not both." in {text for _, text in raised()}


def test_an_error_is_at_most_two_short_lines() -> None:
    long = {
        where: text
        for where, text in raised() + refused()
        # `dibs` alone prints the help.
        if not text.startswith("Which command?")
        and (len(text.split("\n")) > LINES_MAX or any(len(line) > LINE_CHARS_MAX for line in text.split("\n")))
    }
    assert not long


def test_no_word_of_http_is_in_an_error_of_the_command_line() -> None:
    leaks = {}
    for where, text in raised() + refused():
        answer = failure(Reply(status=400, body={"code": "invalid_input", "details": text}))
        if HTTP_WORDS.search(answer.text) or HTTP_WORDS.search(answer.message):
            leaks[where] = answer.text
    assert not leaks
    assert any(HTTP_WORDS.search(text) for _, text in raised()), "there was nothing to put into other words"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("claim", "job", "--request-key", ""), "--request-key may not be empty"),
        (("claim", "job", "--metadata", "m" * 2_000), "metadata"),
        (("transfer", "job", "--to", "bob", "--lease", "x", "--to-session", "y"), "--to"),
    ],
)
def test_a_refused_field_is_called_by_its_flag(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    ran = terminal(*words)
    assert ran.exit == 64
    assert says in ran.err
    assert not HTTP_WORDS.search(ran.err)


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("words", [(), ("--nonsense",), ("a", "b", "c", "d"), ("--ttl", "--json")])
def test_every_command_says_what_is_wrong_in_two_lines(name: str, words: tuple[str, ...]) -> None:
    try:
        parse(load(name), words)
    except UsageError as error:
        lines = _of_error(error).text.split("\n")
        assert len(lines) <= LINES_MAX
        assert max(map(len, lines)) <= LINE_CHARS_MAX
        assert not HTTP_WORDS.search(" ".join(lines))


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("width", [40, 60, 100])
def test_help_is_wrapped_to_the_width_of_the_terminal(name: str, width: int) -> None:
    examples = {line for line, _ in load(name).examples}
    lines = [
        line
        for line in page(load(name), width).split("\n")
        if line.strip() not in examples and not line.startswith("  # ")
    ]
    assert [line for line in lines if len(line) > max(width, _widest_word(name) + width // 3)] == []
    assert [line for line in lines if "{" in line and "}" in line] == []


def _widest_word(name: str) -> int:
    """A flag and its value are one word."""
    return max(len(each) for each in _around_flags(load(name), _bracketed(load(name).options)))


def test_the_width_is_that_of_the_terminal_or_of_columns() -> None:
    for columns, most in (("50", 50), ("70", 70), ("200", 100)):
        screen = Screen()
        assert run(["claim", "--help"], {"COLUMNS": columns, "NO_COLOR": "1"}, screen, io.StringIO(), None) == 0
        usage = screen.getvalue().split("\n\n")[0].splitlines()
        assert most - 25 < max(map(len, usage)) <= most


@pytest.mark.parametrize(
    ("name", "shown", "flag"),
    [
        ("transfer", "(--to OWNER | --to-session ID)", "--to"),
        ("break", "--reason TEXT", "--reason"),
        ("git push", "--job JOB", "--job"),
    ],
)
def test_a_required_flag_is_shown_as_required(name: str, shown: str, flag: str) -> None:
    for usage in (usage_line(load(name)), short_usage(load(name))):
        assert shown in usage
        assert f"[{flag} " not in usage
    with pytest.raises(UsageError, match=flag):
        parse(load(name), ["a"])
