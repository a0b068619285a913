"""The plots of a leaderboard's site: score against model size, and gain against cost.

They are inline SVG in the colours of the page, light or dark; the table beside one has its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ttmbench.report.compared_methods import NOT_RANKED, ComparedMethod
from ttmbench.report.html.site_rows import CHANCE, RANKED, REFERENCE, BoardLine, interval_of
from ttmbench.report.table import percent
from ttmbench.results.labels import TTM_COLUMN
from ttmbench.results.numbers import Number

_LEAST = 5  # rows of a plot
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 300, 46, 14, 14, 44
_LETTER = 5.6  # mean width of a letter of a label
_LINE = 12


def size_plot(
    task: str, metric: str, lines: Sequence[BoardLine], column: str, size: Callable[[Number], float | None]
) -> Markup | None:
    """The score of the lines of a table against the number of parameters; None for too few known sizes."""
    points = []
    for line in lines:
        row = line.cells.get(column)
        parameters = None if row is None else size(row)
        if row is None or row.value is None or not parameters or line.standing not in RANKED:
            continue
        ends = interval_of(row)
        about = f"{line.model}, {short(parameters)} parameters: {percent(row.value)} ({row.file})"
        interval = None if ends is None else (100 * ends[0], 100 * ends[1])
        points.append(
            Point(parameters, 100 * row.value, line.model, about, interval, "open" if row.published else "full")
        )
    if len(points) < _LEAST or len({point.x for point in points}) < 2:
        return None
    values = [point.y for point in points]
    levels: dict[str, float] = {}
    for line in lines:
        value = line.cells[column].value if line.standing == REFERENCE and column in line.cells else None
        # A chance level far below all would leave no room for the differences.
        if value is not None and (line.model != CHANCE or 100 * value >= 2 * min(values) - max(values)):
            levels.setdefault(line.model, 100 * value)
    words = metric.replace("_", " ")
    levels = dict(sorted(levels.items(), key=lambda level: level[1])[:2])
    alt = f"{words} of {len(points)} models on {task} against their number of parameters; the table has the numbers"
    return scatter(points, "parameters", f"{words}, %", levels, alt)


def method_plots(rows: Sequence[ComparedMethod]) -> Mapping[tuple[str, str], Markup]:
    """For each task and model the gain of its methods against their cost, where it is known of enough of them."""
    together: dict[tuple[str, str], list[ComparedMethod]] = {}
    for row in rows:
        if row.passes and row.method not in NOT_RANKED:
            together.setdefault((row.task, row.model), []).append(row)
    plots = {}
    for (task, model), same in together.items():
        if len(same) >= _LEAST:
            points = [_point(row) for row in same]
            alt = f"gain of {len(points)} methods on {task} with {model} against their cost; the table has the numbers"
            plots[task, model] = scatter(points, "passes through the towers", "gain, points", {"no gain": 0.0}, alt)
    return plots


def _point(row: ComparedMethod) -> Point:
    ends = None if row.interval is None else (100 * row.interval[0], 100 * row.interval[1])
    about = f"{row.method}: {100 * row.gain:+z.2f} points for {row.passes:.1f} passes"
    return Point(row.passes or 1.0, 100 * row.gain, row.method, about, ends, named=row.method == TTM_COLUMN.name)


@dataclass(frozen=True)
class Point:
    """A row of a table in a plot.

    Attributes:
        x: above 0, on a logarithmic axis.
        y: in percent, or in points of percent.
        name: its label.
        about: what a reader sees when pointing at it.
        ends: of its interval.
        kind: ``full`` or ``open`` circle.
        named: it has its label in any case.
    """

    x: float
    y: float
    name: str
    about: str
    ends: tuple[float, float] | None = None
    kind: str = "full"
    named: bool = False


def scatter(points: Sequence[Point], x_title: str, y_title: str, levels: Mapping[str, float], alt: str) -> Markup:
    """A plot with labels at the points that no cheaper one surpasses, and dashed lines at some levels."""
    low, high = _limits([*(end for point in points for end in (point.y, *(point.ends or ()))), *levels.values()])
    first, last = (edge(math.log10(point.x) for point in points) for edge in (min, max))
    margin = max(0.06 * (last - first), 0.1)
    first, last = first - margin, last + margin

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    right = _WIDTH - _RIGHT
    parts = []
    for tick in _steps(low, high):
        parts.append(f'<path class="g" d="M{_LEFT} {y(tick):.1f}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _decades(first, last):
        parts.append(f'<path class="g" d="M{x(tick):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{short(tick)}</text>')
    for name, level in levels.items():
        parts.append(f'<path class="l" d="M{_LEFT} {y(level):.1f}H{right}"/>')
        parts.append(f'<text x="{right}" y="{y(level) - 4:.1f}" text-anchor="end">{escape(name)}</text>')
    taken = [(right - 60.0, y(level) - 14, float(right), y(level)) for level in levels.values()]
    taken += [(float(_LEFT), y(level) - 1, float(right), y(level) + 1) for level in levels.values()]
    for point in points:
        if point.ends is not None:
            parts.append(f'<path class="b" d="M{x(point.x):.1f} {y(point.ends[0]):.1f}V{y(point.ends[1]):.1f}"/>')
    for point in points:
        parts.append(_mark(point, x(point.x), y(point.y)))
        taken.append((x(point.x) - 4, y(point.y) - 4, x(point.x) + 4, y(point.y) + 4))
    for point in _front(points):
        parts += _label(point.name, x(point.x), y(point.y), taken)
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    parts.append(
        f'<text class="axis" x="12" y="{(_TOP + _HEIGHT - _BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 12 {(_TOP + _HEIGHT - _BOTTOM) / 2})">{escape(y_title)}</text>'
    )
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return Markup(f'<svg class="plot" {box} role="img" aria-label="{escape(alt)}">{"".join(parts)}</svg>')


def short(number: float) -> str:
    """A number in thousands, millions or billions, to two digits.

    >>> short(151_280_000.0), short(2_539_570_000.0), short(243_393.0), short(20.0)
    ('150M', '2.5B', '240k', '20')
    """
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{float(f'{number / unit:.2g}'):g}{letter}"
    return f"{float(f'{number:.2g}'):g}"


def _mark(point: Point, x: float, y: float) -> str:
    title = f"<title>{escape(point.about)}</title>"
    return f'<circle class="{point.kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>'


def _front(points: Sequence[Point]) -> list[Point]:
    """The points that no other at most as expensive one surpasses, and those that are named; the best first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return [*(point for point in points if point.named and point not in front), *front[::-1]]


def _label(name: str, x: float, y: float, taken: list[tuple[float, float, float, float]]) -> list[str]:
    """A label beside a point where nothing else is; none if there is no room."""
    name = name if len(name) <= 30 else f"{name[:29]}…"
    width = _LETTER * len(name)
    for left, base in ((x + 7, y + 4), (x - 7 - width, y + 4), (x - width / 2, y - 8), (x - width / 2, y + 17)):
        box = (left, base - _LINE + 2, left + width, base + 2)
        free = all(box[2] < other[0] or other[2] < box[0] or box[3] < other[1] or other[3] < box[1] for other in taken)
        if free and left >= _LEFT and box[2] <= _WIDTH - 2 and box[1] >= 0:
            taken.append(box)
            return [f'<text class="name" x="{left:.1f}" y="{base:.1f}">{escape(name)}</text>']
    return []


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the axis, at least ten points apart."""
    low, high = min(values), max(values)
    more = max(0.05 * (high - low), (10 - (high - low)) / 2)
    return low - more, high + more


def _steps(low: float, high: float) -> list[float]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200) if (high - low) / step <= 7)
    return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(first: float, last: float) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten, and two and five times these where there are few."""
    powers = range(math.floor(first), math.ceil(last) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        shown = [tick for tick in ticks if first <= math.log10(tick) <= last]
        if len(shown) >= 4:
            return shown
    return shown
