"""Metadata of the Hugging Face Hub, in percent: the model card's ``model-index``, and ``.eval_results/*.yaml``.

Numbers that are not a result of the task are skipped: the oracle, controls, held-out groups, runs on a part of a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ttmbench._util.files import safe_name
from ttmbench.errors import DataError, UsageError
from ttmbench.results.document import Dataset
from ttmbench.results.numbers import RAW, SLASH, Number, newest
from ttmbench.results.reader import ResultsFile

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

RANKED = ("zero_shot", "forced_choice", "matching", "test_time")
# The Hub's task type for models that compare images with captions.
TASK_TYPE, TASK_NAME = "zero-shot-image-classification", "Matching images and captions"
_HUB_KINDS = ("huggingface", "hub_files")


def export_model_index(
    runs: Sequence[ResultsFile], target: Path | None, source_url: str | None = None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``model-index``; a target ``*.md`` is a model card, of which the rest is kept.

    UsageError if the runs are of several models, or every task is skipped.
    """
    from huggingface_hub import EvalResult, ModelCardData

    numbers, left_out = _results_of(runs)
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
            dataset_args={"task_version": row.version, "groups": row.groups},
            metric_type=f"{row.metric} ({row.column})",
            metric_name=f"{_called(row)}, percent",
            metric_value=percent(row.value),
            metric_args=_circumstances(row),
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


def export_evaluation_results(
    runs: Sequence[ResultsFile], target: Path | None, source_url: str | None = None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``evaluation-results``: one YAML file, or a directory with one per task and track."""
    try:
        from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    except ImportError:
        raise DataError("evaluation-results needs huggingface_hub 1.4: pip install -U huggingface_hub") from None

    numbers, left_out = _results_of(runs)
    files: dict[str, list[EvalResultEntry]] = {}
    for row, data in numbers:
        dataset = _on_hub(data)
        if dataset is None:
            left_out[row.own_task] = "its data are not a dataset on the Hub"
            continue
        how = "" if row.method == RAW else f"_{row.method}"
        files.setdefault(f"ttmbench_{row.own_task}_{row.track}", []).append(
            EvalResultEntry(
                dataset_id=dataset,
                task_id=f"{row.task.replace(SLASH, '_')}_{row.metric}{how}",
                value=percent(row.value),
                dataset_revision=data.revision,
                date=row.date,
                source_url=source_url,
                source_name="ttmbench results" if source_url else None,
                notes=_note(row),
            )
        )
    if not files:
        raise nothing_to_export(left_out)
    if target is None or target.suffix in (".yaml", ".yml"):
        every = [entry for entries in files.values() for entry in eval_result_entries_to_yaml(entries)]
        return {target: _to_yaml(every)}, left_out
    return {
        target / f"{safe_name(name)}.yaml": _to_yaml(eval_result_entries_to_yaml(entries))
        for name, entries in files.items()
    }, left_out


def _results_of(runs: Sequence[ResultsFile]) -> tuple[list[tuple[Number, Dataset]], dict[str, str]]:
    """The numbers of a model that are results of a task, with its data, and why others are not: task -> why."""
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
        raise nothing_to_export(left_out)
    exported = {row.own_task for row, _ in results}
    return results, {task: why for task, why in left_out.items() if task not in exported}


def nothing_to_export(left_out: Mapping[str, str]) -> UsageError:
    """The error of an export that has nothing to write, with the reasons."""
    reasons = "; ".join(f"{task}: {why}" for task, why in left_out.items())
    return UsageError(f"nothing to export: {reasons or 'the runs have no results'}")


def percent(value: float | None) -> float | None:
    """A fraction in percent, without binary noise.

    >>> percent(0.85375)
    85.375
    """
    return None if value is None else round(100 * value, 6)


def _to_yaml(content: object) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def _on_hub(data: Dataset) -> str | None:
    """The dataset on the Hub that a task's data are of."""
    return str(data.source["path"]) if data.source.get("kind") in _HUB_KINDS and "path" in data.source else None


def _called(row: Number) -> str:
    return f"{row.metric.replace('_', ' ')} ({row.column}, {str(row.track).replace('_', '-')} track)"


def _circumstances(row: Number) -> dict[str, object]:
    """Further details of a number, in percent."""
    values = {
        "track": row.track,
        "stderr": percent(row.stderr),
        "ci95": None if row.interval is None else [*map(percent, row.interval)],
        "seeds": row.n_seeds,
        "seed_std": percent(row.seed_std),
        "chance": percent(row.chance),
        "ties": row.ties,
    }
    return {key: value for key, value in values.items() if value is not None}


def _note(row: Number) -> str:
    parts = [f"{_called(row)}, percent"]
    if row.parts is not None:
        parts.append(f"mean over {row.parts} kinds of groups ({row.task.partition(SLASH)[2]})")
    if row.track == "test_time":
        parts.append("adapted to the images and captions of the test, without labels")
    if row.n_seeds is not None:
        spread = "" if row.seed_std is None else f", standard deviation {100 * row.seed_std:.2f}"
        parts.append(f"{row.n_seeds} seed{'s' if row.n_seeds > 1 else ''}{spread}")
    return "; ".join([*parts, f"{row.extent.words} groups", f"ttmbench task version {row.version}"])
