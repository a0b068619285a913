"""Results of many runs merged into one table per track: newest valid row of each model and task, nothing mixed.

A row is one model on one task under one filter. Rows of different tracks never share a table, and rows of another
task version or other data are a conflict that is listed, not averaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.escape import one_line
from ttmbench._util.foreign import said
from ttmbench.data.row_files import csv_rows, read_text
from ttmbench.errors import DataError, UsageError
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.results.reader import walk_documents
from ttmbench.results.summary import ORACLE, RAW, SIMPLE_MATCH, TRACK_ORDER, TTM

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

OWN_FILE = "leaderboard.json"
CELL = 200  # characters of a name in a table
METHOD_OF_FILTER = {RAW: "raw", SIMPLE_MATCH: "overfitted", TTM: "TTM", ORACLE: "oracle"}
PUBLISHED_COLUMNS = ("source", "table", "task", "model", "method", "metric", "percent")
_TRACK_OF_METHOD = {"raw": "zero_shot", "simple_match": "matching", "ttm": "test_time", "oracle": "oracle"}


@dataclass(frozen=True)
class Row:
    """One number of one model on one task.

    Attributes:
        track: the table it stands in.
        model: as its run or paper calls it.
        task: name.
        version: of the task; None for published numbers, which state none.
        metric: name.
        method: raw, overfitted, TTM, oracle.
        value: fraction.
        stderr: over groups, a fraction.
        seed_std: over seeds, a fraction.
        seeds: number of them; None for raw numbers.
        groups: that were scored.
        data: fingerprint of the data.
        date: of the run, ISO 8601; None for published numbers.
        source: results file, or paper and table.
        published: typed from a paper.
    """

    track: str
    model: str
    task: str
    version: int | None
    metric: str
    method: str
    value: float
    stderr: float | None
    seed_std: float | None
    seeds: int | None
    groups: int | None
    data: str | None
    date: str | None
    source: str
    published: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two rows the same number."""
        return (self.track, self.model, self.task, self.version, self.metric, self.method, self.published)


@dataclass(frozen=True)
class Leaderboard:
    """The merged rows, and what was left out and why.

    Attributes:
        rows: by track, task, metric, method, then from the largest value down.
        skipped: file, or published task -> why it is not there.
        superseded: older runs of a row that is there: what, which file, which one took its place.
        conflicts: rows of one model and task that are of other data or another version than most.
    """

    rows: list[Row]
    skipped: dict[str, str] = field(default_factory=dict)
    superseded: list[dict[str, str]] = field(default_factory=list)
    conflicts: list[dict[str, Any]] = field(default_factory=list)


def merge(folder: Path, published: Sequence[Traversable] = ()) -> Leaderboard:
    """Merges every results document below a folder, and published numbers.

    Args:
        folder: searched with all folders below it.
        published: CSV files with the columns source, table, task, model, method, metric, percent and, if known,
            std_percent. Only tasks that a run has are taken.

    Returns:
        The leaderboard.

    Raises:
        UsageError: no folder, or nothing in it.
        DataError: a CSV is not what it should be.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; name the one that runs wrote to (--output_path)")
    skipped: dict[str, str] = {}
    newest: dict[tuple[Any, ...], Row] = {}
    superseded: list[dict[str, str]] = []
    documents = 0
    for found in walk_documents(folder, without=frozenset({OWN_FILE})):
        name = found.path.relative_to(folder).as_posix()
        if found.document is None:
            skipped[name] = found.skipped or ""
            continue
        document = found.document
        try:
            rows = list(_rows(document, name))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
            skipped[name] = f"is no complete results document ({said(error)})"
            continue
        documents += 1
        if not rows:
            skipped[name] = f"has no finished task (status {document.get('status')})"
        for row in rows:
            before = newest.get(row.key)
            if before is None or (row.date or "") >= (before.date or ""):
                newest[row.key] = row
            old, new = (before, row) if newest[row.key] is row else (row, before)
            if old is not None and new is not None and old.source != new.source:
                what = f"{old.model}, {old.task}, {old.metric}, {old.method}"
                superseded.append({"what": what, "file": old.source, "by": new.source})
    if documents == 0:
        raise UsageError(f"{folder} has no results document; runs write theirs with --output_path {folder}")
    tasks = {row.task for row in newest.values()}
    typed = [row for path in published for row in read_published(path)]
    rows = [*newest.values(), *(row for row in typed if row.task in tasks)]
    for task in dict.fromkeys(row.task for row in typed if row.task not in tasks):
        skipped[f"published numbers of {task}"] = "no run has this task"
    rows.sort(key=lambda row: (_rank(row.track), row.task, row.metric, row.method, -row.value, row.model))
    return Leaderboard(rows, skipped, superseded, _conflicts(rows))


def read_published(path: Traversable) -> Iterator[Row]:
    """Numbers typed from papers, as rows that say so.

    Args:
        path: CSV in UTF-8.

    Yields:
        A row a line.

    Raises:
        DataError: it cannot be read, lacks a column, or a number is none; file and line are named.
    """
    lines = list(csv_rows(read_text(path, str(path)), str(path)))
    missing = [name for name in PUBLISHED_COLUMNS if not lines or name not in lines[0].cells]
    if missing:
        raise DataError(f"{path}: has no column '{missing[0]}'; it needs {', '.join(PUBLISHED_COLUMNS)}")
    for number, row in enumerate(lines, start=2):
        line = {str(key): one_line(cell, CELL) for key, cell in row.cells.items()}
        value = _fraction(path, number, line["percent"])
        std = _fraction(path, number, line["std_percent"]) if line.get("std_percent") else None
        method = line["method"]
        yield Row(
            track=_TRACK_OF_METHOD.get(method, "zero_shot"),
            model=line["model"],
            task=line["task"],
            version=None,
            metric=line["metric"],
            method={"ttm": "TTM", "simple_match": "raw"}.get(method, method),
            value=value,
            stderr=None,
            seed_std=std,
            seeds=None,
            groups=None,
            data=None,
            date=None,
            source=f"{line['source']}, {line['table']}",
            published=True,
        )


def _fraction(path: Traversable, number: int, text: str) -> float:
    """A percentage of a table as a fraction; digits, a point and nothing else."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{0,20})?", text) or float(text) > 100:
        raise DataError(f"{path}: line {number} has percent {text!r:.80}, which is no number from 0 to 100")
    return float(text) / 100


def as_document(board: Leaderboard) -> dict[str, Any]:
    """The leaderboard as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "leaderboard",
        "tracks": [track for track in TRACK_ORDER if any(row.track == track for row in board.rows)],
        "rows": [asdict(row) for row in board.rows],
        "skipped": board.skipped,
        "superseded": board.superseded,
        "conflicts": board.conflicts,
    }


def tables(rows: Iterable[Row]) -> dict[str, dict[tuple[str, str], dict[str, Row]]]:
    """Rows laid out as tables: track -> (model, method) -> "task metric" -> row; published models are marked.

    Args:
        rows: of a leaderboard.

    Returns:
        Tables in the order of the tracks.
    """
    found: dict[str, dict[tuple[str, str], dict[str, Row]]] = {track: {} for track in TRACK_ORDER}
    for row in rows:
        model = f"{row.model} (published)" if row.published else row.model
        found.setdefault(row.track, {}).setdefault((model, row.method), {})[f"{row.task} {row.metric}"] = row
    return {track: lines for track, lines in found.items() if lines}


def _rows(document: Mapping[str, Any], name: str) -> Iterator[Row]:
    date = datetime.fromtimestamp(float(document["date"]), UTC).isoformat(timespec="seconds")
    for task, numbers in document["results"].items():
        for key, track in document["tracks"][task].items():
            metric, label = (one_line(part, CELL) for part in key.split(","))
            value = numbers.get(key)
            spread, over_seeds = (numbers.get(key.replace(",", f"_{what},")) for what in ("stderr", "seed_std"))
            if value is None:
                continue
            record = document.get({TTM: "ttm", SIMPLE_MATCH: "simple_match", ORACLE: "oracle"}.get(label, ""), {})
            yield Row(
                track=str(track),
                model=one_line(document["model_name"], CELL),
                task=one_line(task, CELL),
                version=_whole(document["versions"][task]),
                metric=metric,
                method=METHOD_OF_FILTER.get(label, label),
                value=float(value) + 0.0,  # no -0.0
                stderr=spread,
                seed_std=over_seeds,
                seeds=len(record[task]["seeds"]) if task in record else None,
                groups=_whole(document["n-samples"][task]["effective"]),
                data=one_line(str(document["task_hashes"][task]), CELL),
                date=date,
                source=name,
            )


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r:.80} is no whole number from 0")
    return value


def _conflicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Tasks whose rows are not all of one version, one size and one fingerprint of data."""
    found = []
    for task in dict.fromkeys(row.task for row in rows if not row.published):
        kinds: dict[tuple[int | None, int | None, str | None], set[str]] = {}
        for row in rows:
            if row.task == task and not row.published:
                kinds.setdefault((row.version, row.groups, row.data), set()).add(row.source)
        if len(kinds) > 1:
            variants = [
                {"version": version, "groups": groups, "data": data, "files": sorted(files)}
                for (version, groups, data), files in kinds.items()
            ]
            found.append({"task": task, "variants": variants})
    return found


def _rank(track: str) -> int:
    return TRACK_ORDER.index(track) if track in TRACK_ORDER else len(TRACK_ORDER)
