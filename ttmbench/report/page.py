"""The report as one HTML page: what was gathered, laid out for a template. Percent from here on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ttmbench.report.curves import Panel
from ttmbench.report.groups import GroupSet
from ttmbench.report.html.render import json_block, render
from ttmbench.report.leaderboard_formats import TRANSFER_HEAD, transfer_cells
from ttmbench.report.load import Gathered, ReportedRun
from ttmbench.report.summary_table import AnswerRow, answer_of
from ttmbench.report.svg import answer_chart, interval_bar, line_chart, tag_chart
from ttmbench.report.tagcharts import TagTable, tag_chart_of
from ttmbench.report.terminal import NOTHING
from ttmbench.report.thumbnails import Images, Thumbnails
from ttmbench.results.breakdown import MOST_VALUES
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import DISAGREES_MARK, SEEN_LEGEND, SEEN_MARK, TRACK_ORDER, TRACK_TITLES, UNRANKED_TITLE
from ttmbench.results.numbers import Number
from ttmbench.results.records import Iteration
from ttmbench.results.transfer_deltas import TITLE, transfers_of

STATUS = {
    "done": "finished",
    "failed": "a task failed",
    "running": "not finished: it is still running, or was killed",
    "interrupted": "interrupted; tasks that were finished are here",
}


@dataclass(frozen=True)
class Content:
    """What a page shows.

    Attributes:
        title: its heading.
        gathered: runs, and files that were left out.
        sets: groups with samples.
        images: of the groups, by `GroupSet.images_of`.
        images: how images were asked for.
        made: when, for the foot of the page.
        published: numbers from papers, to stand beside those of runs.
    """

    title: str
    gathered: Gathered
    sets: Sequence[GroupSet]
    thumbnails: Mapping[tuple[str, str], Thumbnails]
    images: Images
    made: str
    published: Sequence[Number] = ()


def to_html(content: Content) -> str:
    """Lays the page out.

    Args:
        content: what it shows.

    Returns:
        One file without any address to load from, unless links to images were asked for.
    """
    runs = content.gathered.runs
    keys = list(content.thumbnails)
    rows = answer_of(runs, content.published)
    return render(
        "report.html",
        styles=["page.css", "report.css"],
        scripts=["tables.js", "report.js"],
        images="data: file:" if content.images == "links" else "data:",
        title=content.title,
        made=content.made,
        size=", ".join(
            _counted(count, what)
            for count, what in (
                (len(runs), "run"),
                (len({run.model for run in runs}), "model"),
                (len({str(task) for run in runs for task in run.document["results"]}), "task"),
            )
        ),
        answer=[_answer(row) for row in rows],
        answer_charts=[
            answer_chart(task, [row for row in rows if row.task == task])
            for task in dict.fromkeys(row.task for row in rows)
        ],
        runs=[_run(run) for run in runs],
        tracks=_tracks(runs),
        transfers={"title": TITLE, "head": TRANSFER_HEAD, "rows": _transfers(runs)},
        models=sorted({run.model for run in runs}),
        tasks=sorted({one.task for run in runs for one in run.numbers}),
        metrics=list(dict.fromkeys(one.metric for run in runs for one in run.numbers)),
        panels=[_panel(run, panel) for run in runs for panel in run.panels],
        tags=[_tags(run, table) for run in runs for table in run.tag_tables],
        sets=[
            {
                "task": one.task,
                "run": one.run.index,
                "model": one.run.model,
                "count": len(one.data["groups"]),
                "thumbnails": keys.index(one.images_of),
                "json": json_block(one.data),
            }
            for one in content.sets
        ],
        thumbnails=[
            {"json": json_block(one.images), "task": one.task, "why": one.why} for one in content.thumbnails.values()
        ],
        licenses=_licenses(runs),
        skipped=content.gathered.skipped,
    )


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction as a person reads it.

    >>> percent(0.68333), percent(None)
    ('68.33', '-')
    """
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def _run(run: ReportedRun) -> dict[str, Any]:
    document = run.document
    date = document.get("date")
    seconds = document.get("total_evaluation_time_seconds")
    return {
        "index": run.index,
        "name": run.name,
        "model": run.model,
        "status": run.status,
        "status_words": STATUS.get(run.status, run.status),
        "good": run.status == "done" and not run.damaged,
        "date": NOTHING if date is None else datetime.fromtimestamp(float(date), UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "stamp": "" if date is None else float(date),
        "tasks": len(document["results"]),
        "errors": document.get("errors", []),
        "notes": {
            about: list(notes) for key in ("notes", "group_notes") for about, notes in (document.get(key) or {}).items()
        },
        "seconds": None if seconds is None else f"{float(seconds):.0f} s",
        "command": str(document.get("command") or ""),
        "packages": document.get("packages") or {},
        "facts": dict(_facts(document)),
        "damaged": run.damaged,
        "datasets": document.get("datasets") or {},
        "versions": document.get("versions") or {},
        "samples": document.get("n-samples") or {},
    }


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What else a reader of a run asks for, in a few words each."""
    config = document.get("config") or {}
    for key in ("seeds", "limit", "dtype", "device", "batch_size", "ttm_preset", "seed", "bootstrap_iters"):
        if config.get(key) is not None:
            yield key, _words(config[key])
    states = document.get("task_status") or {}
    for state, words in (("pending", "not reached"), ("failed", "failed")):
        if state in states.values():
            yield f"tasks {words}", ", ".join(str(task) for task, one in states.items() if one == state)
    kinds = [str(about["kind"]) for about in (document.get("artifacts") or {}).values()]
    if kinds:
        yield "files beside it", ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    hardware = document.get("hardware") or {}
    for key in ("platform", "accelerator"):
        if hardware.get(key):
            yield key, str(hardware[key])
    if document.get("git_hash"):
        yield "commit", str(document["git_hash"])
    declared = (document.get("model_info") or {}).get("fingerprint")
    if isinstance(declared, Mapping) and declared:
        plain = {key: value for key, value in declared.items() if not isinstance(value, Mapping)}
        yield "the model states", _words(plain)
        yield from ((str(key), _words(value)) for key, value in declared.items() if key not in plain)


def _words(value: Any, depth: int = 3) -> str:
    """A setting as a reader writes it; of a sha256 the beginning. What is nested deeper than anybody reads stays."""
    if isinstance(value, Mapping | list) and depth:
        items = value.items() if isinstance(value, Mapping) else (("", one) for one in value)
        return ", ".join(f"{key} {_in_brackets(one, depth - 1)}".strip() for key, one in items)
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    return f"{text[:12]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def _in_brackets(value: Any, depth: int) -> str:
    return f"({_words(value, depth)})" if isinstance(value, Mapping | list) and depth else _words(value, depth)


def _answer(row: AnswerRow) -> dict[str, Any]:
    """A row of the first table; a cell is the number, what has to be said of it, and its metric."""

    def cell(one: Number | None) -> dict[str, str]:
        if one is None:
            return {"text": NOTHING, "spread": "", "metric": ""}
        spread = "" if one.seed_std is None else f"± {percent(one.seed_std)}"
        mark = DISAGREES_MARK if one.disagrees else ""
        return {"text": f"{percent(one.value)}{mark}", "spread": spread, "metric": one.metric.replace("_", " ")}

    def chance(one: Number | None) -> str:
        return NOTHING if one is None or one.chance is None else percent(one.chance, 1)

    return {
        "task": row.task,
        "model": row.model,
        "source": row.source,
        "disagrees": row.disagrees,
        "limited": row.limited,
        "raw": cell(row.raw),
        "raw_chance": chance(row.raw),
        "matched": cell(row.matched),
        "ttm": cell(row.ttm),
        "gain": NOTHING if row.gain is None else f"{100 * row.gain:+.2f}",
        "chance": chance(row.matched or row.ttm),
        "groups": row.extents or NOTHING,
    }


def _tracks(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """A table for each track; a number never stands in two, and tracks never share one."""
    titles: dict[str | None, str] = {None: UNRANKED_TITLE} | {track: about for track, about in TRACK_TITLES.items()}
    found: dict[str | None, list[dict[str, Any]]] = {track: [] for track in (*TRACK_ORDER, None)}
    for run in runs:
        for one in run.numbers:
            found[one.track if one.track in titles else None].append(_row(run, one))
    return [
        {
            "id": track or "unranked",
            "title": titles[track],
            "adapted": any(row["seeds"] is not None for row in rows),
            "legend": SEEN_LEGEND if any(row["text"].endswith(SEEN_MARK) for row in rows) else None,
            "rows": sorted(rows, key=lambda row: bool(row["limited"])),
        }
        for track, rows in found.items()
        if rows
    ]


def _transfers(runs: Sequence[ReportedRun]) -> list[list[str]]:
    return transfer_cells(
        [replace(one, model=run.model) for run in runs for one in transfers_of(ResultsDocument.of(run.document))]
    )


def _row(run: ReportedRun, one: Number) -> dict[str, Any]:
    task = one.task if one.of_tasks is None else f"{one.task} (mean of {one.of_tasks} tasks)"
    ends = None if one.interval is None else [percent(end, 1) for end in one.interval]
    return {
        "run": run.index,
        "model": run.model,
        "task": one.task,
        "task_words": task,
        "metric": one.metric,
        "method": one.method,
        "value": one.value,
        "text": percent(one.value) + (SEEN_MARK if one.seen else ""),
        "stderr": one.stderr,
        "stderr_text": percent(one.stderr),
        "interval": ends,
        "low": "" if one.interval is None else one.interval[0],
        "chance": one.chance,
        "chance_text": percent(one.chance),
        "ties": one.ties,
        "ties_text": NOTHING if one.ties is None else f"{one.ties:g}",
        "seed_std": one.seed_std,
        "seed_text": percent(one.seed_std),
        "seeds": one.seeds,
        "groups": one.groups,
        "groups_text": one.extent.words,
        "limited": one.limited,
        "bar": interval_bar(one.value, one.interval, one.chance),
    }


def _panel(run: ReportedRun, panel: Panel) -> dict[str, Any]:
    settings = panel.settings
    shown = [key for key in ("lr", "epochs", "iterations", "schedule", "tau_start", "tau_end") if key in settings]
    metrics = list(panel.rows[0].metrics)
    return {
        "run": run.index,
        "model": run.model,
        "task": panel.task,
        "variant": panel.variant,
        "title": panel.title,
        "open": panel.variant == "ttm",
        "charts": [line_chart(chart) for chart in panel.charts],
        "seeds": [line.name for line in panel.charts[0].lines],
        "settings": ", ".join(f"{key} {_setting(settings[key])}" for key in shown),
        "notes": panel.notes,
        "metrics": metrics,
        "rows": [_iteration(row, metrics) for row in panel.rows],
    }


def _setting(value: Any) -> str:
    return "chosen from the margins" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _iteration(row: Iteration, metrics: Sequence[str]) -> list[tuple[Any, str]]:
    """Sort value and text of each cell."""
    cells: list[tuple[Any, str]] = [
        (row.seed, str(row.seed)),
        (row.iteration, str(row.iteration)),
        (row.threshold, f"{row.threshold:.4g}"),
        (row.selected, f"{row.selected} of {row.candidates}"),
        (row.tied, str(row.tied)),
        (row.pseudo_label_accuracy, percent(row.pseudo_label_accuracy, 1)),
        (row.loss[-1] if row.loss else None, f"{row.loss[-1]:.4g}" if row.loss else NOTHING),
    ]
    return cells + [(row.metrics.get(name), percent(row.metrics.get(name))) for name in metrics]


def _tags(run: ReportedRun, table: TagTable) -> dict[str, Any]:
    chart = tag_chart_of(table)
    return {
        "run": run.index,
        "model": run.model,
        "task": table.task,
        "tag": table.tag,
        "chart": None if chart is None else tag_chart(chart),
        "metric": "" if chart is None else chart.metric,
        "before": None if chart is None else chart.before,
        "after": None if chart is None else chart.after,
        "columns": [(metric, name) for (metric, _), name in zip(table.keys, table.names, strict=True)],
        "many": len(table.rows) > MOST_VALUES,  # folded away: a chart of a hundred bars is for those who look for it
        "rows": [
            (value, groups, [(number, percent(number, 1)) for number in numbers])
            for value, (groups, numbers) in table.rows.items()
        ],
    }


def _licenses(runs: Sequence[ReportedRun]) -> dict[str, tuple[str, str]]:
    """Task -> licence and reference, of every task with results."""
    found = {}
    for run in runs:
        for task in run.document["results"]:
            config = run.of_task("configs", task) or {}
            found[str(task)] = (str(config.get("license") or "not stated"), str(config.get("reference") or ""))
    return dict(sorted(found.items()))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def made_now() -> str:
    """The time for the foot of the page."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
