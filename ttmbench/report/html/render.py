"""HTML pages that work offline: styles and scripts are in the page, and nothing else may run or load.

With the page of ``ttmbench report`` (`read_report`, `to_html`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from ttmbench.errors import DataError
from ttmbench.report.charts import Course, as_image, courses_of, draw_answer, draw_course, short, tag_tables_of
from ttmbench.report.leaderboard import AnswerRow, answer_of, beats_chance, legends
from ttmbench.report.load import Gathered, GroupSet, ReportedRun, gather, read_groups
from ttmbench.report.ranking import NOT_RANKED, interval_of, methods_of
from ttmbench.report.table import NOTHING, TRANSFER_HEADS, marks, percent, transfer_cells
from ttmbench.report.thumbnails import ThumbnailOptions, Thumbnails, thumbnails_for
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import TRACK_ORDER, TRACK_TITLES, UNRANKED_TITLE
from ttmbench.results.models import command_of
from ttmbench.results.numbers import TITLE, Number, transfers_of
from ttmbench.results.tag_means import MOST_VALUES

# Not allowed in HTML, or not encodable.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SETTINGS = ("limit", "dtype", "device", "batch_size", "ttm_preset", "seed", "bootstrap_iters")


def render(template: str, **values: object) -> str:
    """Fill a template of this folder; values are escaped.

    The page's Content-Security-Policy allows exactly our CSS and JavaScript, so nothing from data can run or load.
    """
    css, js = (Markup((files("ttmbench.report.html") / name).read_text("utf-8")) for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template).render(css=css, js=js, policy=policy, **values)
    return _UNPRINTABLE.sub("\ufffd", page)


def number_cell(value: float | None, form: str = "%g", scale: float = 1.0, extra: str = "") -> Markup:
    """A cell with a number to sort by, in a format; a template macro would be several times slower.

    >>> print(number_cell(None), end=""), print(number_cell(0.125, "%+.1f", 100), end="")
    <td class="number" data-value="">-</td>
    <td class="number" data-value="0.125">+12.5</td>
    (None, None)
    """
    text = NOTHING if value is None else form % (scale * value + 0.0) + extra
    return Markup(f'<td class="number" data-value="{"" if value is None else value}">{escape(text)}</td>\n')


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
    about = f"{row.metric.replace('_', ' ')}, {row.method}, 95 % {words}; {row.extent.words} groups; {row.file}"
    about += f", as {row.published_as}" if row.published_as else ""
    about += f"; but {row.disagrees}" if row.disagrees else ""
    kind = "number best" if row.value == best else "number" if beats_chance(row) else "number below"
    text = escape(percent(row.value) + marks(row))
    text += Markup("" if row.seed_std is None else f' <small class="spread">± {percent(row.seed_std)}</small>')
    text += Markup(f"<small>{words}</small>") if ends else ""
    if chance is not None and row.chance not in (None, chance):
        text += Markup(f"<small>chance {percent(row.chance)}</small>")
    text += Markup(f"<small>{escape(note)}</small>" if note else "")
    ranked = "" if rank is None else f' data-rank="{rank}"'
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
    seeds = sorted({seed for record in document.ttm.values() for seed in record.seeds})
    yield "seeds", _words(seeds or document.config.get("seeds") or "")
    for key in _SETTINGS:
        yield key.replace("_", " "), "" if document.config.get(key) is None else _words(document.config[key])
    audited = [task for task, record in document.ttm.items() if record.audit_labels]
    yield "label audit", f"passed on {', '.join(audited)}" if audited else ""
    for state, words in (("pending", "not reached"), ("failed", "failed")):
        yield f"tasks {words}", ", ".join(task for task, status in document.task_status.items() if status == state)
    kinds = [artifact.kind for artifact in document.artifacts.values()]
    yield "files beside it", ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    hardware = (document.hardware.get(key) for key in ("platform", "machine", "cpu_capability", "accelerator"))
    yield "machine", ", ".join(str(part) for part in hardware if part)
    yield "packages", ", ".join(f"{name} {version}" for name, version in document.packages.items())
    yield "commit", document.git_hash or ""
    yield "run key", document.run_key or ""
    plain = {key: value for key, value in document.fingerprint.items() if not isinstance(value, Mapping)}
    yield "the model states", _words(plain)
    yield from ((str(key), _words(value)) for key, value in document.fingerprint.items() if key not in plain)


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


def _plain(name: str) -> str:
    """A metric or another name of ours in words."""
    return name.replace("_", " ")


@cache  # templates are compiled once
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ttmbench.report", "html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    helpers = (number_cell, percent_cell, result_cell, interval_cell, percent, beats_chance, interval_of, legends)
    environment.globals |= {helper.__name__: helper for helper in (*helpers, facts_of, command_of, short, marks)}
    environment.globals |= {"titles": dict[str | None, str]([*TRACK_TITLES.items(), (None, UNRANKED_TITLE)])}
    environment.globals |= {"transfer_title": TITLE, "transfer_heads": TRANSFER_HEADS}
    environment.filters["words"] = _plain
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
        for key in _TTM_SETTINGS
        if key in settings
    ]
    return ". ".join([", ".join(words), *(record.notes if course.variant == "ttm" else ())])
