"""A sweep's plan: reads a YAML file of models, tasks and settings, and expands it to cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from ttmbench._util.files import safe_name
from ttmbench._util.option_values import split_names, with_dots
from ttmbench._util.text import Unreadable, read_yaml
from ttmbench._util.third_party_errors import describe
from ttmbench.config import RunConfig, make_run_config, parse_pairs
from ttmbench.data.catalog import select_tasks
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.settings import Chosen, also_tasks, check_config, task_settings
from ttmbench.evaluator.unit import Cell
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.sweep.grid import PAIRS, Grid, Setting, Target, combined, in_words, merged, targets_of
from ttmbench.types import Record

NOT_OF_A_CELL = {
    "output_path": "-o says where a sweep writes",
    "tasks": "tasks stand under `tasks`",
    "overwrite": "a sweep computes what is missing; remove a cell's folder to have it computed again",
    "on_error": "--on_error says it for the whole sweep",
    "assertions": "assertions are checked by `ttmbench run`",
    "baseline": "`ttmbench compare` compares the documents",
}
Names = Annotated[list[str], BeforeValidator(lambda value: split_names(value) if isinstance(value, str) else value)]
Values = dict[str, Annotated[list[object], Field(min_length=1)]]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Match(_Strict):
    """Selects cells by globs of their model, task (or its tags) and setting; an omitted key matches everything."""

    model: Names = ["*"]
    task: Names = ["*"]
    setting: Names = ["*"]

    def fits(self, model: Sequence[str], task: Sequence[str], setting: Sequence[str]) -> bool:
        """Whether a cell matches, by the names of its model, of its setting, and its task's name and tags."""
        pairs = ((self.model, model), (self.task, task), (self.setting, setting))
        return all(any(fnmatchcase(name, glob) for glob in globs for name in names) for globs, names in pairs)


class Override(Match):
    """Options for some cells, over all others in the plan."""

    options: dict[str, object]


class PlannedModel(BaseModel):
    """A model of a plan; further keys are options of its cells.

    Attributes:
        model: its name to load.
        name: what results call it; None for its own name.
        shards: as in `SweepPlan`; None for what it says.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    model: str = Field(min_length=1)
    name: str | None = Field(None, min_length=1)
    shards: int | None = Field(None, ge=1)


class PlannedSetting(BaseModel):
    """A setting of a plan; further keys are options of its cells.

    Attributes:
        name: of the setting, and the beginning of the names of its combinations.
        grid: as in `SweepPlan`, for this setting alone.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    grid: Values = {}

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if value != safe_name(value):
            raise ValueError("must be a name that a folder can have")
        return value


class SweepPlan(_Strict):
    """The content of a plan's file.

    Attributes:
        models: names, or mappings with ``model`` and any of ``name`` (what results call it), ``shards`` and options.
        tasks: names, tags, globs or files.
        settings: mappings with ``name`` and options; without any there is one setting without a name.
        grid: keys, each with values: every setting is there with each of their combinations. A key is an option, a
            setting of the setting's one method, ``METHOD.KEY``, or ``ttm.KEY`` (`ttmbench.sweep.grid`).
        options: of every cell.
        overrides: options of some cells.
        include: only cells that match one of these; empty for all.
        exclude: no cell that matches one of these.
        shards: number of units into which the scoring of a pair model or a server is divided.
    """

    models: list[PlannedModel] = Field(min_length=1)
    tasks: Names = Field(min_length=1)
    settings: list[PlannedSetting] = []
    grid: Values = {}
    options: dict[str, object] = {}
    overrides: list[Override] = []
    include: list[Match] = []
    exclude: list[Match] = []
    shards: int = Field(1, ge=1)

    @field_validator("models", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        return [{"model": entry} if isinstance(entry, str) else entry for entry in value]


@dataclass(frozen=True)
class PlannedCell:
    """A cell with its task and settings."""

    cell: Cell
    chosen: Chosen


def read_plan(path: Path) -> SweepPlan:
    """Reads a YAML file; UsageError names the file and the key if it cannot be read or a key is unknown or wrong."""
    try:
        content = read_yaml(path)
    except Unreadable as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: must be a mapping with the keys models and tasks, got {content!r:.80}")
    try:
        return SweepPlan(**{str(key): value for key, value in content.items()})
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, SweepPlan)}") from None


def expand(plan: SweepPlan, origin: str, over: Record, command: Sequence[str] = ()) -> list[PlannedCell]:
    """The cells of a plan, numbered from 1, model by model, task by task, setting by setting; nothing is loaded.

    Args:
        plan: the plan.
        origin: what it was read from, for messages.
        over: options of the command line, which override the plan's.
        command: the command line, for the record.

    Raises:
        UsageError: an unknown name or option, a setting that does not fit a task, two cells of one name, or no cell.
    """
    shared = _options(plan.options, f"{origin}: options")
    registry = build_registry([str(folder) for folder in {**shared, **over}.get("include_path", [])])
    tasks = _tasks(plan, registry, origin)
    of_model = [_options(model.model_extra or {}, f"{origin}: models: {model.model}") for model in plan.models]
    overrides = [(match, _options(match.options, f"{origin}: overrides")) for match in plan.overrides]
    cells: dict[str, PlannedCell] = {}
    for (model, of_this), (task, word), setting in product(
        zip(plan.models, of_model, strict=True), tasks.values(), _settings(plan, shared, registry, origin)
    ):
        name, names = task.spec.task, [name for name in (model.name, model.model) if name is not None]
        named = (names, [name, *task.spec.tag], setting.names)
        included = not plan.include or any(match.fits(*named) for match in plan.include)
        if not included or any(match.fits(*named) for match in plan.exclude):
            continue
        later = [of_this, *(changes for match, changes in overrides if match.fits(*named)), over]
        where = f"{origin}: cell {_path(setting.name, names[0], name)}"
        fixed = sorted(map(in_words, set[Target]().union(*map(targets_of, later)) & setting.varied))
        if fixed:
            raise UsageError(f"{where}: {fixed[0]} is in a grid, so no model, override or option may fix it")
        layers = [shared, setting.options, *later]
        options = {"log_samples": True, **merged(layers), "model": model.model, "tasks": [word]}
        if model.name is not None:
            options["model_name"] = model.name
        config = make_run_config({**options, "output_path": "."}, where)  # `Cell.config_at` says where a cell writes
        folder = _path(setting.name, safe_name(config.model_name), safe_name(name))
        if config.save_adapted is not None:
            config = config.model_copy(update={"save_adapted": str(Path(config.save_adapted) / folder)})
        number = len(cells) + 1
        shards, trains = model.shards or plan.shards, bool(registry.trained(config.methods))
        cell = Cell(number, folder, name, setting.name, config, shards, tuple(command), trains=trains)
        if folder in cells:
            raise UsageError(
                f"{origin}: cells {cells[folder].cell.number} and {number} would both write to {folder}; give one of "
                f"the models a name of its own ({{model: {model.model}, name: ...}})"
            )
        cells[folder] = PlannedCell(cell, _chosen(registry, config, where, task))
    if not cells:
        raise UsageError(f"{origin}: include and exclude leave no cell")
    return list(cells.values())


def _settings(plan: SweepPlan, shared: Record, registry: Registry, origin: str) -> list[Setting]:
    """Every setting; with a grid one for each combination, with its values in the name."""
    settings: dict[str, Setting] = {}
    for name, extra, grid in [(item.name, item.model_extra, item.grid) for item in plan.settings] or [("", None, {})]:
        where = f"{origin}: settings: {name}"
        grids: dict[str, Grid] = {f"{where}: grid": grid, f"{origin}: grid": plan.grid}
        grids = {source: values for source, values in grids.items() if values}
        for setting in combined(name, _options(extra or {}, where), grids, shared, registry, _options):
            if setting.name in settings:
                raise UsageError(f"{origin}: two settings are called {setting.name}; give each its own name")
            settings[setting.name] = setting
    return list(settings.values())


def _path(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _options(entries: Mapping[str, object], origin: str) -> Record:
    """Checks options of a run by the names of the command line; pairs become mappings."""
    options = {str(key).replace("-", "_"): value for key, value in entries.items()}
    for key, value in options.items():
        if key in NOT_OF_A_CELL:
            raise UsageError(f"{origin}: unknown key '{key}' in a sweep: {NOT_OF_A_CELL[key]}")
        if key not in RunConfig.model_fields or key in ("model", "model_name"):
            near = get_close_matches(key, RunConfig.model_fields, n=1)
            known = "it must be an option of `ttmbench run`"
            raise UsageError(f"{origin}: unknown key '{key}'; " + (f"did you mean '{near[0]}'?" if near else known))
        if key in PAIRS:
            pairs = parse_pairs(value) if isinstance(value, str) else value
            if not isinstance(pairs, Mapping):
                raise UsageError(f"{origin}: '{key}' must be a mapping, got {value!r:.80}")
            options[key] = with_dots(pairs) if key == "method_args" else pairs
        elif key in ("methods", "ttm_also", "ttm_controls", "track", "include_path"):
            names = split_names(value) if isinstance(value, str) else value
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise UsageError(f"{origin}: '{key}' must be a list of names, got {value!r:.80}")
            options[key] = names
    return options


def _chosen(registry: Registry, config: RunConfig, where: str, task: TaskFile) -> Chosen:
    try:
        check_config(config)
        registry.adapter(config.model)
        tasks = {task.spec.task: task.with_source(config.task_args)}
        settings = {task.spec.task: task_settings(registry, config, task.spec)}
        if config.methods:
            from ttmbench.evaluator.methods import check_methods  # imports torch

            check_methods(registry, config, tasks)
        return Chosen(registry, tasks, settings, also_tasks(registry, config, tasks))
    except TtmbenchError as error:
        raise UsageError(f"{where}: {error} (`exclude` in the plan leaves cells out)") from None


def _tasks(plan: SweepPlan, registry: Registry, origin: str) -> dict[str, tuple[TaskFile, str]]:
    """The tasks of a plan by name, each with what names it in a run: its name, or its file."""
    tasks: dict[str, tuple[TaskFile, str]] = {}
    for word in plan.tasks:
        try:
            named = select_tasks(registry, [word])
        except TtmbenchError as error:
            raise UsageError(f"{origin}: tasks: {error}") from None
        for name, task in named.items():
            tasks.setdefault(name, (task, name if name in registry.task_files else word))
    return tasks
