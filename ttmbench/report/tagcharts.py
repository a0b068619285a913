"""Numbers by tag as charts of plain data: where the model is strong, and where adaptation helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ttmbench.results.labels import RAW, TTM, key_of, name_of, numbers_in

HEADLINE = "group_match"


@dataclass(frozen=True)
class TagTable:
    """A task's numbers by the values of one tag.

    Attributes:
        task: name.
        tag: name.
        keys: ``(metric, filter)`` of the columns.
        names: of the columns.
        rows: value of the tag -> number of groups, and the numbers of the columns.
        chance: metric -> of random scores.
    """

    task: str
    tag: str
    keys: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    rows: dict[str, tuple[int, tuple[float | None, ...]]]
    chance: dict[str, float | None]


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
        before: column of the first mark.
        after: column of the second mark; None if nothing was adapted.
        rows: by the value.
        level: chance in percent.
    """

    title: str
    metric: str
    before: str
    after: str | None
    rows: tuple[TagRow, ...]
    level: float | None


def tag_tables_of(document: Mapping[str, Any]) -> Iterator[TagTable]:
    """A table for each task and tag of a document's breakdowns.

    Args:
        document: of results.

    Yields:
        The tables; in each the headline metric comes first.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the document is not as its schema says.
    """
    for task, tags in document.get("breakdowns", {}).items():
        chance = {str(metric): value for metric, value in document.get("chance", {}).get(task, {}).items()}
        tracks = document.get("tracks", {}).get(task, {})
        for tag, values in tags.items():
            keys = list(dict.fromkeys(pair for row in values.values() for pair in numbers_in(row)))
            keys.sort(key=lambda pair: pair[0] != HEADLINE)
            names = tuple(name_of(name, tracks.get(key_of(metric, name)), metric) for metric, name in keys)
            rows = {
                str(value): (int(row["groups"]), tuple(row.get(key_of(*pair)) for pair in keys))
                for value, row in values.items()
            }
            yield TagTable(str(task), str(tag), tuple(keys), names, rows, chance)


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
    names = dict(zip(table.keys, table.names, strict=True))
    title = f"{table.task}: {metric.replace('_', ' ')} by {table.tag}"
    return TagChart(
        title=title,
        metric=metric,
        before=names[metric, before],
        after=None if after is None else names[metric, after],
        rows=tuple(rows),
        level=_percent(table.chance.get(metric)),
    )


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
