"""The HTML page of ``ttmbench report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from ttmbench.errors import DataError
from ttmbench.report.charts import Course, as_image, courses_of, draw_answer, draw_course, tag_tables_of
from ttmbench.report.compared_methods import NOT_RANKED, methods_of
from ttmbench.report.groups import GroupSet, read_groups
from ttmbench.report.html.render import json_block, render
from ttmbench.report.load import Gathered, ReportedRun, gather
from ttmbench.report.summary_table import AnswerRow, answer_of
from ttmbench.report.table import transfer_cells
from ttmbench.report.thumbnails import ThumbnailOptions, Thumbnails, thumbnails_for
from ttmbench.results.labels import TRACK_ORDER, TRACK_TITLES
from ttmbench.results.numbers import Number, transfers_of
from ttmbench.results.tag_means import MOST_VALUES

_NOUNS = {"classification": "images", "retrieval": "queries"}
"""What a line of samples is of a task that has no groups."""
_MOST_ROWS = 60  # of the first chart
_SETTINGS = ("lr", "epochs", "iterations", "schedule", "tau_start", "tau_end")


@dataclass(frozen=True)
class Report:
    """The content of a page."""

    gathered: Gathered  # runs, and skipped files
    rows: Sequence[AnswerRow] = ()  # of the first table
    sets: Sequence[tuple[GroupSet, int]] = ()  # with the position of their images below
    thumbnails: Sequence[Thumbnails] = ()  # of the groups


def read_report(given: Path, options: ThumbnailOptions, published: Sequence[Number] = ()) -> Report:
    """Read the content of a page from a folder or one results document; UsageError if there are no results."""
    gathered = gather(given)
    skipped = dict(gathered.skipped)
    by_data: dict[tuple[str, str | None], list[GroupSet]] = {}  # runs on the same data share images
    for run in gathered.runs:
        for task, path in run.files.get("samples", {}).items():
            try:
                groups = read_groups(run, task, path)
                by_data.setdefault((task, run.document.task_hashes.get(task)), []).append(groups)
            except DataError as error:
                skipped[(Path(run.name).parent / path.name).as_posix()] = str(error).removeprefix(f"{path}: ")
    thumbnails = [thumbnails_for(same, options) for same in by_data.values()]
    sets = [(one, at) for at, same in enumerate(by_data.values()) for one in same]
    sets.sort(key=lambda one: one[0].run.index)
    return Report(Gathered(gathered.runs, skipped), answer_of(gathered.runs, published), sets, thumbnails)


def to_html(report: Report, title: str = "Report") -> str:
    """The page, which loads nothing."""
    runs, rows = report.gathered.runs, report.rows
    counts = {"run": len(runs), "model": len({run.model for run in runs})}
    counts["task"] = len({task for run in runs for task in run.document.results})
    kinds = {task: str(config.get("kind")) for run in runs for task, config in run.document.configs.items()}
    alt = "Raw, SimpleMatch and TTM of each task and model; the table below has the numbers"
    return render(
        "report.html",
        title=title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        size=", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()),
        answer=rows,
        chart=as_image(lambda: draw_answer(rows), alt) if 0 < len(rows) <= _MOST_ROWS else "",
        nouns={task: _NOUNS.get(kind, "groups") for task, kind in kinds.items()},
        runs=runs,
        tracks=_tracks(runs),
        transfers=[
            transfer_cells(replace(row, model=run.model))
            for run in runs
            for row in transfers_of(run.document)
            if row.shown
        ],
        methods=[(run.index, row) for run in runs for row in methods_of(run.document, run.model)],
        not_ranked=NOT_RANKED,
        courses=[(run, course) for run in runs for course in courses_of(run.document)],
        chart_of=_chart,
        settings_of=_settings,
        tags=[(run, table) for run in runs for table in tag_tables_of(run.document)],
        most_values=MOST_VALUES,
        sets=[(one, at, json_block(one.data)) for one, at in report.sets],
        thumbnails=[(images.why, json_block(images.images)) for images in report.thumbnails],
        tasks=sorted(kinds),
        skipped=report.gathered.skipped,
    )


def _tracks(runs: Sequence[ReportedRun]) -> dict[str | None, list[tuple[int, Number]]]:
    """Track -> its numbers with the run of each, those of parts of tasks last; None for numbers without a track."""
    rows: dict[str | None, list[tuple[int, Number]]] = {track: [] for track in (*TRACK_ORDER, None)}
    for run in runs:
        for number in run.numbers:
            rows[number.track if number.track in TRACK_TITLES else None].append((run.index, number))
    return {track: sorted(pairs, key=lambda row: row[1].limited) for track, pairs in rows.items() if pairs}


def _chart(run: ReportedRun, course: Course) -> Markup:
    alternative = f"{course.title} on {course.task}, iteration by iteration"
    return as_image(lambda: draw_course(course, run.model), alternative)


def _settings(run: ReportedRun, course: Course) -> str:
    """The settings of TTM, and its notes."""
    if course.variant == "oracle":
        return ""
    record = run.document.ttm[course.task]
    settings: Mapping[str, object] = record.hyperparameters
    words = [
        f"{key} {'chosen from the margins' if settings[key] is None else settings[key]}"
        for key in _SETTINGS
        if key in settings
    ]
    return ". ".join([", ".join(words), *(record.notes if course.variant == "ttm" else ())])
