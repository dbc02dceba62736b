"""One reference, one name: the table of forms, and what must stay apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base.errors import InvalidName
from dibs.wire.issue_names import (
    HostedRepository,
    has_secret,
    is_plain,
    is_tracked,
    job_name,
    needs,
    reference_of,
    repository_at,
)
from tests.walks import references
from tests.walks.references import ENTERPRISE, HUB, LAB, TEAM

ISSUE = "github://acme/app/issues/42"
SAME = [
    "https://github.com/Acme/App/issues/42",
    "HTTPS://GitHub.com/acme/app/issues/42/",
    "http://github.com:80/acme/app/issues/42",
    "https://www.github.com:443/acme/app/issues/42?plain=1#issuecomment-7",
    "https://ann:hunter2@github.com/acme/app/issues/42",
    "https://ghp_0123456789@github.com/acme/app/issues/42",
    "https://github.com/acme/app/pull/42",
    "https://github.com/acme/app/pull/42/files#diff-1",
    "https://github.com/acme/app/pull/42/commits/0123abc",
    "https://api.github.com/repos/acme/app/issues/42",
    "https://api.github.com/repos/acme/app/pulls/42",
    "acme/app#42",
    "ACME/App#42",
    "github://acme/app/issues/42",
    "github://Acme/App/pull/42",
    "github://github.com/acme/app/issues/42",
    "#42",
    "GH-42",
]


@pytest.mark.parametrize("name", SAME)
def test_every_way_to_write_a_github_issue_is_one_name(name: str) -> None:
    found = reference_of(name, TEAM, HUB)
    assert found is not None
    assert found.name == ISSUE


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("https://ghe.example.com/Acme/App/pull/7", "github://ghe.example.com/acme/app/issues/7"),
        ("github://GHE.example.com/acme/app/issues/7", "github://ghe.example.com/acme/app/issues/7"),
        ("https://gitlab.com/Acme/Tools/App/-/issues/7", "gitlab://gitlab.com/acme/tools/app/issues/7"),
        ("https://gitlab.com/acme/app/-/work_items/7", "gitlab://gitlab.com/acme/app/issues/7"),
        ("https://gitlab.com/acme/app/issues/7", "gitlab://gitlab.com/acme/app/issues/7"),
        ("https://gitlab.com/a/b/-/merge_requests/7/diffs", "gitlab://gitlab.com/a/b/merge_requests/7"),
        ("https://lab.example.org/a/b/-/issues/7", "gitlab://lab.example.org/a/b/issues/7"),
        ("gitlab://a/b/merge_requests/7", "gitlab://gitlab.com/a/b/merge_requests/7"),
        ("gitlab://my.group/app/issues/7", "gitlab://gitlab.com/my.group/app/issues/7"),
        ("a/b!7", "gitlab://gitlab.com/a/b/merge_requests/7"),
        ("https://linear.app/Acme/issue/eng-42/fix-the-door", "linear://acme/ENG-42"),
        ("linear://acme/eng-42", "linear://acme/ENG-42"),
        ("ENG-42", "linear://acme/ENG-42"),
        ("https://acme.atlassian.net/browse/PROJ-42", "jira://acme.atlassian.net/PROJ-42"),
        ("https://acme.atlassian.net/browse/proj-42?focusedId=1", "jira://acme.atlassian.net/PROJ-42"),
        (
            "https://acme.atlassian.net/jira/software/projects/PROJ/boards/1?a=b&selectedIssue=PROJ-42",
            "jira://acme.atlassian.net/PROJ-42",
        ),
        ("https://jira.example.com/browse/PROJ-42", "jira://jira.example.com/PROJ-42"),
        ("PROJ-42", "jira://jira.example.com/PROJ-42"),
    ],
)
def test_other_trackers_have_one_name_too(name: str, one: str) -> None:
    found = reference_of(name, TEAM)
    assert found is not None
    assert found.name == one


@pytest.mark.parametrize(
    ("name", "repository", "one"),
    [
        ("#42", LAB, "gitlab://gitlab.com/acme/tools/app/issues/42"),
        ("!42", LAB, "gitlab://gitlab.com/acme/tools/app/merge_requests/42"),
        ("acme/web#42", LAB, "gitlab://gitlab.com/acme/web/issues/42"),
        ("#42", ENTERPRISE, "github://ghe.example.com/acme/app/issues/42"),
        ("acme/web#42", ENTERPRISE, "github://ghe.example.com/acme/web/issues/42"),
    ],
)
def test_short_forms_mean_the_repository_of_the_clone(name: str, repository: HostedRepository, one: str) -> None:
    found = reference_of(name, TEAM, repository)
    assert found is not None
    assert found.name == one


LOOKALIKES = [
    "issue-1842",
    "UTF-8",
    "SHA-256",
    "ISO-8601",
    "BOTH-1",  # two trackers have it
    "PROJ-042",
    "proj-42",
    "GH-042",
    "gh-42",
    "#42 ",
    "#0",
    "#\uff14\uff12",
    "##42",
    "#",
    "acme#42",
    "acme/app/web#42",
    "acme/app#42#43",
    "../app#42",
    "acme/app#issue-42",
    "https://github.com/acme/app/issues/%34%32",
    "https://github.com/acme/app/issues/42/../43",
    "https://github.com/acme/app/pull/42/%2e%2e/43",
    "https://github.com/acme/app/issues/042",
    "https://github.com/acme/app/issues",
    "https://github.com/acme/app/issues/new",
    "https://github.com//app/issues/42",
    "https://github.com:8443/acme/app/issues/42",
    "https://github.com.evil.example/acme/app/issues/42",
    "https://evil.example/github.com/acme/app/issues/42",
    "https://github.com@evil.example/acme/app/issues/42",
    "https://github.com\\@evil.example/acme/app/issues/42",
    "https://github.com./acme/app/issues/42",
    "https://g\u0131thub.com/acme/app/issues/42",
    "https://github.com/\u0430cme/app/issues/42",
    "https://github.com/\u212aelvin/app/issues/42",
    "https://gitlab/a/b/-/issues/7",
    "https://example.com/browse/PROJ-42",
    "ftp://github.com/acme/app/issues/42",
    "github://acme/app",
    "github://acme/issues/42",
    "deploy:production",
    "a/b/c",
    "\U0001f419",
    "",
    "/",
    "://",
    "https://",
    "#" * 600,
    "https://github.com/" + "a" * 100_000,
]


@pytest.mark.parametrize("name", LOOKALIKES, ids=lambda name: ascii(name[:40]))
def test_what_only_looks_like_a_reference_is_none(name: str) -> None:
    assert reference_of(name, TEAM, HUB) is None


@pytest.mark.parametrize("name", ["#42", "!42", "GH-42", "PROJ-42", "ENG-42", "https://ghe.example.com/a/b/issues/7"])
def test_what_the_surroundings_do_not_say_is_not_guessed(name: str) -> None:
    assert reference_of(name) is None


def test_a_plain_name_needs_nothing() -> None:
    assert needs("issue-1842") is None
    assert needs("#42") == needs("acme/app#42") == "repository"
    assert needs("PROJ-42") == needs("https://x.example/y") == "settings"
    assert needs("github://a/b/issues/1") == "nothing"


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("https://ann:hunter2@ci.example/job/7", True),
        ("https://ghp_123@ci.example/job/7", True),
        ("git+ssh://ann:pw@host/x", True),
        ("ssh://git@host/x", False),
        ("https://ci.example/job/7?who=ann@example.com", False),
        ("mail:ann@example.com", False),
    ],
)
def test_a_secret_in_an_address_is_seen(name: str, is_secret: bool) -> None:
    assert has_secret(name) is is_secret


def test_only_known_hosts_have_repositories() -> None:
    found = repository_at("GitHub.com/Acme/App", TEAM)
    assert found is not None
    assert (found.kind, found.path) == ("github", "acme/app")
    assert repository_at("gitlab.com/a/b/c", TEAM) is not None
    assert repository_at("github.com/acme/app/sub", TEAM) is None
    assert repository_at("code.example.net/acme/app", TEAM) is None
    assert repository_at("github.com/\u212a/app", TEAM) is None


word = st.text(st.sampled_from("abAB01._-"), min_size=1, max_size=6)
number = st.integers(0, 10**11).map(str) | st.sampled_from(["0", "007", "42"])
host = st.sampled_from(
    [
        "github.com",
        "ghe.example.com",
        "gitlab.com",
        "git.example.com",
        "lab.example.org",
        "x",
        "a.b",
        "linear.app",
    ]
)
path = st.lists(word | st.sampled_from(["-", "issues", "pull", "merge_requests", "browse", "..", ""]), max_size=6)
anything = st.one_of(
    st.builds(lambda h, p, n: f"https://{h}/{'/'.join(p)}/{n}", host, path, number),
    st.builds(
        lambda s, p, n: f"{s}://{'/'.join(p)}/{n}",
        st.sampled_from(["github", "gitlab", "jira", "linear"]),
        path,
        number | st.just("ENG-1"),
    ),
    st.builds(lambda p, m, n: f"{'/'.join(p)}{m}{n}", path, st.sampled_from("#!"), number),
    st.builds(lambda k, n: f"{k}-{n}", st.sampled_from(["GH", "PROJ", "ENG", "UTF"]), number),
    st.text(max_size=30),
)


@given(anything, st.sampled_from([None, HUB, LAB, ENTERPRISE]))
def test_the_one_name_of_a_one_name_is_itself_wherever_one_is(name: str, repository: HostedRepository | None) -> None:
    found = reference_of(name, TEAM, repository)
    if found is not None:
        for around in (None, HUB, LAB, ENTERPRISE):
            again = reference_of(found.name, TEAM, around)
            assert again is not None
            assert again.name == found.name


def plain_words(text: str) -> bool:
    return text not in (".", "..", "-")


things = st.tuples(
    st.sampled_from(["github.com", "ghe.example.com", "gitlab.com", "lab.example.org"]),
    st.tuples(word.filter(plain_words), word.filter(plain_words)),
    st.sampled_from(["issues", "merge_requests"]),
    st.integers(1, 10**9),
)


def address(thing: tuple[str, tuple[str, str], str, int]) -> str:
    where, names, kind, count = thing
    if "gitlab" in where or "lab." in where:
        return f"https://{where}/{'/'.join(names)}/-/{kind}/{count}"
    return f"https://{where}/{'/'.join(names)}/{'pull' if kind == 'merge_requests' else kind}/{count}"


def identity(thing: tuple[str, tuple[str, str], str, int]) -> object:
    """What a tracker tells apart: GitHub counts issues and pull requests together, and no tracker minds case."""
    where, names, kind, count = thing
    return where, tuple(name.lower() for name in names), kind if "lab" in where else "", count


@given(things, things)
def test_two_references_have_one_name_exactly_if_the_tracker_takes_them_for_one(
    one: tuple[str, tuple[str, str], str, int], other: tuple[str, tuple[str, str], str, int]
) -> None:
    first, second = reference_of(address(one), TEAM), reference_of(address(other), TEAM)
    assert first is not None
    assert second is not None
    assert (first.name == second.name) == (identity(one) == identity(other))


STAYS = "It is in no known form, so it stays as it is."


@pytest.mark.parametrize(
    ("given_name", "name", "why"),
    [
        ("nightly", "nightly", STAYS),
        ("path:src", "path:src", "It is no file of a git work tree around, so it stays as it is."),
        ("./src", "./src", "It is no file of a git work tree around, so it stays as it is."),
        ("#42", ISSUE, "It is a GitHub number in this clone."),
        ("lab/run", "lab/run", STAYS),
        ("UTF-8", "UTF-8", STAYS),
        ("https://ann@ci.example/job/7", None, ""),
        ("https://ci.example/job/7", "https://ci.example/job/7", None),
    ],
)
def test_the_one_name_of_a_job_and_why_it_is_that(given_name: str, name: str | None, why: str | None) -> None:
    if name is None:
        with pytest.raises(InvalidName):
            job_name(given_name, TEAM, HUB)
        return
    found = job_name(given_name, TEAM, HUB)
    assert (found.given, found.name) == (given_name, name)
    assert why is None or found.why == why


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *[(name, True) for name in ("a", "issue-1842", "a!b", "x:y", "aB", "", None, 7, ["a/b"])],
        *[(name, False) for name in ("a/b", "a#1", "#1", "!1", "PROJ-42", "path:src", "Nightly")],
    ],
)
def test_a_plain_name_surely_stays_as_it_is(name: object, is_one: bool) -> None:
    assert is_plain(name) is is_one
    if isinstance(name, str) and name and is_one:
        assert job_name(name, TEAM, HUB).name == name


@pytest.mark.parametrize(
    ("names", "is_one"),
    [(ISSUE, True), ("a", False), (["a", ISSUE], True), (("a", 7), False), (None, False), (7, False), ([], False)],
)
def test_an_issue_among_the_names_is_seen(names: object, is_one: bool) -> None:
    assert is_tracked(names) is is_one


@pytest.mark.parametrize(
    "name", ["https://github.com/acme/caf\u00e9/issues/1", "caf\u00e9/app#1", "#\u0661", "\u212a-1"]
)
def test_no_form_of_a_reference_has_letters_beyond_ascii(name: str) -> None:
    assert needs(name) is None
    assert reference_of(name, TEAM, HUB) is None


def test_a_github_number_is_none_in_a_clone_of_another_host() -> None:
    assert reference_of("GH-42", TEAM, LAB) is None
    assert reference_of("GH-42", TEAM) is None
    assert reference_of("GH-42", TEAM, ENTERPRISE) is not None


@pytest.mark.parametrize("path", ["a b/issue/ENG-42", "/issue/ENG-42", "acme/issues/ENG-42", "acme/issue/42", "acme"])
def test_an_address_of_linear_that_is_no_issue_stays_as_it_is(path: str) -> None:
    assert reference_of(f"https://linear.app/{path}", TEAM, HUB) is None


@pytest.mark.parametrize("form", references.FORMS)
def test_what_is_nearly_a_reference_is_none_or_has_one_name(form: str) -> None:
    """One change of a good form. `scripts/dev/compare` shows whether one of them means another thing than before."""
    for each in references.near(form):
        for here in (None, HUB, LAB):
            found = reference_of(each, TEAM, here)
            again = None if found is None else reference_of(found.name, TEAM, here)
            assert found is None or (again is not None and again.name == found.name), each
