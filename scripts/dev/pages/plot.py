"""Small plots as SVG text: lines over named steps, and bars. Pure.

A plot has its own background and two sets of colours, so it can be read on a light page and on a dark one: a browser
picks by the reader's setting, also when the picture is shown by an `img` tag.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH = 860
LEFT, RIGHT, TOP, BOTTOM = 70, 240, 64, 44
ROW = 26
LABEL_GAP = 16
TICKS_MAX = 8
# For light pages and for dark ones. The pairs can be told apart without red and green.
COLOURS = (
    ("#0058a8", "#6cb6ff"),
    ("#7a3fb0", "#c8a2f2"),
    ("#6e7781", "#9aa4af"),
    ("#b35900", "#ffab5e"),
    ("#007a5a", "#4fd1a5"),
    ("#b3254b", "#ff8aa5"),
    ("#7a6a00", "#e3cf57"),
    ("#005f73", "#76d7e8"),
    ("#5a4634", "#c9ad93"),
    ("#444c56", "#d0d7de"),
)


def _style() -> str:
    light = "".join(f".f{i}{{fill:{a}}}.s{i}{{stroke:{a}}}" for i, (a, _) in enumerate(COLOURS))
    dark = "".join(f".f{i}{{fill:{b}}}.s{i}{{stroke:{b}}}" for i, (_, b) in enumerate(COLOURS))
    return (
        "<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.t{font-size:15px;font-weight:600}"
        ".n{fill:#59636e}.bg{fill:#ffffff;stroke:#d1d9e0}.g{stroke:#d1d9e0}.l{fill:none;stroke-width:2.2}"
        ".d{stroke-dasharray:5 4}"
        f"{light}@media(prefers-color-scheme:dark){{text{{fill:#f0f3f6}}.n{{fill:#9aa4af}}"
        f".bg{{fill:#0d1117;stroke:#3d444d}}.g{{stroke:#3d444d}}{dark}}}</style>"
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _frame(height: float, title: str, note: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img"><title>{escape(title)}</title>{_style()}'
        f'<rect class="bg" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>'
    )
    words = [_text(16, 26, title, "t"), _text(16, 46, note, "n")]
    return "\n".join([head, *words, *parts, "</svg>"]) + "\n"


def short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten, or fewer if that would be too many."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**e for e in exponents for m in steps if low <= m * 10.0**e <= high]
        if len(found) <= TICKS_MAX:
            break
    return found


def spread_out(wanted: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Heights for labels, in the order given: near the wanted ones, a gap between two, none below `lowest`."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    limit = -math.inf
    for index in order:
        placed[index] = limit = max(wanted[index], limit + gap)
    if order:
        # Half of the push goes up again, so that the labels stay around their lines.
        pushed = placed[order[-1]] - wanted[order[-1]]
        placed = [each - pushed / 2 for each in placed]
    limit = lowest + gap
    for index in reversed(order):
        placed[index] = limit = min(placed[index], limit - gap)
    return placed


Series = tuple[str, int, bool, "Mapping[str, float]"]
"""Name, number of its colour, whether its line is dashed, and values by step."""


def lines(title: str, note: str, steps: Sequence[str], series: Sequence[Series]) -> str:
    """One line for each series over the steps, with a logarithmic scale."""
    values = [value for _, _, _, points in series for value in points.values() if value > 0]
    low, high = min(values) / 1.25, max(values) * 1.25
    height = 400.0
    plot_w, plot_h = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM

    def x(step: str) -> float:
        return LEFT + plot_w * (steps.index(step) / max(1, len(steps) - 1))

    def y(value: float) -> float:
        return TOP + plot_h * (1 - math.log(value / low) / math.log(high / low))

    parts = []
    for tick in _ticks(low, high):
        parts.append(f'<line class="g" x1="{LEFT}" x2="{LEFT + plot_w}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(_text(LEFT - 8, y(tick) + 4, short(tick), "n", "end"))
    parts += [_text(x(step), height - BOTTOM + 22, step, "n", "middle") for step in steps]
    ends = [y(points[[step for step in steps if step in points][-1]]) for _, _, _, points in series]
    for (name, colour, dashed, points), end in zip(series, spread_out(ends, LABEL_GAP, height - BOTTOM), strict=True):
        known = [step for step in steps if step in points]
        path = " ".join(f"{x(step):.1f},{y(points[step]):.1f}" for step in known)
        parts.append(f'<polyline class="l s{colour}{" d" if dashed else ""}" points="{path}"/>')
        parts += [
            f'<circle class="f{colour}" cx="{x(step):.1f}" cy="{y(points[step]):.1f}" r="3.2"/>' for step in known
        ]
        last = points[known[-1]]
        parts.append(_text(x(known[-1]) + 12, end + 4, f"{name}  {short(last)}", f"f{colour}"))
    return _frame(height, title, note, parts)


Bar = tuple[str, int, float, str]
"""Name, number of its colour, value, and what is written behind it."""


def bars(title: str, note: str, rows: Sequence[Bar], name_width: int = 230) -> str:
    """One bar for each row, on a scale that begins at 0."""
    most = max(value for _, _, value, _ in rows)
    width = WIDTH - name_width - 240
    parts = []
    for number, (name, colour, value, words) in enumerate(rows):
        top = TOP + number * ROW
        length = max(1.5, width * value / most)
        parts.append(_text(name_width - 8, top + 14, name, "", "end"))
        parts.append(
            f'<rect class="f{colour}" x="{name_width}" y="{top:.1f}" width="{length:.1f}" height="18" rx="2"/>'
        )
        parts.append(_text(name_width + length + 8, top + 14, words, "n"))
    return _frame(TOP + len(rows) * ROW + 14, title, note, parts)


def stacked(title: str, note: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str]) -> str:
    """One bar for each row, put together from the parts in `names`."""
    name_width = 180
    most = max(sum(values) for _, values in rows)
    width = WIDTH - name_width - 90
    parts, at = [], 16.0
    for colour, name in enumerate(names):
        parts.append(f'<rect class="f{colour}" x="{at:.1f}" y="{TOP - 8}" width="12" height="12" rx="2"/>')
        parts.append(_text(at + 17, TOP + 3, name, "n"))
        at += 17 + 7.2 * len(name) + 16
    for number, (name, values) in enumerate(rows):
        top, x = TOP + 18 + number * ROW, float(name_width)
        parts.append(_text(name_width - 8, top + 14, name, "", "end"))
        for colour, value in enumerate(values):
            length = width * value / most
            parts.append(
                f'<rect class="f{colour}" x="{x:.1f}" y="{top:.1f}" width="{max(length, 0.0):.1f}" height="18"/>'
            )
            x += length
        parts.append(_text(x + 8, top + 14, short(sum(values)), "n"))
    return _frame(TOP + 18 + len(rows) * ROW + 14, title, note, parts)
