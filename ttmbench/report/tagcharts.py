"""Numbers by tag as charts of plain data: where the model is strong, and where adaptation helps."""

from __future__ import annotations

from dataclasses import dataclass

from ttmbench.report.numbers import TagTable
from ttmbench.results.summary import RAW, TTM


@dataclass(frozen=True)
class TagRow:
    """A value of a tag: number of its groups, and the metric before and after adaptation in percent."""

    value: str
    groups: int
    before: float | None
    after: float | None


@dataclass(frozen=True)
class TagChart:
    """A metric by tag.

    Attributes:
        title: what is drawn.
        metric: name.
        after: filter of the second mark; None if nothing was adapted.
        rows: by the value.
        level: chance in percent.
    """

    title: str
    metric: str
    after: str | None
    rows: tuple[TagRow, ...]
    level: float | None


def tag_chart_of(table: TagTable) -> TagChart | None:
    """The first metric of a table, raw and after TTM (or what else was adapted); None if the raw model has no numbers.

    Args:
        table: a task's numbers by tag.

    Returns:
        The chart.
    """
    if not table.keys:
        return None
    metric = table.keys[0][0]
    filters = [name for one, name in table.keys if one == metric]
    before = RAW if RAW in filters else filters[0]
    others = [name for name in (TTM, *filters) if name in filters and name != before]
    after = others[0] if others else None
    rows = []
    for value, (groups, numbers) in table.rows.items():
        by_key = dict(zip(table.keys, numbers, strict=True))
        rows.append(
            TagRow(
                value,
                groups,
                _percent(by_key[metric, before]),
                None if after is None else _percent(by_key[metric, after]),
            )
        )
    title = f"{table.task}: {metric.replace('_', ' ')} by {table.tag}"
    return TagChart(title, metric, after, tuple(rows), _percent(table.chance.get(metric)))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
