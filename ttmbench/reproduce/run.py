"""The runs that would fill what a table lacks, as commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench._util.files import safe_name
from ttmbench.data.catalog import find_task
from ttmbench.evaluator.adapters import loads_as
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.rows import MISSING, OTHER, ComparedRow
from ttmbench.reproduce.tables import ModelEntry, PublishedTable
from ttmbench.results.labels import BUILT_IN_FILTERS, CHOICE, RAW
from ttmbench.results.models import command_line


@dataclass(frozen=True)
class PlannedRun:
    """A run that would fill rows."""

    model: str
    paid: bool  # it asks a server that takes money
    commands: list[str]  # the finetuning that makes its weights, if it needs one, and the run


def plan(
    table: PublishedTable, rows: Iterable[ComparedRow], registry: Registry, common: Mapping[str, Any]
) -> Iterator[PlannedRun]:
    """The runs for every row of `compare` that is missing, or whose number is of other data.

    One for each model and stage, so that a model is loaded once for its tasks; several seeds where the table states a
    spread over several. ``common`` are options of every run, such as where it writes.
    """
    needed: dict[str, dict[str, set[str]]] = {}  # filters by model and task
    for row in rows:
        for task in row.tasks if row.verdict in (MISSING, OTHER) else ():
            filters = needed.setdefault(row.number.model, {}).setdefault(task, set())
            filters |= {row.number.column.filter} - {RAW, CHOICE}
    for model, tasks in needed.items():
        entry = table.spec.models[model]
        finetuning, loaded = _finetuning(entry, registry, common)
        alike: dict[tuple[tuple[str, ...], str | None], list[str]] = {}
        for task, filters in tasks.items():
            preset = _preset(table, entry.model, task, registry) if filters else None
            alike.setdefault((tuple(sorted(filters)), preset), []).append(task)
        for (stages, preset), names in alike.items():
            adapting = _adapting(table, stages, preset) if stages else {}
            settings = {**loaded, "tasks": names, **adapting, "on_error": "continue", **common}
            yield PlannedRun(
                str(loaded["model"]), entry.paid, [*finetuning, command_line(["ttmbench", "run"], settings)]
            )


def _adapting(table: PublishedTable, stages: Iterable[str], preset: str | None) -> dict[str, Any]:
    """The options of a run that adapts the model in these ways, with the table's settings."""
    settings: dict[str, Any] = {name: True for name in stages if name in BUILT_IN_FILTERS}
    if settings:
        settings["ttm_preset"] = preset
    shared = {key: value for key, value in table.spec.settings.items() if key not in ("ttm_preset", "method_args")}
    settings |= {"seeds": list(range(table.spec.runs)), **shared}
    if methods := [name for name in stages if name not in BUILT_IN_FILTERS]:
        arguments = table.spec.settings.get("method_args", {})
        mine = {key: value for key, value in arguments.items() if key.partition(".")[0] in methods}
        settings |= {"methods": methods, "method_args": mine}
    return settings


def _preset(table: PublishedTable, model: str | None, task: str, registry: Registry) -> str:
    """The table's preset, or ``auto`` where the task has none for this model."""
    wanted = str(table.spec.settings.get("ttm_preset", "auto"))
    if wanted == "paper" and (model is None or registry.adapter(model).name not in find_task(registry, task).spec.ttm):
        return "auto"
    return wanted


def _finetuning(entry: ModelEntry, registry: Registry, common: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The command of a model's finetuning, none where it needs none; and how a run loads the model."""
    loaded = {"model": entry.model, "model_args": entry.model_args}
    how = entry.finetuned
    if how is None or entry.model is None:
        return [], loaded
    name = "_".join([entry.model, *how.tasks, *([how.preset] if how.preset else [])])
    folder = str(Path(common["output_path"]) / "finetuned" / safe_name(name))
    settings = {**loaded, "tasks": how.tasks, "preset": how.preset, "finetune_args": how.args}
    model, arguments = loads_as(registry.adapter(entry.model).target, entry.model, folder)
    command = command_line(["ttmbench", "finetune"], {**settings, **common, "output_path": folder})
    return [command], {"model": model, "model_args": arguments}
