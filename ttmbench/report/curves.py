"""TTM iteration by iteration, as charts of plain data: one small chart for each quantity, one line for each seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttmbench.results.labels import RAW, key_of
from ttmbench.results.records import Iteration

if TYPE_CHECKING:
    from ttmbench.results.document import ResultsDocument

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
    rows: tuple[Iteration, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The variant in words."""
        return VARIANTS.get(self.variant, f"control: {self.variant}")


def panels_of(document: ResultsDocument) -> Iterator[Panel]:
    """Every course that a results document records.

    Args:
        document: the document.

    Yields:
        Task by task: TTM, its controls, its held-out part; then the oracle.
    """
    for task, record in document.ttm.items():
        courses: dict[str, Sequence[Iteration]] = {"ttm": record.iterations}
        courses |= {name: one.iterations for name, one in (record.controls or {}).items()}
        courses |= {} if record.holdout is None else {"holdout": record.holdout.iterations}
        for variant, rows in courses.items():
            notes = tuple(record.notes) if variant == "ttm" else ()
            if rows:
                charts = _charts(document, task, variant, rows)
                yield Panel(task, variant, charts, tuple(rows), record.hyperparameters, notes)
    for task, oracle in (document.oracle or {}).items():
        if oracle.iterations:
            yield Panel(
                task, "oracle", _charts(document, task, "oracle", oracle.iterations), tuple(oracle.iterations), {}
            )


def _charts(document: ResultsDocument, task: str, variant: str, rows: Sequence[Iteration]) -> tuple[Chart, ...]:
    seeds: dict[str, list[Iteration]] = {}
    for row in rows:
        seeds.setdefault(f"seed {row.seed}", []).append(row)

    def lines(value: Callable[[Iteration], float | None], factor: float = 1.0) -> tuple[Curve, ...]:
        return tuple(
            Curve(name, tuple(float(row.iteration) for row in own), tuple(_times(factor, value(row)) for row in own))
            for name, own in seeds.items()
        )

    charts = [
        Chart("threshold", "", lines(lambda row: row.threshold)),
        Chart("coverage", "%", lines(lambda row: row.coverage, 100)),
        Chart("pseudo-label accuracy", "%", lines(lambda row: row.pseudo_label_accuracy, 100)),
        Chart("training loss", "", tuple(_losses(name, own) for name, own in seeds.items())),
    ]
    # Where the adapted groups are a part of all, no number of the document is their raw one.
    raw = {} if variant == "holdout" else document.results.get(task, {})
    chance = document.chance.get(task, {})
    for metric in rows[0].metrics:
        start = _times(100, raw.get(key_of(metric, RAW)))
        drawn = tuple(_with_start(name, own, metric, start) for name, own in seeds.items())
        charts.append(Chart(metric.replace("_", " "), "%", drawn, _times(100, chance.get(metric))))
    return tuple(charts)


def _with_start(name: str, rows: Sequence[Iteration], metric: str, start: float | None) -> Curve:
    x = [float(row.iteration) for row in rows]
    y = [_times(100, row.metrics.get(metric)) for row in rows]
    return Curve(name, (*([] if start is None else [0.0]), *x), (*([] if start is None else [start]), *y))


def _losses(name: str, rows: Sequence[Iteration]) -> Curve:
    """Every epoch at its place between two iterations; a gap where nothing was selected."""
    x: list[float] = []
    y: list[float | None] = []
    for row in rows:
        losses: Sequence[float | None] = row.loss or [None]
        for epoch, loss in enumerate(losses, start=1):
            x.append(float(row.iteration) - 1 + epoch / len(losses))
            y.append(loss)
    return Curve(name, tuple(x), tuple(y))


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value
