from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base.errors import InvalidName
from dibs.core import class_of
from dibs.core.claims.several import overlapping_pair
from dibs.core.names import check_name, check_namespace, election_job, in_tree
from dibs.core.overlap import overlaps
from dibs.core.records import EXCLUSIVE, SHARED, lock_key, split_lock_key
from tests.build import tries


@pytest.mark.parametrize(
    "name",
    [
        "issue-1842",
        "github://acme/app/issues/42",
        "path:src/auth.rs",
        "/",
        "//",
        "a/",
        "..",
        "x",
        "with  blanks inside",
        "hard\u00a0blank inside",
        "0",
        "null",
        "%2F",
        "straße",
        "任务-7",
        "مهمة",
        "e\u0301",  # e with a combining accent
        "👩\u200d👩\u200d👧\u200d👦",  # a family, joined
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f-1",  # a flag made of tags
        "❤\ufe0f",
        "\u0645\u06cc\u200c\u062e\u0648",  # a non-joiner inside a word
        "a" * 512,
        "é" * 256,
        "👍" * 128,
    ],
)
def test_a_printable_name_is_taken_as_it_is(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "empty"),
        ("a" * 513, "513"),
        ("é" * 256 + "a", "513"),
        ("👍" * 129, "516"),
        (" a", "blank"),
        ("a ", "blank"),
        ("\u00a0a", "blank"),
        ("a\u3000", "blank"),
        (" ", "blank"),
        ("a\n", "blank"),
        ("\ta", "blank"),
        ("a\nb", "U+000A"),
        ("a\tb", "U+0009"),
        ("a\x00b", "U+0000"),
        ("a\x7fb", "U+007F"),
        ("a\x9bb", "U+009B"),
        ("a\x1b[31mb", "character 2 is U+001B"),
        ("a\u2028b", "U+2028"),
        ("a\u2029b", "U+2029"),
        ("job\u202e24-eussi", "U+202E"),
        ("a\u202ab", "U+202A"),
        ("a\u2066b\u2069c", "U+2066"),
        ("a\u0378b", "U+0378"),  # unassigned
        ("a\ufffeb", "U+FFFE"),
        ("a\ud800", "UTF-8"),
        ("\udc00a", "UTF-8"),
        (None, "text"),
        (b"issue-1", "text"),
        (42, "text"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_what_is_wrong(name: object, says: str) -> None:
    with pytest.raises(InvalidName, match=says.replace("+", r"\+")) as caught:
        check_name(name)
    assert caught.value.code == "invalid_lock_name"


@pytest.mark.parametrize("invisible", ["\ufeff", "\u200b", "\u2060"])
@pytest.mark.parametrize("form", ["{}issue-1", "issue-1{}", "{}"])
def test_a_name_that_begins_or_ends_with_something_invisible_is_refused(invisible: str, form: str) -> None:
    """A byte order mark before the first name of a file makes another job that looks the same on every screen."""
    with pytest.raises(InvalidName):
        check_name(form.format(invisible))


@pytest.mark.promise("tree")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("path:src/", "path:src"),
        ("path:./src//auth/./x.rs", "path:src/auth/x.rs"),
        ("path:/etc/hosts", "path:/etc/hosts"),
        ("path:/", "path:/"),
        ("path:..src", "path:..src"),
        ("repo:app", "repo:app"),
        ("repo:a//b/..", "repo:a//b/.."),
        ("issue:../x", "issue:../x"),
    ],
)
def test_one_place_in_a_tree_has_one_spelling(name: str, place: str) -> None:
    assert check_name(name) == place
    assert check_name(place) == place


@pytest.mark.parametrize("name", ["path:", "path:.", "path:./", "path:..", "path:src/../../x", "path:/..", "repo:"])
def test_a_tree_name_that_leads_out_or_nowhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name(name)


@pytest.mark.promise("all-or-nothing", "tree")
@pytest.mark.parametrize(
    ("names", "mode", "pair"),
    [
        (("a", "b"), EXCLUSIVE, None),
        (("path:s", "path:t"), EXCLUSIVE, None),
        (("a", "path:s", "path:s/x"), EXCLUSIVE, ("path:s", "path:s/x")),
        (("path:s", "repo:r"), EXCLUSIVE, ("path:s", "repo:r")),
        (("path:s", "path:s/x"), SHARED, None),
    ],
)
def test_two_names_of_which_nobody_can_have_both_are_found(
    names: tuple[str, ...], mode: str, pair: tuple[str, str] | None
) -> None:
    assert overlapping_pair(names, mode) == pair


def test_pairs_are_found_as_by_looking_at_each_pair() -> None:
    chance = random.Random(7)
    parts = ("a", "b", "ab", "a.b")
    for _ in range(tries(2_000, 200_000)):
        made = {
            chance.choice(("path:", "path:", "path:", "path:/", "repo:", "")) + "/".join(chance.choices(parts, k=size))
            for size in chance.choices((1, 2, 3), k=chance.randint(1, 6))
        }
        names = tuple(sorted(made | set(chance.choices(("path:/", "path:a", "repo:a"), k=chance.randint(0, 1)))))
        trees = [name for name in names if in_tree(name)]
        pairs = [(one, other) for at, one in enumerate(trees) for other in trees[at + 1 :] if overlaps(one, other)]
        assert overlapping_pair(names, EXCLUSIVE) == (pairs[0] if pairs else None)


@given(st.text(max_size=300))
def test_whatever_the_text_the_answer_is_the_text_itself_or_one_error(text: str) -> None:
    try:
        answer = check_name(text)
    except InvalidName as error:
        answer, text = error.details, ""
    assert answer == text or (answer.isprintable() and answer.startswith("A job name"))


@pytest.mark.parametrize("namespace", ["default", "acme.app", "A-b_c.9", "x" * 64])
def test_a_plain_namespace_is_taken_as_it_is(namespace: str) -> None:
    assert check_namespace(namespace) is namespace


@pytest.mark.parametrize("namespace", ["", "x" * 65, "a/b", "a b", "é", "a\n", "a:b", None, 7])
def test_a_namespace_with_anything_else_is_refused(namespace: object) -> None:
    with pytest.raises(InvalidName):
        check_namespace(namespace)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), st.text(min_size=1))
def test_a_key_says_which_job_it_is_whatever_the_name_holds(namespace: str, name: str) -> None:
    key = lock_key(namespace, name)
    assert split_lock_key(key) == (namespace, name)
    assert class_of(key).__name__ == "LockRecord"


def test_an_election_has_a_job_of_its_own() -> None:
    assert election_job("main") == "election:main"
    assert election_job("a b ") == "election:a b "


@pytest.mark.parametrize("name", ["", None, 7, " main", "\tmain"])
def test_an_election_needs_a_name(name: object) -> None:
    with pytest.raises(InvalidName):
        election_job(name)
