"""Charts as SVG inside the page: small, without a library; colours and markers come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from ttmbench.report.curves import Chart, Curve
from ttmbench.report.summary_table import AnswerRow
from ttmbench.report.tagcharts import TagChart

WIDTH, HEIGHT = 250, 158
LEFT, RIGHT, TOP, BOTTOM = 38, 10, 24, 26
STYLES = 6  # kinds of lines that the style sheet has
ANSWER_MARKS = ("k1", "k2", "k0")  # SimpleMatch, TTM, raw: defined on the page
LEAST_SPAN = 10.0  # percent: a smaller axis would make noise look like a result


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers from at or below ``low`` to at or above ``high``.

    >>> ticks(61.2, 88.3)
    [60.0, 70.0, 80.0, 90.0]
    """
    span = high - low or abs(high) or 1.0
    raw = span / wanted
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, max(last, first + 1) + 1)]


def limits(chart: Chart) -> tuple[float, float] | None:
    """The smallest and largest value of a chart, its level included; no percent axis is shorter than ten points."""
    known = [value for line in chart.lines for value in line.y if value is not None]
    if not known:
        return None
    known += [] if chart.level is None else [chart.level]
    low, high = min(known), max(known)
    if chart.unit == "%" and high - low < LEAST_SPAN:
        middle = (low + high) / 2
        low, high = middle - LEAST_SPAN / 2, middle + LEAST_SPAN / 2
        shift = max(0.0, -low) - max(0.0, high - 100)
        low, high = low + shift, high + shift
    return low, high


def line_chart(chart: Chart) -> Markup:
    """A chart as SVG.

    Args:
        chart: lines over iterations.

    Returns:
        Markup; names in it are escaped.
    """
    ends = limits(chart)
    parts = [f'<text class="t" x="{LEFT}" y="13">{escape(_titled(chart))}</text>']
    if ends is None:
        parts.append(f'<text class="m" x="{LEFT}" y="{HEIGHT / 2:.0f}">undefined: nothing was selected</text>')
        return Markup(_svg(WIDTH, HEIGHT, f"{_titled(chart)}: undefined", parts))
    marks = ticks(*ends)
    last = max((line.x[-1] for line in chart.lines if line.x), default=1.0)
    first = min((line.x[0] for line in chart.lines if line.x), default=0.0)
    start = 0.0 if first < 1 else 1.0
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + width * (value - start) / max(last - start, 1e-9) if last > start else LEFT + width / 2

    def y(value: float) -> float:
        return TOP + height * (1 - (value - marks[0]) / (marks[-1] - marks[0]))

    for mark in marks:
        parts.append(f'<path class="g" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="m e" x="{LEFT - 5}" y="{y(mark) + 3.5:.1f}">{mark:g}</text>')
    for mark in _iterations(start, last):
        parts.append(f'<text class="m c" x="{x(mark):.1f}" y="{HEIGHT - 12}">{mark:g}</text>')
    if chart.level is not None:
        parts.append(f'<path class="l" d="M{LEFT} {y(chart.level):.1f}H{WIDTH - RIGHT}"/>')
    for index, line in enumerate(chart.lines):
        parts.append(_line(line, index % STYLES, x, y))
    parts.append(f'<text class="m e" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}">iteration</text>')
    return Markup(_svg(WIDTH, HEIGHT, f"{_titled(chart)}. {_spoken(chart)}", parts))


def tag_chart(chart: TagChart) -> Markup:
    """A chart by tag as SVG: a row for each value, an open mark for the raw model and a full one after TTM.

    Args:
        chart: the rows.

    Returns:
        Markup; names in it are escaped.
    """
    row, label, width = 22, 190, 520
    height = row * len(chart.rows) + 30
    inner = width - label - 20

    def x(value: float) -> float:
        return label + inner * value / 100

    parts = []
    for mark in (0, 25, 50, 75, 100):
        parts.append(f'<path class="g" d="M{x(mark):.1f} 4V{height - 24}"/>')
        parts.append(f'<text class="m c" x="{x(mark):.1f}" y="{height - 9}">{mark}</text>')
    if chart.level is not None:
        parts.append(f'<path class="l" d="M{x(chart.level):.1f} 4V{height - 24}"/>')
    for index, one in enumerate(chart.rows):
        y = 4 + row * (index + 0.5)
        name = one.value if len(one.value) <= 20 else one.value[:19] + "…"
        parts.append(f'<text class="r e" x="{label - 12}" y="{y + 4:.1f}">{escape(name)} ({one.groups})</text>')
        if one.before is not None and one.after is not None:
            kind = "u" if one.after >= one.before else "d"
            parts.append(f'<path class="{kind}" d="M{x(one.before):.1f} {y:.1f}H{x(one.after):.1f}"/>')
        if one.before is not None:
            parts.append(f'<circle class="o" cx="{x(one.before):.1f}" cy="{y:.1f}" r="4.5"/>')
        if one.after is not None:
            parts.append(f'<circle class="f" cx="{x(one.after):.1f}" cy="{y:.1f}" r="4.5"/>')
    return Markup(_svg(width, height, chart.title, parts))


def answer_chart(task: str, rows: Sequence[AnswerRow]) -> Markup:
    """Raw, SimpleMatch and TTM of the models of one task on a line from 0 to 100 %, a line a model, with both chances.

    Args:
        task: name.
        rows: of `ttmbench.report.summary_table`.

    Returns:
        Markup; names in it are escaped.
    """
    width, pitch, left, right, top = 340, 36, 8, 12, 22
    height = top + pitch * len(rows) + 18
    inner = width - left - right

    def x(value: float) -> float:
        return left + inner * value

    parts = [f'<text class="t" x="{left}" y="13">{escape(_cut(task, 46))}</text>']
    for mark in (0, 25, 50, 75, 100):
        parts.append(f'<path class="g" d="M{x(mark / 100):.1f} {top}V{height - 16}"/>')
        parts.append(f'<text class="m c" x="{x(mark / 100):.1f}" y="{height - 4}">{mark}</text>')
    for index, row in enumerate(rows):
        y = top + pitch * index + 25
        name = f"{row.model}, published" if row.source else row.model
        name += f", {row.extents} groups" if row.limited else ""
        kind = ' class="part"' if row.limited or row.source else ""
        parts.append(f'<g{kind}><text class="r" x="{left}" y="{y - 11}">{escape(_cut(name, 52))}</text>')
        parts.append(f'<path class="g" d="M{x(0):.1f} {y}H{x(1):.1f}"/>')
        for chance in dict.fromkeys(one.chance for one in row.numbers if one.chance is not None):
            parts.append(f'<path class="l" d="M{x(chance):.1f} {y - 7}V{y + 7}"/>')
        if row.gain is not None and row.matched is not None and row.ttm is not None:
            ends = f"M{x(row.matched.value or 0):.1f} {y}H{x(row.ttm.value or 0):.1f}"
            parts.append(f'<path class="{"u" if row.gain >= 0 else "d"}" d="{ends}"/>')
        # The ring of raw is last: where it has a mark's place, it stands around it.
        for shape, one in zip(ANSWER_MARKS, (row.matched, row.ttm, row.raw), strict=True):
            if one is not None and one.value is not None:
                parts.append(f'<use class="{shape}" href="#{shape}" x="{x(one.value):.1f}" y="{y}"/>')
        parts.append("</g>")
    spoken = "; ".join(
        f"{row.model}: " + ", ".join(f"{one.method} {100 * (one.value or 0):.1f}" for one in row.numbers)
        for row in rows
    )
    return Markup(_svg(width, height, f"{task}, percent. {spoken}", parts))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def interval_bar(value: float | None, interval: Sequence[float] | None, chance: float | None) -> Markup:
    """A value with its interval and chance on a line from 0 to 100 %, for a cell of a table; all are fractions."""
    if value is None:
        return Markup("")
    parts = ['<path class="g" d="M2 9H122"/>']
    if chance is not None:
        parts.append(f'<path class="l" d="M{2 + 120 * chance:.1f} 1V17"/>')
    if interval is not None:
        parts.append(f'<path class="b" d="M{2 + 120 * interval[0]:.1f} 9H{2 + 120 * interval[1]:.1f}"/>')
    parts.append(f'<circle class="f" cx="{2 + 120 * value:.1f}" cy="9" r="3.5"/>')
    return Markup(f'<svg class="bar" viewBox="0 0 124 18" aria-hidden="true">{"".join(parts)}</svg>')


def _line(line: Curve, style: int, x: Any, y: Any) -> str:
    """A polyline with gaps where a value is undefined; short lines also have marks."""
    path, pen = [], "M"
    for at, value in zip(line.x, line.y, strict=True):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{x(at):.1f} {y(value):.1f}")
        pen = "L"
    marks = ""
    if len(path) <= 12:
        known = [(x(at), y(value)) for at, value in zip(line.x, line.y, strict=True) if value is not None]
        marks = "".join(f'<use href="#m{style}" x="{left:.1f}" y="{top:.1f}"/>' for left, top in known)
    return f'<g class="s{style}"><path d="{"".join(path)}"/>{marks}</g>'


def _iterations(first: float, last: float) -> list[float]:
    step = max(1, math.ceil((last - first) / 6))
    return [float(mark) for mark in range(math.ceil(first), math.floor(last) + 1, step)]


def _titled(chart: Chart) -> str:
    return f"{chart.title} (%)" if chart.unit == "%" else chart.title


def _spoken(chart: Chart) -> str:
    """First and last value of each line, for those who hear the page."""
    detail = []
    for line in chart.lines:
        known = [value for value in line.y if value is not None]
        if known:
            detail.append(f"{line.name}: from {known[0]:.4g} to {known[-1]:.4g}")
    return "; ".join(detail)


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" role="img" viewBox="0 0 {width} {height}" aria-label="{escape(label)}">'
    return f"{head}{''.join(parts)}</svg>"
