from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base.errors import InvalidInput, InvalidTtl
from dibs.core.durations import ago, check_ttl_ms, duration_ms, format_duration, is_duration, parse_duration, span
from dibs.core.limits import TTL_MS_MAX, TTL_MS_MIN

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90", 90_000),
        ("0", 0),
        ("007", 7_000),
        ("250ms", 250),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("2H", 7_200_000),
        ("1.5", 1_500),
        ("1.5m", 90_000),
        ("0.25d", 21_600_000),
        (".5h", 1_800_000),
        ("0.001s", 1),
        (" 30s\n", 30_000),
        ("999999999999999", 999_999_999_999_999_000),
        ("999999999999999d", 999_999_999_999_999 * 86_400_000),
    ],
)
def test_a_length_of_time_is_read(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "ms",
        "-1",
        "+1",
        "1.",
        ".",
        "1.5.5",
        "0.0005s",
        "1.5ms",
        "1,5",
        "1e3",
        "0x10",
        "1_000",
        "5 m",
        "5w",
        "5y",
        "5min",
        "1h30m",
        "1m 30s",
        "h2",
        "NaN",
        "inf",
        "soon",
        "\u0663\u0660s",  # digits of another script
        "\uff13\uff10",
        "²",
        "½",
        "5\u017f",
        "5\u212a",  # the sign for kelvin, which lower() makes a k
        "\x005",
        "9" * 16,
        "9" * 10_000,
    ],
)
def test_a_length_of_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a waiting time"):
        parse_duration(text, "waiting time")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (59_000, "59s"),
        (60_000, "1m"),
        (90_000, "1m 30s"),
        (3_600_000, "1h"),
        (3_605_000, "1h"),
        (5_400_000, "1h 30m"),
        (86_400_000, "1d"),
        (3 * 86_400_000 + 4 * 3_600_000 + 59_000, "3d 4h"),
        (-1_000, "-1s"),
        (10**18, "11574074074d 1h"),
    ],
)
def test_a_length_of_time_reads_as_a_person_says_it(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@given(st.integers(0, 999_999_999_999_999), st.sampled_from(list(UNITS_MS)))
def test_what_is_written_in_one_unit_is_read_exactly(count: int, unit: str) -> None:
    assert parse_duration(f"{count}{unit}") == count * UNITS_MS[unit]


@given(st.integers(0, 10**15))
def test_what_is_shown_reads_back_as_the_same_time_with_the_small_parts_cut_off(ms: int) -> None:
    parts = format_duration(ms).split()
    assert 1 <= len(parts) <= 2
    shown_ms = sum(parse_duration(part) for part in parts)
    assert 0 <= ms - shown_ms < max(1_000, ms // 24)
    if ms == shown_ms and len(parts) == 1:
        assert format_duration(parse_duration(parts[0])) == parts[0]


@pytest.mark.parametrize("ttl_ms", [TTL_MS_MIN, 60_000, TTL_MS_MAX])
def test_a_lease_time_within_the_range_is_taken(ttl_ms: int) -> None:
    assert check_ttl_ms(ttl_ms) == ttl_ms


@pytest.mark.parametrize("ttl_ms", [TTL_MS_MIN - 1, 0, -1, -60_000, TTL_MS_MAX + 1, 10**30])
def test_a_lease_time_outside_the_range_is_refused_with_the_range(ttl_ms: int) -> None:
    with pytest.raises(InvalidTtl, match=r"from 1 to 86400 seconds \(24h\)"):
        check_ttl_ms(ttl_ms)


@pytest.mark.parametrize("ttl_ms", [TTL_MS_MAX + 1_000, TTL_MS_MAX + 60_000])
def test_the_refusal_of_a_lease_time_does_not_say_that_the_limit_itself_was_asked_for(ttl_ms: int) -> None:
    with pytest.raises(InvalidTtl) as caught:
        check_ttl_ms(ttl_ms)
    assert "; 86400 were asked for" not in caught.value.details


@pytest.mark.parametrize(
    ("value", "ms"),
    [("2m", 120_000), (0, 0), (1.5, 1_500), (0.0004, 0), (timedelta(minutes=2), 120_000), (1e12 - 1, 10**15 - 1_000)],
)
def test_a_program_gives_text_or_seconds_or_a_timedelta(value: object, ms: int) -> None:
    assert duration_ms(value) == ms


@pytest.mark.parametrize("value", [True, False, None, [], -1, -0.5, 1e12, timedelta(seconds=-1), "soon", float("nan")])
def test_what_a_program_gives_besides_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"is not a wait\.|^wait is a number of seconds"):
        duration_ms(value, "wait")


@pytest.mark.parametrize(("text", "is_one"), [("90", True), ("15m", True), ("", False), ("soon", False)])
def test_what_can_be_read_is_a_duration(text: str, is_one: bool) -> None:
    assert is_duration(text) is is_one


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (-5_000, "just now"),
        (1_999, "just now"),
        (2_000, "2 seconds ago"),
        (59_999, "59 seconds ago"),
        (60_000, "1 minute ago"),
        (119_999, "1 minute ago"),
        (120_000, "2 minutes ago"),
        (3_600_000, "1 hour ago"),
        (86_399_999, "23 hours ago"),
        (86_400_000, "1 day ago"),
        (3 * 86_400_000, "3 days ago"),
    ],
)
def test_a_time_that_is_over_is_said_in_one_unit(ms: int, said: str) -> None:
    assert ago(ms) == said


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (-1, "less than a second"),
        (999, "less than a second"),
        (1_000, "1s"),
        (1_949, "1s"),
        (1_950, "2s"),
        (119_949, "1m 59s"),
        (119_950, "2m"),
    ],
)
def test_what_is_left_of_a_lease_is_rounded_up_by_no_more_than_a_request_takes(ms: int, said: str) -> None:
    assert span(ms) == said
