"""Metadata of the Hugging Face hub: the model card's ``model-index``, and ``.eval_results/*.yaml``.

Both are made by ``huggingface_hub``. A model card is read by people, so values are in percent. Numbers that are no
result of the task are left out, with the reason: the oracle, controls, held-out groups, and runs on a part of a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ttmbench._util.files import safe_name
from ttmbench.errors import DataError, UsageError
from ttmbench.results.labels import RAW, SLASH
from ttmbench.results.numbers import DocumentFile, Number, newest

RANKED = ("zero_shot", "forced_choice", "matching", "test_time")
# Of the hub's own list, the one that a model which compares images with captions is filed under.
TASK_TYPE, TASK_NAME = "zero-shot-image-classification", "Matching images and captions"
_HUB_KINDS = ("huggingface", "hub_files", "webdataset")


def export_model_index(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``model-index`` as `ttmbench.report.export.Exporter` says; a target ``*.md`` is a card."""
    data, left_out = model_card_data(runs, source_url)
    if target is not None and target.suffix == ".md":
        return {target: write_card(target, data)}, left_out
    return {target: data.to_yaml() + "\n"}, left_out


def export_evaluation_results(
    runs: Sequence[DocumentFile], target: Path | None, source_url: str | None
) -> tuple[dict[Path | None, str], dict[str, str]]:
    """The format ``evaluation-results`` as `ttmbench.report.export.Exporter` says: a file a dataset, or one of all."""
    files, left_out = evaluation_results(runs, source_url)
    if target is None or target.suffix in (".yaml", ".yml"):
        return {target: to_yaml([entry for entries in files.values() for entry in entries])}, left_out
    return {target / f"{safe_name(name)}.yaml": to_yaml(entries) for name, entries in files.items()}, left_out


def model_card_data(runs: Sequence[DocumentFile], source_url: str | None = None) -> tuple[Any, dict[str, str]]:
    """The metadata of a model card.

    Args:
        runs: of one model; of a number that several have the newest counts.
        source_url: where the results can be seen.

    Returns:
        A ``huggingface_hub.ModelCardData``, and what was left out: task -> why.

    Raises:
        UsageError: the runs are of several models, or nothing is left.
    """
    from huggingface_hub import EvalResult, ModelCardData

    numbers, left_out = results_of(runs)
    models = list(dict.fromkeys(run.model for run in runs))
    if len(models) > 1:
        raise UsageError(f"a model card is of one model, and these runs are of {', '.join(models)}: export each alone")
    configs = {task: about for run in runs for task, about in run.document.to_dict()["datasets"].items()}
    found = []
    for one in numbers:
        about = configs[one.own_task]
        source, on_hub = about.get("source", {}), _hub_dataset(about)
        found.append(
            EvalResult(
                task_type=TASK_TYPE,
                task_name=TASK_NAME,
                dataset_type=on_hub or one.task,
                dataset_name=one.task,
                # The hub's library merges entries of one dataset and config: two tasks on one dataset stay two.
                dataset_config=one.task,
                dataset_split=source.get("split"),
                dataset_revision=about.get("revision") if on_hub else None,
                dataset_args={"task_version": one.version, "groups": one.groups},
                metric_type=f"{one.metric} ({one.method})",
                metric_name=f"{one.metric.replace('_', ' ')} ({one.method}, {_track(one)} track), percent",
                metric_value=percent(one.value),
                metric_args=_circumstances(one),
                source_url=source_url,
                source_name="ttmbench results" if source_url else None,
            )
        )
    return ModelCardData(model_name=models[0], eval_results=found, tags=["ttmbench"]), left_out


def write_card(path: Path, data: Any) -> str:
    """The text of a model card with these results: a new card, or the one that is there with its results renewed.

    Args:
        path: the ``.md`` file.
        data: a ``ModelCardData`` with results.

    Returns:
        The text; of a card that exists everything else is kept, results of other metrics too.

    Raises:
        DataError: the card that is there cannot be read.
    """
    from huggingface_hub import ModelCard

    if not path.exists():
        return f"---\n{data.to_yaml()}\n---\n"
    try:
        card = ModelCard.load(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path}: is no model card ({' '.join(str(error).split())})") from None
    old = list(card.data.eval_results or [])
    kept = [one for one in old if not any(_same_metric(one, new) for new in data.eval_results)]
    card.data.eval_results = [*kept, *data.eval_results]
    card.data.model_name = card.data.model_name or data.model_name
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *data.tags]))
    return str(card)


def evaluation_results(
    runs: Sequence[DocumentFile], source_url: str | None = None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Entries for ``.eval_results/*.yaml``, by file, so that no two tracks share one.

    Args:
        runs: of one model.
        source_url: where the results can be seen.

    Returns:
        Name of a file without ending -> its entries; and what was left out: task -> why.

    Raises:
        UsageError: the runs are of several models, or nothing is left.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    numbers, left_out = results_of(runs)
    if len({run.model for run in runs}) > 1:
        raise UsageError("evaluation results lie in the repository of one model: export the runs of each model alone")
    datasets = {task: about for run in runs for task, about in run.document.to_dict()["datasets"].items()}
    files: dict[str, list[Any]] = {}
    for one in numbers:
        dataset = _hub_dataset(datasets[one.own_task])
        if dataset is None:
            left_out[one.own_task] = "its data are no dataset of the hub"
            continue
        how = "" if one.filter == RAW else f"_{one.filter}"
        files.setdefault(f"ttmbench_{one.own_task}_{one.track}", []).append(
            EvalResultEntry(
                dataset_id=dataset,
                task_id=f"{one.task.replace(SLASH, '_')}_{one.metric}{how}",
                value=percent(one.value),
                dataset_revision=datasets[one.own_task].get("revision"),
                date=one.date,
                source_url=source_url,
                source_name="ttmbench results" if source_url else None,
                notes=_note(one),
            )
        )
    if not files:
        raise UsageError(f"nothing to export: {_reasons(left_out)}")
    return {name: eval_result_entries_to_yaml(entries) for name, entries in files.items()}, left_out


def results_of(runs: Sequence[DocumentFile]) -> tuple[list[Number], dict[str, str]]:
    """The numbers that may stand as results of a task, and why others may not: task -> why."""
    left_out: dict[str, str] = {}
    found = []
    for one in newest(number for run in runs for number in run.numbers()):
        if one.track == "supervised":
            left_out[one.own_task] = "the model was finetuned on labelled groups (track supervised)"
            continue
        if one.track not in RANKED or one.value is None:
            continue
        if one.limited or one.groups != one.groups_of_task:
            left_out[one.own_task] = f"{one.extent.words} groups are no result of the task"
        else:
            found.append(one)
    if not found:
        raise UsageError(f"nothing to export: {_reasons(left_out) or 'the runs have no results'}")
    return found, left_out


def percent(value: float | None) -> float | None:
    """A fraction in percent, without the noise of binary digits.

    >>> percent(0.85375)
    85.375
    """
    return None if value is None else round(100 * value, 6)


def to_yaml(content: Any) -> str:
    """YAML in the order given."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def _hub_dataset(about: Mapping[str, Any]) -> str | None:
    source = about.get("source", {})
    return str(source["path"]) if source.get("kind") in _HUB_KINDS and "path" in source else None


def _track(one: Number) -> str:
    return str(one.track).replace("_", "-")


def _circumstances(one: Number) -> dict[str, Any]:
    """What belongs to a number; percent."""
    values = {
        "track": one.track,
        "stderr": percent(one.stderr),
        "ci95": None if one.ci_low is None else [percent(one.ci_low), percent(one.ci_high)],
        "seeds": one.seeds,
        "seed_std": percent(one.seed_std),
        "chance": percent(one.chance),
        "ties": one.ties,
    }
    return {key: value for key, value in values.items() if value is not None}


def _note(one: Number) -> str:
    parts = [f"{one.metric.replace('_', ' ')}, {one.method} ({_track(one)} track), percent"]
    if one.cells is not None:
        parts.append(f"mean over {one.cells} kinds of groups ({one.task.partition(SLASH)[2]})")
    if one.track == "test_time":
        parts.append("adapted to the images and captions of the test, without labels")
    if one.seeds is not None:
        spread = "" if one.seed_std is None else f", standard deviation {100 * one.seed_std:.2f}"
        parts.append(f"{one.seeds} seed{'s' if one.seeds > 1 else ''}{spread}")
    return "; ".join([*parts, f"{one.extent.words} groups", f"ttmbench task version {one.version}"])


def _same_metric(one: Any, other: Any) -> bool:
    keys = ("task_type", "dataset_type", "dataset_config", "metric_type")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _reasons(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{task}: {why}" for task, why in left_out.items())
