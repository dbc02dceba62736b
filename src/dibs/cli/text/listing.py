"""Jobs as a table: `dibs list`, and the board of `dibs top`. Pure: the time and the width are arguments."""

from __future__ import annotations

from dibs.cli.text.words import ago, columns_of, instant_ms, plain, short, span, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.cli.text.colour import Paint

    Document = dict[str, Any]
    Row = tuple[str, ...]

NOTE_CHARS_MAX = 60
# The least width of each column on a narrow terminal. The note is cut first, the job's name last.
_LEAST = (("NOTE", 12), ("OWNER", 10), ("JOB", 16))
_NONE = {
    "held": "No job is claimed.",
    "parked": "No job is parked.",
    "done": "No job is marked as done.",
}


def listing(document: Document, paint: Paint, now_ms: int, width: int | None = None) -> str:
    """`width` is that of the terminal; None means that lines are not cut."""
    locks = one_row_each(document["locks"])
    if not locks:
        return nothing(document)
    rows = rows_of(locks, heads_of(locks), now_ms)
    first, *lines = table(rows if width is None else fitted(rows, width))
    if document["next"]:
        lines.append(paint.faint(f"More follow: --after {plain(document['next'])}"))
    return "\n".join([paint.faint(first), *lines])


def one_row_each(locks: list[Document]) -> list[Document]:
    """The jobs as a person reads them. The hook of a coding agent claims a file as `path:src/a`, which all clones see,
    and as `path:@ID/src/a`, for one checkout; its note has the ids of checkout and clone. That is one row."""
    rows: dict[tuple[str, object], Document] = {}
    for lock in sorted(locks, key=_is_in_checkout):
        name, note = lock["name"], lock.get("metadata")
        if _is_in_checkout(lock):
            name = "path:" + name.partition("/")[2]
        if note and note.startswith("checkout="):
            note = None
        rows.setdefault((name, lock.get("owner")), {**lock, "name": name, "metadata": note})
    return list(rows.values())


def _is_in_checkout(lock: Document) -> bool:
    mark = lock["name"].removeprefix("path:@").partition("/")[0]
    return lock["name"].startswith("path:@") and len(mark) == 12 and all(each in "0123456789abcdef" for each in mark)


def heads_of(locks: list[Document]) -> Row:
    """The columns of `dibs list`. A column that says the same of all jobs is left out."""
    with_state = any(lock["status"] != "held" for lock in locks)
    with_mode = any(how_held(lock) != "exclusive" for lock in locks)
    head = ("JOB", *(("STATE",) if with_state else ()), "OWNER", "LEFT", "SINCE")
    return (*head, *(("MODE",) if with_mode else ()), "NOTE")


def rows_of(locks: list[Document], heads: Row, now_ms: int) -> list[Row]:
    """The heads, and a row for each job."""
    rows = [heads]
    for lock in locks:
        cells = cells_of(lock, now_ms)
        rows.append(tuple([cells[head] for head in heads]))
    return rows


def cells_of(lock: Document, now_ms: int) -> dict[str, str]:
    """Return what each column says of a job."""
    owner, left, since, note = _told(lock, now_ms)
    is_held = lock["status"] == "held"
    return {
        "JOB": plain(lock["name"]),
        "STATE": plain(lock["status"]),
        "OWNER": owner,
        "LEFT": left,
        "SINCE": since,
        "MODE": how_held(lock),
        "AGE": _brief(lock["held_ms"]) if is_held and "held_ms" in lock else since,
        "HEARD": _brief(lock["silent_ms"]) if is_held and "silent_ms" in lock else "-",
        "TRY": str(lock["attempt"]) if is_held and lock.get("attempt") else "-",
        "WAIT": str(lock.get("waiting") or "-"),
        "NOTE": short(plain(note), NOTE_CHARS_MAX),
    }


def _brief(ms: int) -> str:
    return span(ms) if ms >= 1000 else "0s"


def left_part(lock: Document) -> float | None:
    """Return which part of its time a claim has left: 1 right after a heartbeat, 0 at its end. None if nobody has the
    job."""
    if lock["status"] != "held" or lock.get("remaining_ms") is None:
        return None
    left_ms = max(0, lock["remaining_ms"])
    whole_ms = left_ms + max(0, lock.get("silent_ms") or 0)
    return left_ms / whole_ms if whole_ms else 0.0


def nothing(document: Document) -> str:
    """The text for an empty list."""
    states = document.get("states", ["held"])
    said = _NONE[states[0]] if states[0] in _NONE and len(states) <= 2 else "No job is on record."
    if document["prefix"]:
        said = f"{said[:-1]} whose name begins with {plain(document['prefix'])}."
    return said if not document.get("owner") else f"{said[:-1]} by {plain(document['owner'])}."


def _told(lock: Document, now_ms: int) -> Row:
    """Columns of one job: owner, time left, since when, and a note."""
    if lock["status"] == "held":
        others = len(lock.get("holders", ())) - 1
        owner = plain(lock["owner"]) + (f" +{others}" if others > 0 else "")
        note = lock.get("checkpoint") or lock.get("metadata") or ""
        since = ago(lock["held_ms"]) if "held_ms" in lock else "-"  # OctoStore's servers do not send it
        return owner, span(lock["remaining_ms"]), since, note
    if lock["status"] == "done":
        done = lock["done"]
        left = span(instant_ms(done["until"]) - now_ms)
        return plain(done["owner"]), left, ago(now_ms - instant_ms(done["at"])), done.get("result") or ""
    last = lock.get("previous")
    if last is None:
        return "-", "-", "-", ""
    left = span(lock["retry_after_ms"]) if lock.get("retry_after_ms") else "-"
    note = last.get("reason") or last.get("checkpoint") or ""
    return plain(last["owner"]), left, ago(now_ms - instant_ms(last["at"])), note


def how_held(document: Document) -> str:
    """Return how a job is held: by one owner, shared, or by some of its slots."""
    count = len(document.get("holders", ())) or 1
    if document.get("slots", 1) > 1:
        return f"{count} of {document['slots']} slots"
    if document.get("mode", "exclusive") == "exclusive":
        return "exclusive"
    return f"shared by {count}" if count > 1 else plain(document["mode"])


def fitted(rows: list[Row], width: int, gap: int = 2) -> list[Row]:
    """The rows, with columns cut so that no line is longer than `width`."""
    heads = rows[0]
    widths = [max(columns_of(row[column]) for row in rows) for column in range(len(heads))]
    for head, least in _LEAST:
        if head not in heads:
            continue
        column = heads.index(head)
        too_long = sum(widths) + gap * (len(widths) - 1) - width
        if too_long > 0:
            widths[column] = max(min(widths[column], least), widths[column] - too_long)
    return [tuple([short(cell, most) for cell, most in zip(row, widths, strict=True)]) for row in rows]
