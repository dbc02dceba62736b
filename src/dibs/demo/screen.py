"""The demo as text: lines of the log, the board that is drawn again and again, the report at the end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dibs.cli.text.words import plain
from dibs.demo.plan import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dibs.cli.text.colour import Paint
    from dibs.demo.outcome import DemoResult
    from dibs.demo.story import JobState, LogEntry, Story, WorkerState

TITLE_MIN = 12


class Glyphs(NamedTuple):
    """What a terminal can show."""

    full: str
    empty: str
    done: str
    dead: str
    arrow: str
    rule: str
    cut: str


PRETTY = Glyphs("■", "□", "✓", "✗", "→", "─", "…")
ASCII = Glyphs("#", ".", "+", "x", ">", "-", "~")


class Cell(NamedTuple):
    """Text of a known width, and how it is painted. `tint`: a worker's number, a name of `Paint`, or None."""

    text: str
    tint: int | str | None = None


class Screen:
    """Makes all text of the demo, for one width and one set of glyphs, with colour or without."""

    def __init__(self, story: Story, paint: Paint, *, width: int = 80, glyphs: Glyphs = PRETTY) -> None:
        self._story = story
        self._paint = paint
        self._width = width
        self._glyphs = glyphs
        self._numbers = {name: number for number, name in enumerate(story.plan.workers)}
        self._name_width = max(len(name) for name in story.plan.workers)
        self._label_width = max(len(job.label) for job in story.plan.jobs)

    def _painted(self, cell: Cell) -> str:
        if cell.tint is None:
            return cell.text
        if isinstance(cell.tint, int):
            return self._paint.tint(cell.tint, cell.text)
        painted: str = getattr(self._paint, cell.tint)(cell.text)
        return painted

    def _line(self, cells: Iterable[Cell]) -> str:
        """The cells in a row, cut at the width of the terminal."""
        left, parts = self._width - 1, []
        for cell in cells:
            text = cell.text if len(cell.text) <= left else self._cut(cell.text, left)
            parts.append(self._painted(Cell(text, cell.tint)))
            left -= len(text)
        return "".join(parts).rstrip()

    def _cut(self, text: str, width: int) -> str:
        return text if len(text) <= width else text[: max(0, width - 1)] + self._glyphs.cut[:width]

    def _worker(self, name: str, width: int | None = None) -> Cell:
        return Cell(name.ljust(self._name_width if width is None else width), self._numbers.get(name))

    def head(self, where: str) -> list[str]:
        plan = self._story.plan
        count = f"{len(plan.workers)} workers, {_jobs(len(plan.jobs))}, one owner each"
        return [
            self._line([Cell("dibs demo", "strong"), Cell(f"  {count}")]),
            self._line([Cell(f"{plan.jobs[0].label} is {plain(plan.jobs[0].name)}, and so on", "faint")]),
            self._line([Cell(where, "faint")]),
            "",
        ]

    def entry(self, entry: LogEntry) -> list[str]:
        """One event for the log. The rest of a long one goes on below, indented."""
        verb, tint = _VERBS[entry.kind]
        at = f"{entry.at_ms / 1000:5.1f}s  "
        label = f"{entry.job:<{self._label_width}}  " if entry.job else ""
        first = [
            Cell(at, "faint"),
            self._worker(entry.worker),
            Cell("  "),
            Cell(f"{verb:<9} ", tint),
            Cell(label),
        ]
        indent = sum(len(cell.text) for cell in first)
        # A job and its owner stay on one line.
        more = plain(entry.more).replace(" (", "\N{NO-BREAK SPACE}(")
        lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped(more, self._width - 1 - indent)]
        painted = "".join(self._painted(cell) for cell in first)
        faint = [self._paint.faint(line) if entry.kind in ("claimed", "waits") else line for line in lines]
        return [(painted + faint[0]).rstrip(), *(" " * indent + line for line in faint[1:])]

    def board(self, now_ms: int) -> list[str]:
        """The board: the state of every job."""
        rule = Cell(self._glyphs.rule * (self._width - 1), "faint")
        lines = [self._line([rule])]
        lines += [self._job(state) for state in self._story.jobs.values()]
        lines.append("")
        lines += [self._line(self._at_work(state, now_ms)) for state in self._story.workers.values()]
        return lines

    def _job(self, state: JobState) -> str:
        glyphs, steps = self._glyphs, len(STEPS)
        note = STEPS[state.steps - 1] if state.steps else ""
        bar = glyphs.full * state.steps
        owner = state.owner or (state.owners[-1] if state.owners else "")
        dead = bool(owner) and self._story.workers[owner].killed and not state.done
        mark = Cell(glyphs.done, "good") if state.done else Cell(glyphs.dead, "bad") if dead else Cell(" ")
        fixed = self._label_width + self._name_width + steps + max(map(len, STEPS)) + 12
        room = max(
            TITLE_MIN, min(max(len(each.title) for each in self._story.plan.jobs), self._width - fixed)
        )
        title = self._cut(state.job.title, room).ljust(room)
        return self._line(
            [
                Cell("  "),
                mark,
                Cell(f" {state.job.label:<{self._label_width}}  ", "faint" if state.done else "strong"),
                Cell(f"{title}  ", "faint" if state.done or not owner else None),
                Cell(owner.ljust(self._name_width), "bad" if dead else self._numbers.get(owner)),
                Cell("  "),
                Cell(bar, self._numbers.get(owner)),
                Cell(glyphs.empty * (steps - state.steps), "faint"),
                Cell(f"  {note}", "faint"),
            ]
        )

    def _at_work(self, state: WorkerState, now_ms: int) -> list[Cell]:
        cells = [Cell("    "), self._worker(state.name), Cell("  ")]
        if state.killed:
            return [*cells, Cell("killed", "bad")]
        if state.job is not None:
            label = self._story.jobs[state.job].job.label
            return [*cells, Cell(f"works on {label}")]
        if state.failed:
            return [*cells, Cell("failed", "bad")]
        if state.gone:
            return [*cells, Cell("nothing left to do", "faint")]
        if state.waits is None:
            return [*cells, Cell("looks for work" if state.ready else "gets ready", "faint")]
        label, owner, over_ms = state.waits
        left = f"{max(0, over_ms - now_ms) / 1000:.1f}s"
        rest = f"'s lease on {label} to end, {left} at most"
        return [*cells, Cell("waits for ", "wait"), Cell(owner, self._numbers.get(owner)), Cell(rest)]

    def report(self, outcome: DemoResult, where_after: str) -> list[str]:
        """The table, and its result in words."""
        lines = ["", *self._table(outcome), ""]
        lines += [self._paint.good(line) if outcome.good else line for line in self._verdict(outcome)]
        for trouble in outcome.troubles:
            lines += [self._paint.bad(line) for line in wrapped(trouble, self._width - 1)]
        told = self._recovery(outcome)
        for text in (told, where_after):
            lines += wrapped(text, self._width - 1) if text else []
        return lines

    def _verdict(self, outcome: DemoResult) -> list[str]:
        done = sum(row.done for row in outcome.rows)
        jobs, steps = len(outcome.rows), len(outcome.rows) * len(STEPS)
        text = (
            f"{done} of {_jobs(jobs)} done in {outcome.elapsed_ms / 1000:.1f}s. Steps in the workers' own ledger: "
            f"{outcome.effects} of {steps}, {outcome.duplicates or 'zero'} duplicates."
        )
        return wrapped(text, self._width - 1)

    def _recovery(self, outcome: DemoResult) -> str:
        killed, takeover = outcome.killed, outcome.takeover
        if killed is None:
            return ""
        label = self._story.jobs[killed.job].job.label
        told = f"{killed.worker} was killed in the middle of {label}."
        if takeover is None:
            return f"{told} Nobody took over."
        after = f"{takeover.after_ms / 1000:.1f}s"
        return (
            f"{told} Nobody let go for it: its lease ran out, and {after} after the kill {takeover.worker} took "
            f'over and went on from "{takeover.checkpoint}".'
        )

    def _table(self, outcome: DemoResult) -> list[str]:
        """Where there is no room, titles are cut or left out: the numbers matter more."""
        arrow = f" {self._glyphs.arrow} "
        owners = [arrow.join(row.owners) for row in outcome.rows]
        owner_width = max(len("OWNER"), *(len(each) for each in owners))
        numbers = "  {:>8}  {:>5}  {:>5}"
        fixed = 4 + self._label_width + 4 + owner_width + len(numbers.format("", "", ""))
        room = min(max(len(row.title) for row in outcome.rows), self._width - 1 - fixed)

        def named(label: str, title: str) -> str:
            with_title = f"{self._cut(title, room):<{room}}  " if room >= TITLE_MIN else ""
            return f"{label:<{self._label_width}}  {with_title}"

        head = f"    {named('JOB', 'TITLE')}{'OWNER':<{owner_width}}"
        lines = [self._line([Cell(head + numbers.format("ATTEMPTS", "STEPS", "TWICE"), "faint")])]
        for row, owned in zip(outcome.rows, owners, strict=True):
            good = row.done and not row.duplicates
            cells = [
                Cell("  "),
                Cell(self._glyphs.done if good else self._glyphs.dead, "good" if good else "bad"),
                Cell(f" {named(row.label, row.title)}"),
                *self._chain(row.owners, arrow),
                Cell(" " * (owner_width - len(owned))),
                Cell(numbers.format(row.attempts, f"{row.steps}/{len(STEPS)}", row.duplicates)),
            ]
            lines.append(self._line(cells))
        return lines

    def _chain(self, owners: Sequence[str], arrow: str) -> list[Cell]:
        cells: list[Cell] = []
        for name in owners:
            killed = name in self._story.workers and self._story.workers[name].killed
            last = name == owners[-1]
            cells += [Cell(arrow, "faint")] if cells else []
            cells.append(Cell(name, "bad" if killed and not last else self._numbers.get(name)))
        return cells


_VERBS: dict[str, tuple[str, str | None]] = {
    "claimed": ("claims", None),
    "done": ("did", "good"),
    "killed": ("KILLED", "bad"),
    "waits": ("waits for", "wait"),
    "took over": ("TAKES", "strong"),
    "lost": ("lost", "bad"),
    "failed": ("failed", "bad"),
}


def _jobs(count: int) -> str:
    return f"{count} job{'s' if count > 1 else ''}"


def wrapped(text: str, width: int) -> list[str]:
    """`text` on as many lines as it needs. Empty text is one line."""
    from textwrap import wrap

    return wrap(text, max(20, width), break_long_words=False, break_on_hyphens=False) or [""]
