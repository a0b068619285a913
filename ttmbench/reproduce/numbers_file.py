"""Numbers typed from papers: the one reader of their CSV, for tables to reproduce and for numbers shown beside runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttmbench._util.escape import one_line
from ttmbench.data.row_files import csv_rows, read_text
from ttmbench.errors import DataError
from ttmbench.results.labels import PUBLISHED, RAW
from ttmbench.results.numbers import Number

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

COLUMNS = ("source", "table", "task", "model", "method", "metric", "percent")
CELL = 200  # characters of a name that is shown


@dataclass(frozen=True)
class TypedNumber:
    """A line of the CSV.

    Attributes:
        where: file and line, for messages.
        source: the paper.
        table: of the paper.
        task: the paper's name.
        model: the paper's name.
        method: ``raw``, ``simple_match``, ``ttm``, ``overfitted``, ``oracle``, or the paper's own word.
        metric: name.
        value: fraction.
        std: over runs, a fraction; None if it is not stated.
    """

    where: str
    source: str
    table: str
    task: str
    model: str
    method: str
    metric: str
    value: float
    std: float | None

    def as_number(self) -> Number:
        """The number as it stands beside those of runs, marked as published; its names are fit for a cell."""
        column = PUBLISHED.get(self.method)
        return Number(
            task=one_line(self.task, CELL),
            metric=one_line(self.metric, CELL),
            filter=RAW if column is None else column.filter,
            method=one_line(self.method, CELL) if column is None else column.name,
            track="zero_shot" if column is None else column.track,
            value=self.value,
            seed_std=self.std,
            model=one_line(self.model, CELL),
            file=one_line(f"{self.source}, {self.table}", CELL),
            published=True,
        )


def read_typed(path: Traversable) -> Iterator[TypedNumber]:
    """Reads a CSV of published numbers.

    Args:
        path: CSV in UTF-8 with `COLUMNS` and, if known, ``std_percent``.

    Yields:
        A number a line.

    Raises:
        DataError: it cannot be read, lacks a column, or a number is none; file and line are named.
    """
    lines = list(csv_rows(read_text(path, str(path)), str(path)))
    missing = [name for name in COLUMNS if not lines or name not in lines[0].cells]
    if missing:
        raise DataError(f"{path}: has no column '{missing[0]}'; it needs {', '.join(COLUMNS)}")
    for number, row in enumerate(lines, start=2):
        where, cells = f"{path}: line {number}", {str(key): str(cell) for key, cell in row.cells.items()}
        std = cells.get("std_percent")
        names = {name: cells[name] for name in COLUMNS if name != "percent"}
        value = _fraction(where, cells["percent"])
        yield TypedNumber(where, **names, value=value, std=_fraction(where, std) if std else None)


def _fraction(where: str, text: str) -> float:
    """A percentage of a table as a fraction; digits, a point and nothing else."""
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{where}: percent or std_percent is no number") from None
    if not 0 <= value <= 100:
        raise DataError(f"{where}: {value} or its spread is no percentage")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{0,20})?", text):
        raise DataError(f"{where}: percent or std_percent is no number")
    return value / 100
