"""Numbers typed from papers: the one reader of their CSV, for tables to reproduce and for numbers shown beside runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from ttmbench._util.escape import one_line
from ttmbench.data.row_files import csv_rows, read_text
from ttmbench.errors import DataError
from ttmbench.results.labels import CHOICE_COLUMN, PUBLISHED, RAW, RAW_COLUMN, Column, PublishedTrack
from ttmbench.results.numbers import Number

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

TRACKS: tuple[PublishedTrack, ...] = get_args(PublishedTrack)
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
        decimals: digits after the point, as typed.
        track: of the model, where the line states it; else the table's entry of the model does.
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
    decimals: int
    track: PublishedTrack | None

    def as_number(self, track: PublishedTrack) -> Number:
        """The number as it stands beside those of runs, marked as published; its names are fit for a cell.

        Args:
            track: of the model, by its entry in the table.

        Raises:
            DataError: the method does not belong to a model of this track.
        """
        column = published_column(self.method, track)
        try:
            ranks_in = published_track(self.method, track)
        except ValueError as error:
            raise DataError(f"{self.where}: model '{self.model}' {error}") from None
        return Number(
            task=one_line(self.task, CELL),
            metric=one_line(self.metric, CELL),
            filter=RAW if column is None else column.filter,
            method=one_line(self.method, CELL) if column is None else column.name,
            track=ranks_in,
            value=self.value,
            seed_std=self.std,
            model=one_line(self.model, CELL),
            file=one_line(f"{self.source}, {self.table}", CELL),
            published=True,
        )


def published_column(method: str, track: PublishedTrack) -> Column | None:
    """The column of a run's numbers that a published one is of; None for a method that runs do not have.

    >>> published_column("raw", "forced_choice").name, published_column("ttm", "zero_shot").name
    ('forced choice', 'TTM')
    """
    column = PUBLISHED.get(method)
    return CHOICE_COLUMN if column is RAW_COLUMN and track == "forced_choice" else column


def published_track(method: str, track: PublishedTrack) -> str | None:
    """The track of a published number, by its method and the track of its model.

    Args:
        method: as typed.
        track: what the table's entry of the model says.

    Returns:
        The track: of a model that was not finetuned, that of the method.

    Raises:
        ValueError: models of this track have raw numbers only; what is wrong, to follow the name of the model.

    >>> published_track("raw", "supervised"), published_track("ttm", "supervised"), published_track("ttm", "zero_shot")
    ('supervised', 'supervised', 'test_time')
    """
    column = PUBLISHED.get(method)
    if track == "zero_shot":
        return track if column is None else column.track
    if track == "supervised":
        return "oracle" if column is not None and column.track == "oracle" else track
    if column is not RAW_COLUMN:
        raise ValueError(f"has the track {track}, whose numbers have the method 'raw', got '{method}'")
    return track


def read_typed(path: Traversable) -> Iterator[TypedNumber]:
    """Reads a CSV of published numbers.

    Args:
        path: CSV in UTF-8 with `COLUMNS` and, if known, ``std_percent``; ``track`` where no table names it.

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
        yield TypedNumber(
            where,
            **names,
            value=value,
            std=_fraction(where, std) if std else None,
            decimals=len(cells["percent"].partition(".")[2]),
            track=_track(where, cells.get("track")),
        )


def _track(where: str, text: str | None) -> PublishedTrack | None:
    found = next((track for track in TRACKS if track == text), None)
    if text and found is None:
        raise DataError(f"{where}: unknown track '{text}'; known: {', '.join(TRACKS)}")
    return found


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
