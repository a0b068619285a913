"""Results of many runs merged into one table per track: newest valid row of each model and task, nothing mixed.

A row is one model with one setting on one task under one filter. Rows of different tracks never share a table, and
rows of another task version or other data are a conflict that is listed, not averaged. A row of a part of a task is
marked, stands after those of whole tasks, and takes the place of none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttmbench._util.console import latex, markdown, one_line
from ttmbench.errors import UsageError
from ttmbench.report import text_table
from ttmbench.report.table import number_text
from ttmbench.report.text_table import TextTable, transfer_table
from ttmbench.results.coverage import Extent, together
from ttmbench.results.document import ResultsDocument
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.results.labels import (
    CHOICE,
    DISAGREES_LEGEND,
    DISAGREES_MARK,
    FROM_FILE,
    SEEN_LEGEND,
    SEEN_MARK,
    TRACK_TITLES,
)
from ttmbench.results.models import UNKNOWN
from ttmbench.results.numbers import Number, numbers_of, takes_place_of
from ttmbench.results.reader import walk_documents
from ttmbench.results.settings import RunName, names_of_runs
from ttmbench.results.transfer_deltas import Transfer, transfers_of
from ttmbench.scoring.forced_choice.arrays import choice_chance

OWN_FILE = "leaderboard.json"
NOT_RUN = "published numbers of "  # how the name of what was left out begins, where it is no file
CELL = 200  # characters of a name in a table
ROW = (
    *("track", "model", "task", "version", "metric", "method", "value", "stderr", "seed_std", "seeds", "groups"),
    *("groups_of_task", "limited", "fingerprint", "data", "date", "source", "published", "seen", "trained_on"),
    *("disagrees", "from_file"),
)


@dataclass(frozen=True)
class MergedRun:
    """A document of a leaderboard.

    Attributes:
        model: what tables call its model.
        file: from the folder that was searched.
        document: its content.
        rows: its numbers that belong to a track, newest or not.
    """

    model: str
    file: str
    document: ResultsDocument
    rows: tuple[Number, ...]


@dataclass(frozen=True)
class Leaderboard:
    """The merged rows, and what was left out and why.

    Attributes:
        rows: by track, task and metric, runs on a part of a task last; by method, then from the largest value down.
        skipped: file, or published task -> why it is not there.
        superseded: older runs of a row that is there: what, which file, which one took its place.
        conflicts: rows of one model and task that are of other data or another version than most.
        transfers: adapted models on other tasks, the newest of each; they rank nowhere.
        runs: every document, with the numbers that it has.
    """

    rows: list[Number]
    skipped: dict[str, str] = field(default_factory=dict)
    superseded: list[dict[str, str]] = field(default_factory=list)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    runs: list[MergedRun] = field(default_factory=list)


def merge(folder: Path, published: Sequence[Number] = ()) -> Leaderboard:
    """Merges every results document below a folder, and published numbers.

    Args:
        folder: searched with all folders below it.
        published: numbers from papers. Only those of tasks that a run has are taken.

    Returns:
        The leaderboard.

    Raises:
        UsageError: no folder, or nothing in it.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} must be a directory with results, such as the --output_path of runs")
    skipped: dict[str, str] = {}
    documents: dict[str, ResultsDocument] = {}
    for path, document in walk_documents(folder, without=frozenset({OWN_FILE})):
        name = path.relative_to(folder).as_posix()
        if isinstance(document, str):
            skipped[name] = document
            continue
        documents[name] = document
    if not documents:
        raise UsageError(f"{folder} has no results document; runs write them with --output_path {folder}")
    names = names_of_runs([(folder / name, document) for name, document in documents.items()])
    names = [replace(called, model=one_line(called.model, CELL)) for called in names]
    runs = [
        MergedRun(called.words, file, document, tuple(_rows(document, file, called)))
        for called, (file, document) in zip(names, documents.items(), strict=True)
    ]
    skipped |= {run.file: f"has no finished task (status {run.document.status})" for run in runs if not run.rows}
    newest, superseded = _newest(row for run in runs for row in run.rows)
    tasks = {row.task for row in newest}
    rows = [*newest, *with_chance((row for row in published if row.task in tasks), documents.values())]
    for task in dict.fromkeys(row.task for row in published if row.task not in tasks):
        skipped[f"{NOT_RUN}{task}"] = "no run has this task"
    downwards = {row.metric for row in rows if not row.higher_is_better}  # published numbers do not say
    rows = [replace(row, higher_is_better=False) if row.metric in downwards else row for row in rows]
    rows.sort(key=_order)
    transfers = newest_transfers(
        replace(row, model=run.model) for run in runs for row in transfers_of(run.document, run.file)
    )
    return Leaderboard(rows, skipped, superseded, _conflicts(rows), transfers, runs)


def newest_transfers(rows: Iterable[Transfer]) -> list[Transfer]:
    """One row a model, task adapted to, task measured on and metric; the whole task goes before a part of it."""
    newest: dict[tuple[str, ...], Transfer] = {}
    for row in rows:
        key = (row.model, row.adapted_on, row.measured_on, row.metric)
        before = newest.get(key)
        if before is None or (not row.limited, row.date) >= (not before.limited, before.date):
            newest[key] = row
    return sorted(newest.values(), key=lambda row: (row.model, row.adapted_on))


def _newest(rows: Iterable[Number]) -> tuple[list[Number], list[dict[str, str]]]:
    """One row a model, task, version, metric and method; and what it replaced."""
    newest: dict[tuple[object, ...], Number] = {}
    superseded = []
    for row in rows:
        key = (row.model, row.track, row.task, row.version, row.metric, row.method, row.limited)
        before = newest.setdefault(key, row)
        if before is row:
            continue
        new, old = (row, before) if takes_place_of(row, before) else (before, row)
        newest[key] = new
        if old.file != new.file:
            what = f"{old.model}, {old.task}, {old.metric}, {old.method}"
            superseded.append({"what": what, "file": old.file, "by": new.file})
    return list(newest.values()), superseded


def as_document(board: Leaderboard) -> dict[str, object]:
    """The leaderboard as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "leaderboard",
        "tracks": [track for track in TRACK_TITLES if any(row.track == track for row in board.rows)],
        "rows": [as_row(row) for row in board.rows],
        "skipped": board.skipped,
        "superseded": board.superseded,
        "conflicts": board.conflicts,
        **({"transfers": [one.row() for one in board.transfers]} if board.transfers else {}),
    }


def as_row(one: Number) -> dict[str, object]:
    """A number as a row of ``leaderboard.json`` and of the CSV, with its setting where runs have several."""
    row = {key: getattr(one, "file" if key == "source" else key) for key in ROW}
    return row | {"model": one.own_model, "setting": one.setting} if one.setting else row


def tables(rows: Iterable[Number]) -> dict[str, dict[tuple[str, str], dict[str, Number]]]:
    """Rows laid out as tables: track -> (model, method) -> "task metric" -> row.

    Published models and runs on a part of a task are marked; those runs have lines of their own, below all others.
    Published numbers of two sources never share a line, as one name may stand for two models.

    Args:
        rows: of a leaderboard.

    Returns:
        Tables in the order of the tracks.
    """
    lines: dict[str, dict[tuple[str, str], dict[str, Number]]] = {track: {} for track in TRACK_TITLES}
    for row in sorted(rows, key=lambda row: row.limited):
        mark = f" (published: {row.file})" if row.published else f" ({FROM_FILE})" if row.from_file else ""
        mark += " (part of the groups)" if row.limited else ""
        lines[row.track or ""].setdefault((row.model + mark, row.method), {})[f"{row.task} {row.metric}"] = row
    return {track: of_track for track, of_track in lines.items() if of_track}


def with_chance(published: Iterable[Number], documents: Iterable[ResultsDocument]) -> list[Number]:
    """Published numbers; those of forced choices with their own chance level, by the shape of the task in documents."""
    shapes = {
        task: data.shape
        for document in documents
        for task, data in document.datasets.items()
        if document.configs.get(task, {}).get("kind", "groups") == "groups"
    }
    found = []
    for row in published:
        shape = shapes.get(row.own_task) if row.filter == CHOICE else None
        found.append(replace(row, chance=choice_chance(*shape).get(row.metric)) if shape else row)
    return found


def disagreements(rows: Iterable[Number]) -> list[str]:
    """A line for each task and model name under which sources publish different values, with the sources."""
    values: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row.disagrees:
            metrics = values.setdefault(f"{row.task}, {row.model}, {row.method}", {})
            metrics.setdefault(row.metric, []).append(f"{100 * (row.value or 0):.2f} ({row.file})")
    return [
        f"{about}: " + "; ".join(f"{metric} {' and '.join(same)}" for metric, same in metrics.items())
        for about, metrics in values.items()
    ]


def legends(rows: Sequence[Number], escape: Callable[[str], str] = str) -> list[str]:
    """What the marks beside numbers mean, for the marks that appear, with the models whose training data are unknown.

    Args:
        rows: the numbers of a table.
        escape: makes a model's name fit for the format.
    """
    found = []
    if any(row.seen for row in rows):
        unknown = sorted({row.model for row in rows if row.trained_on == UNKNOWN})
        found.append(f"{SEEN_LEGEND}; unknown for {', '.join(map(escape, unknown))}" if unknown else SEEN_LEGEND)
    if any(row.disagrees for row in rows):
        found.append(DISAGREES_LEGEND)
    return found


def extent_of_line(line: Mapping[str, Number]) -> Extent:
    """How many groups a line of a table is of, over its tasks."""
    return together({row.task: row.extent for row in line.values()}.values())


def _rows(document: ResultsDocument, file: str, called: RunName) -> Iterator[Number]:
    """The numbers that rank, their names fit for a cell."""
    for one in numbers_of(document, file):
        if one.track is not None and one.value is not None:
            texts = {name: _shown(getattr(one, name) or "") for name in ("task", "metric", "method", "data")}
            yield replace(one, model=called.words, setting=called.setting, **texts)  # type: ignore[arg-type]


@lru_cache(maxsize=10_000)  # documents name the same tasks, metrics and data again and again
def _shown(text: str) -> str:
    return one_line(text, CELL)


def _order(row: Number) -> tuple[Any, ...]:
    value = -(row.value or 0.0) if row.higher_is_better else (row.value or 0.0)
    track = list(TRACK_TITLES).index(row.track or "")
    return (track, row.task, row.metric, row.limited, row.method, value, row.model)


def _conflicts(rows: Sequence[Number]) -> list[dict[str, Any]]:
    """Tasks whose rows are not all of one version, one size and one fingerprint of data.

    A run on a part of a task is marked as such; beside whole ones only its version counts. Scores from a file do not
    state their data and are marked; beside runs only their version and size count.
    """
    found = []
    for task in dict.fromkeys(row.task for row in rows if not row.published):
        mine = [row for row in rows if row.task == task and not row.published]
        versions = {row.version for row in mine if not row.limited}
        of_runs = {(row.version, row.groups) for row in mine if not row.limited and not row.from_file}
        kinds: dict[tuple[int | None, int | None, str | None], set[str]] = {}
        for row in mine:
            if row.from_file and (row.version, row.groups) in of_runs:
                continue
            if not row.limited or not versions or row.version not in versions:
                kinds.setdefault((row.version, row.groups, row.data), set()).add(row.file)
        if len(kinds) > 1:
            variants = [
                {"version": version, "groups": groups, "data": data, "files": sorted(files)}
                for (version, groups, data), files in kinds.items()
            ]
            found.append({"task": task, "variants": variants})
    return found


def to_csv(board: Leaderboard) -> str:
    """One line a row, fractions."""
    columns = (*ROW, "setting") if any(row.setting for row in board.rows) else ROW
    return text_table.to_csv(columns, ({"setting": "", **as_row(row)} for row in board.rows))


def to_markdown(board: Leaderboard) -> str:
    """One table a track, percent."""
    parts = [*map(text_table.to_markdown, _tables(board)), *(f"{one}\n" for one in legends(board.rows, markdown))]
    parts += [text_table.to_markdown(transfer_table(board.transfers))] if board.transfers else []
    return "\n".join(parts)


def to_latex(board: Leaderboard) -> str:
    """One ``tabular`` a track, percent, for the booktabs package."""
    parts = [*map(text_table.to_latex, _tables(board)), *(f"% {one}\n" for one in legends(board.rows, latex))]
    parts += [text_table.to_latex(transfer_table(board.transfers))] if board.transfers else []
    return "\n".join(parts)


def _tables(board: Leaderboard) -> list[TextTable]:
    shown = []
    for track, lines in tables(board.rows).items():
        columns = columns_of(lines)
        rows = [
            [*who, extent_of_line(line).words, *(_marked(line.get(name)) for name in columns)]
            for who, line in lines.items()
        ]
        shown.append(TextTable(TRACK_TITLES[track], [["model", "method", "groups", *columns]], rows))
    return shown


def columns_of(lines: Mapping[tuple[str, str], Mapping[str, Number]]) -> list[str]:
    """The columns of a table's lines."""
    return sorted({name for line in lines.values() for name in line})


def _marked(row: Number | None) -> str:
    """A number with its marks."""
    marks = "" if row is None else (SEEN_MARK if row.seen else "") + (DISAGREES_MARK if row.disagrees else "")
    return number_text(row) + marks
