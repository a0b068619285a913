"""The HTML page of ``ttmbench report``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from ttmbench.errors import DataError
from ttmbench.report import charts
from ttmbench.report.compared_methods import method_rows
from ttmbench.report.groups import GroupSet, groups_from_scores, read_groups
from ttmbench.report.html.render import json_block, render
from ttmbench.report.load import Gathered, ReportedRun, gather
from ttmbench.report.summary_table import AnswerRow, answer_of
from ttmbench.report.text_table import transfer_table
from ttmbench.report.thumbnails import ThumbnailOptions, Thumbnails, thumbnails_for
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import DISAGREES_MARK, SEEN_LEGEND, SEEN_MARK, TRACK_ORDER, TRACK_TITLES, UNRANKED_TITLE
from ttmbench.results.models import command_of
from ttmbench.results.numbers import Number
from ttmbench.results.tag_means import MOST_VALUES
from ttmbench.results.transfer_deltas import transfers_of

STATUS = {
    "done": "finished",
    "failed": "a task failed",
    "running": "not finished: it is still running, or was killed",
    "interrupted": "interrupted; tasks that were finished are here",
}
NOUNS = {"classification": "images", "retrieval": "images"}
"""What the rows of a task are that has no groups; its samples of captions are queries."""
_SETTINGS = ("lr", "epochs", "iterations", "schedule", "tau_start", "tau_end")


@dataclass(frozen=True)
class Report:
    """The content of a page.

    Attributes:
        gathered: runs, and skipped files.
        rows: of the first table.
        sets: groups with samples.
        thumbnails: of the groups, by `GroupSet.images_of`.
    """

    gathered: Gathered
    rows: Sequence[AnswerRow]
    sets: Sequence[GroupSet]
    thumbnails: Mapping[tuple[str, str], Thumbnails]


def read_report(given: Path, options: ThumbnailOptions, published: Sequence[Number] = ()) -> Report:
    """Read the content of a page.

    Args:
        given: a folder, or one results document.
        options: how images are shown.
        published: numbers from papers, to compare with those of runs.

    Raises:
        UsageError: there are no results.
    """
    gathered = gather(given)
    skipped = dict(gathered.skipped)
    sets: list[GroupSet] = []
    for run in gathered.runs:
        samples, scores = run.files.get("samples", {}), run.files.get("scores", {})
        for task, path in {**scores, **samples}.items():
            try:
                if task in samples:
                    sets.append(read_groups(run, task, path))
                else:
                    sets.append(groups_from_scores(run, task, path, options.data_dir, options.include_path))
            except DataError as error:
                name = (Path(run.name).parent / path.name).as_posix()
                skipped[name] = str(error).removeprefix(f"{path}: ")
    by_data: dict[tuple[str, str], list[GroupSet]] = {}
    for groups in sets:
        by_data.setdefault(groups.images_of, []).append(groups)
    thumbnails = {key: thumbnails_for(same, options) for key, same in by_data.items()}
    return Report(Gathered(gathered.runs, skipped), answer_of(gathered.runs, published), sets, thumbnails)


def to_html(report: Report, title: str = "Report", links: bool = False) -> str:
    """The page, which loads nothing except images if they are ``links`` to files."""
    runs, rows = report.gathered.runs, report.rows
    numbers = [number for run in runs for number in run.numbers]
    transfers = [replace(transfer, model=run.model) for run in runs for transfer in transfers_of(run.document)]
    counts = {"run": len(runs), "model": len({run.model for run in runs})}
    counts["task"] = len({task for run in runs for task in run.document.results})
    keys = list(report.thumbnails)
    return render(
        "report.html",
        styles=["page.css", "report.css"],
        scripts=["tables.js", "report.js"],
        images="data: file:" if links else "data:",
        title=title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        size=", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()),
        answer=rows,
        kinds={task: str(config.get("kind")) for run in runs for task, config in run.document.configs.items()},
        nouns=NOUNS,
        answer_bar=_answer_bar,
        disagrees_mark=DISAGREES_MARK,
        runs=runs,
        status_words=STATUS,
        date_of=lambda document: datetime.fromtimestamp(document.date, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        facts_of=_facts,
        command_of=command_of,
        tracks=_tracks(runs),
        titles=TRACK_TITLES,
        unranked_title=UNRANKED_TITLE,
        seen_mark=SEEN_MARK,
        seen_legend=SEEN_LEGEND,
        bar=bar,
        transfers=transfer_table(transfers),
        methods=[(run, row) for run in runs for row in method_rows(run.document)],
        models=sorted({run.model for run in runs}),
        tasks=sorted({number.task for number in numbers}),
        metrics=list(dict.fromkeys(number.metric for number in numbers)),
        courses=[(run, course) for run in runs for course in charts.courses_of(run.document)],
        chart_of=_chart,
        settings_of=_settings,
        tags=[(run, table) for run in runs for table in charts.tag_tables_of(run.document)],
        tag_bar=_tag_bar,
        most_values=MOST_VALUES,
        sets=[
            {
                "of": groups,
                "thumbnails": keys.index(groups.images_of),
                "json": json_block(groups.data),
                "noun": _noun(groups),
            }
            for groups in report.sets
        ],
        thumbnails=[{"json": json_block(images.images), "why": images.why} for images in report.thumbnails.values()],
        configs=dict(sorted((task, run.document.configs[task]) for run in runs for task in run.document.results)),
        skipped=report.gathered.skipped,
    )


def bar(
    marks: Mapping[str, float | None],
    chances: Iterable[float | None],
    interval: tuple[float, float] | None = None,
    joined: tuple[float | None, float | None] = (None, None),
) -> Markup:
    """Values on a line from 0 to 100 %, for a cell of a table.

    Args:
        marks: ``full``, ``open`` or ``diamond`` -> a value; the last one is on top.
        chances: chance levels.
        interval: of the value.
        joined: two values with a line between them, coloured by whether the second is better.
    """

    def x(value: float) -> str:
        return f"{2 + 120 * value:.1f}"

    parts = ['<path class="g" d="M2 9H122"/>']
    parts += [f'<path class="l" d="M{x(chance)} 1V17"/>' for chance in dict.fromkeys(chances) if chance is not None]
    if interval is not None:
        parts.append(f'<path class="b" d="M{x(interval[0])} 9H{x(interval[1])}"/>')
    before, after = joined
    if before is not None and after is not None:
        parts.append(f'<path class="{"u" if after >= before else "d"}" d="M{x(before)} 9H{x(after)}"/>')
    for kind, value in marks.items():
        if value is not None and kind == "diamond":
            parts.append(f'<path class="diamond" d="M{x(value)} 4l5 5-5 5-5-5Z"/>')
        elif value is not None:
            parts.append(f'<circle class="{kind}" cx="{x(value)}" cy="9" r="{4.5 if kind == "open" else 3.5}"/>')
    return Markup(f'<svg class="bar" viewBox="-4 0 132 18" aria-hidden="true">{"".join(parts)}</svg>')


def _answer_bar(row: AnswerRow) -> Markup:
    raw, matched, ttm = (None if number is None else number.value for number in (row.raw, row.matched, row.ttm))
    marks = {"diamond": matched, "full": ttm, "open": raw}
    joined = (None, None) if row.gain is None else (matched, ttm)
    return bar(marks, [number.chance for number in row.numbers], joined=joined)


def _tag_bar(table: charts.TagTable, numbers: Sequence[float | None]) -> Markup:
    drawn = [numbers[column] for column in table.drawn] + [None, None]
    return bar({"open": drawn[0], "full": drawn[1]}, [table.chance], joined=(drawn[0], drawn[1]))


def _facts(document: ResultsDocument) -> Iterator[tuple[str, str]]:
    """Further details of a run."""
    for key in ("seeds", "limit", "dtype", "device", "batch_size", "ttm_preset", "seed", "bootstrap_iters"):
        if document.config.get(key) is not None:
            yield key, _words(document.config[key])
    for state, words in (("pending", "not reached"), ("failed", "failed")):
        tasks = [task for task, status in document.task_status.items() if status == state]
        if tasks:
            yield f"tasks {words}", ", ".join(tasks)
    kinds = [artifact.kind for artifact in document.artifacts.values()]
    if kinds:
        yield "files beside it", ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    for key in ("platform", "accelerator"):
        if document.hardware.get(key):
            yield key, str(document.hardware[key])
    if document.git_hash:
        yield "commit", document.git_hash
    plain = {key: value for key, value in document.fingerprint.items() if not isinstance(value, Mapping)}
    if document.fingerprint:
        yield "the model states", _words(plain)
    yield from ((str(key), _words(value)) for key, value in document.fingerprint.items() if key not in plain)


def _words(value: object, depth: int = 3) -> str:
    """A setting in words, to a limited depth; a sha256 is shortened."""

    def inside(part: object) -> str:
        words = _words(part, depth - 1)
        return f"({words})" if isinstance(part, Mapping | list) and depth > 1 else words

    if isinstance(value, Mapping) and depth:
        return ", ".join(f"{key} {inside(part)}".strip() for key, part in value.items())
    if isinstance(value, list) and depth:
        return ", ".join(map(inside, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    return f"{text[:12]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def _tracks(runs: Sequence[ReportedRun]) -> dict[str | None, list[tuple[ReportedRun, Number]]]:
    """Track -> its numbers, those of parts of tasks last; None for numbers without a track."""
    rows: dict[str | None, list[tuple[ReportedRun, Number]]] = {track: [] for track in (*TRACK_ORDER, None)}
    for run in runs:
        for number in run.numbers:
            rows[number.track if number.track in TRACK_TITLES else None].append((run, number))
    return {track: sorted(pairs, key=lambda row: row[1].limited) for track, pairs in rows.items() if pairs}


def _noun(groups: GroupSet) -> str:
    kind = str(groups.run.document.configs[groups.task].get("kind", "groups"))
    return "queries" if kind == "retrieval" else NOUNS.get(kind, "groups")


def _chart(run: ReportedRun, course: charts.Course) -> Markup:
    alternative = f"{course.title} on {course.task}, iteration by iteration"
    return charts.as_image(lambda: charts.draw_course(course, run.model), alternative)


def _settings(course: charts.Course) -> str:
    def words(value: object) -> str:
        return "chosen from the margins" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{key} {words(course.settings[key])}" for key in _SETTINGS if key in course.settings)
