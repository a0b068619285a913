"""Plugins, and what they register by name: models, task files, sources, metrics, schedules and test-time methods.

Errors in an installed plugin are recorded, and everything else continues to work. Errors in a plugin that a program
passes as an argument are raised, since that program can fix them.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import pluggy
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as dataclass_of_pydantic

import ttmbench.hookspecs as hookspecs
from ttmbench._util.console import one_line, warn
from ttmbench._util.file_io import modules_of, read_yaml
from ttmbench._util.third_party import describe, error_line, error_with_place, place_of, place_of_function
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.errors import DataError, UsageError
from ttmbench.metrics import METRICS
from ttmbench.model_adapters import catalog
from ttmbench.plugins.method_functions import METHODS
from ttmbench.results.numbers import COLUMNS
from ttmbench.results.ranks import RANK_METRICS
from ttmbench.schedules import SCHEDULES
from ttmbench.types import (
    AdapterSpec,
    GroupShape,
    MethodPart,
    MethodSpec,
    MetricSpec,
    ModelFiles,
    ScheduleSpec,
    SourceSpec,
)

# What is built in is named by import path, because its packages are higher layers.
_READERS = (  # kind, module, summary
    ("rendered", "rendered", "scenes drawn from a seed; no download"),
    ("folder", "files", "a JSONL, JSON, CSV or TSV file of groups and an image folder"),
    ("annotations", "files", "a file and images in the data folder"),
    ("huggingface", "huggingface", "a dataset of the Hugging Face Hub: parquet tables"),
    ("hub_files", "files", "loose files of a Hub repository"),
    ("first_of", "combined", "the first available of several sources"),
    ("random_foils", "combined", "pairs of another source with randomly drawn distractors"),
    ("class_folders", "files", "a folder of images for each class, in the data folder"),
    ("whatsup", "whatsup", "WhatsUp's photographs, alone or in pairs"),
)
_FROM = "ttmbench.data.sources"
_PARTS, _TRAINING, _TTM = (f"ttmbench.methods.{module}" for module in ("parts", "training", "ttm"))

PARTS: tuple[MethodPart, ...] = (  # of TTM, by kind and name; the first of each kind is the default
    MethodPart("selection", "threshold", f"{_TTM}:select", "margin of at least tau_t; never a tie"),
    MethodPart("selection", "every", f"{_PARTS}:every", "every unit without a tie, whatever its margin"),
    MethodPart("pseudo_labels", "matching", f"{_TTM}:matching", "the matching with the largest total"),
    MethodPart("pseudo_labels", "argmax", f"{_PARTS}:argmax", "each image's best caption; one may be used twice"),
    MethodPart("pseudo_labels", "sinkhorn", f"{_PARTS}:sinkhorn", "soft labels: a doubly stochastic plan per group"),
    MethodPart("loss", "own", f"{_PARTS}:own", "the loss that the model was trained with"),
    MethodPart("loss", "cross_entropy", f"{_PARTS}:cross_entropy", "to soft or hard labels, in both directions"),
    MethodPart("optimizer", "adamw", f"{_TRAINING}:adamw", "AdamW with weight_decay and betas"),
    MethodPart("optimizer", "sgd", f"{_PARTS}:sgd", "stochastic gradient descent with momentum"),
    MethodPart(
        "lr_schedule",
        "cosine",
        f"{_TRAINING}:cosine_within_iteration",
        "falls to lr_floor in an iteration, and restarts",
    ),
    MethodPart("lr_schedule", "linear", f"{_PARTS}:linear", "falls evenly to lr_floor, and restarts"),
    MethodPart("lr_schedule", "constant", f"{_PARTS}:constant", "the same throughout an iteration"),
    MethodPart("stopping", "never", f"{_PARTS}:never", "all iterations are run"),
    MethodPart("stopping", "no_change", f"{_PARTS}:no_change", "selection and pseudo-labels have not changed"),
    MethodPart("stopping", "overfit", f"{_PARTS}:overfit", "every selected group satisfies its pseudo-label"),
    MethodPart("teacher", "none", f"{_PARTS}:none", "the trained model makes the pseudo-labels and scores"),
    MethodPart("teacher", "ema", f"{_PARTS}:ema", "a moving average of the weights makes them and is scored"),
)

BUILTIN = "ttmbench"
ENDINGS = (".yaml", ".yml")
MOST_NAMES = 40  # that an error lists
WEIGHTS_ARE_NAMED_BY = ("pretrained", "model", "path")
_TAKEN: dict[str, tuple[type[Any], ...]] = {
    "ttmbench_register_adapters": (AdapterSpec,),
    "ttmbench_register_sources": (SourceSpec,),
    "ttmbench_register_metrics": (MetricSpec,),
    "ttmbench_register_schedules": (ScheduleSpec,),
    "ttmbench_register_methods": (MethodSpec, MethodPart),
}
"""Hook -> specifications that it takes; folders of tasks have none."""
_TABLES = {
    **{"adapters": "model", "task_dirs": "task", "sources": "source", "metrics": "metric", "schedules": "schedule"},
    **{"methods": "method", "parts": "part"},
}
"""What is registered -> one of it, in messages."""
_WORD = (r"[A-Za-z0-9_]+", "letters, digits and _")
_NAMES: dict[type[Any], tuple[str, str]] = {  # specification -> form of its name, `_WORD` for the others
    AdapterSpec: (r"[A-Za-z0-9][A-Za-z0-9._+:/-]*", "letters, digits and . _ + : / -"),
    SourceSpec: (r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits and . _ -"),
}
_TARGET = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_STEPS = ("load", "prepare", "score")  # keys of ``timing`` beside names of methods
_RESULT_ENDINGS = ("_stderr", "_seed_std")  # suffixes of keys that results add to each metric
T = TypeVar("T")
Entries = dict[str, tuple[Any, str]]
"""Name -> what is registered, and by which plugin."""


class BrokenPlugin(NamedTuple):
    """An installed plugin that fails at least in part; ``target`` is the value of its entry point."""

    name: str
    target: str
    reason: str

    def __str__(self) -> str:
        return f"plugin '{self.name}' {self.reason}"


class Table(dict[str, T]):
    """What plugins register through one hook, by name; UsageError with similar names for one that is unknown."""

    def __init__(self, what: str, broken: Sequence[BrokenPlugin], entries: Mapping[str, tuple[T, str]]) -> None:
        super().__init__({name: entry for name, (entry, _) in entries.items()})
        self.what, self.broken = what, broken
        self.plugins = {name: plugin for name, (_, plugin) in entries.items()}

    def __missing__(self, name: str) -> NoReturn:
        raise UsageError(unknown(self.what, name, self, self.broken))


@dataclass(frozen=True)
class Registry:
    """Loaded plugins, and everything that they registered.

    Attributes:
        manager: of pluggy.
        installed: plugin name -> target of its entry point.
        broken: errors of installed plugins.
    """

    manager: pluggy.PluginManager
    installed: Mapping[str, str]
    broken: Sequence[BrokenPlugin]
    adapters: Table[AdapterSpec]
    task_files: Table[Traversable]
    sources: Table[SourceSpec]
    metrics: Table[MetricSpec]
    schedules: Table[ScheduleSpec]
    methods: Table[MethodSpec]
    parts: Table[MethodPart]  # keys are KIND=NAME

    @property
    def modules(self) -> set[str]:
        """The modules of ttmbench, of plugins that registered something, and of what they registered."""
        modules = {BUILTIN}
        for table in (self.adapters, self.sources, self.metrics, self.schedules, self.methods, self.parts):
            for name in (name for name, plugin in table.plugins.items() if plugin != BUILTIN):
                values = [getattr(table[name], field.name) for field in fields(table[name])]
                made = (self.manager.get_plugin(table.plugins[name]), *filter(callable, values))
                modules.update(*map(modules_of, made), [getattr(table[name], "target", BUILTIN).partition(":")[0]])
        return modules

    def part(self, kind: str, name: str) -> MethodPart:
        """Returns a part of TTM by kind and name; UsageError with similar names if unknown."""
        of_kind = {part.name: part for part in self.parts.values() if part.kind == kind}
        if name not in of_kind:
            raise UsageError(unknown(kind, name, of_kind, self.broken))
        return of_kind[name]

    def adapts(self, config: RunConfig) -> bool:
        """Whether a run has a method that trains the whole model with TTM's settings."""
        return any(self.methods[name].needs_model for name in config.methods)

    @property
    def plugins(self) -> list[str]:
        """Names of the loaded plugins, built-in first."""
        return [BUILTIN, *sorted(name for name, _ in self.manager.list_name_plugin())]

    def notify(self, hook: str, **values: object) -> None:
        """Calls a hook of every plugin; failures are warnings and never end a run."""
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                implementation.function(*(values[name] for name in implementation.argnames))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # any exception of third-party code
                failed = f"plugin '{implementation.plugin_name}' failed in {hook}: {error_with_place(error)}"
                warnings.warn(failed, stacklevel=2)


def build_registry(
    include_paths: Sequence[str | Path] = (), extra: Iterable[tuple[str, object]] = (), quiet: bool = False
) -> Registry:
    """Collects what is built in, and what plugins register: installed ones (entry points ``ttmbench``) and ``extra``.

    Errors of installed plugins are in ``broken``, and printed unless ``quiet``. UsageError for an error in an ``extra``
    plugin or a folder of task files, and for two tasks of one name.
    """
    manager, installed, broken = pluggy.PluginManager(hookspecs.PROJECT), dict[str, str](), list[BrokenPlugin]()
    manager.add_hookspecs(hookspecs)
    for point in sorted(entry_points(group=hookspecs.PROJECT), key=lambda point: point.name):
        _load(manager, point, installed, broken)
    for name, plugin in extra:
        _register(manager, name, plugin)
    built_in: dict[str, Iterable[Any]] = {
        "adapters": catalog.adapters(),
        "task_dirs": [files("ttmbench.tasks")],
        "sources": [
            SourceSpec(kind, f"{_FROM}.{module}:read_{kind}", summary, f"{_FROM}.{module}:locate_{kind}")
            for kind, module, summary in _READERS
        ],
        "metrics": (*METRICS, *RANK_METRICS),
        "schedules": SCHEDULES,
        "methods": (*METHODS, *PARTS),
    }
    found: dict[str, Entries] = {
        what: {name: (entry, BUILTIN) for item in items for name, entry in _named(item)}
        for what, items in built_in.items()
    }
    if manager.get_plugins():
        found = {what: _with_plugins(manager, installed, broken, what, own) for what, own in found.items()}
    for include in include_paths:
        _add_folder(found["task_dirs"], include)
    found["parts"] = {key: one for key, one in found["methods"].items() if isinstance(one[0], MethodPart)}
    found["methods"] = {key: one for key, one in found["methods"].items() if key not in found["parts"]}
    tables = {what: Table[Any](_TABLES[what], broken, entries) for what, entries in found.items()}
    for failed in () if quiet else broken:
        warn(f"{failed}; everything else works")
    return Registry(manager, installed, broken, task_files=tables.pop("task_dirs"), **tables)


def _load(
    manager: pluggy.PluginManager, point: EntryPoint, installed: dict[str, str], broken: list[BrokenPlugin]
) -> None:
    """Imports and registers an installed plugin; it is broken if that fails."""
    own = point.dist is None or point.dist.name == point.name
    name = point.name if own or point.dist is None else f"{point.dist.name}:{point.name}"
    try:
        with redirect_stdout(sys.stderr):
            plugin = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any exception of third-party code
        broken.append(BrokenPlugin(name, point.value, f"could not be imported: {error_with_place(error)}"))
        return
    try:
        _register(manager, name, plugin)
    except UsageError as error:
        if manager.get_plugin(name) is plugin:
            manager.unregister(plugin, name)
        broken.append(BrokenPlugin(name, point.value, str(error).removeprefix(f"plugin '{name}' ")))
    else:
        installed[name] = point.value


def _add_folder(tasks: Entries, include: str | Path) -> None:
    """Adds the task files of a folder; UsageError if there is none, or for a name that another task has."""
    if not Path(include).is_dir():
        raise UsageError(f"--include_path {include} is not a folder")
    for name, entry in _named(Path(include)):
        if name in tasks:
            raise UsageError(f"task '{name}' is defined by both '{tasks[name][1]}' and '{include}'; rename one")
        tasks[name] = (entry, str(include))


def _register(manager: pluggy.PluginManager, name: str, plugin: object) -> None:
    """UsageError if a plugin implements a hook that does not exist, or has the name of another."""
    try:
        if name == BUILTIN:
            raise ValueError(f"'{BUILTIN}' is the name of what is built in")
        manager.register(plugin, name=name)
        manager.check_pending()
    except (ValueError, pluggy.PluginValidationError) as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UsageError(f"plugin '{name}' does not fit: {one_line(last)}") from error
    except Exception as error:  # pluggy reads every attribute of a plugin, whose code may raise
        raise UsageError(f"plugin '{name}' does not fit: {error_line(error)}") from error


def _named(item: Any) -> list[tuple[str, Any]]:
    """What an item registers, by name: the files in a folder of tasks, a model also by its aliases."""
    if isinstance(item, AdapterSpec):
        return [(name, item) for name in (item.name, *item.aliases)]
    if isinstance(item, MethodPart):
        return [(f"{item.kind}={item.name}", item)]
    if isinstance(item, Traversable):
        entries = [entry for entry in item.iterdir() if entry.name.endswith(ENDINGS) and entry.name[0] != "_"]
        return [(entry.name.rsplit(".", 1)[0], entry) for entry in entries]
    return [(item.kind if isinstance(item, SourceSpec) else item.name, item)]


def _with_plugins(
    manager: pluggy.PluginManager,
    installed: Mapping[str, str],
    broken: list[BrokenPlugin],
    what: str,
    registered: Entries,
) -> Entries:
    """What is built in, and all that plugins register through a hook, by name.

    Invalid items are skipped. If two entries have the same name, only a built-in one is accepted. UsageError for an
    error in a plugin that a program passed.
    """
    hook = f"ttmbench_register_{what}"
    doubled, problems = set[str](), list[tuple[str, str]]()
    calls = getattr(manager.hook, hook).get_hookimpls()
    for call in sorted(calls, key=lambda call: str(call.plugin_name)):
        plugin, items = call.plugin_name, []
        try:
            with redirect_stdout(sys.stderr):  # since stdout may be JSON
                items = list(call.function())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any exception of third-party code
            problems.append((plugin, f"failed in {hook}: {error_with_place(error)}"))
        for item in items:
            problem = problem_of(item, hook)
            if problem is not None:
                place = place_of_function(call.function)
                problems.append((plugin, f"in {hook}{f' ({place})' if place else ''}: {problem}"))
                continue
            if isinstance(item, MetricSpec):
                item = replace(item, plugin=plugin)
            for name, entry in _named(item):
                first, other = registered.setdefault(name, (entry, plugin))
                if first is entry:
                    continue
                both = f"both register '{name}' through {hook}; uninstall one, or rename what it registers"
                if not {other, plugin} <= {BUILTIN, *installed}:
                    raise UsageError(f"plugins '{other}' and '{plugin}' {both}")
                problems.append((plugin, f"and '{other}' {both}"))
                if other != BUILTIN:
                    problems.append((other, f"and '{plugin}' {both}"))
                    doubled.add(name)
    for plugin, problem in problems:
        failed = BrokenPlugin(plugin, installed.get(plugin, ""), problem)
        if plugin not in installed:
            raise UsageError(str(failed))
        if failed not in broken:
            broken.append(failed)
    return {name: entry for name, entry in registered.items() if name not in doubled}


def problem_of(item: object, hook: str) -> str | None:
    """The first error in an item that a plugin registers; None if it is valid. Labels are for built-ins alone."""
    if hook == "ttmbench_register_task_dirs":
        is_folder = isinstance(item, Traversable) and item.is_dir()
        return None if is_folder else f"must be a Path to a folder of tasks, got {item!r:.200}"
    kind = next((candidate for candidate in _TAKEN[hook] if isinstance(item, candidate)), None)
    if kind is None:
        taken = "s and ".join(candidate.__name__ for candidate in _TAKEN[hook])
        return f"{type(item).__name__} cannot be registered here; expected {taken}s of ttmbench"
    values = {field.name: getattr(item, field.name) for field in fields(kind)}
    key = "kind" if kind is SourceSpec else "name"
    whose = f"{kind.__name__} {values[key]!r}: "
    try:
        dataclass_of_pydantic(kind, frozen=True, config=ConfigDict(strict=True))(**values)
        if isinstance(item, AdapterSpec):
            TTMConfig().with_changes(dict(item.ttm_defaults), "ttm_defaults")
    except ValidationError as error:
        return whose + describe(error)
    except UsageError as error:
        return whose + str(error)
    form, allowed = _NAMES.get(kind, _WORD)
    for what, name in ((key, values[key]), *(("alias", alias) for alias in values.get("aliases", ()))):
        if not re.fullmatch(form, name):
            return f"{whose}a {what} is made of {allowed}, got {name!r}"
    if kind is MetricSpec and values["name"].endswith(_RESULT_ENDINGS):
        return f"{whose}a name cannot end in {' or '.join(_RESULT_ENDINGS)}, which results add to every metric"
    targets = {"target": values.get("target", "a:b"), "needs": values["needs"] if kind is SourceSpec else ""}
    for what, target in targets.items():
        if (what, target) != ("needs", "") and not _TARGET.fullmatch(target):
            return f"{whose}{what} should be 'module:callable', got {target!r}"
    if isinstance(item, MetricSpec) and item.track in ("forced_choice", "supervised"):
        return f"{whose}track '{item.track}' is that of models, not of metrics"
    if not isinstance(item, MethodSpec):
        return None
    if not item.needs:
        return f"{whose}needs should name what the method gets, such as scores"
    if (item.reset is not None) != ("gradients" in item.needs):
        return f"{whose}reset is for a method that needs gradients, and such a method has one; got {item.reset!r}"
    if item.takes_ttm_args and "gradients" not in item.needs:
        return f"{whose}takes_ttm_args is for a method that trains the model, so its needs have 'gradients'"
    if {"labels", "random_labels"} & set(item.needs):
        return f"{whose}a method of a plugin gets no labels, not even random ones"
    if any(item.name.lower() in (column.method, column.name.lower()) for column in COLUMNS):
        return f"{whose}'{item.name}' is the name of a column that ttmbench has"
    if item.name in _STEPS:
        return f"{whose}'{item.name}' is the name of a step whose time results state"
    return None


def unknown(
    what: str,
    name: str,
    known: Iterable[str],
    broken: Iterable[BrokenPlugin] = (),
    tasks: Sequence[str] = (),
    offline: bool = False,
) -> str:
    """The message for an unknown name: similar names, or all, or a command; and broken plugins, which might define it.

    For a model by its Hub id, file or folder, the command that runs it on ``tasks``.
    """
    plugins = "".join(f" ({plugin})" for plugin in broken)
    if what.startswith("task") and (why := _why_not_here(name)) is not None:
        return f"there is no task '{name}': {why}"
    if isinstance(known, Table) and what == "model":
        try:
            command = commands_for(name, known.values(), tasks, offline)
        except DataError as error:
            return f"unknown model '{name}': {error}{plugins}"
        if command is not None:
            return f"unknown model '{name}'; run it with: {command}{plugins}"
    names = sorted(set(known))
    of_family = [one for one in names if one.startswith(f"{name}-")][:3]
    same = [one for one in names if one.lower() == name.lower()]
    near = " or ".join(map(repr, same or of_family or get_close_matches(name, names, n=2, cutoff=0.6)))
    kinds = re.findall("task|model|method|metric", what) if len(names) > MOST_NAMES else []
    listed = " or ".join(f"`ttmbench ls {kind}s`" for kind in kinds)
    hint = f"did you mean {near}?" if near else f"{listed} lists them" if listed else f"known: {', '.join(names)}"
    return f"unknown {what} '{name}'{plugins}; {hint}"


def _why_not_here(name: str) -> str | None:
    """The reason why a known dataset has no task; None for other names."""
    entries = read_yaml(files("ttmbench.tasks") / "_not_here.yaml")
    spelled = re.sub(r"[\W_]+", "_", name.lower())
    return next((entry["why"] for entry in entries if spelled in entry["names"]), None)


def load_target(target: str, needs: Sequence[str] = ()) -> Any:
    """Imports ``"module:callable"``; UsageError, with the packages to install, if that fails."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        raise UsageError(_not_loaded(target, needs, error)) from error


def _not_loaded(target: str, needs: Sequence[str], error: BaseException) -> str:
    if isinstance(error, AttributeError):
        return f"{target} does not exist: {error}"
    if not isinstance(error, ImportError):
        return f"{target} cannot be imported: {error_with_place(error)}"
    place, install = place_of(error), f"; pip install {shlex.join(needs)}" if needs else ""
    return f"{target} cannot be imported: {error}{f' ({place})' if place else ''}{install}"


def commands_for(
    name: str, specs: Iterable[AdapterSpec], tasks: Sequence[str] = (), offline: bool = False
) -> str | None:
    """Commands that run a model given by Hub id or path: names of ``specs`` with its weights, else by its files.

    None for a name that is neither; DataError for what is not there, is damaged, or is of no adapter.

    >>> commands_for("a/b", [AdapterSpec("x", "m:load", model_args={"pretrained": "a/b"})], ["winoground"])
    'ttmbench --model x --tasks winoground'
    """
    named: list[tuple[str, Mapping[str, str]]] = [
        (spec.name, {})
        for spec in specs
        if any(str(spec.model_args.get(key, "")).casefold() == name.casefold() for key in WEIGHTS_ARE_NAMED_BY)
    ]
    if not named:
        from ttmbench.model_adapters._shared.fitting import fitting  # with the Hub's library

        fits = fitting(name, offline=offline)
        if fits == {}:
            raise DataError("no model adapter reads the files there; `ttmbench score` reads scores of other code")
        named = list((fits or {}).items())[:1]
    return _commands(named, tasks) or None


def _commands(models: Iterable[tuple[str, Mapping[str, str]]], tasks: Sequence[str]) -> str:
    """The command lines that run models with their arguments."""
    from ttmbench.results.models import command_line  # with pydantic's classes of a document

    lines = [command_line(["ttmbench"], {"model": name, "model_args": of, "tasks": list(tasks)}) for name, of in models]
    hint = ", where NAME is one of open_clip.list_models()" if "model=NAME" in str(lines) else ""
    return " or ".join(dict.fromkeys(lines)) + hint


def name_what_fits(
    error: UsageError | DataError,
    spec: AdapterSpec,
    model_args: Mapping[str, object],
    tasks: Sequence[str] = (),
    offline: bool = False,
) -> None:
    """Raises an error of a model adapter with the command of the one that reads the files, if it is another."""
    from ttmbench.model_adapters._shared.fitting import fitting

    place = next((str(model_args[key]) for key in WEIGHTS_ARE_NAMED_BY if model_args.get(key)), "")
    target_of, fits = {one.name: one.target for one in catalog.adapters()}, None
    if place and spec.target in target_of.values():
        with suppress(DataError):
            place = place.removeprefix("local-dir:").removeprefix("hf-hub:")
            fits = fitting(place, offline=offline)
    others = list((fits or {}).items())
    is_right = any(
        target_of[kind] == spec.target and list(named.items())[-1] in model_args.items() for kind, named in others
    )
    if others and not is_right:  # else the error is about something else
        raise type(error)(f"{error}; run it with: {_commands(others[:1], tasks)}") from error


def model_arguments(spec: AdapterSpec, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """Model arguments: the user's override the defaults; with other weights the default revision is dropped.

    DataError if the model cannot be loaded, or if the user has to download its weights file and pass its path.

    >>> spec = AdapterSpec("x", "m:load", model_args={"pretrained": "a/b", "revision": "c0ffee"})
    >>> model_arguments(spec, {"pretrained": "./mine"})
    {'pretrained': './mine'}
    """
    fixed = dict(spec.model_args)
    if any(model_args.get(name, fixed.get(name)) != fixed.get(name) for name in WEIGHTS_ARE_NAMED_BY):
        fixed.pop("revision", None)
    card = spec.card
    if card is not None and card.refused:
        raise DataError(f"{spec.name} cannot be loaded: {card.refused}")
    if card is not None and card.page and "pretrained" not in model_args:
        raise DataError(f"{spec.name}: download {card.weights} from {card.page} and give --model_args pretrained=FILE")
    return {**fixed, **model_args}


def locate_files(spec: AdapterSpec, model_args: Mapping[str, Any], offline: bool) -> list[ModelFiles] | None:
    """Locates the weights of a model, and downloads them unless ``offline``; None if they are not known.

    The adapter's module may define ``locate`` next to ``load``: it takes the arguments that name weights, and
    ``offline``. DataError if weights are unavailable or incomplete; UsageError for an invalid argument.
    """
    module, _, _ = spec.target.partition(":")
    load_target(spec.target, spec.needs)
    locate = getattr(import_module(module), "locate", None)
    if locate is None:
        return None
    parameters = inspect.signature(locate).parameters
    arguments = {**model_arguments(spec, model_args), "offline": offline}
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if any(name not in arguments for name in needed):
        return None
    try:
        files: list[ModelFiles] = locate(**{name: value for name, value in arguments.items() if name in parameters})
    except (UsageError, DataError) as error:
        name_what_fits(error, spec, model_args, offline=offline)
        raise
    return files


def metric_for(metric: MetricSpec, shape: GroupShape) -> MetricSpec:
    """Binds a metric to the number of true captions of a shape; if unsupported, it is defined for no group."""
    true = shape.true_captions
    if true == 1 and metric.several_true != "only":
        return metric
    if true == 1 or metric.several_true == "undefined":
        return replace(metric, defined=_never)
    return replace(
        metric,
        compute=_bound(metric.compute, metric, shape),
        ties=None if metric.ties is None else _bound(metric.ties, metric, shape),
        chance=None if metric.chance is None else partial(metric.chance, true_captions=true),
        defined=partial(metric.defined, true_captions=true),
    )


def _bound(function: Callable[..., np.ndarray], metric: MetricSpec, shape: GroupShape) -> Callable[..., np.ndarray]:
    """Binds a function of scores to the number of true captions, and a global metric also to the truth."""
    bound = partial(function, true_captions=shape.true_captions)
    if metric.scope != "global":
        return bound
    return lambda pairs, truth: bound(pairs, shape.truth(len(pairs) // shape.images))


def _never(images: int, captions: int) -> bool:
    return False
