"""What the pages of a site say, as values for their templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ttmbench._util.files import safe_name
from ttmbench.report.html.site_rows import (
    PUBLISHED,
    RUN,
    STORED,
    BoardLine,
    TaskFacts,
    best_of,
    cell_of,
    facts_of,
    lines_of,
)
from ttmbench.report.leaderboard import NOT_RUN, Leaderboard, MergedRun, legends
from ttmbench.report.leaderboard_formats import TRANSFER_HEAD, transfer_cells
from ttmbench.report.table import NOTHING
from ttmbench.results.labels import CHOICE_COLUMN, NO_MODEL, ORACLE, RAW_COLUMN, TRACK_ORDER, TRACK_TITLES
from ttmbench.results.numbers import Number, takes_place_of
from ttmbench.results.transfer_deltas import TITLE

_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")
_SHOWN_KEYS = ("weights_sha256", "revision", "pretrained", "model", "architecture", "dtype")


@dataclass(frozen=True)
class SiteContent:
    """What a site is made of.

    Attributes:
        board: the merged rows, and the documents.
        facts: of each task.
        task_pages: task -> file.
        model_pages: model of a run -> file.
        documents: file of a document -> its copy.
        rows_of: task -> its rows.
        by_model: model -> its documents, the newest first.
        packages: file of a document -> the version of this package that made it.
        places: file of a document -> its number on the page of its model.
        made: when.
        version: of this package.
    """

    board: Leaderboard
    made: str
    version: str
    facts: dict[str, TaskFacts] = field(default_factory=dict)
    task_pages: dict[str, str] = field(default_factory=dict)
    model_pages: dict[str, str] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    rows_of: dict[str, list[Number]] = field(default_factory=dict)
    by_model: dict[str, list[MergedRun]] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, board: Leaderboard, made: str, version: str) -> SiteContent:
        """Everything that several pages need."""
        about: dict[str, Mapping[str, Any]] = {}
        for run in sorted(board.runs, key=lambda run: run.document.date):
            about |= run.document.configs
        by_task: dict[str, list[Number]] = {}
        for row in board.rows:
            by_task.setdefault(row.task, []).append(row)
        by_model: dict[str, list[MergedRun]] = {}
        for run in sorted(board.runs, key=lambda run: run.document.date, reverse=True):
            if run.rows:
                by_model.setdefault(run.model, []).append(run)
        tasks, models = sorted(by_task, key=str.lower), sorted(by_model, key=str.lower)
        return cls(
            board,
            made,
            version,
            facts={task: facts_of(task, by_task[task], about.get(task.partition("/")[0], {})) for task in tasks},
            task_pages=file_names(tasks, ".html"),
            model_pages=file_names(models, ".html"),
            documents=file_names((run.file for run in board.runs if run.rows), ".json"),
            rows_of=by_task,
            by_model=by_model,
            packages={run.file: run.document.packages.get("ttmbench", "") for run in board.runs},
            places={run.file: number for runs in by_model.values() for number, run in enumerate(runs, start=1)},
        )

    def runs_of(self, model: str) -> list[MergedRun]:
        """A model's documents, the newest first."""
        return self.by_model[model]


def common(content: SiteContent, root: str) -> dict[str, Any]:
    """What every page has: where the others lie, and its foot."""
    return {"root": root, "made": content.made, "version": content.version, "published": PUBLISHED, "ranks": RUN}


def overview(content: SiteContent) -> dict[str, Any]:
    """The start page: tasks by models for each track, and lists of both."""
    rows = content.board.rows
    tables = []
    for track in _tracks(rows):
        if track == ORACLE:
            continue  # a skyline is shown with its task, and never beside results
        mine = [row for row in rows if row.track == track and content.facts[row.task].headline(row)]
        lines = lines_of(mine, content.facts, "task")
        columns = [task for task in content.facts if any(task in line.cells for line in lines)]
        if lines:
            names = {
                task: sorted({line.cells[task].metric for line in lines if task in line.cells}) for task in columns
            }
            tables.append(
                {
                    "track": track,
                    "title": TRACK_TITLES.get(track, track),
                    "columns": [
                        {
                            "name": task,
                            "link": content.task_pages[task],
                            "metric": " or ".join(names[task]).replace("_", " "),
                        }
                        for task in columns
                    ],
                    "lines": _shown(lines, columns, content),
                }
            )
    return {
        "tables": tables,
        "tasks": [_task_entry(content, task) for task in content.facts],
        "models": [_model_entry(content, model) for model in content.model_pages],
        "methods": _methods(rows),
        "legends": legends(rows),
        "skipped": {name: why for name, why in content.board.skipped.items() if not name.startswith(NOT_RUN)},
        "runs": len([run for run in content.board.runs if run.rows]),
        "transfers": {"title": TITLE, "head": TRANSFER_HEAD, "rows": transfer_cells(content.board.transfers)},
    }


def task_page(content: SiteContent, task: str) -> dict[str, Any]:
    """A task: a table for each track, with every metric."""
    facts = content.facts[task]
    rows = content.rows_of[task]
    tables = []
    for track in _tracks(rows):
        mine = [row for row in rows if row.track == track]
        columns = _metric_columns(mine, facts)
        is_upper_bound = track in (ORACLE, NO_MODEL)
        lines = lines_of(mine, content.facts, "metric", None if is_upper_bound else columns[0])
        chance = {row.metric: row.chance for row in mine if row.chance is not None}
        tables.append(
            {
                "track": track,
                "title": TRACK_TITLES.get(track, track),
                "skyline": is_upper_bound,
                "columns": [
                    {
                        "name": name,
                        "text": name.replace("_", " "),
                        "first": name == columns[0],
                        "chance": NOTHING if name not in chance else f"{100 * chance[name]:.2f}",
                    }
                    for name in columns
                ],
                "lines": _shown(lines, columns, content, ranked=not is_upper_bound),
            }
        )
    address = str(facts.about.get("reference") or "")
    return {
        "facts": facts,
        "title": task,
        "stated": {key: str(facts.about.get(key) or "") for key in ("description", "license", "label_errors")},
        "reference": address if _ADDRESS.fullmatch(address) else None,
        "tables": tables,
        "methods": _methods(rows),
        "legends": legends(rows),
        "conflicts": [one for one in content.board.conflicts if one["task"] == task],
    }


def model_page(content: SiteContent, model: str) -> dict[str, Any]:
    """A model: its numbers, where each comes from, and what it had before."""
    runs, place = content.runs_of(model), content.places
    shown, history = _with_history(row for run in runs for row in run.rows)
    return {
        "title": model,
        "runs": [_run_entry(content, run, place[run.file]) for run in runs],
        "rows": [_number_entry(content, row, place) for row in shown],
        "history": [{**_number_entry(content, row, place), "by": place[newer.file]} for row, newer in history],
        "tasks": sorted({row.task for row in shown}),
        "tracks": [track for track in TRACK_ORDER if any(row.track == track for row in shown)],
        "legends": legends(shown),
    }


def _with_history(rows: Iterable[Number]) -> tuple[list[Number], list[tuple[Number, Number]]]:
    """The numbers that count, and every earlier one with that which took its place."""
    same: dict[tuple[Any, ...], list[Number]] = {}
    for row in rows:
        same.setdefault((row.task, row.track, row.metric, row.method, row.version, row.limited), []).append(row)
    newest, earlier = [], []
    for found in same.values():
        first = found[0]
        for row in found[1:]:
            first = row if takes_place_of(row, first) and not takes_place_of(first, row) else first
        newest.append(first)
        earlier += [(row, first) for row in found if row is not first]

    def order(row: Number) -> tuple[Any, ...]:
        track = TRACK_ORDER.index(row.track) if row.track in TRACK_ORDER else len(TRACK_ORDER)
        return (row.task.lower(), track, row.method, row.metric, row.limited)

    earlier.sort(key=lambda pair: pair[0].date or "", reverse=True)
    return sorted(newest, key=order), sorted(earlier, key=lambda pair: order(pair[0]))


def _tracks(rows: Sequence[Number]) -> list[str]:
    return [track for track in TRACK_TITLES if any(row.track == track for row in rows)]


def _methods(rows: Sequence[Number]) -> list[str]:
    return sorted({row.method for row in rows})


def _metric_columns(rows: Sequence[Number], facts: TaskFacts) -> list[str]:
    """The metrics of a track, the one that is compared first in front."""
    there = {row.metric for row in rows}
    stated = facts.about.get("metrics")
    names = [str(one) for one in stated if str(one) in there] if isinstance(stated, list) else []
    names += sorted(there - set(names))
    raw, match = facts.metrics
    first = match if match in there and (raw not in there or any(not _raw(row) for row in rows)) else raw
    return sorted(names, key=lambda name: name != first)


def _raw(row: Number) -> bool:
    return row.method in (RAW_COLUMN.name, CHOICE_COLUMN.name)


def _shown(
    lines: Sequence[BoardLine], columns: Sequence[str], content: SiteContent, ranked: bool = False
) -> list[dict[str, Any]]:
    best = best_of(lines)
    return [
        {
            "model": line.model,
            "link": None if line.standing == PUBLISHED else content.model_pages.get(line.model),
            "method": line.method,
            "standing": line.standing,
            "from_file": line.any.from_file and line.standing != STORED,
            "rank": line.rank,
            "groups": line.groups,
            "cells": [
                cell_of(line.cells.get(name), best.get(name), line.ranks and (ranked or len(columns) > 0))
                for name in columns
            ],
            "date": (line.any.date or "")[:10],
            "source": line.any.file,
            "run": content.places.get(line.any.file),
            "ttmbench": content.packages.get(line.any.file, ""),
        }
        for line in lines
    ]


def _task_entry(content: SiteContent, task: str) -> dict[str, Any]:
    facts = content.facts[task]
    rows = content.rows_of[task]
    leaders = []
    for track in ("zero_shot", "matching", "test_time"):
        ranked = [row for row in rows if row.track == track and facts.standing(row) == RUN and facts.headline(row)]
        up = all(row.higher_is_better for row in ranked)
        leaders.append((max if up else min)(ranked, key=lambda row: row.value or 0.0, default=None))
    return {
        "name": task,
        "link": content.task_pages[task],
        "groups": facts.groups,
        "version": facts.version,
        "models": len({row.model for row in rows if not row.published}),
        "published": len({row.model for row in rows if row.published}),
        "leaders": [{**cell_of(one), "model": "" if one is None else one.model} for one in leaders],
    }


def _model_entry(content: SiteContent, model: str) -> dict[str, Any]:
    runs = content.runs_of(model)
    newest = max((row.date or "" for run in runs for row in run.rows), default="")
    info = runs[0].document.model_info
    return {
        "name": model,
        "link": content.model_pages[model],
        "runs": len(runs),
        "tasks": len({row.task for run in runs for row in run.rows}),
        "date": newest[:10],
        "fingerprint": next((row.fingerprint for run in runs for row in run.rows if row.fingerprint), None),
        "finetuned": "finetuned" in info,
    }


def _run_entry(content: SiteContent, run: MergedRun, index: int) -> dict[str, Any]:
    document = run.document
    fingerprint = next((row.fingerprint for row in run.rows if row.fingerprint), None)
    return {
        "index": index,
        "date": (run.rows[0].date or "").replace("T", " ").removesuffix("+00:00"),
        "run": document,
        "document": content.documents[run.file],
        "file": run.file,
        "fingerprint": fingerprint,
        "declared": {key: str(document.fingerprint[key]) for key in _SHOWN_KEYS if document.fingerprint.get(key)},
        "packages": ", ".join(f"{name} {version}" for name, version in document.packages.items()),
        "seeds": ", ".join(map(str, sorted({seed for record in document.ttm.values() for seed in record.seeds}))),
        "audited": [task for task, record in document.ttm.items() if record.audit_labels],
        "adapted": list(document.ttm),
        "tasks": list(dict.fromkeys(row.task for row in run.rows)),
    }


def _number_entry(content: SiteContent, row: Number, place: Mapping[str, int]) -> dict[str, Any]:
    standing = content.facts[row.task].standing(row) if row.task in content.facts else RUN
    return {
        "task": row.task,
        "link": content.task_pages.get(row.task),
        "track": row.track,
        "method": row.method,
        "metric": row.metric.replace("_", " "),
        "standing": standing,
        **cell_of(row),
        "stderr": NOTHING if row.stderr is None else f"{100 * row.stderr:.2f}",
        "interval": NOTHING if row.interval is None else f"{100 * row.interval[0]:.1f} .. {100 * row.interval[1]:.1f}",
        "chance": NOTHING if row.chance is None else f"{100 * row.chance:.2f}",
        "ties": NOTHING if row.ties is None else f"{row.ties:g}",
        "seeds": NOTHING if row.seeds is None else str(row.seeds),
        "groups": row.extent.words,
        "version": row.version,
        "run": place.get(row.file),
        "date": (row.date or "")[:10],
        "ttmbench": content.packages.get(row.file, ""),
    }


def file_names(names: Iterable[str], ending: str) -> dict[str, str]:
    """A file name for each name.

    Args:
        names: of tasks, models or documents; a document's has folders.
        ending: of the files.

    Returns:
        Name -> file, told apart where only their case or unusual characters differ.

    >>> file_names(["a/b", "A/B", "a__b"], ".html")
    {'a/b': 'a__b.html', 'A/B': 'A__B-2.html', 'a__b': 'a__b-3.html'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        stem = safe_name(str(PurePosixPath(name).with_suffix("")) if ending == ".json" else name)
        file, number = f"{stem}{ending}", 1
        while file.lower() in taken:  # many file systems do not tell cases apart
            number += 1
            file = f"{stem}-{number}{ending}"
        taken.add(file.lower())
        found[name] = file
    return found
