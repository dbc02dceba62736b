"""The quick way to find what overlaps a tree name agrees with the plain one."""

from __future__ import annotations

import random

import pytest

from dibs.core.draft import Draft, View
from dibs.core.holds import path_claims
from dibs.core.holds.path_claims import note_claims, overlapping
from dibs.core.names import check_name
from dibs.core.overlap import overlaps
from dibs.core.path_index import Overlap, TreeQueue
from dibs.core.records import EXCLUSIVE, SHARED, LockRecord, Tree, TreeClaim, TreeEntry, tree_key
from tests.build import COMPILED
from tests.core import make

PARTS = ("a", "b", "ab", "a.b", "é")


def a_name(chance: random.Random) -> str:
    if chance.random() < 0.1:
        return f"repo:{chance.choice(PARTS)}"
    root = chance.choice(("", "/"))
    parts = chance.choices(PARTS, k=chance.randint(0 if root else 1, 4))
    return check_name(f"path:{root}{'/'.join(parts)}")


def test_what_overlaps_is_the_same_whichever_way_it_is_found() -> None:
    chance = random.Random(3)
    seen = 0
    for _ in range(300):
        claims = tuple([TreeClaim(name=a_name(chance), lease_id=str(number)) for number in range(30)])
        overlap = Overlap(claims)
        for _ in range(6):  # the first are looked for in another way than those that follow
            name = a_name(chance)
            plain = [claim for claim in claims if claim.name != name and overlaps(claim.name, name)]
            assert overlap.of(name) == plain
            seen += len(plain)
    assert seen > 5_000


def note(draft: Draft, name: str, claims: list[TreeClaim]) -> None:
    """Let the tree have those of the claims that are on a name."""
    owners = tuple([make.holder(lease_id=each.lease_id) for each in claims if each.name == name])
    note_claims(draft, LockRecord(ns="n", name=name, holders=owners))


@pytest.mark.promise("tree")
@pytest.mark.skipif(COMPILED, reason="a limit of a compiled module cannot be replaced")
@pytest.mark.parametrize("most", [1, 2, 5])
def test_what_overlaps_is_the_same_however_many_claims_are_in_one_record(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", most)
    chance = random.Random(most)
    view = View(0, {tree_key("n", page): None for page in range(1_000)})
    kept: list[TreeClaim] = []
    largest, tree, pages = 0, Tree(ns="n"), dict[int, Tree]()
    for number in range(1_200):
        draft = Draft(view)
        if len(kept) < 40 and chance.random() < (0.8 if number % 400 < 300 else 0.1):
            kept.append(TreeClaim(name=a_name(chance), lease_id=str(number)))
            note(draft, kept[-1].name, kept)
        elif kept:
            gone = kept.pop(chance.randrange(len(kept)))
            note(draft, gone.name, kept)
        name = a_name(chance)
        plain = {each.lease_id for each in kept if each.name != name and overlaps(each.name, name)}
        found = [each.lease_id for each in overlapping(draft, "n", name)]
        assert len(found) == len(set(found))
        assert set(found) == plain
        view.records.update(draft.writes)
        tree = draft.tree("n")
        pages = {each.page: each for each in view.records.values() if isinstance(each, Tree) and each.page}
        assert sorted(tree.pages) == sorted(pages)
        assert all(len({each.name for each in page.claims}) <= most for page in pages.values())
        largest = max(largest, len(tree.pages))
    assert largest > 3
    assert sum([len(each.claims) for each in (tree, *pages.values())]) == len(kept)


def test_who_comes_first_and_how_many_is_the_same_whichever_way_it_is_found() -> None:
    chance = random.Random(4)
    for _ in range(100):
        modes = chance.choices((EXCLUSIVE, SHARED), k=20)
        line = tuple([TreeEntry(name=a_name(chance), number=at, mode=mode) for at, mode in enumerate(modes, 1)])
        places = TreeQueue(line)
        name, mode, before = a_name(chance), chance.choice((EXCLUSIVE, SHARED)), chance.randint(0, 20)
        plain = [each for each in line if overlaps(each.name, name) and not mode == each.mode == SHARED]
        assert places.first(name, mode) == (plain[0] if plain else None)
        assert places.count(name, mode, before) == len([each for each in plain if not before or each.number < before])


@pytest.mark.promise("tree")
def test_a_version_without_pages_cannot_take_a_tree_with_pages_for_an_empty_one() -> None:
    draft = Draft(View(0, {tree_key("n", page): None for page in range(9)}))
    for number in range(65):
        assert draft.tree("n").dump().get("ns", "n") == "n"
        note(draft, f"path:{number}", [TreeClaim(name=f"path:{number}", lease_id=str(number))])
    assert "ns" not in draft.tree("n").dump()  # 0.2.0 needs it, and refuses a record without it
    assert draft.tree("n").namespace() == "n"
    for number in range(65):
        note(draft, f"path:{number}", [])
    assert draft.tree("n").dump()["ns"] == "n"
