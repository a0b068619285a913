"""A sweep's plan: reads a YAML file of models, tasks and settings with grids of values, and expands it to cells."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ttmbench._util.file_io import Unreadable, file_digest, read_json, read_yaml, safe_name
from ttmbench._util.third_party import describe, near_name
from ttmbench.config import RENAMED, Names, RunConfig, make_run_config, parse_pairs, split_names, with_dots
from ttmbench.data.task_file import TaskFile, select_tasks
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.evaluate import Chosen, resolve
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.types import Record

MOST = 1000
"""Combinations of the values of one setting."""
PAIRS = [name for name, field in RunConfig.model_fields.items() if get_origin(field.annotation) is dict]
"""Options with settings of their own, by name."""
_LONGEST = 120  # characters of a name


@dataclass(frozen=True)
class Setting:
    """A setting of a plan."""

    name: str  # with the values of a grid, ``NAME lr=0.001 train=norm``; also its folder; empty for the only one
    base: str  # its name without values
    options: Record  # of its cells
    varied: Record  # what its grid sets, over everything else


def merged(layers: Sequence[Record]) -> Record:
    """Merges layers, of which later ones override; mappings are merged by their keys."""
    merged: Record = {}
    for layer in layers:
        for key, value in layer.items():
            merged[key] = {**merged.get(key, {}), **value} if key in PAIRS else value
    return merged


def _name(name: str, chosen: Mapping[str, object]) -> str:
    """The name of a combination, which is also a folder's.

    >>> _name("tent", {"lr": 1e-3, "train": "lora:4", "betas": [0.9, 0.99]}), _name("raw", {})
    ('tent lr=0.001 train=lora_4 betas=0.9+0.99', 'raw')
    """
    words = [f"{key}={_text(value)}" for key, value in chosen.items()]
    full = " ".join([*([name] if name else []), *(re.sub(r"[^A-Za-z0-9._+=-]", "_", word) for word in words)])
    full = full.rstrip(".") if words else full
    if len(full) <= _LONGEST:
        return full
    return f"{full[: _LONGEST - 9]}-{hashlib.sha256(repr([name, words]).encode()).hexdigest()[:8]}"


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "+".join(map(_text, value))
    if isinstance(value, Mapping):
        return "+".join(f"{key}={_text(child)}" for key, child in value.items())
    return str(value)


NOT_OF_A_CELL = {
    "output_path": "-o says where a sweep writes",
    "tasks": "tasks stand under `tasks`",
    "overwrite": "a sweep computes what is missing; remove a cell's folder to have it computed again",
}
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


class PlannedModel(BaseModel):
    """A model of a plan; further keys are options of its cells."""

    model_config = ConfigDict(frozen=True, extra="allow")

    model: str = Field(min_length=1)
    name: str | None = Field(None, min_length=1)  # what results call it


class PlannedSetting(BaseModel):
    """A setting of a plan; further keys are options of its cells."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    grid: Values = {}  # of this setting alone

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if value != safe_name(value.replace("__", "/")):
            raise ValueError("must be a name that a folder can have")
        return value


class SweepPlan(_Strict):
    """The content of a plan's file."""

    models: list[PlannedModel] = Field(min_length=1)  # names, or mappings with ``model``, ``name`` and options
    tasks: Names = Field(min_length=1)  # names, tags, globs or files
    settings: list[PlannedSetting] = []  # without any there is one without a name
    grid: Values = {}  # key -> values: every setting is there with each combination (`ttmbench.sweep.plan`)
    options: dict[str, object] = {}  # of every cell
    exclude: list[Match] = []  # cells that are left out

    @field_validator("models", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        return [{"model": entry} if isinstance(entry, str) else entry for entry in value]


@dataclass(frozen=True)
class Cell:
    """One model, task and setting: an ordinary run with its own folder."""

    number: int  # from 1, in the order of the plan; what ``--cell`` takes
    folder: str  # where it writes, below the sweep's folder: ``[setting/]model/task``; also its name
    task: str
    setting: str  # its name; empty where the plan has none
    config: RunConfig  # the run
    chosen: Chosen  # its task and settings

    @property
    def document(self) -> Path:
        """Of its results."""
        return Path(str(self.config.output_path))

    def is_done(self) -> bool:
        """Whether the document is of this run and complete, and the files beside it are as it says.

        Model and data are not looked at.
        """
        try:
            document = read_json(self.document)
            if document["status"] != "done" or document["run_key"] != self.chosen.key(self.config).sha256:
                return False
            folder, files = self.document.parent, document["artifacts"].items()
            return all(file_digest(folder / Path(name).name) == about["sha256"] for name, about in files)
        except (Unreadable, OSError, KeyError, TypeError):
            return False


def read_plan(path: Path) -> SweepPlan:
    """Reads a YAML file; UsageError names the file and the key if it cannot be read or a key is unknown or wrong."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path}: must be a mapping with the keys models and tasks, got {content!r:.80}")
    try:
        return SweepPlan(**{str(key): value for key, value in content.items()})
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error, SweepPlan)}") from None


def expand(plan: SweepPlan, origin: str, over: Record, root: Path = Path()) -> list[Cell]:
    """The cells of a plan, numbered from 1, model by model, task by task, setting by setting; nothing is loaded.

    ``origin`` names the plan in messages, and ``over`` are options of the command line, which override the plan's.
    UsageError for an unknown name or option, a setting that does not fit a task, two cells of one name, or no cell.
    """
    shared = _options(plan.options, f"{origin}: options")
    registry = build_registry([str(folder) for folder in {**shared, **over}.get("include_path", [])])
    tasks = _tasks(plan, registry, origin)
    of_model = [_options(model.model_extra or {}, f"{origin}: models: {model.model}") for model in plan.models]
    cells: dict[str, Cell] = {}
    for (model, of_this), (task, word), setting in product(
        zip(plan.models, of_model, strict=True), tasks.values(), _settings(plan, shared, origin)
    ):
        name, names = task.spec.task, [name for name in (model.name, model.model) if name is not None]
        named = (names, [name, *task.spec.tag], [setting.name, setting.base])
        if any(match.fits(*named) for match in plan.exclude):
            continue
        where = f"{origin}: cell {'/'.join(filter(None, (setting.name, names[0], name)))}"
        layers = [shared, setting.options, of_this, over, setting.varied]
        options = {**merged(layers), "model": model.model, "tasks": [word]}
        if model.name is not None:
            options["model_name"] = model.name
        config = make_run_config({**options, "output_path": "."}, where)
        folder = "/".join(filter(None, (setting.name, safe_name(config.model_name), safe_name(name))))
        update = {"output_path": str(root / folder / "results.json")}
        if config.save_adapted is not None:
            update["save_adapted"] = str(Path(config.save_adapted) / folder)
        config = config.model_copy(update=update)
        if folder in cells:
            raise UsageError(
                f"{origin}: cells {cells[folder].number} and {len(cells) + 1} would both write to {folder}; give "
                f"models and settings different names ({{model: {model.model}, name: ...}}), and values of a grid once"
            )
        try:
            chosen = resolve(config)
        except TtmbenchError as error:
            raise UsageError(f"{where}: {error} (`exclude` in the plan leaves cells out)") from None
        cells[folder] = Cell(len(cells) + 1, folder, name, setting.name, config, chosen)
    if not cells:
        raise UsageError(f"{origin}: exclude leaves no cell")
    return list(cells.values())


def _settings(plan: SweepPlan, shared: Record, origin: str) -> Iterator[Setting]:
    """Every setting; with a grid one for each combination of its values, which are in the name.

    A key of a grid is an option of a run, ``METHOD.KEY``, or a setting of the only method, which is TTM where none is
    named. UsageError for a key that several methods could mean, or more than `MOST` combinations.
    """
    for name, extra, own in [(item.name, item.model_extra, item.grid) for item in plan.settings] or [("", None, {})]:
        options = _options(extra or {}, f"{origin}: settings: {name}")
        where = f"{origin}: settings: {name}: grid" if own else f"{origin}: grid"
        grid = {**own, **{key: values for key, values in plan.grid.items() if key not in own}}
        if (count := math.prod(map(len, grid.values()))) > MOST:
            raise UsageError(f"{where}: {count} combinations; at most {MOST} are allowed")
        for values in product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            of_run = {key: value for key, value in chosen.items() if key.replace("-", "_") in RunConfig.model_fields}
            varied = _options(of_run, where)
            asked = merged([shared, options, varied])
            methods = [*asked.get("methods", [])]
            if "ttm" not in methods and (not methods or asked.get("ttm")):
                methods.append("ttm")
            for key in chosen.keys() - of_run.keys():
                head, _, rest = key.partition(".")
                method, setting = (head, rest) if head in methods else (methods[0], key)
                if head not in methods and len(methods) > 1:
                    ways = " or ".join(f"'{method}.{key}'" for method in methods)
                    raise UsageError(f"{where}: '{key}' is ambiguous, as the setting has several methods; write {ways}")
                if method != "ttm":
                    varied.setdefault("method_args", {})[f"{method}.{setting}"] = chosen[key]
                    continue
                varied.setdefault("ttm_args", {})[setting] = chosen[key]
                if not asked.keys() & {"ttm", "methods"}:
                    varied["ttm"] = True
            yield Setting(_name(name, chosen), name, options, varied)


def _options(entries: Mapping[str, object], origin: str) -> Record:
    """Options of a run by the names of the command line, with pairs as mappings; their values are checked later."""
    options: Record = {str(key).replace("-", "_"): value for key, value in entries.items()}
    for key, value in options.items():
        if key in NOT_OF_A_CELL:
            raise UsageError(f"{origin}: unknown key '{key}' in a sweep: {NOT_OF_A_CELL[key]}")
        if key in RENAMED:
            raise UsageError(f"{origin}: '{key}' is now written: {RENAMED[key]}")
        if key not in RunConfig.model_fields or key in ("model", "model_name"):
            hint = near_name(key, RunConfig.model_fields, "; it must be an option of `ttmbench run`")
            raise UsageError(f"{origin}: unknown key '{key}'{hint}")
        if key in PAIRS:
            pairs = parse_pairs(value)
            if not isinstance(pairs, Mapping):
                raise UsageError(f"{origin}: '{key}' must be a mapping, got {value!r:.80}")
            options[key] = with_dots(pairs) if key == "method_args" else pairs
        elif key in ("methods", "include_path"):  # read before the others are checked
            options[key] = split_names(value or [])
            if not isinstance(options[key], list):
                raise UsageError(f"{origin}: '{key}' must be a list of names, got {value!r:.80}")
    return options


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
