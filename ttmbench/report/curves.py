"""TTM iteration by iteration, as charts of plain data: one small chart for each quantity, one line for each seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttmbench.results.labels import RAW, key_of
from ttmbench.results.numbers import finite

VARIANTS = {"ttm": "TTM", "holdout": "TTM on the groups that are not held out", "oracle": "oracle (reads labels)"}


@dataclass(frozen=True)
class Curve:
    """One seed's course.

    Attributes:
        name: of the seed.
        x: iterations; 0 is the raw model.
        y: in the chart's unit; None where it is undefined.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """A quantity over the iterations.

    Attributes:
        title: what is drawn.
        unit: ``%``, or empty.
        lines: one a seed.
        level: a level to compare with (chance), in the same unit.
    """

    title: str
    unit: str
    lines: tuple[Curve, ...]
    level: float | None = None


@dataclass(frozen=True)
class Panel:
    """All charts of one task under one way of choosing pseudo-labels.

    Attributes:
        task: name.
        variant: ``ttm``, a control, ``holdout`` or ``oracle``.
        charts: threshold, coverage, accuracy, loss, then the metrics.
        rows: the iterations as the document has them.
        settings: of TTM.
        notes: sentences of the record.
    """

    task: str
    variant: str
    charts: tuple[Chart, ...]
    rows: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The variant in words."""
        return VARIANTS.get(self.variant, f"control: {self.variant}")


def panels_of(document: Mapping[str, Any]) -> Iterator[Panel]:
    """Every course that a results document records.

    Args:
        document: the document.

    Yields:
        Task by task: TTM, its controls, its held-out part; then the oracle.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the document is not as its schema says.
    """
    for task, record in (document.get("ttm") or {}).items():
        courses = {"ttm": record, **record.get("controls", {})}
        courses |= {"holdout": record["holdout"]} if "holdout" in record else {}
        for variant, course in courses.items():
            rows, settings = course.get("iterations", []), record.get("hyperparameters", {})
            notes = tuple(map(str, record.get("notes", []))) if variant == "ttm" else ()
            if rows:
                yield Panel(task, variant, _charts(document, task, variant, rows), tuple(rows), settings, notes)
    for task, record in (document.get("oracle") or {}).items():
        rows = record.get("iterations", [])
        if rows:
            yield Panel(task, "oracle", _charts(document, task, "oracle", rows), tuple(rows), {})


def _charts(
    document: Mapping[str, Any], task: str, variant: str, rows: Sequence[Mapping[str, Any]]
) -> tuple[Chart, ...]:
    seeds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        seeds.setdefault(f"seed {row['seed']}", []).append(row)

    def lines(key: str, factor: float = 1.0) -> tuple[Curve, ...]:
        return tuple(
            Curve(
                name, tuple(float(row["iteration"]) for row in own), tuple(_times(factor, row.get(key)) for row in own)
            )
            for name, own in seeds.items()
        )

    charts = [
        Chart("threshold", "", lines("threshold")),
        Chart("coverage", "%", lines("coverage", 100)),
        Chart("pseudo-label accuracy", "%", lines("pseudo_label_accuracy", 100)),
        Chart("training loss", "", tuple(_losses(name, own) for name, own in seeds.items())),
    ]
    # Where the adapted groups are a part of all, no number of the document is their raw one.
    raw = {} if variant == "holdout" else document["results"].get(task, {})
    chance = document.get("chance", {}).get(task, {})
    for metric in rows[0]["metrics"]:
        start = _times(100, raw.get(key_of(metric, RAW)))
        drawn = tuple(_with_start(name, own, metric, start) for name, own in seeds.items())
        charts.append(Chart(metric.replace("_", " "), "%", drawn, _times(100, chance.get(metric))))
    return tuple(charts)


def _with_start(name: str, rows: Sequence[Mapping[str, Any]], metric: str, start: float | None) -> Curve:
    x = [float(row["iteration"]) for row in rows]
    y = [_times(100, row["metrics"].get(metric)) for row in rows]
    return Curve(name, (*([] if start is None else [0.0]), *x), (*([] if start is None else [start]), *y))


def _losses(name: str, rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Every epoch at its place between two iterations; a gap where nothing was selected."""
    x: list[float] = []
    y: list[float | None] = []
    for row in rows:
        losses = row.get("loss") or [None]
        for epoch, loss in enumerate(losses, start=1):
            x.append(float(row["iteration"]) - 1 + epoch / len(losses))
            y.append(finite(loss))
    return Curve(name, tuple(x), tuple(y))


def _times(factor: float, value: Any) -> float | None:
    found = finite(value)
    return None if found is None else factor * found
