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
from ttmbench._util.option_values import split_names
from ttmbench._util.text import Unreadable, read_yaml
from ttmbench._util.third_party_errors import describe
from ttmbench.config import RunConfig, TTMConfig, make_run_config, parse_pairs
from ttmbench.data.catalog import select_tasks
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.settings import Chosen, also_tasks, check_config, task_settings
from ttmbench.evaluator.unit import Cell
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.types import Record

PAIRS = ("model_args", "task_args", "ttm_args", "track_args", "rerank")
NOT_OF_A_CELL = {
    "output_path": "-o says where a sweep writes",
    "tasks": "tasks stand under `tasks`",
    "overwrite": "a sweep computes what is missing; remove a cell's folder to have it computed again",
    "on_error": "--on_error says it for the whole sweep",
    "assertions": "assertions are checked by `ttmbench run`",
    "baseline": "`ttmbench compare` compares the documents",
}
Names = Annotated[list[str], BeforeValidator(lambda value: split_names(value) if isinstance(value, str) else value)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Match(_Strict):
    """Selects cells by globs of their model, task (or its tags) and setting; an omitted key matches everything."""

    model: Names = ["*"]
    task: Names = ["*"]
    setting: Names = ["*"]

    def fits(self, model: Sequence[str], task: Sequence[str], setting: str) -> bool:
        """Whether a cell matches; ``model`` are the model's names, ``task`` the task's name and tags."""
        pairs = ((self.model, model), (self.task, task), (self.setting, [setting]))
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
    """A setting of a plan; further keys are options of its cells."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

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
        grid: settings of TTM, or options, each with values: every setting is combined with all combinations of them.
        options: of every cell.
        overrides: options of some cells.
        include: only cells that match one of these; empty for all.
        exclude: no cell that matches one of these.
        shards: number of units into which the scoring of a pair model or a server is divided.
    """

    models: list[PlannedModel] = Field(min_length=1)
    tasks: Names = Field(min_length=1)
    settings: list[PlannedSetting] = []
    grid: dict[str, Annotated[list[object], Field(min_length=1)]] = {}
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
    for (model, of_this), (task, word), (setting, options) in product(
        zip(plan.models, of_model, strict=True), tasks.values(), _settings(plan, origin)
    ):
        name, names = task.spec.task, [name for name in (model.name, model.model) if name is not None]
        named = (names, [name, *task.spec.tag], setting)
        included = not plan.include or any(match.fits(*named) for match in plan.include)
        if not included or any(match.fits(*named) for match in plan.exclude):
            continue
        layers = [shared, options, of_this, *(given for match, given in overrides if match.fits(*named)), over]
        given = {"log_samples": True, **_merged(layers), "model": model.model, "tasks": [word]}
        if model.name is not None:
            given["model_name"] = model.name
        where = f"{origin}: cell {_path(setting, names[0], name)}"
        config = make_run_config({**given, "output_path": "."}, where)  # `Cell.config_at` says where a cell writes
        folder = _path(setting, safe_name(config.model_name), safe_name(name))
        if config.save_adapted is not None:
            config = config.model_copy(update={"save_adapted": str(Path(config.save_adapted) / folder)})
        number = len(cells) + 1
        cell = Cell(number, folder, name, setting, config, model.shards or plan.shards, tuple(command))
        if folder in cells:
            raise UsageError(
                f"{origin}: cells {cells[folder].cell.number} and {number} would both write to {folder}; give one of "
                f"the models a name of its own ({{model: {model.model}, name: ...}})"
            )
        cells[folder] = PlannedCell(cell, _chosen(registry, config, where, task))
    if not cells:
        raise UsageError(f"{origin}: include and exclude leave no cell")
    return list(cells.values())


def _settings(plan: SweepPlan, origin: str) -> list[tuple[str, Record]]:
    """Name and options of every setting; with a grid one for each combination, with its values in the name."""
    named = [(one.name, _options(one.model_extra or {}, f"{origin}: settings: {one.name}")) for one in plan.settings]
    settings: list[tuple[str, Record]] = []
    for (name, options), values in product(named or [("", {})], product(*plan.grid.values())):
        chosen = dict(zip(plan.grid, values, strict=True))
        of_ttm = {key: value for key, value in chosen.items() if TTMConfig.takes(key)}
        given = _options({key: value for key, value in chosen.items() if key not in of_ttm}, f"{origin}: grid")
        stages = ("ttm", "simple_match", "oracle")
        if of_ttm and not any(stage in each for each in (plan.options, options, given) for stage in stages):
            given["ttm"] = True
        given |= {"ttm_args": of_ttm} if of_ttm else {}
        if chosen:
            name = safe_name("-".join([*([name] if name else []), *(f"{key}{value}" for key, value in chosen.items())]))
            if name in dict(settings):
                raise UsageError(f"{origin}: grid: two combinations are called {name}; give each value once")
        settings.append((name, _merged([options, given])))
    return settings


def _path(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _options(given: Mapping[str, object], origin: str) -> Record:
    """Checks options of a run by the names of the command line; pairs become mappings."""
    options = {str(key).replace("-", "_"): value for key, value in given.items()}
    for key, value in options.items():
        if key in NOT_OF_A_CELL:
            raise UsageError(f"{origin}: unknown key '{key}' in a sweep: {NOT_OF_A_CELL[key]}")
        if key not in RunConfig.model_fields or key in ("model", "model_name"):
            near = get_close_matches(key, RunConfig.model_fields, n=1)
            known = "it must be an option of `ttmbench run` or, in a grid, a setting of TTM"
            raise UsageError(f"{origin}: unknown key '{key}'; " + (f"did you mean '{near[0]}'?" if near else known))
        if key in PAIRS:
            options[key] = parse_pairs(value) if isinstance(value, str) else value
            if not isinstance(options[key], Mapping):
                raise UsageError(f"{origin}: '{key}' must be a mapping, got {value!r:.80}")
        elif key in ("ttm_also", "ttm_controls", "track", "include_path") and isinstance(value, str):
            options[key] = split_names(value)
    return options


def _merged(layers: Sequence[Record]) -> Record:
    """Merges layers, of which later ones override; mappings are merged by their keys."""
    merged: Record = {}
    for layer in layers:
        for key, value in layer.items():
            merged[key] = {**merged.get(key, {}), **value} if key in PAIRS else value
    return merged


def _chosen(registry: Registry, config: RunConfig, where: str, task: TaskFile) -> Chosen:
    try:
        check_config(config)
        registry.adapter(config.model)
        tasks = {task.spec.task: task.with_source(config.task_args)}
        settings = {task.spec.task: task_settings(registry, config, task.spec)}
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
