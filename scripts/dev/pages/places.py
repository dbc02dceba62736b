"""Places in a page that are made anew: what stands between `<!-- name: begin -->` and `<!-- name: end -->`."""

from __future__ import annotations


def filled(page: str, made: dict[str, list[str]]) -> str:
    """The page with these lines in the places of these names."""
    for name, lines in made.items():
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the page has no place for {name}")
        page = before + begin + "\n".join(lines) + end + after
    return page
