"""Times and texts as people read them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base.jsontext import encode_shown
from dibs.cli.text.words import (
    Paint,
    ago,
    columns_of,
    instant_ms,
    paint_for,
    plain,
    shell_word,
    short_name,
    span,
    table,
)
from dibs.wire.parts import timestamp


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (-5_000, "just now"),
        (0, "just now"),
        (1_999, "just now"),
        (2_000, "2 seconds ago"),
        (59_999, "59 seconds ago"),
        (60_000, "1 minute ago"),
        (4 * 60_000, "4 minutes ago"),
        (3_600_000, "1 hour ago"),
        (3 * 86_400_000, "3 days ago"),
    ],
)
def test_the_past_is_said_in_one_unit(ms: int, words: str) -> None:
    assert ago(ms) == words


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (999, "less than a second"),
        (-1, "less than a second"),
        (2_500, "2s"),
        (119_990, "2m"),
        (90_000, "1m 30s"),
    ],
)
def test_what_is_left_is_never_said_to_be_more_than_it_is(ms: int, words: str) -> None:
    assert span(ms) == words


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_an_instant_is_read_back_as_it_was_written(ms: int) -> None:
    assert instant_ms(timestamp(ms)) == ms


@given(st.text())
def test_a_shell_reads_a_quoted_word_back(text: str) -> None:
    if "\0" not in text:
        assert shlex.split(shell_word(text)) == [text]


@given(st.text())
def test_plain_text_is_always_one_printable_line(text: str) -> None:
    assert plain(text).isprintable()


def test_a_table_has_columns_and_no_trailing_blanks() -> None:
    assert table([("a", "bb", ""), ("ccc", "d", "e")]) == ["a    bb", "ccc  d   e"]
    assert table([]) == []


class Screen:
    def __init__(self, tty: bool) -> None:
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize(
    ("tty", "env", "on"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(tty: bool, env: dict[str, str], on: bool) -> None:
    assert paint_for(Screen(tty), env).on is on  # type: ignore[arg-type]
    assert paint_for(None, env).on is False


def test_colour_wraps_words_and_changes_none() -> None:
    paint = Paint(True)
    assert paint.shown(paint.good("yes")) == "\x1b[32myes\x1b[0m"
    assert Paint(False).good("yes") == "yes"


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("job", 3, "job"),
        ("github://acme/app/issues/1842", 20, "github://a…sues/1842"),
        ("abcdef", 5, "ab…ef"),
        ("abcdef", 2, "a…"),
        ("abcdef", 0, ""),
        ("\u4f60\u597d\u4e16\u754c", 6, "\u4f60…\u754c"),
    ],
)
def test_a_name_is_cut_in_the_middle_because_names_differ_at_their_end(text: str, most: int, shown: str) -> None:
    assert short_name(text, most) == shown


@given(st.text(max_size=60), st.integers(0, 30))
def test_a_name_that_was_cut_fits(text: str, most: int) -> None:
    assert columns_of(short_name(text, most)) <= most


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", '"a → b\\u001b\\u202e"'),
        ("ascii", '"a \\u2192 b\\u001b\\u202e"'),
        (None, '"a \\u2192 b\\u001b\\u202e"'),
    ],
)
def test_json_on_a_terminal_has_letters_and_escapes_what_could_act(encoding: str | None, shown: str) -> None:
    assert encode_shown("a → b\x1b\u202e", encoding) == shown
