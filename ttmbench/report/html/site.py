"""The HTML of a leaderboard: one page, or a website of static files with relative links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ttmbench._util.files import safe_name, to_json, write_text
from ttmbench._util.text import Unreadable, read_json
from ttmbench._version import __version__
from ttmbench.errors import UsageError
from ttmbench.report.html.render import render
from ttmbench.report.html.site_rows import PUBLISHED, RUN, STORED, TaskFacts, best_of, chance_levels, lines_of
from ttmbench.report.leaderboard import (
    NOT_RUN,
    Leaderboard,
    Lines,
    MergedRun,
    as_document,
    columns_of,
    extent_of_line,
    legends,
    tables,
    to_csv,
)
from ttmbench.report.text_table import transfer_table
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import NO_MODEL, ORACLE, RAW, TRACK_ORDER, TRACK_TITLES, split_key
from ttmbench.results.models import checkpoint_of, command_of
from ttmbench.results.numbers import Number

_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")
_SHOWN_KEYS = ("weights_sha256", "revision", "pretrained", "model", "architecture", "dtype")
_MACHINE = ("machine", "cpu_capability", "accelerator")
_NEARLY = 0.005  # fractions; between machines a group or two may differ
_OWN = {"tasks": "*.html", "models": "*.html", "data/runs": "*.json"}
"""Folders of a site, and the files that it writes there."""


def to_html(board: Leaderboard, made: str) -> str:
    """One page that works offline, with one sortable table per track; ``made`` is its date."""
    return render(
        "leaderboard.html",
        styles=["page.css"],
        scripts=["tables.js"],
        tables=[
            {"track": track, "title": TRACK_TITLES[track], "lines": lines, "columns": _columns(lines)}
            for track, lines in tables(board.rows).items()
        ],
        tasks=sorted({row.task for row in board.rows}),
        metrics=sorted({row.metric for row in board.rows}),
        board=board,
        superseded=as_document(board)["superseded"],
        extent_of_line=extent_of_line,
        legends=legends(board.rows),
        transfers=transfer_table(board.transfers),
        made=made,
    )


def _columns(lines: Lines) -> dict[str, dict[str, object]]:
    """For each column one of its rows, and the best value of whole tasks if there are several."""
    columns: dict[str, dict[str, object]] = {}
    for name in columns_of(lines):
        rows = [line[name] for line in lines.values() if name in line]
        whole = [row.value or 0.0 for row in rows if not row.limited]
        best = (max if rows[0].higher_is_better else min)(whole) if len(whole) > 1 else None
        columns[name] = {"row": rows[0], "best": best}
    return columns


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


def write_site(board: Leaderboard, folder: Path, site: Path, made: str) -> list[Path]:
    """Write a site and remove obsolete pages of models and tasks.

    Args:
        board: the leaderboard.
        folder: of its results documents.
        site: of the site; see `check_place`.
        made: its date.

    Returns:
        The written files.

    Raises:
        UsageError: a file cannot be written.
    """
    written = []
    for name, text in _files(board, SitePages(board, made), folder):
        write_text(site / name, text)
        written.append(site / name)
    for name, pattern in _OWN.items():
        for path in (site / name).glob(pattern):
            if path not in written:
                path.unlink()
    return written


def _files(board: Leaderboard, pages: SitePages, folder: Path) -> Iterator[tuple[str, str]]:
    """Every file of a site, the start page last."""
    yield ".nojekyll", ""  # so that GitHub Pages serves the files unchanged, also those that begin with an underscore
    yield "data/leaderboard.json", to_json(as_document(board))
    yield "data/leaderboard.csv", to_csv(board)
    yield from ((f"data/runs/{copy}", (folder / file).read_text("utf-8")) for file, copy in pages.documents.items())
    yield from ((f"tasks/{name}", pages.of_task(task)) for task, name in pages.task_pages.items())
    yield from ((f"models/{name}", pages.of_model(model)) for model, name in pages.model_pages.items())
    yield "index.html", pages.overview()


class SitePages:
    """The pages of a site, and what several of them need.

    Attributes:
        facts: of each task.
        task_pages: task -> file.
        model_pages: model of a run -> file.
        documents: file of a document -> its copy.
        rows_of: task -> its rows.
        by_model: model -> its documents, the newest first.
        packages: file of a document -> the version of ttmbench that wrote it.
        numbers: file of a document -> its number on the page of its model.
    """

    def __init__(self, board: Leaderboard, made: str) -> None:
        self.board, self.made = board, made
        runs = sorted(board.runs, key=lambda run: run.document.date)
        configs = {task: config for run in runs for task, config in run.document.configs.items()}
        self.rows_of: dict[str, list[Number]] = {}
        for row in board.rows:
            self.rows_of.setdefault(row.task, []).append(row)
        self.by_model: dict[str, list[MergedRun]] = {}
        for run in sorted(board.runs, key=lambda run: run.document.date, reverse=True):
            if run.rows:
                self.by_model.setdefault(run.model, []).append(run)
        tasks = sorted(self.rows_of, key=str.lower)
        self.facts = {task: TaskFacts.of(self.rows_of[task], configs.get(task.partition("/")[0], {})) for task in tasks}
        self.task_pages = file_names(tasks, ".html")
        self.model_pages = file_names(sorted(self.by_model, key=str.lower), ".html")
        self.documents = file_names((run.file for run in board.runs if run.rows), ".json")
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
            published=PUBLISHED,
            ranks=RUN,
            stored=STORED,
            methods=sorted({row.method for row in numbers}),
            legends=legends(numbers),
            **values,
        )

    def overview(self) -> str:
        """The start page: tasks by models for each track, and lists of both."""
        shown = []
        for track in _tracks(self.board.rows):
            if track == ORACLE:
                continue  # an upper bound, on the pages of its tasks only
            rows = [row for row in self.board.rows if row.track == track and self.facts[row.task].headline(row)]
            lines = lines_of(rows, self.facts, "task")
            metrics = {
                task: " or ".join(sorted({line.cells[task].metric for line in lines if task in line.cells}))
                for task in self.facts
                if any(task in line.cells for line in lines)
            }
            if lines:
                table = {"track": track, "title": TRACK_TITLES[track], "metrics": metrics}
                shown.append({**table, "lines": lines, "best": best_of(lines)})
        return self._page(
            "site_index.html",
            "",
            self.board.rows,
            tables=shown,
            skipped={name: why for name, why in self.board.skipped.items() if not name.startswith(NOT_RUN)},
            runs=sum(bool(run.rows) for run in self.board.runs),
            transfers=transfer_table(self.board.transfers),
        )

    def of_task(self, task: str) -> str:
        """A task: one table per track, with every metric."""
        facts, shown = self.facts[task], []
        for track in _tracks(self.rows_of[task]):
            rows = [row for row in self.rows_of[task] if row.track == track]
            columns = facts.columns(rows)
            is_upper_bound = track in (ORACLE, NO_MODEL)
            lines = lines_of(rows, self.facts, "metric", None if is_upper_bound else columns[0])
            shown.append(
                {
                    "track": track,
                    "title": TRACK_TITLES[track],
                    "upper_bound": is_upper_bound,
                    "columns": columns,
                    "chance": chance_levels(rows),
                    "lines": lines,
                    "best": best_of(lines),
                }
            )
        address = str(facts.config.get("reference") or "")
        return self._page(
            "site_task.html",
            "../",
            self.rows_of[task],
            title=task,
            facts=facts,
            stated={key: str(facts.config.get(key) or "") for key in ("description", "license", "label_errors")},
            reference=address if _ADDRESS.fullmatch(address) else None,
            tables=shown,
            conflicts=[conflict for conflict in self.board.conflicts if conflict["task"] == task],
        )

    def of_model(self, model: str) -> str:
        """A model: its numbers, the run of each, and superseded numbers."""
        rows = sorted((row for row in self.board.rows if row.model == model and not row.published), key=_order)
        superseded = [pair for pair in self.board.superseded if pair[0].model == model]
        superseded.sort(key=lambda pair: pair[0].date or "", reverse=True)
        superseded.sort(key=lambda pair: _order(pair[0]))
        return self._page(
            "site_model.html",
            "../",
            rows,
            title=model,
            runs=self.by_model[model],
            shown_keys=_SHOWN_KEYS,
            command_of=command_of,
            shown=[(row, None) for row in rows],
            history=superseded,
            tasks=sorted({row.task for row in rows}),
            tracks=_tracks(rows),
        )

    def standing(self, row: Number) -> str:
        """Why a row ranks or does not; it ranks if its task has no page."""
        return self.facts[row.task].standing(row) if row.task in self.facts else RUN

    def leaders(self, task: str) -> list[Number | None]:
        """The best ranked headline numbers of a task: raw, matching and test-time."""
        facts, rows, leaders = self.facts[task], self.rows_of[task], []
        for track in ("zero_shot", "matching", "test_time"):
            ranked = [row for row in rows if row.track == track and facts.standing(row) == RUN and facts.headline(row)]
            best = max if all(row.higher_is_better for row in ranked) else min
            leaders.append(best(ranked, key=lambda row: row.value or 0.0, default=None))
        return leaders

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
        stem = safe_name(str(PurePosixPath(name).with_suffix("")) if ending == ".json" else name)
        file, number = f"{stem}{ending}", 1
        while file.lower() in taken:  # many file systems ignore case
            number += 1
            file = f"{stem}-{number}{ending}"
        taken.add(file.lower())
        files[name] = file
    return files
