"""The quick way to find what overlaps a tree name agrees with the plain one."""

from __future__ import annotations

import random

from dibs.core.names import check_name
from dibs.core.overlap import Overlap, TreePlaces, overlaps
from dibs.core.records import EXCLUSIVE, SHARED, TreeClaim, TreePlace

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


def test_who_comes_first_and_how_many_is_the_same_whichever_way_it_is_found() -> None:
    chance = random.Random(4)
    for _ in range(100):
        modes = chance.choices((EXCLUSIVE, SHARED), k=20)
        line = tuple([TreePlace(name=a_name(chance), number=at, mode=mode) for at, mode in enumerate(modes, 1)])
        places = TreePlaces(line)
        name, mode, before = a_name(chance), chance.choice((EXCLUSIVE, SHARED)), chance.randint(0, 20)
        plain = [each for each in line if overlaps(each.name, name) and not mode == each.mode == SHARED]
        assert places.first(name, mode) == (plain[0] if plain else None)
        assert places.count(name, mode, before) == len([each for each in plain if not before or each.number < before])
