"""Numbers typed from papers: the one reader of their CSV, for tables to reproduce and for numbers shown beside runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from ttmbench._util.console import one_line
from ttmbench.data.row_files import csv_rows, read_text
from ttmbench.errors import DataError
from ttmbench.plugins.methods import METHODS
from ttmbench.reproduce.agreement import Measured
from ttmbench.results.labels import BUILT_IN_FILTERS, CHOICE_COLUMN, PUBLISHED, RAW, RAW_COLUMN, Column, PublishedTrack

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from ttmbench.results.numbers import Number

TRACKS: tuple[PublishedTrack, ...] = get_args(PublishedTrack)
COLUMNS = ("source", "table", "task", "model", "method", "metric")
COUNT = ("correct", "of")  # in place of a percentage
_EXACT = 6  # digits after the point of a percentage that is computed from a count
CELL = 200  # characters of a name that is shown


@dataclass(frozen=True)
class PublishedNumber:
    """A number as printed: a line of the CSV.

    Attributes:
        where: file and line, for messages.
        source: the paper.
        table: of the paper.
        task: the paper's name, which is ours where there is such a task.
        model: the paper's name.
        method: ``raw``, ``simple_match``, ``ttm``, ``overfitted``, ``oracle``, a built-in test-time method, or the
            paper's own word.
        metric: name.
        measured: the number, and its spread over runs where that is stated.
        decimals: digits after the point, as typed.
        of: how many groups or queries a number of correct ones is of; None for a percentage.
        of_model: track of the model, where the line states it; else the table's entry of the model does.
    """

    where: str
    source: str
    table: str
    task: str
    model: str
    method: str
    metric: str
    measured: Measured
    decimals: int
    of_model: PublishedTrack | None
    of: int | None = None

    @property
    def column(self) -> Column:
        """The column of a run's numbers that it is compared with; one of its own for a method that runs do not have."""
        column = column_of(self.method) or Column(one_line(self.method, CELL), RAW, None)
        return CHOICE_COLUMN if column is RAW_COLUMN and self.of_model == "forced_choice" else column

    @property
    def track(self) -> str | None:
        """Where it ranks, by its method and the track of its model: of one that was not finetuned, by the method.

        Raises:
            DataError: models of this track have raw numbers only.
        """
        column, track = column_of(self.method), self.of_model
        if track == "zero_shot":
            return track if column is None else column.track
        if track == "supervised":
            return "oracle" if column is not None and column.track == "oracle" else track
        if column is not RAW_COLUMN:
            raise DataError(
                f"{self.where}: model '{self.model}' has the track {track}, whose numbers have the method 'raw', got "
                f"'{self.method}'"
            )
        return track

    def as_number(self) -> Number:
        """The number as it stands beside those of runs, marked as published; its names are fit for a cell."""
        from ttmbench.results.numbers import Number  # with scipy, which no look into a table should wait for

        return Number(
            task=one_line(self.task, CELL),
            metric=one_line(self.metric, CELL),
            filter=self.column.filter,
            method=self.column.name,
            track=self.track,
            value=self.measured.value,
            seed_std=self.measured.std,
            model=one_line(self.model, CELL),
            file=one_line(f"{self.source}, {self.table}", CELL),
            published=True,
        )


def column_of(method: str) -> Column | None:
    """The column of a method as published tables name it; None for a method that runs do not have.

    >>> column_of("raw").track, column_of("tent").filter, column_of("sinkhorn").track, column_of("ours")
    ('zero_shot', 'tent', 'matching', None)
    """
    spec = next(
        (candidate for candidate in METHODS if candidate.name == method and method not in BUILT_IN_FILTERS), None
    )
    return PUBLISHED.get(method) if spec is None else Column(method, method, spec.track)


def read_published(path: Traversable, runs: int = 1) -> Iterator[PublishedNumber]:
    """The numbers of a CSV in UTF-8: `COLUMNS`, ``percent`` or ``correct`` and ``of``, and, if known, ``std_percent``.

    A column ``track`` states the track where no table names it.
    ``runs`` says how many are behind a number that states a spread. DataError naming file and line if it cannot be
    read, lacks a column, or a number is none.
    """
    lines = list(csv_rows(read_text(path, str(path)), str(path)))
    missing = [name for name in (*COLUMNS, "percent") if not lines or name not in lines[0].cells]
    if missing:
        raise DataError(f"{path}: has no column '{missing[0]}'; it needs {', '.join(COLUMNS)}, percent")
    for number, row in enumerate(lines, start=2):
        where, cells = f"{path}: line {number}", {str(key): str(cell) for key, cell in row.cells.items()}
        track = next((track for track in TRACKS if track == cells.get("track")), None)
        if cells.get("track") and track is None:
            raise DataError(f"{where}: unknown track '{cells['track']}'; known: {', '.join(TRACKS)}")
        of, text = _count(where, cells), cells.get("std_percent")
        value = int(cells["correct"]) / of if of else _fraction(where, cells["percent"])
        std = _fraction(where, text) if text else None
        yield PublishedNumber(
            where,
            **{name: cells[name] for name in COLUMNS},
            measured=Measured(value, std, 1 if std is None else runs),
            decimals=_EXACT if of else len(cells["percent"].partition(".")[2]),
            of_model=track,
            of=of,
        )


def _count(where: str, cells: Mapping[str, str]) -> int | None:
    """The number of groups or queries of a line that states how many of them are correct; None for a percentage."""
    correct, of = (cells.get(name, "") for name in COUNT)
    if cells["percent"] or not (correct or of):
        return None
    if not (re.fullmatch("[0-9]{1,9}", correct) and re.fullmatch("[0-9]{1,9}", of) and int(correct) <= int(of) > 0):
        raise DataError(
            f"{where}: correct and of must be whole numbers, correct at most of, got {correct!r:.40} and {of!r:.40}"
        )
    return int(of)


def _fraction(where: str, text: str) -> float:
    """A percentage of a table as a fraction; digits, a point and nothing else."""
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{where}: percent and std_percent must be numbers, got {text!r:.40}") from None
    if not 0 <= value <= 100:
        raise DataError(f"{where}: percent and std_percent must be from 0 to 100, got {value}")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{0,20})?", text):
        raise DataError(f"{where}: percent and std_percent must be written like 71.5, got {text!r:.40}")
    return value / 100
