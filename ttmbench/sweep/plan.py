"""A sweep's plan: a YAML file of models, tasks and settings, and the cells that it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ttmbench._util.files import safe_name
from ttmbench._util.text import Unreadable, read_yaml
from ttmbench._util.third_party_errors import describe
from ttmbench.config import RunConfig, make_run_config, parse_pairs, split_names
from ttmbench.data.catalog import select_tasks
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.settings import Chosen, also_tasks, check_config, task_settings
from ttmbench.evaluator.unit import Cell
from ttmbench.plugins.registry import Registry, build_registry

PAIRS = ("model_args", "task_args", "ttm_args", "track_args", "rerank")
NOT_OF_A_CELL = {
    "output_path": "-o says where a sweep writes",
    "tasks": "tasks stand under `tasks`",
    "overwrite": "a sweep computes what is missing; remove a cell's folder to have it computed again",
    "on_error": "--on_error says it for the whole sweep",
    "assertions": "assertions are checked by `ttmbench run`",
    "baseline": "`ttmbench compare` compares the documents",
}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Match(_Strict):
    """Cells by globs of their model, task and setting; what is left out fits all. A task also goes by its tags."""

    model: list[str] = ["*"]
    task: list[str] = ["*"]
    setting: list[str] = ["*"]

    @field_validator("model", "task", "setting", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return split_names(value) if isinstance(value, str) else value

    def fits(self, model: Sequence[str], task: Sequence[str], setting: str) -> bool:
        """Whether a cell is meant; a model goes by its names, a task by its name and tags."""
        return _any_fits(self.model, model) and _any_fits(self.task, task) and _any_fits(self.setting, [setting])


class Override(Match):
    """Options for some cells, over all others in the plan."""

    options: dict[str, Any]


class SweepPlan(_Strict):
    """A plan as its file has it.

    Attributes:
        models: names, or mappings with ``model`` and any of ``name`` (what results call it), ``shards`` and options.
        tasks: names, tags, globs or files.
        settings: mappings with ``name`` and options; without any there is one setting, which has no name.
        options: of every cell.
        overrides: options of some cells.
        include: only cells that one of these fits; none for all.
        exclude: and none that one of these fits.
        shards: into how many parts the scoring of a pair model or a server is cut.
    """

    models: list[str | dict[str, Any]] = Field(min_length=1)
    tasks: list[str] = Field(min_length=1)
    settings: list[dict[str, Any]] = []
    options: dict[str, Any] = {}
    overrides: list[Override] = []
    include: list[Match] = []
    exclude: list[Match] = []
    shards: int = Field(1, ge=1)

    @field_validator("tasks", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return split_names(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class PlannedCell:
    """A cell with what its names stand for."""

    cell: Cell
    chosen: Chosen


def read_plan(path: Path) -> SweepPlan:
    """Reads a plan.

    Args:
        path: a YAML file.

    Returns:
        The plan; names are not looked up yet.

    Raises:
        UsageError: it cannot be read, or a key is unknown, missing or wrong; the file is named, and the key.
    """
    try:
        content = read_yaml(path)
    except Unreadable as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: is no plan, which is a mapping with the keys models and tasks")
    try:
        return SweepPlan(**{str(key): value for key, value in content.items()})
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, SweepPlan)}") from None


def expand(plan: SweepPlan, origin: str, over: Mapping[str, Any], command: Sequence[str] = ()) -> list[PlannedCell]:
    """The cells of a plan, model by model, task by task, setting by setting; nothing is loaded.

    Args:
        plan: the plan.
        origin: what it was read from, for messages.
        over: options of the command line, which win over the plan's.
        command: the command line, for the record.

    Returns:
        The cells, numbered from 1.

    Raises:
        UsageError: an unknown name or option, a setting that does not fit a task, two cells of one name, or no cell.
    """
    shared = _options(plan.options, f"{origin}: options")
    first = {**shared, **over}
    registry = build_registry([str(one) for one in first.get("include_path", [])])
    tasks = _tasks(plan, registry, origin)
    models = [_Model.read(one, f"{origin}: models") for one in plan.models]
    settings = [_setting(one, f"{origin}: settings") for one in plan.settings] or [("", {})]
    found: list[PlannedCell] = []
    folders: dict[str, int] = {}
    for model in models:
        for name, (task, word) in tasks.items():
            for setting, options in settings:
                named = (model.names, [name, *task.spec.tag], setting)
                if not _is_wanted(plan, *named):
                    continue
                layers = [shared, options, model.options]
                layers += [_options(one.options, f"{origin}: overrides") for one in plan.overrides if one.fits(*named)]
                where = "/".join(part for part in (setting, model.name or model.model, name) if part)
                given = _merged([*layers, over, {"model": model.model, "tasks": [word]}])
                if model.name is not None:
                    given["model_name"] = model.name
                one = _planned(registry, given, f"{origin}: cell {where}", task, setting)
                number = len(found) + 1
                folder = one.cell.folder
                if folder in folders:
                    raise UsageError(
                        f"{origin}: cells {folders[folder]} and {number} would both write to {folder}; give one of "
                        f"the models a name of its own ({{model: {model.model}, name: ...}})"
                    )
                folders[folder] = number
                found.append(_numbered(one, number, model.shards or plan.shards, tuple(command)))
    if not found:
        raise UsageError(f"{origin}: include and exclude leave no cell")
    return found


@dataclass(frozen=True)
class _Model:
    """A model of a plan: its name to load, what results call it if the plan says so, and its options."""

    model: str
    name: str | None
    shards: int | None
    options: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return [self.model] if self.name is None else [self.name, self.model]

    @classmethod
    def read(cls, given: str | Mapping[str, Any], origin: str) -> _Model:
        if isinstance(given, str):
            return cls(given, None, None, {})
        rest = dict(given)
        model, name, shards = rest.pop("model", None), rest.pop("name", None), rest.pop("shards", None)
        if not isinstance(model, str) or not model:
            raise UsageError(f"{origin}: an entry is a name or a mapping with the key 'model', got {given!r:.80}")
        if name is not None and (not isinstance(name, str) or not name):
            raise UsageError(f"{origin}: {model}: 'name' is what results call the model, got {name!r:.80}")
        if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
            raise UsageError(f"{origin}: {model}: 'shards' is a whole number from 1, got {shards!r:.80}")
        return cls(model, name, shards, _options(rest, f"{origin}: {model}"))


def _setting(given: Mapping[str, Any], origin: str) -> tuple[str, dict[str, Any]]:
    rest = dict(given)
    name = rest.pop("name", None)
    if not isinstance(name, str) or name != safe_name(name):
        raise UsageError(f"{origin}: every setting needs a 'name' that can be a folder's, got {name!r:.80}")
    return name, _options(rest, f"{origin}: {name}")


def _options(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Options of a run by the names of the command line; pairs as mappings."""
    options = {str(key).replace("-", "_"): value for key, value in given.items()}
    for key, value in options.items():
        if key in NOT_OF_A_CELL:
            raise UsageError(f"{origin}: there is no '{key}' here: {NOT_OF_A_CELL[key]}")
        if key not in RunConfig.model_fields or key in ("model", "model_name"):
            near = get_close_matches(key, RunConfig.model_fields, n=1)
            raise UsageError(f"{origin}: unknown key '{key}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        if key in PAIRS:
            options[key] = parse_pairs(value) if isinstance(value, str) else value
            if not isinstance(options[key], Mapping):
                raise UsageError(f"{origin}: '{key}' is a mapping, got {value!r:.80}")
        elif key in ("ttm_also", "ttm_controls", "track", "include_path") and isinstance(value, str):
            options[key] = split_names(value)
    return options


def _merged(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Later layers win; of pairs, pair by pair."""
    found: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            found[key] = {**found.get(key, {}), **value} if key in PAIRS else value
    return found


def _planned(registry: Registry, given: Mapping[str, Any], where: str, task: TaskFile, setting: str) -> PlannedCell:
    given = {"log_samples": True, **given}  # without samples no two of the runs can be compared
    config = make_run_config({**given, "output_path": "."}, where)  # where a cell writes is told by `Cell.config_at`
    name = task.spec.task
    folder = "/".join(part for part in (setting, safe_name(config.model_name), safe_name(name)) if part)
    if config.save_adapted is not None:
        config = config.model_copy(update={"save_adapted": str(Path(config.save_adapted) / folder)})
    try:
        check_config(config)
        registry.adapter(config.model)
        tasks = {name: task.with_source(config.task_args)}
        settings = {name: task_settings(registry, config, task.spec)}
        chosen = Chosen(registry, tasks, settings, also_tasks(registry, config, tasks))
    except TtmbenchError as error:
        raise UsageError(f"{where}: {error} (`exclude` in the plan leaves cells out)") from None
    return PlannedCell(Cell(0, folder, config.model_name, name, setting, config), chosen)


def _numbered(one: PlannedCell, number: int, shards: int, command: tuple[str, ...]) -> PlannedCell:
    cell = one.cell
    numbered = Cell(number, cell.folder, cell.model, cell.task, cell.setting, cell.config, shards, command)
    return PlannedCell(numbered, one.chosen)


def _tasks(plan: SweepPlan, registry: Registry, origin: str) -> dict[str, tuple[TaskFile, str]]:
    """The tasks of a plan by name, each with the word that names it for a run: its name, or its file."""
    found: dict[str, tuple[TaskFile, str]] = {}
    for word in plan.tasks:
        try:
            named = select_tasks(registry, [word])
        except TtmbenchError as error:
            raise UsageError(f"{origin}: tasks: {error}") from None
        for name, task in named.items():
            found.setdefault(name, (task, name if name in registry.task_files else word))
    return found


def _is_wanted(plan: SweepPlan, model: Sequence[str], task: Sequence[str], setting: str) -> bool:
    wanted = not plan.include or any(one.fits(model, task, setting) for one in plan.include)
    return wanted and not any(one.fits(model, task, setting) for one in plan.exclude)


def _any_fits(globs: Sequence[str], names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs for name in names)
