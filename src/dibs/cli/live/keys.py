"""Keys, from the bytes that a terminal sends. Pure."""

from __future__ import annotations

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, ERASE, CLEAR = "enter", "escape", "erase", "clear"
_SEQUENCES = {
    **{"A": UP, "B": DOWN, "H": HOME, "F": END},
    **{"5~": PAGE_UP, "6~": PAGE_DOWN, "1~": HOME, "4~": END, "7~": HOME, "8~": END},
}
_CONTROLS = {"\r": ENTER, "\n": ENTER, "\x1b": ESCAPE, "\x7f": ERASE, "\x08": ERASE, "\x15": CLEAR}


def keys_of(data: bytes) -> list[str]:
    """Names of keys, and characters as they are. Sequences that are not known, and other controls, are left out."""
    text = data.decode("utf-8", "ignore")
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
            end = at + 2
            while end < len(text) and not "@" <= text[end] <= "~":
                end += 1
            name = _SEQUENCES.get(text[at + 2 : end + 1])
            found += [name] if name else []
            at = end + 1
            continue
        key = _CONTROLS.get(text[at], text[at])
        if len(key) > 1 or key.isprintable():
            found.append(key)
        at += 1
    return found
