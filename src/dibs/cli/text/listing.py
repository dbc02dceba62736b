"""Jobs as text: one by itself, the table of `dibs list`, the board of `dibs top`. Pure: times and widths are given."""

from __future__ import annotations

from dibs.base.cheap import Mapping, Sequence
from dibs.base.jsontext import Document
from dibs.cli.text import claim as claim_text
from dibs.cli.text.claim import field, hold_fields, previous
from dibs.cli.text.words import (
    GAP,
    PADDED_MAX,
    Paint,
    ago,
    columns_of,
    instant_ms,
    job_command,
    natural_key,
    plain,
    shell_line,
    short,
    short_name,
    span,
    table,
)
from dibs.wire import sentences

Row = tuple[str, ...]


def status_text(document: Document, paint: Paint, now_ms: int) -> str:
    """The state of one job. `now_ms` is this machine's clock, for documents without a remaining time."""
    document = sentences.readable(document)
    if document["status"] == "held":
        return _held(document, paint)
    if document["status"] == "done":
        done = document["done"]
        at_ms, until_ms = instant_ms(done["at"]), instant_ms(done["until"])
        times = {"done_ms_ago": now_ms - at_ms, "retry_after_ms": until_ms - now_ms}
        said = claim_text.refusal({**done, **times, "status": "done", "name": document["name"]}, paint)
        return "\n".join([said, *claim_text.effects(document, now_ms), *_around(document)])
    lines = [claim_text.sentence({**document, "overlapping": None})]  # overlapping claims get lines of their own
    if document["status"] == "parked":
        lines[0] += f" `{job_command(['free'], [document['name']])}` frees it."
    if document.get("previous"):
        lines += previous(document["previous"], now_ms)
    lines += claim_text.effects(document, now_ms)
    # What else keeps others from it, when that which the first line says is over.
    if document["status"] != "delayed" and document.get("available_at"):
        lines.append(field("rests", f"for another {span(document['retry_after_ms'])}"))
    if document["status"] != "paused" and document.get("pool") and not document["slots"]:
        lines.append(field("slots", how_held(document)))
    return "\n".join([*lines, *_around(document)])


def _held(document: Document, paint: Paint) -> str:
    name, holders = plain(document["name"]), document.get("holders", [])
    if len(holders) > 1:
        how = how_held(document)
        slot = ("SLOT",) if any("slot" in each for each in holders) else ()
        rows: list[Row] = [("OWNER", "LEFT", "SINCE", "TOKEN", *slot)]
        for each in holders:
            left, since = span(each["remaining_ms"]), ago(each["held_ms"])
            row = (plain(each["owner"]), left, since, str(each["fencing_token"]))
            rows.append((*row, sentences.slot_text(each) or "-") if slot else row)
        head, *lines = [f"  {line}" for line in table(rows)]
        lines += claim_text.effects(document, sentences.now_ms_of(holders[0]))
        return "\n".join([f"{len(holders)} have {name} ({how}):", paint.faint(head), *lines, *_around(document)])
    owner = plain(document["owner"])
    lines = [paint.strong(owner) + claim_text.sentence(document).removeprefix(owner)]
    # Waiters and overlapping claims come last, once.
    lines += hold_fields({key: value for key, value in document.items() if key != "waiting"})
    if document.get("effects"):
        lines += claim_text.effects(document, sentences.now_ms_of(document))
    if document.get("slots", 1) > 1 or "slots_taken" in document:
        lines.append(field("slots", how_held(document)))
    return "\n".join([*lines, *_around(document)])


def _around(document: Document) -> list[str]:
    lines = [
        field("overlaps", f"{plain(each['name'])}, which {plain(each['owner'])} has")
        for each in document.get("overlapping", ())
    ]
    if "overlapping_count" in document:
        lines.append(field("overlaps", f"{document['overlapping_count'] - len(lines)} more"))
    if document.get("waiting"):
        lines.append(field("waiting", f"{document['waiting']} in line"))
    if document["status"] != "closed":  # else the first line says it
        lines += claim_text.closed(document)
    return lines


NOTE_CHARS_MAX = 60
# The least width of each column on a narrow terminal. The note is cut first, the job's name last.
_LEAST = {"NOTE": 12, "OWNER": 10, "JOB": 16}
# What is left out first on a narrow terminal.
_LEAVES = ("NOTE", "TRY", "MODE", "SINCE", "AGE", "HEARD", "WAIT", "STATE")
_NONE = {"held": "No job is claimed.", "parked": "No job is parked.", "done": "No job is marked as done."}


def listing(document: Document, paint: Paint, now_ms: int, width: int | None = None, *, is_wide: bool = False) -> str:
    """`width` is that of the terminal; None means that lines are not cut. `is_wide`: with all columns."""
    locks = one_row_each(document["locks"])
    shut = [*[paint.wait(line) for line in closures(document)], *unfinished(document, now_ms)]
    if not locks:
        return "\n".join([nothing(document), *shut])
    heads = heads_of(locks) if not is_wide else (*HEADS[:-1], "MODE", "TOKEN", "NOTE")
    lines = sheet(rows_of(locks, heads, now_ms), paint, width, _LEAST, _LEAVES)
    if document["next"]:
        lines.append(paint.faint(f"More follow: {shell_line(('--after', document['next']))}"))
    return "\n".join([*lines, *shut])


def closures(document: Document) -> list[str]:
    """A line for each closure that is in effect."""
    found = document.get("closures") or ()
    return [f"Closed: {claim_text.sentence({**each, 'status': 'closed', 'closed': each})}" for each in found]


def unfinished(document: Document, now_ms: int) -> list[str]:
    """A line for each file with uncommitted changes of a coding agent that has ended."""
    lines = []
    for each in document.get("unfinished") or ():
        end = "died" if each["how"] == "expired" else "ended"
        when = ago(now_ms - instant_ms(each["at"]))
        lines.append(f"Uncommitted: {plain(each['file'])}, changed by {plain(each['owner'])}, which {end} {when}")
    return lines


def one_row_each(locks: list[Document]) -> list[Document]:
    """The jobs as a person reads them: one row for each, and for a file one row, whatever its names are. A file that
    agents have in several work trees is theirs together: the note names the others."""
    rows: dict[tuple[object, str], Document] = {}
    own: list[Document] = []
    marked: list[Document] = []
    for lock in locks:
        (own if sentences.shown_name(lock["name"]) == lock["name"] else marked).append(lock)
    for lock in (*own, *marked):
        shown = sentences.readable(lock)
        first = rows.setdefault((lock.get("namespace"), shown["name"]), shown)
        owner = lock.get("owner")
        if first is not shown and owner is not None and owner not in (first.get("owner"), *first.get("also", ())):
            if first["status"] == "held":
                first["also"] = [*first.get("also", ()), owner]
            else:  # of the file for everybody only a mark is left
                rows[lock.get("namespace"), shown["name"]] = shown
    found = list(rows.values())
    return sorted(found, key=lambda row: natural_key(row["name"])) if marked else found


def heads_of(locks: list[Document]) -> Row:
    """The columns of `dibs list`. A column that says the same of all jobs is left out."""
    with_state = any(lock["status"] != "held" for lock in locks)
    with_mode = any(how_held(lock) != "exclusive" for lock in locks)
    head = ("JOB", *(("STATE",) if with_state else ()), "OWNER", "LEFT", "SINCE")
    return (*head, *(("MODE",) if with_mode else ()), "NOTE")


def rows_of(locks: list[Document], heads: Row, now_ms: int) -> list[Row]:
    rows = [heads]
    for lock in locks:
        cells = cells_of(lock, now_ms)
        rows.append(tuple([cells[head] for head in heads]))
    return rows


def cells_of(lock: Document, now_ms: int) -> dict[str, str]:
    owner, left, since, note = _owner_and_times(lock, now_ms)
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
        "TOKEN": str(lock.get("fencing_token", "-")),
        "NOTE": short(plain(note), NOTE_CHARS_MAX),
    }


def _brief(ms: int) -> str:
    return span(ms) if ms >= 1000 else "0s"


def left_part(lock: Document) -> float | None:
    """Return which part of its time a claim has left: 1 after a heartbeat, 0 at its end. None if nobody has it."""
    if lock["status"] != "held" or lock.get("remaining_ms") is None:
        return None
    left_ms = max(0, lock["remaining_ms"])
    whole_ms = left_ms + max(0, lock.get("silent_ms") or 0)
    return left_ms / whole_ms if whole_ms else 0.0


def nothing(document: Document) -> str:
    states = document.get("states", ["held"])
    said = _NONE[states[0]] if states[0] in _NONE and len(states) <= 2 else "No job is on record."
    if document["prefix"] or document.get("pattern"):
        like = f"begins with {document['prefix']}" if "pattern" not in document else f"is like {document['pattern']}"
        said = f"{said[:-1]} whose name {plain(like)}."
    return said if not document.get("owner") else f"{said[:-1]} by {plain(document['owner'])}."


def _owner_and_times(lock: Document, now_ms: int) -> Row:
    """Columns of one job: owner, time left, since when, and a note."""
    if lock["status"] == "held":
        also = lock.get("also", ())
        others = max(0, len(lock.get("holders", ())) - 1) + len(also)
        owner = plain(lock["owner"]) + (f" +{others}" if others > 0 else "")
        note = lock.get("checkpoint") or sentences.said(lock.get("metadata")) or ""
        if also:
            note = "; ".join([f"also {sentences.few(also, 3)}", *([note] if note else [])])
        since = ago(lock["held_ms"]) if "held_ms" in lock else "-"  # OctoStore's servers do not send it
        left = span(lock["remaining_ms"])
        if lock.get("ends_in_ms") is not None:
            left += f", {span(lock['ends_in_ms'])} at most"
        return owner, left, since, note
    if lock["status"] == "done":
        done = lock["done"]
        left = span(instant_ms(done["until"]) - now_ms)
        return plain(done["owner"]), left, ago(now_ms - instant_ms(done["at"])), done.get("result") or ""
    last, closure = lock.get("previous"), lock["closed"] if lock["status"] == "closed" else {}
    left_ms = closure.get("remaining_ms") or lock.get("retry_after_ms")
    left = span(left_ms) if left_ms else "-"
    if last is None:
        return "-", left, "-", closure.get("reason", "")
    note = closure.get("reason") or last.get("reason") or last.get("checkpoint") or ""
    return plain(last["owner"]), left, ago(now_ms - instant_ms(last["at"])), note


def how_held(document: Document) -> str:
    """Return how a job is held: by one owner, shared, or by some of its slots."""
    count = len(document.get("holders", ())) or 1
    if document.get("pool") and not document["slots"]:
        return f"paused, {document['slots_taken']} taken"
    if document.get("slots", 1) > 1 or "slots_taken" in document:
        return f"{document.get('slots_taken', count)} of {document['slots']} slots"
    if document.get("mode", "exclusive") == "exclusive":
        return "exclusive"
    return f"shared by {count}" if count > 1 else plain(document["mode"])


def fitted(
    rows: Sequence[Sequence[str]], width: int | None, least: Mapping[str, int], leaves: Sequence[str] = ()
) -> list[list[str]]:
    """The rows, with no line longer than `width`; None is that of a pipe, in which nothing is cut. The first row has
    the heads. Columns are cut to no `least`, in its order, after those in `leaves` were left out one by one."""
    if width is None:
        return [list(row) for row in rows]
    widths = {head: max(columns_of(row[at]) for row in rows) for at, head in enumerate(rows[0])}
    for head in leaves:
        needed = [min(columns, least.get(each, columns)) for each, columns in widths.items()]
        if sum(needed) + GAP * (len(needed) - 1) <= width:
            break
        widths.pop(head, None)
    for head in [head for head in least if head in widths]:
        too_long = sum(widths.values()) + GAP * (len(widths) - 1) - width
        widths[head] = max(min(widths[head], least[head]), widths[head] - max(0, too_long))
    kept = [(rows[0].index(head), columns) for head, columns in widths.items()]
    cuts = {at: short_name if rows[0][at] == "JOB" else short for at, _ in kept}
    return [[cuts[at](row[at], columns) for at, columns in kept] for row in rows]


def sheet(
    rows: Sequence[Sequence[str]], paint: Paint, width: int | None, least: Mapping[str, int], leaves: Sequence[str] = ()
) -> list[str]:
    """The lines of a list, its heads first. They fit the width of a terminal; see `fitted`."""
    first, *lines = table(fitted(rows, width, least, leaves), PADDED_MAX if width is None else width)
    return [paint.faint(first), *lines]


# The frame of `dibs top`: a header, the table of jobs, a line of help. Pure: times and sizes are arguments.

HEADS = ("JOB", "STATE", "OWNER", "LEFT", "AGE", "HEARD", "TRY", "WAIT", "NOTE")
BAR_COLUMNS = 8
BAR_WIDTH_MIN = 72  # narrower terminals get no bar
URGENT, LATE = 0.25, 0.1
HEADER_ROWS, FOOTER_ROWS = 3, 1  # two lines about everything and the heads of the table; the help


def summary(locks: list[Document]) -> str:
    """Count the jobs that are held, wait and are parked."""
    states = [lock["status"] for lock in locks]
    waiting = sum(number for lock in locks if isinstance(number := lock.get("waiting"), int))
    parts = [f"{states.count('held'):,} held", f"{waiting:,} waiting"]
    parts += [f"{states.count('parked'):,} parked"] if "parked" in states else []
    return ", ".join(parts)


def aged(lock: Document, ms: int) -> Document:
    """A job's document, so much later."""
    if lock["status"] != "held" or ms <= 0:
        return lock
    changed = dict(lock)
    for name, sign in (("remaining_ms", -1), ("ends_in_ms", -1), ("held_ms", 1), ("silent_ms", 1)):
        if isinstance(lock.get(name), int):
            changed[name] = lock[name] + sign * ms
    changed["remaining_ms"] = max(0, changed.get("remaining_ms") or 0)
    return changed


def frame(
    where: str,
    about: str,
    locks: list[Document],
    paint: Paint,
    now_ms: int,
    size: tuple[int, int],
    *,
    footer: str,
    is_old: bool = False,
    pretty: bool = True,
) -> list[str]:
    """The lines of a screen. `about`, the second, says why if the data `is_old`. `locks` are those that have room."""
    width, rows = size
    first = short("dibs top", width)
    where = short(f"  {plain(where)}", max(0, width - columns_of(first)))
    about = short(plain(about), width)
    lines = [paint.strong(first) + paint.faint(where), paint.bad(about) if is_old else about]
    lines += board_lines(locks, paint, now_ms, width, pretty=pretty)
    lines = lines[: max(0, rows - FOOTER_ROWS)]
    lines += [""] * (rows - FOOTER_ROWS - len(lines))
    return [*lines, paint.faint(short(plain(footer), width))]


def board_lines(locks: list[Document], paint: Paint, now_ms: int, width: int, *, pretty: bool) -> list[str]:
    """The table: its heads, and a line for each job. Claims that are about to end are coloured."""
    if not locks:
        return [paint.faint("No job to show.")]
    heads: Row = HEADS
    cells = [cells_of(lock, now_ms) for lock in locks]
    if all(lock["status"] == "held" for lock in locks):
        heads = tuple(head for head in heads if head != "STATE")
    if "MODE" in heads_of(locks):
        heads = (*heads[:-1], "MODE", heads[-1])
    if width >= BAR_WIDTH_MIN:
        for lock, each in zip(locks, cells, strict=True):
            each["LEFT"] = f"{bar(left_part(lock), pretty=pretty)} {each['LEFT']}"
    rows = [heads, *[tuple([each[head] for head in heads]) for each in cells]]
    first, *lines = [short(line, width) for line in table(fitted(rows, width, _LEAST, _LEAVES), width)]
    return [paint.faint(first), *[_painted(*each, paint) for each in zip(lines, locks, strict=True)]]


def bar(part: float | None, *, pretty: bool = True) -> str:
    """Time left as a bar that drains."""
    full, empty = ("■", "□") if pretty else ("#", ".")
    if part is None:
        return " " * BAR_COLUMNS
    filled = min(BAR_COLUMNS, -int(-part * BAR_COLUMNS // 1))  # a claim that lives has at least one
    return full * filled + empty * (BAR_COLUMNS - filled)


def _painted(line: str, lock: Document, paint: Paint) -> str:
    if lock["status"] == "parked":
        return paint.bad(line)
    part = left_part(lock)
    if part is None:
        return paint.faint(line)
    return paint.bad(line) if part < LATE else paint.wait(line) if part < URGENT else line
