"""Results in the formats of other tools and of papers: lm-evaluation-harness, mteb, model cards, CSV and LaTeX.

Each format is a function of runs, ``--output_path`` (None for the terminal) and its own options. It returns the texts
to write, by file (None for the terminal), and what was skipped and why, by task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.console import plain
from ttmbench._util.file_io import to_json
from ttmbench.errors import DataError, UsageError
from ttmbench.report.terminal import (
    NOTHING,
    TRANSFER_HEADS,
    TRANSFER_TITLE,
    gains,
    headline,
    number_text,
    transfer_cells,
)
from ttmbench.results.document import Dataset, ResultsDocument
from ttmbench.results.numbers import (
    BUILT_IN_METHODS,
    DISAGREES_MARK,
    ORACLE_COLUMN,
    OVERFIT_COLUMN,
    RAW,
    RAW_COLUMN,
    SEEN_MARK,
    SIMPLE_MATCH_COLUMN,
    TRACK_TITLES,
    TTM_COLUMN,
    Number,
    columns_in,
    key_of,
    newest,
)
from ttmbench.results.reader import ResultsFile

if TYPE_CHECKING:
    import pandas as pd
    from huggingface_hub import ModelCardData

Written = tuple[dict[Path | None, str], dict[str, str]]
MISSING = "N/A"
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "tf32": "float32"}
# Keys of ttmbench, below one key so that no reader takes them for metrics.
_OWN = (
    *("schema_version", "status", "track", "tracks", "ci", "chance", "ties", "breakdowns", "tag_means", "datasets"),
    *("errors", "also"),
)
_FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # with the full-width forms, which spreadsheets of some languages take too
_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {letter: f"\\{letter}" for letter in "&%$#_{}"}
)


def export_lm_eval(runs: Sequence[ResultsFile], target: Path | None) -> Written:
    """The JSON of lm-evaluation-harness, of one run.

    Its readers expect a number or ``N/A`` for ``metric_stderr,method``, and a number for every other
    ``metric,method``: undefined standard errors are ``N/A``, and undefined values are omitted.
    """
    if len(runs) > 1:
        raise UsageError("a file of lm-evaluation-harness is one run; export each results document separately")
    (run,) = runs
    if target is not None and target.suffix != ".json":  # a folder, in which its readers look for this name
        stamp = datetime.fromtimestamp(float(run.document.date)).isoformat().replace(":", "-")
        target = target / sanitised(run.model) / f"results_{stamp}.json"
    return {target: to_json(_document(run))}, {}


def _document(run: ResultsFile) -> dict[str, object]:
    """A run in the format of lm-evaluation-harness, with additional keys below ``ttmbench``."""
    document, content, subtasks = run.document, run.document.to_dict(), run.document.group_subtasks
    own_task = {task: task for task in document.results}
    own_task |= {row.task: row.own_task for row in run.numbers}  # a mean over values of tags is a separate task
    means = _values(document.groups, document.means)
    directions = {task: dict(document.higher_is_better[parent]) for task, parent in own_task.items()}
    for group, tasks in subtasks.items():
        directions[group] = {metric: up for task in tasks for metric, up in directions.get(task, {}).items()}
    cells = {
        row.task: {"original": row.groups, "effective": row.groups} for row in run.numbers if row.parts is not None
    }
    alone = [task for task in own_task if not any(task in tasks for tasks in subtasks.values())]
    spreads: dict[str, dict[str, float | None]] = {task: {} for task in own_task}
    for row in (row for row in run.numbers if row.seeds):
        spreads[row.task][key_of(row.metric, row.method, "seed_std")] = row.seed_std
    return {
        "results": {**_values(own_task, run.numbers), **means},
        **({"groups": means} if means else {}),
        "group_subtasks": {**subtasks, **{task: [] for task in alone}},
        "configs": {task: _task_config(task, parent, document) for task, parent in own_task.items()},
        "versions": {task: document.versions[of] for task, of in own_task.items()} | dict.fromkeys(means, MISSING),
        "n-shot": dict.fromkeys([*own_task, *means], 0),
        "higher_is_better": directions,
        "n-samples": {**content["n-samples"], **cells},
        "config": _config(document),
        **{key: content[key] for key in ("git_hash", "date", "task_hashes")},
        "pretty_env_info": "\n".join(
            f"{name}: {value}" for name, value in (document.packages | document.hardware).items()
        ),
        "transformers_version": document.packages.get("transformers", MISSING),
        "model_source": document.config.get("model", "ttmbench"),
        "model_name": run.model,
        "model_name_sanitized": sanitised(run.model),
        "total_evaluation_time_seconds": str(document.total_evaluation_time_seconds),
        "ttmbench": {
            **{key: content[key] for key in _OWN if key in content},
            "columns": {task: {row.key: row.column for row in run.numbers if row.task == task} for task in own_task},
            "seed_std": spreads,
            "version": document.packages.get("ttmbench"),
        },
    }


def sanitised(model: str) -> str:
    """A model's name as a folder, by the rule of lm-evaluation-harness; never a path to elsewhere.

    >>> sanitised("google/siglip"), sanitised("..")
    ('google__siglip', '__')
    """
    return re.sub(r"^\.+", "__", re.sub(r'["<>:/|\\?*\[\]]+', "__", model)) or "model"


def _values(names: Iterable[str], numbers: Sequence[Number]) -> dict[str, dict[str, object]]:
    """Name -> alias, ``metric,method`` and ``metric_stderr,method``."""
    values: dict[str, dict[str, object]] = {name: {"alias": name} for name in names}
    for row in numbers:
        if row.value is not None:
            stderr = MISSING if row.stderr is None else float(row.stderr)
            values[row.task] |= {row.key: float(row.value), key_of(row.metric, row.method, "stderr"): stderr}
    return values


def _task_config(name: str, task: str, document: ResultsDocument) -> dict[str, object]:
    """The configuration of a task, or of a mean over values of its tags."""
    spec, source = document.configs[task], document.datasets[task].source
    directions = document.higher_is_better[task].items()
    return {
        "task": name,
        "tag": spec.get("tag", []),
        "dataset_path": source.get("path", source.get("kind", name)),
        "test_split": source.get("split"),
        "description": spec.get("description", ""),
        "output_type": "multiple_choice",
        "repeats": 1,
        "num_fewshot": 0,
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": up} for metric, up in directions],
        "metadata": {"version": document.versions[task]},
    }


def _config(document: ResultsDocument) -> dict[str, object]:
    config, dtype = document.config, document.config.get("dtype", "")
    model_args = config.get("model_args", {})
    known = {"model_num_parameters": document.fingerprint.get("n_parameters"), "model_dtype": _DTYPES.get(dtype, dtype)}
    known |= {"model_revision": model_args.get("revision")}
    return {
        "model": config.get("model", "ttmbench"),
        "model_args": ",".join(f"{key}={value}" for key, value in model_args.items()),
        **{key: value for key, value in known.items() if value not in (None, "")},
        "batch_size": str(config.get("batch_size", "")),
        "batch_sizes": [],
        **{key: config.get(key) for key in ("device", "limit", "bootstrap_iters")},
        **dict.fromkeys(("use_cache", "gen_kwargs")),
        **dict.fromkeys(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), config.get("seed", 0)),
    }


_SUGARCREPE = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
_TASKS = {
    "Winoground": ("winoground",),
    "SugarCrepe": tuple(f"sugarcrepe_{part}" for part in _SUGARCREPE),
    "AROCocoOrder": ("aro_coco_order",),
    "AROFlickrOrder": ("aro_flickr30k_order",),
}
"""Task of mteb -> those of ttmbench with the same groups."""
_NO_TASK = "mteb has no such task, or scores it by other data or another rule"
_NO_REVISION = ("no_revision_available", "revision_not_applicable")  # mteb's words, of a model and of data
_SQUARE = {"text_acc": "text_score", "image_acc": "image_score", "accuracy": "group_score"}


def export_mteb(runs: Sequence[ResultsFile], target: Path | None) -> Written:
    """The files of mteb, ``<model>/<revision>/<Task>.json``; the terminal or a file takes one task.

    Its accuracy is a fraction of groups, in which an index decides between equal scores: of a group with one image the
    correct caption is the first, so ties count as correct there. Tasks of other data or another rule are skipped.
    """
    contents: dict[Path, str] = {}
    skipped: dict[str, str] = {}
    theirs = {task: name for name, tasks in _TASKS.items() for task in tasks}
    for run in runs:
        revision = str(run.document.config.get("model_args", {}).get("revision") or _NO_REVISION[0])
        folder, known = Path(sanitised(run.model)) / sanitised(revision), dict.fromkeys(run.document.results)
        skipped |= dict.fromkeys((task for task in known if task not in theirs), _NO_TASK)
        for name in dict.fromkeys(theirs[task] for task in known if task in theirs):
            try:
                contents[folder / f"{name}.json"] = to_json(_file(run.document, name))
            except UsageError as error:
                skipped[name if len(_TASKS[name]) > 1 else _TASKS[name][0]] = str(error)
    if not contents:
        raise _nothing(skipped)
    if target is not None and target.suffix != ".json":
        return {target / name: text for name, text in contents.items()}, skipped
    if len(contents) > 1:
        raise UsageError(f"a file of mteb is one task of one model, and there are {len(contents)}; name a directory")
    return {target: next(iter(contents.values()))}, skipped


def _file(document: ResultsDocument, name: str) -> dict[str, object]:
    """A file of mteb; UsageError with why there is none."""
    tasks, counts, total = _TASKS[name], Counter[str](), 0
    if absent := sum(task not in document.results for task in tasks):
        raise UsageError(f"mteb's {name} is all {len(tasks)} parts, of which {absent} are missing")
    for task in tasks:
        numbers = {row.metric: row for row in document.numbers if (row.task, row.method) == (task, RAW)}
        extent = document.extent(task)
        if extent.limited or extent.groups != extent.of:
            raise UsageError(f"{extent.words} groups were scored")
        size, one_image = document.n_samples[task].effective, document.datasets[task].shape[0] == 1
        for theirs, ours in ({"text_acc": "text_score"} if one_image else _SQUARE).items():
            number = numbers.get(ours)
            if number is None or number.value is None:
                raise UsageError(f"it has no {ours} of scores")
            if (tied := number.ties) is None:
                raise UsageError("its ties are not known")
            if tied and not one_image:
                raise UsageError(f"{tied:g} groups have ties, which mteb decides by position")
            counts[theirs] += round(number.value * size) + round(tied)
        total += size
    scores = {name: count / total for name, count in counts.items()}
    main = scores.get("accuracy", scores["text_acc"])
    revisions = {document.datasets[task].revision for task in tasks}
    return {
        "dataset_revision": (revisions.pop() if len(revisions) == 1 else None) or _NO_REVISION[1],
        "task_name": name,
        "mteb_version": None,  # it was not mteb that computed them
        "scores": {"test": [{**scores, "main_score": main, "hf_subset": "default", "languages": ["eng-Latn"]}]},
        "evaluation_time": sum(sum(document.timing.get(task, {}).values()) for task in tasks),
        "kg_co2_emissions": None,
        "date": datetime.fromtimestamp(document.date, UTC).timestamp(),
    }


RANKED = ("zero_shot", "forced_choice", "matching", "test_time")
# The Hub's task type for models that compare images with captions.
TASK_TYPE, TASK_NAME = "zero-shot-image-classification", "Matching images and captions"


def export_model_index(runs: Sequence[ResultsFile], target: Path | None, source_url: str | None = None) -> Written:
    """The metadata of a model card on the Hub, in percent; of a target ``*.md`` the rest is kept.

    UsageError if the runs are of several models, or every task is skipped.
    """
    from huggingface_hub import EvalResult, ModelCardData

    numbers, left_out = _results_of(runs)
    tracks = {track: str(track).replace("_", "-") for track in {row.track for row, _ in numbers}}
    results = [
        EvalResult(
            task_type=TASK_TYPE,
            task_name=TASK_NAME,
            dataset_type=_on_hub(data) or row.task,
            dataset_name=row.task,
            # huggingface_hub would merge two tasks on one dataset that share a config.
            dataset_config=row.task,
            dataset_split=data.source.get("split"),
            dataset_revision=data.revision if _on_hub(data) else None,
            dataset_args={"task_version": row.origin.version, "groups": row.groups},
            metric_type=f"{row.metric} ({row.column})",
            metric_name=f"{row.metric.replace('_', ' ')} ({row.column}, {tracks[row.track]} track), percent",
            metric_value=_percent(row.value),
            metric_args={
                key: value
                for key, value in {
                    **{"track": row.track, "stderr": _percent(row.stderr)},
                    "ci95": None if row.interval is None else [*map(_percent, row.interval)],
                    **{"seeds": row.n_seeds, "seed_std": _percent(row.seed_std)},
                    **{"chance": _percent(row.chance), "ties": row.ties},
                }.items()
                if value is not None
            },
            source_url=source_url,
            source_name="ttmbench results" if source_url else None,
        )
        for row, data in numbers
    ]
    data = ModelCardData(model_name=numbers[0][0].model, eval_results=results, tags=["ttmbench"])
    if target is not None and target.suffix == ".md":
        return {target: _card(target, data)}, left_out
    return {target: data.to_yaml() + "\n"}, left_out


def _card(path: Path, data: ModelCardData) -> str:
    """The text of a model card with these results; DataError if an existing card cannot be read."""
    import yaml
    from huggingface_hub import ModelCard

    if not path.exists():
        return f"---\n{data.to_yaml()}\n---\n"
    try:
        card = ModelCard.load(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path}: must be a model card ({' '.join(str(error).split())})") from None
    metric, new = attrgetter("task_type", "dataset_type", "dataset_config", "metric_type"), data.eval_results or []
    replaced = set(map(metric, new))
    old = [result for result in card.data.eval_results or [] if metric(result) not in replaced]
    card.data.eval_results = [*old, *new]
    card.data.model_name = card.data.model_name or data.model_name
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *(data.tags or [])]))
    return str(card)


def _results_of(runs: Sequence[ResultsFile]) -> tuple[list[tuple[Number, Dataset]], dict[str, str]]:
    """The numbers of a model that are results of a task, with its data, and why others are not: task -> why.

    The oracle, controls, held-out groups, and runs on a part of a task are no results.
    """
    numbers = newest(number for run in runs for number in run.numbers)
    models = dict.fromkeys(row.model for row in numbers if not row.limited)
    if len(models) > 1:
        raise UsageError(f"metadata of the Hub is for one model, got {', '.join(models)}; export each separately")
    datasets = {task: data for run in runs for task, data in run.document.datasets.items()}
    left_out: dict[str, str] = {}
    results = []
    for row in numbers:
        if row.track == "supervised":
            left_out[row.own_task] = "the model was fine-tuned on labelled groups (track supervised)"
        elif row.track not in RANKED or row.value is None:
            continue
        elif row.limited or row.groups != row.extent.of:
            left_out[row.own_task] = f"{row.extent.words} groups are not a result for the task"
        else:
            results.append((row, datasets[row.own_task]))
    if not results:
        raise _nothing(left_out)
    exported = {row.own_task for row, _ in results}
    return results, {task: why for task, why in left_out.items() if task not in exported}


def _nothing(left_out: Mapping[str, str]) -> UsageError:
    """The error of an export that has nothing to write, with the reasons."""
    reasons = "; ".join(f"{task}: {why}" for task, why in left_out.items())
    return UsageError(f"nothing to export: {reasons or 'the runs have no results'}")


def _percent(value: float | None) -> float | None:
    """A fraction in percent, without binary noise."""
    return None if value is None else round(100 * value, 6)


def _on_hub(data: Dataset) -> str | None:
    """The dataset on the Hub that a task's data are of."""
    on_hub = data.source.get("kind") in ("huggingface", "hub_files") and "path" in data.source
    return str(data.source["path"]) if on_hub else None


_COLUMNS = (
    *("model", "task", "version", "metric", "method", "method_name", "track", "value", "stderr", "ci_low", "ci_high"),
    *("seed_std", "seeds", "chance", "ties", "cells", "adapted_to", "groups", "groups_of_task", "limited"),
    *("from_file", "fingerprint", "data", "date", "file"),
)
_GAINS = ("gain", "rel.", "err. red.")
_NEVER_BEST = (*_GAINS, ORACLE_COLUMN.name, "groups")
_IN_LATEX = {"±": r"$\pm$", SEEN_MARK: r"$^\dagger$", DISAGREES_MARK: r"$^\ddagger$"}
_ABOUT = (
    "Percent. raw: group score (else text score); SimpleMatch, TTM, other methods, oracle: group match (assignment\n"
    "% accuracy for global tasks); overfit: raw's metric. Gains are over SimpleMatch: points, relative, error\n"
    "% reduction. $\\pm$ is the standard deviation over seeds. Columns of different tracks are not to be ranked."
)


def export_csv(runs: Sequence[ResultsFile], target: Path | None) -> Written:
    """One line per number (`newest`), in fractions, empty where undefined; with ``setting`` if runs have several.

    Adapted models on other tasks have tasks ``adapted to@measured on``.
    """
    numbers = newest(number for run in runs for number in (*run.numbers, *run.numbers_elsewhere))
    columns = ("model", "setting", *_COLUMNS[1:]) if any(number.setting for number in numbers) else _COLUMNS
    return {target: csv_text(columns, (number.row() for number in numbers))}, {}


def export_latex(
    runs: Sequence[ResultsFile], target: Path | None, metrics: Sequence[str] = (), mark_best: bool = False
) -> Written:
    """Tables for the booktabs package, in percent: raw, SimpleMatch and TTM, then every metric by track.

    Args:
        runs: where several have a number, that of the newest run of the whole task counts.
        target: the file.
        metrics: of the tables by track; empty for all.
        mark_best: print the best of each column in bold, among rows of the same task and number of groups.

    Returns:
        ``tabular`` environments, each with a comment; the last has adapted models on other tasks.

    Raises:
        UsageError: an unknown metric.
    """
    import pandas as pd

    numbers = sorted(newest(number for run in runs for number in run.numbers), key=lambda row: row.limited)
    known = dict.fromkeys(row.metric for row in numbers)
    if unknown := [name for name in metrics if name not in known]:
        raise UsageError(f"--metrics: these results have no {', '.join(unknown)}; choose from {', '.join(known)}")
    downwards = {row.metric for row in numbers if not row.higher_is_better} if mark_best else None
    summary = _summary([row for row in numbers if row.track != "supervised"], runs)  # which has tables of its own
    written = [_tabular(_ABOUT, summary, 2, downwards)] if len(summary) else []
    methods = dict.fromkeys(column.method for column in columns_in(row.method for row in numbers))
    for (track, about), method in product(TRACK_TITLES.items(), methods):
        shown = [row for row in numbers if (row.track, row.method) == (track, method)]
        if shown := [row for row in shown if not metrics or row.metric in metrics]:
            cells: dict[tuple[str, str], dict[str, str]] = {}
            for row in shown:
                of_row = cells.setdefault((row.model, row.task), {"model": row.model, "task": row.task})
                of_row |= {row.metric: number_text(row), "groups": of_row.get("groups", row.extent.words)}
            heads = ["model", "task", *(metrics or dict.fromkeys(row.metric for row in shown)), "groups"]
            table = pd.DataFrame([*cells.values()]).reindex(columns=heads).dropna(axis=1, how="all").fillna(NOTHING)
            written.append(_tabular(f"{about} ({shown[0].column})", table, 2, downwards))
    transfers = [transfer_cells(row) for run in runs for row in run.transfers if row.shown]
    if transfers:
        written.append(_tabular(TRANSFER_TITLE, pd.DataFrame(transfers, columns=list(TRANSFER_HEADS)), 4))
    return {target: "\n".join(written)}, {}


def _summary(numbers: Sequence[Number], runs: Sequence[ResultsFile]) -> pd.DataFrame:
    """A paper's main table: the raw model, matching, adaptation, and the gains; empty if no task has groups."""
    import pandas as pd

    by_key = {(row.model, row.task, row.metric, row.method): row for row in numbers}
    matching = {(run.model, task): spec.get("matching") for run in runs for task, spec in run.document.configs.items()}
    tracks = {row.method: str(row.track).replace("_", "-") for row in reversed(numbers)}
    shown = (OVERFIT_COLUMN, TTM_COLUMN, ORACLE_COLUMN)
    adapted = [
        column
        for column in columns_in(dict.fromkeys(row.method for row in numbers))
        if column.method in tracks and (column in shown or column.method not in BUILT_IN_METHODS)
    ]
    rows = []
    for model, task in dict.fromkeys((row.model, row.task) for row in numbers if row.method == RAW):
        metrics = {m for (who, what, m, f) in by_key if (who, what, f) == (model, task, RAW)}
        raw_metric, match_metric = headline(metrics, matching.get((model, task)) == "global")
        raw, matched = (by_key.get((model, task, metric, RAW)) for metric in (raw_metric, match_metric))
        if raw is None and matched is None:
            continue
        row = {("", "model"): model, ("", "task"): task, ("zero-shot", RAW_COLUMN.name): number_text(raw)}
        row["matching", SIMPLE_MATCH_COLUMN.name] = number_text(matched)
        for column in adapted:
            value = by_key.get((model, task, raw_metric if column is OVERFIT_COLUMN else match_metric, column.method))
            row[tracks[column.method], column.name] = number_text(value)
            if column is TTM_COLUMN:
                row |= {("", name): gain for name, gain in zip(_GAINS, gains(matched, value), strict=True)}
        row["", "groups"] = next(known.extent.words for known in (raw, matched) if known is not None)
        rows.append(row)
    return pd.DataFrame(rows, columns=pd.MultiIndex.from_tuples(rows[0]) if rows else None)


def _tabular(title: str, table: pd.DataFrame, texts: int, downwards: Collection[str] | None = None) -> str:
    """A ``tabular`` with its title as comment; its first columns hold texts, the others numbers.

    With ``downwards``, the metrics of which less is better, the best printed values of each column are bold, among rows
    of the same task and number of groups.
    """
    import pandas as pd

    names, cells = list(table.columns.get_level_values(-1)), table.map(_latex_cell)
    for at, name in enumerate(names):
        if downwards is not None and at >= texts and name not in _NEVER_BEST:
            values = pd.to_numeric(table.iloc[:, at].str.partition(" ")[0], errors="coerce")
            alike = values.groupby([table.iloc[:, 1], table.iloc[:, names.index("groups")]])
            best = alike.transform("min" if name in downwards else "max")
            is_best = (values == best) & (alike.transform("count") > 1)
            cells.iloc[:, at] = cells.iloc[:, at].mask(is_best, r"\textbf{" + cells.iloc[:, at] + "}")
    heads = [
        [_latex_cell(str(head)) for head in table.columns.get_level_values(at)] for at in range(table.columns.nlevels)
    ]
    cells.columns = pd.MultiIndex.from_arrays(heads) if len(heads) > 1 else pd.Index(heads[0])
    alignment = "l" * texts + "r" * (len(names) - texts)
    style = cells.style.hide(axis="index")
    return f"% {title}\n{style.to_latex(column_format=alignment, hrules=True, sparse_columns=False)}"


def _latex_cell(text: str) -> str:
    """A cell in LaTeX; a signed number is in math mode, for a proper minus."""
    cell = latex(text)
    for mark, written in _IN_LATEX.items():
        cell = cell.replace(mark, written)
    return f"${cell}$" if re.fullmatch(r"[+-][0-9.]+%?", text) else cell


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """One line per row; a quote precedes what a spreadsheet would take for a formula."""
    import pandas as pd

    cells = [[csv_cell(row[name]) for name in columns] for row in rows]
    return pd.DataFrame(cells, columns=list(columns), dtype=object).to_csv(index=False, lineterminator="\n")


def csv_cell(value: object) -> object:
    r"""A cell that no spreadsheet reads as a formula; values that are not texts stay the same.

    >>> csv_cell('=HYPERLINK("x")'), csv_cell("clip"), csv_cell(-0.5)
    ('\'=HYPERLINK("x")', 'clip', -0.5)
    """
    is_risk = isinstance(value, str) and (value[:1] in ("\t", "\r", "\n") or value.lstrip()[:1] in tuple(_FORMULA))
    return f"'{value}" if is_risk else value


FORMATS: dict[str, Callable[..., Written]] = {
    "lm-eval": export_lm_eval,
    "model-index": export_model_index,
    "mteb": export_mteb,
    "csv": export_csv,
    "latex": export_latex,
}
"""``--to`` -> its function."""


def latex(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    >>> latex("50% of a_b")
    '50\\% of a\\_b'
    """
    return plain(" ".join(text.split()), keep="").translate(_LATEX)
