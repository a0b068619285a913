"""Results in the formats of other tools: lm-evaluation-harness, mteb, model cards, and a CSV file of numbers.

Each format is a function of runs, ``--output_path`` and its own options. It returns the texts to write, by file (None
for the terminal), and what was skipped and why, by task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from ttmbench._annotations import pd
from ttmbench._util.file_io import safe_name, to_json
from ttmbench.errors import DataError, UsageError
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import RAW, Number, key_of, newest, read_key
from ttmbench.results.reader import ResultsFile

Written = tuple[dict[Path | None, str], dict[str, str]]
_FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # with the full-width forms, which spreadsheets of some languages take too


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
        target = target / safe_name(run.model) / f"results_{stamp}.json"
    document, content, config = run.document, run.document.to_dict(), run.document.config
    entries, up = {**document.results, **document.groups}, dict(document.higher_is_better)
    for group, tasks in document.group_subtasks.items():
        up[group] = {metric: is_up for task in tasks for metric, is_up in up.get(task, {}).items()}
    grouped = {task for tasks in document.group_subtasks.values() for task in tasks}
    results = {name: {"alias": name, **_lm_eval_numbers(values)} for name, values in entries.items()}
    exported = {
        "results": results,
        **({"groups": {name: results[name] for name in document.groups}} if document.groups else {}),
        "group_subtasks": {**{task: [] for task in document.results if task not in grouped}, **document.group_subtasks},
        "configs": {
            task: {"task": task, "output_type": "multiple_choice", "num_fewshot": 0, "metadata": {"version": version}}
            for task, version in document.versions.items()
        },
        "versions": {name: document.versions.get(name, "N/A") for name in results},
        "n-shot": dict.fromkeys(results, 0),
        "higher_is_better": up,
        "config": {
            "model": config.get("model", "ttmbench"),
            "model_args": ",".join(f"{key}={value}" for key, value in config.get("model_args", {}).items()),
            **{key: config.get(key) for key in ("batch_size", "device", "limit", "bootstrap_iters")},
            **dict.fromkeys(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), config.get("seed", 0)),
        },
        **{key: content[key] for key in ("n-samples", "git_hash", "date", "task_hashes")},
        "model_source": config.get("model", "ttmbench"),
        "model_name": run.model,
        "model_name_sanitized": safe_name(run.model),
        "total_evaluation_time_seconds": str(document.total_evaluation_time_seconds),
    }
    return {target: to_json(exported)}, {}


def _lm_eval_numbers(entries: Mapping[str, float | None]) -> dict[str, object]:
    """Entries of results as its readers expect them, without those over seeds."""
    values: dict[str, object] = {}
    for key, value in entries.items():
        metric, method, part = read_key(key)
        if part == "value" and value is not None:
            stderr = entries.get(key_of(metric, method, "stderr"))
            values |= {key: float(value), key_of(metric, method, "stderr"): "N/A" if stderr is None else float(stderr)}
    return values


_PARTS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
_MTEB = {
    "Winoground": ("winoground",),
    "SugarCrepe": tuple(f"sugarcrepe_{part}" for part in _PARTS),
    "AROCocoOrder": ("aro_coco_order",),
    "AROFlickrOrder": ("aro_flickr30k_order",),
}
"""Task of mteb -> those of ttmbench with the same groups."""


def export_mteb(runs: Sequence[ResultsFile], target: Path | None) -> Written:
    """The files of mteb, ``<model>/<revision>/<Task>.json``; the terminal or a file takes one task.

    mteb breaks ties by position. In a group with one image the correct caption is the first, so a tie there is correct.
    """
    contents, skipped = dict[Path, str](), dict[str, str]()
    theirs = {task: name for name, tasks in _MTEB.items() for task in tasks}
    for run in sorted(runs, key=lambda run: float(run.document.date)):  # so that the newest counts
        revision = str(run.document.config.get("model_args", {}).get("revision") or "no_revision_available")
        for task in run.document.results:
            if (name := theirs.get(task)) is None:
                skipped[task] = "mteb has no such task, or scores it by other data or another rule"
                continue
            try:
                file = Path(safe_name(run.model), safe_name(revision), f"{name}.json")
                contents[file] = to_json(_mteb_file(run.document, name))
            except UsageError as error:
                skipped[name] = str(error)
    if not contents:
        raise UsageError(f"nothing to export: {'; '.join(f'{task}: {why}' for task, why in skipped.items())}")
    if target is not None and target.suffix != ".json":
        return {target / name: text for name, text in contents.items()}, skipped
    if len(contents) > 1:
        raise UsageError(f"a file of mteb is one task of one model, and there are {len(contents)}; name a directory")
    return {target: next(iter(contents.values()))}, skipped


def _mteb_file(document: ResultsDocument, name: str) -> dict[str, object]:
    """A file of mteb; UsageError with why there is none."""
    tasks, counts, total = _MTEB[name], Counter[str](), 0
    if absent := sum(task not in document.results for task in tasks):
        raise UsageError(f"mteb's {name} is all {len(tasks)} parts, of which {absent} are missing")
    for task in tasks:
        numbers = {row.metric: row for row in document.numbers if (row.task, row.method) == (task, RAW)}
        extent, one_image = document.extent(task), document.datasets[task].shape[0] == 1
        if extent.groups is None or extent.limited or extent.groups != extent.of:
            raise UsageError(f"{extent.words} groups were scored")
        square = {"text_acc": "text_score", "image_acc": "image_score", "accuracy": "group_score"}
        for theirs, ours in ({"text_acc": "text_score"} if one_image else square).items():
            number = numbers.get(ours)
            if number is None or number.value is None or number.ties is None:
                raise UsageError(f"it has no {ours} of scores with known ties")
            if number.ties and not one_image:
                raise UsageError(f"{number.ties:g} groups have ties, which mteb decides by position")
            counts[theirs] += round(number.value * extent.groups) + round(number.ties)
        total += extent.groups
    scores = {metric: count / total for metric, count in counts.items()}
    scores["main_score"] = scores.get("accuracy", scores["text_acc"])
    revisions = {document.datasets[task].revision or "revision_not_applicable" for task in tasks}
    return {
        "dataset_revision": revisions.pop() if len(revisions) == 1 else "revision_not_applicable",
        "task_name": name,
        "mteb_version": None,  # it was not mteb that computed them
        "scores": {"test": [{**scores, "hf_subset": "default", "languages": ["eng-Latn"]}]},
        "evaluation_time": sum(sum(document.timing.get(task, {}).values()) for task in tasks),
    }


def export_model_index(runs: Sequence[ResultsFile], target: Path | None, source_url: str | None = None) -> Written:
    """The metadata of a model card on the Hub, in percent; of a target ``*.md`` the rest is kept.

    The oracle, controls, and runs on a part of a task are no results. UsageError if the runs are of several models, or
    nothing is left; DataError if an existing card cannot be read.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    numbers = newest(number for run in runs for number in run.numbers)
    models = dict.fromkeys(row.model for row in numbers if not row.limited)
    if len(models) > 1:
        raise UsageError(f"metadata of the Hub is for one model, got {', '.join(models)}; export each separately")
    datasets = {task: data for run in runs for task, data in run.document.datasets.items()}
    results, left_out = list[EvalResult](), dict[str, str]()
    for row in (row for row in numbers if row.track not in (None, "oracle") and row.value is not None):
        if row.track == "supervised" or row.limited or row.groups != row.extent.of:
            is_part = f"{row.extent.words} groups are not a result for the task"
            left_out[row.own_task] = "the model was fine-tuned on labels" if row.track == "supervised" else is_part
            continue
        source = datasets[row.own_task].source
        is_on_hub = source.get("kind") in ("huggingface", "hub_files") and "path" in source
        rates = {name: getattr(row, name) for name in ("value", "stderr", "seed_std", "chance")}
        percents = {name: round(100 * rate, 6) for name, rate in rates.items() if rate is not None}
        name = f"{row.metric.replace('_', ' ')} ({row.column}, {str(row.track).replace('_', '-')} track), percent"
        results.append(
            EvalResult(
                task_type="zero-shot-image-classification",  # the Hub's, for models that compare images with captions
                task_name="Matching images and captions",
                dataset_type=str(source["path"]) if is_on_hub else row.task,
                dataset_name=row.task,
                dataset_config=row.task,  # huggingface_hub would merge two tasks on one dataset that share a config
                dataset_split=source.get("split"),
                dataset_revision=datasets[row.own_task].revision if is_on_hub else None,
                dataset_args={"task_version": row.origin.version, "groups": row.groups},
                metric_type=f"{row.metric} ({row.column})",
                metric_name=name,
                metric_value=percents.pop("value"),
                metric_args={"track": row.track, **({"seeds": row.n_seeds} if row.seeds else {}), **percents},
                source_url=source_url,
            )
        )
    if not results:
        reasons = "; ".join(f"{task}: {why}" for task, why in left_out.items())
        raise UsageError(f"nothing to export: {reasons or 'the runs have no results'}")
    left_out = {task: why for task, why in left_out.items() if all(one.dataset_name != task for one in results)}
    data = ModelCardData(model_name=next(iter(models)), eval_results=results, tags=["ttmbench"])
    if target is None or target.suffix != ".md" or not target.exists():
        card = data.to_yaml() + "\n"
        return {target: f"---\n{card}---\n" if target is not None and target.suffix == ".md" else card}, left_out
    try:
        card = ModelCard.load(target)
    except Exception as error:  # of the libraries that read it
        raise DataError(f"{target}: must be a model card ({' '.join(str(error).split())})") from None
    metric = attrgetter("task_type", "dataset_type", "dataset_config", "metric_type")
    replaced = set(map(metric, results))
    old = [result for result in card.data.eval_results or [] if metric(result) not in replaced]
    card.data.eval_results = [*old, *results]
    card.data.model_name = card.data.model_name or data.model_name
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), "ttmbench"]))
    return {target: str(card)}, left_out


def export_numbers(runs: Sequence[ResultsFile], target: Path | None) -> Written:
    """One line per number (`newest`), in fractions, empty where undefined, with the columns of `Number.row`.

    Adapted models on other tasks have tasks ``adapted to@measured on``.
    """
    numbers = newest(number for run in runs for number in (*run.numbers, *run.numbers_elsewhere))
    return {target: csv_text([*Number("", "", "", None).row()], (number.row() for number in numbers))}, {}


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """One line per row; a quote precedes what a spreadsheet would take for a formula."""
    cells = [[csv_cell(row[name]) for name in columns] for row in rows]
    return pd.DataFrame(cells, columns=list(columns), dtype=object).to_csv(index=False, lineterminator="\n")


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet reads as a formula; values that are not texts stay the same."""
    is_risk = isinstance(value, str) and (value[:1] in ("\t", "\r", "\n") or value.lstrip()[:1] in tuple(_FORMULA))
    return f"'{value}" if is_risk else value


FORMATS: dict[str, Callable[..., Written]] = {
    "lm-eval": export_lm_eval,
    "model-index": export_model_index,
    "mteb": export_mteb,
    "numbers": export_numbers,
}
"""``--to`` -> its function."""
