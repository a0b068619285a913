"""The JSON of lm-evaluation-harness, and that of mteb.

Readers of the first expect a number or ``N/A`` for ``metric_stderr,filter``, and a number for every other
``metric,filter``: undefined standard errors are ``N/A``, and undefined values are omitted.

mteb has a file a task: ``<model>/<revision>/<Task>.json``, in fractions. Its accuracy is a fraction of groups, in which
an index decides between equal scores: of a group with one image the correct caption is the first, so ties count as
correct there. Tasks that mteb scores on other data or by another rule are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ttmbench._util.files import to_json
from ttmbench.errors import UsageError
from ttmbench.report.export.hub import nothing_to_export
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import RAW, Number, key_of
from ttmbench.results.reader import ResultsFile

MISSING = "N/A"
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "tf32": "float32"}
# Keys of ttmbench, below one key so that no reader takes them for metrics.
_OWN = (
    *("schema_version", "status", "track", "tracks", "ci", "chance", "ties", "breakdowns", "tag_means", "datasets"),
    *("errors", "ttm_also"),
)


def export_lm_eval(runs: Sequence[ResultsFile], target: Path | None) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``lm-eval``; UsageError for more than one run."""
    if len(runs) > 1:
        raise UsageError("a file of lm-evaluation-harness is one run; export each results document separately")
    (run,) = runs
    if target is not None and target.suffix != ".json":  # a folder, in which its readers look for this name
        stamp = datetime.fromtimestamp(float(run.document.date)).isoformat().replace(":", "-")
        target = target / sanitised(run.model) / f"results_{stamp}.json"
    return {target: to_json(_document(run))}, {}


def _document(run: ResultsFile) -> dict[str, object]:
    """A run in the format of lm-evaluation-harness, with additional keys below ``ttmbench``."""
    document, numbers, content = run.document, run.numbers, run.document.to_dict()
    own_task = {row.task: row.own_task for row in numbers}  # a mean over values of tags is a separate task
    own_task = {task: own_task.get(task, task) for task in dict.fromkeys([*document.results, *own_task])}
    means = _values(document.groups, document.means)
    subtasks = document.group_subtasks
    in_a_group = {task for tasks in subtasks.values() for task in tasks}
    directions = {task: dict(document.higher_is_better[parent]) for task, parent in own_task.items()}
    for group, tasks in subtasks.items():
        directions[group] = {metric: up for task in tasks for metric, up in directions.get(task, {}).items()}
    of_cells = {row.task: {"original": row.groups, "effective": row.groups} for row in numbers if row.parts is not None}
    columns: dict[str, dict[str, str]] = {task: {} for task in own_task}
    spreads: dict[str, dict[str, float | None]] = {task: {} for task in own_task}
    for row in numbers:
        columns[row.task][row.key] = row.column
        if row.seeds:
            spreads[row.task][key_of(f"{row.metric}_seed_std", row.method)] = row.seed_std
    return {
        "results": {**_values(own_task, numbers), **means},
        **({"groups": means} if means else {}),
        "group_subtasks": {**subtasks, **{task: [] for task in own_task if task not in in_a_group}},
        "configs": {task: _task_config(task, parent, document) for task, parent in own_task.items()},
        "versions": {task: document.versions[parent] for task, parent in own_task.items()}
        | dict.fromkeys(means, MISSING),
        "n-shot": dict.fromkeys([*own_task, *means], 0),
        "higher_is_better": directions,
        "n-samples": {**content["n-samples"], **of_cells},
        "config": _config(document),
        **{key: content[key] for key in ("git_hash", "date", "task_hashes")},
        "pretty_env_info": "\n".join(
            f"{name}: {value}" for name, value in {**document.packages, **document.hardware}.items()
        ),
        "transformers_version": document.packages.get("transformers", MISSING),
        "model_source": document.config.get("model", "ttmbench"),
        "model_name": run.model,
        "model_name_sanitized": sanitised(run.model),
        "total_evaluation_time_seconds": str(document.total_evaluation_time_seconds),
        "ttmbench": {
            **{key: content[key] for key in _OWN if key in content},
            "columns": columns,
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
    """Name -> alias, ``metric,filter`` and ``metric_stderr,filter``."""
    values: dict[str, dict[str, object]] = {name: {"alias": name} for name in names}
    for row in numbers:
        if row.value is not None:
            stderr = MISSING if row.stderr is None else float(row.stderr)
            values[row.task] |= {row.key: float(row.value), key_of(f"{row.metric}_stderr", row.method): stderr}
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
    config = document.config
    model_args = config.get("model_args", {})
    known = {
        "model_num_parameters": document.fingerprint.get("n_parameters"),
        "model_dtype": _DTYPES.get(config.get("dtype", ""), config.get("dtype")),
        "model_revision": model_args.get("revision"),
    }
    return {
        "model": config.get("model", "ttmbench"),
        "model_args": ",".join(f"{key}={value}" for key, value in model_args.items()),
        **{key: value for key, value in known.items() if value is not None},
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
_WHY_NOT = {
    **dict.fromkeys(("aro_vg_relation", "aro_vg_attribution"), "mteb scores whole images, this task the parts of them"),
    **dict.fromkeys(
        ("flickr30k_retrieval", "coco_retrieval"),
        "mteb's main number is ndcg@10 with other captions, which recalls do not give",
    ),
    "imagecode": "mteb's copy has images of 256 x 256 pixels, on which numbers are far lower",
    "imagenet": "mteb has one prompt a class, this task several",
}
_NO_REVISION = ("no_revision_available", "revision_not_applicable")  # mteb's words, of a model and of data
_SQUARE = {"text_acc": "text_score", "image_acc": "image_score", "accuracy": "group_score"}


def export_mteb(runs: Sequence[ResultsFile], target: Path | None) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``mteb``: a file a task below a directory; the terminal or a file takes one task."""
    contents: dict[Path, str] = {}
    skipped: dict[str, str] = {}
    for run in runs:
        document = run.document
        folder = Path(sanitised(run.model)) / sanitised(
            str(document.config.get("model_args", {}).get("revision") or _NO_REVISION[0])
        )
        theirs = {task: name for name, tasks in _TASKS.items() for task in tasks}
        absent = (task for task in document.results if task not in theirs)
        skipped |= {task: _WHY_NOT.get(task, "mteb has no such task") for task in absent}
        for name in dict.fromkeys(theirs[task] for task in document.results if task in theirs):
            try:
                contents[folder / f"{name}.json"] = to_json(_file(document, name))
            except UsageError as error:
                skipped[name if len(_TASKS[name]) > 1 else _TASKS[name][0]] = str(error)
    if not contents:
        raise nothing_to_export(skipped)
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
        numbers, ties, extent = document.results[task], document.ties[task], document.extent(task)
        if extent.limited or extent.groups != extent.of:
            raise UsageError(f"{extent.words} groups were scored")
        size, one_image = document.n_samples[task].effective, document.datasets[task].shape[0] == 1
        for theirs, ours in ({"text_acc": "text_score"} if one_image else _SQUARE).items():
            value, tied = numbers.get(key_of(ours, RAW)), ties.get(key_of(ours, RAW))
            if value is None:
                raise UsageError(f"it has no {ours} of scores")
            if tied is None:
                raise UsageError("its ties are not known")
            if tied and not one_image:
                raise UsageError(f"{tied:g} groups have ties, which mteb decides by position")
            counts[theirs] += round(value * size) + round(tied)
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
