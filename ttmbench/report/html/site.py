"""A leaderboard as a website: static HTML with relative links, and the files beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ttmbench._util.files import safe_name, to_json, write_text
from ttmbench._util.text import Unreadable, read_json
from ttmbench._version import __version__
from ttmbench.errors import UsageError
from ttmbench.report.charts import Point, as_image, draw_methods, draw_scatter
from ttmbench.report.html.render import render
from ttmbench.report.leaderboard import Leaderboard, Published, as_document, to_csv
from ttmbench.report.load import ReportedRun
from ttmbench.report.ranking import (
    CHANCE,
    FAMILIES,
    NOT_RANKED,
    RANKED,
    REFERENCE,
    BoardLine,
    ComparedMethod,
    GroupValues,
    TaskFacts,
    best_of,
    chance_levels,
    compared_methods,
    in_order,
    interval_of,
    lines_of,
    references,
    with_ranks,
)
from ttmbench.report.table import transfer_cells
from ttmbench.results.labels import NO_MODEL, ORACLE, SLASH, TRACK_TITLES
from ttmbench.results.numbers import Number

_OWN = {"": "*.html", "tasks": "*.html", "models": "*.html", "data/runs": "*.json"}
"""Folders of a site, and the files that it writes there."""
_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")
_LEAST = 5  # points of a plot


def check_place(folder: Path, site: Path) -> None:
    """UsageError for a site inside the folder of results, around it, or in a folder with other files."""
    runs, target = folder.resolve(), site.resolve()
    if target.is_relative_to(runs) or runs.is_relative_to(target):
        raise UsageError(f"--site {site} must neither contain {folder}, the directory with the results, nor be in it")
    if target.exists() and not target.is_dir():
        raise UsageError(f"--site must be a directory, and {site} is a file")
    if target.is_dir() and any(target.iterdir()) and not _is_site(target):
        raise UsageError(f"--site {site} has other files; give a new directory, or one with an earlier site")


def _is_site(folder: Path) -> bool:
    try:
        content = read_json(folder / "data" / "leaderboard.json")
    except Unreadable:
        return False
    return (folder / ".nojekyll").is_file() and isinstance(content, dict) and content.get("kind") == "leaderboard"


def write_site(
    board: Leaderboard, folder: Path, site: Path, made: str, published: Published | None = None, docs: str = ""
) -> list[Path]:
    """Write a site of results in ``folder``, and remove obsolete pages of families, models and tasks.

    Pages link to ``docs``, the address of the documentation, if it is given. UsageError if a file cannot be written.
    """
    pages = _Site(board, folder, made, published or Published(), docs.rstrip("/"))
    written = []
    for name, text in pages.files(folder):
        write_text(site / name, text)
        written.append(site / name)
    for name, pattern in _OWN.items():
        for path in (site / name).glob(pattern):
            if path not in written:
                path.unlink()
    return written


class _Site:
    """What the pages of a site need."""

    def __init__(self, board: Leaderboard, folder: Path, made: str, published: Published, docs: str) -> None:
        self.board, self.made, self.published, self.docs = board, made, published, docs
        self._samples = GroupValues(folder, {run.name: run.document for run in board.runs})
        self.methods = compared_methods(folder, board.runs, published.numbers, self._samples)
        self.runs_of: dict[str, list[ReportedRun]] = {}  # model -> its runs, the newest first, numbered from 1
        for run in sorted(board.runs, key=lambda run: run.document.date, reverse=True):
            if run.numbers:
                same = self.runs_of.setdefault(run.model, [])
                same.append(replace(run, index=len(same) + 1))
        self.runs = {run.name: run for same in self.runs_of.values() for run in same}
        self.documents = {name: f"{safe_name(name.removesuffix('.json'))}.json" for name in self.runs}
        self.rows_of: dict[str, list[Number]] = {}  # by task
        for row in sorted(board.rows, key=lambda row: row.task.lower()):
            self.rows_of.setdefault(row.task, []).append(row)
        self.rows_of_model: dict[str, list[Number]] = {}  # those with runs first
        of_models = [row for row in board.rows if row.track != NO_MODEL]
        for row in sorted(of_models, key=lambda row: (row.model not in self.runs_of, row.model.lower(), row.published)):
            self.rows_of_model.setdefault(row.model, []).append(row)
        oldest = sorted(board.runs, key=lambda run: run.document.date)
        configs = {task: config for run in oldest for task, config in run.document.configs.items()}
        shapes = {task: data.shape for run in oldest for task, data in run.document.datasets.items()}
        self.facts = {}
        for task, rows in self.rows_of.items():
            own = task.partition(SLASH)[0]
            self.facts[task] = TaskFacts.of(rows, configs.get(own) or published.configs.get(task, {}), shapes.get(own))
        self.pages_of = {
            "tasks": _file_names(self.rows_of, "tasks"),
            "models": _file_names(self.rows_of_model, "models"),
        }
        families = [family for family in FAMILIES if any(facts.family == family for facts in self.facts.values())]
        self.families = {f"{family}.html" if at else "index.html": family for at, family in enumerate(families)}
        self.pages = {file: FAMILIES[family] for file, family in self.families.items()}
        self.pages |= {"methods.html": "Test-time methods"} if self.methods else {}
        self.pages |= {"models.html": "Models"}

    def files(self, folder: Path) -> Iterator[tuple[str, str]]:
        """Every file of the site, the start page last."""
        yield ".nojekyll", ""  # so that GitHub Pages serves files unchanged, also those that begin with an underscore
        yield "data/leaderboard.json", to_json(as_document(self.board))
        yield "data/leaderboard.csv", to_csv(self.board)
        yield from ((f"data/runs/{copy}", (folder / file).read_text("utf-8")) for file, copy in self.documents.items())
        yield from ((file, self._task(task)) for task, file in self.pages_of["tasks"].items())
        yield from ((file, self._model(model)) for model, file in self.pages_of["models"].items())
        yield "models.html", self._page("site_list.html", "models.html", title="Models", methods=())
        if self.methods:
            numbered = [(None, row) for row in self.methods]
            about = {"methods": self.methods, "numbered": numbered, "not_ranked": NOT_RANKED}
            plots = _method_plots(self.methods)
            page = self._page("site_list.html", "methods.html", "Test-time methods", plots=plots, **about)
            yield "methods.html", page
        yield from ((file, self._family(file, family)) for file, family in reversed(self.families.items()))

    def _page(self, template: str, current: str, title: str, **values: object) -> str:
        root = "../" if template == "site_model.html" or values.get("family") == "" else ""
        return render(template, site=self, current=current, title=title, root=root, version=__version__, **values)

    def _family(self, file: str, family: str) -> str:
        """A start page: the tasks of a family, and tasks by models for each track."""
        facts = {task: facts for task, facts in self.facts.items() if facts.family == family}
        tasks = sorted(facts, key=lambda task: -len({(row.model, row.file) for row in self.rows_of[task]}))
        tables = []
        for track in TRACK_TITLES:
            columns, rows, levels = {}, [], {}
            for task in tasks if track not in (ORACLE, NO_MODEL) else ():
                of_track = [row for row in self.rows_of[task] if row.track == track]
                metric = facts[task].first_metric(of_track)
                if of_track:
                    columns[task] = (task, metric)
                    rows += [row for row in of_track if row.metric == metric]
                    levels[task] = chance_levels([*of_track, *self._without_model(task)]).get(metric)
            counts = Counter(row.task for row in rows if interval_of(row) is not None)
            columns = dict(sorted(columns.items(), key=lambda column: -counts[column[0]]))
            if columns:
                tables.append(self._table(track, columns, rows, levels, next(iter(columns)), "task"))
        is_start = file == "index.html"
        return self._page(
            "site_board.html",
            file,
            f"Leaderboard: {FAMILIES[family]}",
            family=family,
            facts={task: facts[task] for task in tasks},
            tables=tables,
            methods=sorted({row.method for table in tables for row in table["rows"]}),
            sources={},
            transfers=[transfer_cells(row) for row in self.board.transfers if is_start and row.shown],
        )

    def _task(self, task: str) -> str:
        """A task: one table per track, with every metric."""
        facts, tables = self.facts[task], []
        rows_of = {track: [row for row in self.rows_of[task] if row.track == track] for track in TRACK_TITLES}
        only = not any(rows for track, rows in rows_of.items() if track != NO_MODEL)
        for track, rows in rows_of.items():
            if not rows or (track == NO_MODEL and not only):
                continue  # among the rows of the others
            first = None if track in (ORACLE, NO_MODEL) else facts.first_metric(rows)
            names = sorted(facts.columns(rows), key=lambda name: name != first)
            levels = chance_levels([*rows, *self._without_model(task)])
            known = {name: levels.get(name) for name in names}
            tables.append(self._table(track, {name: (task, name) for name in names}, rows, known, first, "metric"))
        reference = str(facts.config.get("reference") or "")
        files = dict.fromkeys(row.file for row in self.rows_of[task] if row.published)
        about: dict[str, object] = {"groups": facts.groups, "version": facts.version, "data": facts.data}
        stated = {"description": "description", "licence": "license", "label errors": "label_errors"}
        about |= {name: str(facts.config.get(key) or "") for name, key in stated.items()}
        return self._page(
            "site_board.html",
            next((file for file, family in self.families.items() if family == facts.family), ""),
            task,
            family="",
            facts={},
            about={**about, "reference": reference, "is_address": bool(_ADDRESS.fullmatch(reference))},
            tables=tables,
            methods=sorted({row.method for row in self.rows_of[task]}),
            sources={file: self.published.sources.get(file) for file in files},
        )

    def _table(
        self,
        track: str,
        columns: Mapping[str, tuple[str, str]],
        rows: Sequence[Number],
        levels: Mapping[str, float | None],
        first: str | None,
        column: str,
    ) -> dict[str, Any]:
        """The table of a track: lines with chance and humans among them, the column of its ranks, and the best."""
        known = {name: level for name, level in levels.items() if level is not None}
        lines = lines_of(rows, self.facts, column)
        if first is not None:
            lines = [*with_ranks(lines, self._samples), *references(columns, known, self.rows_of)]
        lines = in_order(lines, first)
        about = {"track": track, "columns": columns, "first": first, "chance": known, "rows": rows, "lines": lines}
        is_drawn = first is not None and (column == "metric" or track == "zero_shot")
        plot = self._size_plot(*columns[first], lines, first) if is_drawn and first is not None else ""
        return {**about, "best": best_of(lines), "plot": plot}

    def _size_plot(self, task: str, metric: str, lines: Sequence[BoardLine], column: str) -> Markup | str:
        """The score of the lines of a table against the number of parameters; empty for too few known sizes."""
        points, levels = [], dict[str, float]()
        for line in lines:
            row = line.cells.get(column)
            if row is None or row.value is None:
                continue
            if line.standing == REFERENCE and len(levels) < 2:
                levels.setdefault(line.model, 100 * row.value)
            size = self.size(row) if line.standing in RANKED else None
            if size:
                low, high = interval_of(row) or (row.value, row.value)
                points.append(Point(size, 100 * row.value, line.model, (100 * low, 100 * high), row.published))
        if len(points) < _LEAST or len({point.x for point in points}) < 2:
            return ""
        words = metric.replace("_", " ")
        alt = f"{words} of {len(points)} models on {task} against their number of parameters; the table has the numbers"
        return as_image(lambda: draw_scatter(points, "parameters", f"{task}: {words}, %", levels), alt)

    def _model(self, model: str) -> str:
        """A model: its numbers by track, and its runs."""
        rows = self.rows_of_model[model]
        tracks: dict[str, list[tuple[int | None, Number]]] = {}
        for row in rows:
            index = None if row.published or row.file not in self.runs else self.runs[row.file].index
            tracks.setdefault(row.track or "", []).append((index, row))
        order = [track for track in TRACK_TITLES if track in tracks]
        return self._page(
            "site_model.html",
            "models.html",
            model,
            size=self.size(rows[0]),
            tracks={track: sorted(tracks[track], key=lambda row: row[1].task.lower()) for track in order},
            tasks=sorted({row.task for row in rows}),
            metrics=sorted({row.metric for row in rows}),
            notes={file: note for (file, named), note in self.published.notes.items() if named == model},
            runs=self.runs_of.get(model, ()),
        )

    def _without_model(self, task: str) -> list[Number]:
        """The numbers of humans and of random guessing."""
        return [row for row in self.rows_of[task] if row.track == NO_MODEL]

    def link(self, root: str, kind: str, name: str) -> Markup:
        """A link to the page of one of the ``tasks`` or ``models``, or the name of one without a page."""
        page, shown = self.pages_of[kind].get(name), Markup("<bdi>{}</bdi>").format(name)
        return shown if page is None else Markup('<a href="{}">{}</a>').format(root + page, shown)

    def badge(self, row: Number) -> str:
        """Why a row does not rank; empty if it does."""
        standing = self.facts[row.task].standing(row)
        return "" if standing in RANKED else standing

    def leaders(self, task: str) -> list[Number | None]:
        """Of a task the first numbers of humans, and the best that rank: raw, matching and test-time."""
        facts, rows = self.facts[task], self.rows_of[task]
        humans = (row for row in self._without_model(task) if row.model != CHANCE and row.metric == facts.metrics[0])
        leaders = [next(humans, None)]
        for track in ("zero_shot", "matching", "test_time"):
            of_track = [row for row in rows if row.track == track and facts.standing(row) in RANKED]
            metric = facts.first_metric(of_track)
            ranked = [row for row in of_track if row.metric == metric]
            best = max if all(row.higher_is_better for row in ranked) else min
            leaders.append(best(ranked, key=lambda row: row.value or 0.0, default=None))
        return leaders

    def chance(self, task: str) -> float | None:
        """The chance level of the raw model's headline metric."""
        return chance_levels(self.rows_of[task]).get(self.facts[task].metrics[0])

    def size(self, row: Number) -> float | None:
        """How many parameters the model of a number has; None if that is unknown."""
        if row.published or row.file not in self.runs:
            return self.published.parameters.get(row.model)
        stated = self.runs[row.file].document.fingerprint.get("n_parameters")
        return float(stated) if isinstance(stated, int | float) and stated > 0 else None


def _file_names(names: Iterable[str], folder: str) -> dict[str, str]:
    """Name -> the file of its page; names that differ in case alone have files that differ by more."""
    files: dict[str, str] = {}
    for name in names:
        file = f"{folder}/{safe_name(name)}.html"
        is_taken = file.lower() in {other.lower() for other in files.values()}
        files[name] = f"{folder}/{safe_name(name)}-{len(files)}.html" if is_taken else file
    return files


def _method_plots(rows: Sequence[ComparedMethod]) -> dict[str, Markup]:
    """For each task and model the gain of its methods against their cost, where it is known of enough of them."""
    together: dict[str, list[tuple[str, float, float, tuple[float, float] | None]]] = {}
    for row in rows:
        if row.passes and row.match_gain is not None and row.method not in NOT_RANKED:
            points = together.setdefault(f"{row.task}, {row.model}", [])
            points.append((row.method, row.passes, row.match_gain, row.interval))
    alt = "gain of {} methods on {} against their cost; the table has the numbers"
    return {
        name: as_image(partial(draw_methods, points), alt.format(len(points), name))
        for name, points in together.items()
        if len(points) >= _LEAST
    }
