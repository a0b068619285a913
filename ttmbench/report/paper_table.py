"""The table of a paper: rows are models and their settings, columns tasks and methods; as LaTeX, CSV or Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from ttmbench import stats
from ttmbench._util.console import plain
from ttmbench.errors import UsageError
from ttmbench.report.board import GroupValues, beats_chance, legends
from ttmbench.report.exporters import csv_text
from ttmbench.report.terminal import headline, marks, number_text, percent, points
from ttmbench.results.comparison import LEVEL, paired_test
from ttmbench.results.models import with_setting
from ttmbench.results.numbers import (
    CHOICE,
    FROM_FILE,
    ORACLE,
    OVERFIT,
    RAW,
    SLASH,
    Number,
    columns_in,
    merged,
    rows_of,
    same_rows,
)
from ttmbench.results.reader import ResultsFile
from ttmbench.results.summary import mean_over_seeds

_OF_NUMBER = ("metric", "value", "stderr", "seed_std", "seeds", "chance", "groups", "limited", "track")
_UNTESTED, _NOTHING = "°", "–"
_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"\dag{}", "–": "--"}
    | {"±": r"$\pm$", "°": r"$^\circ$", "≤": r"$\leq$", "<": "$<$", ">": "$>$", "|": "$|$"}
    | {letter: f"\\{letter}" for letter in "&%$#_{}"}
)
_models, _row = attrgetter("own_model", "model"), attrgetter("model", "task", "metric", "method")
_key = attrgetter("origin.file", "method", "metric")  # as of `GroupValues`
Row = tuple[str, str]
"""A model and its setting."""


_Cells = dict[tuple[str, str], dict["Column", Number]]


class Column(NamedTuple):
    """A column of numbers."""

    task: str
    title: str  # the task, with how many groups it has
    method: str
    metric: str
    name: str  # what readers call the method

    @classmethod
    def of(cls, one: Number) -> Column:
        """The column that a number is in."""
        is_mean = one.parts is not None and SLASH not in one.task
        size = f"mean of {one.parts} tasks" if is_mean else f"n = {one.extent.words}"
        return cls(one.task, f"{one.task} ({size})", one.method, one.metric, one.column)


@dataclass(frozen=True)
class PaperTable:
    """A table as texts."""

    titles: list[str]  # above each column; empty above those of models and settings
    names: list[str]  # of the columns
    rows: list[list[tuple[str, bool]]]  # with whether a number is the best of its column; the last has chance levels
    caption: str
    lines: list[dict[str, object]]  # its numbers, each with its gain as a fraction and p

    @property
    def texts(self) -> int:
        """How many columns hold no numbers."""
        return self.titles.count("")

    @property
    def heads(self) -> list[str]:
        """Titles and names in one."""
        return [f"{title}: {name}" if title else name for title, name in zip(self.titles, self.names, strict=True)]


def paper_table(
    runs: Sequence[ResultsFile],
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    metrics: Sequence[str] = (),
    baseline: str = RAW,
    by: str = "",
) -> PaperTable:
    """The table of some runs.

    Args:
        runs: whose numbers are shown.
        rows: globs of models; all by default.
        columns: globs of tasks (or values of the tag) and of methods, in the order of the table; by default all but
            controls.
        metrics: by default the group score of raw scores and the group match of everything else, where a task has them.
        baseline: what gains are over: a method of the same model, or a model in the same column.
        by: a tag, for a column for each of its values.

    Raises:
        UsageError: something that is named does not exist.
    """
    every = [one for run in runs for one in (run.by_tag(by) if by else (*run.numbers, *run.means))]
    every = [one for one in every if one.value is not None]
    if not every:
        raise UsageError(f"--by {by}: these results have no numbers by this tag" if by else "there are no numbers")
    _check("--metrics", metrics, [one.metric for one in every])
    _check("--rows", rows, [name for one in every for name in _models(one)])
    _check("--columns", columns, [name for one in every for name in (*_tasks(one), *_methods(one))])
    of_task = [word for word in columns if any(_fits(_tasks(one), word) is not None for one in every)]
    of_method = [word for word in columns if word not in of_task]
    kinds = {task: str(config.get("matching")) for run in runs for task, config in run.document.configs.items()}
    usual = {same[0].task: _usual(same, kinds) for same in same_rows(every, attrgetter("task"))}
    shown = [
        one
        for one in every
        if (one.metric in metrics if metrics else one.metric in usual[one.task](one))
        and (of_method or one.track is not None)
        and None not in (_fits(_models(one), *rows), _fits(_tasks(one), *of_task), _fits(_methods(one), *of_method))
    ]
    if not shown:
        raise UsageError("no number is left for the table; choose other --rows, --columns or --metrics")
    tasks, order = list(usual), [column.name for column in columns_in(one.method for one in shown)]
    cells = {row: {Column.of(one): one for one in numbers} for row, numbers in rows_of(shown).items()}
    first = {column: one for of in cells.values() for column, one in of.items()}
    listed = sorted(
        first,
        key=lambda column: (
            first[column].limited,
            *(_fits(_tasks(first[column]), *of_task), tasks.index(column.task)),
            *(_fits(_methods(first[column]), *of_method), order.index(column.name)),
            _fits([column.metric], *metrics),
        ),
    )
    models = list(dict.fromkeys(model for model, _ in cells))
    cells = dict(sorted(cells.items(), key=lambda row: (_is_tuned(row[1].values()), models.index(row[0][0]))))
    before, over = _baseline_of(cells, every, baseline)
    return _table(cells, listed, _gains(cells, before, GroupValues(runs), every, by), over)


def _fits(names: Sequence[str], *words: str) -> int | None:
    """Position of the first glob that one of the names fits; 0 without globs, None if none fits."""
    lower = [name.lower() for name in names]
    fitting = (at for at, word in enumerate(words) if any(fnmatchcase(name, word.lower()) for name in lower))
    return next(fitting, None if words else 0)


def _check(option: str, words: Iterable[str], names: Sequence[str]) -> None:
    for word in words:
        if _fits(names, word) is None:
            raise UsageError(
                f"{option}: these results have no {word}; choose from {', '.join(dict.fromkeys(filter(None, names)))}"
            )


def _tasks(one: Number) -> list[str]:
    return [one.task, one.own_task, one.task.partition(SLASH)[2]]


def _methods(one: Number) -> list[str]:
    return [one.column] if one.method == RAW else [one.column, one.method]


def _is_tuned(numbers: Iterable[Number]) -> bool:
    return any(one.track == "supervised" for one in numbers)


def _usual(same: Sequence[Number], kinds: Mapping[str, str]) -> Callable[[Number], set[str]]:
    """The metrics that a task's numbers are shown in, where none are asked for."""
    known = {one.metric for one in same if one.method in (RAW, CHOICE)}
    raw, match = headline(known, kinds.get(same[0].own_task) == "global")
    if not {raw, match} & known:
        return lambda one: known  # of a task that ranks
    return lambda one: {raw, match} if one.method == RAW else {raw} if one.method in (OVERFIT, CHOICE) else {match}


def _baseline_of(cells: _Cells, every: Sequence[Number], baseline: str) -> tuple[Callable[..., Number | None], str]:
    """What gives the number of the baseline for a column's one, or None; and what gains are over, in words."""
    method = next((one.method for one in every if _fits([one.method, one.column], baseline) is not None), None)
    labels = {with_setting(*row): of for row, of in cells.items()}
    own = labels.get(baseline, {})
    others = [own, *(of for row, of in cells.items() if row[0] == baseline and row[1])]
    if method is None and not any(others):
        names = dict.fromkeys([*(one.column for one in every), *(one.own_model for one in every)])
        raise UsageError(f"--baseline: the table has no {baseline}; choose from {', '.join(names)}")
    of_file = {(one.origin.file, one.task, one.metric, one.method): one for one in every}

    def before(column: Column, one: Number) -> Number | None:
        if method is None:
            named = [of[column] for of in others if column in of]
            if len(named) > 1 and column not in own:
                raise UsageError(f"--baseline: {baseline} has several settings; choose from {', '.join(labels)}")
            return named[0] if named else None
        of_run = of_file.get((one.origin.file, one.task, one.metric, method))
        is_unfair = of_run is not None and (of_run.track, one.track) == ("zero_shot", "matching")  # captions compete
        return None if is_unfair or one.method in (method, RAW) else of_run

    if method is None:
        return before, f"{baseline} in the same column"
    return before, f"{'the untrained model' if method == RAW else baseline} in the same metric"


def _gains(
    cells: _Cells, before: Callable[..., Number | None], values: GroupValues, every: Sequence[Number], by: str
) -> dict[tuple[Row, Column], tuple[float, float | None]]:
    """The gains, each with its p, which Holm's method adjusts; None where the values of single groups are unknown."""
    parts: dict[tuple[str, ...], tuple[Number, list[Number]]] = {}  # the runs whose seeds a number is the mean of
    for same in same_rows(every):
        number, left = merged(same)
        parts[_row(number)] = number, [one for one in same if all(one is not other for other in left)]
    gains: dict[tuple[Row, Column], tuple[float, float | None]] = {}
    for row, column, one in ((row, column, one) for row, of in cells.items() for column, one in of.items()):
        other = before(column, one)
        if other is None or _row(other) == _row(one):
            continue
        other, first = parts[_row(other)]
        about = [(part.origin.version, part.origin.data) for part in (other, one)]
        tag = {"tag": by, "value": one.task.partition(SLASH)[2]} if by else {}
        task = one.own_task if by else one.task
        arrays, clusters = [], None
        for several in (first, parts[_row(one)][1]):
            pairs = [values.pair(task, *map(_key, (first[0], part)), **tag) for part in several]
            known = [pair for pair in pairs if pair is not None and about[0] == about[1]]
            if len(known) < len(pairs):
                break
            clusters = known[0][2]
            seeds = [len(part.seeds) or 1 for part in several]
            arrays.append(mean_over_seeds(np.repeat([pair[1] for pair in known], seeds, axis=0)))
        p = paired_test(arrays[0], arrays[1], clusters)[0] if len(arrays) == 2 else None
        gains[row, column] = (one.value or 0.0) - (other.value or 0.0), p
    tested = {key: p for key, (_, p) in gains.items() if p is not None}
    adjusted = zip(tested, stats.holm([*tested.values()]), strict=True)
    return gains | {key: (gains[key][0], p) for key, p in adjusted}


def _table(cells: _Cells, columns: Sequence[Column], gains: Mapping[tuple[Row, Column], Any], over: str) -> PaperTable:
    """The texts of a table."""
    metrics: dict[str, dict[str, None]] = {}
    for column in columns:
        metrics.setdefault(column.name, {})[column.metric.replace("_", " ")] = None
    plain_names = {name: next(iter(of)) for name, of in metrics.items() if len(of) == 1}
    texts = 1 + any(setting for _, setting in cells)
    rows = [[(text, False) for text in (_model(*row), row[0][1])[:texts]] for row in cells.items()]
    chance = [("chance", False), ("", False)][:texts]
    lines = list[dict[str, object]]()
    for column in columns:
        numbers = {row: of[column] for row, of in cells.items() if column in of}
        for line, row in zip(rows, cells, strict=True):
            if (one := numbers.get(row)) is None:
                line.append((_NOTHING, False))
                continue
            gain, p = gains.get((row, column), (None, None))
            mark = _UNTESTED if p is None else "*" if p <= LEVEL else ""
            text = "" if gain is None else f" ({points(gain)}{mark})"
            best, about = _is_best(one, numbers.values()), one.row()
            line.append((number_text(one) + marks(one) + text, best))
            found = {"model": row[0], "setting": row[1], "task": one.task, "method": one.column}
            lines.append({**found, **{key: about[key] for key in _OF_NUMBER}, "gain": gain, "p": p, "best": best})
        levels = {one.chance for one in numbers.values()}
        chance.append((percent(levels.pop()) if len(levels) == 1 else "varies", False))
    names = [c.name if c.name in plain_names else f"{c.name}: {c.metric.replace('_', ' ')}" for c in columns]
    heads = ["model", "setting"][:texts]
    shown, every = [of[column] for of in cells.values() for column in columns if column in of], [*rows, chance]
    said = _caption(shown, "".join(text for line in rows for text, _ in line), plain_names)
    said += _about_gains([p for _, p in gains.values()], over)
    said += ["Bold is the best of its column and track."] * any(best for line in rows for _, best in line)
    titles = [column.title for column in columns]
    return PaperTable([""] * texts + titles, [*heads, *names], every, " ".join(said), lines)


def _model(row: Row, of: Mapping[Column, Number]) -> str:
    notes = ["fine-tuned on labels"] * _is_tuned(of.values())
    notes += [FROM_FILE] * any(one.origin.from_file for one in of.values())
    return f"{row[0]} ({', '.join(notes)})" if notes else row[0]


def _is_best(one: Number, column: Iterable[Number]) -> bool:
    """Whether it is the best of several numbers of its track, above chance, as far as the digits shown."""
    rivals = [float(percent(other.value)) for other in column if other.track == one.track]
    best = (max if one.higher_is_better else min)(rivals)
    is_ranked = one.track not in (None, ORACLE) and beats_chance(one)
    return is_ranked and len(rivals) > 1 and float(percent(one.value)) == best


def _caption(numbers: Sequence[Number], texts: str, names: Mapping[str, str]) -> list[str]:
    """What numbers and marks mean."""
    shown = [(", ".join(map(itemgetter(0), same)), metric) for metric, same in groupby(names.items(), itemgetter(1))]
    seeds = sorted({str(len(one.seeds)) for one in numbers if len(one.seeds) > 1}, key=int)
    lines = ["Percent; n: number of groups; chance: of random scores.", *(f"{name}: {of}." for name, of in shown)]
    over = " to ".join(dict.fromkeys(seeds[:1] + seeds[-1:]))
    lines += [f"±: standard deviation over {over} seeds."] * ("±" in texts)
    if len({one.track for one in numbers}) > 1:
        lines.append("Columns belong to several tracks; do not rank them together.")
    return [*lines, *(f"{line}." for line in legends(numbers))]


def _about_gains(ps: Sequence[float | None], over: str) -> list[str]:
    """What the gains in parentheses are."""
    tests = sum(p is not None for p in ps)
    lines = [f"In parentheses: gain in points over {over}."] * bool(ps)
    if tests:
        family = f"{tests} test{'s' * (tests > 1)}, paired by group: McNemar's, else a permutation test"
        lines.append(f"*: p ≤ {LEVEL} (Holm over {family}; groups that share images count as one).")
    return lines + [f"{_UNTESTED}: not tested, because values of single groups are missing."] * (tests < len(ps))


def to_latex(table: PaperTable) -> str:
    """A table for the booktabs package."""
    head, rules, at = [""] * table.texts, [], table.texts
    for title, same in groupby(table.titles[at:]):
        width = len([*same])
        head.append(rf"\multicolumn{{{width}}}{{c}}{{{latex(title)}}}")
        rules.append(rf"\cmidrule(lr){{{at + 1}-{at + width}}}")
        at += width
    lines = [[rf"\textbf{{{latex(text)}}}" if best else latex(text) for text, best in row] for row in table.rows]
    *body, chance = (" & ".join(line) + r" \\" for line in (head, map(latex, table.names), *lines))
    align = "l" * table.texts + "r" * (len(table.names) - table.texts)
    above = [r"\begin{table}", r"\centering", rf"\caption{{{latex(table.caption)}}}", rf"\begin{{tabular}}{{{align}}}"]
    above += [r"\toprule", body[0], " ".join(rules), body[1], r"\midrule", *body[2:], r"\midrule", chance]
    return "\n".join([*above, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def to_markdown(table: PaperTable) -> str:
    """A table of Markdown with its caption below it."""
    rows = [[f"**{markdown(text)}**" if best else markdown(text) for text, best in row] for row in table.rows]
    return f"{markdown_table([*map(markdown, table.heads)], rows, table.texts)}\n{markdown(table.caption)}\n"


def to_csv(table: PaperTable) -> str:
    """A line for each number of the table, as fractions."""
    return csv_text(list(table.lines[0]), table.lines)


TABLES = {"latex": to_latex, "csv": to_csv, "md": to_markdown}
"""``--to`` -> what writes a table."""


def latex(text: str) -> str:
    """Text that LaTeX sets as it is; signed numbers are in math mode, for a proper minus."""
    escaped = plain(" ".join(text.split()), keep="").translate(_LATEX)
    return re.sub(r"(?<=\()[+-][0-9.]+(?=[*)$])", r"$\g<0>$", escaped)


def markdown(text: str) -> str:
    r"""Text that Markdown shows as it is: no markup, no HTML, no further cell or line.

    >>> markdown("a|b <i>_c_</i>")
    'a\\|b \\<i\\>\\_c\\_\\</i\\>'
    """
    return re.sub(r"([|\\<>`\[\]*_&!#~])", r"\\\1", plain(" ".join(text.split()), keep=""))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """A table of cells that are Markdown already; the columns behind the first ``texts`` hold numbers."""
    lines = [heads, ["---"] * texts + ["---:"] * (len(heads) - texts), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
