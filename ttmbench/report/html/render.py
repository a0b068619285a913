"""HTML pages that work offline: styles and scripts are in the page, and nothing else may run or load.

With the page of ``ttmbench report`` (`read_report`, `to_html`), and a leaderboard as a website with relative links
(`write_site`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from ttmbench._util.file_io import safe_name, to_json, write_text
from ttmbench._version import __version__
from ttmbench.errors import DataError, UsageError
from ttmbench.report import board as leaderboard
from ttmbench.report import charts
from ttmbench.report.load import HEADLINE, GroupSet, ThumbnailOptions, Thumbnails, gather, read_groups, thumbnails_for
from ttmbench.report.terminal import (
    NOTHING,
    TRANSFER_HEADS,
    TRANSFER_TITLE,
    marks,
    percent,
    spread_text,
    transfer_cells,
)
from ttmbench.results.document import MethodRecord, ResultsDocument
from ttmbench.results.models import command_of
from ttmbench.results.numbers import (
    NO_MODEL,
    ORACLE,
    SLASH,
    TRACK_TITLES,
    UNRANKED_TITLE,
    Number,
    same_rows,
)
from ttmbench.results.reader import ResultsFile
from ttmbench.results.summary import MOST_VALUES

# Not allowed in HTML, or not encodable.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def render(template: str, **values: object) -> str:
    """Fill a template of this folder; values are escaped.

    The page's Content-Security-Policy allows exactly our CSS and JavaScript, so nothing from data can run or load; with
    ``links``, images are also read from files.
    """
    css, js = (Markup((files("ttmbench.report.html") / name).read_text("utf-8")) for name in ("page.css", "page.js"))
    images = "data: file:" if values.get("links") else "data:"
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; img-src {images}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template).render(css=css, js=js, policy=policy, **values)
    return _UNPRINTABLE.sub("\ufffd", page)


def number_cell(
    value: float | None,
    form: str = "%g",
    scale: float = 1.0,
    extra: str = "",
    ends: Sequence[float] | None = None,
) -> Markup:
    """A cell with a number to sort by, in a format, and the ends of its interval for a plot.

    A template macro would be several times slower.

    >>> print(number_cell(None), end=""), print(number_cell(0.125, "%+.1f", 100), end="")
    <td class="number" data-value="">-</td>
    <td class="number" data-value="0.125">+12.5</td>
    (None, None)
    """
    text = NOTHING if value is None else form % (scale * value + 0.0)
    text = (text if text.strip("+-0.") else text.lstrip("+-") or text) + extra  # what rounds to zero has no sign
    about = f' data-ends="{ends[0]} {ends[1]}"' if ends else ""
    return Markup(f'<td class="number" data-value="{"" if value is None else value}"{about}>{escape(text)}</td>\n')


def percent_cell(value: float | None, digits: int = 2) -> Markup:
    """A cell with a fraction as percent."""
    return number_cell(value, f"%.{digits}f", 100)


def result_cell(
    row: Number | None,
    best: float | None = None,
    chance: float | None = None,
    rank: int | None = None,
    ends: tuple[float, float] | None = None,
    note: str = "",
) -> Markup:
    """A cell with a number to sort by; bold if it is the best, faint if it is not better than chance.

    With ``chance``, the level that the head of the column states, it has the number's own where that differs; ``ends``
    are those of an interval to show.
    """
    if row is None or row.value is None:
        return Markup(f'<td class="number" data-value>{NOTHING}</td>\n')
    interval = ends or row.interval
    words = NOTHING if interval is None else f"{percent(interval[0], 1)}–{percent(interval[1], 1)}"
    about = f"{row.metric.replace('_', ' ')}, {row.column}, 95 % {words}; {row.extent.words} groups; {row.origin.file}"
    about += f", as {row.origin.published_as}" if row.origin.published_as else ""
    about += f"; but {row.origin.disagrees}" if row.origin.disagrees else ""
    kind = "number best" if row.value == best else "number" if leaderboard.beats_chance(row) else "number below"
    text = escape(percent(row.value) + marks(row))
    spread = spread_text(row.seed_std, len(row.seeds))
    text += Markup(f'<small class="spread">{spread}</small>' if spread else "")
    text += Markup(f"<small>{words}</small>") if ends else ""
    if chance is not None and row.chance not in (None, chance):
        text += Markup(f"<small>chance {percent(row.chance)}</small>")
    text += Markup(f"<small>{escape(note)}</small>" if note else "")
    ranked = "" if rank is None else f' data-rank="{rank}" data-date="{(row.origin.date or "")[:10]}"'
    ranked += "" if not ends or rank is None else f' data-ends="{ends[0]} {ends[1]}"'
    return Markup(f'<td class="{kind}" data-value="{row.value}"{ranked} title="{escape(about)}">{text}</td>\n')


def interval_cell(ends: tuple[float, float] | None, form: str = "%.1f") -> Markup:
    """A cell with an interval in percent, sorted by its lower end."""
    return number_cell(ends and ends[0], form, 100, f"–{form % (100 * ends[1])}" if ends else "")


def facts_of(document: ResultsDocument) -> Iterator[tuple[str, str]]:
    """The details of a run: a name and words each."""
    date = datetime.fromtimestamp(document.date, UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "date", f"{date}, took {document.total_evaluation_time_seconds:.0f} s"
    for task, data in document.datasets.items():
        licence = document.configs[task].get("license") or "not stated"
        words = f"version {document.versions[task]}, {document.extent(task).words} groups"
        yield task, f"{words}, data {(data.fingerprint or '')[:12]}, licence {licence}"
    records = [(task, record) for task, methods in document.methods.items() for record in methods.values()]
    seeds = sorted({seed for _, record in records for seed in record.seeds})
    yield "seeds", _words(seeds or document.config.get("seeds") or "")
    audited = dict.fromkeys(task for task, record in records if record.audit_labels)
    yield "label audit", f"passed on {', '.join(audited)}" if audited else ""
    for state, words in (("pending", "not reached"), ("failed", "failed")):
        yield f"tasks {words}", ", ".join(task for task, status in document.task_status.items() if status == state)
    hardware = (document.hardware.get(key) for key in ("platform", "machine", "cpu_capability", "accelerator"))
    yield "machine", ", ".join(str(part) for part in hardware if part)
    yield "packages", ", ".join(f"{name} {version}" for name, version in document.packages.items())
    yield "commit", document.git_hash or ""
    yield "run key", document.run_key or ""
    plain = {key: value for key, value in document.model_info.fingerprint.items() if not isinstance(value, Mapping)}
    yield "the model states", _words(plain)
    yield from ((str(key), _words(value)) for key, value in document.model_info.fingerprint.items() if key not in plain)


def _words(value: object, depth: int = 3) -> str:
    """A setting in words, to a limited depth."""

    def inside(part: object) -> str:
        words = _words(part, depth - 1)
        return f"({words})" if isinstance(part, Mapping | list) and depth > 1 else words

    if isinstance(value, Mapping) and depth:
        return ", ".join(f"{key} {inside(part)}".strip() for key, part in value.items())
    if isinstance(value, list) and depth:
        return ", ".join(map(inside, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


@cache  # templates are compiled once
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ttmbench.report", "html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    helpers = (number_cell, percent_cell, result_cell, interval_cell, percent, facts_of, command_of)
    environment.globals |= {helper.__name__: helper for helper in helpers} | {"board": leaderboard, "charts": charts}
    environment.globals |= {"titles": dict[str | None, str]([*TRACK_TITLES.items(), (None, UNRANKED_TITLE)])}
    environment.globals |= {"transfer_title": TRANSFER_TITLE, "transfer_heads": TRANSFER_HEADS}
    environment.filters["words"] = lambda name: name.replace("_", " ")
    return environment


def json_block(value: object) -> Markup:
    r"""JSON for a ``script`` element, without characters that could end the element or break a line.

    >>> print(json_block("</script>"))
    "\u003c/script\u003e"
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_NOUNS = {"classification": "images", "retrieval": "queries"}
"""What a line of samples is of a task that has no groups."""
_MOST_ROWS = 60  # of the first chart
_TTM_SETTINGS = ("lr", "epochs", "iterations", "schedule", "tau_start", "tau_end")


@dataclass(frozen=True)
class Report:
    """The content of a page."""

    runs: Sequence[ResultsFile]
    skipped: Mapping[str, str]  # file -> why
    rows: Sequence[leaderboard.AnswerRow] = ()  # of the first table
    sets: Sequence[tuple[GroupSet, int]] = ()  # with the position of their images below
    thumbnails: Sequence[Thumbnails] = ()  # of the groups


def read_report(given: Path, options: ThumbnailOptions, published: Sequence[Number] = ()) -> Report:
    """Read the content of a page from a folder or one results document; UsageError if there are no results."""
    runs, skipped = gather(given)
    by_data: dict[tuple[str, str | None], list[GroupSet]] = {}  # runs on the same data share images
    for run in runs:
        for task, path in run.checked[0].get("samples", {}).items():
            if path.suffix == ".gz":
                skipped["the groups of some runs"] = "have no captions to show; run with --log_samples to browse them"
                continue
            try:
                groups = read_groups(run, task, path)
                by_data.setdefault((task, run.document.task_hashes.get(task)), []).append(groups)
            except DataError as error:
                skipped[(Path(run.file).parent / path.name).as_posix()] = str(error).removeprefix(f"{path}: ")
    thumbnails = [thumbnails_for(same, options) for same in by_data.values()]
    sets = [(one, at) for at, same in enumerate(by_data.values()) for one in same]
    sets.sort(key=lambda one: one[0].run.index)
    return Report(runs, skipped, leaderboard.answer_of(runs, published), sets, thumbnails)


def to_html(report: Report, title: str = "Report") -> str:
    """The page, which loads nothing."""
    runs, rows = report.runs, report.rows
    counts = {"run": len(runs), "model": len({run.called.model or run.model for run in runs})}
    counts["task"] = len({task for run in runs for task in run.document.results})
    kinds = {task: str(config.get("kind")) for run in runs for task, config in run.document.configs.items()}
    numbered = [(run.index, number) for run in runs for number in (*run.numbers, *run.means)]
    alt = "Raw, SimpleMatch and TTM of each task and model; the table below has the numbers"
    return render(
        "report.html",
        title=title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        size=", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()),
        answer=rows,
        chart=charts.as_image(lambda: charts.draw_answer(rows), alt) if 0 < len(rows) <= _MOST_ROWS else "",
        nouns={task: _NOUNS.get(kind, "groups") for task, kind in kinds.items()},
        runs=runs,
        tracks=_by_track(sorted(numbered, key=lambda row: row[1].limited)),  # parts of tasks last
        transfers=[transfer_cells(row) for run in runs for row in run.transfers if row.shown],
        methods=[(run.index, row) for run in runs for row in leaderboard.methods_of(run)],
        courses=[(run, *course) for run in runs for course in charts.courses_of(run.document)],
        chart_of=_chart,
        settings_of=_settings,
        tags=[table for run in runs for table in _tag_tables(run)],
        most_values=MOST_VALUES,
        sets=[(one, at, json_block(one.data)) for one, at in report.sets],
        thumbnails=[(images.why, json_block(images.images)) for images in report.thumbnails],
        links=any(not image.startswith("data:") for images in report.thumbnails for image in images.images.values()),
        tasks=sorted(kinds),
        skipped=report.skipped,
    )


def _by_track(rows: Sequence[tuple[int | None, Number]]) -> dict[str | None, list[tuple[int | None, Number]]]:
    """Track -> its numbers with the run of each; None for numbers without a track."""
    tracks = {track: [row for row in rows if row[1].track == track] for track in (*TRACK_TITLES, None)}
    return {track: of_track for track, of_track in tracks.items() if of_track}


def _chart(run: ResultsFile, task: str, method: str) -> Markup:
    alternative = f"{charts.title_of(method)} on {task}, iteration by iteration"
    return charts.as_image(lambda: charts.draw_course(run, task, method), alternative)


def _settings(record: MethodRecord) -> str:
    """The settings of a method, and its notes."""
    settings: Mapping[str, object] = record.settings
    known = {key: settings[key] for key in _TTM_SETTINGS if key in settings}
    words = _words({key: "chosen from the margins" if value is None else value for key, value in known.items()})
    return ". ".join([words, *record.notes])


def _tag_tables(run: ResultsFile) -> Iterator[tuple[ResultsFile, str, str, list[Number], dict[str, Any]]]:
    """For each task and tag the columns, the headline metric first, and value -> key -> number."""
    for task, tags in run.document.breakdowns.items():
        for tag in tags:
            rows: dict[str, dict[str, Number]] = {}
            for number in run.by_tag(tag):
                if number.own_task == task:
                    rows.setdefault(number.task.partition(SLASH)[2], {})[number.key] = number
            heads = {key: number for row in rows.values() for key, number in row.items()}
            yield run, task, tag, sorted(heads.values(), key=lambda head: head.metric != HEADLINE), rows


_OWN = {"": "*.html", "tasks": "*.html", "models": "*.html", "data/runs": "*.json"}
"""Folders of a site, and the files that it writes there."""


def write_site(
    board: leaderboard.Leaderboard, folder: Path, site: Path, published: leaderboard.Published, docs: str
) -> list[Path]:
    """Write a site of results in ``folder``, and remove obsolete pages of families, models and tasks.

    Pages link to ``docs``, the address of the documentation, if it is given. UsageError if a file cannot be written, or
    for a site inside the folder of results, around it, or in a folder with other files.
    """
    runs, target = folder.resolve(), site.resolve()
    if target.is_relative_to(runs) or runs.is_relative_to(target):
        raise UsageError(f"--site {site} must neither contain {folder}, the directory with the results, nor be in it")
    if target.exists() and not target.is_dir():
        raise UsageError(f"--site must be a directory, and {site} is a file")
    is_site = all((target / file).is_file() for file in (".nojekyll", "data/leaderboard.json"))
    if target.is_dir() and any(target.iterdir()) and not is_site:
        raise UsageError(f"--site {site} has other files; give a new directory, or one with an earlier site")
    pages = _Site(board, published, docs.rstrip("/"))
    written = []
    for name, text in pages.files(folder):
        write_text(site / name, text)
        written.append(site / name)
    for name, pattern in _OWN.items():
        for path in (site / name).glob(pattern):
            if path not in written:
                path.unlink()
    return written


def to_page(board: leaderboard.Leaderboard, published: leaderboard.Published, docs: str) -> str:
    """The start page with the tasks of all families, as one page without the other pages of a site."""
    return _Site(board, published, docs.rstrip("/")).family("index.html", "")


class _Site:
    """What the pages of a site need."""

    def __init__(self, board: leaderboard.Leaderboard, published: leaderboard.Published, docs: str) -> None:
        self.board, self.published, self.docs = board, published, docs
        self.made, self.version = datetime.now(UTC).isoformat(timespec="seconds"), __version__
        self._samples = leaderboard.GroupValues(board.runs)
        self.facts = leaderboard.facts_of_tasks(board, published.configs)
        self.pages = dict[str, str]()  # of a site, linked from all pages: file -> title
        self.pages_of: dict[str, dict[str, str]] = {"tasks": {}, "models": {}}
        self.runs_of: dict[str, list[ResultsFile]] = {}  # model -> its runs, the newest first, numbered from 1
        for run in sorted(board.runs, key=lambda run: run.document.date, reverse=True):
            if run.ranked:
                same = self.runs_of.setdefault(run.called.model, [])
                same.append(replace(run, index=len(same) + 1))
        self.runs = {run.file: run for same in self.runs_of.values() for run in same}
        self.documents = {name: f"{safe_name(name.removesuffix('.json'))}.json" for name in self.runs}
        rows = [row for row in board.rows if row.track != NO_MODEL]
        rows.sort(key=lambda row: (row.own_model not in self.runs_of, row.own_model.lower(), row.origin.published))
        of_models = same_rows(rows, attrgetter("own_model"))
        self.rows_of_model = {same[0].own_model: same for same in of_models}  # those with runs first
        families = [
            family for family in leaderboard.FAMILIES if any(facts.family == family for facts in self.facts.values())
        ]
        self.families = {f"{family}.html" if at else "index.html": family for at, family in enumerate(families)}

    def files(self, folder: Path) -> Iterator[tuple[str, str]]:
        """Every file of the site, the start page last."""
        methods = leaderboard.compared_methods(self.board.runs, self.published.numbers, self._samples, self.facts)
        self.pages = {file: leaderboard.FAMILIES[family] for file, family in self.families.items()}
        self.pages |= ({"methods.html": "Test-time methods"} if methods else {}) | {"models.html": "Models"}
        self.pages_of = {"tasks": _file_names(self.facts, "tasks"), "models": _file_names(self.rows_of_model, "models")}
        yield ".nojekyll", ""  # so that GitHub Pages serves files unchanged, also those that begin with an underscore
        yield "data/leaderboard.json", to_json(leaderboard.as_document(self.board))
        yield "data/leaderboard.csv", leaderboard.to_csv(self.board)
        yield from ((f"data/runs/{copy}", (folder / file).read_text("utf-8")) for file, copy in self.documents.items())
        yield from ((file, self._task(task)) for task, file in self.pages_of["tasks"].items())
        yield from ((file, self._model(model)) for model, file in self.pages_of["models"].items())
        yield "models.html", self._page("site_list.html", "models.html", title="Models", methods=())
        if methods:
            about = {"methods": methods, "numbered": [(None, row) for row in methods]}
            yield "methods.html", self._page("site_list.html", "methods.html", "Test-time methods", **about)
        yield from ((file, self.family(file, family)) for file, family in reversed(self.families.items()))

    def _page(self, template: str, current: str, title: str, **values: object) -> str:
        root = "../" if template == "site_model.html" or values.get("family") == "" else ""
        return render(template, site=self, current=current, title=title, root=root, **values)

    def family(self, file: str, family: str) -> str:
        """A start page: the tasks of a family (empty: all), and tasks by models for each track."""
        facts = {task: facts for task, facts in self.facts.items() if family in ("", facts.family)}
        facts = dict(sorted(facts.items(), key=lambda of: -len({(row.model, row.origin.file) for row in of[1].rows})))
        older = [old for old, _ in self.board.superseded]
        lines = leaderboard.headline_lines(self.facts, older) if file == "index.html" else []
        known = {name: (row.task, row.metric) for line in lines for name, row in line.cells.items()}
        names = [f"{task} {name}" for task in leaderboard.HEADLINES for name in ("raw", "SimpleMatch", "TTM")]
        headline = {name: known[name] for name in names if name in known}
        first = next((name for name in headline if name.endswith(" TTM")), next(iter(headline), None))
        tables = []
        for track in (track for track in TRACK_TITLES if track not in (ORACLE, NO_MODEL)):
            columns = {task: (task, of.first_metric(track)) for task, of in facts.items() if of.of(track)}
            counts = dict.fromkeys(columns, 0)
            for task, metric in columns.values():
                counts[task] = sum(leaderboard.interval_of(row) is not None for row in facts[task].of(track, metric))
            if columns:
                columns = dict(sorted(columns.items(), key=lambda column: -counts[column[0]]))
                tables.append(self._table(track, columns, self._lines(track, columns, "task"), next(iter(columns))))
        return self._page(
            "site_board.html",
            file,
            f"Leaderboard: {leaderboard.FAMILIES.get(family, 'all tasks')}",
            family=family or "all",
            facts=facts,
            headline=[self._table("headline", headline, lines, first)] if lines else [],
            tables=tables,
            methods=sorted({row.column for table in tables for row in table["rows"]}),
            sources={},
        )

    def _task(self, task: str) -> str:
        """A task: one table per track, with every metric."""
        facts = self.facts[task]
        tracks = [track for track in TRACK_TITLES if facts.of(track)]
        tables = []
        for track in [track for track in tracks if track != NO_MODEL] or tracks:  # else among the rows of the others
            first, known = facts.first_metric(track), {row.metric for row in facts.of(track)}
            names = [name for name in facts.metrics if name in known]
            if track not in (ORACLE, NO_MODEL):
                names.sort(key=lambda name: name != first)
            columns = {name: (task, name) for name in names}
            ranked = None if track in (ORACLE, NO_MODEL) else names[0]
            tables.append(self._table(track, columns, self._lines(track, columns, "metric"), ranked))
        files = dict.fromkeys(row.origin.file for row in facts.rows if row.origin.published)
        return self._page(
            "site_board.html",
            next((file for file, family in self.families.items() if family == facts.family), ""),
            task,
            family="",
            facts={},
            headline=[],
            of=facts,
            tables=tables,
            methods=sorted({row.column for row in facts.rows}),
            sources={file: self.published.sources.get(file) for file in files},
        )

    def _lines(self, track: str, columns: Mapping[str, tuple[str, str]], column: str) -> list[leaderboard.BoardLine]:
        rows = [row for task, metric in columns.values() for row in self.facts[task].of(track, metric)]
        return leaderboard.lines_of(rows, self.facts, column)

    def _table(
        self,
        name: str,
        columns: Mapping[str, tuple[str, str]],
        lines: list[leaderboard.BoardLine],
        first: str | None,
    ) -> dict[str, Any]:
        """A table: lines with chance and humans among them, the column of its ranks (None without), and the best."""
        cells = {column: [line.cells[column] for line in lines if column in line.cells] for column in columns}
        known = dict[str, float]()
        for column, (task, metric) in columns.items():
            of_none = self.facts[task].of(NO_MODEL, metric) if task in self.facts else []
            levels = leaderboard.chance_levels([*cells[column], *of_none])
            known |= {column: levels[metric]} if levels else {}
        if first is not None:
            lines = [*leaderboard.with_ranks(lines, self._samples), *leaderboard.references(columns, known, self.facts)]
        lines = leaderboard.in_order(lines, first)
        rows = [row for of_column in cells.values() for row in of_column]
        lower = {column for column, of_column in cells.items() if not any(row.higher_is_better for row in of_column)}
        about = {"name": name, "columns": columns, "first": first, "chance": known, "rows": rows, "lines": lines}
        return {**about, "lower": lower, "best": leaderboard.best_of(lines)}

    def _model(self, model: str) -> str:
        """A model: its numbers by track, and its runs."""
        rows = self.rows_of_model[model]
        numbered = [(run.index if run else None, row) for row in rows for run in [self.runs.get(row.origin.file)]]
        numbered.sort(key=lambda row: row[1].task.lower())
        return self._page(
            "site_model.html",
            "models.html",
            model,
            size=self.size(rows[0]),
            tracks=_by_track(numbered),
            tasks=sorted({row.task for row in rows}),
            metrics=sorted({row.metric for row in rows}),
            notes={file: note for (file, named), note in self.published.notes.items() if named == model},
            runs=self.runs_of.get(model, ()),
        )

    def link(self, root: str, kind: str, name: str, words: str = "") -> Markup:
        """A link to the page of one of the ``tasks`` or ``models``, or the name of one without a page."""
        page, shown = self.pages_of[kind].get(name), Markup("<bdi>{}</bdi>").format(words or name)
        return shown if page is None else Markup('<a href="{}">{}</a>').format(root + page, shown)

    def leaders(self, facts: leaderboard.TaskFacts) -> list[Number | None]:
        """Of a task the first numbers of humans, and the best that rank: raw, matching and test-time."""
        humans = facts.of(NO_MODEL, facts.headlines[0])
        leaders = [next((row for row in humans if row.model != leaderboard.CHANCE), None)]
        for track in ("zero_shot", "matching", "test_time"):
            rows = facts.of(track, facts.first_metric(track))
            ranked = [row for row in rows if facts.standing(row) in leaderboard.RANKED]
            best = max if all(row.higher_is_better for row in ranked) else min
            leaders.append(best(ranked, key=lambda row: row.value or 0.0, default=None))
        return leaders

    def size(self, row: Number) -> float | None:
        """How many parameters the model of a number has; None if that is unknown."""
        run = self.runs.get(row.origin.file)
        stated = (
            run.document.model_info.fingerprint.get("n_parameters") if run else self.published.parameters.get(row.model)
        )
        return float(stated) if isinstance(stated, int | float) and stated > 0 else None


def _file_names(names: Iterable[str], folder: str) -> dict[str, str]:
    """Name -> the file of its page; names that differ in case alone have files that differ by more."""
    files: dict[str, str] = {}
    for name in names:
        file = f"{folder}/{safe_name(name)}.html"
        is_taken = file.lower() in {other.lower() for other in files.values()}
        files[name] = f"{folder}/{safe_name(name)}-{len(files)}.html" if is_taken else file
    return files
