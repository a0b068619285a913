"""The JSON of lm-evaluation-harness, for whatever reads its results files.

Its readers format every ``metric_stderr,filter`` as a number unless it is the string ``N/A``, and take every other
``metric,filter`` for a number: so an undefined interval is ``N/A``, and an undefined value is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench._util.files import to_json
from ttmbench.errors import UsageError
from ttmbench.results.labels import seed_std_key, stderr_key
from ttmbench.results.numbers import DocumentFile, Number, means_of

MISSING = "N/A"
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# What its readers do not know lies here, so that nothing of it is taken for a metric.
_OWN = (
    *("schema_version", "status", "track", "tracks", "ci", "chance", "ties", "breakdowns", "tag_means", "datasets"),
    "errors",
    "ttm_also",
)


def export_lm_eval_file(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``lm-eval`` as `ttmbench.report.export.Exporter` says; UsageError for more than one run."""
    if len(runs) > 1:
        raise UsageError("a file of lm-evaluation-harness is one run: export each results document alone")
    path = target if target is None or target.suffix == ".json" else target / file_name(runs[0])
    return {path: to_json(lm_eval_document(runs[0]))}, {}


def lm_eval_document(run: DocumentFile) -> dict[str, Any]:
    """A results document as lm-evaluation-harness writes its own.

    Args:
        run: one run.

    Returns:
        The document; keys that are only ours are below ``ttmbench``.
    """
    document = run.document.to_dict()
    subtasks = document.get("group_subtasks", {})
    numbers = run.numbers()
    own_task = {one.task: one.own_task for one in numbers}  # a mean over values of tags is a task to its readers
    tasks = _values(dict.fromkeys([*document["results"], *own_task]), numbers)
    means = _values(document.get("groups", {}), means_of(run.document))
    in_a_group = {task for names in subtasks.values() for task in names}
    packages = document["packages"]
    return {
        "results": {**tasks, **means},
        **({"groups": means} if means else {}),
        "group_subtasks": {**subtasks, **{name: [] for name in tasks if name not in in_a_group}},
        "configs": {name: _task_config(name, own_task.get(name, name), document) for name in tasks},
        "versions": {
            **{name: document["versions"][own_task.get(name, name)] for name in tasks},
            **dict.fromkeys(means, MISSING),
        },
        "n-shot": dict.fromkeys([*tasks, *means], 0),
        "higher_is_better": _directions(document, own_task),
        "n-samples": {
            **dict(document["n-samples"]),
            **{one.task: {"original": one.groups, "effective": one.groups} for one in numbers if one.cells is not None},
        },
        "config": _config(document),
        "git_hash": document["git_hash"],
        "date": document["date"],
        "pretty_env_info": "\n".join(
            f"{name}: {value}" for name, value in {**packages, **document["hardware"]}.items()
        ),
        "transformers_version": packages.get("transformers", MISSING),
        "task_hashes": dict(document["task_hashes"]),
        "model_source": document["config"].get("model", "ttmbench"),
        "model_name": run.model,
        "model_name_sanitized": sanitised(run.model),
        "total_evaluation_time_seconds": str(document["total_evaluation_time_seconds"]),
        "ttmbench": {
            **{key: document[key] for key in _OWN if key in document},
            "columns": {task: {one.key: one.method for one in numbers if one.task == task} for task in tasks},
            "seed_std": {
                task: {seed_std_key(one.metric, one.filter): one.seed_std for one in numbers if _has_spread(one, task)}
                for task in tasks
            },
            "version": packages.get("ttmbench"),
        },
    }


def file_name(run: DocumentFile) -> str:
    """Where lm-evaluation-harness would put it below its output folder: ``<model>/results_<time>.json``."""
    stamp = datetime.fromtimestamp(float(run.document.date)).isoformat().replace(":", "-")
    return f"{sanitised(run.model)}/results_{stamp}.json"


def sanitised(model: str) -> str:
    """A model's name as a folder, by the rule of lm-evaluation-harness; never one that leads elsewhere.

    >>> sanitised("google/siglip"), sanitised("..")
    ('google__siglip', '__')
    """
    return re.sub(r"^\.+", "__", re.sub(r'["<>:/|\\?*\[\]]+', "__", model)) or "model"


def _values(names: Iterable[str], numbers: Sequence[Number]) -> dict[str, dict[str, Any]]:
    """Name -> alias, ``metric,filter`` and ``metric_stderr,filter``."""
    found: dict[str, dict[str, Any]] = {name: {"alias": name} for name in names}
    for one in numbers:
        if one.value is not None:
            stderr = MISSING if one.stderr is None else float(one.stderr)
            found[one.task] |= {one.key: float(one.value), stderr_key(one.metric, one.filter): stderr}
    return found


def _has_spread(one: Number, task: str) -> bool:
    return one.task == task and one.seeds is not None


def _directions(document: Mapping[str, Any], own_task: Mapping[str, str]) -> dict[str, dict[str, bool]]:
    found = {name: dict(one) for name, one in document["higher_is_better"].items()}
    found |= {name: dict(found[task]) for name, task in own_task.items()}
    for group, names in document.get("group_subtasks", {}).items():
        found[group] = {metric: up for name in names for metric, up in found.get(name, {}).items()}
    return found


def _task_config(name: str, task: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """What its readers show of a task; of a mean over values of a task's tags under its own name."""
    spec, source = document["configs"][task], document["datasets"][task].get("source", {})
    directions = document["higher_is_better"][task]
    return {
        "task": name,
        "tag": spec.get("tag", []),
        "dataset_path": source.get("path", source.get("kind", name)),
        "test_split": source.get("split"),
        "description": spec.get("description", ""),
        "output_type": "multiple_choice",
        "repeats": 1,
        "num_fewshot": 0,
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": up} for metric, up in directions.items()
        ],
        "metadata": {"version": document["versions"][task]},
    }


def _config(document: Mapping[str, Any]) -> dict[str, Any]:
    config = document["config"]
    fingerprint = document["model_info"].get("fingerprint", {})
    seed = config.get("seed", 0)
    known = {
        "model_num_parameters": fingerprint.get("n_parameters"),
        "model_dtype": _DTYPES.get(config.get("dtype", ""), config.get("dtype")),
        "model_revision": config.get("model_args", {}).get("revision"),
    }
    return {
        "model": config.get("model", "ttmbench"),
        "model_args": ",".join(f"{key}={value}" for key, value in config.get("model_args", {}).items()),
        **{key: value for key, value in known.items() if value is not None},
        "batch_size": str(config.get("batch_size", "")),
        "batch_sizes": [],
        "device": config.get("device"),
        "use_cache": None,
        "limit": config.get("limit"),
        "bootstrap_iters": config.get("bootstrap_iters"),
        "gen_kwargs": None,
        "random_seed": seed,
        "numpy_seed": seed,
        "torch_seed": seed,
        "fewshot_seed": seed,
    }
