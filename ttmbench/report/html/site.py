"""The pages of a leaderboard's website: static HTML with relative links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ttmbench._util.files import plain_name
from ttmbench._version import __version__
from ttmbench.report.compared_methods import NOT_RANKED, ComparedMethod
from ttmbench.report.group_values import GroupValues
from ttmbench.report.html.render import render
from ttmbench.report.html.site_plots import method_plots, short, size_plot
from ttmbench.report.html.site_rows import (
    CHANCE,
    FAMILIES,
    PUBLISHED,
    RANKED,
    REFERENCE,
    SIZES,
    STORED,
    TaskFacts,
    best_of,
    chance_levels,
    in_order,
    interval_of,
    lines_of,
    references,
    size_range,
)
from ttmbench.report.leaderboard import Leaderboard, MergedRun, legends
from ttmbench.report.published import Published
from ttmbench.report.text_table import transfer_table
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import NO_MODEL, ORACLE, RAW, SLASH, TRACK_ORDER, TRACK_TITLES, split_key
from ttmbench.results.models import checkpoint_of, command_of
from ttmbench.results.numbers import Number

_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")
_SHOWN_KEYS = ("weights_sha256", "revision", "pretrained", "model", "architecture", "dtype")
_MACHINE = ("machine", "cpu_capability", "accelerator")
_NEARLY = 0.005  # fractions; between machines a group or two may differ


class SitePages:
    """The pages of a site, and what several of them need.

    Attributes:
        facts: of each task.
        tabs: family of tasks -> file, the start page first.
        task_pages: task -> file.
        model_pages: model -> file, those with runs first.
        documents: file of a document -> its copy.
        rows_of: task -> its rows.
        by_model: model -> its documents, the newest first.
        rows_of_model: model -> its rows, those of runs first.
        packages: file of a document -> the version of ttmbench that wrote it.
        numbers: file of a document -> its number on the page of its model.
        published: what is known about published numbers.
        docs: address of the documentation.
        compared: gains and costs of test-time methods.
    """

    def __init__(
        self,
        board: Leaderboard,
        made: str,
        published: Published | None = None,
        samples: GroupValues | None = None,
        docs: str = "",
        compared: Sequence[ComparedMethod] = (),
    ) -> None:
        published = published or Published()
        self.compared = compared
        self.board, self.made, self.published, self.docs = board, made, published, docs.rstrip("/")
        self._samples = samples
        runs = sorted(board.runs, key=lambda run: run.document.date)
        configs = {task: config for run in runs for task, config in run.document.configs.items()}
        shapes = {task: data.shape for run in runs for task, data in run.document.datasets.items()}
        self.rows_of: dict[str, list[Number]] = {}
        for row in board.rows:
            self.rows_of.setdefault(row.task, []).append(row)
        self.by_model: dict[str, list[MergedRun]] = {}
        for run in sorted(board.runs, key=lambda run: run.document.date, reverse=True):
            if run.rows:
                self.by_model.setdefault(run.model, []).append(run)
        self.rows_of_model: dict[str, list[Number]] = {model: [] for model in sorted(self.by_model, key=str.lower)}
        for row in sorted(board.rows, key=lambda row: (row.published, row.model.lower(), *_order(row))):
            if row.track != NO_MODEL:
                self.rows_of_model.setdefault(row.model, []).append(row)
        tasks = sorted(self.rows_of, key=str.lower)
        self.facts = {
            task: TaskFacts.of(
                self.rows_of[task],
                configs.get(task.partition(SLASH)[0]) or published.configs.get(task, {}),
                shapes.get(task.partition(SLASH)[0]),
            )
            for task in tasks
        }
        families = [family for family in FAMILIES if any(facts.family == family for facts in self.facts.values())]
        self.tabs = {family: f"{family}.html" if at else "index.html" for at, family in enumerate(families)}
        self.task_pages = file_names(tasks, ".html")
        self.model_pages = file_names(self.rows_of_model, ".html")
        self.documents = file_names((run.file for run in board.runs if run.rows), ".json")
        self._fingerprints = {run.file: run.document.fingerprint for run in board.runs}
        self.packages = {run.file: run.document.packages.get("ttmbench", "") for run in board.runs}
        self.numbers = {run.file: at for same in self.by_model.values() for at, run in enumerate(same, start=1)}

    def _page(self, template: str, root: str, numbers: Sequence[Number], **values: object) -> str:
        return render(
            template,
            styles=("page.css", "site.css"),
            scripts=("tables.js",),
            images="data:",
            site=self,
            made=self.made,
            root=root,
            version=__version__,
            families=FAMILIES,
            published=PUBLISHED,
            ranked=RANKED,
            reference=REFERENCE,
            stored=STORED,
            interval_of=interval_of,
            short=short,
            size_range=size_range,
            sizes=[*SIZES, size_range(None)],
            methods=sorted({row.method for row in numbers}),
            legends=legends(numbers),
            **values,
        )

    def of_family(self, family: str) -> str:
        """A start page: the tasks of a family, and tasks by models for each track."""
        tasks = [task for task, facts in self.facts.items() if facts.family == family]
        tasks.sort(key=lambda task: -len({(row.model, row.file) for row in self.rows_of[task]}))
        everything = [row for task in tasks for row in self.rows_of[task]]
        shown, plot, plotted = [], None, ""
        for track in _tracks(everything):
            if track in (ORACLE, NO_MODEL):
                continue  # an upper bound, and humans, who are in every table
            columns, rows, levels = {}, [], {}
            for task in tasks:
                of_track = [row for row in self.rows_of[task] if row.track == track]
                if of_track:
                    metric = self.facts[task].first_metric(of_track)
                    columns[task] = (task, metric)
                    rows += [row for row in of_track if row.metric == metric]
                    levels[task] = chance_levels([*of_track, *self._without_model(task)]).get(metric)
            counts = Counter(row.task for row in rows if interval_of(row) is not None)
            columns = dict(sorted(columns.items(), key=lambda column: -counts[column[0]]))
            first = next(iter(columns))
            table = self._table(track, columns, rows, levels, first, "task")
            shown.append(table)
            if track == "zero_shot":
                plot = size_plot(first, columns[first][1], table["lines"], first, self.size)
                plotted = first
        leaders = {task: self.leaders(task) for task in tasks}
        return self._page(
            "site_index.html",
            "",
            everything,
            leaders=leaders,
            shown=[at for at in range(4) if any(best[at] is not None for best in leaders.values())],
            family=family,
            tasks=tasks,
            tables=shown,
            plot=plot,
            plotted=plotted,
            skipped={} if family != next(iter(self.tabs)) else self.board.skipped,
            runs=sum(bool(run.rows) for run in self.board.runs),
            transfers=transfer_table(self.board.transfers if family == next(iter(self.tabs)) else ()),
        )

    def _without_model(self, task: str) -> list[Number]:
        """The numbers of humans and of random guessing."""
        return [row for row in self.rows_of[task] if row.track == NO_MODEL]

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
        lines = lines_of(rows, self.facts, column, first, self._samples)
        if first is not None:
            lines = in_order([*lines, *references(columns, known, self.rows_of)], first)
        return {
            "track": track,
            "title": TRACK_TITLES[track],
            "columns": columns,
            "first": first,
            "chance": known,
            "lines": lines,
            "best": best_of(lines),
            "runs": any(line.any.file in self.numbers for line in lines),
        }

    def of_task(self, task: str) -> str:
        """A task: one table per track, with every metric."""
        facts, shown = self.facts[task], []
        for track in _tracks(self.rows_of[task]):
            rows = [row for row in self.rows_of[task] if row.track == track]
            if track == NO_MODEL and len(_tracks(self.rows_of[task])) > 1:
                continue  # among the rows of the others
            first = None if track in (ORACLE, NO_MODEL) else facts.first_metric(rows)
            names = sorted(facts.columns(rows), key=lambda name: name != first)
            levels = chance_levels([*rows, *self._without_model(task)])
            columns = {name: (task, name) for name in names}
            table = self._table(track, columns, rows, dict.fromkeys(names) | levels, first, "metric")
            plot = None if first is None else size_plot(task, first, table["lines"], first, self.size)
            shown.append({**table, "plot": plot})
        address = str(facts.config.get("reference") or "")
        files = list(dict.fromkeys(row.file for row in self.rows_of[task] if row.published))
        models = {(row.file, row.model) for row in self.rows_of[task]}
        return self._page(
            "site_task.html",
            "../",
            self.rows_of[task],
            title=task,
            facts=facts,
            stated={key: str(facts.config.get(key) or "") for key in ("description", "license", "label_errors")},
            address=address if _ADDRESS.fullmatch(address) else None,
            tables=shown,
            sources={file: self.published.sources.get(file) for file in files},
            notes={key: note for key, note in self.published.notes.items() if key in models},
            conflicts=[conflict for conflict in self.board.conflicts if conflict["task"] == task],
        )

    def methods(self) -> str:
        """Test-time methods: their gains and costs."""
        return self._page(
            "site_methods.html", "", [], rows=self.compared, plots=method_plots(self.compared), not_ranked=NOT_RANKED
        )

    def models(self) -> str:
        """The models, those with runs first."""
        return self._page("site_models.html", "", [], title="Models")

    def of_model(self, model: str) -> str:
        """A model: its numbers, the run or source of each, and superseded numbers."""
        rows = self.rows_of_model[model]
        superseded = [pair for pair in self.board.superseded if pair[0].model == model]
        superseded.sort(key=lambda pair: pair[0].date or "", reverse=True)
        superseded.sort(key=lambda pair: _order(pair[0]))
        return self._page(
            "site_model.html",
            "../",
            rows,
            title=model,
            runs=self.by_model.get(model, []),
            shown_keys=_SHOWN_KEYS,
            command_of=command_of,
            shown=[(row, None) for row in rows if not row.published],
            papers=[(row, None) for row in rows if row.published],
            notes={file: note for (file, named), note in self.published.notes.items() if named == model},
            history=superseded,
            tasks=sorted({row.task for row in rows}),
            tracks=_tracks(rows),
        )

    def standing(self, row: Number) -> str:
        """Why a row ranks or does not; it ranks if its task has no page."""
        return self.facts[row.task].standing(row) if row.task in self.facts else RANKED[0]

    def leaders(self, task: str) -> list[Number | None]:
        """Of a task the first numbers of humans, and the best that rank: raw, matching and test-time."""
        facts, rows = self.facts[task], self.rows_of[task]
        leaders = [
            next(
                (
                    row
                    for row in rows
                    if row.track == NO_MODEL and row.model != CHANCE and row.metric == facts.metrics[0]
                ),
                None,
            )
        ]
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
        if row.published:
            return self.published.parameters.get(row.model)
        stated = self._fingerprints.get(row.file, {}).get("n_parameters")
        return float(stated) if isinstance(stated, int | float) and stated > 0 else None

    def seconds(self, row: Number) -> float | None:
        """How long scoring took, with one seed of the method."""
        return self.board.cost(row)["seconds"]

    def docs_of(self, root: str, page: str) -> str:
        """The address of a page of the documentation, from a page of the site in a folder or not."""
        return f"{self.docs if ':' in self.docs else root + self.docs}/{page}"

    def machine(self, run: MergedRun) -> str:
        """The hardware of a run."""
        return ", ".join(str(part) for key in _MACHINE if (part := run.document.hardware.get(key)) is not None)

    def reproduced(self, run: MergedRun) -> list[int]:
        """The numbers of the runs that a run reproduces."""
        same_model = self.by_model[run.model]
        return [self.numbers[other.file] for other in same_model if _reproduces(run.document, other.document)]


def _reproduces(later: ResultsDocument, earlier: ResultsDocument) -> bool:
    """Whether a run repeats an earlier one of the same checkpoint: the raw numbers of tasks of both nearly agree."""
    if later.date <= earlier.date or checkpoint_of(later.fingerprint) != checkpoint_of(earlier.fingerprint):
        return False
    pairs = [
        (value, earlier.results[task].get(key))
        for task, numbers in later.results.items()
        if task in earlier.results and later.task_hashes[task] == earlier.task_hashes[task]
        for key, value in numbers.items()
        if split_key(key)[1] == RAW
    ]
    return bool(pairs) and all(
        new == old or (new is not None and old is not None and abs(new - old) <= _NEARLY) for new, old in pairs
    )


def _order(row: Number) -> tuple[object, ...]:
    track = TRACK_ORDER.index(row.track) if row.track in TRACK_ORDER else len(TRACK_ORDER)
    return (row.task.lower(), track, row.method, row.metric, row.limited)


def _tracks(rows: Sequence[Number]) -> list[str]:
    return [track for track in TRACK_TITLES if any(row.track == track for row in rows)]


def file_names(names: Iterable[str], ending: str) -> dict[str, str]:
    """Name -> file name, distinct where only case or unusual characters differ; a document's name has folders.

    >>> file_names(["a/b", "A/B", "a__b"], ".html")
    {'a/b': 'a__b.html', 'A/B': 'A__B-2.html', 'a__b': 'a__b-3.html'}
    """
    files: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        stem = plain_name(str(PurePosixPath(name).with_suffix("")) if ending == ".json" else name)
        file, number = f"{stem}{ending}", 1
        while file.lower() in taken:  # many file systems ignore case
            number += 1
            file = f"{stem}-{number}{ending}"
        taken.add(file.lower())
        files[name] = file
    return files
