"""Many paths against many claims: looked up, and with the same answer as comparing each with each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.agents.git.hook_check import PathClaim, PathClaims, not_owned, others_touched, path_name
from dibs.core.names import check_name
from dibs.core.overlap import above, covers, overlaps

PARTS = st.lists(st.sampled_from(["a", "b", "ab", "a b"]), min_size=1, max_size=4).map("/".join)
NAMES = st.one_of(
    PARTS.map("path:{}".format), PARTS.map("path:/{}".format), st.sampled_from(["repo:x", "repo:a", "path:/"])
)


def hold(name: str, mode: str = "exclusive") -> PathClaim:
    return PathClaim(name=name, owner="agent-7", token=1, mode=mode, remaining_ms=60_000)


@pytest.mark.promise("tree")
@given(st.lists(NAMES, max_size=8), st.lists(PARTS, max_size=8))
def test_looking_up_finds_what_comparing_would(names: list[str], paths: list[str]) -> None:
    holds = [hold(name) for name in names]
    tree = PathClaims(holds)
    for path in paths:
        name = path_name(path)
        assert set(tree.touching(path)) == {each for each in holds if overlaps(each.name, name)}
        assert set(tree.over(path)) == {each for each in holds if each.name == name or covers(each.name, name)}


@pytest.mark.promise("tree")
@given(NAMES.filter(lambda name: name.startswith("path:")))
def test_what_is_above_a_name_is_all_that_covers_it(name: str) -> None:
    every = {name[:end] for end in range(6, len(name))} | {"path:/"}
    assert set(above(name)) == {
        other for other in every if check_name(other.rstrip()) == other and covers(other, name)
    } - {name}


@given(PARTS)
def test_a_path_as_git_gives_it_has_the_one_spelling_of_names(path: str) -> None:
    assert check_name(path_name(path)) == path_name(path)


def test_mine_are_not_in_the_way_and_shared_ones_do_not_make_me_owner() -> None:
    mine, theirs, shared = hold("path:a"), hold("path:b"), hold("path:c", "shared")
    tree = PathClaims([mine, theirs, shared])
    paths = ["a/1", "b/1", "b/2", "c/1", "d"]
    assert others_touched(tree, paths, {mine, shared}) == {theirs: ["b/1", "b/2"]}
    assert not_owned(tree, paths, {mine, shared}) == ["b/1", "b/2", "c/1", "d"]
