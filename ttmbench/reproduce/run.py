"""The runs that would fill what a table lacks: as commands, and carried out one after the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench._util.files import safe_name
from ttmbench.data.catalog import find_task
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.adapters import loads_as
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.rows import MISSING, OTHER, ComparedRow
from ttmbench.reproduce.tables import ModelEntry, PublishedTable
from ttmbench.results.labels import BUILT_IN_FILTERS, CHOICE, RAW
from ttmbench.results.models import command_line

_OF_SOME_METHODS = ("ttm_preset", "method_args")


@dataclass(frozen=True)
class PlannedRun:
    """A run that would fill rows.

    Attributes:
        settings: options of ``ttmbench run``.
        paid: it asks a server that takes money.
        finetuning: options of the ``ttmbench finetune`` that makes its weights; none for other models.
    """

    settings: Mapping[str, Any]
    paid: bool = False
    finetuning: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The run as a command line."""
        return command_line(["ttmbench", "run"], self.settings)

    @property
    def commands(self) -> list[str]:
        """What has to be done, as command lines: the finetuning, if there is one, and the run."""
        finetuning = [command_line(["ttmbench", "finetune"], self.finetuning)] if self.finetuning else []
        return [*finetuning, self.command]


def plan(
    table: PublishedTable, rows: Iterable[ComparedRow], registry: Registry, common: Mapping[str, Any]
) -> Iterator[PlannedRun]:
    """The runs for every row of `compare` that is missing, or whose number is of other data.

    One for each model and stage, so that a model is loaded once for its tasks; several seeds where the table states a
    spread over several. ``common`` are options of every run, such as where it writes.
    """
    stages: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        if row.verdict in (MISSING, OTHER):
            for task in row.tasks:
                filters = stages.setdefault(row.number.model, {}).setdefault(task, set())
                filters |= {row.number.column.filter} - {RAW, CHOICE}
    for model, tasks in stages.items():
        entry = table.spec.models[model]
        alike: dict[tuple[Any, ...], list[str]] = {}
        for task, needed in tasks.items():
            preset = _preset(table, entry.model, task, registry) if needed else None
            alike.setdefault((tuple(sorted(needed)), preset), []).append(task)
        for (needed, preset), names in alike.items():
            finetuning, loaded = _finetuning(entry, registry, common)
            settings: dict[str, Any] = {**loaded, "tasks": names}
            methods = [name for name in needed if name not in BUILT_IN_FILTERS]
            stages_of_ttm = [name for name in needed if name in BUILT_IN_FILTERS]
            settings |= dict.fromkeys(stages_of_ttm, True)
            if stages_of_ttm:
                settings |= {"ttm_preset": preset}
            if needed:
                shared = {key: value for key, value in table.spec.settings.items() if key not in _OF_SOME_METHODS}
                settings |= {"seeds": list(range(table.spec.runs)), **shared}
            if methods:
                arguments = table.spec.settings.get("method_args", {})
                mine = {key: value for key, value in arguments.items() if key.partition(".")[0] in methods}
                settings |= {"methods": methods, "method_args": mine}
            yield PlannedRun({**settings, "on_error": "continue", **common}, entry.paid, finetuning)


def _finetuning(
    entry: ModelEntry, registry: Registry, common: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a model's finetuning, none where it needs none; and how a run loads the model."""
    loaded = {"model": entry.model, "model_args": entry.model_args}
    how = entry.finetuned
    if how is None or entry.model is None:
        return {}, loaded
    name = "_".join([entry.model, *how.tasks, *([how.preset] if how.preset else [])])
    folder = str(Path(common["output_path"]) / "finetuned" / safe_name(name))
    settings = {**loaded, "tasks": how.tasks, "preset": how.preset, "finetune_args": how.args, **common}
    model, arguments = loads_as(registry.adapter(entry.model).target, entry.model, folder)
    return {**settings, "output_path": folder}, {"model": model, "model_args": arguments}


def carry_out(run: PlannedRun) -> Iterator[str]:
    """Carries out a run, which writes its results itself, and yields what failed, in a sentence each.

    Whatever fails, the caller can go on.
    """
    from ttmbench.evaluator.simple_evaluate import simple_evaluate

    settings = dict(run.settings)
    name = f"{settings['model']}"
    try:
        if run.finetuning:
            _finetune(run)
        results = simple_evaluate(
            settings.pop("model"), settings.pop("tasks"), command=shlex.split(run.command), **settings
        )
    except TtmbenchError as error:
        yield f"{name}: {error}"
    except Exception as error:  # a library that cannot reach its weights raises errors of its own
        yield f"{name}: {type(error).__name__}: {' '.join(str(error).split())}"
    else:
        for record in results["errors"]:
            yield f"{name}, {record['task']}: {record['message']}"


def _finetune(run: PlannedRun) -> None:
    """Makes the weights of a run; nothing is done where they are there already."""
    from ttmbench.config import make_run_config
    from ttmbench.evaluator.finetune import finetune_model

    settings = dict(run.finetuning)
    preset, changes = settings.pop("preset"), settings.pop("finetune_args")
    command = shlex.split(run.commands[0])
    finetune_model(make_run_config(settings), datetime.now().astimezone(), command, preset=preset, changes=changes)


def _preset(table: PublishedTable, model: str | None, task: str, registry: Registry) -> str:
    """The table's preset, or ``auto`` where the task has none for this model."""
    wanted = str(table.spec.settings.get("ttm_preset", "auto"))
    if wanted == "paper" and (model is None or registry.adapter(model).name not in find_task(registry, task).spec.ttm):
        return "auto"
    return wanted


def skipped_for_money(runs: Sequence[PlannedRun], named: Sequence[str]) -> list[PlannedRun]:
    """Runs that take money and whose model nobody named."""
    return [run for run in runs if run.paid and run.settings["model"] not in named]
