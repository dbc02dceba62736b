"""The live claims on paths: those of a tree (`records.Tree`), in pages.

A claim on a path must not read and write all others. So the paths of a tree with more than TREE_PAGE_CLAIMS claims are
in pages, sorted by name: one page has those from its first name up to the first of the next page, and it is split when
it has too many. A claim reads the pages of the names above it and of those below it, and writes one. A claim that comes
or goes changes its page, so a decision that looked at that page is compared with it. `repo:` claims, which overlap
everything, stay in the tree itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from dibs.base.cheap import Sequence
from dibs.core.draft import Draft
from dibs.core.limits import TREE_PAGE_CLAIMS
from dibs.core.overlap import above
from dibs.core.records import Holder, LockRecord, Tree, TreeClaim, tree_key


def overlapping(draft: Draft, ns: str, name: str) -> list[TreeClaim]:
    """The live claims on other names that overlap `name`."""
    tree, found = draft.tree(ns), draft.overlap(ns).of(name)
    if not tree.pages:
        return found
    pages = tree.pages if name.startswith("repo:") else [tree.pages[at] for at in _near(tree.firsts, name)]
    draft.need(*[tree_key(ns, page) for page in pages])
    return found + [claim for page in pages for claim in draft.overlap(ns, page).of(name)]


def _near(firsts: tuple[str, ...], name: str) -> list[int]:
    beneath = name if name.endswith("/") else f"{name}/"
    after = f"{beneath[:-1]}0"  # the character after the slash: above all names that begin with `beneath`
    found = {bisect_right(firsts, each) - 1 for each in (beneath, *above(name))}
    return sorted(found.union(range(bisect_left(firsts, beneath), bisect_left(firsts, after))))


def note_claims(draft: Draft, lock: LockRecord) -> None:
    """Let the tree have what the lock has: a claim for each of its owners, and no other on its name."""
    page = _page_of(draft, lock.ns, lock.name)
    known = {each.lease_id: each for each in page.claims if each.name == lock.name}
    claims = [each for each in page.claims if each.name != lock.name]
    for holder in lock.holders:
        mine = known.get(holder.lease_id)
        if mine is None or mine.mode != holder.mode:
            mine = TreeClaim(name=lock.name, lease_id=holder.lease_id, mode=holder.mode)
        claims.append(mine)
    if len(claims) > max(TREE_PAGE_CLAIMS, len(page.claims)):
        paths = [each for each in claims if not each.name.startswith("repo:")]
        parts = _parts(sorted(paths, key=lambda each: each.name))
        if len(parts) > 1:
            _split(draft, lock.ns, page, [each for each in claims if each.name.startswith("repo:")], parts)
            return
    if claims or not page.page:
        draft.put(page.replace(claims=tuple(claims)))
    else:
        draft.drop(page)
        _put_pages(draft, lock.ns, page, (), ())


def unclaimed(draft: Draft, lock: LockRecord) -> list[Holder]:
    known = {each.lease_id for each in _page_of(draft, lock.ns, lock.name).claims if each.name == lock.name}
    return [each for each in lock.holders if each.lease_id not in known]


def _page_of(draft: Draft, ns: str, name: str) -> Tree:
    """The tree itself, or the page of it that has the claims on a name."""
    tree = draft.tree(ns)
    if not tree.pages or name.startswith("repo:"):
        return tree
    return draft.tree(ns, tree.pages[bisect_right(tree.firsts, name) - 1])


def _parts(claims: list[TreeClaim]) -> list[list[TreeClaim]]:
    """Sorted claims in pages that are half full. Those on one name stay together."""
    parts: list[list[TreeClaim]] = [[]]
    half = max(1, TREE_PAGE_CLAIMS // 2)
    for at, claim in enumerate(claims):
        if len(parts[-1]) >= half <= len(claims) - at and claim.name != parts[-1][-1].name:
            parts.append([])
        parts[-1].append(claim)
    return parts


def _split(draft: Draft, ns: str, page: Tree, stay: list[TreeClaim], parts: list[list[TreeClaim]]) -> None:
    """Put the claims into new pages. These are written first, then the tree that names them; the old page goes last."""
    tree = draft.tree(ns)
    draft.need(*[tree_key(ns, tree.next_page + at) for at in range(len(parts))])
    number = tree.next_page - 1
    numbers: list[int] = []
    for part in parts:
        number += 1
        while draft.get(tree_key(ns, number)) is not None:  # left by one who was killed before the tree named it
            draft.write(tree_key(ns, number), None)
            number += 1
        numbers.append(number)
        draft.put(Tree(ns=ns, page=number, claims=tuple(part)))
    if page.page:
        draft.drop(page)
    else:
        draft.put(tree.replace(claims=tuple(stay)))
    _put_pages(draft, ns, page, [part[0].name for part in parts], numbers)


def _put_pages(draft: Draft, ns: str, page: Tree, firsts: Sequence[str], pages: Sequence[int]) -> None:
    tree = draft.tree(ns)
    at = tree.pages.index(page.page) if page.page else 0
    firsts = (*tree.firsts[:at], *firsts, *tree.firsts[at + 1 :])
    draft.put(
        tree.replace(
            ns="" if firsts else ns,
            ns_of_pages=ns if firsts else "",
            firsts=("", *firsts[1:]) if firsts else (),
            pages=(*tree.pages[:at], *pages, *tree.pages[at + 1 :]),
            next_page=max([tree.next_page, *[number + 1 for number in pages]]),
        )
    )
